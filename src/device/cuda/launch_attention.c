/* device/cuda/launch_attention.c: attention of kernels.h.
 *
 *     p_ij = exp(scale q_i k_j + mask_ij - lse_i)
 *     y_i  = sum over j of p_ij v_j
 *     ds   = p (dp - dot) scale, dp_ij = dy_i v_j, dot_i = sum(dy_i y_i)
 *     dq   = ds k, dk = ds^T q, dv = p^T dy
 *
 * Dropout multiplies p in y and dv, and dp, by keep / (1 - p), which kernels
 * draw again from seed and place.
 *
 * Scores are never stored: both directions compute them by tiles. Source: Dao
 * et al., FlashAttention, arXiv:2205.14135, and for the shared keys of K < B
 * batches Ainslie et al., GQA, arXiv:2305.13245. Tiles are 64 rows (float64:
 * 32), as in attention.cuh; 16 bits are multiplied by tensor cores from compute
 * capability 8.0 on, by attention_flash.cuh where operands are aligned, heads
 * narrow, and there is no mask. Grid, tiles and shared memory here and there
 * must agree.
 * SPDX-License-Identifier: MIT */
#include "kernels/attention.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"
#include "base/int.h"

#include <math.h>

/* [B,...] as [1,B,...]; absent views stay. */
static dsi_view with_front(dsi_view v, int n)
{
    if (v.n == n || !v.p) return v;
    for (int i = v.n++; i > 0; i--) v.d[i] = v.d[i - 1], v.s[i] = v.s[i - 1];
    v.d[0] = 1, v.s[0] = 0;
    return v;
}

/* Strides of batch and row, in elements; that of the last dimension is 1, which
 * attention_check has asked for. */
static void rows_of(long long to[3], const dsi_view *v)
{
    for (int i = 0; i < 3; i++) to[i] = v->s[i];
}

/* The arguments that forward and backward share; the caller sets the outputs.
 * group: the number of batches of q that share a batch of k and v. A mask with
 * stride 0 along a dimension is broadcast; without one, its strides stay 0. */
static dsi_cuda_attention_args attention_args(const dsi_attention *c, const dsi_view *q,
                                              const dsi_view *k, const dsi_view *v,
                                              const dsi_view *mask, const dsi_view *y,
                                              const dsi_view *lse)
{
    dsi_cuda_attention_args p = {.q = q->p,
                                 .k = k->p,
                                 .v = v->p,
                                 .mask = mask->p,
                                 .y = y->p,
                                 .lse = lse->p,
                                 .batches = q->d[0] * q->d[1],
                                 .heads = q->d[1],
                                 .group = q->d[1] && k->d[1] ? q->d[1] / k->d[1] : 1,
                                 .l = q->d[2],
                                 .s = k->d[2],
                                 .d = q->d[3],
                                 .e = v->d[3],
                                 .scale = c->scale,
                                 .softcap = c->softcap,
                                 .softcap_inverse = c->softcap > 0 ? 1 / c->softcap : 0,
                                 .window = c->window < q->d[2] ? c->window : 0,
                                 .dtype = (int)q->dtype,
                                 .mask_dtype = (int)mask->dtype,
                                 .causal = c->causal,
                                 .factor = 1};
    rows_of(p.qs, q), rows_of(p.ks, k), rows_of(p.vs, v), rows_of(p.ys, y), rows_of(p.lse_s, lse);
    for (int i = 0; i < 4 && mask->p; i++) p.mask_s[i] = mask->s[i];
    return p;
}

/* random NULL: without dropout. */
static void set_dropout(dsi_cuda_attention_args *a, const dsi_philox *random, double p)
{
    if (!random) return;
    a->drops = 1;
    a->kept = (unsigned)fmin((1 - p) * 0x1p32, UINT32_MAX);
    a->factor = p < 1 ? 1 / (1 - p) : 0;
    a->seed = random->seed, a->offset = random->offset;
    a->fresh_seed = (const unsigned long long *)random->fresh_seed;
}

/* A dtype and unit strides, as kernels take them. */
static ds_status attention_check(const char *op, int n, const dsi_view *const *views)
{
    ds_status status = dsi_cuda_floating(op, views[0]->dtype);
    for (int i = 0; i < n && status == DS_OK; i++)
        if (views[i]->s[3] != 1 && views[i]->d[3] > 1)
            status = dsi_fail(DS_EINVAL,
                              "%s: operand %d has stride %lld along its last dimension: expected 1",
                              op, i, (long long)views[i]->s[3]);
    return status;
}

/* Heads as attention_flash.cuh takes them: the width to which they are padded,
 * or
 * 0. */
static int64_t flash_width(const dsi_stream *s, int n, const dsi_view *const *views,
                           const dsi_view *mask)
{
    const dsi_cuda_gpu *g = s->device->own;
    int64_t width = 0;
    bool fits = g->capability >= 80 && !mask->p;
    for (int i = 0; i < n && fits; i++) {
        const dsi_view *v = views[i];
        fits = (v->dtype == DS_F16 || v->dtype == DS_BF16) && (uintptr_t)v->p % 16 == 0 &&
               v->d[3] && v->d[3] % 8 == 0 && v->d[2] < INT32_MAX;
        for (int k = 0; k < 3; k++) fits = fits && (v->d[k] == 1 || v->s[k] % 8 == 0);
        width = dsi_max(width, v->d[3]);
    }
    return !fits || width > 128 ? 0 : width > 64 ? 128 : 64;
}

/* at: a batch and a head; elements have `size` bytes. */
static void *operand_from(const void *p, const long long *s, const int64_t *at, int64_t size)
{
    return p ? (void *)((uintptr_t)p + (uintptr_t)((at[0] * s[0] + at[1] * s[1]) * size)) : NULL;
}

/* From the batch `first` of q on, which kernels then count as 0. */
static dsi_cuda_attention_args batches_from(const dsi_cuda_attention_args *all, int64_t first)
{
    dsi_cuda_attention_args p = *all;
    int64_t size = (int64_t)ds_dtype_size((ds_dtype)p.dtype), sum = p.dtype == DS_F64 ? 8 : 4;
    int64_t q[2] = {first / p.heads, first % p.heads}, k[2] = {q[0], q[1] / p.group};
    p.q = operand_from(p.q, p.qs, q, size), p.dq = operand_from(p.dq, p.dqs, q, size);
    p.k = operand_from(p.k, p.ks, k, size), p.dk = operand_from(p.dk, p.dks, k, size);
    p.v = operand_from(p.v, p.vs, k, size), p.dv = operand_from(p.dv, p.dvs, k, size);
    p.y = operand_from(p.y, p.ys, q, size), p.out = operand_from(p.out, p.ys, q, size);
    p.dy = operand_from(p.dy, p.dys, q, size), p.lse = operand_from(p.lse, p.lse_s, q, sum);
    p.mask = operand_from(p.mask, p.mask_s, q, (int64_t)ds_dtype_size((ds_dtype)p.mask_dtype));
    p.dot = operand_from(p.dot, (long long[]){p.l, 0}, (int64_t[]){first, 0}, sum);
    p.offset += (uint64_t)first;
    return p;
}

/* As many batches from `first` on as a grid takes along z: whole batches
 * of `heads`, else whole groups of one of them, else a piece of a group. */
static int64_t batches_at_once(int64_t first, int64_t heads, int64_t group)
{
    const int64_t most = dsi_cuda_most_yz();
    if (heads <= most) return most / heads * heads;
    if (group <= most) return dsi_min(most / group * group, heads - first % heads);
    return dsi_min(most, group - first % group);
}

/* A block of the grid for each batch of q (keys: of k) along z. */
static ds_status batches_launch(dsi_stream *s, dsi_cuda_family family, const char *kernel,
                                const char *suffix, dsi_cuda_grid grid, bool keys,
                                const dsi_cuda_attention_args *all)
{
    ds_status status = DS_OK;
    int64_t group = keys ? all->group : 1, batches = all->batches / group, n;
    for (int64_t first = 0; status == DS_OK && first < batches; first += n) {
        n = batches_at_once(first, all->heads / group, keys ? 1 : all->group);
        n = dsi_min(n, batches - first);
        dsi_cuda_attention_args p = batches_from(all, first * group);
        grid.blocks[2] = (unsigned)n;
        status = dsi_cuda_launch(s, family, kernel, suffix, grid, &p);
    }
    return status;
}

/* Without and with dropout. */
static const char *const flash[] = {"flash", "flash_dropout"},
                         *const flash_dq[] = {"flash_dq", "flash_dropout_dq"},
                         *const flash_dkv[] = {"flash_dkv", "flash_dropout_dkv"};

/* Blocks: tiles of 64 rows, batches. shared: lines of `width` elements, of
 * which N, as in attention_flash.cuh, depends on the width; floats. */
static ds_status flash_launch(dsi_stream *s, const char *const *kernel, int64_t rows, int64_t width,
                              bool keys, int64_t lines, int64_t floats,
                              const dsi_cuda_attention_args *p)
{
    const char *suffix[2][2] = {{"_64_f16", "_64_bf16"}, {"_128_f16", "_128_bf16"}};
    dsi_cuda_grid grid = dsi_cuda_blocks((rows + 63) / 64, 128);
    grid.shared = (unsigned)(lines * width * 2 + floats * (int64_t)sizeof(float));
    return batches_launch(s, p->drops ? DSI_CUDA_attention_flash_dropout : DSI_CUDA_attention_flash,
                          kernel[p->drops], suffix[width == 128][p->dtype == DS_BF16], grid, keys,
                          p);
}

/* Two kernels: dq, which leaves dot for the one of dk and dv. */
static ds_status flash_backward(dsi_stream *s, int64_t width, const dsi_cuda_attention_args *p)
{
    int64_t n = width == 64 ? 64 : 16;
    ds_status status = flash_launch(s, flash_dq, p->l, width, false, 128 + 4 * n, 64, p);
    if (status != DS_OK) return status;
    return flash_launch(s, flash_dkv, p->s, width, true, 128 + 4 * n, 4 * n, p);
}

/* Blocks: tiles of rows, pieces of `width`, batches. */
static ds_status attention_launch(dsi_stream *s, const char *kernel, int64_t rows, int64_t width,
                                  bool keys, const dsi_cuda_attention_args *p)
{
    int64_t tile = p->dtype == DS_F64 ? 32 : 64;
    const dsi_cuda_gpu *g = s->device->own;
    bool mma = g->capability >= 80 && (p->dtype == DS_F16 || p->dtype == DS_BF16);
    const char *suffix = mma ? dsi_cuda_dtype_suffix((ds_dtype)p->dtype)
                             : dsi_cuda_suffix((ds_dtype)p->dtype);
    dsi_cuda_grid grid = dsi_cuda_blocks((rows + tile - 1) / tile, 256);
    grid.blocks[1] = (unsigned)((width + tile - 1) / tile);
    return batches_launch(s, mma ? DSI_CUDA_attention_mma : DSI_CUDA_attention, kernel, suffix,
                          grid, keys, p);
}

static ds_status attention_forward(dsi_stream *s, const dsi_philox *random, double dropout,
                                   const dsi_attention *c, dsi_view q, dsi_view k, dsi_view v,
                                   dsi_view mask, dsi_view y, dsi_view lse)
{
    q = with_front(q, 4), k = with_front(k, 4), v = with_front(v, 4), y = with_front(y, 4);
    mask = with_front(mask, 4), lse = with_front(lse, 3);
    dsi_cuda_attention_args p = attention_args(c, &q, &k, &v, &mask, &y, &lse);
    const dsi_view *views[] = {&q, &k, &v, &y};
    ds_status status = attention_check("attention", 4, views);
    int64_t width = flash_width(s, 4, views, &mask);
    p.out = y.p, set_dropout(&p, random, dropout);
    if (status != DS_OK) return status;
    return width ? flash_launch(s, flash, p.l, width, false, 64 + 4 * 64, 0, &p)
                 : attention_launch(s, "attention", p.l, p.e, false, &p);
}

ds_status dsi_cuda_attention(dsi_stream *s, const dsi_attention *c, dsi_view q, dsi_view k,
                             dsi_view v, dsi_view mask, dsi_view y, dsi_view lse)
{
    return attention_forward(s, NULL, 0, c, q, k, v, mask, y, lse);
}

ds_status dsi_cuda_attention_dropout(dsi_stream *s, const dsi_philox *random, double p,
                                     const dsi_attention *c, dsi_view q, dsi_view k, dsi_view v,
                                     dsi_view mask, dsi_view y, dsi_view lse)
{
    return attention_forward(s, random, p, c, q, k, v, mask, y, lse);
}

/* Three kernels in order: dot, then dq by tiles of queries, then dk and dv by
 * tiles of keys, which add what all batches of a group give. So each sum is in
 * one block, and its order is fixed without atomics. */
static ds_status tiles_backward(dsi_stream *s, const dsi_cuda_attention_args *p)
{
    ds_status status = dsi_cuda_launch(s, DSI_CUDA_attention, "attention_dot",
                                       dsi_cuda_suffix((ds_dtype)p->dtype),
                                       dsi_cuda_blocks((p->batches * p->l + 3) / 4, 128), p);
    if (status == DS_OK) status = attention_launch(s, "attention_dq", p->l, p->d, false, p);
    if (status != DS_OK) return status;
    return attention_launch(s, "attention_dkv", p->s, dsi_max(p->d, p->e), true, p);
}

static ds_status attention_backward(dsi_stream *s, const dsi_philox *random, double dropout,
                                    const dsi_attention *c, dsi_view dy, dsi_view q, dsi_view k,
                                    dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                                    dsi_view dq, dsi_view dk, dsi_view dv)
{
    q = with_front(q, 4), k = with_front(k, 4), v = with_front(v, 4), y = with_front(y, 4);
    dq = with_front(dq, 4), dk = with_front(dk, 4), dv = with_front(dv, 4);
    dy = with_front(dy, 4), mask = with_front(mask, 4), lse = with_front(lse, 3);
    dsi_cuda_attention_args p = attention_args(c, &q, &k, &v, &mask, &y, &lse);
    const dsi_view *views[] = {&q, &k, &v, &y, &dy, &dq, &dk, &dv};
    size_t bytes = (size_t)(p.batches * p.l) * (q.dtype == DS_F64 ? sizeof(double) : sizeof(float));
    ds_status status = attention_check("attention_dx", 8, views);
    if (status != DS_OK) return status;
    p.dy = dy.p, p.dq = dq.p, p.dk = dk.p, p.dv = dv.p, set_dropout(&p, random, dropout);
    rows_of(p.dys, &dy), rows_of(p.dqs, &dq), rows_of(p.dks, &dk), rows_of(p.dvs, &dv);
    if (bytes && !(p.dot = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    int64_t width = flash_width(s, 8, views, &mask);
    status = width ? flash_backward(s, width, &p) : tiles_backward(s, &p);
    dsi_cuda_scratch_free(s, p.dot, bytes);
    return status;
}

ds_status dsi_cuda_attention_dx(dsi_stream *s, const dsi_attention *c, dsi_view dy, dsi_view q,
                                dsi_view k, dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                                dsi_view dq, dsi_view dk, dsi_view dv)
{
    return attention_backward(s, NULL, 0, c, dy, q, k, v, mask, y, lse, dq, dk, dv);
}

ds_status dsi_cuda_attention_dropout_dx(dsi_stream *s, const dsi_philox *random, double p,
                                        const dsi_attention *c, dsi_view dy, dsi_view q, dsi_view k,
                                        dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                                        dsi_view dq, dsi_view dk, dsi_view dv)
{
    return attention_backward(s, random, p, c, dy, q, k, v, mask, y, lse, dq, dk, dv);
}
