/* models/choose.h: the distribution that a token is drawn from.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "processors.h"

/* Whether the options of choices are valid for a model of that vocabulary; else
 * false, with the message, which begins with `who`. */
bool dsi_lm_check_choice(const char *who, const ds_generate_opts *o, int64_t vocab);
/* Makes n choices' logits logarithms of probabilities. */
void dsi_lm_renormalize(dsi_lm_choice *choices, int64_t n);
/* Whether tokens are drawn: at a temperature that is not 0. */
bool dsi_lm_samples(const ds_generate_opts *o);
/* Whether the most probable token is that of the largest logit: none is drawn,
 * barred or penalised. */
bool dsi_lm_is_plain(const ds_generate_opts *o);
/* Fills choices [V] from a row of logits [V] and the row's n tokens so far,
 * `fresh` of them new, and sorts those that may be drawn to the front: falling
 * logits, equal ones by id. Returns how many those are. */
int64_t dsi_lm_choices(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                       int64_t fresh, const ds_generate_opts *o, dsi_lm_choice *choices);
/* The token that follows them in row number `row` of the batch, greedy or drawn
 * by o; choices: memory for [V]. */
int64_t dsi_lm_choose(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                      int64_t fresh, const ds_generate_opts *o, int64_t row,
                      dsi_lm_choice *choices);
