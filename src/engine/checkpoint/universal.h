/* engine/checkpoint/universal.h: a checkpoint as a universal one.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"

#include <deepspeed/types.h>

typedef struct dsi_universal_opts {
    const char *in, *out;          /* folders, without a slash at the end; out must not exist */
    int verifiers, writers;        /* threads, from 1 on */
    bool not_strict;               /* leave out tensors of which elements are missing */
    bool inject;                   /* universal_checkpoint_info into model files that lack it */
    void (*say)(const char *line); /* progress, on any thread; or NULL */
} dsi_universal_opts;

/* Writes the checkpoint in folder `in`, ours or DeepSpeed's, as a universal one
 * to folder `out`, and names it in latest_universal beside it. A failure leaves
 * neither. */
DSI_SHARED ds_status dsi_universal_convert(const dsi_universal_opts *o);
