/* base/crc.c: CRC-32C (Castagnoli): RFC 3720, appendix B.4; CRC-32, zlib's, and faster.
 *
 * The polynomial is 0x1EDC6F41, bits taken lowest first, so 0x82F63B78 in a register that shifts down;
 * the register starts as all ones and is inverted at the end. Processors with SSE4.2 have an
 * instruction for it; the others take four bits at a time from a table of sixteen words.
 * SPDX-License-Identifier: MIT */
#include "crc.h"

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

/* x times x^d, d being what the pair of constants in k stands for, modulo the polynomial. */
FOLDED static __m128i times(__m128i x, __m128i k)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11));
}

FOLDED static __m128i load(const unsigned char *p) { return _mm_loadu_si128((const __m128i *)p); }

/* By carry-less products (Gopal and others, Fast CRC Computation for Generic Polynomials, Intel 2009): 64 bytes
 * before others count as x^512 times as much, so four registers of 16 bytes walk over the data, each multiplied
 * by x^512 and added to what comes; at the end they are joined by x^128. What is left is 16 bytes that have the
 * check sum of all. n is a multiple of 16, and 64 at least. */
FOLDED static uint32_t by_products(uint32_t crc, const unsigned char *p, size_t n)
{
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i x[4];
    unsigned char rest[16];
    for (int i = 0; i < 4; i++) x[i] = load(p + 16 * i);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++) x[i] = _mm_xor_si128(times(x[i], by_512), load(p + 16 * i));
    for (int i = 1; i < 4; i++) x[0] = _mm_xor_si128(times(x[0], by_128), x[i]);
    for (; n; p += 16, n -= 16) x[0] = _mm_xor_si128(times(x[0], by_128), load(p));
    _mm_storeu_si128((__m128i *)rest, x[0]);
    return (uint32_t)crc32_z(0xffffffff, rest, sizeof rest); /* from a register of 0 on */
}

uint32_t dsi_crc32(uint32_t crc, const void *data, size_t n)
{
    size_t whole = n >= 64 && __builtin_cpu_supports("pclmul") ? n & ~(size_t)15 : 0;
    if (whole) crc = by_products(crc, data, whole);
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
