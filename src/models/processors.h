/* models/processors.h: what changes the scores of tokens before one is chosen.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/models.h>

typedef struct dsi_lm_choice {
    float logit; /* or the logarithm of a probability; after what changes it */
    int64_t id;
} dsi_lm_choice;

/* Fills choices [V], by id, from a row of logits [V] and the row's n tokens so
 * far, `fresh` of them new: what greedy choices compare. */
void dsi_lm_scores(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                   int64_t fresh, const ds_generate_opts *o, dsi_lm_choice *choices);
/* Whether an option changes the scores of some row. */
bool dsi_lm_processes(const ds_generate_opts *o);
/* Whether such options are valid for a model of that vocabulary; else false,
 * with the message, which begins with `who`. */
bool dsi_lm_check_processors(const char *who, const ds_generate_opts *o, int64_t vocab);
