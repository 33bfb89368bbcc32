/* device/cpu/conv/conv_plain.h: convolution by plain loops, for one element
 * type.
 *
 * Included with REAL = the type and PLAIN(name) = its functions' names. Any
 * shape, any strides, and one thread: it serves float64, for gradient checks.
 * The loops follow the formula of conv.h: n, k, p, q count outputs; i, r, s
 * count taps. Gradients are added output by output, so that the dense and the
 * pooled form differ only in the outputs that they visit.
 * SPDX-License-Identifier: MIT */

#define AT4(v, i0, i1, i2, i3) \
    ((REAL *)(v)->p)[(i0) * (v)->s[0] + (i1) * (v)->s[1] + (i2) * (v)->s[2] + (i3) * (v)->s[3]]

/* The operands of one convolution. */
typedef struct {
    const dsi_conv2d *c;
    const dsi_view *x, *w; /* x or dx, w or dw */
} PLAIN(Place);

/* dw[k] += g times the inputs of output (n,k,p,q), g = dy there. */
static void PLAIN(add_dw)(const PLAIN(Place) * o, int64_t n, int64_t k, int64_t p, int64_t q,
                          REAL g)
{
    const dsi_conv2d *c = o->c;
    const dsi_view *x = o->x, *dw = o->w;
    int64_t first = k / (dw->d[0] / c->groups) * dw->d[1]; /* channel of x */
    for (int64_t i = 0; i < dw->d[1]; i++)
        for (int64_t r = 0; r < dw->d[2]; r++) {
            int64_t h = p * c->stride[0] + r * c->dilation[0] - c->padding[0];
            if (h < 0 || h >= x->d[2]) continue;
            for (int64_t s = 0; s < dw->d[3]; s++) {
                int64_t v = q * c->stride[1] + s * c->dilation[1] - c->padding[1];
                if (v >= 0 && v < x->d[3]) AT4(dw, k, i, r, s) += g * AT4(x, n, first + i, h, v);
            }
        }
}

/* dx += g w[k] at the inputs of output (n,k,p,q). */
static void PLAIN(add_dx)(const PLAIN(Place) * o, int64_t n, int64_t k, int64_t p, int64_t q,
                          REAL g)
{
    const dsi_conv2d *c = o->c;
    const dsi_view *dx = o->x, *w = o->w;
    int64_t first = k / (w->d[0] / c->groups) * w->d[1];
    for (int64_t i = 0; i < w->d[1]; i++)
        for (int64_t r = 0; r < w->d[2]; r++) {
            int64_t h = p * c->stride[0] + r * c->dilation[0] - c->padding[0];
            if (h < 0 || h >= dx->d[2]) continue;
            for (int64_t s = 0; s < w->d[3]; s++) {
                int64_t v = q * c->stride[1] + s * c->dilation[1] - c->padding[1];
                if (v >= 0 && v < dx->d[3]) AT4(dx, n, first + i, h, v) += g * AT4(w, k, i, r, s);
            }
        }
}

/* sum + the inputs of output (n,k,p,q) times w[k]. */
static REAL PLAIN(dot)(const PLAIN(Place) * o, int64_t n, int64_t k, int64_t p, int64_t q, REAL sum)
{
    const dsi_conv2d *c = o->c;
    const dsi_view *x = o->x, *w = o->w;
    int64_t first = k / (w->d[0] / c->groups) * w->d[1];
    for (int64_t i = 0; i < w->d[1]; i++)
        for (int64_t r = 0; r < w->d[2]; r++) {
            int64_t h = p * c->stride[0] + r * c->dilation[0] - c->padding[0];
            if (h < 0 || h >= x->d[2]) continue;
            for (int64_t s = 0; s < w->d[3]; s++) {
                int64_t v = q * c->stride[1] + s * c->dilation[1] - c->padding[1];
                if (v >= 0 && v < x->d[3]) sum += AT4(x, n, first + i, h, v) * AT4(w, k, i, r, s);
            }
        }
    return sum;
}

static void PLAIN(conv2d)(const PLAIN(Place) * o, const dsi_view *b, const dsi_view *y)
{
    for (int64_t n = 0; n < y->d[0]; n++)
        for (int64_t k = 0; k < y->d[1]; k++)
            for (int64_t p = 0; p < y->d[2]; p++)
                for (int64_t q = 0; q < y->d[3]; q++)
                    AT4(y, n, k, p, q) = PLAIN(dot)(o, n, k, p, q,
                                                    b->p ? ((REAL *)b->p)[k * b->s[0]] : 0);
}

static void PLAIN(zero)(const dsi_view *v)
{
    for (int64_t i = 0; i < v->d[0]; i++)
        for (int64_t j = 0; j < v->d[1]; j++)
            for (int64_t k = 0; k < v->d[2]; k++)
                for (int64_t l = 0; l < v->d[3]; l++) AT4(v, i, j, k, l) = 0;
}

typedef void PLAIN(add)(const PLAIN(Place) * o, int64_t n, int64_t k, int64_t p, int64_t q, REAL g);

/* Calls `add` for each output of a dense gradient. */
static void PLAIN(gradient)(const PLAIN(Place) * o, PLAIN(add) * add, const dsi_view *dy)
{
    for (int64_t n = 0; n < dy->d[0]; n++)
        for (int64_t k = 0; k < dy->d[1]; k++)
            for (int64_t p = 0; p < dy->d[2]; p++)
                for (int64_t q = 0; q < dy->d[3]; q++) add(o, n, k, p, q, AT4(dy, n, k, p, q));
}

/* Calls `add` for each window of a pooled gradient, at its maximum h W + w. */
static void PLAIN(gradient_pooled)(const PLAIN(Place) * o, PLAIN(add) * add, const dsi_pooled *dy)
{
    const dsi_view *g = &dy->value, *index = &dy->index;
    for (int64_t n = 0; n < g->d[0]; n++)
        for (int64_t k = 0; k < g->d[1]; k++)
            for (int64_t p = 0; p < g->d[2]; p++)
                for (int64_t q = 0; q < g->d[3]; q++) {
                    int64_t at = ((const int32_t *)index->p)[n * index->s[0] + k * index->s[1] +
                                                             p * index->s[2] + q * index->s[3]];
                    REAL v = AT4(g, n, k, p, q);
                    if (v != 0) add(o, n, k, at / dy->w, at % dy->w, v);
                }
}
#undef AT4
