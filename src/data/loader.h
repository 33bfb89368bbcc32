/* data/loader.h: what an engine and its checkpoints ask of a loader.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/data.h>

/* Marks l as owned by an engine, which frees it: ds_loader_free then fails. */
void dsi_loader_take(ds_loader *l, bool taken);

/* Tells whether the seed of the current epoch's order is drawn. If not,
 * ds_loader_tell would draw it, and so advance the thread's generator. */
bool dsi_loader_begun(const ds_loader *l);

/* ds_loader_opts.seed, from which the orders of all epochs follow if there are
 * ranks. A new value counts from the next epoch on. */
uint64_t dsi_loader_seed(const ds_loader *l);
void dsi_loader_set_seed(ds_loader *l, uint64_t seed);
