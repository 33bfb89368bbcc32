/* device/cpu/attention/attention.h: what the files of attention share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/reduce/lines.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/vmath.h"

#define FEW_ROWS 8 /* queries below which transposing or packing keys costs more than it saves */
/* Keys of a block: a multiple of TILE_COLS of every instruction set, and of
 * 32. */
#define KEYS 96

typedef struct attention_job {
    dsi_attention c;
    int64_t group; /* batches of q to one of k */
    dsi_view q, k, v, mask, y, lse;
    dsi_view dy, dq, dk, dv; /* backward */
    float *keys, *values;    /* transposed: [B, blocks, D or E, KEYS], NULL: not */
} attention_job;

/* Number of keys, from the first on, that some row before `end` attends to. */
static inline int64_t keys_seen(const attention_job *x, int64_t end)
{
    return x->c.causal && end < x->k.d[1] ? end : x->k.d[1];
}

/* The first key of a block of KEYS of which some row from `row` on attends to one. */
static inline int64_t keys_begin(const attention_job *x, int64_t row)
{
    int64_t first = x->c.window ? row - x->c.window + 1 : 0;
    return first > 0 ? first - first % KEYS : 0;
}

/* Whether each of rows x keys, from (row, key) on, counts. */
static inline bool keys_count(const attention_job *x, int64_t row, int64_t rows, int64_t key,
                              int64_t keys)
{
    return !x->mask.p && (!x->c.causal || key + keys <= row + 1) &&
           (!x->c.window || row + rows - key <= x->c.window);
}

/* The maximum of a row of scores: as in lines.h, but by whole vectors, because
 * a row is short. Ignores NaNs. */
static inline float row_max_f32(int64_t n, const float *x)
{
    vf m = vf_set(-INFINITY);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) m = vf_max(vf_load(x + i), m);
    float max = vf_largest(m);
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static inline float row_sum_f32(int64_t n, const float *x)
{
    vf a = vf_zero(), b = vf_zero();
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF)
        a = vf_add(a, vf_load(x + i)), b = vf_add(b, vf_load(x + i + VF));
    for (; i < n; i += VF) a = vf_add(a, vf_load_n(x + i, n - i < VF ? (int)(n - i) : VF));
    return vf_sum(vf_add(a, b));
}

static inline float dot_f32(const float *a, const float *b, int64_t n)
{
    vf sum = vf_zero();
    int64_t i = 0;
    for (; i + VF <= n; i += VF) sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
    if (i < n) sum = vf_fma(vf_load_n(a + i, (int)(n - i)), vf_load_n(b + i, (int)(n - i)), sum);
    return vf_sum(sum);
}

/* ---- attention_bf16.c: bfloat16 by its instructions ------------------------------------------------------ */

#define attention_bf16_takes    KERNEL(dsi_attention_bf16_takes)
#define attention_bf16_forward  KERNEL(dsi_attention_bf16_forward)
#define attention_bf16_backward KERNEL(dsi_attention_bf16_backward)

/* False if one of n operands has another dtype or a stride along its last
 * dimension, if x is too small or too wide, or the processor has no
 * instructions for bfloat16. */
bool attention_bf16_takes(const attention_job *x, int n, const dsi_view *const *operands);
ds_status attention_bf16_forward(dsi_stream *s, const attention_job *x);
ds_status attention_bf16_backward(dsi_stream *s, const attention_job *x);

/* ---- attention_parts.c: float32 by the matrix unit ---------------------------------------------------- */

#define attention_parts_takes    KERNEL(dsi_attention_parts_takes)
#define attention_parts_forward  KERNEL(dsi_attention_parts_forward)
#define attention_parts_backward KERNEL(dsi_attention_parts_backward)

/* As attention_bf16_takes, for float32. */
bool attention_parts_takes(const attention_job *x, int n, const dsi_view *const *operands);
/* !*exact: results are not to be used, because some numbers are not finite, or
 * so large or small that parts of them are not. */
ds_status attention_parts_forward(dsi_stream *s, const attention_job *x, bool *exact);
ds_status attention_parts_backward(dsi_stream *s, const attention_job *x, bool *exact);
