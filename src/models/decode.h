/* models/decode.h: steps of one token a row whose positions are in the device's
 * memory.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "lm.h"

typedef struct dsi_lm_decoder dsi_lm_decoder;

/* A decoder of `rows` rows that fill the cache; lm and cache are borrowed. NULL
 * with the message. */
dsi_lm_decoder *dsi_lm_decoder_new(dsi_lm *lm, dsi_lm_cache *cache, int64_t rows);
/* Whether the model's device has kernels for its steps, of rows of `need`
 * columns. */
bool dsi_lm_decoder_fits(dsi_lm *lm, const dsi_lm_cache *cache, int64_t need);
/* Before the steps of a call: pads[row] columns on the left are padding,
 * borrowed until the next one; greedy: the device chooses the tokens. A
 * recorded graph stays, except for another `greedy`. */
ds_status dsi_lm_decoder_begin(dsi_lm_decoder *d, const int64_t *pads, bool greedy);
/* Runs column `at` of ids [rows,columns of the cache], behind those in it.
 * Returns the tokens behind it, int64 [rows,1]; or without greedy the logits,
 * float32 [rows,V]; in the current scope. NULL with the message. A row's token
 * may be any in steps after it has ended. */
ds_tensor *dsi_lm_decoder_run(dsi_lm_decoder *d, const int64_t *ids, int64_t at);
void dsi_lm_decoder_free(dsi_lm_decoder *d); /* NULL: nothing */

/* dsi_lm_attend in such a step: q [B,1,H,D], k, v [B,1,G,D] -> [B,1,H D]. */
ds_tensor *dsi_decode_attend(dsi_lm *lm, int64_t layer, ds_tensor *q, ds_tensor *k, ds_tensor *v);

/* Whether the device of lm's parameters finds the k largest of its logits, so
 * that the host need not read all; k > 0. */
bool dsi_decode_finds_largest(const dsi_lm *lm, int64_t k);
/* Such a device's k largest of each row of x [R,V], by falling values: [R,k] on
 * the host, in the scope, and their places ids [R,k]; NULL after a failure. */
const float *dsi_decode_largest(ds_tensor *x, int64_t k, int64_t *ids);
