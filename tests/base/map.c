/* tests/base/map.c: the ordered map: order, replacement, growth past the sizes
 * at which it changes shape.
 * SPDX-License-Identifier: MIT */
#include "base/map.h"
#include "check.h"

#define MANY 5000

static void order_and_replacement(void **state)
{
    (void)state;
    dsi_map m = {0};
    int a, b, c;
    CHECK(!dsi_map_get(&m, "b"));
    CHECK(!dsi_map_set(&m, "b", &b) && !dsi_map_set(&m, "a", &a) && !dsi_map_set(&m, "", &c));
    CHECK(dsi_map_set(&m, "b", &c) == &b);
    CHECK(dsi_map_get(&m, "b") == &c && dsi_map_get(&m, "a") == &a && dsi_map_get(&m, "") == &c);
    CHECK(!dsi_map_get(&m, "ab"));
    CHECK_INT(m.n, 3);
    assert_string_equal(m.at[0].name, "b");
    assert_string_equal(m.at[1].name, "a");
    dsi_map_free(&m);
    CHECK_INT(m.n, 0);
    dsi_map_free(&m);
}

static void name_of(int i, char *name, size_t room)
{
    snprintf(name, room, "block.%d.attention.%s", i / 2, i % 2 ? "bias" : "weight");
}

/* At each size everything that was set is found, and nothing else. */
static void growth(void **state)
{
    (void)state;
    static int values[MANY];
    dsi_map m = {0};
    char name[64];
    for (int i = 0; i < MANY; i++) {
        name_of(i, name, sizeof name);
        CHECK(!dsi_map_get(&m, name));
        CHECK(!dsi_map_set(&m, name, &values[i]));
        name_of(i * 7 % (i + 1), name, sizeof name);
        CHECK(dsi_map_get(&m, name) == &values[i * 7 % (i + 1)]);
    }
    for (int i = 0; i < MANY; i++) {
        name_of(i, name, sizeof name);
        CHECK(dsi_map_get(&m, name) == &values[i]);
        assert_string_equal(m.at[i].name, name);
        CHECK(dsi_map_set(&m, name, &values[0]) == &values[i]);
    }
    CHECK_INT(m.n, MANY);
    dsi_map_free(&m);
}

TEST_MAIN(cmocka_unit_test(order_and_replacement), cmocka_unit_test(growth))
