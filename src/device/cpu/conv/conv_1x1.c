/* device/cpu/conv/conv_1x1.c: 1x1 convolutions without padding, as matrix
 * products.
 *
 * A 1x1 kernel combines the channels of each pixel separately:
 *
 *     y [pixels, K] = x [pixels, C] w^T + bias
 *     dx [pixels, C] = dy [pixels, K] w
 *     dw [K, C] = dy^T x
 *
 * If the pixels of a sample, or of all samples, have one stride in memory, that
 * is one call of matmul. A convolution with a stride reads every stride-th
 * pixel; these are copied first if they have no single stride.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "device/cpu/gemm/gemm_bf16.h"
#include "device/cpu/table.h"

static bool is_point(const dsi_conv2d *c, const dsi_view *w)
{
    return c->groups == 1 && w->d[2] == 1 && w->d[3] == 1 && !c->padding[0] && !c->padding[1];
}

/* *m = v as a matrix with one row a pixel: [1, N H W, C], or [N, H W, C] if the
 * next sample does not continue the stride. False if not even the pixels of a
 * sample have one stride. */
static bool matrix_of(const dsi_view *v, dsi_view *m)
{
    int64_t pixels = v->d[2] * v->d[3], step = v->d[3] > 1 ? v->s[3] : v->s[2];
    if (v->d[2] > 1 && v->s[2] != v->d[3] * step) return false;
    *m = (dsi_view){v->p, v->dtype, 3, {v->d[0], pixels, v->d[1]}, {v->s[0], step, v->s[1]}};
    if (v->s[0] == pixels * step) m->d[0] = 1, m->d[1] = v->d[0] * pixels, m->s[0] = 0;
    return true;
}

/* Splits m [1, N H W, C] into [N, H W, C], for a product with an operand that
 * has one matrix a sample. */
static void by_samples(dsi_view *m, const dsi_view *y)
{
    int64_t pixels = y->d[2] * y->d[3];
    if (m->d[0] == 1) m->s[0] = pixels * m->s[1];
    m->d[0] = y->d[0], m->d[1] = pixels;
}

/* w [K,C,1,1] as [batch, K, C], the same for each */
static dsi_view weights_of(const dsi_view *w, int64_t batch)
{
    return (dsi_view){w->p, w->dtype, 3, {batch, w->d[0], w->d[1]}, {0, w->s[0], w->s[1]}};
}

/* Every stride-th pixel of x. */
static dsi_view strided(const dsi_conv2d *c, dsi_view x, const dsi_view *y)
{
    for (int i = 0; i < 2; i++) x.d[2 + i] = y->d[2 + i], x.s[2 + i] *= c->stride[i];
    return x;
}

/* A view of v's shape in pixel order in scratch memory, not filled; its p is
 * NULL without memory. The caller releases p. */
static dsi_view dense_like(dsi_stream *s, dsi_view v)
{
    v = pixel_strides(v);
    v.p = dsi_scratch(s, (size_t)view_numel(&v) * sizeof(float));
    return v;
}

/* *m = a copy of x as a matrix; the caller releases copy->p. */
static ds_status copied_matrix(dsi_stream *s, const dsi_view *x, dsi_view *copy, dsi_view *m)
{
    *copy = dense_like(s, *x);
    matrix_of(copy, m);
    return copy->p ? KERNEL(copy)(s, *x, *copy) : DS_ENOMEM;
}

bool point_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                   dsi_view y, ds_status *status)
{
    dsi_view a = {0}, to = {0}, copy = {0}, seen = strided(c, x, &y);
    if (!is_point(c, &w) || !matrix_of(&y, &to)) return false;
    *status = matrix_of(&seen, &a) ? DS_OK : copied_matrix(s, &seen, &copy, &a);
    if (a.d[0] != to.d[0]) by_samples(&a, &y), by_samples(&to, &y);
    if (!*status) *status = KERNEL(matmul)(s, a, view_transposed(weights_of(&w, a.d[0])), b, to);
    dsi_scratch_release(s, copy.p);
    return true;
}

bool point_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
              ds_status *status)
{
    dsi_view g = {0}, to = {0}, seen = strided(c, dx, &dy), copy = {0};
    bool all = dx.d[2] == dy.d[2] && dx.d[3] == dy.d[3];
    if (!is_point(c, &w) || !matrix_of(&dy, &g)) return false;
    *status = all ? DS_OK : KERNEL(fill)(s, 0, dx);
    if (!matrix_of(&seen, &to)) {
        copy = dense_like(s, seen);
        if (!copy.p) *status = DS_ENOMEM;
        matrix_of(&copy, &to);
    }
    if (g.d[0] != to.d[0]) by_samples(&g, &dy), by_samples(&to, &dy);
    if (!*status) *status = KERNEL(matmul)(s, g, weights_of(&w, g.d[0]), (dsi_view){0}, to);
    if (!*status && copy.p) *status = KERNEL(copy)(s, copy, seen);
    dsi_scratch_release(s, copy.p);
    return true;
}

/* Only if all pixels are one matrix: otherwise each sample would be a product
 * of its own, and their sums would pass through memory. */
bool point_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
              ds_status *status)
{
    dsi_view g = {0}, a = {0}, copy = {0}, seen = strided(c, x, &dy);
    if (!is_point(c, &dw) || !matrix_of(&dy, &g) || g.d[0] != 1) return false;
    bool one = matrix_of(&seen, &a) && a.d[0] == 1;
    *status = one ? DS_OK : copied_matrix(s, &seen, &copy, &a);
    if (!*status)
        *status = KERNEL(matmul)(s, view_transposed(g), a, (dsi_view){0}, weights_of(&dw, 1));
    dsi_scratch_release(s, copy.p);
    return true;
}
