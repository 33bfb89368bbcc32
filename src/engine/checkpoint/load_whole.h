/* engine/checkpoint/load_whole.h: a checkpoint for programs that write it in
 * another form: each tensor as a value whose elements are put together while it
 * is written, a few MiB at a time. So they need no memory for the model.
 *
 * Invariants: a dsi_load_source refers to a dsi_loaded that was read without an
 * engine, and must live until its value has been written.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "load.h"

/* Where the float32 elements of one tensor come from: chunks of a parameter, or
 * tensors of any dtype one after the other (the rest of the last one is
 * padding). */
typedef struct dsi_load_source {
    const dsi_load_param *param;
    const char *kind; /* of the chunks */
    struct {
        DSI_LIST(const ds_tensor *)
    } parts;
} dsi_load_source;

typedef struct dsi_load_sources {
    DSI_LIST(dsi_load_source *)
} dsi_load_sources;

/* float32 values; NULL with the message. All chunks of that kind must be there
 * (dsi_load_count). */
DSI_SHARED ds_value *dsi_load_param_value(dsi_load_sources *all, const dsi_load_param *p,
                                          const char *kind);
/* x in float32. */
DSI_SHARED ds_value *dsi_load_tensor_value(dsi_load_sources *all, const ds_value *x);
DSI_SHARED void dsi_load_sources_free(dsi_load_sources *all);

/* The stage that a checkpoint says it was saved in. */
DSI_SHARED int64_t dsi_load_stage(const dsi_loaded *l);
/* Refuses shards of a run on more ranks that were left in the folder. */
DSI_SHARED ds_status dsi_load_check_shards(const dsi_loaded *l);
