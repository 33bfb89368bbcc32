/* parallel/zero_state.h: the state of one rank's ZeRO, for zero.c,
 * zero_make.c and zero_capture.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "reduce.h"
#include "split.h"
#include "zero.h"
#include "zero3.h"

/* n, units, owned: those of flat. Tensors are counted. Fields of a mode that is
 * off are NULL or false. */
struct dsi_zero {
    /* ---- all modes ---- */
    ds_module *model; /* borrowed, like optim, comm and self */
    ds_optim *optim;
    ds_comm *comm; /* NULL: one rank */
    ds_comm *self; /* by which a single rank gathers its parameters from disk */
    dsi_zero_opts o;
    dsi_flat *flat;       /* the layout, owned */
    ds_tensor **shard;    /* [n]: what the optimizer updates; NULL: nothing of this parameter */
    dsi_view *grad_views; /* [n], scratch: the gradients of one step */
    ds_status (*on_norm)(void *arg); /* or NULL */
    void *on_norm_arg;               /* borrowed */
    /* Path of the first parameter whose gradient was inf or NaN at the last
     * overflow; NULL: none so far. */
    char *bad_param_path;

    /* ---- sums of gradients: several ranks, stage 3, deterministic, or of another dtype ---- */
    dsi_reduce *reduce; /* owned; NULL: gradients stay where backward makes them */
    /* float64 [ranks + 1], NULL on one rank: sums of squares: of all ranks,
     * then of this one; on a GPU norms (dsi_zero_norm_is_queued) */
    ds_tensor *norm_sums;

    /* ---- partitioned: stages 1 to 3, where each rank has a shard ---- */
    ds_tensor **unit_params;    /* [units]: memory of the parameters gathered after a step; NULL:
                                   stage 3 partitions the unit */
    dsi_request **unit_gathers; /* [units]: those of one step */
    dsi_zero3 *zero3;           /* stage 3: gathers and evicts partitioned parameters; owned */

    /* ---- masters: one of the three; without one the parameters are their own masters ---- */
    ds_tensor *masters;   /* float32 [owned] */
    dsi_split *split;     /* the rest of each master, beside a bfloat16 parameter; owned */
    dsi_offload *offload; /* masters and moments in files; owned */

    /* ---- the update begins during backward: zero_overlap.c; with offload ---- */
    bool overlap_active;      /* from the begin of the last backward pass until the step */
    ds_status overlap_status; /* of what was updated so far; valid while overlap_active */

    /* ---- CPU offload of a model on a GPU: zero_host.c ---- */
    dsi_staging *staging;        /* copies to and from the host; owned */
    ds_tensor **outgoing_params; /* [n], host: copied to the model after a step; NULL where the
                                    optimizer and the model are on one device */
    ds_tensor *host_grads;       /* [owned], host: where gradients arrive; NULL: none so far */
    ds_tensor **outgoing_grads;  /* [n], GPU: gradients whose copy to host_grads is queued; NULL:
                                    not queued. Only with o.offload_optimizer. */
    bool last_pass;              /* backward completes the gradients of the step in this pass */
};

/* This rank's elements of parameter i as the model has them; NULL: none. */
ds_tensor *dsi_zero_model_shard(const dsi_zero *z, int i);
/* Parameter `index` of the module in the layout; -1: it is not trained. */
int dsi_zero_find(const dsi_zero *z, int index);
/* whole has this rank's elements of parameter k of the layout: adds those of
 * the other ranks that have it, which all call it. */
ds_status dsi_zero_assemble(dsi_zero *z, int k, ds_tensor *whole);
/* Whether the model's own elements of parameter i are in a file; then they are
 * there between these two. */
bool dsi_zero_on_disk(const dsi_zero *z, int i);
/* Whether its master is copied to the model after a step: the optimizer's
 * kernel writes the model's 16-bit elements itself, where it can reach them. */
bool dsi_zero_copies_master(const dsi_zero *z, int i);
/* Copies shard i into the model's elements of this rank. */
ds_status dsi_zero_copy_master(dsi_zero *z, int i);
ds_tensor *dsi_zero_shard_open(void *zero, int i, bool write);
ds_status dsi_zero_shard_close(void *zero, int i, bool write);
/* step, with parameters that stage 3 has cut but the optimizer needs whole
 * brought together for it (zero_whole.c). Collective. */
ds_status dsi_zero_step_whole(dsi_zero *z, double scale, ds_status (*step)(dsi_zero *, double));
/* The optimizer's pass over its file begins with the last backward pass, where
 * it can; pause: at the end of that pass, with its status; end: in the step, or
 * where there will be none: whether it had begun (zero_overlap.c). */
ds_status dsi_zero_overlap_begin(dsi_zero *z);
/* After each gradient of backward: a hook of z->reduce, or of the parameters. */
void dsi_zero_overlap_continue(void *zero, ds_tensor *x);
void dsi_zero_overlap_hook(dsi_zero *z, bool on);
ds_status dsi_zero_overlap_pause(dsi_zero *z);
bool dsi_zero_overlap_end(dsi_zero *z);
dsi_offload_model dsi_zero_model(dsi_zero *z); /* the same for offload.h */

/* ---- parts of a step ---- */

/* On one rank backward makes no gradient of a parameter that the loss does not
 * depend on: one of zeros then, as on more ranks, so that it decays there
 * too. */
ds_status dsi_zero_make_grad(dsi_zero *z, int i);
/* Sets the gradients of the shards, from which the optimizer reads them. */
ds_status dsi_zero_hand_over(dsi_zero *z);
/* Whether the norm is made on the GPU, with collectives that are queued there. */
bool dsi_zero_norm_is_queued(const dsi_zero *z);
/* Lines of this rank's gradients in z->grad_views, and how many; -1: a failure.
 * *squares: those of gradients that are not among them. */
int dsi_zero_norm_lines(const dsi_zero *z, double *squares);
/* Updates and publishes the parameters. *from, the time of the last lap, and
 * the seconds of *out go on. */
ds_status dsi_zero_update(dsi_zero *z, double scale, double *from, dsi_zero_step_result *out);
/* After an overflow: nothing is updated, and the parameter is named.
 * Collective. */
ds_status dsi_zero_skip(dsi_zero *z, dsi_zero_step_result *out);

/* ---- zero_host.c: each does nothing without z->staging, unless it says so ------------------------------ */

ds_status dsi_zero_host_open(dsi_zero *z); /* makes it, if there is something to copy */
void dsi_zero_host_close(dsi_zero *z);
ds_status dsi_zero_host_prepare(dsi_zero *z); /* makes z->outgoing_params, of the model's values */
/* Queues outgoing_params[i], which is not NULL, to the model; then, once, lets
 * the GPU wait for all of them. */
ds_status dsi_zero_host_send_param(const dsi_zero *z, int i);
ds_status dsi_zero_host_join_params(const dsi_zero *z);
ds_status dsi_zero_host_wait(dsi_zero *z); /* until outgoing_params and masters may be written */
/* Queues gradient g of parameter i, on the GPU, which stays until all were
 * waited for; returns where it will be. Needs z->staging. NULL with the
 * message. */
ds_tensor *dsi_zero_host_grad(dsi_zero *z, int i, ds_tensor *g);
ds_status dsi_zero_host_grads_wait(dsi_zero *z); /* and reports faults of the pass */
/* Queues those that are complete by now, that of x too, while backward runs;
 * what cannot be queued is left to the step. */
void dsi_zero_host_grads_ahead(dsi_zero *z, const ds_tensor *x);
/* None is on its way any more: later work of the GPU is behind them. */
void dsi_zero_host_grads_drop(dsi_zero *z);
/* The gradient of parameter i's own elements, dense; NULL: none. */
ds_tensor *dsi_zero_shard_grad(const dsi_zero *z, int i);
