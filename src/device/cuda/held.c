/* device/cuda/held.c: see held.h.
 * SPDX-License-Identifier: MIT */
#include "held.h"
#include "operands.h"

#include "base/mem.h"

/* n: products, 0 to 2; 2 only of kind DSI_CUDA_COLUMNS. With has_entropy or conv
 * there are none. conv: the suffix of a convolution, or NULL. */
struct dsi_cuda_held {
    dsi_stream *s;
    int n;
    dsi_cuda_small kind;
    dsi_cuda_grid grid;
    dsi_cuda_matmul_pair pair;
    bool has_entropy;
    dsi_cuda_entropy_args entropy;
    const char *conv;
    dsi_cuda_conv_args of_conv;
};

/* ---- memory of operands --------------------------------------------------- */

typedef struct Extent {
    const char *begin, *end;
} Extent;

static Extent extent_of(const void *p, int dtype, int n, const long long *d, const long long *s)
{
    int64_t last = 0, size = (int64_t)ds_dtype_size((ds_dtype)dtype);
    for (int i = 0; i < n; i++) last += (d[i] - 1) * s[i];
    return (Extent){p, p ? (const char *)p + (last + 1) * size : NULL};
}

static bool overlap(Extent a, Extent b) { return a.begin < b.end && b.begin < a.end; }

enum { INPUTS = 4, OUTPUTS = 3 };

static void extents(const dsi_cuda_matmul_args *p, Extent in[INPUTS], Extent out[OUTPUTS])
{
    const long long a[] = {p->batch, p->m, p->k}, b[] = {p->batch, p->k, p->n},
                    y[] = {p->batch, p->m, p->n}, all[] = {p->m * p->n}, one[] = {1};
    in[0] = extent_of(p->a, p->dtype, 3, a, p->as);
    in[1] = extent_of(p->b, p->dtype, 3, b, p->bs);
    in[2] = extent_of(p->bias, p->bias_dtype, 1, &p->n, &p->bias_s);
    in[3] = extent_of(p->mask, p->y_dtype, 1, all, one);
    out[0] = extent_of(p->y, p->y_dtype, 3, y, p->ys);
    out[1] = extent_of(p->sums, p->y_dtype, 1, &p->m, &p->sums_s);
    out[2] = extent_of(p->second, p->y_dtype, 1, all, one);
}

/* Whether the order of a and b does not matter. */
static bool independent(const dsi_cuda_matmul_args *a, const dsi_cuda_matmul_args *b)
{
    Extent in[2][INPUTS], out[2][OUTPUTS];
    extents(a, in[0], out[0]);
    extents(b, in[1], out[1]);
    for (int i = 0; i < OUTPUTS; i++) {
        for (int j = 0; j < INPUTS; j++)
            if (overlap(out[0][i], in[1][j]) || overlap(out[1][i], in[0][j])) return false;
        for (int j = 0; j < OUTPUTS; j++)
            if (overlap(out[0][i], out[1][j])) return false;
    }
    return true;
}

/* Whether x shares memory with a result of what is held, except by being the
 * first one, or, with `inputs`, with anything that it reads. */
static bool touches(const struct dsi_cuda_held *h, const dsi_view *x, bool inputs)
{
    int64_t bytes = dsi_cuda_elements_in(x) * (int64_t)ds_dtype_size(x->dtype);
    Extent own = {x->p, (const char *)x->p + bytes}, in[INPUTS], out[OUTPUTS];
    for (int i = 0; i < h->n; i++) {
        extents(&h->pair.of[i], in, out);
        for (int j = 0; inputs && j < INPUTS; j++)
            if (overlap(own, in[j])) return true;
        for (int j = 0; j < OUTPUTS; j++)
            if (overlap(own, out[j]) && (i || j || x->p != h->pair.of[0].y)) return true;
    }
    return false;
}

/* ---- what is held ----------------------------------------------------------- */

ds_status dsi_cuda_held_launch(dsi_cuda_gpu *g)
{
    struct dsi_cuda_held *h = g->held;
    if (h && h->has_entropy) {
        h->has_entropy = false; /* launching enters the device */
        return dsi_cuda_launch(h->s, DSI_CUDA_softmax,
                               h->entropy.lanes ? "entropy_lanes" : "entropy_few",
                               dsi_cuda_suffix((ds_dtype)h->entropy.dtype), h->grid, &h->entropy);
    }
    if (h && h->conv) {
        const char *suffix = h->conv;
        h->conv = NULL;
        return dsi_cuda_launch(h->s, DSI_CUDA_conv_small, "conv2d_small", suffix, h->grid,
                               &h->of_conv);
    }
    if (!h || !h->n) return DS_OK;
    bool rows = h->kind == DSI_CUDA_ROWS;
    h->n = 0;
    return dsi_cuda_launch(h->s, DSI_CUDA_gemm_small, rows ? "matmul_rows" : "matmul_columns",
                           dsi_cuda_dtype_suffix((ds_dtype)h->pair.of[0].dtype), h->grid,
                           rows ? (const void *)&h->pair.of[0] : &h->pair);
}

static bool joins(const struct dsi_cuda_held *h, dsi_cuda_small kind, const dsi_cuda_matmul_args *p)
{
    const dsi_cuda_matmul_args *first = &h->pair.of[0];
    return h->n == 1 && h->kind == DSI_CUDA_COLUMNS && kind == DSI_CUDA_COLUMNS &&
           first->dtype == p->dtype && first->batch == 1 && p->batch == 1 && independent(first, p);
}

static struct dsi_cuda_held *held_of(dsi_cuda_gpu *g)
{
    if (!g->held) g->held = dsi_alloc(sizeof *g->held);
    return g->held;
}

ds_status dsi_cuda_hold(dsi_stream *s, dsi_cuda_small kind, dsi_cuda_grid grid,
                        const dsi_cuda_matmul_args *p)
{
    dsi_cuda_gpu *g = s->device->own;
    struct dsi_cuda_held *h = held_of(g);
    if (joins(h, kind, p)) {
        h->pair.of[h->n++] = *p;
        h->grid.blocks[0] += grid.blocks[0];
        return DS_OK;
    }
    ds_status status = dsi_cuda_held_launch(g);
    if (status == DS_OK && grid.blocks[0] && grid.blocks[1] && grid.blocks[2])
        *h = (struct dsi_cuda_held){.s = s,
                                    .n = 1,
                                    .kind = kind,
                                    .grid = grid,
                                    .pair = {.of = {*p}, .blocks = grid.blocks[0]}};
    return status;
}

/* The product whose result x is, if y can be its second output. */
static dsi_cuda_matmul_args *held_result(const dsi_stream *s, const dsi_view *x, const dsi_view *y)
{
    const dsi_cuda_gpu *g = s->device->own;
    struct dsi_cuda_held *h = g->held;
    if (!h || !h->n) return NULL;
    dsi_cuda_matmul_args *p = &h->pair.of[0];
    if (h->kind == DSI_CUDA_COLUMNS && !p->parts) return NULL; /* has no second output */
    int64_t count = dsi_cuda_elements_in(x);
    bool whole = p->batch == 1 && p->ys[2] == 1 && p->ys[1] == p->n && count == p->m * p->n;
    bool same = x->p == p->y && (int)x->dtype == p->y_dtype && y->dtype == x->dtype;
    return same && whole && !p->also && dsi_cuda_contiguous(x) && dsi_cuda_contiguous(y) &&
                   !touches(h, y, true)
               ? p
               : NULL;
}

bool dsi_cuda_held_relu(dsi_stream *s, const dsi_view *x, const dsi_view *y)
{
    dsi_cuda_matmul_args *p = held_result(s, x, y);
    if (!p) return false;
    p->also = K_RELU_OF, p->second = y->p;
    return true;
}

bool dsi_cuda_held_relu_dx(dsi_stream *s, const dsi_view *dy, const dsi_view *saved,
                           const dsi_view *dx)
{
    dsi_cuda_matmul_args *p = dsi_cuda_contiguous(saved) && saved->dtype == dy->dtype
                                  ? held_result(s, dy, dx)
                                  : NULL;
    const dsi_cuda_gpu *g = s->device->own;
    if (!p || touches(g->held, saved, false)) return false;
    p->also = K_WHERE_POSITIVE, p->second = dx->p, p->mask = saved->p;
    return true;
}

/* ---- a convolution ------------------------------------------------------------ */

ds_status dsi_cuda_hold_conv(dsi_stream *s, const char *suffix, dsi_cuda_grid grid,
                             const dsi_cuda_conv_args *p)
{
    dsi_cuda_gpu *g = s->device->own;
    ds_status status = dsi_cuda_held_launch(g);
    if (status == DS_OK)
        *held_of(g) = (struct dsi_cuda_held){.s = s, .grid = grid, .conv = suffix, .of_conv = *p};
    return status;
}

/* Whether p pools c's output by windows of 2 x 2 that cover it. */
static bool pools(const dsi_cuda_conv_args *c, const dsi_cuda_pool_args *p)
{
    bool same = p->from == c->out && p->dtype == c->dtype && p->c == (unsigned)(c->groups * c->k) &&
                p->planes == p->c * (unsigned)c->n && p->h == c->p && p->w == c->q &&
                p->h == 2 * p->p && p->w == 2 * p->q;
    for (int i = 0; i < 4 && same; i++) same = p->xs[i] == c->ys[i];
    for (int i = 0; i < 2 && same; i++)
        same = p->kernel[i] == 2 && p->stride[i] == 2 && !p->padding[i] && p->dilation[i] == 1;
    return same;
}

/* Whether memory that the pooling writes is the convolution's. */
static bool conv_touches(const dsi_cuda_conv_args *c, const dsi_cuda_pool_args *p)
{
    const long long channels = (long long)c->groups * c->k, y[] = {c->n, channels, c->p, c->q},
                    x[] = {c->n, (long long)c->groups * c->c, c->h, c->width},
                    w[] = {channels, c->c, c->r, c->s}, pooled[] = {c->n, channels, p->p, p->q};
    const Extent its[] = {extent_of(c->x, c->dtype, 4, x, c->xs),
                          extent_of(c->w, c->dtype, 4, w, c->ws),
                          extent_of(c->bias, c->bias_dtype, 1, &channels, &c->bias_s),
                          extent_of(c->out, c->dtype, 4, y, c->ys)},
                 written[] = {extent_of(p->to, p->dtype, 4, pooled, p->ys),
                              extent_of(p->index, DS_I32, 4, pooled, p->is)};
    for (int i = 0; i < 4; i++)
        if (overlap(its[i], written[0]) || overlap(its[i], written[1])) return true;
    return overlap(written[0], written[1]);
}

/* The four pixels of a window become neighbours, which the kernel wants. */
bool dsi_cuda_held_pool(dsi_stream *s, const dsi_cuda_pool_args *p, ds_status *status)
{
    dsi_cuda_gpu *g = s->device->own;
    struct dsi_cuda_held *h = g->held;
    if (!h || !h->conv || !pools(&h->of_conv, p) || conv_touches(&h->of_conv, p)) return false;
    dsi_cuda_conv_args *c = &h->of_conv;
    c->pooled = (dsi_cuda_pooled){
        .value = p->to, .index = p->index, .p = p->p, .q = p->q, .relu = p->relu};
    for (int i = 0; i < 4; i++) c->pooled.vs[i] = p->ys[i], c->pooled.is[i] = p->is[i];
    c->row = dsi_cuda_divisor_of(p->q);
    *status = dsi_cuda_held_launch(g);
    return true;
}

/* ---- a cross entropy ---------------------------------------------------------- */

ds_status dsi_cuda_hold_entropy(dsi_stream *s, dsi_cuda_grid grid, const dsi_cuda_entropy_args *p)
{
    dsi_cuda_gpu *g = s->device->own;
    ds_status status = dsi_cuda_held_launch(g);
    if (status == DS_OK)
        *held_of(g) = (struct dsi_cuda_held){
            .s = s, .grid = grid, .has_entropy = true, .entropy = *p};
    return status;
}

/* Whether the cross entropy reads or writes memory of `own`. part is written
 * over: the kernel is done with it when it fills, and when it writes dx. */
static bool entropy_touches(const dsi_cuda_entropy_args *p, Extent own)
{
    const long long n = p->rows / p->inner, x[] = {n, p->columns, p->inner}, row[] = {n, p->inner},
                    one[] = {1};
    const Extent all[] = {extent_of(p->x, p->dtype, 3, x, p->xs),
                          extent_of(p->label, DS_I64, 2, row, p->label_s),
                          extent_of(p->weight, p->weight_dtype, 1, &p->columns, &p->weight_s),
                          extent_of(p->lse, p->stats_dtype, 2, row, p->lse_s),
                          extent_of(p->loss, p->loss_dtype, 1, one, one),
                          extent_of(p->divisor, p->stats_dtype, 1, one, one)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (overlap(all[i], own)) return true;
    return false;
}

bool dsi_cuda_held_fill(dsi_stream *s, double value, const dsi_view *y)
{
    struct dsi_cuda_held *h = ((dsi_cuda_gpu *)s->device->own)->held;
    dsi_cuda_entropy_args *p = h && h->has_entropy ? &h->entropy : NULL;
    int64_t bytes = (int64_t)ds_dtype_size(y->dtype);
    if (!p || p->seed || dsi_cuda_elements_in(y) != 1 || (int)y->dtype != p->loss_dtype ||
        entropy_touches(p, (Extent){y->p, (const char *)y->p + bytes}))
        return false;
    p->seed = y->p, p->seed_value = value;
    return true;
}

/* Whether p is the gradient of e. */
static bool is_gradient(const dsi_cuda_entropy_args *e, const dsi_cuda_entropy_args *p)
{
    bool same = p->x == e->x && p->label == e->label && p->weight == e->weight &&
                p->lse == e->lse && p->divisor == e->divisor && p->rows == e->rows &&
                p->columns == e->columns && p->inner == e->inner && p->dtype == e->dtype &&
                p->reduction == e->reduction && p->ignore_index == e->ignore_index &&
                !(p->smoothing < e->smoothing) && !(p->smoothing > e->smoothing) &&
                p->weight_s == e->weight_s;
    for (int i = 0; i < 3 && same; i++) same = p->xs[i] == e->xs[i];
    for (int i = 0; i < 2 && same; i++) same = p->label_s[i] == e->label_s[i];
    return same && p->loss == e->seed && p->loss_dtype == e->loss_dtype;
}

bool dsi_cuda_held_entropy_dx(dsi_stream *s, const dsi_cuda_entropy_args *p, ds_status *status)
{
    dsi_cuda_gpu *g = s->device->own;
    struct dsi_cuda_held *h = g->held;
    if (!h || !h->has_entropy || !h->entropy.seed || !is_gradient(&h->entropy, p)) return false;
    const long long d[] = {p->rows / p->inner, p->columns, p->inner};
    Extent dx = extent_of(p->dx, p->dtype, 3, d, p->dxs);
    if (entropy_touches(&h->entropy, dx) ||
        overlap(dx,
                (Extent){p->loss, (const char *)p->loss + ds_dtype_size((ds_dtype)p->loss_dtype)}))
        return false;
    h->entropy.dx = p->dx;
    for (int i = 0; i < 3; i++) h->entropy.dxs[i] = p->dxs[i];
    *status = dsi_cuda_held_launch(g);
    return true;
}
