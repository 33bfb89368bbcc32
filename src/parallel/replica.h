/* parallel/replica.h: one replica of DataParallel: a module on a thread, and
 * the data that it and the caller exchange.
 *
 * Note [Replicas] A tensor belongs to the thread that made it, so a replica has
 * a module of its own. On the CPU its parameters and buffers are handles of its
 * thread on memory of the caller: parameters on the model's, buffers on copies
 * that the caller refreshes. On a GPU of its own they are the replica's memory,
 * into which each forward copies those, all at once (packed.h); so do gradients
 * come back.
 *
 * Invariants:
 * - While a replica works, the caller changes none of that memory; while it
 *   waits, the caller may read what it made.
 * - Threads exchange views of memory, never handles. A thread that reads memory
 *   of another GPU has its own handle on that GPU, with a stream of its own.
 * - Streams: a job's work begins after all that the caller's stream was given
 *   before (`ready`), and is done when the job returns.
 * - Replica 0 is the model itself, and works on the caller's thread.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"
#include "worker.h"

#include <deepspeed/nn.h>

#define DSI_MAX_INPUTS   16
#define DSI_MAX_REPLICAS 64

/* The graph of one call, which a replica keeps for its backward. The tensors
 * belong to its thread; counted. */
typedef struct dsi_replica_graph {
    int n;
    ds_tensor *x[DSI_MAX_INPUTS]; /* its rows of the inputs */
    ds_tensor *y;                 /* with the graph below it */
    struct dsi_replica_graph *next;
} dsi_replica_graph;

typedef struct dsi_replica {
    int number;
    ds_device device, home; /* its own; the model's. CPU: one and the same */
    dsi_worker *worker;     /* NULL: replica 0 */
    ds_module *module;
    ds_state *tensors; /* of the module: parameters and buffers; "slots" below */
    ds_tensor *params_block, *grads_block; /* its thread's, on its GPU; counted, or NULL */

    /* written by the caller before a job */
    ds_status (*job)(struct dsi_replica *r);
    dsi_replica_graph *graph;      /* of the call that runs */
    dsi_view in[DSI_MAX_INPUTS];   /* its rows; copied, unless the share has x already */
    bool collects[DSI_MAX_INPUTS]; /* whether x is to have a gradient */
    dsi_view dy;
    dsi_event *ready; /* on the caller's stream: inputs, parameters, dy are there */
    bool recording;
    ds_dtype autocast;
    int threads;
    uint64_t seed;               /* of its generator */
    dsi_view *memory;            /* [slots] */
    dsi_view packed;             /* of a GPU: all of these in one block; p == NULL: none */
    const int64_t *at;           /* [slots] places in it; -1: elsewhere */
    bool *trained;               /* [slots] */
    dsi_replica_graph *released; /* calls that have no backward any more */

    /* written by the replica's job */
    ds_status status;
    char why[1024]; /* if it failed */
    dsi_view y;
    bool y_has_graph;
    dsi_view *grad;              /* [slots] p == NULL: none */
    dsi_view packed_grads;       /* of a GPU: all of these in one block */
    int64_t *grad_at;            /* [slots] */
    dsi_view dx[DSI_MAX_INPUTS]; /* likewise */
} dsi_replica;

/* The model as replica 0, on the device of its first tensor: module is
 * borrowed. */
dsi_replica *dsi_replica_of(ds_module *module);
/* Another replica, with a thread, whose module make(arg) gives there, on
 * `device`: like's structure. NULL with the message. */
dsi_replica *dsi_replica_new(int number, const dsi_replica *like, ds_device device,
                             ds_module *(*make)(void *arg), void *arg);
/* A tensor of this thread on memory v of another thread's on `device`; NULL
 * with the message. */
ds_tensor *dsi_replica_borrow(ds_device device, dsi_view v);
void dsi_replica_free(dsi_replica *r); /* all that it kept; NULL passes */

/* Jobs: forward gives share->y and y, backward grad and dx. */
ds_status dsi_replica_forward(dsi_replica *r);
ds_status dsi_replica_backward(dsi_replica *r);

void dsi_replica_start(dsi_replica *r, ds_status (*job)(dsi_replica *r));
void dsi_replica_wait(dsi_replica *r); /* of replica 0: does it now */

/* Frees the graph of a call of this replica: at once for replica 0, else on the
 * replica's thread before its next job. */
void dsi_replica_free_graph(dsi_replica *r, dsi_replica_graph *graph);

/* ---- replica_caller.c ---------------------------------------------------------------------------------- */

/* Whether there can be that number of replicas, on GPUs id (or NULL). False
 * with the message. */
bool dsi_replicas_check(ds_device home, int replicas, bool can_make, const int *id);
/* The device of replica r: the CPU, or a GPU of its own. */
ds_device dsi_replica_device(ds_device home, int r, const int *id);
/* Training or evaluation, for each module of the tree. */
void dsi_replica_set_mode(const ds_module *model, ds_module *replica);
uint64_t dsi_replica_new_seed(int r); /* of its generator, for a call */
/* The gradients of slots first..end-1 of a GPU's replica, which are neighbours
 * in its block, come to the model's GPU: their views are of memory of the
 * current scope from now on. */
ds_status dsi_replica_fetch_grads(dsi_replica *r, dsi_device *home, int first, int end);
