/* tests/base/philox.c: the known answers of Random123 (kat_vectors,
 * philox4x32-10).
 * SPDX-License-Identifier: MIT */
#include "base/philox.h"
#include "check.h"

static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t out[4];
        dsi_philox4x32(rows[i].key, rows[i].counter, out);
        CHECK(!memcmp(out, rows[i].want, sizeof out));
    }
}

static void words_of_a_stream(void **state)
{
    (void)state;
    CHECK(dsi_philox_word(0, 0, 0) == 0x6627e8d5 && dsi_philox_word(0, 0, 3) == 0x9b00dbd8);
    CHECK(dsi_philox_word(0, 2, 1) == dsi_philox_word(0, 0, 9));
    CHECK(dsi_philox_word(1, 0, 0) != dsi_philox_word((uint64_t)1 << 32, 0, 0));
}

TEST_MAIN(cmocka_unit_test(known_answers), cmocka_unit_test(words_of_a_stream))
