/* base/crc.c: CRC-32C (Castagnoli): RFC 3720, appendix B.4.
 *
 * The polynomial is 0x1EDC6F41, bits taken lowest first, so 0x82F63B78 in a register that shifts down;
 * the register starts as all ones and is inverted at the end. Processors with SSE4.2 have an
 * instruction for it; the others take four bits at a time from a table of sixteen words.
 * SPDX-License-Identifier: MIT */
#include "crc.h"

#include <string.h>
#include <zlib.h>

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

uint32_t dsi_crc32(uint32_t crc, const void *data, size_t n)
{
    return (uint32_t)crc32_z(crc, data, n);
}

uint32_t dsi_crc32_combine(uint32_t a, uint32_t b, size_t n_b)
{
    return (uint32_t)crc32_combine(a, b, (z_off_t)n_b);
}
