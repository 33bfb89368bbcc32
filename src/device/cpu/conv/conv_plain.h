/* device/cpu/conv/conv_plain.h: convolution of float64 by plain loops, for
 * gradient checks.
 *
 * Any shape, any strides, and one thread. The loops follow the formula of
 * conv.h: n, k, p, q count outputs; i, r, s count taps. Gradients are added
 * output by output, so that the dense and the pooled form differ only in the
 * outputs that they visit.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/table.h"

#define AT4(v, i0, i1, i2, i3) \
    ((double *)(v)->p)[(i0) * (v)->s[0] + (i1) * (v)->s[1] + (i2) * (v)->s[2] + (i3) * (v)->s[3]]

/* The operands of one convolution. */
typedef struct {
    const dsi_conv2d *c;
    const dsi_view *x, *w; /* x or dx, w or dw */
} Plain;

enum { DOT, ADD_DX, ADD_DW };

/* At each tap of output (n,k,p,q): DOT returns g + the sum of x w; ADD_DX:
 * dx += g w; ADD_DW: dw += g x. */
static double plain_taps(const Plain *o, int what, int64_t n, int64_t k, int64_t p, int64_t q,
                         double g)
{
    const dsi_conv2d *c = o->c;
    const dsi_view *x = o->x, *w = o->w;
    int64_t first = k / (w->d[0] / c->groups) * w->d[1]; /* channel of x */
    for (int64_t i = 0; i < w->d[1]; i++)
        for (int64_t r = 0; r < w->d[2]; r++) {
            int64_t h = p * c->stride[0] + r * c->dilation[0] - c->padding[0];
            if (h < 0 || h >= x->d[2]) continue;
            for (int64_t s = 0; s < w->d[3]; s++) {
                int64_t v = q * c->stride[1] + s * c->dilation[1] - c->padding[1];
                if (v < 0 || v >= x->d[3]) continue;
                double *xv = &AT4(x, n, first + i, h, v), *wv = &AT4(w, k, i, r, s);
                if (what == DOT)
                    g += *xv * *wv;
                else if (what == ADD_DX)
                    *xv += g * *wv;
                else
                    *wv += g * *xv;
            }
        }
    return g;
}

static void plain_forward(const Plain *o, const dsi_view *b, const dsi_view *y)
{
    for (int64_t n = 0; n < y->d[0]; n++)
        for (int64_t k = 0; k < y->d[1]; k++)
            for (int64_t p = 0; p < y->d[2]; p++)
                for (int64_t q = 0; q < y->d[3]; q++)
                    AT4(y, n, k, p, q) = plain_taps(o, DOT, n, k, p, q,
                                                    b->p ? ((double *)b->p)[k * b->s[0]] : 0);
}

/* Adds each output of a gradient: of a pooled one those that are not 0, each
 * at its maximum h W + w; of a dense one, which has no index, all. */
static void plain_gradient(const Plain *o, int what, const dsi_pooled *dy)
{
    const dsi_view *g = &dy->value, *index = &dy->index;
    for (int64_t n = 0; n < g->d[0]; n++)
        for (int64_t k = 0; k < g->d[1]; k++)
            for (int64_t p = 0; p < g->d[2]; p++)
                for (int64_t q = 0; q < g->d[3]; q++) {
                    int64_t at = p * dy->w + q;
                    double v = AT4(g, n, k, p, q);
                    if (index->p)
                        at = ((const int32_t *)index->p)[n * index->s[0] + k * index->s[1] +
                                                         p * index->s[2] + q * index->s[3]];
                    if (v != 0 || !index->p) plain_taps(o, what, n, k, at / dy->w, at % dy->w, v);
                }
}
#undef AT4
