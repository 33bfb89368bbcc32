/* parallel/param_swap.h: shards of partitioned parameters on disk
 * (offload_param:
 * nvme).
 *
 * Note [Param swap] Each unit (flat.h) has a place in the file for this rank's
 * shard of it. Shards pass through a few buffers: a shard is read when it is
 * gathered, or ahead of that, and stays in its buffer while the gather runs;
 * one that was updated is written while training continues. A buffer keeps its
 * shard until another one needs the buffer, so what was just written is not
 * read again.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/aio.h"
#include "flat.h"
#include "staging.h"

/* As the keys of offload_param of that name. */
typedef struct dsi_param_swap_opts {
    const char *nvme_path; /* a folder that is there; NULL: memory */
    int buffer_count;      /* 0: 1 */
    int64_t buffer_size;   /* elements: no shard may be longer */
    int64_t max_in_cpu;    /* elements that stay in memory: those of the first units */
    bool pin_memory;
    dsi_aio_opts aio;
} dsi_param_swap_opts;

typedef struct dsi_param_swap dsi_param_swap;

/* For the solo units of f from unit `first` on. folder: in nvme_path. model:
 * for names in messages. staging: of the GPU that has the parameters; NULL: the
 * host has. NULL with the message. */
dsi_param_swap *dsi_param_swap_new(const dsi_flat *f, const ds_module *model, int first,
                                   const char *folder, const dsi_param_swap_opts *o,
                                   dsi_staging *staging);
void dsi_param_swap_free(dsi_param_swap *h); /* NULL passes */

/* Unit k's shard [shard_size], in a buffer that is kept for it until it is
 * closed as often as opened. NULL with the message. dsi_param_swap_has_room
 * must be true: a buffer has the shard already, or is not open. Blocks until it
 * is read. */
bool dsi_param_swap_has_room(const dsi_param_swap *h, int k);
ds_tensor *dsi_param_swap_open(dsi_param_swap *h, int k);
void dsi_param_swap_close(dsi_param_swap *h, int k);

void dsi_param_swap_ahead(dsi_param_swap *h, int k); /* begins to read it, if a buffer is idle */

/* The first elements of unit k's shard become those of x.
 * dsi_param_swap_has_room must be true. The file is written in the
 * background. */
ds_status dsi_param_swap_write(dsi_param_swap *h, int k, const ds_tensor *x);

int64_t dsi_param_swap_memory(const dsi_param_swap *h); /* bytes of the buffers */
int64_t dsi_param_swap_file(const dsi_param_swap *h);
/* Bytes of buffers and of memory for that many own elements, of which the
 * longest shard has `longest`. */
int64_t dsi_param_swap_needs(const dsi_param_swap_opts *o, int64_t owned, int64_t longest,
                             ds_dtype dtype);
