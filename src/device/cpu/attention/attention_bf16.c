/* device/cpu/attention/attention_bf16.c: attention of bfloat16, by the matrix
 * unit or vectors (gemm/tiles.h), in blocks as attention.c computes them.
 *
 * Operands are read as they are; keys and values are packed once for a call, in
 * bfloat16. Scores, their softmax and all sums are float32. A weight of the
 * softmax, or its gradient, is multiplied as the sum of two bfloat16
 * numbers, high and low, so the result is what float32 gives except the last
 * rounding: 2^-17 of a weight is lost, where one bfloat16 would lose 2^-9.
 *
 *     forward    s = q k^T         p = exp(s - max)         y += p v
 *     backward   s = q k^T, d = dy v^T -> p, ds
 *                dv += p^T dy      dq += ds k               dk += ds^T q
 *
 * Invariants: as in attention.c. Elements of a block behind its rows or keys
 * are 0 in p and ds, so that they add nothing. dk and dv of a batch of keys are
 * summed in float32 in a thread's working memory, and rounded once.
 * SPDX-License-Identifier: MIT */
#include "attention.h"

#include "base/int.h"
#include "device/cpu/cpu.h"
#include "device/cpu/gemm/tiles.h"
#include "device/cpu/simd/slots.h"
#include "device/cpu/table.h"

#ifdef HAS_TILES

#define MOST        256 /* elements of a query, or of a value */
#define GRAIN_FLOPS 4e6
#define ROWS        32 /* queries of a block */
#define BLOCK       (ROWS * KEYS)

#define T           float
#define NAMED(name) name##_f32
#include "rows.inc"
#undef T
#undef NAMED

typedef struct Bf16Job {
    const attention_job *x;
    int64_t keys, depth, width; /* S, D and E in panels of SIDE */
    /* Packed as b, of each batch of k. Columns are keys: [keys][depth or
     * width][STEP]; columns are elements: [depth or width][keys][STEP]. */
    const uint16_t *k_columns, *v_columns, *k_rows, *v_rows;
    Slots slots; /* backward */
    float *work; /* of all slots: dk and dv [SIDE keys][SIDE depth or width] */
} Bf16Job;

/* A block of float32 numbers as the sums of two bfloat16 ones. */
typedef struct Split {
    uint16_t high[BLOCK], low[BLOCK];
} Split;

/* ---- operands ------------------------------------------------------------------------------------------- */

/* `rows` lines of v from (batch, row) on -> to [ROWS][SIDE panels], with zeros
 * around them. */
static void load_rows(const dsi_view *v, int64_t batch, int64_t row, int64_t rows, int64_t panels,
                      uint16_t *to)
{
    const uint16_t *from = (const uint16_t *)v->p + batch * v->s[0] + row * v->s[1];
    memset(to, 0, (size_t)(ROWS * SIDE * panels) * sizeof *to);
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * SIDE * panels, from + r * v->s[1], (size_t)v->d[2] * sizeof *to);
}

/* from [rows][SIDE panels], each times factor[r] if there is one -> lines of v. */
static void store_rows(const float *from, const float *factor, int64_t panels, const dsi_view *v,
                       int64_t batch, int64_t row, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        uint16_t *to = (uint16_t *)v->p + batch * v->s[0] + (row + r) * v->s[1];
        const float *line = from + r * SIDE * panels;
        float scaled[MOST];
        for (int64_t i = 0; factor && i < v->d[2]; i++) scaled[i] = line[i] * factor[r];
        floats_to_bf16(factor ? scaled : line, to, v->d[2]);
    }
}

/* s, of rows x keys, -> o; zeros behind them, up to a multiple of SIDE keys. */
USES_TILES static void split_block(const float *s, int64_t rows, int64_t keys, Split *o)
{
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < keys; c += SIDE) {
            int64_t left = r < rows ? dsi_min(SIDE, keys - c) : 0, at = r * KEYS + c;
            __mmask32 wide = left < SIDE ? (1u << left) - 1 : ~0u;
            __m512 a = _mm512_maskz_loadu_ps((__mmask16)wide, s + at);
            __m512 b = _mm512_maskz_loadu_ps((__mmask16)(wide >> 16), s + at + 16);
            __m512i high = (__m512i)_mm512_cvtne2ps_pbh(b, a);
            __m512i ah = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(high));
            __m512i bh = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1));
            a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32(ah, 16)));
            b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_slli_epi32(bh, 16)));
            _mm512_storeu_si512(o->high + at, high);
            _mm512_storeu_si512(o->low + at, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
}

/* e^x, x <= 0; below 2^-126 it is 0. A NaN stays. */
USES_TILES static inline __m512 weight_of(__m512 x)
{
    static const float power[] = {0.008989339877f, 0.05582631823f, 0.240153617f, 0.6931530732f,
                                  0.9999999251f};
    __m512 t = _mm512_mul_ps(x, vf_set(1.44269504f)), e = vf_set(0.001877576766f);
    __m512 r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* t - floor(t) */
    UNROLL for (int i = 0; i < 5; i++) e = vf_fma(e, r, vf_set(power[i]));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t, vf_set(-126), _CMP_NLT_UQ), e, t);
}

/* x's upper halves, rounded; not those of an infinity */
USES_TILES static inline __m512 upper_half(__m512 x)
{
    __m512i up = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000)));
}

/* soften_f32 of s times a positive scale, and split_block of the weights. */
USES_TILES static void soften_split(const float *s, float scale, int64_t rows, int64_t keys,
                                    float *max, float *sum, float *factor, Split *o)
{
    float shift[ROWS];
    for (int64_t r = 0; r < rows; r++) {
        float most = row_max_f32(keys, s + r * KEYS) * scale;
        most = most > max[r] ? most : max[r];
        shift[r] = most == -INFINITY ? 0 : most;
        factor[r] = max[r] - shift[r];
        max[r] = most;
    }
    for (int64_t r = 0; r < rows; r++) factor[r] = EXP(factor[r]);
    for (int64_t r = 0; r < rows; r++) {
        __m512 total = vf_zero(), of_s = vf_set(scale), by = vf_set(shift[r]);
        for (int64_t at = r * KEYS, left = keys; left > 0; at += SIDE, left -= SIDE) {
            __mmask32 some = left < SIDE ? (1u << left) - 1 : ~0u;
            __mmask16 first = (__mmask16)some, second = (__mmask16)(some >> 16);
            __m512 a = _mm512_fmsub_ps(_mm512_maskz_loadu_ps(first, s + at), of_s, by);
            __m512 b = _mm512_fmsub_ps(_mm512_maskz_loadu_ps(second, s + at + 16), of_s, by);
            a = _mm512_maskz_mov_ps(first, weight_of(a));
            b = _mm512_maskz_mov_ps(second, weight_of(b));
            __m512 high_a = upper_half(a), high_b = upper_half(b);
            total = vf_add(total, vf_add(a, b));
            a = vf_sub(a, high_a), b = vf_sub(b, high_b);
            _mm512_storeu_si512(o->high + at, (__m512i)_mm512_cvtne2ps_pbh(high_b, high_a));
            _mm512_storeu_si512(o->low + at, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
        sum[r] = sum[r] * factor[r] + vf_sum(total);
    }
    memset(o->high + rows * KEYS, 0, (size_t)((ROWS - rows) * KEYS) * sizeof *o->high);
    memset(o->low + rows * KEYS, 0, (size_t)((ROWS - rows) * KEYS) * sizeof *o->low);
}

/* from [ROWS][columns], `line` elements from row to row, as a^T: [columns /
 * SIDE][STEP]. */
static void turn(const uint16_t *from, int64_t line, int64_t columns, bool pairs, uint16_t *to)
{
    bf16_pack(&(Packing){from, DS_BF16, 1, line, columns, ROWS, pairs, to, NULL});
}

/* ---- products ------------------------------------------------------------------------------------------- */

/* s = a b^T for the panels of keys from `key` on: a [ROWS][SIDE steps]. */
USES_TILES static void scores_of(const uint16_t *a, int64_t steps, const uint16_t *columns,
                                 int64_t key, int64_t keys, int64_t rows, float *s)
{
    const uint16_t *b = columns + key / SIDE * steps * STEP;
    int64_t line = SIDE * steps;
    for (int64_t c = 0; c < keys; c += SIDE, b += steps * STEP) {
        Square q = square_begin(s + c, KEYS, true);
        square_add(&q, a, line, DEEP, LINES * line, b, steps * DEEP, rows, true);
        square_end(&q);
    }
}

/* sums [ROWS][SIDE panels] += the weights of `keys` keys times rows of b. */
USES_TILES static void add_weighted(const Split *w, const uint16_t *rows, int64_t all, int64_t key,
                                    int64_t keys, int64_t panels, int64_t queries, float *sums)
{
    int64_t line = SIDE * panels;
    for (int64_t j = 0; j < panels; j++) {
        const uint16_t *b = rows + (j * all + key / SIDE) * STEP;
        Square q = square_begin(sums + j * SIDE, line, false);
        square_add(&q, w->high, KEYS, DEEP, LINES * KEYS, b, keys, queries, true);
        square_add(&q, w->low, KEYS, DEEP, LINES * KEYS, b, keys, queries, true);
        square_end(&q);
    }
}

/* sums [keys][SIDE panels], from `key` on, += w^T rows; rows packed, one step. */
USES_TILES static void add_turned(const Split *w, const uint16_t *rows, int64_t key, int64_t keys,
                                  int64_t panels, float *sums)
{
    int64_t line = SIDE * panels;
    Split t;
    turn(w->high, KEYS, keys, false, t.high);
    turn(w->low, KEYS, keys, false, t.low);
    for (int64_t i = 0; i < dsi_div_up(keys, SIDE); i++)
        for (int64_t j = 0; j < panels; j++) {
            float *to = sums + (key + i * SIDE) * line + j * SIDE;
            Square q = square_begin(to, line, false);
            square_add(&q, t.high + i * STEP, DEEP, 0, LINES * DEEP, rows + j * STEP, DEEP, SIDE,
                       true);
            square_add(&q, t.low + i * STEP, DEEP, 0, LINES * DEEP, rows + j * STEP, DEEP, SIDE,
                       true);
            square_end(&q);
        }
}

/* ---- forward -------------------------------------------------------------------------------------------- */

static void bf16_forward_rows(const Bf16Job *o, int64_t batch, int64_t row, int64_t rows)
{
    const attention_job *x = o->x;
    uint16_t q[ROWS * MOST];
    float s[BLOCK], y[ROWS * MOST], max[ROWS], sum[ROWS], factor[ROWS];
    Split p;
    int64_t shared = batch / x->group, line = SIDE * o->width, all = keys_seen(x, row + rows);
    bool product = x->c.scale > 0 && x->c.softcap == 0;
    load_rows(&x->q, batch, row, rows, o->depth, q);
    memset(y, 0, (size_t)(ROWS * line) * sizeof *y);
    for (int64_t r = 0; r < rows; r++) max[r] = -INFINITY, sum[r] = 0;
    for (int64_t key = keys_begin(x, row); key < all; key += KEYS) {
        int64_t keys = dsi_min(KEYS, all - key);
        scores_of(q, o->depth, o->k_columns + shared * o->keys * o->depth * STEP, key, keys, rows,
                  s);
        bool plain = product && keys_count(x, row, rows, key, keys);
        if (!plain) mask_scores_f32(x, batch, row, rows, key, keys, s);
        soften_split(s, plain ? (float)x->c.scale : 1, rows, keys, max, sum, factor, &p);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t e = 0; factor[r] != 1 && e < line; e++) y[r * line + e] *= factor[r];
        add_weighted(&p, o->v_rows + shared * o->keys * o->width * STEP, o->keys, key, keys,
                     o->width, rows, y);
    }
    for (int64_t r = 0; r < rows; r++) {
        bool none = sum[r] == 0;
        factor[r] = none ? 0 : 1 / sum[r];
        ((float *)x->lse.p)[batch * x->lse.s[0] + (row + r) * x->lse.s[1]] = none
                                                                                 ? -INFINITY
                                                                                 : max[r] +
                                                                                       logf(sum[r]);
    }
    store_rows(y, factor, o->width, &x->y, batch, row, rows);
}

/* Items begin .. end-1, counted over [B][blocks of ROWS queries]. */
static void bf16_run_forward(void *arg, int64_t begin, int64_t end)
{
    const Bf16Job *o = arg;
    int64_t length = o->x->q.d[1], blocks = dsi_div_up(length, ROWS);
    tiles_begin();
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i % blocks * ROWS;
        bf16_forward_rows(o, i / blocks, row, dsi_min(ROWS, length - row));
    }
    tiles_end();
}

/* ---- backward ------------------------------------------------------------------------------------------- */

/* p: scores -> softmax, d: dy v^T -> ds. */
static void bf16_gradients(const Bf16Job *o, int64_t batch, int64_t row, int64_t rows, int64_t key,
                           int64_t keys, const float *dot, float *p, float *d)
{
    mask_scores_f32(o->x, batch, row, rows, key, keys, p);
    softmax_back_f32(o->x, batch, row, rows, keys, dot, p, d);
}

static void bf16_backward_rows(const Bf16Job *o, int64_t batch, int64_t row, int64_t rows,
                               float *dk, float *dv)
{
    const attention_job *x = o->x;
    uint16_t q[ROWS * MOST], dy[ROWS * MOST], q_rows[ROWS * MOST], dy_rows[ROWS * MOST];
    float p[BLOCK], d[BLOCK], dq[ROWS * MOST], dot[ROWS];
    Split w;
    int64_t shared = batch / x->group, all = keys_seen(x, row + rows), depth = o->depth,
            width = o->width;
    const uint16_t *k_columns = o->k_columns + shared * o->keys * depth * STEP,
                   *k_rows = o->k_rows + shared * o->keys * depth * STEP,
                   *v_columns = o->v_columns + shared * o->keys * width * STEP;
    load_rows(&x->y, batch, row, rows, width, q);
    load_rows(&x->dy, batch, row, rows, width, dy);
    for (int64_t r = 0; r < rows; r++) {
        dot[r] = 0;
        for (int64_t e = r * width * SIDE; e < (r + 1) * width * SIDE; e++)
            dot[r] += dsi_bf16_to_f32(q[e]) * dsi_bf16_to_f32(dy[e]);
    }
    load_rows(&x->q, batch, row, rows, depth, q);
    turn(q, SIDE * depth, SIDE * depth, true, q_rows);
    turn(dy, SIDE * width, SIDE * width, true, dy_rows);
    memset(dq, 0, (size_t)(ROWS * SIDE * depth) * sizeof *dq);
    for (int64_t key = keys_begin(x, row); key < all; key += KEYS) {
        int64_t keys = dsi_min(KEYS, all - key);
        scores_of(q, depth, k_columns, key, keys, rows, p);
        scores_of(dy, width, v_columns, key, keys, rows, d);
        bf16_gradients(o, batch, row, rows, key, keys, dot, p, d);
        split_block(p, rows, keys, &w);
        add_turned(&w, dy_rows, key, keys, width, dv);
        split_block(d, rows, keys, &w);
        add_turned(&w, q_rows, key, keys, depth, dk);
        add_weighted(&w, k_rows, o->keys, key, keys, depth, rows, dq);
    }
    store_rows(dq, NULL, depth, &x->dq, batch, row, rows);
}

/* Batches of k begin .. end-1. */
static void bf16_run_backward(void *arg, int64_t begin, int64_t end)
{
    Bf16Job *o = arg;
    const attention_job *x = o->x;
    int slot = slot_take(&o->slots);
    int64_t of_k = o->keys * o->depth * SIDE * SIDE, of_v = o->keys * o->width * SIDE * SIDE;
    float *dk = o->work + slot * (of_k + of_v), *dv = dk + of_k;
    tiles_begin();
    for (int64_t shared = begin; shared < end; shared++) {
        memset(dk, 0, (size_t)(of_k + of_v) * sizeof *dk);
        for (int64_t batch = shared * x->group; batch < (shared + 1) * x->group; batch++)
            for (int64_t row = 0; row < x->q.d[1]; row += ROWS)
                bf16_backward_rows(o, batch, row, dsi_min(ROWS, x->q.d[1] - row), dk, dv);
        store_rows(dk, NULL, o->depth, &x->dk, shared, 0, x->k.d[1]);
        store_rows(dv, NULL, o->width, &x->dv, shared, 0, x->k.d[1]);
    }
    tiles_end();
    slot_release(&o->slots, slot);
}

/* ---- the kernels ----------------------------------------------------------------------------------------- */

/* Packs v [B,S,D] for each batch, D in `panels`; columns: keys are columns. */
static const uint16_t *pack_all(const Bf16Job *o, const dsi_view *v, int64_t panels, bool columns,
                                uint16_t **memory)
{
    uint16_t *to = *memory;
    for (int64_t b = 0; b < v->d[0]; b++) {
        const uint16_t *from = (const uint16_t *)v->p + b * v->s[0];
        uint16_t *at = to + b * o->keys * panels * STEP;
        if (columns)
            bf16_pack(&(Packing){from, DS_BF16, v->s[1], 1, v->d[1], v->d[2], true, at, NULL});
        else
            bf16_pack(&(Packing){from, DS_BF16, 1, v->s[1], v->d[2], v->d[1], true, at, NULL});
    }
    *memory += v->d[0] * o->keys * panels * STEP;
    return to;
}

static Bf16Job bf16_job(const attention_job *x)
{
    return (Bf16Job){.x = x,
                     .keys = dsi_div_up(x->k.d[1], SIDE),
                     .depth = dsi_div_up(x->k.d[2], SIDE),
                     .width = dsi_div_up(x->v.d[2], SIDE)};
}

/* Multiplications and additions of one row in forward. */
static double bf16_flops(const attention_job *x)
{
    return 2 * (double)x->k.d[1] * (double)(x->q.d[2] + x->v.d[2] + 100);
}

ds_status attention_bf16_forward(dsi_stream *s, const attention_job *x)
{
    Bf16Job o = bf16_job(x);
    int64_t packed = x->k.d[0] * o.keys * (o.depth + o.width) * STEP;
    uint16_t *memory = dsi_scratch(s, (size_t)packed * sizeof *memory), *next = memory;
    if (!memory) return DS_ENOMEM;
    o.k_columns = pack_all(&o, &x->k, o.depth, true, &next);
    o.v_rows = pack_all(&o, &x->v, o.width, false, &next);
    int64_t items = x->q.d[0] * dsi_div_up(x->q.d[1], ROWS);
    dsi_parallel(items, 1 + (int64_t)(GRAIN_FLOPS / ROWS / bf16_flops(x)), bf16_run_forward, &o);
    dsi_scratch_release(s, memory);
    return DS_OK;
}

ds_status attention_bf16_backward(dsi_stream *s, const attention_job *x)
{
    Bf16Job o = bf16_job(x);
    int64_t packed = x->k.d[0] * o.keys * (2 * o.depth + o.width) * STEP;
    int64_t sums = o.keys * (o.depth + o.width) * SIDE * SIDE;
    int64_t slots = dsi_min(ds_threads(), x->k.d[0]);
    o.work = dsi_scratch(s, (size_t)(sums * slots) * sizeof(float) +
                                (size_t)packed * sizeof(uint16_t));
    if (!o.work) return DS_ENOMEM;
    uint16_t *next = (uint16_t *)(o.work + sums * slots);
    o.k_columns = pack_all(&o, &x->k, o.depth, true, &next);
    o.k_rows = pack_all(&o, &x->k, o.depth, false, &next);
    o.v_columns = pack_all(&o, &x->v, o.width, true, &next);
    double each = 2.5 * bf16_flops(x) * (double)(x->group * x->q.d[1]);
    dsi_parallel(x->k.d[0], 1 + (int64_t)(GRAIN_FLOPS / each), bf16_run_backward, &o);
    dsi_scratch_release(s, o.work);
    return DS_OK;
}

bool attention_bf16_takes(const attention_job *x, int n, const dsi_view *const *operands)
{
    for (int i = 0; i < n; i++)
        if (operands[i]->dtype != DS_BF16 || (operands[i]->s[2] != 1 && operands[i]->d[2] > 1))
            return false;
    return dsi_cpu_bf16() && x->lse.dtype == DS_F32 && x->q.d[0] && x->q.d[1] >= FEW_ROWS &&
           x->k.d[1] && x->k.d[2] && x->v.d[2] && x->k.d[2] <= MOST && x->v.d[2] <= MOST;
}

#else /* another processor, system or an older compiler */

bool attention_bf16_takes(const attention_job *x, int n, const dsi_view *const *operands)
{
    (void)x, (void)n, (void)operands;
    return false;
}

ds_status attention_bf16_forward(dsi_stream *s, const attention_job *x)
{
    (void)s;
    return no_dtype("attention", x->q.dtype);
}

ds_status attention_bf16_backward(dsi_stream *s, const attention_job *x)
{
    (void)s;
    return no_dtype("attention_dx", x->q.dtype);
}

#endif
