/* parallel/partition.h: one parameter that is partitioned over ranks: each rank
 * keeps a shard of it, and all gather it where it is used.
 *
 * Note [Partitions] The elements of a parameter, row-major, are filled up with
 * zeros to ranks * shard_size elements; rank r's shard is elements r *
 * shard_size .. (r + 1) * shard_size - 1. It stays in memory or on disk
 * (param_swap.h). The model's handle keeps its shape and is lazy
 * (tensor/lazy.c) until all ranks gather the
 * shards:
 *
 *     DSI_EVICTED    x has no storage
 *     DSI_GATHERING  x has no storage; the gather that fills `gathered` has begun
 *     DSI_PRESENT    x is a view of what was gathered
 *
 * Two owners have such parameters: ds_zero_init while a model is made
 * (zero_init.c), then stage 3 (zero3.c). They decide when a parameter is
 * gathered and evicted; ds_gathered, for users, is the same for both.
 *
 * Invariants:
 * - The ranks of `comm` call gather_start, scatter and ds_gathered in the same
 *   order for the same parameters: these are collectives. gather_wait, gather,
 *   cancel and scatter block; evict does not.
 * - While DSI_GATHERING, other ranks, or the GPU, read this rank's shard: it
 *   must not be written, and a buffer that holds it stays open.
 * - DSI_PRESENT with users > 0, or with `unfinished`: evict does nothing.
 * - A rank whose gather fails ends the communication of all ranks of `world`,
 *   so that none waits for it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "comm/comm.h"
#include "param_swap.h"

typedef enum dsi_partition_state {
    DSI_EVICTED,
    DSI_GATHERING,
    DSI_PRESENT,
} dsi_partition_state;

typedef struct dsi_partition dsi_partition;

typedef struct dsi_partition_owner {
    /* An op reads x, which is evicted: gathers it, or refuses, with the
     * message. */
    ds_status (*materialize)(dsi_partition *p);
    /* p is evicted and will be gathered: evicts others. NULL: nothing to do. */
    void (*before_gather)(dsi_partition *p);
    /* Ends gathers until p's shard finds a buffer of the swap. NULL: p is in
     * memory. */
    ds_status (*free_buffer)(dsi_partition *p);
    /* Before shards are written: ends all gathers that have begun. NULL: none
     * has. */
    ds_status (*wait_gathers)(dsi_partition *p);
} dsi_partition_owner;

/* The first member of what its owner has for a parameter. */
struct dsi_partition {
    const dsi_partition_owner *owner;
    ds_tensor *x;          /* the model's; borrowed */
    ds_comm *comm;         /* of the ranks that have shards; borrowed */
    ds_comm *world;        /* of all ranks; borrowed */
    int64_t n, shard_size; /* elements: of x; of a shard, filled up */
    int64_t *live;         /* of the owner: elements that are gathered, or being so; or NULL */

    dsi_partition_state state;
    int users;       /* module calls that run, ds_gathered without its end */
    bool pinned;     /* an op has materialized x: it stays until its backward has passed */
    bool unfinished; /* x has values that are not in the shards yet */

    ds_tensor *shard;     /* [shard_size], counted; NULL: on disk */
    dsi_param_swap *swap; /* where it is then, as shard `unit`; borrowed */
    int unit;
    dsi_staging *staging; /* borrowed; of x's GPU, where the shard is the host's; or NULL */
    /* This rank's elements of x, with its shape if it has all, else 1-D; NULL
     * if it has none. Counted. A view of `shard`; or lazy, and read from
     * disk. */
    ds_tensor *owned;

    ds_tensor *gathered;  /* [ranks * shard_size], counted; NULL unless DSI_GATHERING */
    dsi_request *request; /* NULL then: one rank, whose shard comes from the host */
    dsi_event brought;    /* the shard has come from there */
};

/* x's partition, of any owner; NULL: it has none. */
dsi_partition *dsi_partition_of(const ds_tensor *x);

/* x is p's from now on: materialized by its owner. Without it: x keeps its
 * storage, if it has any, and nothing of p is freed but what it counts. */
void dsi_partition_attach(dsi_partition *p);
void dsi_partition_detach(dsi_partition *p);

/* The elements of x that are this rank's: *begin .. *end - 1. */
void dsi_partition_range(const dsi_partition *p, int64_t *begin, int64_t *end);

/* ---- the whole parameter ---------------------------------------------------------------------------- */

ds_status dsi_partition_gather_start(dsi_partition *p); /* nothing unless evicted */
ds_status dsi_partition_gather_wait(dsi_partition *p);  /* nothing unless gathering */
ds_status dsi_partition_gather(dsi_partition *p);       /* both, if it is not present */
ds_status dsi_partition_cancel(dsi_partition *p);       /* waits, and drops what was gathered */
void dsi_partition_evict(dsi_partition *p);             /* nothing if it must stay */
/* Rank `root`'s values of x, which is present there, to the shards and to x of
 * all ranks. */
ds_status dsi_partition_scatter(dsi_partition *p, int root);

/* ---- the shard; for one in memory these do nothing ----------------------------------------------------- */

/* p->owned gets memory without values, to be written; is written to disk and
 * evicted; is evicted. */
ds_status dsi_shard_alloc(dsi_partition *p);
ds_status dsi_shard_store(dsi_partition *p);
void dsi_shard_evict(dsi_partition *p);
/* For one on disk: makes p->owned, which is lazy, and writes `values`, 1-D, to
 * the disk. */
ds_status dsi_shard_to_disk(dsi_partition *p, const ds_tensor *values);
