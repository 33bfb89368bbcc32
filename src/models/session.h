/* models/session.h: what a call of ds_generate leaves with the model for the
 * next one.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "assistant.h"
#include "base/list.h"
#include "beam.h"
#include "decode.h"
#include "device/device.h"

typedef struct dsi_lm_session {
    dsi_device *device; /* of the parameters */
    int64_t rows;
    dsi_lm_cache cache;
    int64_t *ids, *pads;      /* the tokens, a row of the cache each; padding on their left */
    int64_t filled;           /* columns whose keys and values the cache has between calls */
    dsi_lm_decoder *decoder;  /* of this cache; NULL: none */
    dsi_assistant *assistant; /* NULL: none */
    int64_t replays;          /* of the device's graphs, when this was kept */
    struct {
        DSI_LIST(dsi_view)
    } params; /* where the parameters were */
    dsi_spare spare;
} dsi_lm_session;

/* A session with a cache for `need` columns of each of `rows` rows, the kept
 * one if it fits. Its ids, pads and cache.length are the caller's to set;
 * prompt: columns that `filled` counts may be of use. It is the caller's until
 * dsi_lm_session_keep. */
dsi_lm_session *dsi_lm_session_take(dsi_lm *lm, int64_t rows, int64_t need, bool prompt);
/* Leaves s with lm, or frees it where it cannot be kept; good: no step failed.
 * prompt: also its keys and values, for a prompt that begins as this one. */
void dsi_lm_session_keep(dsi_lm *lm, dsi_lm_session *s, bool good, bool prompt);

/* Puts the columns of `from`, of fewer rows, into the cache of s: row i of it
 * into rows i times .. (i + 1) times - 1. */
ds_status dsi_lm_session_expand(dsi_lm_session *s, const dsi_lm_cache *from, int64_t layers,
                                int64_t times);
/* Rows of the cache take the filled columns of others. */
ds_status dsi_lm_session_copy(dsi_lm_session *s, int64_t layers, const dsi_row_copy *copies,
                              int64_t n);
