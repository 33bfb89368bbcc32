/* ops/products.c: products of matrices and rows that torch has beside matmul:
 * Kronecker's, of chosen dimensions, powers, distances of rows, covariances;
 * quarter turns and the places of triangles. Made of other ops.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

#include <deepspeed/ops_math.h>

#include <math.h>

/* ---- products ---------------------------------------------------------------------------------------- */

/* a as [a0,1,a1,1,...] times b as [1,b0,1,b1,...]. */
ds_tensor *ds_kron(ds_tensor *a, ds_tensor *b)
{
    if (!dsi_live_all("kron", a, b)) return dsi_null_operand("kron");
    int n = a->shape.n > b->shape.n ? a->shape.n : b->shape.n;
    if (2 * n > DS_MAX_DIMS)
        return dsi_refuse("kron: a is %s, b %s: expected at most %d dimensions",
                          dsi_shape_text(a->shape), dsi_shape_text(b->shape), DS_MAX_DIMS / 2);
    ds_dims left = {.n = 2 * n}, right = {.n = 2 * n}, shape = {.n = n};
    for (int i = 0; i < n; i++) {
        int ia = i - n + a->shape.n, ib = i - n + b->shape.n;
        int64_t da = ia < 0 ? 1 : a->shape.d[ia], db = ib < 0 ? 1 : b->shape.d[ib];
        left.d[2 * i] = da, left.d[2 * i + 1] = 1;
        right.d[2 * i] = 1, right.d[2 * i + 1] = db;
        shape.d[i] = da * db;
    }
    return ds_reshape(ds_mul(ds_reshape(a, left), ds_reshape(b, right)), shape);
}

/* x as a matrix of the dimensions that stay and those that are summed, in this
 * order if `behind`; *kept becomes the sizes that stay. */
static ds_tensor *as_matrix(ds_tensor *x, unsigned summed, ds_dims dims, bool behind, ds_dims *kept)
{
    ds_dims order = {0};
    int64_t rows = 1, columns = 1;
    kept->n = 0;
    if (!behind) order = dims;
    for (int i = 0; i < x->shape.n; i++) {
        if (summed >> i & 1) continue;
        order.d[order.n++] = i, kept->d[kept->n++] = x->shape.d[i], rows *= x->shape.d[i];
    }
    for (int i = 0; i < dims.n; i++) {
        columns *= x->shape.d[dims.d[i]];
        if (behind) order.d[order.n++] = dims.d[i];
    }
    ds_dims shape = behind ? ds_shape(rows, columns) : ds_shape(columns, rows);
    return ds_reshape(x->shape.n ? ds_permute(x, order) : x, shape);
}

/* Counts dims from the front, and notes them in *summed, where none is no
 * dimension. */
static bool tensordot_dims(const ds_tensor *x, ds_dims *dims, unsigned *summed)
{
    *summed = 0;
    if (!dims->n) return true;
    if (!dsi_want_dims("tensordot", x, *dims, summed)) return false;
    for (int i = 0; i < dims->n; i++)
        if (dims->d[i] < 0) dims->d[i] += x->shape.n;
    return true;
}

ds_tensor *ds_tensordot(ds_tensor *a, ds_tensor *b, ds_dims dims_a, ds_dims dims_b)
{
    const char *op = "tensordot";
    unsigned in_a, in_b;
    ds_dims left, right;
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    if (!tensordot_dims(a, &dims_a, &in_a) || !tensordot_dims(b, &dims_b, &in_b)) return NULL;
    bool fits = dims_a.n == dims_b.n && a->shape.n + b->shape.n - 2 * dims_a.n <= DS_MAX_DIMS;
    for (int i = 0; i < dims_a.n && fits; i++)
        fits = a->shape.d[dims_a.d[i]] == b->shape.d[dims_b.d[i]];
    if (!fits)
        return dsi_refuse("%s: a is %s in dimensions %s, b %s in %s: expected equal sizes, and a "
                          "result of at most %d dimensions",
                          op, dsi_shape_text(a->shape), dsi_shape_text(dims_a),
                          dsi_shape_text(b->shape), dsi_shape_text(dims_b), DS_MAX_DIMS);
    a = as_matrix(a, in_a, dims_a, true, &left), b = as_matrix(b, in_b, dims_b, false, &right);
    ds_tensor *y = a && b ? ds_matmul(a, b) : NULL;
    if (!y) return dsi_fail_in(op, ds_error_status()), NULL;
    for (int i = 0; i < right.n; i++) left.d[left.n++] = right.d[i];
    return ds_reshape(y, left);
}

ds_tensor *ds_vander(ds_tensor *x, int64_t n, bool increasing)
{
    if (!dsi_live(x, "vander")) return dsi_null_operand("vander");
    if (x->shape.n != 1 || n < 0)
        return dsi_refuse("vander: x is %s, n is %lld: expected [K], 0 or more",
                          dsi_shape_text(x->shape), (long long)n);
    int64_t size = x->shape.d[0];
    ds_dtype dtype = dsi_is_float(x) ? x->dtype : DS_I64;
    if (!n) return dsi_new_dtype(x, dtype, ds_shape(size, 0));
    ds_tensor *ones = dsi_fill(dsi_new_dtype(x, dtype, ds_shape(size, 1)), 1);
    ds_tensor *column = ds_reshape(ds_cast(x, dtype), ds_shape(size, 1));
    ds_tensor *rest = ds_cumprod(ds_expand(column, ds_shape(size, n - 1)), 1);
    ds_tensor *y = ds_cat((ds_tensor *[]){ones, rest}, 2, 1);
    return increasing ? y : ds_flip(y, ds_shape(1));
}

/* ---- distances of rows ------------------------------------------------------------------------------- */

#define DIRECT 25 /* rows up to which torch too subtracts each pair */

/* The roots of |a|^2 + |b|^2 - 2 a b, with the gradient 0 at 0. */
static ds_tensor *euclidean(ds_tensor *a, ds_tensor *b)
{
    ds_reduce_opts rows = {.dims = ds_shape(-1), .keepdim = true};
    ds_tensor *aa = ds_sum_with(ds_mul(a, a), rows), *bb = ds_sum_with(ds_mul(b, b), rows);
    ds_tensor *ab = ds_matmul(a, ds_transpose(b, -1, -2));
    ds_tensor *square = ds_add_scaled(ds_add(aa, ds_transpose(bb, -1, -2)), ab, -2);
    ds_tensor *zero = square ? dsi_number_beside(square, 0) : NULL, *none = ds_le(square, zero);
    return ds_where(none, zero, ds_sqrt(ds_masked_fill(square, none, 1)));
}

ds_tensor *ds_cdist(ds_tensor *a, ds_tensor *b, double p)
{
    ds_dims x, y, lead;
    dsi_autocast_wide(&a, &b);
    if (!dsi_live_all("cdist", a, b)) return dsi_null_operand("cdist");
    p = dsi_option(p, 2);
    if (!dsi_want_float("cdist", a) || !dsi_same_kind("cdist", a, b)) return NULL;
    x = a->shape, y = b->shape;
    if (x.n < 2 || y.n < 2 || x.d[x.n - 1] != y.d[y.n - 1] || x.n >= DS_MAX_DIMS ||
        y.n >= DS_MAX_DIMS || !(p >= 0))
        return dsi_refuse("cdist: a is %s, b %s, p %g: expected [...,P,M] and [...,R,M], p from 0",
                          dsi_shape_text(x), dsi_shape_text(y), p);
    x.n -= 2, y.n -= 2;
    if (!dsi_broadcast("cdist", x, y, &lead)) return NULL;
    ds_tensor *left = dsi_upcast(a), *right = dsi_upcast(b);
    ds_tensor *d;
    if (p == 2 && (x.d[x.n] > DIRECT || y.d[y.n] > DIRECT)) {
        d = euclidean(left, right);
    } else {
        d = ds_sub(ds_unsqueeze(left, -2), ds_unsqueeze(right, -3));
        d = ds_norm_with(d, (ds_norm_opts){.p = p ? p : DS_ZERO, .dims = ds_shape(-1)});
    }
    return d ? ds_cast(d, a->dtype) : NULL;
}

/* ---- covariances ------------------------------------------------------------------------------------- */

/* Of x [N,K] or [K]; -> [N,N] or [], in float32 or float64. */
static ds_tensor *covariances(const char *op, ds_tensor *x, double correction)
{
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if (!dsi_want_float(op, x)) return NULL;
    if (x->shape.n > 2)
        return dsi_refuse("%s: x is %s: expected [N,K] or [K]", op, dsi_shape_text(x->shape));
    ds_dims shape = {0};
    int64_t rows = x->shape.n == 2 ? x->shape.d[0] : 1;
    int64_t n = x->shape.n ? x->shape.d[x->shape.n - 1] : 1;
    if (x->shape.n == 2 && rows != 1) shape = ds_shape(rows, rows);
    ds_tensor *wide = ds_reshape(dsi_upcast(x), ds_shape(rows, n));
    ds_reduce_opts o = {.dims = ds_shape(1), .keepdim = true};
    ds_tensor *d = ds_sub(wide, ds_mean_with(wide, o));
    ds_tensor *sums = ds_matmul(d, ds_transpose(d, 0, 1));
    if (!sums) return NULL;
    ds_tensor *by = dsi_number_beside(sums, fmax((double)n - correction, 0));
    return ds_reshape(ds_div(sums, by), shape);
}

ds_tensor *ds_cov(ds_tensor *x, double correction)
{
    ds_tensor *y = covariances("cov", x, dsi_option(correction, 1));
    return y ? ds_cast(y, x->dtype) : NULL;
}

ds_tensor *ds_corrcoef(ds_tensor *x)
{
    ds_tensor *c = covariances("corrcoef", x, 1);
    if (!c) return NULL;
    if (!c->shape.n) return ds_cast(ds_div(c, c), x->dtype);
    ds_tensor *root = ds_sqrt(ds_diagonal(c, 0, 0, 1));
    ds_tensor *y = ds_div(ds_div(c, ds_unsqueeze(root, 1)), ds_unsqueeze(root, 0));
    return ds_cast(ds_clamp(y, -1, 1), x->dtype);
}

/* ---- turns and triangles ----------------------------------------------------------------------------- */

ds_tensor *ds_rot90(ds_tensor *x, int k, int dim0, int dim1)
{
    if (!dsi_live(x, "rot90")) return dsi_null_operand("rot90");
    if ((dim0 = dsi_want_dim("rot90", x, dim0)) < 0) return NULL;
    if ((dim1 = dsi_want_dim("rot90", x, dim1)) < 0) return NULL;
    if (dim0 == dim1)
        return dsi_refuse("rot90: x is %s, dim0 and dim1 are both %d: expected two dimensions",
                          dsi_shape_text(x->shape), dim0);
    switch ((k % 4 + 4) % 4) {
    case 1:
        return ds_transpose(ds_flip(x, ds_shape(dim1)), dim0, dim1);
    case 2:
        return ds_flip(x, ds_shape(dim0, dim1));
    case 3:
        return ds_transpose(ds_flip(x, ds_shape(dim0)), dim0, dim1);
    default:
        return ds_clone(x);
    }
}

/* The columns of row i below, or from, the diagonal that begins at `offset`. */
static int64_t triangle_row(int64_t i, int64_t columns, int64_t offset, bool upper, int64_t *begin)
{
    int64_t edge = i + offset + !upper;
    edge = edge < 0 ? 0 : edge > columns ? columns : edge;
    *begin = upper ? edge : 0;
    return upper ? columns : edge;
}

static ds_tensor *triangle(const char *op, int64_t rows, int64_t columns, int64_t offset,
                           bool upper)
{
    int64_t count = 0, begin;
    const int64_t most = INT32_MAX;
    if (rows < 0 || columns < 0 || rows > most || columns > most || offset < -most || offset > most)
        return dsi_refuse("%s: %lld rows, %lld columns, offset %lld: expected 0 to 2^31, and -2^31 "
                          "to 2^31",
                          op, (long long)rows, (long long)columns, (long long)offset);
    for (int64_t i = 0; i < rows; i++)
        count += triangle_row(i, columns, offset, upper, &begin) - begin;
    ds_tensor *y = dsi_new_host(DS_I64, ds_shape(2, count));
    int64_t *to = ds_data_mut(y), at = 0;
    for (int64_t i = 0; to && i < rows; i++) {
        int64_t end = triangle_row(i, columns, offset, upper, &begin);
        for (int64_t j = begin; j < end; j++, at++) to[at] = i, to[count + at] = j;
    }
    return to ? ds_to(y, ds_current_device(), DS_I64) : NULL;
}

ds_tensor *ds_tril_indices(int64_t rows, int64_t columns, int64_t offset)
{
    return triangle("tril_indices", rows, columns, offset, false);
}

ds_tensor *ds_triu_indices(int64_t rows, int64_t columns, int64_t offset)
{
    return triangle("triu_indices", rows, columns, offset, true);
}
