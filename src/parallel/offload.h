/* parallel/offload.h: masters and moments of a rank on disk, of which a step
 * has a few blocks in memory.
 *
 * Note [Offload]
 * A rank's elements (flat.h) are cut into blocks. A block is one stretch of the
 * file: its masters, then each moment, float32:
 *
 *     | masters moments .. of block 0 | masters moments .. of block 1 | ..
 *
 * A step takes one block after the other through a few buffers: blocks are read
 * before the optimizer needs them and written while it continues,
 *
 *     read    0 1 2 3 4 ..            buffer 0  block 0, 4, 8 ..
 *     update      0 1 2 3 ..          buffer 1  block 1, 5, 9 ..
 *     write         0 1 2 ..
 *
 * and the results have the bits that they have in memory: an optimizer's rule
 * updates each element by itself; for the rules that do not, a block holds
 * whole parameters. Gradients and the model's parameters stay in memory. Blocks
 * are in the host's, also where the model is on a GPU.
 *
 * Outside of a step, masters and moments are lazy tensors (tensor/lazy.c): ops
 * that read or write one (checkpoints, averages) materialize it from disk, and
 * it stays in memory until dsi_offload_release or dsi_offload_store.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/aio.h"
#include "flat.h"
#include "optim/optim.h"

/* As the keys of offload_optimizer of that name. */
typedef struct dsi_offload_opts {
    const char *nvme_path; /* a folder that is there */
    int64_t buffer_size;   /* elements of a block; 0: 2^20 */
    double in_memory;      /* share of the blocks that are never in the file: 1 - ratio */
    dsi_aio_opts aio;
    int buffer_count; /* 0: 1 */
    bool pin_memory, pipeline_read, pipeline_write;
    bool fast_init; /* the moments' zeros are not written */
} dsi_offload_opts;

typedef struct dsi_offload dsi_offload;

/* Access to the model's values of this rank's elements of parameter i of the
 * layout, of any dtype. shard opens them for reading, or for writing all of
 * them; done ends the access. */
typedef struct dsi_offload_model {
    ds_tensor *(*shard)(void *arg, int i, bool write);
    ds_status (*done)(void *arg, int i, bool write);
    void *arg;
} dsi_offload_model;

/* Makes the file with masters of the model's values, and moments of 0, and
 * takes over the optimizer's moments. folder: of nvme_path. Borrows f and
 * optim. NULL with the message, for example if the disk is full. */
dsi_offload *dsi_offload_new(const dsi_flat *f, ds_optim *optim, const char *folder,
                             const dsi_offload_opts *o, dsi_offload_model model);
void dsi_offload_free(dsi_offload *o); /* before the optimizer; NULL passes */

/* The master of parameter i of the layout; NULL: this rank has none of it. Its
 * storage is away. */
ds_tensor *dsi_offload_shard(const dsi_offload *o, int i);

/* The optimizer's step with the gradients of the shards. Also copies each shard
 * to the model, unless the optimizer writes the low-precision copy itself
 * (dsi_optim_set_param). Blocks on files. */
ds_status dsi_offload_step(dsi_offload *o, double g_scale, dsi_offload_model model);

/* The same step in parts: begin starts to read; advance updates the blocks, in
 * their order, up to the first with a parameter for which ready is false
 * (it also sets the gradient), and may be called again; dsi_offload_step does
 * the rest. end: there will be no step; whether a block was updated. */
ds_status dsi_offload_begin(dsi_offload *o);
ds_status dsi_offload_advance(dsi_offload *o, double g_scale, dsi_offload_model model,
                              bool (*ready)(void *arg, int i), void *arg);
bool dsi_offload_end(dsi_offload *o);

/* For the time in which gradients are computed. read_ahead: with pipeline_read,
 * and if no step has begun, blocks are read into the buffers; nothing is
 * updated, and a step may follow or not. continue: reads and writes go on, as
 * far as that is possible without a wait. */
ds_status dsi_offload_read_ahead(dsi_offload *o);
void dsi_offload_continue(dsi_offload *o);

/* Drops the memory of parameter i's master and moments: release discards
 * changes, store writes them to the blocks. i = -1: of all parameters. */
void dsi_offload_release(dsi_offload *o, int i);
ds_status dsi_offload_store(dsi_offload *o, int i);
bool dsi_offload_in_memory(const dsi_offload *o, int i); /* shard i has its storage */

/* Bytes of memory that it would take for that many own elements and words: a
 * master, and moments. */
int64_t dsi_offload_needs(const dsi_offload_opts *o, int64_t owned, int words);
int64_t dsi_offload_memory(const dsi_offload *o); /* bytes of buffers and blocks */
int64_t dsi_offload_file(const dsi_offload *o);   /* bytes */
