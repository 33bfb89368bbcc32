/* models/rope.c: rotary positions of language models: the frequencies of each
 * scaling, tables of cosines and sines, the rotation.
 *
 * Invariants:
 * - A table depends on positions alone, and with scalings that change with the
 *   length of a row on that, so that a layer that is run again for backward
 *   finds the same values.
 * - Tables stay for the model's life: a step graph may have recorded calls that
 *   read them. Only tables of dynamic, one for each length beyond the model's
 *   context, are dropped again, and on the CPU alone, where nothing is recorded.
 *   A call with a cache has no graph, and its table ends with it.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/int.h"
#include "base/mem.h"
#include "device/graph.h"
#include "lm.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* ---- frequencies ---- */

/* Llama 3.1's stretching of a frequency f, transformers'
 * _compute_llama3_parameters. `waves` is how many turns a pair makes in the
 * context that the model was first trained on. Slow pairs (few turns) are
 * slowed by factor, fast ones stay, and those between are mixed linearly in
 * the number of turns, so that the function has no step. */
static double rope_scale_llama3(const dsi_rope *r, double f)
{
    double waves = (double)r->original_positions * f / (2 * 3.14159265358979323846);
    if (waves < r->low_freq) return f / r->factor;
    if (waves > r->high_freq) return f;
    double smooth = (waves - r->low_freq) / (r->high_freq - r->low_freq);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* YaRN's: fast pairs, with indices up to low_pair, keep their frequency f, those
 * from high_pair on are slowed by factor, and others are mixed linearly. In
 * float32, as transformers' _compute_yarn_parameters. power is 1 / f. */
static float rope_scale_yarn(const dsi_rope *r, float power, int64_t i)
{
    double width = r->high_pair - r->low_pair;
    float ramp = ((float)i - (float)r->low_pair) / (float)(width == 0 ? 0.001 : width);
    float fast = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
    return 1 / ((float)r->factor * power) * (1 - fast) + 1 / power * fast;
}

/* dynamic: a theta that grows with the length of a row beyond the model's
 * context, so that the slowest pair turns as far as in that context. In float32,
 * as transformers' _compute_dynamic_ntk_parameters. */
static double rope_theta_dynamic(const dsi_rope *r, int64_t length)
{
    float grow = (float)r->factor * (float)length / (float)r->original_positions -
                 (float)(r->factor - 1);
    double power = (double)r->dim / (double)(r->dim - 2);
    return (double)((float)r->theta * powf(grow, (float)power));
}

/* The rows that a table for a row of that length serves: 0, those up to the
 * original context and all of other scalings; 1, longer ones of longrope; the
 * length itself with dynamic beyond the context. */
static int64_t rope_length(const dsi_rope *r, int64_t length)
{
    if (length <= r->original_positions) return 0;
    return r->type == DSI_ROPE_DYNAMIC ? length : r->type == DSI_ROPE_LONGROPE;
}

/* Radians that pair i turns from one position to the next, in float32 as in
 * transformers. theta^(-2 i / D), Su et al., arXiv:2104.09864. Each step is
 * rounded to float as there: another rounding would shift late positions by
 * visible angles. `length` is that of rope_length. */
static float rope_frequency(const dsi_rope *r, int64_t i, int64_t length)
{
    bool grown = r->type == DSI_ROPE_DYNAMIC && length;
    double theta = grown ? rope_theta_dynamic(r, length) : r->theta;
    double power = pow(theta, (double)(float)((double)(2 * i) / (double)r->dim));
    if (r->type == DSI_ROPE_LONGROPE) return 1 / (r->pair_factor[length][i] * (float)power);
    if (r->type == DSI_ROPE_YARN) return rope_scale_yarn(r, (float)power, i);
    double f = (double)(float)(1 / (double)(float)power);
    if (r->type == DSI_ROPE_LINEAR) f /= r->factor;
    if (r->type == DSI_ROPE_LLAMA3) f = rope_scale_llama3(r, f);
    return (float)f;
}

/* ---- tables ---- */

/* cos and sin of `rows` positions from t.first on, on the device of `beside`. The
 * angle is a product of floats before cos and sin are taken in double, as in
 * transformers. */
static ds_status table_make(const dsi_rope *r, dsi_lm_table *t, int64_t rows,
                            const ds_tensor *beside)
{
    int64_t pairs = r->dim / 2;
    t->cos = dsi_new_host(DS_F32, ds_shape(rows, pairs));
    t->sin = dsi_new_host(DS_F32, ds_shape(rows, pairs));
    float *x = ds_data_mut(t->cos), *y = ds_data_mut(t->sin);
    if (!x || !y) return ds_error_status();
    for (int64_t i = 0; i < pairs; i++) {
        float f = rope_frequency(r, i, t->length);
        for (int64_t k = 0; k < rows; k++) {
            double angle = (double)(f * (float)(t->first + k));
            x[k * pairs + i] = (float)cos(angle) * (float)r->magnitude;
            y[k * pairs + i] = (float)sin(angle) * (float)r->magnitude;
        }
    }
    ds_device device = dsi_device_id(beside->device);
    bool noted = dsi_graph_note(beside->device, false);
    t->cos = ds_to(t->cos, device, DS_F32), t->sin = ds_to(t->sin, device, DS_F32);
    dsi_graph_note(beside->device, noted);
    return t->cos && t->sin ? DS_OK : ds_error_status();
}

/* The newest table of positions 0 to n - 1; NULL: none. */
static dsi_lm_table *table_find(dsi_lm *lm, int rope, int64_t length, int64_t n)
{
    for (int i = lm->n_tables - 1; i >= 0; i--) {
        dsi_lm_table *t = &lm->table[i];
        if (t->rope == rope && t->length == length && ds_size(t->cos, 0) >= n) return t;
    }
    return NULL;
}

/* A place for a table. Only those of dynamic can be more than there are places. */
static ds_status tables_room(dsi_lm *lm, const ds_tensor *beside)
{
    if (lm->n_tables < DSI_LM_TABLES) return DS_OK;
    if (dsi_device_id(beside->device).kind != DS_CPU)
        return dsi_fail(DS_EINVAL,
                        "%s: rope_type \"dynamic\": rows of more than %d lengths beyond "
                        "max_position_embeddings: on a GPU each keeps its table",
                        lm->config.architecture, DSI_LM_TABLES);
    ds_drop(lm->table[0].cos), ds_drop(lm->table[0].sin);
    lm->n_tables--;
    memmove(lm->table, lm->table + 1, (size_t)lm->n_tables * sizeof *lm->table);
    return DS_OK;
}

/* A kept table of positions 0 to n - 1, a power of two of them, so that rows of
 * growing length make few. Nothing changes after a failure. */
static ds_status table_keep(dsi_lm *lm, int rope, int64_t n, const ds_tensor *beside)
{
    const dsi_rope *r = &lm->config.rope[rope];
    dsi_lm_table t = {.rope = rope, .length = rope_length(r, n)};
    int64_t rows = 64;
    while (rows < n) rows *= 2;
    if (table_find(lm, rope, t.length, n)) return DS_OK;
    if (t.length > 1) rows = n;
    ds_status status = table_make(r, &t, rows, beside);
    if (status == DS_OK) status = tables_room(lm, beside);
    if (status != DS_OK) return status;
    ds_keep(t.cos), ds_keep(t.sin);
    lm->table[lm->n_tables++] = t;
    return DS_OK;
}

/* Positions of a row at the end of a call of n. */
static int64_t row_length(const dsi_lm *lm, int64_t n)
{
    return n + (lm->cache ? lm->cache->length - lm->cache->padding : 0);
}

ds_status dsi_lm_rope_begin(dsi_lm *lm, int64_t n, const ds_tensor *ids)
{
    const dsi_rope *r = lm->config.rope;
    int64_t length = row_length(lm, n), end = n + (lm->cache ? lm->cache->length : 0);
    ds_status status = DS_OK;
    if (lm->cache && rope_length(r, length) > 1) {
        dsi_lm_table t = {.first = lm->positions ? 0 : end - n, .length = length};
        status = table_make(r, &t, end - t.first, ids);
        if (status == DS_OK) lm->step_table = t;
        return status;
    }
    for (int i = 0; i < lm->config.ropes && status == DS_OK; i++)
        status = table_keep(lm, i, length, ids);
    return status;
}

void dsi_lm_rope_end(dsi_lm *lm) { lm->step_table = (dsi_lm_table){0}; }

/* ---- rotation ---- */

const dsi_lm_table *dsi_lm_rope_table(dsi_lm *lm, int64_t layer, int64_t n, const ds_tensor *beside)
{
    int rope = lm->config.ropes == 2 && lm->config.sliding[layer];
    if (table_keep(lm, rope, n, beside) != DS_OK)
        return NULL; /* makes one only if it was dropped */
    return table_find(lm, rope, rope_length(&lm->config.rope[rope], n), n);
}

/* x [B,H,L,D] with the positions of this call. Rows with padding have
 * positions of their own and look them up; else all rows share a slice of the
 * table, which is a view and copies nothing. The table is float32, also for
 * 16-bit x. */
ds_tensor *dsi_lm_rotate(dsi_lm *lm, int64_t layer, ds_tensor *x)
{
    if (lm->position || lm->config.no_rope[layer] || !x) return x;
    int64_t n = ds_size(x, 2);
    const dsi_lm_table *t = &lm->step_table;
    if (!t->cos && !(t = dsi_lm_rope_table(lm, layer, row_length(lm, n), x))) return NULL;
    ds_tensor *cosines, *sines;
    if (lm->positions) { /* [B,1,L,D/2] */
        cosines = ds_unsqueeze(ds_embedding(t->cos, lm->positions, -1), 1);
        sines = ds_unsqueeze(ds_embedding(t->sin, lm->positions, -1), 1);
    } else {
        int64_t begin = (lm->cache ? lm->cache->length : 0) - t->first;
        cosines = ds_slice(t->cos, 0, begin, begin + n);
        sines = ds_slice(t->sin, 0, begin, begin + n);
    }
    if (ds_dtype_of(x) == DS_F64)
        cosines = ds_cast(cosines, DS_F64), sines = ds_cast(sines, DS_F64);
    return ds_rotary_embedding(x, cosines, sines, false);
}

/* ---- rows whose length changes how they turn ---- */

int64_t dsi_lm_rope_together(const dsi_lm *lm, int64_t past)
{
    int64_t most = INT64_MAX;
    for (int i = 0; i < lm->config.ropes; i++) {
        const dsi_rope *r = &lm->config.rope[i];
        int64_t left = r->original_positions - past;
        if (r->type == DSI_ROPE_DYNAMIC) return left > 1 ? left : 1;
        if (r->type == DSI_ROPE_LONGROPE && left > 0) most = dsi_min(most, left);
    }
    return most;
}

bool dsi_lm_rope_restarts(const dsi_lm *lm, int64_t past)
{
    const dsi_rope *r = lm->config.rope;
    return lm->config.family == DSI_PHI3 && r->type == DSI_ROPE_LONGROPE &&
           past == r->original_positions;
}
