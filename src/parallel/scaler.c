/* parallel/scaler.c: the loss scale, by the rules of DeepSpeed's ZeRO stages 1
 * to 3, at every stage.
 *
 * Note [Loss scale] Small gradients vanish in float16: below 2^-24 there is
 * only 0. So the loss is multiplied by a scale before the backward pass, all
 * gradients are that much larger, and the step divides them by it in float32
 * (Micikevicius et al., arXiv 1710.03740, section 3.2). The largest scale that
 * does not overflow is best, and a dynamic scaler finds it: it doubles the
 * scale after `window` good steps and halves it when a gradient is inf or NaN;
 * that step is skipped. The first `hysteresis` - 1 overflows only count down;
 * from then on each one halves, until a growth (or, if `consecutive`, any good
 * step) sets the count back. A hysteresis of 0 never comes to 1: nothing
 * shrinks.
 *
 * DeepSpeed updates the scale before it divides by it. On a step that doubles
 * the scale, gradients of the old one are divided by the new one and the update
 * has half its size. Here the caller scales and unscales with one and the same
 * `scale`, then updates. DeepSpeed has other rules at stage 0 (no hysteresis,
 * no end at the minimum, and a loss that is not scaled at all); here there is
 * one rule. Where nothing shrinks, a static scale say, DeepSpeed may skip every
 * step for ever; here that has an end too.
 * SPDX-License-Identifier: MIT */
#include "scaler.h"

#include "base/error.h"
#include "base/log.h"

#include <math.h>

/* A scale is applied in float32. Without a gradient, and so without an
 * overflow, it would grow for ever. */
#define MAX_SCALE 0x1p127

void dsi_scaler_static(dsi_scaler *s, double scale)
{
    *s = (dsi_scaler){.scale = scale, .min_scale = scale, .last_overflow = -1};
}

void dsi_scaler_dynamic(dsi_scaler *s, int power, int64_t window, int64_t hysteresis,
                        bool consecutive, double min_scale)
{
    DSI_ASSERT(window >= 1 && min_scale > 0); /* the configuration saw to it */
    *s = (dsi_scaler){.scale = ldexp(1, power),
                      .dynamic = true,
                      .window = window,
                      .hysteresis = hysteresis,
                      .hysteresis_left = hysteresis,
                      .consecutive = consecutive,
                      .min_scale = min_scale,
                      .last_overflow = -1};
}

/* Whether the next overflow halves the scale, rather than only counting down. */
static bool overflow_shrinks(const dsi_scaler *s)
{
    return s->hysteresis == 1 || s->hysteresis_left == 1;
}

static double shrunk_scale(const dsi_scaler *s) { return fmax(s->scale / 2, s->min_scale); }

/* After an overflow: counts down the hysteresis, or halves the scale. */
static ds_status scaler_shrink(dsi_scaler *s)
{
    if (!overflow_shrinks(s)) {
        s->hysteresis_left--;
    } else if (s->scale == s->min_scale) {
        return dsi_fail(
            DS_ESTATE,
            "loss_scale: gradients are inf or NaN at the smallest loss scale, %g "
            "(fp16.min_loss_scale): look for inf or NaN in the data and the loss, lower "
            "the learning rate, or train in bf16",
            s->scale);
    } else {
        s->scale = shrunk_scale(s);
    }
    s->last_overflow = s->iter;
    return DS_OK;
}

/* After a good step: doubles the scale if `window` good steps have passed. */
static void scaler_grow(dsi_scaler *s)
{
    int64_t good = s->iter - s->last_overflow - 1; /* steps before this one, since the overflow */
    bool grows = good > 0 && good % s->window == 0;
    if (s->consecutive)
        dsi_log(DSI_INFO, "Consecutive hysteresis is enabled. Restoring hysteresis to %lld",
                (long long)s->hysteresis);
    if (grows || s->consecutive) s->hysteresis_left = s->hysteresis;
    if (grows) s->scale = fmin(s->scale * 2, MAX_SCALE);
}

ds_status dsi_scaler_update(dsi_scaler *s, bool overflow)
{
    if (overflow && s->skipped + 1 >= DSI_MOST_SKIPPED)
        return dsi_fail(
            DS_ESTATE,
            "loss_scale: %d steps in a row were skipped for inf or NaN in the gradients, at a "
            "loss scale of %g: look for them in the data and the loss, or lower the learning "
            "rate",
            DSI_MOST_SKIPPED, s->scale);
    if (s->dynamic && overflow) {
        ds_status status = scaler_shrink(s);
        if (status != DS_OK) return status;
    } else if (s->dynamic) {
        scaler_grow(s);
    }
    s->skipped = overflow ? s->skipped + 1 : 0;
    s->iter++;
    return DS_OK;
}

void dsi_scaler_overflow_text(const dsi_scaler *s, int rank, dsi_text *out)
{
    if (!s->dynamic) {
        dsi_text_add(out, "[deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights "
                          "were not updated.");
        return;
    }
    dsi_text_add(out, "[deepspeed] OVERFLOW! Rank %d Skipping step.", rank);
    if (overflow_shrinks(s)) /* whole numbers, as DeepSpeed prints them */
        dsi_text_add(out, " Attempted loss scale: %.0f, reducing to %.0f", trunc(s->scale),
                     trunc(shrunk_scale(s)));
    else
        dsi_text_add(out,
                     " Attempted loss scale: %.0f, but hysteresis is %lld. Reducing hysteresis to "
                     "%lld",
                     trunc(s->scale), (long long)s->hysteresis_left,
                     (long long)s->hysteresis_left - 1);
}
