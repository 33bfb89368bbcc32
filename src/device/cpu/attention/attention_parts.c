/* device/cpu/attention/attention_parts.c: attention of float32 by the matrix
 * unit, in blocks as attention.c computes them.
 *
 * Each number that is multiplied is the sum of three bfloat16 ones, of whose
 * products six count (gemm_bf16.c says why that is as exact). A thread packs
 * the keys and values of one batch of k at a time, which stay in the second
 * cache; then queries and gradients for each block of ROWS queries, and weights
 * of the softmax and their gradients for each block of scores.
 *
 *     forward    s = q k^T         p = exp(s - max)         y += p v
 *     backward   s = q k^T, d = dy v^T -> p, ds
 *                dv^T += dy^T p    dq += ds k               dk^T += q^T ds
 *
 * So a block of p or ds is packed along its rows or in pairs of them, and never
 * transposed.
 *
 * Invariants: as in attention.c. Elements of a block behind its rows or keys
 * are 0 in p and ds. If *exact is false at the end, results are not to be used.
 * SPDX-License-Identifier: MIT */
#include "attention.h"

#include "base/int.h"
#include "device/cpu/cpu.h"
#include "device/cpu/gemm/parts.h"
#include "device/cpu/simd/slots.h"
#include "device/cpu/simd/transpose.h"
#include "device/cpu/table.h"

#ifdef HAS_TILES

#define PARTS       3
#define PACKED      (PARTS * STEP) /* elements of a step of a group or panel */
#define LEAST       32             /* elements of a query, or of a value, from which it pays */
#define LEAST_KEYS  96             /* the same, and queries */
#define MOST        128            /* elements of a query, or of a value */
#define GRAIN_FLOPS 2e6

#define ROWS    SIDE /* queries of a block */
#define BLOCK   (ROWS * KEYS)
#define STEPS   (KEYS / SIDE)
#define ALIGNED _Alignas(64) /* a line of a tile is a line of the cache */

#define T           float
#define NAMED(name) name##_f32
#include "rows.inc"
#undef T
#undef NAMED

/* One batch of k and v in a thread's memory, packed as b. Columns are keys:
 * [keys][depth or width][PACKED]; columns are elements:
 * [depth][keys][PACKED]. */
typedef struct Head {
    uint16_t *k_columns, *k_rows, *v; /* rows of v in forward, columns in backward */
    float *dk, *dv;                   /* transposed: [SIDE depth or width][SIDE keys] */
} Head;

typedef struct PartsJob {
    const attention_job *x;
    int64_t keys, depth, width; /* S, D and E in panels of SIDE */
    Slots slots;
    uint16_t *memory;                 /* of all slots */
    int64_t each;                     /* elements of a slot */
    _Atomic uint32_t q, k, v, dy, ds; /* largest magnitudes, as bits */
} PartsJob;

/* ---- operands ------------------------------------------------------------------------------------------- */

static const float *parts_line(const dsi_view *v, int64_t batch, int64_t row)
{
    return (const float *)v->p + batch * v->s[0] + row * v->s[1];
}

/* `lines` lines of v from (batch, row) on, as rows of a, or as columns of b if
 * `pairs`: [panels of lines][panels of elements][PACKED]. */
static void parts_pack(const dsi_view *v, int64_t batch, int64_t row, int64_t lines, bool pairs,
                       uint16_t *to, _Atomic uint32_t *largest)
{
    bf16_pack(&(Packing){parts_line(v, batch, row), DS_F32, v->s[1], 1, lines, v->d[2], pairs, to,
                         largest});
}

/* The same transposed: elements are rows of a or columns of b, [panels of
 * elements][panels of lines][PACKED]. */
static void parts_pack_turned(const dsi_view *v, int64_t batch, int64_t row, int64_t lines,
                              bool pairs, uint16_t *to, _Atomic uint32_t *largest)
{
    bf16_pack(&(Packing){parts_line(v, batch, row), DS_F32, 1, v->s[1], v->d[2], lines, pairs, to,
                         largest});
}

/* Two rows of SIDE numbers of a block -> lines of the parts of each in `lines`,
 * and lines of pairs in `pairs`; either may be NULL. */
ALWAYS_INLINE void split_two(vf x[2][2], uint16_t *lines, uint16_t *pairs)
{
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35,
                                         33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3,
                                         1);
    UNROLL for (int part = 0; part < PARTS; part++)
    {
        __m512i high[2][2];
        UNROLL for (int i = 0; i < 4; i++)
        {
            high[i / 2][i % 2] = nearest(x[i / 2][i % 2]);
            x[i / 2][i % 2] = rest(x[i / 2][i % 2], high[i / 2][i % 2]);
        }
        UNROLL for (int i = 0; lines && i < 2; i++) _mm512_storeu_si512(
            lines + part * STEP + i * DEEP, _mm512_permutex2var_epi16(high[i][0], odd, high[i][1]));
        UNROLL for (int i = 0; pairs && i < 2; i++)
            _mm512_storeu_si512(pairs + part * STEP + i * STEP / 2,
                                _mm512_or_si512(_mm512_srli_epi32(high[0][i], 16), high[1][i]));
    }
}

/* A block of s, of rows x keys, zeros behind both: as rows of a, `lines`, and
 * as columns of b, `pairs`, both [STEPS][PACKED]; either may be NULL. Returns
 * the larger of `largest` and its largest magnitude. */
ALWAYS_INLINE __m512i parts_pack_block(const float *s, int64_t rows, int64_t keys, uint16_t *lines,
                                       uint16_t *pairs, __m512i largest)
{
    for (int64_t c = 0; c < keys; c += SIDE)
        for (int64_t r = 0; r < ROWS; r += 2) {
            int64_t left = dsi_min(SIDE, keys - c), step = c / SIDE * PACKED;
            __mmask32 wide = left < SIDE ? (1u << left) - 1 : ~0u;
            const float *at = s + r * KEYS + c;
            vf x[2][2];
            UNROLL for (int i = 0; i < 2; i++)
            {
                __mmask32 some = r + i < rows ? wide : 0;
                x[i][0] = _mm512_maskz_loadu_ps((__mmask16)some, at + i * KEYS);
                x[i][1] = _mm512_maskz_loadu_ps((__mmask16)(some >> 16), at + i * KEYS + 16);
                largest = larger(larger(largest, x[i][0]), x[i][1]);
            }
            split_two(x, lines ? lines + step + r * DEEP : NULL,
                      pairs ? pairs + step + r / 2 * DEEP : NULL);
        }
    return largest;
}

/* from [rows][SIDE panels], each times factor[r] if there is one -> lines of v. */
static void parts_store_rows(const float *from, const float *factor, int64_t panels,
                             const dsi_view *v, int64_t batch, int64_t row, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++, from += SIDE * panels) {
        float *to = (float *)v->p + batch * v->s[0] + (row + r) * v->s[1],
              f = factor ? factor[r] : 1;
        for (int64_t i = 0; i < v->d[2]; i++) to[i] = from[i] * f;
    }
}

/* ---- products ------------------------------------------------------------------------------------------- */

/* s = a b^T for the panels of keys from `key` on: a is rows in `steps`. */
USES_TILES static void parts_scores(const uint16_t *a, bool lower, int64_t steps,
                                    const uint16_t *columns, int64_t key, int64_t keys, float *s)
{
    const uint16_t *b = columns + key / SIDE * steps * PACKED;
    for (int64_t c = 0; c < keys; c += SIDE, b += steps * PACKED) {
        Square q = square_begin(s + c, KEYS, true);
        square_parts(PARTS, a, b, steps, lower, true, NULL, 0);
        square_end(&q);
    }
}

/* sums [ROWS][SIDE panels] += a block of `keys` keys, as lines, times rows of
 * b, of `all` panels of keys. */
USES_TILES static void parts_add_weighted(const uint16_t *block, bool lower, const uint16_t *b,
                                          int64_t all, int64_t key, int64_t keys, int64_t panels,
                                          float *sums)
{
    int64_t line = SIDE * panels, steps = dsi_div_up(keys, SIDE);
    b += key / SIDE * PACKED;
    for (int64_t j = 0; j < panels; j++, sums += SIDE, b += all * PACKED) {
        Square q = square_begin(sums, line, false);
        square_parts(PARTS, block, b, steps, lower, true, NULL, 0);
        square_end(&q);
    }
}

/* sums [SIDE panels][SIDE all], from column `key` on, += a times a block of
 * `keys` keys, as pairs; a is [panels][PACKED]. */
USES_TILES static void parts_add_turned(const uint16_t *a, int64_t panels, const uint16_t *block,
                                        int64_t all, int64_t key, int64_t keys, float *sums)
{
    int64_t line = SIDE * all;
    for (int64_t c = 0; c < keys; c += SIDE, block += PACKED)
        for (int64_t j = 0; j < panels; j++) {
            float *to = sums + j * SIDE * line + key + c;
            Square q = square_begin(to, line, false);
            square_parts(PARTS, a + j * PACKED, block, 1, true, true, NULL, 0);
            square_end(&q);
        }
}

/* ---- forward -------------------------------------------------------------------------------------------- */

static void parts_forward_rows(PartsJob *o, const Head *h, int64_t batch, int64_t row, int64_t rows)
{
    const attention_job *x = o->x;
    ALIGNED uint16_t q[MOST / SIDE * PACKED], p[STEPS * PACKED];
    ALIGNED float s[BLOCK], y[ROWS * MOST], max[ROWS], sum[ROWS], factor[ROWS];
    int64_t line = SIDE * o->width, all = keys_seen(x, row + rows);
    bool lower = rows > LINES;
    parts_pack(&x->q, batch, row, rows, false, q, &o->q);
    memset(y, 0, (size_t)(ROWS * line) * sizeof *y);
    for (int64_t r = 0; r < rows; r++) max[r] = -INFINITY, sum[r] = 0;
    for (int64_t key = keys_begin(x, row); key < all; key += KEYS) {
        int64_t keys = dsi_min(KEYS, all - key);
        parts_scores(q, lower, o->depth, h->k_columns, key, keys, s);
        mask_scores_f32(x, batch, row, rows, key, keys, s);
        soften_f32(s, rows, keys, max, sum, factor);
        parts_pack_block(s, rows, keys, p, NULL, _mm512_setzero_si512());
        for (int64_t r = 0; r < rows; r++)
            for (int64_t e = 0; factor[r] != 1 && e < line; e++) y[r * line + e] *= factor[r];
        parts_add_weighted(p, lower, h->v, o->keys, key, keys, o->width, y);
    }
    for (int64_t r = 0; r < rows; r++) {
        bool none = sum[r] == 0;
        float *lse = (float *)x->lse.p + batch * x->lse.s[0] + (row + r) * x->lse.s[1];
        factor[r] = none ? 0 : 1 / sum[r];
        *lse = none ? -INFINITY : max[r] + logf(sum[r]);
    }
    parts_store_rows(y, factor, o->width, &x->y, batch, row, rows);
}

/* Items begin .. end-1, counted over [B][blocks of ROWS queries]. */
static void parts_run_forward(void *arg, int64_t begin, int64_t end)
{
    PartsJob *o = arg;
    const attention_job *x = o->x;
    int64_t length = x->q.d[1], blocks = dsi_div_up(length, ROWS), packed = -1;
    int slot = slot_take(&o->slots);
    Head h = {.k_columns = o->memory + slot * o->each};
    h.v = h.k_columns + o->keys * o->depth * PACKED;
    tiles_begin();
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i % blocks * ROWS, shared = i / blocks / x->group;
        if (shared != packed) {
            parts_pack(&x->k, shared, 0, x->k.d[1], true, h.k_columns, &o->k);
            parts_pack_turned(&x->v, shared, 0, x->k.d[1], true, h.v, &o->v);
        }
        packed = shared;
        parts_forward_rows(o, &h, i / blocks, row, dsi_min(ROWS, length - row));
    }
    tiles_end();
    slot_release(&o->slots, slot);
}

/* ---- backward ------------------------------------------------------------------------------------------- */

static void parts_backward_rows(PartsJob *o, const Head *h, int64_t batch, int64_t row,
                                int64_t rows)
{
    enum { OF_ROWS = MOST / SIDE * PACKED, OF_BLOCK = STEPS * PACKED };
    const attention_job *x = o->x;
    ALIGNED uint16_t q[OF_ROWS], dy[OF_ROWS], q_turned[OF_ROWS], dy_turned[OF_ROWS],
        lines[OF_BLOCK], pairs[OF_BLOCK];
    ALIGNED float p[BLOCK], d[BLOCK], dq[ROWS * MOST], dot[ROWS];
    int64_t all = keys_seen(x, row + rows), depth = o->depth, width = o->width;
    bool lower = rows > LINES;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t r = 0; r < rows; r++)
        dot[r] = dot_f32(parts_line(&x->y, batch, row + r), parts_line(&x->dy, batch, row + r),
                         x->v.d[2]);
    parts_pack(&x->q, batch, row, rows, false, q, &o->q);
    parts_pack_turned(&x->q, batch, row, rows, false, q_turned, &o->q);
    parts_pack(&x->dy, batch, row, rows, false, dy, &o->dy);
    parts_pack_turned(&x->dy, batch, row, rows, false, dy_turned, &o->dy);
    memset(dq, 0, (size_t)(ROWS * SIDE * depth) * sizeof *dq);
    for (int64_t key = keys_begin(x, row); key < all; key += KEYS) {
        int64_t keys = dsi_min(KEYS, all - key);
        parts_scores(q, lower, depth, h->k_columns, key, keys, p);
        parts_scores(dy, lower, width, h->v, key, keys, d);
        mask_scores_f32(x, batch, row, rows, key, keys, p);
        softmax_back_f32(x, batch, row, rows, keys, dot, p, d);
        parts_pack_block(p, rows, keys, NULL, pairs, largest);
        parts_add_turned(dy_turned, width, pairs, o->keys, key, keys, h->dv);
        largest = parts_pack_block(d, rows, keys, lines, pairs, largest);
        parts_add_turned(q_turned, depth, pairs, o->keys, key, keys, h->dk);
        parts_add_weighted(lines, lower, h->k_rows, o->keys, key, keys, depth, dq);
    }
    note_largest(&o->ds, largest);
    parts_store_rows(dq, NULL, depth, &x->dq, batch, row, rows);
}

/* from [d][line] -> lines of v, transposed */
static void store_turned(const float *from, int64_t line, const dsi_view *v, int64_t batch)
{
    for (int64_t key = 0; key < v->d[1]; key += LINES)
        for (int64_t e = 0; e < v->d[2]; e += LINES) {
            int lines = (int)dsi_min(LINES, v->d[1] - key), wide = (int)dsi_min(LINES, v->d[2] - e);
            vf square[LINES];
            for (int i = 0; i < LINES; i++) square[i] = vf_load(from + (e + i) * line + key);
            transpose_square(square);
            float *to = (float *)v->p + batch * v->s[0] + key * v->s[1] + e;
            for (int i = 0; i < lines; i++, to += v->s[1]) vf_store_n(to, square[i], wide);
        }
}

/* Batches of k begin .. end-1. */
static void parts_run_backward(void *arg, int64_t begin, int64_t end)
{
    PartsJob *o = arg;
    const attention_job *x = o->x;
    int slot = slot_take(&o->slots);
    int64_t of_k = o->keys * o->depth * STEP, of_v = o->keys * o->width * STEP;
    Head h = {.k_columns = o->memory + slot * o->each};
    h.k_rows = h.k_columns + PARTS * of_k, h.v = h.k_rows + PARTS * of_k;
    h.dk = (float *)(h.v + PARTS * of_v), h.dv = h.dk + of_k;
    tiles_begin();
    for (int64_t shared = begin; shared < end; shared++) {
        memset(h.dk, 0, (size_t)(of_k + of_v) * sizeof *h.dk);
        parts_pack(&x->k, shared, 0, x->k.d[1], true, h.k_columns, &o->k);
        parts_pack_turned(&x->k, shared, 0, x->k.d[1], true, h.k_rows, &o->k);
        parts_pack(&x->v, shared, 0, x->k.d[1], true, h.v, &o->v);
        for (int64_t batch = shared * x->group; batch < (shared + 1) * x->group; batch++)
            for (int64_t row = 0; row < x->q.d[1]; row += ROWS)
                parts_backward_rows(o, &h, batch, row, dsi_min(ROWS, x->q.d[1] - row));
        store_turned(h.dk, SIDE * o->keys, &x->dk, shared);
        store_turned(h.dv, SIDE * o->keys, &x->dv, shared);
    }
    tiles_end();
    slot_release(&o->slots, slot);
}

/* ---- the kernels ----------------------------------------------------------------------------------------- */

static PartsJob parts_job(const attention_job *x)
{
    return (PartsJob){.x = x,
                      .keys = dsi_div_up(x->k.d[1], SIDE),
                      .depth = dsi_div_up(x->k.d[2], SIDE),
                      .width = dsi_div_up(x->v.d[2], SIDE)};
}

/* Multiplications and additions of one row in forward. */
static double parts_flops(const attention_job *x)
{
    return 2 * (double)x->k.d[1] * (double)(x->q.d[2] + x->v.d[2] + 50);
}

#define ONE 0x3f800000 /* the largest weight of a softmax */

/* Runs body over n items, with memory of `each` elements for each thread. */
static ds_status parts_run(dsi_stream *s, PartsJob *o, int64_t each, int64_t n, double flops,
                           void (*body)(void *arg, int64_t begin, int64_t end))
{
    o->each = each;
    o->memory = dsi_scratch(s, (size_t)(each * dsi_min(ds_threads(), n)) * sizeof *o->memory);
    if (!o->memory) return DS_ENOMEM;
    dsi_parallel(n, 1 + (int64_t)(GRAIN_FLOPS / flops), body, o);
    dsi_scratch_release(s, o->memory);
    return DS_OK;
}

ds_status attention_parts_forward(dsi_stream *s, const attention_job *x, bool *exact)
{
    PartsJob o = parts_job(x);
    int64_t items = x->q.d[0] * dsi_div_up(x->q.d[1], ROWS);
    ds_status status = parts_run(s, &o, o.keys * (o.depth + o.width) * PACKED, items,
                                 ROWS * parts_flops(x), parts_run_forward);
    *exact = parts_in_range(o.q, o.k) && parts_in_range(ONE, o.v);
    return status;
}

ds_status attention_parts_backward(dsi_stream *s, const attention_job *x, bool *exact)
{
    PartsJob o = parts_job(x);
    int64_t packed = (2 * o.depth + o.width) * PACKED, sums = 2 * (o.depth + o.width) * STEP;
    ds_status status = parts_run(s, &o, o.keys * (packed + sums), x->k.d[0],
                                 2.5 * parts_flops(x) * (double)(x->group * x->q.d[1]),
                                 parts_run_backward);
    *exact = parts_in_range(o.q, o.k) && parts_in_range(o.dy, o.v) && parts_in_range(ONE, o.dy) &&
             parts_in_range(o.ds, o.k) && parts_in_range(o.ds, o.q);
    return status;
}

bool attention_parts_takes(const attention_job *x, int n, const dsi_view *const *operands)
{
    for (int i = 0; i < n; i++)
        if (operands[i]->dtype != DS_F32 || operands[i]->s[2] != 1) return false;
    return dsi_cpu_amx() && x->q.d[0] && x->q.d[1] >= LEAST_KEYS && x->k.d[1] >= LEAST_KEYS &&
           x->k.d[2] >= LEAST && x->v.d[2] >= LEAST && x->k.d[2] <= MOST && x->v.d[2] <= MOST;
}

#else /* another processor, system or an older compiler */

bool attention_parts_takes(const attention_job *x, int n, const dsi_view *const *operands)
{
    (void)x, (void)n, (void)operands;
    return false;
}

ds_status attention_parts_forward(dsi_stream *s, const attention_job *x, bool *exact)
{
    (void)s, (void)exact;
    return no_dtype("attention", x->q.dtype);
}

ds_status attention_parts_backward(dsi_stream *s, const attention_job *x, bool *exact)
{
    (void)s, (void)exact;
    return no_dtype("attention_dx", x->q.dtype);
}

#endif
