/* base/crc.c: CRC-32C (Castagnoli): RFC 3720, appendix B.4; CRC-32, zlib's, and
 * faster.
 *
 * The polynomial is 0x1EDC6F41, bits taken lowest first, so 0x82F63B78 in a
 * register that shifts down; the register starts as all ones and is inverted at
 * the end. Processors with SSE4.2 have an instruction for it; the others take
 * four bits at a time from a table of sixteen words.
 * SPDX-License-Identifier: MIT */
#include "crc.h"

#include <stdbool.h>
#include <string.h>
#include <zlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

uint32_t dsi_crc32c_plain(uint32_t crc, const void *data, size_t n)
{
    /* by[i]: what four shifts make of the lowest four bits i */
    static const uint32_t by[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
                                    0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                    0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const unsigned char *p = data;
    crc = ~crc;
    for (; n; n--) {
        crc ^= *p++;
        crc = crc >> 4 ^ by[crc & 15];
        crc = crc >> 4 ^ by[crc & 15];
    }
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((__target__("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *data,
                                                                     size_t n)
{
    const unsigned char *p = data;
    uint64_t c = (uint32_t)~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        c = __builtin_ia32_crc32di(c, word);
    }
    for (; n; n--) c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
    return ~(uint32_t)c;
}

uint32_t dsi_crc32c(uint32_t crc, const void *data, size_t n)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, data, n)
                                            : dsi_crc32c_plain(crc, data, n);
}
#else
uint32_t dsi_crc32c(uint32_t crc, const void *data, size_t n)
{
    return dsi_crc32c_plain(crc, data, n);
}
#endif

/* ---- CRC-32 -------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define FOLDED __attribute__((__target__("pclmul,sse4.1")))

/* x times x^d, d being what the pair of constants in k stands for, modulo the
 * polynomial. */
FOLDED static __m128i crc_times(__m128i x, __m128i k)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11));
}

FOLDED static __m128i crc_load(const unsigned char *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* Two constants of 64 bits, by which a product moves 16 bytes D bits on: x^(D +
 * 32) and x^(D - 32) modulo the polynomial, bits taken lowest first. */
#define BY_2048 0x1322d1430, 0x11542778a
#define BY_512  0x1c6e41596, 0x154442bd4
#define BY_128  0x0ccaa009e, 0x1751997d0

/* By carry-less products (Gopal and others, Fast CRC Computation for Generic
 * Polynomials, Intel 2009): 64 bytes before others count as x^512 times as
 * much, so four registers of 16 bytes move over the data; each is multiplied by
 * x^512 and added to the next 16 bytes; at the end they are joined by x^128.
 * The result is 16 bytes that have the check sum of all. n is a multiple of 16,
 * and at least 64. */
FOLDED static uint32_t by_products(uint32_t crc, const unsigned char *p, size_t n)
{
    const __m128i by_512 = _mm_set_epi64x(BY_512), by_128 = _mm_set_epi64x(BY_128);
    __m128i x[4];
    unsigned char rest[16];
    for (int i = 0; i < 4; i++) x[i] = crc_load(p + 16 * i);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = _mm_xor_si128(crc_times(x[i], by_512), crc_load(p + 16 * i));
    for (int i = 1; i < 4; i++) x[0] = _mm_xor_si128(crc_times(x[0], by_128), x[i]);
    for (; n; p += 16, n -= 16) x[0] = _mm_xor_si128(crc_times(x[0], by_128), crc_load(p));
    _mm_storeu_si128((__m128i *)rest, x[0]);
    return (uint32_t)crc32_z(0xffffffff, rest, sizeof rest); /* from a register of 0 on */
}

#define FOLDED_WIDE __attribute__((__target__("avx512f,vpclmulqdq,pclmul,sse4.1")))

/* x, four times 16 bytes, moved on, and y added. */
FOLDED_WIDE static __m512i crc_move(__m512i x, __m512i k, __m512i y)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),
                                     _mm512_clmulepi64_epi128(x, k, 0x11), y,
                                     0x96); /* xor of three */
}

FOLDED_WIDE static __m512i crc_fold(long long high, long long low)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x(high, low));
}

/* The same with four registers of 64 bytes each, as processors since 2019 have
 * them, that walk 2048 bits on: the memory is the limit then. n is 256 at
 * least. */
FOLDED_WIDE static uint32_t by_wide_products(uint32_t crc, const unsigned char *p, size_t n)
{
    const __m512i by_2048 = crc_fold(BY_2048), by_512 = crc_fold(BY_512);
    const __m128i by_128 = _mm_set_epi64x(BY_128);
    __m512i x[4];
    unsigned char rest[64], last[16];
    for (int i = 0; i < 4; i++) x[i] = _mm512_loadu_si512(p + 64 * i);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int i = 0; i < 4; i++) x[i] = crc_move(x[i], by_2048, _mm512_loadu_si512(p + 64 * i));
    for (int i = 1; i < 4; i++) x[0] = crc_move(x[0], by_512, x[i]);
    for (; n >= 64; p += 64, n -= 64) x[0] = crc_move(x[0], by_512, _mm512_loadu_si512(p));
    _mm512_storeu_si512(rest, x[0]);
    __m128i sum = crc_load(rest);
    for (int i = 1; i < 4; i++)
        sum = _mm_xor_si128(crc_times(sum, by_128), crc_load(rest + 16 * i));
    for (; n; p += 16, n -= 16) sum = _mm_xor_si128(crc_times(sum, by_128), crc_load(p));
    _mm_storeu_si128((__m128i *)last, sum);
    return (uint32_t)crc32_z(0xffffffff, last, sizeof last);
}

uint32_t dsi_crc32(uint32_t crc, const void *data, size_t n)
{
    size_t whole = n >= 64 && __builtin_cpu_supports("pclmul") ? n & ~(size_t)15 : 0;
    bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
    if (whole >= 256 && can)
        crc = by_wide_products(crc, data, whole);
    else if (whole)
        crc = by_products(crc, data, whole);
    return (uint32_t)crc32_z(crc, (const unsigned char *)data + whole, n - whole);
}
#else
uint32_t dsi_crc32(uint32_t crc, const void *data, size_t n)
{
    return (uint32_t)crc32_z(crc, data, n);
}
#endif

uint32_t dsi_crc32_combine(uint32_t a, uint32_t b, size_t n_b)
{
    return (uint32_t)crc32_combine(a, b, (z_off_t)n_b);
}
