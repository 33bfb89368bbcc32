/* device/cuda/launch_optimizer.c: one step of an optimizer: up to K_SPANS
 * parameters a launch.
 *
 * A step of all parameters is few launches instead of one a parameter: an
 * argument holds the descriptions of K_SPANS spans, of which each block takes a
 * piece. A kernel's argument may have 4096 bytes, which limits K_SPANS.
 * Formulas: device/cpu/optim/optim.inc.
 *
 * Invariants: float64 spans and the others are in launches of their own, since
 * a kernel computes in one type. Elements do not depend on each other, except
 * in LAMB, whose sums over a span are of pieces in order. Kernels write nothing
 * while the fault flag is set, so a step after a bad index changes no
 * parameter. scalars, if given, is in device memory: a graph's replay reads
 * that step's learning rate from there.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "device/spans.h"

#include "held.h"
#include "kernels/optimizer.h"
#include "launch.h"
#include "operands.h"

#include <stddef.h>

#define MANY (1 << 22) /* elements of all spans */

#define SAME_RULE(constant, ...) \
    _Static_assert((int)K_##constant == (int)DSI_##constant, "optimizer.h: " #constant);
DSI_OPTIMIZER_RULES(SAME_RULE)
_Static_assert(sizeof(dsi_cuda_step) == sizeof(dsi_step_scalars) &&
                   offsetof(dsi_cuda_step, momentum) == offsetof(dsi_step_scalars, momentum) &&
                   offsetof(dsi_cuda_step, steps) == offsetof(dsi_step_scalars, steps),
               "optimizer.h: the scalars of a step");
#define SAME_RESULT(field) (offsetof(dsi_cuda_result, field) == offsetof(dsi_step_result, field))
_Static_assert(sizeof(dsi_cuda_result) == sizeof(dsi_step_result) && SAME_RESULT(norm) &&
                   SAME_RESULT(g_factor) && SAME_RESULT(skip) && SAME_RESULT(fault),
               "optimizer.h: the result of a step");
#define SAME_SCALE(field) (offsetof(dsi_cuda_scale, field) == offsetof(dsi_loss_scale, field))
_Static_assert(sizeof(dsi_cuda_scale) == sizeof(dsi_loss_scale) && SAME_SCALE(inverse) &&
                   SAME_SCALE(good) && SAME_SCALE(skips) && SAME_SCALE(one),
               "optimizer.h: a loss scale");
_Static_assert(sizeof(dsi_cuda_optimizer) <= 4096, "optimizer.h: an argument's limit");

/* The options of every rule in one form. */
static void set_options(dsi_cuda_optimizer *a, const dsi_optimizer *c)
{
    switch (c->rule) {
    case DSI_SGD:
        a->b1 = c->sgd.momentum, a->take = 1 - c->sgd.dampening, a->decay = c->sgd.weight_decay;
        a->nesterov = c->sgd.nesterov, a->maximize = c->sgd.maximize;
        break;
    case DSI_ADAM:
        a->b1 = c->adam.beta1, a->b2 = c->adam.beta2, a->eps = c->adam.eps;
        a->decay = c->adam.weight_decay, a->decoupled = c->adam.decoupled;
        a->amsgrad = c->adam.amsgrad, a->maximize = c->adam.maximize;
        a->bias_correction = c->adam.bias_correction;
        break;
    case DSI_ADAGRAD:
        a->lr_decay = c->adagrad.lr_decay, a->decay = c->adagrad.weight_decay;
        a->eps = c->adagrad.eps, a->maximize = c->adagrad.maximize;
        break;
    case DSI_RMSPROP:
        a->b1 = c->rmsprop.momentum, a->b2 = c->rmsprop.alpha, a->eps = c->rmsprop.eps;
        a->decay = c->rmsprop.weight_decay, a->centered = c->rmsprop.centered;
        a->maximize = c->rmsprop.maximize;
        break;
    case DSI_ADADELTA:
        a->b1 = c->adadelta.rho, a->eps = c->adadelta.eps, a->decay = c->adadelta.weight_decay;
        a->maximize = c->adadelta.maximize;
        break;
    case DSI_LION:
        a->b1 = c->lion.beta1, a->b2 = c->lion.beta2, a->decay = c->lion.weight_decay;
        break;
    default:
        a->b1 = c->lamb.beta1, a->b2 = c->lamb.beta2, a->eps = c->lamb.eps;
        a->decay = c->lamb.weight_decay, a->most = c->lamb.max_coeff;
        a->least = c->lamb.min_coeff, a->bias_correction = c->lamb.bias_correction;
        a->eps_inside = c->lamb.eps_inside_sqrt;
    }
}

/* Elements that a block takes: more where there are enough blocks, because the
 * corrections of Adam are computed once in each. */
static int piece_of(int n, const dsi_span *x)
{
    int64_t all = 0;
    for (int i = 0; i < n; i++) all += x[i].n;
    return all < MANY ? 1024 : 4096;
}

/* Up to K_SPANS spans that compute in the same type, from x[*at] on; returns
 * how many pieces they have. */
static int64_t take_spans(dsi_cuda_optimizer *a, int n, const dsi_span *x, int *at, bool wide)
{
    int64_t pieces = 0;
    a->n = 0;
    for (; *at < n && a->n < K_SPANS; ++*at) {
        const dsi_span *one = &x[*at];
        if ((one->dtype == DS_F64) != wide || !one->n) continue;
        a->x[a->n++] = (dsi_cuda_span){.p = one->p,
                                       .m = one->m,
                                       .v = one->v,
                                       .vmax = one->vmax,
                                       .low = one->low,
                                       .rest = one->rest,
                                       .g = one->g,
                                       .g_scale = one->g_scale,
                                       .n = one->n,
                                       .step = one->step,
                                       .first = pieces,
                                       .dtype = (int)one->dtype,
                                       .g_dtype = (int)one->g_dtype,
                                       .low_dtype = (int)one->low_dtype};
        pieces += (one->n + a->piece - 1) / a->piece;
    }
    return pieces;
}

/* LAMB needs the norms of a whole parameter before it changes: moments and the
 * sums of p^2 and u^2 by pieces; a rate a span, from lr and |p| / |u| within
 * bounds; then p -= rate u. Source: You et al., arXiv:1904.00962. Scratch: sums
 * [pieces][2], then rates [K_SPANS]. */
static ds_status lamb_launch(dsi_stream *s, dsi_cuda_optimizer *a, int64_t pieces,
                             const char *suffix)
{
    size_t bytes = (size_t)(2 * pieces + K_SPANS) * sizeof(double);
    a->sums = dsi_cuda_scratch(s, bytes);
    if (!a->sums) return DS_ENOMEM;
    a->rates = a->sums + 2 * pieces;
    dsi_cuda_grid grid = dsi_cuda_blocks(pieces, 256);
    ds_status status = dsi_cuda_launch(s, DSI_CUDA_optimizer, "lamb_moments", suffix, grid, a);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_optimizer, "lamb_rates", "",
                                 dsi_cuda_blocks(a->n, 256), a);
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_optimizer, "lamb_apply", suffix, grid, a);
    dsi_cuda_scratch_free(s, a->sums, bytes);
    return status;
}

ds_status dsi_cuda_optimizer_step(dsi_stream *s, const dsi_optimizer *c, int n, const dsi_span *x)
{
    static const char *const kernels[] = {
        [DSI_SGD] = "sgd",         [DSI_ADAM] = "adam",         [DSI_ADAGRAD] = "adagrad",
        [DSI_RMSPROP] = "rmsprop", [DSI_ADADELTA] = "adadelta", [DSI_LION] = "lion"};
    dsi_cuda_optimizer a = {.piece = piece_of(n, x),
                            .lr = c->sgd.lr, /* the first field of every rule's options */
                            .scalars = (const dsi_cuda_step *)c->scalars,
                            .g_factor = c->g_factor,
                            .skip = c->skip,
                            .fault = dsi_cuda_fault(s)};
    ds_status status = dsi_spans_check("cuda", c->rule, n, x);
    set_options(&a, c);
    a.momentum = c->rule != DSI_ADAGRAD && c->rule != DSI_ADADELTA;
    if (status == DS_OK && c->rule == DSI_SGD && dsi_cuda_held_sgd(s, &a, n, x, &status))
        return status;
    for (int wide = 0; wide < 2; wide++)
        for (int at = 0; at < n && status == DS_OK;) {
            int64_t pieces = take_spans(&a, n, x, &at, wide);
            const char *suffix = wide ? "_f64" : "_f32";
            if (!pieces) continue;
            status = c->rule == DSI_LAMB
                         ? lamb_launch(s, &a, pieces, suffix)
                         : dsi_cuda_launch(s, DSI_CUDA_optimizer, kernels[c->rule], suffix,
                                           dsi_cuda_blocks(pieces, 256), &a);
        }
    return status;
}

ds_status dsi_cuda_step_result_of(dsi_stream *s, const dsi_step_limits *c, dsi_view unscale,
                                  dsi_view loss, dsi_view norm, dsi_view result)
{
    dsi_cuda_step_result a = {.unscale = unscale.p,
                              .norm = norm.p,
                              .loss = loss.p,
                              .loss_dtype = (int)loss.dtype,
                              .finite_loss = c->finite_loss,
                              .finite_norm = c->finite_norm,
                              .max_norm = c->max_norm,
                              .fault = dsi_cuda_fault(s),
                              .result = result.p};
    ds_status status = loss.p ? dsi_cuda_floating("step_result", loss.dtype) : DS_OK;
    if (status != DS_OK) return status;
    return dsi_cuda_launch(s, DSI_CUDA_optimizer, "step_result", "", dsi_cuda_blocks(1, 32), &a);
}

ds_status dsi_cuda_loss_scale_of(dsi_stream *s, const dsi_scale_rule *c, dsi_view x)
{
    dsi_cuda_loss_scale a = {.growth = c->growth,
                             .backoff = c->backoff,
                             .interval = (double)c->interval,
                             .fault = dsi_cuda_fault(s),
                             .x = x.p};
    return dsi_cuda_launch(s, DSI_CUDA_optimizer, "loss_scale", "", dsi_cuda_blocks(1, 32), &a);
}

static ds_status halves_launch(dsi_stream *s, const char *name, dsi_view x, dsi_view p,
                               dsi_view rest)
{
    dsi_cuda_halves a = {x.p, p.p, rest.p, dsi_cuda_elements_in(&x)};
    bool fits = x.dtype == DS_F32 && (!p.p || (p.dtype == DS_BF16 && rest.dtype == DS_I16));
    if (!fits) return dsi_fail(DS_EINVAL, "%s: no cuda kernel for these dtypes", name);
    if (!a.n) return DS_OK;
    return dsi_cuda_launch(s, DSI_CUDA_optimizer, name, "", dsi_cuda_grid_of(a.n), &a);
}

ds_status dsi_cuda_halves_join(dsi_stream *s, dsi_view p, dsi_view rest, dsi_view x)
{
    return halves_launch(s, "halves_join", x, p, rest);
}

ds_status dsi_cuda_halves_split(dsi_stream *s, dsi_view x, dsi_view p, dsi_view rest)
{
    return halves_launch(s, "halves_split", x, p, rest);
}
