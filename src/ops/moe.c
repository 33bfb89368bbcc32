/* ops/moe.c: tokens to slots of experts and back, for a mixture of experts.
 *
 * x [S,D] tokens; slots int64 [S,k]: for each of a token's k experts the row of
 * the experts' input, or < 0 if the token was dropped; no slot occurs twice.
 * dispatch  y[slot[s,j],:] = x[s,:],                   dx[s,:] = sum over j of dy[slot[s,j],:]
 * combine   y[s,:] = sum over j of w[s,j] x[slot[s,j],:],  dx[slot[s,j],:] = w[s,j] dy[s,:],
 *                                                      dw[s,j] = dy[s,:] . x[slot[s,j],:]
 * Each is the other's backward, so both cost as much as copying the rows.
 * GShard (arXiv:2006.16668) and DeepSpeed's first versions multiply by one-hot
 * matrices
 * [S,E,C] instead.
 * SPDX-License-Identifier: MIT */
#include "route.h"

#include "op.h"

#include "base/mem.h"

/* True if x is [S,D] and slots are int64 [S,k]: on x's device, or in the host's
 * memory. */
static bool want_rows(const char *op, const ds_tensor *x, const ds_tensor *slots)
{
    if (!dsi_want_float(op, x)) return false;
    if (slots->device->type->kind != DS_CPU && !dsi_same_device(op, x, slots)) return false;
    if (x->shape.n == 2 && slots->shape.n == 2 && slots->dtype == DS_I64) return true;
    return dsi_refuse("%s: x is %s, slots are %s %s: expected [rows,D] and int64 [tokens,k]", op,
                      dsi_shape_text(x->shape), ds_dtype_name(slots->dtype),
                      dsi_shape_text(slots->shape));
}

/* True if each slot is below `rows`, and none >= 0 occurs twice. Reads slots on
 * the host, because kernels write rows without regard for each other. */
static bool slots_fit(const char *op, ds_tensor *slots, int64_t rows)
{
    const int64_t *slot = ds_data(slots);
    if (!slot && dsi_numel(slots->shape)) return false;
    ds_tensor *mask = dsi_fill(dsi_new_host(DS_BOOL, ds_shape(rows ? rows : 1)), 0);
    bool *taken = mask ? ds_data_mut(mask) : NULL, fits = taken;
    for (int64_t i = 0, n = dsi_numel(slots->shape); slot && fits && i < n; i++) {
        if (slot[i] < 0) continue;
        fits = slot[i] < rows && !taken[slot[i]];
        if (!fits)
            dsi_refuse("%s: slot %lld of token %lld is %s", op, (long long)slot[i],
                       (long long)(i / slots->shape.d[1]),
                       slot[i] < rows ? "given twice" : "outside of the rows");
        else
            taken[slot[i]] = true;
    }
    return fits;
}

/* slots on x's device: kernels read them there. */
static ds_tensor *slots_beside(const ds_tensor *x, ds_tensor *slots)
{
    return dsi_beside(slots, x, DS_I64);
}

/* ---- dispatch ---------------------------------------------------------------------------------------- */

/* Saved: slots. dx is combine(dy) with weights of 1. A token's gradient is the
 * sum over its slots; dropped ones add nothing. */
static void dispatch_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *slots = dsi_saved_tensor(n, 0), *g = ds_contiguous(dy);
    ds_tensor *dx = dsi_new(dy, ds_shape(slots->shape.d[0], dy->shape.d[1]));
    bool done = dx && g && dsi_run(dx, combine, dsi_v(g), dsi_v(slots), dsi_v(NULL), dsi_v(dx));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_dispatch = {.name = "dispatch", .backward = dispatch_backward};

/* x [S,M], slots [S,k] -> [rows,M]: token s is copied to each of its slots, -1:
 * to none; rows without a token are 0. */
static ds_tensor *dispatch(ds_tensor *x, ds_tensor *slots, int64_t rows, bool made_here)
{
    if (!dsi_live_all("dispatch", x, slots)) return dsi_null_operand("dispatch");
    if (!want_rows("dispatch", x, slots)) return NULL;
    if (slots->shape.d[0] != x->shape.d[0] || rows < 0)
        return dsi_refuse("dispatch: x is %s, slots are %s, for %lld rows: expected slots for each "
                          "row of x",
                          dsi_shape_text(x->shape), dsi_shape_text(slots->shape), (long long)rows);
    if (!(x = ds_contiguous(x)) || !(slots = ds_contiguous(slots))) return NULL;
    if (!made_here && !slots_fit("dispatch", slots, rows)) return NULL;
    if (!(slots = slots_beside(x, slots)) || !dsi_acquire(x, slots)) return NULL;

    ds_tensor *y = dsi_new(x, ds_shape(rows, x->shape.d[1]));

    if (!y || !dsi_run(y, dispatch, dsi_v(x), dsi_v(slots), dsi_v(NULL), dsi_v(y))) return NULL;

    dsi_save_for_backward(dsi_record(&dsi_op_dispatch, y, x), slots);
    return y;
}

ds_tensor *ds_dispatch(ds_tensor *x, ds_tensor *slots, int64_t rows)
{
    return dispatch(x, slots, rows, false);
}
ds_tensor *dsi_dispatch_to(ds_tensor *x, ds_tensor *slots, int64_t rows)
{
    return dispatch(x, slots, rows, true);
}

/* ---- combine ----------------------------------------------------------------------------------------- */

/* Saved: slots, w (may be NULL), x if dw is needed. dx is dispatch(dy, w).
 * Attribute: x's shape, since x itself is saved only for dw. Rows of x that no
 * slot names get gradient 0. */
static void combine_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *slots = dsi_saved_tensor(n, 0), *w = dsi_saved_tensor(n, 1),
              *x = dsi_saved_tensor(n, 2);
    const ds_dims *shape = dsi_attr(n);
    ds_tensor *g = ds_contiguous(dy);
    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *dx = dsi_new(dy, *shape);
        bool done = dx && g && dsi_run(dx, dispatch, dsi_v(g), dsi_v(slots), dsi_v(w), dsi_v(dx));
        dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    }
    if (dsi_needs_input_grad(n, 1)) {
        ds_tensor *dw = dsi_new(w, slots->shape);
        bool done = dw && g && dsi_run(dw, combine_dw, dsi_v(g), dsi_v(x), dsi_v(slots), dsi_v(dw));
        dsi_accumulate_grad(n, 1, dsi_result_if(done, dw));
    }
}

/* dx reads the weights, dw reads x */
const dsi_op dsi_op_combine = {"combine", combine_backward, .saved_for = {0, 1u << 0, 1u << 1}};

/* Weights are float32 beside a 16-bit x: they are probabilities of a gate,
 * which computes in float32. */
static bool want_weights(const ds_tensor *x, const ds_tensor *slots, const ds_tensor *w)
{
    ds_dtype dtype = dsi_is_16bit(x) ? DS_F32 : x->dtype;
    if (!dsi_same_device("combine", x, w)) return false;
    if (!w || (w->dtype == dtype && dsi_same_shape(w->shape, slots->shape))) return true;
    return dsi_refuse("combine: weights are %s %s: expected %s %s as the slots",
                      ds_dtype_name(w->dtype), dsi_shape_text(w->shape), ds_dtype_name(dtype),
                      dsi_shape_text(slots->shape));
}

/* x [rows,M], slots [S,k], weights [S,k] or NULL (1) -> [S,M]: the weighted sum
 * of a token's slots. The gradient of the weights is a dot product. */
static ds_tensor *combine(ds_tensor *x, ds_tensor *slots, ds_tensor *weights, bool made_here)
{
    if (!dsi_live_all("combine", x, slots)) return dsi_null_operand("combine");
    if (!want_rows("combine", x, slots) || !want_weights(x, slots, weights)) return NULL;
    if (!(x = ds_contiguous(x)) || !(slots = ds_contiguous(slots))) return NULL;
    if (weights && !(weights = ds_contiguous(weights))) return NULL;
    if (!made_here && !slots_fit("combine", slots, x->shape.d[0])) return NULL;
    if (!(slots = slots_beside(x, slots)) || !dsi_acquire(x, slots, weights)) return NULL;

    ds_tensor *y = dsi_new(x, ds_shape(slots->shape.d[0], x->shape.d[1]));

    if (!y || !dsi_run(y, combine, dsi_v(x), dsi_v(slots), dsi_v(weights), dsi_v(y))) return NULL;

    dsi_node *n = dsi_record(&dsi_op_combine, y, x, weights);
    dsi_save_for_backward(n, slots), dsi_save_for_backward(n, weights),
        dsi_set_attr(n, &x->shape, sizeof x->shape);
    if (n && dsi_needs_input_grad(n, 1)) dsi_save_for_backward(n, x);
    return y;
}

ds_tensor *ds_combine(ds_tensor *x, ds_tensor *slots, ds_tensor *weights)
{
    return combine(x, slots, weights, false);
}
ds_tensor *dsi_combine_from(ds_tensor *x, ds_tensor *slots, ds_tensor *weights)
{
    return combine(x, slots, weights, true);
}
