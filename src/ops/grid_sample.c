/* ops/grid_sample.c: images at given coordinates, and grids of them.
 *
 *     y[n,c,p,q] = sum over the 4 elements around grid[n,p,q] of weight x[n,c,element]
 * A weight is (1 - |distance in columns|) (1 - |distance in rows|), 0 for an
 * element beyond the image. Made of gathers; the weights carry the grid's
 * gradient. 16-bit operands are computed in float32, and the result is rounded
 * once.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <math.h>

/* v mirrored at low and at high until it is between them; torch's
 * reflect_coordinates. 0 for infinite ones, as by torch's CPU kernels. */
static ds_tensor *reflected(ds_tensor *v, double low, double high)
{
    double span = high - low;
    if (!(span > 0)) return ds_scale(v, 0);
    v = ds_abs(ds_shift(v, -low));
    ds_tensor *flips = ds_floor(ds_scale(v, 1 / span));
    ds_tensor *rest = ds_sub(v, ds_scale(flips, span));
    ds_tensor *odd = ds_sub(flips, ds_scale(ds_floor(ds_scale(flips, 0.5)), 2));
    v = ds_add(rest, ds_mul(odd, ds_shift(ds_scale(rest, -2), span)));
    v = ds_shift(v, low);
    return v ? ds_masked_fill(v, ds_ne(v, v), 0) : NULL;
}

/* Places along a dimension of `size` elements, 0 to size - 1 if inside, of
 * coordinates [N,P,Q] of -1 to 1. */
static ds_tensor *places(ds_tensor *grid, int which, int64_t size, ds_grid_sample_opts o)
{
    ds_tensor *v = ds_select(grid, -1, which);
    double n = (double)size;
    v = o.align_corners ? ds_scale(ds_shift(v, 1), (n - 1) / 2)
                        : ds_shift(ds_scale(ds_shift(v, 1), n / 2), -0.5);
    if (o.padding_mode == DS_GRID_REFLECTION)
        v = o.align_corners ? reflected(v, 0, n - 1) : reflected(v, -0.5, n - 0.5);
    if (o.padding_mode != DS_GRID_ZEROS) v = ds_clamp(v, 0, n - 1);
    return v;
}

/* v, places of a neighbour in whole numbers, moved inside of 0 to size - 1;
 * *weight becomes 0 where it was not. */
static ds_tensor *inside(ds_tensor *v, int64_t size, ds_tensor **weight)
{
    double last = (double)(size - 1);
    if (!v) return NULL;
    ds_tensor *outside = ds_logical_or(ds_lt(v, dsi_number_beside(v, 0)),
                                       ds_gt(v, dsi_number_beside(v, last)));
    *weight = ds_masked_fill(*weight, outside, 0);
    return ds_clamp(v, 0, last);
}

/* x [N,C,H W] at rows and columns [N,P,Q], whole numbers, times weight [N,P,Q]:
 * [N,C,P Q] */
static ds_tensor *sampled(ds_tensor *x, ds_tensor *row, ds_tensor *column, ds_tensor *weight,
                          int64_t h, int64_t w)
{
    row = inside(row, h, &weight), column = inside(column, w, &weight);
    ds_tensor *r = ds_cast(row, DS_I64), *c = ds_cast(column, DS_I64);
    if (!r || !c || !weight) return NULL;
    ds_tensor *width = dsi_number_beside(r, (double)w), *at = ds_add(ds_mul(r, width), c);
    if (!at) return NULL;
    int64_t n = x->shape.d[0], channels = x->shape.d[1], points = at->shape.d[1] * at->shape.d[2];
    at = ds_expand(ds_reshape(at, ds_shape(n, 1, points)), ds_shape(n, channels, points));
    return ds_mul(ds_gather(x, 2, at), ds_reshape(weight, ds_shape(n, 1, points)));
}

static ds_tensor *bilinear(ds_tensor *x, ds_tensor *row, ds_tensor *column, int64_t h, int64_t w)
{
    ds_tensor *r0 = ds_floor(row), *c0 = ds_floor(column), *y = NULL;
    ds_tensor *down = ds_sub(row, r0), *right = ds_sub(column, c0);
    for (int i = 0; i < 4; i++) {
        bool below = i / 2, after = i % 2;
        ds_tensor *weight = ds_mul(below ? down : ds_shift(ds_neg(down), 1),
                                   after ? right : ds_shift(ds_neg(right), 1));
        ds_tensor *one = sampled(x, ds_shift(r0, below), ds_shift(c0, after), weight, h, w);
        y = y ? ds_add(y, one) : one;
        if (!y) return NULL;
    }
    return y;
}

ds_tensor *ds_grid_sample_with(ds_tensor *x, ds_tensor *grid, ds_grid_sample_opts o)
{
    const char *op = "grid_sample";
    if (x && grid && x->dtype != grid->dtype) dsi_autocast_wide(&x, &grid); /* it promotes */
    if (!dsi_live_all(op, x, grid)) return dsi_null_operand(op);
    if (!dsi_want_float(op, x) || !dsi_same_kind(op, x, grid)) return NULL;
    const int64_t *s = x->shape.d, *g = grid->shape.d;
    if (x->shape.n != 4 || grid->shape.n != 4 || g[3] != 2 || g[0] != s[0] || !s[2] || !s[3])
        return dsi_refuse("%s: x is %s, the grid %s: expected [N,C,H,W] and [N,P,Q,2], with images "
                          "that are not empty",
                          op, dsi_shape_text(x->shape), dsi_shape_text(grid->shape));
    if ((unsigned)o.padding_mode > DS_GRID_REFLECTION)
        return dsi_refuse("%s: there is no padding mode number %d", op, (int)o.padding_mode);
    ds_dims shape = ds_shape(s[0], s[1], g[1], g[2]);
    ds_dtype dtype = x->dtype;
    ds_tensor *wide = ds_reshape(dsi_upcast(x), ds_shape(s[0], s[1], s[2] * s[3]));
    grid = dsi_upcast(grid);
    grid = grid ? ds_masked_fill(grid, ds_ne(grid, grid), -1) : NULL;
    ds_tensor *column = grid ? places(grid, 0, s[3], o) : NULL;
    ds_tensor *row = grid ? places(grid, 1, s[2], o) : NULL, *y;
    if (!wide || !row || !column) return NULL;
    if (o.nearest)
        y = sampled(wide, ds_round(row), ds_round(column), ds_like(row, 1), s[2], s[3]);
    else
        y = bilinear(wide, row, column, s[2], s[3]);
    return ds_cast(ds_reshape(y, shape), dtype);
}

ds_tensor *ds_grid_sample(ds_tensor *x, ds_tensor *grid)
{
    return ds_grid_sample_with(x, grid, (ds_grid_sample_opts){0});
}

/* The place of element i of n, -1 to 1 from edge to edge; aligned: from the
 * middle of the first one to that of the last. */
static double place(int64_t i, int64_t n, bool align_corners)
{
    if (!align_corners) return (2 * (double)i + 1) / (double)n - 1;
    return n > 1 ? 2 * (double)i / (double)(n - 1) - 1 : 0;
}

ds_tensor *ds_affine_grid(ds_tensor *theta, int64_t h, int64_t w, bool align_corners)
{
    const char *op = "affine_grid";
    if (!dsi_live(theta, op)) return dsi_null_operand(op);
    if (!dsi_want_float(op, theta)) return NULL;
    const int64_t *s = theta->shape.d;
    if (theta->shape.n != 3 || s[1] != 2 || s[2] != 3)
        return dsi_refuse("%s: theta is %s: expected [N,2,3]", op, dsi_shape_text(theta->shape));
    if (!dsi_want_sizes(op, ds_shape(h, w), 1)) return NULL;
    ds_tensor *base = dsi_new_host(DS_F64, ds_shape(h * w, 3));
    double *at = ds_data_mut(base);
    for (int64_t i = 0; at && i < h * w; i++, at += 3)
        at[0] = place(i % w, w, align_corners), at[1] = place(i / w, h, align_corners), at[2] = 1;
    ds_tensor *wide = dsi_upcast(theta);
    if (!base || !wide) return NULL;
    base = dsi_beside(base, theta, wide->dtype);
    ds_dtype cast = ds_set_autocast(DS_F32);
    ds_tensor *grid = ds_matmul(base, ds_transpose(wide, 1, 2)); /* [N,h w,2] */
    ds_set_autocast(cast);
    return ds_cast(ds_reshape(grid, ds_shape(s[0], h, w, 2)), theta->dtype);
}
