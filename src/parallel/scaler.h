/* parallel/scaler.h: the loss scale of 16-bit training, static or dynamic.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

#define DSI_MOST_SKIPPED 1000 /* steps in a row */

typedef struct dsi_scaler {
    double scale;   /* by which the next loss is multiplied, and its gradients divided */
    bool dynamic;   /* false: scale never changes */
    int64_t window; /* good steps from an overflow, or from the last growth, to a growth */
    int64_t hysteresis, hysteresis_left; /* overflows until the scale shrinks: at first, and now */
    bool consecutive;                    /* every good step gives hysteresis_left back */
    double min_scale;
    int64_t iter, last_overflow; /* steps so far, skipped ones too; the last skipped, -1: none */
    int64_t skipped;             /* in a row, up to now */
} dsi_scaler;

void dsi_scaler_static(dsi_scaler *s, double scale);
/* Begins at 2^power. */
void dsi_scaler_dynamic(dsi_scaler *s, int power, int64_t window, int64_t hysteresis,
                        bool consecutive, double min_scale);

/* After a step, overflow: it was skipped. DS_ESTATE, and no change, if the
 * scale should shrink and is at its minimum, or if DSI_MOST_SKIPPED steps in a
 * row were skipped: the run cannot go on. Unscaling must have used the scale
 * from before (Note [Loss scale]). */
ds_status dsi_scaler_update(dsi_scaler *s, bool overflow);

/* Adds the line that DeepSpeed logs when a step overflows. Call it before
 * dsi_scaler_update. */
void dsi_scaler_overflow_text(const dsi_scaler *s, int rank, dsi_text *out);
