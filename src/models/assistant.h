/* models/assistant.h: the model with matrices of 8 bits, which drafts tokens
 * that the model itself then checks.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "lm.h"

typedef struct dsi_assistant dsi_assistant;

/* Whether drafts of 8 bits come faster than lm's own tokens: its matrices are
 * float32 in the host's memory, and more than caches hold. */
bool dsi_assistant_pays(dsi_lm *lm);
/* Copies of all matrices of lm, in 8 bits. NULL, with a message, if they are no
 * float32 in the host's memory, or there is no memory for them. */
dsi_assistant *dsi_assistant_new(dsi_lm *lm);
/* Whether lm's matrices are those of the copies; of each the first output is
 * compared. */
bool dsi_assistant_is_current(const dsi_assistant *a);
/* on: lm's products are those of the copies, until off. NULL: nothing. */
void dsi_assistant_use(dsi_assistant *a, bool on);
void dsi_assistant_free(dsi_assistant *a);

/* x [..,k] w^T + bias -> [..,n] */
ds_tensor *dsi_assistant_product(const struct dsi_int8_matrix *w, ds_tensor *x, ds_tensor *bias);
