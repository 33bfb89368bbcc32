/* device/cuda/launch_softmax.c: softmax and cross entropy of kernels.h.
 *
 *     softmax        y = exp(x - max) / sum,  dx = y (dy - sum of dy y)
 *     log_softmax    y = x - max - log sum,   dx = dy - exp(y) sum of dy
 *     cross entropy  lse = max + log sum exp(x - max), loss = lse - x[label],
 *                    dx = (exp(x - lse) - onehot) dloss / divisor
 *
 * A row is (o, i) of [outer,C,inner]; classes are dimension 1, as in
 * torch.nn.functional.cross_entropy. A team takes a row: a warp, or the block
 * if the row has more than LONG columns. Cross entropies of such rows, the
 * logits of language models, have kernels of their own.
 *
 * Invariants: losses of rows are summed in double, by one block, in a fixed
 * order. A label outside of 0 .. C - 1 that is not ignore_index sets the fault
 * flag. divisor, which backward reads, stays on the GPU: the host does not wait
 * for it.
 * SPDX-License-Identifier: MIT */
#include "held.h"
#include "kernels/softmax.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"

enum { MEAN, SUM, NONE }; /* ds_reduction */

#define TEAM 128  /* threads of a block: 4 warps, or one team */
#define LINE 256  /* threads that take a long row of aligned vectors */
#define LONG 1024 /* columns of a row that takes a block */

static int team_for(int64_t columns) { return columns > LONG ? TEAM : 32; }

static dsi_cuda_grid grid_of_rows(int64_t rows, int team)
{
    return dsi_cuda_blocks((rows * team + TEAM - 1) / TEAM, TEAM);
}

/* op is the name for messages. a and b are x and NULL, or dy and y; y is the
 * output. Rows without columns need no kernel. */
static ds_status softmax_launch(dsi_stream *s, const char *op, const char *kernel, bool log,
                                const dsi_view *a, const dsi_view *b, const dsi_view *y)
{
    dsi_cuda_softmax_args p = {.a = a->p,
                               .b = b ? b->p : NULL,
                               .y = y->p,
                               .rows = y->d[0] * y->d[2],
                               .columns = y->d[1],
                               .inner = (unsigned)y->d[2],
                               .dtype = (int)y->dtype,
                               .log = log,
                               .team = team_for(y->d[1])};
    for (int i = 0; i < 3; i++) p.as[i] = a->s[i], p.bs[i] = b ? b->s[i] : 0, p.ys[i] = y->s[i];
    ds_status status = dsi_cuda_floating(op, y->dtype);
    if (status != DS_OK || !p.columns) return status;
    return dsi_cuda_launch(s, DSI_CUDA_softmax, kernel, dsi_cuda_suffix(y->dtype),
                           grid_of_rows(p.rows, p.team), &p);
}

ds_status dsi_cuda_softmax(dsi_stream *s, bool log, dsi_view x, dsi_view y)
{
    return softmax_launch(s, log ? "log_softmax" : "softmax", "softmax", log, &x, NULL, &y);
}

ds_status dsi_cuda_softmax_dx(dsi_stream *s, bool log, dsi_view dy, dsi_view y, dsi_view dx)
{
    return softmax_launch(s, log ? "log_softmax_dx" : "softmax_dx", "softmax_dx", log, &dy, &y,
                          &dx);
}

/* ---- cross entropy ---- */

/* loss: or its gradient; one number unless the reduction is NONE */
static dsi_cuda_entropy_args entropy_args(dsi_stream *s, const dsi_cross_entropy *c,
                                          const dsi_view *x, const dsi_view *label,
                                          const dsi_view *weight, const dsi_view *loss,
                                          const dsi_view *divisor)
{
    dsi_cuda_entropy_args p = {.x = x->p,
                               .weight = weight->p,
                               .label = label->p,
                               .loss = loss->p,
                               .divisor = divisor->p,
                               .fault = dsi_cuda_fault(s),
                               .weight_s = weight->p ? weight->s[0] : 0,
                               .rows = x->d[0] * x->d[2],
                               .columns = x->d[1],
                               .ignore_index = c->ignore_index,
                               .inner = (unsigned)x->d[2],
                               .dtype = (int)x->dtype,
                               .weight_dtype = (int)weight->dtype,
                               .loss_dtype = (int)loss->dtype,
                               .stats_dtype = (int)divisor->dtype,
                               .team = team_for(x->d[1]),
                               .reduction = c->reduction,
                               .smoothing = c->smoothing};
    for (int i = 0; i < 3; i++) p.xs[i] = x->s[i];
    for (int i = 0; i < 2; i++)
        p.label_s[i] = label->s[i], p.loss_s[i] = c->reduction == NONE ? loss->s[i] : 0;
    return p;
}

/* Whether the kernels of long rows take x and, in the backward, dx. */
static bool lines_fit(const dsi_cuda_entropy_args *p, const dsi_view *x, const dsi_view *dx)
{
    int64_t vector = 16 / (int64_t)ds_dtype_size(x->dtype);
    bool fits = x->dtype != DS_F64 && p->stats_dtype == DS_F32 && p->columns > LONG &&
                p->inner == 1 && !p->weight && p->smoothing == 0;
    for (int i = 0; i < 2 && fits; i++) {
        const dsi_view *v = i ? dx : x;
        fits = v->s[1] == 1 && v->s[0] % vector == 0 && (uintptr_t)v->p % 16 == 0;
    }
    return fits;
}

/* The loss and weight of each row. */
static ds_status entropy_rows(dsi_stream *s, const dsi_cuda_entropy_args *p, const dsi_view *x)
{
    if (lines_fit(p, x, x))
        return dsi_cuda_launch(s, DSI_CUDA_softmax, "entropy_lines",
                               dsi_cuda_dtype_suffix(x->dtype), dsi_cuda_blocks(p->rows, LINE), p);
    return dsi_cuda_launch(s, DSI_CUDA_softmax, "entropy_rows", dsi_cuda_suffix(x->dtype),
                           grid_of_rows(p->rows, p->team), p);
}

/* Few enough for the lanes of a warp, and nothing but losses to add. */
static bool has_lanes(const dsi_cuda_entropy_args *p)
{
    return p->rows <= K_FEW_ROWS && p->columns <= 32 && !p->weight && p->smoothing == 0 &&
           p->dtype != DS_F64 && p->loss_dtype == DS_F32 && p->stats_dtype == DS_F32;
}

/* Rows write loss and weight to scratch (NONE: to loss), then one block writes
 * divisor and, except for NONE, loss: of few rows the same one, else a second
 * kernel. It runs for NONE and for no rows too: divisor must have a value. */
ds_status dsi_cuda_cross_entropy(dsi_stream *s, const dsi_cross_entropy *c, dsi_view x,
                                 dsi_view label, dsi_view weight, dsi_view loss, dsi_view lse,
                                 dsi_view divisor)
{
    dsi_cuda_entropy_args p = entropy_args(s, c, &x, &label, &weight, &loss, &divisor);
    size_t bytes = (size_t)p.rows * 2 * sizeof *p.part;
    const char *suffix = dsi_cuda_suffix(x.dtype);
    ds_status status = dsi_cuda_floating("cross_entropy", x.dtype);
    if (status != DS_OK) return status;
    if (!p.columns) return dsi_fail(DS_EINVAL, "cross_entropy: x has no classes");
    for (int i = 0; i < 2; i++) p.lse_s[i] = lse.s[i];
    p.lse = lse.p;
    bool held = c->reduction != NONE && p.rows;
    p.lanes = held && has_lanes(&p);
    bool parts = held && !p.lanes;
    if (parts && !(p.part = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    if (p.rows <= K_FEW_ROWS && p.team == 32) {
        dsi_cuda_grid grid = dsi_cuda_blocks(1, K_FEW_THREADS);
        status = held ? dsi_cuda_hold_entropy(s, grid, &p)
                      : dsi_cuda_launch(s, DSI_CUDA_softmax, "entropy_few", suffix, grid, &p);
    } else {
        status = entropy_rows(s, &p, &x);
        if (status == DS_OK)
            status = dsi_cuda_launch(s, DSI_CUDA_softmax, "entropy_sum", "",
                                     dsi_cuda_blocks(1, 256), &p);
    }
    if (parts) dsi_cuda_scratch_free(s, p.part, bytes);
    return status;
}

/* lse is not read but of long rows in 16 bits: exp(x - lse) would lose the digits
 * that x has before the point; the kernel computes maximum and sum again. */
ds_status dsi_cuda_cross_entropy_dx(dsi_stream *s, const dsi_cross_entropy *c, dsi_view dloss,
                                    dsi_view x, dsi_view label, dsi_view weight, dsi_view lse,
                                    dsi_view divisor, dsi_view dx)
{
    dsi_cuda_entropy_args p = entropy_args(s, c, &x, &label, &weight, &dloss, &divisor);
    ds_status status = dsi_cuda_floating("cross_entropy_dx", x.dtype);
    p.dx = dx.p, p.lse = lse.p;
    for (int i = 0; i < 3; i++) p.dxs[i] = dx.s[i];
    for (int i = 0; i < 2; i++) p.lse_s[i] = lse.s[i];
    if (status != DS_OK || dsi_cuda_held_entropy_dx(s, &p, &status)) return status;
    if (lines_fit(&p, &x, &dx))
        return dsi_cuda_launch(s, DSI_CUDA_softmax, "entropy_lines_dx",
                               dsi_cuda_dtype_suffix(x.dtype), dsi_cuda_blocks(p.rows, LINE), &p);
    return dsi_cuda_launch(s, DSI_CUDA_softmax, "entropy_dx", dsi_cuda_suffix(x.dtype),
                           grid_of_rows(p.rows, p.team), &p);
}

ds_status dsi_cuda_cross_entropy_part_dx(dsi_stream *s, int64_t first, dsi_view x, dsi_view label,
                                         dsi_view lse, dsi_view scale, dsi_view dx)
{
    uintptr_t places = (uintptr_t)x.p | (uintptr_t)dx.p;
    bool vectors = x.s[0] % K_PART == 0 && dx.s[0] % K_PART == 0 && places % 16 == 0;
    dsi_cuda_entropy_part_args p = {.x = x.p,
                                    .lse = lse.p,
                                    .scale = scale.p,
                                    .label = label.p,
                                    .dx = dx.p,
                                    .x_s = x.s[0],
                                    .dx_s = dx.s[0],
                                    .label_s = label.s[0],
                                    .lse_s = lse.s[0],
                                    .scale_s = scale.s[0],
                                    .rows = x.d[0],
                                    .columns = x.d[1],
                                    .first = first,
                                    .dtype = (int)x.dtype,
                                    .dx_dtype = (int)dx.dtype,
                                    .vectors = vectors};
    ds_status status = dsi_cuda_floating("cross_entropy_part_dx", x.dtype);
    if (status != DS_OK) return status;
    dsi_cuda_grid grid = dsi_cuda_blocks((p.columns + LINE * K_PART - 1) / (LINE * K_PART), LINE);
    grid.blocks[1] = dsi_cuda_loops(p.rows);
    return dsi_cuda_launch(s, DSI_CUDA_softmax, "entropy_part_dx", dsi_cuda_suffix(x.dtype), grid,
                           &p);
}
