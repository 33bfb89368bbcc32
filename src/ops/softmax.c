/* ops/softmax.c: softmax and its logarithm over one dimension.
 *
 * softmax      y = exp(x - max) / sum exp(x - max),  dx = y (dy - sum(dy y))
 * log_softmax  y = x - max - log sum exp(x - max),   dx = dy - exp(y) sum(dy)
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* The backward of both. Saved: y. Attribute: dim. Neither needs x: exp(y) is
 * the softmax of log_softmax, and y itself that of softmax. */
static void softmax_dx(dsi_node *n, ds_tensor *dy, bool log)
{
    int dim = *(const int *)dsi_attr(n);
    ds_tensor *y = dsi_saved_tensor(n, 0), *dx = dsi_new(y, y->shape), *g = ds_contiguous(dy);
    bool done = dx && g &&
                dsi_run(dx, softmax_dx, log, dsi_v_around(g, dim), dsi_v_around(y, dim),
                        dsi_v_around(dx, dim));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

static void softmax_backward(dsi_node *n, ds_tensor *dy) { softmax_dx(n, dy, false); }
static void log_softmax_backward(dsi_node *n, ds_tensor *dy) { softmax_dx(n, dy, true); }

const dsi_op dsi_op_softmax = {.name = "softmax", .backward = softmax_backward};
const dsi_op dsi_op_log_softmax = {.name = "log_softmax", .backward = log_softmax_backward};

/* Both ops over dimension dim, by one kernel that sees x as [outer, C, inner]. */
static ds_tensor *softmax(const dsi_op *op, ds_tensor *x, int dim, bool log)
{
    dsi_autocast_wide(&x);
    if (!dsi_live(x, op->name)) return dsi_null_operand(op->name);
    if (!dsi_want_float(op->name, x) || (dim = dsi_want_dim(op->name, x, dim)) < 0) return NULL;
    if (!(x = ds_contiguous(x)) || !dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new(x, x->shape);

    if (!y || !dsi_run_named(y, op->name, kernels, softmax, log, dsi_v_around(x, dim),
                             dsi_v_around(y, dim)))
        return NULL;

    if (!log) dsi_cost_elements(x, 1);

    dsi_node *n = dsi_record(op, y, x);
    dsi_save_for_backward(n, y), dsi_set_attr(n, &dim, sizeof dim);
    return y;
}

/* dim may be negative. The largest element is subtracted before exp, so no
 * finite x overflows; the result does not depend on it. */
ds_tensor *ds_softmax(ds_tensor *x, int dim) { return softmax(&dsi_op_softmax, x, dim, false); }
ds_tensor *ds_log_softmax(ds_tensor *x, int dim)
{
    return softmax(&dsi_op_log_softmax, x, dim, true);
}
