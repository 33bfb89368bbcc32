/* data/loader.h: what an engine and its checkpoints ask of a loader.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DATA_LOADER_H
#define DSI_DATA_LOADER_H

#include <deepspeed/data.h>

/* Whether an engine has l, so that nobody else may free it. */
void dsi_loader_take(ds_loader *l, bool taken);

/* Whether the order of its epoch is fixed; else ds_loader_tell would fix it,
 * and draw a random number. */
bool dsi_loader_begun(const ds_loader *l);

/* ds_loader_opts.seed: of the orders of all epochs of ranks. Counts from the
 * next epoch on. */
uint64_t dsi_loader_seed(const ds_loader *l);
void dsi_loader_set_seed(ds_loader *l, uint64_t seed);

#endif
