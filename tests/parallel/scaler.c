/* tests/parallel/scaler.c: the loss scale: what is logged, the end at the
 * minimum, the limits. Its traces beside DeepSpeed's are
 * tests/reference/scaler.c.
 * SPDX-License-Identifier: MIT */
#include "parallel/scaler.h"
#include "check.h"

static void check_text(const dsi_scaler *s, const char *want)
{
    dsi_text text = {0};
    dsi_scaler_overflow_text(s, 0, &text);
    assert_string_equal(text.s, want);
    dsi_text_free(&text);
}

static void what_is_logged(void **state)
{
    (void)state;
    dsi_scaler s;
    dsi_scaler_dynamic(&s, 15, 500, 2, false, 1);
    check_text(&s, "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32768, but "
                   "hysteresis is 2. Reducing hysteresis to 1");
    CHECK(dsi_scaler_update(&s, true) == DS_OK);
    CHECK_INT(s.hysteresis_left, 1);
    check_text(&s, "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32768, "
                   "reducing to 16384");
    CHECK(dsi_scaler_update(&s, true) == DS_OK);
    CHECK_CLOSE(s.scale, 16384, 0);
    dsi_scaler_dynamic(&s, 1, 500, 1, false, 0.25);
    CHECK(dsi_scaler_update(&s, true) == DS_OK);
    check_text(&s, "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing "
                   "to 0"); /* 0.5, as DeepSpeed prints it */
    dsi_scaler_static(&s, 128);
    check_text(&s,
               "[deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights were not "
               "updated.");
}

static void a_static_scale_stays(void **state)
{
    (void)state;
    dsi_scaler s;
    dsi_scaler_static(&s, 0.5);
    for (int i = 0; i < 10; i++) CHECK(dsi_scaler_update(&s, i % 2) == DS_OK);
    CHECK_CLOSE(s.scale, 0.5, 0);
    CHECK_INT(s.iter, 10);
}

static void the_minimum_ends_the_run(void **state)
{
    (void)state;
    dsi_scaler s;
    dsi_scaler_dynamic(&s, 4, 100, 1, false, 6); /* 16, 8, 6: no power of two */
    CHECK(dsi_scaler_update(&s, true) == DS_OK);
    CHECK(dsi_scaler_update(&s, true) == DS_OK);
    CHECK_CLOSE(s.scale, 6, 0);
    dsi_scaler before = s;
    CHECK(dsi_scaler_update(&s, true) == DS_ESTATE);
    CHECK_ERROR("loss_scale: gradients are inf or NaN at the smallest loss scale, 6 "
                "(fp16.min_loss_scale)");
    CHECK_INT(s.iter, before.iter);
    CHECK_INT(s.last_overflow, before.last_overflow);
    CHECK(dsi_scaler_update(&s, false) == DS_OK); /* a good step is one, even there */
}

/* Where nothing shrinks: a static scale, and a hysteresis of 0. */
static void skipping_has_an_end(void **state)
{
    (void)state;
    dsi_scaler s[2];
    dsi_scaler_static(&s[0], 128);
    dsi_scaler_dynamic(&s[1], 7, 2000, 0, false, 1);
    for (int k = 0; k < 2; k++) {
        for (int i = 1; i < DSI_MOST_SKIPPED; i++) CHECK(dsi_scaler_update(&s[k], true) == DS_OK);
        CHECK(dsi_scaler_update(&s[k], false) == DS_OK); /* not in a row */
        for (int i = 1; i < DSI_MOST_SKIPPED; i++) CHECK(dsi_scaler_update(&s[k], true) == DS_OK);
        CHECK(dsi_scaler_update(&s[k], true) == DS_ESTATE);
        CHECK_ERROR(
            "loss_scale: 1000 steps in a row were skipped for inf or NaN in the gradients, at a "
            "loss scale of 128");
    }
}

/* Nothing overflows in a net whose gradients are all zero. */
static void growth_has_an_end(void **state)
{
    (void)state;
    dsi_scaler s;
    dsi_scaler_dynamic(&s, 120, 1, 1, false, 1);
    for (int i = 0; i < 50; i++) CHECK(dsi_scaler_update(&s, false) == DS_OK);
    CHECK_CLOSE(s.scale, 0x1p127, 0);
    CHECK(isfinite((float)s.scale));
}

TEST_MAIN(cmocka_unit_test(what_is_logged), cmocka_unit_test(a_static_scale_stays),
          cmocka_unit_test(the_minimum_ends_the_run), cmocka_unit_test(skipping_has_an_end),
          cmocka_unit_test(growth_has_an_end))
