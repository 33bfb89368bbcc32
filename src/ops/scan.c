/* ops/scan.c: running sums and products along a dimension.
 *
 * y[k] = sum over j <= k of x[j], dx[j] = sum over k >= j of dy[k]
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* Elements begin .. begin + n - 1 of dimension 1 of v [outer,C,inner]. */
static dsi_view scan_part(dsi_view v, int64_t begin, int64_t n)
{
    v.p = (char *)v.p + begin * v.s[1] * (int64_t)ds_dtype_size(v.dtype);
    v.d[1] = n;
    return v;
}

/* y = the running sums, by log2 C additions of y to itself, 1, 2, 4, ... places
 * further. */
static bool scan_by_doubling(bool reverse, dsi_view from, ds_tensor *y, dsi_view to)
{
    int64_t size = from.d[1];
    ds_tensor *other = dsi_new(y, y->shape);
    dsi_view t = other ? dsi_v_shape(other, (ds_dims){3, {to.d[0], to.d[1], to.d[2]}}) : to;
    bool done = other && dsi_run(y, copy, from, to);
    for (int64_t step = 1; step < size && done; step *= 2) {
        int64_t n = size - step;
        dsi_view near = scan_part(to, reverse ? step : 0, n), held = scan_part(t, 0, n),
                 far = scan_part(to, reverse ? 0 : step, n);
        done = dsi_run(y, copy, near, held) && dsi_run_op(y, binary, DSI_ADD, 1.0, far, held, far);
    }
    return done;
}

/* Running sums of contiguous x along dim, from the end if reverse. */
static ds_tensor *scan(ds_tensor *x, int dim, bool reverse)
{
    if (!x || !dsi_acquire(x)) return NULL;
    ds_tensor *y = dsi_new(x, x->shape);
    if (!y) return NULL;
    dsi_view from = dsi_v_around(x, dim), to = dsi_v_around(y, dim);
    bool done = dsi_fusion(y->device, cumsum) ? dsi_run_fusion(y, cumsum, reverse, from, to)
                                              : scan_by_doubling(reverse, from, y, to);
    return dsi_result_if(done, y);
}

static void cumsum_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_accumulate_grad(n, 0, scan(ds_contiguous(dy), *(const int *)dsi_attr(n), true));
}

const dsi_op dsi_op_cumsum = {.name = "cumsum", .backward = cumsum_backward};

/* Integers and bools in int64; 16 bits in float32, rounded once. */
ds_tensor *ds_cumsum(ds_tensor *x, int dim)
{
    dsi_autocast_wide(&x);
    if (!dsi_live(x, "cumsum")) return dsi_null_operand("cumsum");
    if ((dim = dsi_want_dim("cumsum", x, dim)) < 0) return NULL;
    if (dsi_is_16bit(x)) return ds_cast(ds_cumsum(ds_cast(x, DS_F32), dim), x->dtype);
    if (!dsi_is_float(x)) return scan(ds_contiguous(ds_cast(x, DS_I64)), dim, false);
    if (!(x = ds_contiguous(x))) return NULL;

    ds_tensor *y = scan(x, dim, false);

    dsi_set_attr(dsi_record(&dsi_op_cumsum, y, x), &dim, sizeof dim);
    return y;
}

/* Element k times element k - step, for step = 1, 2, 4, ...: made of other ops,
 * whose gradients do not divide by x. */
ds_tensor *ds_cumprod(ds_tensor *x, int dim)
{
    dsi_autocast_wide(&x);
    if (!dsi_live(x, "cumprod")) return dsi_null_operand("cumprod");
    if ((dim = dsi_want_dim("cumprod", x, dim)) < 0) return NULL;
    ds_dtype dtype = dsi_is_float(x) ? x->dtype : DS_I64;
    int64_t size = x->shape.n ? x->shape.d[dim] : 1;
    x = dsi_is_float(x) ? dsi_upcast(x) : ds_cast(x, DS_I64);
    for (int64_t step = 1; step < size && x; step *= 2) {
        ds_tensor *rest = ds_mul(ds_slice(x, dim, step, size), ds_slice(x, dim, 0, size - step));
        x = ds_cat((ds_tensor *[]){ds_slice(x, dim, 0, step), rest}, 2, dim);
    }
    return x ? ds_cast(x, dtype) : NULL;
}
