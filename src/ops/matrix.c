/* ops/matrix.c: small matrices, their diagonals, products of vectors, and views
 * by dimension, made of other ops.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <deepspeed/ops_math.h>

#include <math.h>

/* ---- new ones ------------------------------------------------------------------------------------------ */

/* bool [n,m]: whether j - i is k; on x's device, NULL: the current one. */
static ds_tensor *on_diagonal(const ds_tensor *x, int64_t n, int64_t m, int64_t k)
{
    ds_device d = x ? dsi_device_id(x->device) : ds_current_device();
    ds_tensor *i = ds_to(ds_arange(DS_I64, (double)k, (double)(k + n), 1), d, DS_I64);
    ds_tensor *j = ds_to(ds_arange(DS_I64, 0, (double)m, 1), d, DS_I64);
    return ds_eq(ds_unsqueeze(i, 1), ds_unsqueeze(j, 0));
}

/* Whether there is memory for [n,m], as x or, NULL, of dtype on the current
 * device: tried before the n + m places are made. False with the message. */
static bool matrix_fits(const ds_tensor *x, ds_dtype dtype, int64_t n, int64_t m)
{
    ds_dims shape = ds_shape(n, m);
    ds_scope *s = ds_scope_open();
    bool fits = x ? dsi_new(x, shape) : ds_empty(dtype, shape);
    ds_scope_close(s);
    return fits;
}

ds_tensor *ds_eye(ds_dtype dtype, int64_t n, int64_t m)
{
    if (n < 0 || m < 0)
        return dsi_refuse("eye: the shape is [%lld,%lld]: expected 0 or more", (long long)n,
                          (long long)m);
    return matrix_fits(NULL, dtype, n, m) ? ds_cast(on_diagonal(NULL, n, m, 0), dtype) : NULL;
}

/* From both ends to the middle, as torch: the last one is `end` itself. Of
 * integers both ends are integers too, and the others are cut towards 0. */
ds_tensor *ds_linspace(ds_dtype dtype, double begin, double end, int64_t steps)
{
    if (steps < 0)
        return dsi_refuse("linspace: steps is %lld: expected 0 or more", (long long)steps);
    if (dtype > DS_BF16) begin = trunc(begin), end = trunc(end);
    ds_tensor *y = dsi_new_host(DS_F64, ds_shape(steps));
    double *to = ds_data_mut(y), step = steps > 1 ? (end - begin) / (double)(steps - 1) : 0;
    if (!to) return NULL;
    for (int64_t i = 0; i < steps; i++)
        to[i] = i < steps / 2 || steps == 1 ? begin + step * (double)i
                                            : end - step * (double)(steps - 1 - i);
    return ds_to(y, ds_current_device(), dtype);
}

/* ---- diagonals ------------------------------------------------------------------------------------------ */

ds_tensor *ds_movedim(ds_tensor *x, int from, int to)
{
    ds_dims order = {0};
    if (!dsi_live(x, "movedim")) return dsi_null_operand("movedim");
    if ((from = dsi_want_dim("movedim", x, from)) < 0) return NULL;
    if ((to = dsi_want_dim("movedim", x, to)) < 0) return NULL;
    for (int i = 0; i < x->shape.n; i++) {
        if (order.n == to) order.d[order.n++] = from;
        if (i != from) order.d[order.n++] = i;
    }
    if (order.n < x->shape.n) order.d[order.n++] = from;
    return ds_permute(x, order);
}

/* The square [...,L,L] that has the diagonal as its own, then every (L+1)-th
 * element. */
ds_tensor *ds_diagonal(ds_tensor *x, int64_t offset, int dim1, int dim2)
{
    if (!dsi_live(x, "diagonal")) return dsi_null_operand("diagonal");
    if ((dim1 = dsi_want_dim("diagonal", x, dim1)) < 0) return NULL;
    if ((dim2 = dsi_want_dim("diagonal", x, dim2)) < 0) return NULL;
    if (dim1 == dim2)
        return dsi_refuse("diagonal: x is %s, dim1 and dim2 are both %d: expected two dimensions",
                          dsi_shape_text(x->shape), dim1);
    ds_tensor *y = ds_movedim(ds_movedim(x, dim1, -1), dim2 > dim1 ? dim2 - 1 : dim2, -1);
    int rows = x->shape.n - 2;
    if (offset < -x->shape.d[dim1]) offset = -x->shape.d[dim1];
    int64_t i = offset < 0 ? -offset : 0, j = offset > 0 ? offset : 0;
    int64_t n = x->shape.d[dim1] - i, m = x->shape.d[dim2] - j;
    int64_t size = n < m ? n : m;
    if (size < 0) size = 0, i = j = 0;
    y = ds_slice(ds_slice(y, rows, i, i + size), rows + 1, j, j + size);
    if (!y) return NULL;
    ds_dims shape = y->shape;
    shape.n = rows + 1, shape.d[rows] = size * size;
    ds_tensor *at = ds_arange(DS_I64, 0, (double)(size * size), (double)(size + 1));
    return ds_index_select(ds_reshape(y, shape), rows, dsi_beside(at, x, DS_I64));
}

ds_tensor *ds_diag(ds_tensor *x, int64_t k)
{
    if (!dsi_live(x, "diag")) return dsi_null_operand("diag");
    if (x->shape.n == 2) return ds_diagonal(x, k, 0, 1);
    if (x->shape.n != 1)
        return dsi_refuse("diag: x is %s: expected a vector or a matrix", dsi_shape_text(x->shape));
    if (k < -INT32_MAX || k > INT32_MAX)
        return dsi_refuse("diag: k is %lld: expected -2^31 to 2^31", (long long)k);
    int64_t size = x->shape.d[0] + (k < 0 ? -k : k);
    if (!matrix_fits(x, x->dtype, size, size)) return NULL;
    ds_tensor *row = ds_pad(x, k < 0 ? ds_shape(0, -k) : ds_shape(k, 0));
    return ds_where(on_diagonal(x, size, size, k), row, dsi_number_beside(x, 0));
}

ds_tensor *ds_trace(ds_tensor *x)
{
    if (!dsi_live(x, "trace")) return dsi_null_operand("trace");
    if (x->shape.n != 2)
        return dsi_refuse("trace: x is %s: expected a matrix", dsi_shape_text(x->shape));
    ds_tensor *sum = ds_sum(ds_diagonal(x, 0, 0, 1));
    return sum && dsi_is_float(x) ? ds_cast(sum, x->dtype) : sum; /* under autocast */
}

/* ---- vectors --------------------------------------------------------------------------------------------- */

static bool vectors(const char *op, ds_tensor *a, ds_tensor *b)
{
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    if (a->shape.n == 1 && b->shape.n == 1) return true;
    return dsi_refuse("%s: a is %s, b %s: expected vectors", op, dsi_shape_text(a->shape),
                      dsi_shape_text(b->shape));
}

ds_tensor *ds_outer(ds_tensor *a, ds_tensor *b)
{
    if (!vectors("outer", a, b)) return NULL;
    return ds_mul(ds_unsqueeze(a, 1), ds_unsqueeze(b, 0));
}

ds_tensor *ds_dot(ds_tensor *a, ds_tensor *b)
{
    if (!vectors("dot", a, b)) return NULL;
    if (a->shape.d[0] != b->shape.d[0])
        return dsi_refuse("dot: a has %lld elements, b %lld: expected as many",
                          (long long)a->shape.d[0], (long long)b->shape.d[0]);
    if (!dsi_same_kind("dot", a, b)) return NULL;
    ds_tensor *y = dsi_is_float(a) ? dsi_vecdot(dsi_upcast(a), dsi_upcast(b), 0)
                                   : ds_sum(ds_mul(a, b));
    return y ? ds_cast(y, a->dtype) : NULL;
}

int ds_unbind(ds_tensor *x, int dim, ds_tensor **out, int most)
{
    if (!dsi_live_all("unbind", x, out)) return dsi_null_operand("unbind"), 0;
    if (!x->shape.n) return dsi_refuse("unbind: x is []: expected a dimension"), 0;
    if ((dim = dsi_want_dim("unbind", x, dim)) < 0) return 0;
    if (x->shape.d[dim] > most)
        return dsi_refuse("unbind: dimension %d of x %s: expected at most %d elements", dim,
                          dsi_shape_text(x->shape), most),
               0;
    for (int64_t i = 0; i < x->shape.d[dim]; i++)
        if (!(out[i] = ds_select(x, dim, i))) return 0;
    return (int)x->shape.d[dim];
}

bool ds_meshgrid(ds_tensor **x, int n, ds_tensor **out)
{
    ds_dims shape = {.n = n};
    if (!x || !out) return dsi_null_operand("meshgrid");
    if (n < 1 || n > DS_MAX_DIMS)
        return dsi_invalid("meshgrid: %d vectors: expected 1 to %d", n, DS_MAX_DIMS);
    for (int i = 0; i < n; i++) {
        if (!dsi_live(x[i], "meshgrid")) return dsi_null_operand("meshgrid");
        if (x[i]->shape.n != 1)
            return dsi_invalid("meshgrid: vector %d is %s: expected [N]", i,
                               dsi_shape_text(x[i]->shape));
        shape.d[i] = x[i]->shape.d[0];
    }
    for (int i = 0; i < n; i++) {
        ds_dims line = {.n = n};
        for (int d = 0; d < n; d++) line.d[d] = d == i ? shape.d[d] : 1;
        if (!(out[i] = ds_expand(ds_reshape(x[i], line), shape))) return false;
    }
    return true;
}
