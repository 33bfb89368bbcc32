/* device/cuda/held.c: see held.h.
 * SPDX-License-Identifier: MIT */
#include "held_own.h"

#include "base/mem.h"

/* ---- memory of operands --------------------------------------------------- */

typedef dsi_cuda_extent Extent;
enum { INPUTS = DSI_CUDA_INPUTS, OUTPUTS = DSI_CUDA_OUTPUTS };

void dsi_cuda_extents(const dsi_cuda_matmul_args *p, Extent in[INPUTS], Extent out[OUTPUTS])
{
    const long long a[] = {p->batch, p->m, p->k}, b[] = {p->batch, p->k, p->n},
                    y[] = {p->batch, p->m, p->n}, all[] = {p->m * p->n}, one[] = {1};
    in[0] = dsi_cuda_extent_of(p->a, p->dtype, 3, a, p->as);
    in[1] = dsi_cuda_extent_of(p->b, p->dtype, 3, b, p->bs);
    in[2] = dsi_cuda_extent_of(p->bias, p->bias_dtype, 1, &p->n, &p->bias_s);
    in[3] = dsi_cuda_extent_of(p->epilogue_in, p->y_dtype, 1, all, one);
    out[0] = dsi_cuda_extent_of(p->y, p->y_dtype, 3, y, p->ys);
    out[1] = dsi_cuda_extent_of(p->sums, p->y_dtype, 1, &p->m, &p->sums_s);
    out[2] = dsi_cuda_extent_of(p->epilogue_out, p->y_dtype, 1, all, one);
}

bool dsi_cuda_independent(const dsi_cuda_matmul_args *a, const dsi_cuda_matmul_args *b)
{
    Extent in[2][INPUTS], out[2][OUTPUTS];
    dsi_cuda_extents(a, in[0], out[0]);
    dsi_cuda_extents(b, in[1], out[1]);
    for (int i = 0; i < OUTPUTS; i++) {
        for (int j = 0; j < INPUTS; j++)
            if (dsi_cuda_overlap(out[0][i], in[1][j]) || dsi_cuda_overlap(out[1][i], in[0][j]))
                return false;
        for (int j = 0; j < OUTPUTS; j++)
            if (dsi_cuda_overlap(out[0][i], out[1][j])) return false;
    }
    return true;
}

/* Whether x shares memory with a result of what is held, except by being
 * `own_y`, or, with `inputs`, with anything that it reads. */
static bool touches(const struct dsi_cuda_held *h, const dsi_view *x, const void *own_y,
                    bool inputs)
{
    int64_t bytes = dsi_cuda_elements_in(x) * (int64_t)ds_dtype_size(x->dtype);
    Extent own = dsi_cuda_memory_of(x->p, bytes), in[INPUTS], out[OUTPUTS];
    for (int i = 0; i < h->n; i++) {
        dsi_cuda_extents(&h->group.of[i], in, out);
        for (int j = 0; inputs && j < INPUTS; j++)
            if (dsi_cuda_overlap(own, in[j])) return true;
        for (int j = 0; j < OUTPUTS; j++)
            if (dsi_cuda_overlap(own, out[j]) && (j || x->p != own_y || h->group.of[i].y != own_y))
                return true;
    }
    return false;
}

/* ---- what is held ----------------------------------------------------------- */

/* Whether they need kernels of gemm_joined.cu. */
static bool is_joined(const struct dsi_cuda_held *h)
{
    bool joined = h->kind == DSI_CUDA_ROWS && h->n > 1;
    for (int i = 0; i < h->n; i++) joined |= h->group.of[i].epilogue >= K_EPILOGUE_SILU;
    return joined;
}

static ds_status products_launch(struct dsi_cuda_held *h)
{
    const bool joined = is_joined(h), rows = h->kind == DSI_CUDA_ROWS;
    const char *kernel = joined ? rows ? "matmul_rows_joined" : "matmul_columns_joined"
                         : rows ? "matmul_rows"
                                : "matmul_columns";
    const dsi_cuda_matmul_args *of = h->group.of;
    const dsi_cuda_matmul_pair pair = {.of = {of[0], of[1]}, .blocks = h->group.blocks[0]};
    h->group.n = h->n;
    return dsi_cuda_launch(h->s, joined ? DSI_CUDA_gemm_joined : DSI_CUDA_gemm_small, kernel,
                           dsi_cuda_dtype_suffix((ds_dtype)of[0].dtype), h->grid,
                           !rows    ? &pair
                           : joined ? (const void *)&h->group
                                    : of);
}

/* Nothing is held when it is launched, since that enters the device. */
ds_status dsi_cuda_held_launch(dsi_cuda_gpu *g)
{
    struct dsi_cuda_held *h = g->held;
    dsi_cuda_waits what = h ? h->what : DSI_CUDA_NOTHING;
    if (what == DSI_CUDA_NOTHING) return DS_OK;
    h->what = DSI_CUDA_NOTHING;
    if (what == DSI_CUDA_ENTROPY) return dsi_cuda_held_entropy_launch(h);
    if (what == DSI_CUDA_NORM) return dsi_cuda_held_norm_launch(h);
    if (what == DSI_CUDA_COPY)
        return h->s->device->type->copy(h->s, h->copy.to, h->s->device, h->copy.from,
                                        (size_t)h->copy.bytes);
    if (what == DSI_CUDA_CONV)
        return dsi_cuda_launch(h->s, DSI_CUDA_conv_small, "conv2d_small", h->conv, h->grid,
                               &h->of_conv);
    if (what == DSI_CUDA_BACK)
        return dsi_cuda_launch(h->s, DSI_CUDA_conv_small, "conv2d_back_scanned", "_f32", h->grid,
                               &h->back);
    return products_launch(h);
}

/* Whether the launch of the held products can compute p too. */
static bool product_may_fuse(const struct dsi_cuda_held *h, dsi_cuda_small kind,
                             const dsi_cuda_matmul_args *p)
{
    const dsi_cuda_matmul_args *first = &h->group.of[0];
    const int most = kind == DSI_CUDA_COLUMNS ? 2 : K_GROUP;
    bool fits = h->s->device->launch_fusions & DSI_FUSE_PAIR && h->kind == kind && h->n < most &&
                !h->group.fused_pair && p->n > 0 && first->dtype == p->dtype && first->batch == 1 &&
                p->batch == 1;
    if (kind == DSI_CUDA_ROWS && (p->dtype == DS_F64 || p->m != first->m)) return false;
    for (int i = 0; i < h->n && fits; i++) fits = dsi_cuda_independent(&h->group.of[i], p);
    return fits;
}

struct dsi_cuda_held *dsi_cuda_held_as(const dsi_stream *s, dsi_cuda_waits what)
{
    struct dsi_cuda_held *h = ((dsi_cuda_gpu *)s->device->own)->held;
    return h && h->what == what && h->s == s ? h : NULL;
}

ds_status dsi_cuda_held_new(dsi_stream *s, dsi_cuda_waits what, dsi_cuda_grid grid,
                            struct dsi_cuda_held **h)
{
    dsi_cuda_gpu *g = s->device->own;
    ds_status status = dsi_cuda_held_launch(g);
    if (status != DS_OK) return status;
    if (!g->held) g->held = dsi_alloc(sizeof *g->held);
    *h = g->held;
    (*h)->s = s, (*h)->what = what, (*h)->n = 0, (*h)->grid = grid;
    return DS_OK;
}

ds_status dsi_cuda_held(dsi_stream *s)
{
    return s->device->launch_fusions ? DS_OK : dsi_cuda_held_launch(s->device->own);
}

ds_status dsi_cuda_hold(dsi_stream *s, dsi_cuda_small kind, dsi_cuda_grid grid,
                        const dsi_cuda_matmul_args *p)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_PRODUCTS);
    if (h && product_may_fuse(h, kind, p)) {
        h->group.blocks[h->n] = grid.blocks[0];
        h->group.of[h->n++] = *p;
        h->grid.blocks[0] += grid.blocks[0];
        return DS_OK;
    }
    if (dsi_cuda_held_gradient(s, kind, p)) return DS_OK;
    if (!grid.blocks[0] || !grid.blocks[1] || !grid.blocks[2])
        return dsi_cuda_held_launch(s->device->own);
    ds_status status = dsi_cuda_held_new(s, DSI_CUDA_PRODUCTS, grid, &h);
    if (status != DS_OK) return status;
    h->n = 1, h->kind = kind;
    h->group = (dsi_cuda_matmul_group){.of = {*p}, .blocks = {grid.blocks[0]}};
    return dsi_cuda_held(s);
}

/* The product whose result x is, if it has no epilogue. */
static dsi_cuda_matmul_args *product_of(struct dsi_cuda_held *h, const dsi_view *x)
{
    for (int i = 0; h && i < h->n; i++) {
        dsi_cuda_matmul_args *p = &h->group.of[i];
        bool whole = p->batch == 1 && p->ys[2] == 1 && p->ys[1] == p->n &&
                     dsi_cuda_elements_in(x) == p->m * p->n;
        if (h->kind == DSI_CUDA_COLUMNS && (i || !p->parts)) break; /* has none */
        if (x->p == p->y && (int)x->dtype == p->y_dtype && whole && !p->epilogue) return p;
    }
    return NULL;
}

/* The product whose result x is, if y can be the output of its epilogue. */
static dsi_cuda_matmul_args *held_result(const dsi_stream *s, const dsi_view *x, const dsi_view *y)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_PRODUCTS);
    dsi_cuda_matmul_args *p = product_of(h, x);
    return p && y->dtype == x->dtype && dsi_cuda_contiguous(x) && dsi_cuda_contiguous(y) &&
                   !touches(h, y, x->p, true)
               ? p
               : NULL;
}

bool dsi_cuda_held_unary(dsi_stream *s, dsi_unary_op op, const dsi_view *x, const dsi_view *y)
{
    int epilogue = op == DSI_RELU        ? K_EPILOGUE_RELU
                   : op == DSI_SILU      ? K_EPILOGUE_SILU
                   : op == DSI_GELU      ? K_EPILOGUE_GELU
                   : op == DSI_GELU_TANH ? K_EPILOGUE_GELU_TANH
                                         : K_EPILOGUE_NONE;
    if (!(s->device->launch_fusions & DSI_FUSE_RELU) || !epilogue ||
        (epilogue != K_EPILOGUE_RELU && x->dtype == DS_F64))
        return false;
    dsi_cuda_matmul_args *p = held_result(s, x, y);
    if (!p) return false;
    p->epilogue = epilogue, p->epilogue_out = y->p;
    return true;
}

/* A thread of the second product reads what it wrote at the same place of the
 * first. */
bool dsi_cuda_held_times(dsi_stream *s, const dsi_view *a, const dsi_view *b, const dsi_view *y)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_PRODUCTS);
    if (!h || h->n != 2 || h->kind != DSI_CUDA_ROWS || h->group.of[0].n != h->group.of[1].n ||
        h->group.of[0].y_dtype != h->group.of[1].y_dtype)
        return false;
    const dsi_cuda_matmul_args *first = &h->group.of[0];
    const dsi_view *x = a->p == h->group.of[1].y ? a : b, *other = x == a ? b : a;
    bool is_first = first->epilogue && other->p == first->epilogue_out;
    if (!is_first || !dsi_cuda_contiguous(other) || other->dtype != x->dtype ||
        dsi_cuda_elements_in(other) != dsi_cuda_elements_in(x))
        return false;
    dsi_cuda_matmul_args *p = held_result(s, x, y);
    if (!p) return false;
    p->epilogue = K_EPILOGUE_MUL, p->epilogue_out = y->p, p->epilogue_in = other->p;
    h->group.fused_pair = 1, h->grid.blocks[0] = h->group.blocks[0];
    return true;
}

bool dsi_cuda_held_relu_dx(dsi_stream *s, const dsi_view *dy, const dsi_view *saved,
                           const dsi_view *dx)
{
    if (!(s->device->launch_fusions & DSI_FUSE_RELU) || !dsi_cuda_contiguous(saved) ||
        saved->dtype != dy->dtype)
        return false;
    dsi_cuda_matmul_args *p = held_result(s, dy, dx);
    if (p && touches(dsi_cuda_held_as(s, DSI_CUDA_PRODUCTS), saved, dy->p, false)) return false;
    if (!p) p = dsi_cuda_held_gradient_of(s, dy, saved, dx);
    if (!p) return false;
    p->epilogue = K_EPILOGUE_RELU_DX, p->epilogue_out = dx->p, p->epilogue_in = saved->p;
    return true;
}

/* ---- a convolution ------------------------------------------------------------ */

ds_status dsi_cuda_hold_conv(dsi_stream *s, const char *suffix, dsi_cuda_grid grid,
                             const dsi_cuda_conv_args *p)
{
    struct dsi_cuda_held *h;
    ds_status status = dsi_cuda_held_new(s, DSI_CUDA_CONV, grid, &h);
    if (status != DS_OK) return status;
    h->conv = suffix, h->of_conv = *p;
    return dsi_cuda_held(s);
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
    const Extent its[] = {dsi_cuda_extent_of(c->x, c->dtype, 4, x, c->xs),
                          dsi_cuda_extent_of(c->w, c->dtype, 4, w, c->ws),
                          dsi_cuda_extent_of(c->bias, c->bias_dtype, 1, &channels, &c->bias_s),
                          dsi_cuda_extent_of(c->out, c->dtype, 4, y, c->ys)},
                 written[] = {dsi_cuda_extent_of(p->to, p->dtype, 4, pooled, p->ys),
                              dsi_cuda_extent_of(p->index, DS_I32, 4, pooled, p->is)};
    for (int i = 0; i < 4; i++)
        if (dsi_cuda_overlap(its[i], written[0]) || dsi_cuda_overlap(its[i], written[1]))
            return true;
    return dsi_cuda_overlap(written[0], written[1]);
}

/* The four pixels of a window become neighbours, which the kernel wants. */
bool dsi_cuda_held_pool(dsi_stream *s, const dsi_cuda_pool_args *p, ds_status *status)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_CONV);
    if (!h || !(s->device->launch_fusions & DSI_FUSE_CONV_POOL) || !pools(&h->of_conv, p) ||
        conv_touches(&h->of_conv, p))
        return false;
    dsi_cuda_conv_args *c = &h->of_conv;
    c->pooled = (dsi_cuda_pooled){
        .value = p->to, .index = p->index, .p = p->p, .q = p->q, .relu = p->relu};
    for (int i = 0; i < 4; i++) c->pooled.vs[i] = p->ys[i], c->pooled.is[i] = p->is[i];
    c->row = dsi_cuda_divisor_of(p->q);
    *status = dsi_cuda_held_launch(s->device->own);
    return true;
}

/* ---- the copy of an element --------------------------------------------------- */

ds_status dsi_cuda_hold_copy(dsi_stream *s, const dsi_cuda_element *p)
{
    struct dsi_cuda_held *h;
    ds_status status = dsi_cuda_held_new(s, DSI_CUDA_COPY, (dsi_cuda_grid){.shared = 0}, &h);
    if (status != DS_OK) return status;
    h->copy = *p;
    return dsi_cuda_held(s);
}

void dsi_cuda_held_copy(dsi_stream *s, dsi_cuda_batch *batch)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_COPY);
    if (!h || !(s->device->launch_fusions & DSI_FUSE_KEPT) || !batch->n || !batch->plane) return;
    int64_t channels = batch->field[0].elements / batch->plane;
    Extent from = dsi_cuda_memory_of(h->copy.from, h->copy.bytes),
           to = dsi_cuda_memory_of(h->copy.to, h->copy.bytes),
           index = dsi_cuda_memory_of(batch->index, batch->n * (int64_t)sizeof(int64_t)),
           table = dsi_cuda_memory_of(batch->table, channels * 256 * (int64_t)sizeof(float));
    bool disjoint = !dsi_cuda_overlap(to, index) && !dsi_cuda_overlap(to, table);
    for (int f = 0; f < batch->fields && disjoint; f++) {
        int64_t size = (int64_t)ds_dtype_size((ds_dtype)batch->field[f].dtype),
                row = batch->field[f].elements;
        Extent x = dsi_cuda_memory_of(batch->field[f].x, batch->rows * row * (f ? size : 1)),
               y = dsi_cuda_memory_of(batch->field[f].y, batch->n * row * size);
        disjoint = !dsi_cuda_overlap(to, x) && !dsi_cuda_overlap(to, y) &&
                   !dsi_cuda_overlap(from, y);
    }
    if (!disjoint) return;
    batch->copy = h->copy;
    h->what = DSI_CUDA_NOTHING;
}
