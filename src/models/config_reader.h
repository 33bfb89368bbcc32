/* models/config_reader.h: values of a JSON object with their keys, types and
 * ranges checked; for config.json.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "config.h"

/* Borrows the JSON object, which callers may point at an inner one and back.
 * The first failure sticks; readers after it return values within their
 * range. */
typedef struct dsi_lm_reader {
    const char *name; /* of the file, for messages */
    const json_t *json;
    ds_status status;
} dsi_lm_reader;

/* Writes "name: text" for the first failure only: later ones follow from it. */
void dsi_lm_read_fail(dsi_lm_reader *r, ds_status status, const char *format, ...) DS_PRINTF(3, 4);
/* The value of a key; NULL if it is absent or null. */
const json_t *dsi_lm_read_get(const dsi_lm_reader *r, const char *key);
/* An integer from low to high; absent: `otherwise`, or a failure if that is
 * outside of the range. */
int64_t dsi_lm_read_int(dsi_lm_reader *r, const char *key, int64_t low, int64_t high,
                        int64_t otherwise);
/* A number from low to high; absent: `otherwise`, which may be outside of the
 * range and then tells the caller that the key is missing. */
double dsi_lm_read_number(dsi_lm_reader *r, const char *key, double low, double high,
                          double otherwise);
bool dsi_lm_read_bool(dsi_lm_reader *r, const char *key, bool otherwise);
const char *dsi_lm_read_text(dsi_lm_reader *r, const char *key, const char *otherwise);

/* c->activation, of the name at `key`. */
void dsi_lm_read_activation(dsi_lm_reader *r, dsi_lm_config *c, const char *key,
                            const char *otherwise);
/* All keys of GPT-2, OPT or GPT-NeoX that are not those of each family
 * (config_gpt.c). */
void dsi_lm_read_gpt(dsi_lm_reader *r, dsi_lm_config *c);

/* Rotary positions: rope_parameters, or rope_theta and rope_scaling; after
 * head_dim, max_position_embeddings and c->ropes (config_rope.c). theta: of a
 * file that has none. */
void dsi_lm_read_rope(dsi_lm_reader *r, dsi_lm_config *c, double theta);
