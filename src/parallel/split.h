/* parallel/split.h: float32 masters of a bfloat16 model in 2 bytes beside it.
 *
 * Note [Split masters] A bfloat16 parameter is the upper half of its master,
 * rounded. So only the rest is kept, 16 bits with a sign (base/half.h):
 *
 *     master bits = 2^16 parameter bits + rest
 *
 * The optimizer's kernel joins the two as it reads them, and splits the result.
 * For all others (checkpoints, averages, ds_engine_state) a master is a lazy
 * tensor (tensor/lazy.h), which is joined where an op reads or writes it, and
 * stays in memory until dsi_split_release.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "flat.h"

typedef struct dsi_split dsi_split;

/* Masters of this rank's elements of f's parameters, which shard(arg, i) has, in
 * bfloat16, with their values. NULL with the message. */
dsi_split *dsi_split_new(const dsi_flat *f, ds_tensor *(*shard)(void *arg, int i), void *arg);
void dsi_split_free(dsi_split *s); /* NULL passes */

/* Of parameter i of the layout: the master, and its rest, int16; NULL: this
 * rank has none of it. */
ds_tensor *dsi_split_master(const dsi_split *s, int i);
ds_tensor *dsi_split_rest(const dsi_split *s, int i);
bool dsi_split_in_memory(const dsi_split *s, int i); /* the master has its storage */

/* Drops the memory of master i; changed: after it is written to the two halves. */
ds_status dsi_split_release(dsi_split *s, int i, bool changed);
/* The same of all that have memory, which are taken to be changed. A step that
 * is captured cannot. */
ds_status dsi_split_store(dsi_split *s);
int64_t dsi_split_bytes(const dsi_split *s); /* of the rests */
