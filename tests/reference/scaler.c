/* tests/reference/scaler.c: the files of folder scaler: loss scales over given overflows. The column of
 * ZeRO stages 1 to 3 is the one; DeepSpeed's stage 0 has rules of its own (Note [Loss scale]).
 * SPDX-License-Identifier: MIT */
#include "parallel/scaler.h"
#include "check.h"
#include "reference.h"

static dsi_scaler make(const json_t *resolved)
{
    dsi_scaler s;
    double scale = reference_double(resolved, "init_scale", NAN);
    if (reference_bool(resolved, "dynamic", false))
        dsi_scaler_dynamic(&s, ilogb(scale), reference_int(resolved, "scale_window", -1),
                           reference_int(resolved, "delayed_shift", -1),
                           reference_bool(resolved, "consecutive_hysteresis", false),
                           reference_double(resolved, "min_scale", NAN));
    else
        dsi_scaler_static(&s, reference_double(resolved, "static_loss_scale", NAN));
    return s;
}

static void check_state(Reference *r, const dsi_scaler *s, const json_t *want, size_t k)
{
    char what[64];
    const json_t *left = json_array_get(json_object_get(want, "hysteresis_left"), k);
    snprintf(what, sizeof what, "scale[%zu]", k);
    reference_number_within(
        r, what, s->scale, reference_number(json_array_get(json_object_get(want, "scale"), k), NAN),
        0, 0);
    if (left && json_integer_value(left) != s->hysteresis_left)
        reference_fail(r, "hysteresis_left[%zu] is %lld, want %lld", k,
                       (long long)s->hysteresis_left, (long long)json_integer_value(left));
}

static void run(Reference *r)
{
    const json_t *want = json_object_get(r->json, "zero_stages_1_2_3");
    const json_t *overflow = json_object_get(r->json, "overflow");
    if (!want) {
        reference_skip(r, "refused where the configuration is read");
        return;
    }
    size_t n = json_array_size(overflow);
    int64_t end = reference_int(json_object_get(want, "raises"), "at", (int64_t)n);
    dsi_scaler s = make(json_object_get(r->json, "resolved"));
    check_state(r, &s, want, 0);
    for (size_t k = 0; k < n && !r->failures; k++) {
        bool bad = json_integer_value(json_array_get(overflow, k)) != 0;
        ds_status status = dsi_scaler_update(&s, bad);
        if ((int64_t)k == end) {
            if (status != DS_ESTATE) reference_fail(r, "step %zu: no end at the minimum", k);
            return;
        }
        if (status != DS_OK) reference_fail(r, "step %zu: %s", k, ds_error());
        check_state(r, &s, want, k + 1);
    }
}

static void scaler(void **state)
{
    (void)state;
    CHECK_INT(reference_each("scaler", run), 0);
}

TEST_MAIN(cmocka_unit_test(scaler))
