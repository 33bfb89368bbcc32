/* optim/optim.h: the struct of an optimizer; what built-in ones share; what
 * ZeRO and the engine need.
 *
 * The built-in optimizers are made of ds_optim_type, as a user's are. Their
 * step is a kernel over all parameters of a group, with the kernel's options as
 * self; what may differ between groups is put into them at each step.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/mem.h"
#include "params.h"
#include "tensor/tensor.h"

#include <deepspeed/autograd.h>
#include <deepspeed/optim.h>

/* The index of a parameter is its place in ds_module_param_at, also where ZeRO
 * has replaced what is updated; files and groups refer to it. */
typedef struct dsi_optim_param {
    ds_tensor *of;  /* the model's, counted */
    ds_tensor *p;   /* what is updated, counted: `of` until it is replaced; NULL: nothing here */
    ds_tensor *low; /* p's 16-bit copy, counted, or NULL */
    /* int16, counted: low and rest are the halves of p (base/half.h), which is
     * lazy then; or NULL */
    ds_tensor *rest;
    char *path;
    int group;
    ds_tensor *moment[DS_OPTIM_MOMENTS]; /* counted; NULL before the first update */
    int64_t step;                        /* updates so far */
    bool lags;                           /* of these, replays may have skipped some (replay.c) */
} dsi_optim_param;

struct ds_optim {
    const ds_optim_type *type;
    void *self;
    int n, n_groups;
    dsi_optim_param *params;  /* [n] */
    ds_optim_values *groups;  /* [n_groups] */
    ds_optim_update *updates; /* [n]: those of one step, group by group */
    int *updated;             /* [n]: which parameters they are */
    /* dsi_optim_keep; NULL: moments are made in memory */
    ds_tensor *(*keeper)(void *arg, int i, int k);
    void *keeper_arg;
    bool taken;              /* an engine frees it */
    int64_t scalar_uses;     /* replay.c: when the step of a group began */
    int64_t scheduled;       /* the recording in which a schedule last set its values; 0: none */
    struct dsi_skips *skips; /* replay.c; NULL: no replay skips */
};

/* Whether an engine has s, so that other code may not free it. */
void dsi_schedule_take(ds_schedule *s, bool taken);
/* ds_schedule_step for an engine, whose hook does it at replays. */
void dsi_schedule_advance(ds_schedule *s);

/* Whether moment i is needed by parameters of that group. i: 0 ..
 * DS_OPTIM_MOMENTS - 1. It may depend on the group's values, so an answer is
 * valid until those change. */
bool dsi_optim_uses(const ds_optim *o, int group, int i);
/* Those that x needs and has not yet: zeros. Called before an update, so that
 * a step that finds no memory changes nothing. */
ds_status dsi_optim_make_moments(const ds_optim *o, dsi_optim_param *x);
/* A step that is skipped, with its gradients in place: while it is recorded
 * (device/graph.h), moments are made as by an update. */
ds_status dsi_optim_skip(ds_optim *o);

/* The dsi_step_result, on the device, of the p-norm of n > 0 dense
 * gradients together; p: 1, 2 or INFINITY. unscale: float64 []. */
ds_tensor *dsi_grads_result(int n, ds_tensor **g, double p, const dsi_step_limits *limits,
                            ds_tensor *unscale);
#define DSI_RESULTS       ((int64_t)(sizeof(dsi_step_result) / sizeof(double)))
#define DSI_RESULT(field) ((int64_t)(offsetof(dsi_step_result, field) / sizeof(double)))
ds_tensor *dsi_element_of(const ds_tensor *x, int64_t i); /* of a 1-D tensor -> [], a view */
/* Multiplies them in place by a float64 [] of their device. False, with the
 * message, if one cannot be written; those before it are scaled. */
bool dsi_grads_scale(int n, ds_tensor **g, ds_tensor *factor);

/* ---- for ZeRO, which replaces the parameters that are updated (masters, shards) -------------------------- */

int dsi_optim_params(const ds_optim *o); /* in the order of ds_module_param_at */

/* From now on parameter i is updated in place of `p`: a float32 master, or a
 * rank's part of it, of any shape; its gradient is ds_grad(p), of p's dtype or,
 * if p is float32, of 16 bits. NULL: steps leave it out. low, or NULL: 16-bit,
 * of p's number of elements, written after each step. Moments are dropped. */
ds_status dsi_optim_set_param(ds_optim *o, int i, ds_tensor *p, ds_tensor *low);

/* Whether steps can update the two halves of a float32 p: rules that are one
 * kernel. */
bool dsi_optim_takes_halves(const ds_optim *o);
/* After dsi_optim_set_param with a bfloat16 `low`: steps update low and rest,
 * int16 and of as many elements, in place of p, which has but shape and
 * gradient. */
void dsi_optim_set_rest(ds_optim *o, int i, ds_tensor *rest);

/* low = p, as by dsi_copy, without a kernel of an optimizer; but as by these a
 * float32 p with a bfloat16 copy is untied first (base/half.h). */
ds_status dsi_optim_round(ds_tensor *low, ds_tensor *p);

/* Whether the rule asks for more than one element at a time (LAMB's norms):
 * parts will not do. */
bool dsi_optim_needs_whole(const ds_optim *o);
/* The same of one group: Muon's AdamW does not. */
bool dsi_optim_group_needs_whole(const ds_optim *o, int group);

/* ds_optim_step with each gradient times g_scale. The factor is applied by the
 * kernels, for a loss scale and for clipping, so that gradients are not
 * written again. */
ds_status dsi_optim_step_scaled(ds_optim *o, double g_scale);

/* ---- for parameters and moments in files ----------------------------------------------------------------- */

/* Moments that are needed are asked for, moment k of parameter i, zero at
 * first, where they would be made. */
void dsi_optim_keep(ds_optim *o, ds_tensor *(*keeper)(void *arg, int i, int k), void *arg);

/* Elements of parameter i, from `begin` on, and their moments, in memory for a
 * moment. p: 1-D, or all of it. */
typedef struct dsi_optim_piece {
    int i;
    int64_t begin;
    ds_tensor *p, *moment[DS_OPTIM_MOMENTS];
    /* Of elements that another rank has: their gradient, and the updates so
     * far. NULL: the parameter's own */
    ds_tensor *grad;
    int64_t step;
} dsi_optim_piece;

/* A step in pieces. Parameters have a gradient, of which the piece's elements
 * are read; the same elements of their 16-bit copies are written, unless the
 * piece has a gradient of its own. After the last piece of a parameter:
 * dsi_optim_count. */
ds_status dsi_optim_step_pieces(ds_optim *o, const dsi_optim_piece *x, int n, double g_scale);
ds_status dsi_optim_count(ds_optim *o, int i);

/* ---- for the built-in ones ------------------------------------------------------------------------------- */

/* The memory of n updates, to be freed with dsi_free: m, v, vmax are moment[0],
 * [1], [2]; a `copy` of int16 is the rest of a bfloat16 p. */
dsi_span *dsi_optim_spans(const ds_optim_update *x, int n);

/* Adds x to a state as "exp_avg.conv1.weight"; fails if x is NULL. */
ds_status dsi_optim_state_add(ds_state *state, const char *kind, const char *path, ds_tensor *x);

/* One step of the rule on n updates: what the step_n of a built-in optimizer
 * does. */
ds_status dsi_optim_run(const dsi_optimizer *c, const ds_optim_update *x, int n);

/* moment = beta moment + (1 - beta) x, made of ops -> moment, or NULL. */
ds_tensor *dsi_optim_moment_update(ds_tensor *moment, double beta, ds_tensor *x);

/* ds_optim_new with the options of a constructor, a struct of `size` bytes that
 * the table describes: lr, weight_decay, betas and momentum become the values
 * of group 0; others go into self where type->options has their name. */
ds_optim *dsi_optim_from(ds_module *model, const ds_optim_type *type, const dsi_param *table,
                         void *opts, size_t size);
