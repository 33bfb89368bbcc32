/* parallel/zero3.h: stage 3: when partitioned parameters are gathered and
 * evicted.
 *
 * Note [Stage 3] A parameter above the persistence threshold has a unit to
 * itself (flat.h) and is partitioned (partition.h). The model's handle is lazy:
 *
 *     forward    before a module's call its own parameters are gathered, after it
 *                they are evicted
 *     backward   a node acquires the parameters that it saved: they are gathered,
 *                and evicted when the node has passed (dsi_set_after_use_hook)
 *     otherwise  an op that reads one fails with an error that names ds_gathered:
 *                a gather that only some ranks begin never ends
 *
 * The uses of one micro step are the trace by which the next one prefetches:
 * from each use on, what comes next is gathered while this one computes, up to
 * prefetch_bucket elements. A parameter stays when the trace says that it comes
 * again within max_reuse_distance elements, and there are not more than
 * max_live. A step that differs from the last one throws the trace away; as all
 * ranks do the same things in the same order, all do so at the same time. Where
 * shards are on disk (Note [Param swap]), what comes next is read one use
 * before it is gathered.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "comm/comm.h"
#include "param_swap.h"

typedef struct dsi_zero3_opts {
    int64_t prefetch, max_live, max_reuse_distance; /* elements */
    dsi_param_swap_opts swap;                       /* nvme_path NULL: shards stay in memory */
    dsi_staging *staging; /* that memory is the host's; NULL: where the parameters are */
} dsi_zero3_opts;

typedef struct dsi_zero3 dsi_zero3;

/* Partitions the parameters of f that have a unit to themselves, and hooks into
 * the calls of the model's modules. Borrows all three. The parameters' values
 * are equal on all ranks. comm: of all ranks; NULL: one. NULL with the
 * message. */
dsi_zero3 *dsi_zero3_new(ds_module *model, const dsi_flat *f, ds_comm *comm,
                         const dsi_zero3_opts *o);
void dsi_zero3_free(dsi_zero3 *z); /* partitioned parameters stay without storage */

bool dsi_zero3_has_unit(const dsi_zero3 *z, int unit); /* its parameter is partitioned */

/* This rank's elements of parameter i of the layout, with its shape if they are
 * all, else 1-D; NULL: there are none, or it is not partitioned. Borrowed. On
 * disk it is lazy: an op that reads it materializes it; then, or after it was
 * allocated to be written, it is stored or evicted. For shards in memory those
 * three do nothing. */
ds_tensor *dsi_zero3_shard(const dsi_zero3 *z, int i);
bool dsi_zero3_on_disk(const dsi_zero3 *z, int i);
ds_status dsi_zero3_shard_alloc(dsi_zero3 *z, int i);
ds_status dsi_zero3_shard_store(dsi_zero3 *z, int i);
void dsi_zero3_shard_evict(dsi_zero3 *z, int i);

/* fn is called in backward between two nodes, when one that used a partitioned
 * parameter has passed; NULL: nothing. */
void dsi_zero3_set_after_use(dsi_zero3 *z, void (*fn)(void *arg), void *arg);
/* Around a backward pass. At its end all that it gathered is evicted, and the
 * next micro step begins. */
void dsi_zero3_set_backward(dsi_zero3 *z, bool runs);

/* Before shards are written: waits for gathers that have begun, in which other
 * ranks read them. After it: what is gathered is out of date and is evicted. */
ds_status dsi_zero3_wait_gathers(dsi_zero3 *z);
void dsi_zero3_shards_changed(dsi_zero3 *z);
/* The trace that the latest micro step followed; 0: it was another one. Whether
 * the micro step that begins now is to follow it, with nothing gathered. */
uint64_t dsi_zero3_followed(const dsi_zero3 *z);
bool dsi_zero3_will_follow(const dsi_zero3 *z, uint64_t trace);

int64_t dsi_zero3_memory_bytes(const dsi_zero3 *z); /* shards, buffers of the swap */
int64_t dsi_zero3_disk_bytes(const dsi_zero3 *z);
