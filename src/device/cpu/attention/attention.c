/* device/cpu/attention/attention.c: scaled dot product attention, without ever
 * holding the scores [L,S].
 * Source: Dao et al., FlashAttention, arXiv:2205.14135. Shapes: q [B,L,D], k [K,S,D],
 * v [K,S,E], y [B,L,E], lse [B,L]; a row is one query. The B / K batches of q
 * that share a batch of k and v (grouped heads) are a group.
 *
 * For each block of ROWS queries, for each block of KEYS keys: scores
 * [ROWS][KEYS], exp, product with the values. Forward keeps the maximum and the
 * sum of each row over the keys so far, and scales both and the row's output
 * when the maximum grows. It stores lse = log sum exp of the row's scores, from
 * which backward computes the softmax of any block again. A block of scores has
 * 13.5 KiB and stays in the first cache.
 *
 * Products are computed by the tiles of tile.h, which read a block of keys
 * (and, in backward, of values) along the keys. So all blocks are transposed
 * once, before the first row, unless there are few rows.
 *
 * Invariants: threads divide the dimension in front, if there is one of enough
 * indices; else blocks of rows in forward, and batches of k in backward, where
 * all rows of the group add to dk and dv. So no sum depends on them. A row
 * that attends to nothing (its scores are all -inf) gives 0 and no gradient, as
 * in PyTorch.
 *
 * attention_bf16.c and attention_parts.c compute the same in bfloat16, by the
 * instructions for it, and in float32, by the matrix unit.
 * SPDX-License-Identifier: MIT */
#include "attention.h"

#include "device/cpu/gemm/dots.h"
#include "device/cpu/gemm/tile.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"

#include <stdatomic.h>

#define ROWS        36  /* queries of a block: whole tiles, but with 8 rows a tile */
#define GAPS        512 /* elements, more than lie between the float32 copies of a slice */
#define GRAIN_FLOPS 5e5 /* of an iteration of a parallel loop, at least */

static int64_t key_blocks(const dsi_view *k) { return (k->d[1] + KEYS - 1) / KEYS; }

/* s[r][c] = a_r b_c, where b are rows of k from `key` on, or of v; s has rows
 * of KEYS. */
static void products_f32(const dsi_view *k, const float *transposed, int64_t batch, int64_t key,
                         const float *a, int64_t am, float *s, int64_t rows, int64_t cols)
{
    int64_t depth = k->d[2];
    if (!transposed) {
        const float *b = (const float *)k->p + batch * k->s[0] + key * k->s[1];
        dots(
            (dot_operands){.a = a, .b = b, .am = am, .bn = k->s[1], .k = depth, .y = s, .ym = KEYS},
            rows, cols);
        return;
    }
    const float *b = transposed + (batch * key_blocks(k) + key / KEYS) * depth * KEYS;
    for (int64_t j = 0; j < cols; j += TILE_COLS) {
        tile_operands t = {.a = a,
                           .am = am,
                           .ak = 1,
                           .b = b + j,
                           .bk = KEYS,
                           .k = depth,
                           .y = s + j,
                           .ym = KEYS,
                           .a_tile = TILE_ROWS * am};
        tile(t, rows, (int)(cols - j < TILE_COLS ? cols - j : TILE_COLS));
    }
}

static void products_f64(const dsi_view *k, const float *transposed, int64_t batch, int64_t key,
                         const double *a, int64_t am, double *s, int64_t rows, int64_t cols)
{
    const double *b = (const double *)k->p + batch * k->s[0] + key * k->s[1];
    int64_t bn = k->s[1], depth = k->d[2];
    (void)transposed;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double sum = 0;
            for (int64_t i = 0; i < depth; i++) sum += a[r * am + i] * b[c * bn + i];
            s[r * KEYS + c] = sum;
        }
}

/* y[i][j] (+)= sum over k of a[i am + k ak] b[k bk + j] */
static void multiply_f32(bool add, const float *a, int64_t am, int64_t ak, const float *b,
                         int64_t bk, int64_t depth, float *y, int64_t ym, int64_t rows,
                         int64_t cols)
{
    if (!cols) return;
    int64_t tiles = (cols + TILE_COLS - 1) / TILE_COLS, vectors = (cols + VF - 1) / VF;
    int64_t width = (vectors + tiles - 1) / tiles * VF; /* none is much narrower than the others */
    for (int64_t j = 0; j < cols; j += width) {
        tile_operands t = {.a = a,
                           .am = am,
                           .ak = ak,
                           .b = b + j,
                           .bk = bk,
                           .k = depth,
                           .y = y + j,
                           .ym = ym,
                           .add = add,
                           .a_tile = TILE_ROWS * am};
        tile(t, rows, (int)(cols - j < width ? cols - j : width));
    }
}

static void multiply_f64(bool add, const double *a, int64_t am, int64_t ak, const double *b,
                         int64_t bk, int64_t depth, double *y, int64_t ym, int64_t rows,
                         int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; !add && j < cols; j++) y[i * ym + j] = 0;
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < cols; j++) y[i * ym + j] += a[i * am + k * ak] * b[k * bk + j];
    }
}

static double row_max_f64(int64_t n, const double *x) { return max_line_f64(n, x); }
static double row_sum_f64(int64_t n, const double *x) { return sum_line_f64(n, x); }

static double dot_f64(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

#define T           float
#define NAMED(name) name##_f32
#include "attention.inc"
#define T           double
#define NAMED(name) name##_f64
#include "attention.inc"

/* ---- the kernels ----------------------------------------------------------------------------------------- */

/* Items begin .. end-1, counted over [B][blocks of ROWS queries]. */
static void run_forward(void *arg, int64_t begin, int64_t end)
{
    const attention_job *x = arg;
    int64_t length = x->q.d[1], blocks = (length + ROWS - 1) / ROWS;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i % blocks * ROWS, rows = length - row < ROWS ? length - row : ROWS;
        if (x->q.dtype == DS_F32)
            forward_f32(x, i / blocks, row, rows);
        else
            forward_f64(x, i / blocks, row, rows);
    }
}

/* Batches of k begin .. end-1. */
static void run_backward(void *arg, int64_t begin, int64_t end)
{
    const attention_job *x = arg;
    for (int64_t batch = begin; batch < end; batch++) {
        if (x->q.dtype == DS_F32)
            backward_f32(x, batch);
        else
            backward_f64(x, batch);
    }
}

static int64_t attention_group(const dsi_view *q, const dsi_view *k)
{
    return k->d[0] ? q->d[0] / k->d[0] : 1;
}

/* True if v is contiguous along its last dimension, which all products assume. */
static bool unit_strides(const char *kernel, int n, const dsi_view *const *views)
{
    static const char *const names[] = {"q", "k", "v", "y", "dy", "dq", "dk", "dv"};
    for (int i = 0; i < n; i++)
        if (views[i]->s[2] != 1 && views[i]->d[2] > 1)
            return dsi_invalid("%s: %s has stride %lld along its last dimension: expected 1",
                               kernel, names[i], (long long)views[i]->s[2]);
    return true;
}

/* k [B,S,D] -> to [B, blocks, D, KEYS] */
static ds_status attention_transpose(dsi_stream *s, const dsi_view *k, float *to)
{
    int64_t whole = k->d[1] / KEYS, left = k->d[1] % KEYS, depth = k->d[2], block = depth * KEYS;
    int64_t each = key_blocks(k) * block;
    dsi_view x = {
        k->p, DS_F32, 4, {k->d[0], whole, depth, KEYS}, {k->s[0], KEYS * k->s[1], 1, k->s[1]}};
    dsi_view y = {to, DS_F32, 4, {k->d[0], whole, depth, KEYS}, {each, block, KEYS, 1}};
    ds_status status = whole ? KERNEL(copy)(s, x, y) : DS_OK;
    x.p = (float *)k->p + whole * KEYS * k->s[1], y.p = to + whole * block;
    x.d[1] = y.d[1] = 1, x.d[3] = y.d[3] = left;
    return status == DS_OK && left ? KERNEL(copy)(s, x, y) : status;
}

/* Transposed keys, and values if `back`, in scratch memory that is to be
 * released: x->keys. */
static ds_status transpose_all(dsi_stream *s, attention_job *x, bool back)
{
    if (x->q.dtype != DS_F32 || x->q.d[1] < FEW_ROWS) return DS_OK;
    int64_t keys = x->k.d[0] * key_blocks(&x->k) * KEYS;
    x->keys = dsi_scratch(s, (size_t)(keys * (x->k.d[2] + (back ? x->v.d[2] : 0))) * sizeof(float));
    if (!x->keys) return DS_ENOMEM;
    ds_status status = attention_transpose(s, &x->k, x->keys);
    if (!back || status) return status;
    x->values = x->keys + keys * x->k.d[2];
    return attention_transpose(s, &x->v, x->values);
}

/* Multiplications and additions of one row in forward. */
static double flops(const attention_job *x)
{
    return 2 * (double)x->k.d[1] * (double)(x->q.d[2] + x->v.d[2] + 1);
}

/* Batches of k of a slice, `each` elements of 16 bits in one; all are computed
 * in float32. */
static int64_t attention_slice(const dsi_view *k, int64_t each)
{
    int64_t n = slice_items(each + GAPS);
    return n < k->d[0] ? n : k->d[0];
}

/* Index i of the dimension in front. */
static dsi_view attention_at(dsi_view v, int64_t i)
{
    if (!v.p) return v;
    v.p = (char *)v.p + i * v.s[0] * (int64_t)ds_dtype_size(v.dtype);
    v.n--;
    for (int k = 0; k < v.n; k++) v.d[k] = v.d[k + 1], v.s[k] = v.s[k + 1];
    return v;
}

typedef struct attention_front {
    dsi_stream *s;
    const attention_job *all; /* views with the dimension in front */
    bool back;
    _Atomic ds_status status;
} attention_front;

/* Indices begin .. end-1 of the dimension in front. */
static void run_front(void *arg, int64_t begin, int64_t end)
{
    attention_front *f = arg;
    const attention_job *x = f->all;
    for (int64_t i = begin; i < end && !atomic_load(&f->status); i++) {
        dsi_view q = attention_at(x->q, i), k = attention_at(x->k, i), v = attention_at(x->v, i);
        dsi_view mask = attention_at(x->mask, i), y = attention_at(x->y, i),
                 lse = attention_at(x->lse, i);
        ds_status status = f->back ? KERNEL(attention_dx)(f->s, &x->c, attention_at(x->dy, i), q, k,
                                                          v, mask, y, lse, attention_at(x->dq, i),
                                                          attention_at(x->dk, i),
                                                          attention_at(x->dv, i))
                                   : KERNEL(attention)(f->s, &x->c, q, k, v, mask, y, lse);
        if (status) atomic_store(&f->status, status);
    }
}

/* Several threads divide the indices if they and their work are enough for all.
 * Beside a large head of 16 bits, whose float32 copies would be the calling
 * thread's, they divide what is in an index. */
static ds_status attention_run_front(dsi_stream *s, const attention_job *x, bool back)
{
    attention_front f = {.s = s, .all = x, .back = back};
    int64_t n = x->q.d[0], heads = x->k.d[1] ? x->k.d[1] : 1;
    int64_t each = 2 * (x->q.d[1] / heads * x->q.d[2] + x->k.d[2]) * (x->q.d[3] + x->v.d[3]);
    bool small = !is_half(x->q.dtype) || each * (int64_t)sizeof(float) < (int64_t)IN_F32_SMALL / 2;
    double work = 2.0 * (double)(x->q.d[1] * x->q.d[2]) *
                  (double)(x->k.d[2] * (x->q.d[3] + x->v.d[3]));
    int64_t grain = 1 + (int64_t)(GRAIN_FLOPS / (work + 1));
    if (small && n / grain >= 2 * ds_threads())
        dsi_parallel(n, grain, run_front, &f);
    else
        run_front(&f, 0, n);
    if (f.status == DS_ENOMEM)
        return dsi_fail(DS_ENOMEM, "no memory for the transposed keys of attention");
    ds_status status = f.status;
    f.status = DS_OK;
    if (status) run_front(&f, 0, 1); /* for the message, which another thread has */
    return status;
}

ds_status KERNEL(attention)(dsi_stream *s, const dsi_attention *c, dsi_view q, dsi_view k,
                            dsi_view v, dsi_view mask, dsi_view y, dsi_view lse)
{
    int64_t group = attention_group(&q, &k), width = q.d[2] + v.d[2];
    attention_job x = {.c = *c, .group = group};
    x.q = q, x.k = k, x.v = v, x.mask = mask, x.y = y, x.lse = lse;
    if (q.n == 4) return attention_run_front(s, &x, false);
    const dsi_view *all[] = {&q, &k, &v, &y};
    if (attention_bf16_takes(&x, 4, all)) return attention_bf16_forward(s, &x);
    if (attention_parts_takes(&x, 4, all)) {
        bool exact;
        ds_status status = attention_parts_forward(s, &x, &exact);
        if (status || exact) return status;
    }
    if (is_half(q.dtype)) {
        int64_t n = attention_slice(&k, (group * q.d[1] + k.d[1]) * width), m = n * group;
        ds_status status = DS_OK;
        if (n == k.d[0])
            IN_F32(s, 1, KERNEL(attention)(s, c, q, k, v, mask, y, lse), &y, &q, &k, &v);
        for (int64_t i = 0; !status && i < k.d[0]; i += n)
            status = KERNEL(attention)(s, c, view_slice(q, i * group, m), view_slice(k, i, n),
                                       view_slice(v, i, n), view_slice(mask, i * group, m),
                                       view_slice(y, i * group, m), view_slice(lse, i * group, m));
        return status;
    }
    if (q.dtype != DS_F32 && q.dtype != DS_F64) return no_dtype("attention", q.dtype);
    if (!unit_strides("attention", 4, all)) return DS_EINVAL;
    int64_t items = q.d[0] * ((q.d[1] + ROWS - 1) / ROWS);
    ds_status status = transpose_all(s, &x, false);
    if (!status)
        dsi_parallel(items, 1 + (int64_t)(GRAIN_FLOPS / ROWS / (flops(&x) + 1)), run_forward, &x);
    dsi_scratch_release(s, x.keys);
    return status;
}

ds_status KERNEL(attention_dx)(dsi_stream *s, const dsi_attention *c, dsi_view dy, dsi_view q,
                               dsi_view k, dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                               dsi_view dq, dsi_view dk, dsi_view dv)
{
    int64_t group = attention_group(&q, &k), width = q.d[2] + v.d[2];
    attention_job x = {*c, group, q, k, v, mask, y, lse, dy, dq, dk, dv, NULL, NULL};
    if (q.n == 4) return attention_run_front(s, &x, true);
    const dsi_view *all[] = {&q, &k, &v, &y, &dy, &dq, &dk, &dv};
    if (attention_bf16_takes(&x, 8, all)) return attention_bf16_backward(s, &x);
    if (attention_parts_takes(&x, 8, all)) {
        bool exact;
        ds_status status = attention_parts_backward(s, &x, &exact);
        if (status || exact) return status;
    }
    if (is_half(q.dtype)) {
        int64_t n = attention_slice(&k, 2 * (group * q.d[1] + k.d[1]) * width), m = n * group;
        ds_status status = DS_OK;
        if (n == k.d[0])
            IN_F32(s, 3, KERNEL(attention_dx)(s, c, dy, q, k, v, mask, y, lse, dq, dk, dv), &dq,
                   &dk, &dv, &dy, &q, &k, &v, &y);
        for (int64_t i = 0; !status && i < k.d[0]; i += n)
            status = KERNEL(attention_dx)(
                s, c, view_slice(dy, i * group, m), view_slice(q, i * group, m),
                view_slice(k, i, n), view_slice(v, i, n), view_slice(mask, i * group, m),
                view_slice(y, i * group, m), view_slice(lse, i * group, m),
                view_slice(dq, i * group, m), view_slice(dk, i, n), view_slice(dv, i, n));
        return status;
    }
    if (q.dtype != DS_F32 && q.dtype != DS_F64) return no_dtype("attention_dx", q.dtype);
    if (!unit_strides("attention_dx", 8, all)) return DS_EINVAL;
    double each = flops(&x) * (double)(group * q.d[1]) * 2.5;
    ds_status status = transpose_all(s, &x, true);
    if (!status) dsi_parallel(k.d[0], 1 + (int64_t)(GRAIN_FLOPS / (each + 1)), run_backward, &x);
    dsi_scratch_release(s, x.keys);
    return status;
}
