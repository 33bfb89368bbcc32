/* device/cpu/attention.c: scaled dot product attention, without ever holding the scores [L,S].
 *
 * ROWS queries go over the keys KEYS at a time. Forward keeps each row's maximum and sum so far, and
 * scales what it has when the maximum grows; it leaves lse = log of the row's sum, from which backward
 * makes the softmax of any block again (Dao et al., arXiv:2205.14135). Products run on the tiles of
 * tile.h. Forward is divided by blocks of rows; backward, where all rows add to dk and dv, by batch.
 *
 * A row that attends to nothing (its scores are all -inf) gives 0, and no gradient, as in PyTorch.
 * SPDX-License-Identifier: MIT */
#include "table.h"
#include "tile.h"
#include "vmath.h"
#include "wide.h"

#define ROWS        16
#define KEYS        64
#define GRAIN_FLOPS 5e5 /* of a part of a parallel loop */

typedef struct {
    double scale;
    bool causal;
    dsi_view q, k, v, mask, y, lse;
    dsi_view dy, dq, dk, dv; /* backward */
} job;

/* The keys that one of the rows before `end` attends to come before this one. */
static int64_t keys_seen(const job *x, int64_t end)
{
    return x->causal && end < x->k.d[1] ? end : x->k.d[1];
}

/* s[r][c] = a_r b_c, rows of depth elements; s has rows of KEYS */
static void products_f32(const float *a, int64_t am, const float *b, int64_t bn, int64_t depth,
                         float *s, int64_t rows, int64_t cols)
{
    dots((dot_operands){a, b, am, bn, depth, NULL, s, KEYS}, rows, cols);
}

static void products_f64(const double *a, int64_t am, const double *b, int64_t bn, int64_t depth,
                         double *s, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++) sum += a[r * am + k] * b[c * bn + k];
            s[r * KEYS + c] = sum;
        }
}

/* y[i][j] += sum over k of a[i am + k ak] b[k bk + j] */
static void add_products_f32(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk,
                             int64_t depth, float *y, int64_t ym, int64_t rows, int64_t cols)
{
    for (int64_t j = 0; j < cols; j += TILE_COLS) {
        tile_operands t = {a, am, ak, b + j, bk, depth, NULL, y + j, ym, true, TILE_ROWS * am};
        tile(t, rows, (int)(cols - j < TILE_COLS ? cols - j : TILE_COLS));
    }
}

static void add_products_f64(const double *a, int64_t am, int64_t ak, const double *b, int64_t bk,
                             int64_t depth, double *y, int64_t ym, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < cols; j++) y[i * ym + j] += a[i * am + k * ak] * b[k * bk + j];
}

#define T           float
#define NAMED(name) name##_f32
#include "attention.inc"
#define T           double
#define NAMED(name) name##_f64
#include "attention.inc"

/* ---- the kernels ----------------------------------------------------------------------------------------- */

static void run_forward(void *arg, int64_t begin, int64_t end)
{
    const job *x = arg;
    int64_t length = x->q.d[1], blocks = (length + ROWS - 1) / ROWS;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i % blocks * ROWS, rows = length - row < ROWS ? length - row : ROWS;
        if (x->q.dtype == DS_F32)
            forward_f32(x, i / blocks, row, rows);
        else
            forward_f64(x, i / blocks, row, rows);
    }
}

static void run_backward(void *arg, int64_t begin, int64_t end)
{
    const job *x = arg;
    for (int64_t batch = begin; batch < end; batch++) {
        if (x->q.dtype == DS_F32)
            backward_f32(x, batch);
        else
            backward_f64(x, batch);
    }
}

static bool unit_stride(const char *kernel, const char *name, const dsi_view *v)
{
    if (v->s[2] == 1 || v->d[2] < 2) return true;
    dsi_fail(DS_EINVAL, "%s: %s has stride %lld along its last dimension: expected 1", kernel, name,
             (long long)v->s[2]);
    return false;
}

/* of one row of queries */
static double flops(const job *x)
{
    return 2 * (double)x->k.d[1] * (double)(x->q.d[2] + x->v.d[2] + 1);
}

ds_status KERNEL(attention)(dsi_stream *s, double scale, bool causal, dsi_view q, dsi_view k,
                            dsi_view v, dsi_view mask, dsi_view y, dsi_view lse)
{
    if (is_half(q.dtype))
        IN_F32(s, 1, KERNEL(attention)(s, scale, causal, q, k, v, mask, y, lse), &y, &q, &k, &v,
               &mask);
    job x = {
        .scale = scale, .causal = causal, .q = q, .k = k, .v = v, .mask = mask, .y = y, .lse = lse};
    if (q.dtype != DS_F32 && q.dtype != DS_F64) return no_dtype("attention", q.dtype);
    if (!unit_stride("attention", "q", &q) || !unit_stride("attention", "k", &k) ||
        !unit_stride("attention", "v", &v) || !unit_stride("attention", "y", &y))
        return DS_EINVAL;
    int64_t items = q.d[0] * ((q.d[1] + ROWS - 1) / ROWS);
    dsi_parallel(items, 1 + (int64_t)(GRAIN_FLOPS / ROWS / (flops(&x) + 1)), run_forward, &x);
    return DS_OK;
}

ds_status KERNEL(attention_dx)(dsi_stream *s, double scale, bool causal, dsi_view dy, dsi_view q,
                               dsi_view k, dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                               dsi_view dq, dsi_view dk, dsi_view dv)
{
    if (is_half(q.dtype))
        IN_F32(s, 3, KERNEL(attention_dx)(s, scale, causal, dy, q, k, v, mask, y, lse, dq, dk, dv),
               &dq, &dk, &dv, &dy, &q, &k, &v, &mask, &y);
    job x = {scale, causal, q, k, v, mask, y, lse, dy, dq, dk, dv};
    const dsi_view *all[] = {&q, &k, &v, &y, &dy, &dq, &dk, &dv};
    static const char *const names[] = {"q", "k", "v", "y", "dy", "dq", "dk", "dv"};
    if (q.dtype != DS_F32 && q.dtype != DS_F64) return no_dtype("attention_dx", q.dtype);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!unit_stride("attention_dx", names[i], all[i])) return DS_EINVAL;
    double each = flops(&x) * (double)q.d[1] * 2.5;
    dsi_parallel(q.d[0], 1 + (int64_t)(GRAIN_FLOPS / (each + 1)), run_backward, &x);
    return DS_OK;
}
