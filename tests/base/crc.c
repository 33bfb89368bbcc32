/* tests/base/crc.c: CRC-32C beside the values of RFC 3720, by instruction and
 * by table.
 * SPDX-License-Identifier: MIT */
#include "base/crc.h"
#include "check.h"

static void check_crc(const void *data, size_t n, uint32_t want)
{
    CHECK_INT(dsi_crc32c(0, data, n), want);
    CHECK_INT(dsi_crc32c_plain(0, data, n), want);
}

static void values_of_rfc_3720(void **state)
{
    (void)state;
    unsigned char b[32], down[32];
    check_crc(memset(b, 0, sizeof b), sizeof b, 0x8a9136aa);
    check_crc(memset(b, 0xff, sizeof b), sizeof b, 0x62a8ab43);
    for (int i = 0; i < 32; i++) b[i] = (unsigned char)i, down[i] = (unsigned char)(31 - i);
    check_crc(b, sizeof b, 0x46dd794e);
    check_crc(down, sizeof down, 0x113fdb5c);
    static const unsigned char read10[48] = {
        /* an iSCSI read command */
        0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
        0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
    check_crc(read10, sizeof read10, 0xd9963a56);
    check_crc("123456789", 9, 0xe3069283);
    check_crc("", 0, 0);
}

static void parts_make_the_whole(void **state)
{
    (void)state;
    unsigned char b[300];
    for (size_t i = 0; i < sizeof b; i++) b[i] = (unsigned char)(i * i + 7 * i);
    for (size_t n = 0; n <= sizeof b; n++) {
        uint32_t whole = dsi_crc32c_plain(0, b, n);
        CHECK_INT(dsi_crc32c(0, b, n), whole);
        CHECK_INT(dsi_crc32c(dsi_crc32c(0, b, n / 3), b + n / 3, n - n / 3), whole);
        CHECK_INT(dsi_crc32c_plain(dsi_crc32c(0, b, n / 2), b + n / 2, n - n / 2), whole);
    }
}

/* Bit by bit, as it is defined: the polynomial 0xEDB88320 in a register that
 * shifts down. */
static uint32_t crc32_by_bits(uint32_t crc, const unsigned char *p, size_t n)
{
    crc = ~crc;
    for (; n; n--) {
        crc ^= *p++;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static void crc32_of_any_length(void **state)
{
    (void)state;
    unsigned char b[900];
    for (size_t i = 0; i < sizeof b; i++) b[i] = (unsigned char)(i * i + 7 * i);
    CHECK_INT(dsi_crc32(0, "123456789", 9), 0xcbf43926);
    for (size_t n = 0; n + 5 <= sizeof b; n++) {
        CHECK_INT(dsi_crc32(0, b + n % 5, n), crc32_by_bits(0, b + n % 5, n));
        CHECK_INT(dsi_crc32(77, b, n), crc32_by_bits(77, b, n));
        CHECK_INT(dsi_crc32_combine(dsi_crc32(0, b, n / 3), dsi_crc32(0, b + n / 3, n - n / 3),
                                    n - n / 3),
                  dsi_crc32(0, b, n));
    }
}

TEST_MAIN(cmocka_unit_test(crc32_of_any_length), cmocka_unit_test(values_of_rfc_3720),
          cmocka_unit_test(parts_make_the_whole))
