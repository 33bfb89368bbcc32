/* parallel/zero.h: updates of a model's parameters: ZeRO stages 0 to 3, float32
 * or 16-bit with float32 master weights, on any number of ranks. For the
 * engine; DDP without an engine is ddp.c.
 *
 *     stage  optimizer state  gradients  parameters  a bucket does    after the step
 *     0      whole            whole      whole       all_reduce       -
 *     1      shard            whole      whole       reduce_scatter   all_gather shards
 *     2      shard            shard      whole       reduce_scatter   all_gather shards
 *     3      shard            shard      shard       reduce_scatter   gathered before each module
 *
 * With one rank the shard is the whole: nothing is sent, and float32 is the
 * plain loop.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/graph.h"
#include "offload.h"
#include "param_swap.h"

#define DSI_ZERO_BUCKET 500000000 /* elements: DeepSpeed's default */

/* As the keys of zero_optimization of (almost) that name; counts are elements. */
typedef struct dsi_zero_opts {
    int stage;
    ds_dtype dtype;       /* float32, float16, bfloat16: the model is converted to it */
    ds_dtype accum_dtype; /* of gradients added up over micro steps: dtype, or float32 */
    ds_dtype comm_dtype;  /* of gradients on the wire */
    bool prescale;        /* divide by the number of ranks before the sum, not after it */
    double predivide;     /* with f: by f before, by ranks / f after; 0 is 1 */
    bool overlap_comm;    /* a bucket is reduced while backward runs */
    bool reduce_scatter;  /* stages 1 to 3: false: all_reduce, and keep the own shard */
    int64_t reduce_bucket, allgather_bucket; /* 0: 5e8 */

    /* stage 3 */
    int64_t prefetch_bucket;             /* gathered ahead */
    int64_t persistence_threshold;       /* parameters up to this size stay gathered, */
    int64_t model_persistence_threshold; /* up to this sum */
    int64_t max_live, max_reuse_distance;

    /* The same bits on 1, 2, 4, 8.. ranks for the same global batch, cut into
     * micro batches of the same size in the same order: Note [Fixed tree].
     * Gradients are reduced in every pass; stage 0 works as stage 1. */
    bool deterministic;

    bool offload_param;     /* on a GPU, stage 3: this rank's shards of parameters in host memory */
    bool offload_optimizer; /* masters and moments in host memory, apart from the parameters; */
    dsi_offload_opts files; /* or, if nvme_path is not NULL, in a file: Note [Offload] */
    /* stage 3: likewise this rank's shards of parameters: Note [Param swap];
     * there are masters then */
    dsi_param_swap_opts param_files;
    /* with both: steps neither clip nor check for overflow, so the pass over
     * the optimizer's file may begin during backward (zero_overlap.c) */
    bool overlap_update;
} dsi_zero_opts;

/* The options of the layout: units, and the shards of each rank (Note
 * [Layout]). */
dsi_flat_opts dsi_zero_layout(const dsi_zero_opts *o, int rank, int ranks);

/* Whether masters are split (Note [Split masters]), if the optimizer takes
 * halves. */
bool dsi_zero_splits(const dsi_zero_opts *o);

typedef struct dsi_zero dsi_zero;

/* Converts the model, broadcasts rank 0's parameters and buffers, gives each
 * rank its shard and tells the optimizer. Borrows all three; comm NULL: one
 * rank. NULL with the message if it cannot be. */
dsi_zero *dsi_zero_new(ds_module *model, ds_optim *optim, ds_comm *comm, const dsi_zero_opts *o);

/* Backward with d loss / d loss = factor; gradients add up until the step.
 * last: the accumulation boundary; what is still to be reduced leaves during
 * this pass. */
ds_status dsi_zero_backward(dsi_zero *z, ds_tensor *loss, double factor, bool last);

/* After passes none of which was the last: completes the gradients. Collective. */
ds_status dsi_zero_complete(dsi_zero *z);

/* Before each update that waits for the norm, fn(arg) is called when it is
 * there, and before the norm is looked at; if it fails nothing is updated. arg
 * is
 * borrowed. */
void dsi_zero_on_norm(dsi_zero *z, ds_status (*fn)(void *arg), void *arg);

/* Seconds of the last backward in which this rank sent gradients or waited for
 * them. */
double dsi_zero_reducing(const dsi_zero *z);

typedef struct dsi_zero_step_result {
    double norm;   /* L2, of all ranks' mean gradient, before clipping; NaN if it was not needed */
    bool overflow; /* a gradient is inf or NaN on some rank: nothing was changed */
    /* The first such parameter; borrowed until the next step. NULL: none, or
     * unknown. */
    const char *bad_param_path;
    double gradients_s, update_s, gather_s; /* seconds: norm and hand-over, optimizer, gathering */
} dsi_zero_step_result;

/* Waits for the reduction. Gradients are loss_scale times too large. If one is
 * inf or NaN on any rank and check_overflow is set, nothing is changed; else
 * clips to max_norm (0: no clipping), updates, gathers. Forgets the gradients
 * in any case. norm is there if clipping, check_overflow or want_norm needs it;
 * it is the same on all ranks. out may be NULL. */
ds_status dsi_zero_step(dsi_zero *z, double loss_scale, double max_norm, bool check_overflow,
                        bool want_norm, dsi_zero_step_result *out);

/* ---- steps that a device captures (device/graph.h) ---------------------------------------------------- */

/* Why a step of z cannot be captured, in one line; NULL: it can. */
const char *dsi_zero_why_no_graph(const dsi_zero *z);

/* As dsi_zero_backward, with the factor in a slot: [] float64. A micro step
 * that is not the last one gives its gradients to the parameters at each
 * replay. */
ds_status dsi_zero_capture_backward(dsi_zero *z, ds_tensor *loss, const double *factor, bool last);

typedef struct dsi_zero_capture {
    bool update;            /* false: a micro step that does not update */
    bool want_norm;         /* also if neither clipping nor overflow needs it */
    dsi_step_limits limits; /* what makes the device skip the update, and clipping */
    const double *unscale;  /* a slot: 1 / loss scale */
    const ds_tensor *loss;
    dsi_graph_decision decision; /* memory for the result */
} dsi_zero_capture;

/* As dsi_zero_step, but what is done is decided on the device. After each
 * launch: dsi_zero_capture_end. */
ds_status dsi_zero_capture_step(dsi_zero *z, const dsi_zero_capture *c);
/* Resets the gradients; *bad_param_path: after an overflow, as in
 * dsi_zero_step_result. */
ds_status dsi_zero_capture_end(dsi_zero *z, bool overflow, const char **bad_param_path);

void dsi_zero_zero_grad(dsi_zero *z); /* forgets the gradients */
void dsi_zero_free(dsi_zero *z);      /* the model keeps its parameters, whole, in its dtype */

/* ---- for checkpoints and averages; i is that of ds_module_param_at ----------------------------------- */

/* How the parameters lie, and which elements of each this rank updates (Note
 * [Layout]); borrowed. */
const dsi_flat *dsi_zero_flat(const dsi_zero *z);
/* The tensor of parameter i that this rank updates: a float32 master or this
 * rank's shard of it, or, in float32, the parameter itself. NULL: none.
 * Borrowed. It may be split, or in a file with the optimizer's moments: reading
 * materializes it until the next step, so a caller that reads all of them
 * calls dsi_zero_release for each. */
ds_tensor *dsi_zero_shard(const dsi_zero *z, int i);
/* Ends the use of the shard of parameter i and its moments; changed: they were
 * written. Does nothing if they are neither split nor in a file. */
ds_status dsi_zero_release(dsi_zero *z, int i, bool changed);
/* After the caller has changed shards: writes them to the parameters of the
 * model. Collective. */
ds_status dsi_zero_publish(dsi_zero *z);
/* The whole parameter i as it is trained, float32, put together from all ranks,
 * which all call it; in the current scope. */
ds_tensor *dsi_zero_whole(dsi_zero *z, int i);

/* ---- one parameter, for programs (zero_param.c) ------------------------------------------------------ */

enum { DSI_ZERO_MASTER = -2, DSI_ZERO_GRAD = -1 }; /* a part of it; from 0 on: a moment */

bool dsi_zero_has_param(const dsi_zero *z, int index);    /* whether it is trained */
int64_t dsi_zero_part_size(const dsi_zero *z, int index); /* elements that this rank updates */
/* Why it cannot be read or written between a backward and its step; NULL: it
 * can. */
const char *dsi_zero_part_busy(const dsi_zero *z, int part);
/* A new float32 tensor in the current scope: the whole, of the parameter's
 * shape; or local: the elements that this rank updates, 1-D. Gradients are
 * those that the optimizer is given, before unscaling and clipping, after the
 * last pass of an update; one that backward has not made, and a moment before
 * the first update, are zeros. Collective. NULL with the message. */
ds_tensor *dsi_zero_part(dsi_zero *z, int index, int part, bool local);
/* The way back, of such a tensor. A master is published. Collective. */
ds_status dsi_zero_set_part(dsi_zero *z, int index, int part, ds_tensor *value, bool local);

/* Model state of this rank, in bytes: what ZeRO divides by the number of ranks. */
typedef struct dsi_zero_bytes {
    int64_t parameters, gradients; /* parameters: as the model sees them */
    int64_t optimizer;             /* masters and moments; or what a step has of them in memory */
    int64_t file;                  /* where they are then; and parameters */
} dsi_zero_bytes;

dsi_zero_bytes dsi_zero_memory(const dsi_zero *z);
