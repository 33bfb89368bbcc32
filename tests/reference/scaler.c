/* tests/reference/scaler.c: the files of folder scaler: loss scales over given
 * overflows, by the "fp16" block of a configuration. The column of ZeRO stages
 * 1 to 3 is the one; DeepSpeed's stage 0 has rules of its own (Note [Loss
 * scale]).
 * SPDX-License-Identifier: MIT */
#include "parallel/scaler.h"
#include "check.h"
#include "config/config.h"
#include "reference.h"

/* The configuration with that block, and no more than it needs besides. */
static dsi_config *read_config(const Reference *r)
{
    json_t *fp16 = json_deep_copy(json_object_get(r->json, "fp16"));
    json_object_set_new(fp16, "enabled", json_true());
    json_t *config = json_pack("{s:i, s:o}", "train_batch_size", 1, "fp16", fp16);
    char *text = json_dumps(config, 0);
    dsi_config *c = dsi_config_read(text, 1);
    free(text);
    json_decref(config);
    return c;
}

static void check_resolved(Reference *r, const dsi_scaler *s)
{
    const json_t *want = json_object_get(r->json, "resolved");
    bool dynamic = reference_bool(want, "dynamic", false);
    if (dynamic != s->dynamic) reference_fail(r, "%s", dynamic ? "not dynamic" : "dynamic");
    if (!dynamic) return;
    if (reference_int(want, "scale_window", -1) != s->window ||
        reference_int(want, "delayed_shift", -1) != s->hysteresis ||
        reference_bool(want, "consecutive_hysteresis", false) != s->consecutive)
        reference_fail(r, "window, hysteresis, consecutive are %lld, %lld, %d",
                       (long long)s->window, (long long)s->hysteresis, s->consecutive);
    reference_number_within(r, "min_scale", s->min_scale, reference_double(want, "min_scale", NAN),
                            0, 0);
}

static dsi_scaler make(const dsi_config *c)
{
    dsi_scaler s;
    if (c->fp16.loss_scale == 0)
        dsi_scaler_dynamic(&s, (int)c->fp16.initial_scale_power, c->fp16.loss_scale_window,
                           c->fp16.hysteresis, c->fp16.consecutive_hysteresis,
                           (double)c->fp16.min_loss_scale);
    else
        dsi_scaler_static(&s, c->fp16.loss_scale);
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

/* Every step, to the end or to that at the minimum. */
static void follow(Reference *r, dsi_scaler s)
{
    const json_t *want = json_object_get(r->json, "zero_stages_1_2_3");
    const json_t *overflow = json_object_get(r->json, "overflow");
    size_t n = json_array_size(overflow);
    int64_t end = reference_int(json_object_get(want, "raises"), "at", (int64_t)n);
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

static void run(Reference *r)
{
    const json_t *loss_scale = json_object_get(json_object_get(r->json, "fp16"), "loss_scale");
    bool raises = json_object_get(r->json, "raises") != NULL;
    dsi_config *c = read_config(r);
    if (raises && c)
        reference_fail(r, "the configuration is taken");
    else if (raises && !strstr(ds_error(), "fp16."))
        reference_fail(r, "no message about fp16: %s", ds_error());
    else if (!raises && !c && json_is_string(loss_scale)) /* "128": DeepSpeed reads it as 128 */
        reference_skip(r, "%s", ds_error());
    else if (!raises && !c)
        reference_fail(r, "%s", ds_error());
    if (c && !raises) {
        dsi_scaler s = make(c);
        check_resolved(r, &s);
        follow(r, s);
    }
    dsi_config_free(c);
}

static void scaler(void **state)
{
    (void)state;
    CHECK_INT(reference_each("scaler", run), 0);
}

TEST_MAIN(cmocka_unit_test(scaler))
