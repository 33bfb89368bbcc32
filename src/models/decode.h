/* models/decode.h: steps of one token a row whose positions are in the device's
 * memory.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "lm.h"

typedef struct dsi_lm_decoder dsi_lm_decoder;

/* A decoder of `rows` rows that fill the cache, of which pads[row] columns on the
 * left are padding; lm and cache are borrowed. -> *decoder, NULL if the model's
 * device has no kernels for its steps. greedy: the device chooses the tokens. */
ds_status dsi_lm_decoder_new(dsi_lm *lm, dsi_lm_cache *cache, int64_t rows, const int64_t *pads,
                             bool greedy, dsi_lm_decoder **decoder);
/* Runs column `at` of ids [rows,columns of the cache], behind those in it. Returns the
 * tokens behind it, int64 [rows,1]; or without greedy the logits, float32
 * [rows,V]; in the current scope. NULL with the message. A row's token may be any in
 * steps after it has ended. */
ds_tensor *dsi_lm_decoder_run(dsi_lm_decoder *d, const int64_t *ids, int64_t at);
void dsi_lm_decoder_free(dsi_lm_decoder *d); /* NULL: nothing */

/* dsi_lm_attend in such a step: q [B,1,H,D], k, v [B,1,G,D] -> [B,1,H D]. */
ds_tensor *dsi_decode_attend(dsi_lm *lm, int64_t layer, ds_tensor *q, ds_tensor *k, ds_tensor *v);
