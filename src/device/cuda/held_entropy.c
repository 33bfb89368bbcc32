/* device/cuda/held_entropy.c: a held cross entropy of held.h.
 * SPDX-License-Identifier: MIT */
#include "held_own.h"

typedef dsi_cuda_extent Extent;

#define MOST (1 << 15) /* multiplications of a product that one block computes */

/* Whether places in all operands have 32 bits, as in linear_entropy. */
static bool all_near(const Extent in[DSI_CUDA_INPUTS], const Extent out[DSI_CUDA_OUTPUTS])
{
    for (int i = 0; i < DSI_CUDA_INPUTS; i++)
        if (!dsi_cuda_is_near(in[i])) return false;
    for (int i = 0; i < DSI_CUDA_OUTPUTS; i++)
        if (!dsi_cuda_is_near(out[i])) return false;
    return true;
}

/* ---- the product before it ------------------------------------------------ */

/* Whether e is of the held product, and linear_entropy takes both. */
static bool takes_product(const struct dsi_cuda_held *h, const dsi_cuda_entropy_args *e)
{
    const dsi_cuda_matmul_args *p = &h->group.of[0];
    if (h->kind != DSI_CUDA_ROWS || h->n != 1 || !e->lanes) return false;
    bool floats = p->dtype == DS_F32 && p->y_dtype == DS_F32 && e->dtype == DS_F32 &&
                  (!p->bias || p->bias_dtype == DS_F32);
    bool same = e->x == p->y && e->rows == p->m && e->columns == p->n && e->inner == 1 &&
                e->xs[0] == p->ys[1] && e->xs[1] == p->ys[2];
    const long long one[] = {1};
    Extent in[DSI_CUDA_INPUTS], out[DSI_CUDA_OUTPUTS];
    dsi_cuda_extents(p, in, out);
    return floats && same && p->batch == 1 && p->whole && p->epilogue == K_EPILOGUE_NONE &&
           p->m * p->n * p->k <= MOST && all_near(in, out) &&
           !dsi_cuda_overlap(out[0],
                             dsi_cuda_extent_of(e->label, DS_I64, 1, &e->rows, e->label_s)) &&
           !dsi_cuda_overlap(out[0], dsi_cuda_extent_of(e->loss, e->loss_dtype, 1, one, one));
}

ds_status dsi_cuda_hold_entropy(dsi_stream *s, dsi_cuda_grid grid, const dsi_cuda_entropy_args *p)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_PRODUCTS);
    dsi_cuda_linear_entropy last = {.entropy = *p};
    if (h && s->device->launch_fusions & DSI_FUSE_LINEAR_ENTROPY && takes_product(h, p)) {
        last.linear = h->group.of[0], grid = dsi_cuda_blocks(1, K_LINEAR_ENTROPY_THREADS);
        h->what = DSI_CUDA_NOTHING;
    }
    ds_status status = dsi_cuda_held_new(s, DSI_CUDA_ENTROPY, grid, &h);
    if (status != DS_OK) return status;
    h->last = last;
    return dsi_cuda_held(s);
}

ds_status dsi_cuda_held_entropy_launch(struct dsi_cuda_held *h)
{
    const dsi_cuda_entropy_args *e = &h->last.entropy;
    const char *suffix = dsi_cuda_suffix((ds_dtype)e->dtype);
    if (h->last.linear.m)
        return dsi_cuda_launch(h->s, DSI_CUDA_linear_entropy, "linear_entropy", suffix, h->grid,
                               &h->last);
    return dsi_cuda_launch(h->s, DSI_CUDA_softmax, e->lanes ? "entropy_lanes" : "entropy_few",
                           suffix, h->grid, e);
}

/* ---- gradients of that product ---------------------------------------------- */

/* Whether `own` shares memory with what linear_entropy writes before gradients. */
static bool written_before(const dsi_cuda_linear_entropy *last, Extent own)
{
    const dsi_cuda_entropy_args *e = &last->entropy;
    const long long one[] = {1}, x[] = {e->rows, e->columns};
    Extent in[DSI_CUDA_INPUTS], out[DSI_CUDA_OUTPUTS];
    dsi_cuda_extents(&last->linear, in, out);
    const Extent all[] = {out[0],
                          dsi_cuda_extent_of(e->lse, e->stats_dtype, 1, &e->rows, e->lse_s),
                          dsi_cuda_extent_of(e->loss, e->loss_dtype, 1, one, one),
                          dsi_cuda_extent_of(e->divisor, e->stats_dtype, 1, one, one),
                          dsi_cuda_extent_of(e->seed, e->loss_dtype, 1, one, one),
                          dsi_cuda_extent_of(e->dx, e->dtype, 2, x, e->dxs)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (dsi_cuda_overlap(all[i], own)) return true;
    return false;
}

bool dsi_cuda_held_gradient(const dsi_stream *s, dsi_cuda_small kind, const dsi_cuda_matmul_args *p)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_ENTROPY);
    const dsi_cuda_entropy_args *e = h ? &h->last.entropy : NULL;
    if (!h || !e->dx || !h->last.linear.m || h->n == 2 || kind != DSI_CUDA_COLUMNS ||
        p->a != e->dx || p->batch != 1 || p->bias)
        return false;
    bool across = p->m == e->columns && p->k == e->rows && p->as[1] == e->dxs[1] &&
                  p->as[2] == e->dxs[0];
    bool along = p->m == e->rows && p->k == e->columns && p->as[1] == e->dxs[0] &&
                 p->as[2] == e->dxs[1];
    Extent in[DSI_CUDA_INPUTS], out[DSI_CUDA_OUTPUTS];
    dsi_cuda_extents(p, in, out);
    if (!(across || along) || p->dtype != DS_F32 || p->y_dtype != DS_F32 ||
        p->m * p->n * p->k > MOST || !all_near(in, out) || written_before(&h->last, in[1]) ||
        (h->n && !dsi_cuda_independent(&h->last.of[0], p)))
        return false;
    h->last.transposed[h->n] = !along;
    h->last.of[h->n++] = *p;
    return true;
}

dsi_cuda_matmul_args *dsi_cuda_held_gradient_of(const dsi_stream *s, const dsi_view *dy,
                                                const dsi_view *mask, const dsi_view *dx)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_ENTROPY);
    const long long n = dsi_cuda_elements_in(dy), one[] = {1};
    Extent mask_memory = dsi_cuda_extent_of(mask->p, DS_F32, 1, &n, one),
           dx_memory = dsi_cuda_extent_of(dx->p, DS_F32, 1, &n, one);
    dsi_cuda_matmul_args *p = NULL;
    if (!h || !n || dy->dtype != DS_F32 || dx->dtype != DS_F32 || !dsi_cuda_contiguous(dy) ||
        !dsi_cuda_contiguous(dx) || dsi_cuda_overlap(mask_memory, dx_memory))
        return NULL;
    for (int i = 0; i < h->n; i++) {
        Extent in[DSI_CUDA_INPUTS], out[DSI_CUDA_OUTPUTS];
        dsi_cuda_matmul_args *of = &h->last.of[i];
        dsi_cuda_extents(of, in, out);
        for (int k = 0; k < DSI_CUDA_OUTPUTS; k++)
            if (dsi_cuda_overlap(out[k], mask_memory) || dsi_cuda_overlap(out[k], dx_memory))
                return NULL;
        for (int k = 1; k < DSI_CUDA_INPUTS; k++)
            if (dsi_cuda_overlap(in[k], dx_memory)) return NULL;
        if (of->y == dy->p && of->m * of->n == n && of->ys[2] == 1 && of->ys[1] == of->n &&
            of->epilogue == K_EPILOGUE_NONE)
            p = of;
    }
    return p;
}

/* ---- the gradient of x -------------------------------------------------------- */

/* Whether the cross entropy reads or writes memory of `own`. part is written
 * over: the kernel is done with it when it fills, and when it writes dx. */
static bool entropy_touches(const dsi_cuda_entropy_args *p, Extent own)
{
    const long long n = p->rows / p->inner, x[] = {n, p->columns, p->inner}, row[] = {n, p->inner},
                    one[] = {1};
    const Extent all[] = {
        dsi_cuda_extent_of(p->x, p->dtype, 3, x, p->xs),
        dsi_cuda_extent_of(p->label, DS_I64, 2, row, p->label_s),
        dsi_cuda_extent_of(p->weight, p->weight_dtype, 1, &p->columns, &p->weight_s),
        dsi_cuda_extent_of(p->lse, p->stats_dtype, 2, row, p->lse_s),
        dsi_cuda_extent_of(p->loss, p->loss_dtype, 1, one, one),
        dsi_cuda_extent_of(p->divisor, p->stats_dtype, 1, one, one)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (dsi_cuda_overlap(all[i], own)) return true;
    return false;
}

bool dsi_cuda_held_fill(dsi_stream *s, double value, const dsi_view *y)
{
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_ENTROPY);
    dsi_cuda_entropy_args *p = h ? &h->last.entropy : NULL;
    int64_t bytes = (int64_t)ds_dtype_size(y->dtype);
    if (!p || !(s->device->launch_fusions & DSI_FUSE_ENTROPY) || p->seed ||
        dsi_cuda_elements_in(y) != 1 || (int)y->dtype != p->loss_dtype ||
        entropy_touches(p, dsi_cuda_memory_of(y->p, bytes)))
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
    struct dsi_cuda_held *h = dsi_cuda_held_as(s, DSI_CUDA_ENTROPY);
    dsi_cuda_entropy_args *e = h ? &h->last.entropy : NULL;
    if (!e || !e->seed || e->dx || !is_gradient(e, p)) return false;
    const long long d[] = {p->rows / p->inner, p->columns, p->inner}, one[] = {1};
    Extent dx = dsi_cuda_extent_of(p->dx, p->dtype, 3, d, p->dxs);
    if (entropy_touches(e, dx) || (h->last.linear.m && !dsi_cuda_is_near(dx)) ||
        dsi_cuda_overlap(dx, dsi_cuda_extent_of(p->loss, p->loss_dtype, 1, one, one)))
        return false;
    e->dx = p->dx;
    for (int i = 0; i < 3; i++) e->dxs[i] = p->dxs[i];
    if (!h->last.linear.m) *status = dsi_cuda_held_launch(s->device->own);
    return true;
}
