/* tools/selftest/cases_nn.c: pools, softmax, norms, attention, dropout.
 * SPDX-License-Identifier: MIT */
#include "cases.h"
#include "host_attention.h"

#include "base/philox.h"

/* ---- pools ---- */

static const dsi_pool2d overlap = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, true, 0, false};
static const dsi_pool2d adaptive = {.adaptive = true};

#define POOL_IN(t)  IN(t, BIG(t, 32, 2), BIG(t, 64, 3), BIG(t, 56, 9), 7)
#define POOL_OUT(t) OUT(t, BIG(t, 32, 2), BIG(t, 64, 3), BIG(t, 28, 5), 4)
#define POOL_DY(t)  IN(t, BIG(t, 32, 2), BIG(t, 64, 3), BIG(t, 28, 5), 4)
#define POOL_DX(t)  OUT(t, BIG(t, 32, 2), BIG(t, 64, 3), BIG(t, 56, 9), 7)

static dsi_view pool_index(Trial *t, Layout layout)
{
    return trial_operand(t, DS_I32, layout, 0, 0, true,
                         DIMS(BIG(t, 32, 2), BIG(t, 64, 3), BIG(t, 28, 5), 4));
}

static ds_status max_pool(Trial *t)
{
    return CALL(t, max_pool2d, &overlap, POOL_IN(t), POOL_OUT(t), pool_index(t, t->layout));
}
static ds_status max_pool_dx(Trial *t)
{
    int64_t plane = BIG(t, 56, 9) * 7;
    dsi_view index = trial_operand(t, DS_I32, DENSE, 0, (double)(t->big ? plane : 12), false,
                                   DIMS(BIG(t, 32, 2), BIG(t, 64, 3), BIG(t, 28, 5), 4));
    return CALL(t, max_pool2d_dx, POOL_DY(t), index, POOL_DX(t));
}
static ds_status avg_pool(Trial *t)
{
    return CALL(t, avg_pool2d, &overlap, POOL_IN(t), POOL_OUT(t));
}
static ds_status avg_pool_dx(Trial *t)
{
    return CALL(t, avg_pool2d_dx, &overlap, POOL_DY(t), POOL_DX(t));
}
static ds_status adaptive_pool(Trial *t)
{
    return CALL(t, avg_pool2d, &adaptive, POOL_IN(t), POOL_OUT(t));
}
static ds_status adaptive_pool_dx(Trial *t)
{
    return CALL(t, avg_pool2d_dx, &adaptive, POOL_DY(t), POOL_DX(t));
}

/* ---- softmax ---- */

#define ROW_IN(t, columns)  IN(t, BIG(t, 512, 3), columns, 2)
#define ROW_OUT(t, columns) OUT(t, BIG(t, 512, 3), columns, 2)

static ds_status softmax(Trial *t)
{
    return CALL(t, softmax, false, ROW_IN(t, BIG(t, 1000, 33)), ROW_OUT(t, BIG(t, 1000, 33)));
}
static ds_status log_softmax_long(Trial *t)
{
    return CALL(t, softmax, true, IN(t, 2, 1025, 1), OUT(t, 2, 1025, 1));
}
static ds_status softmax_dx(Trial *t)
{
    int64_t c = BIG(t, 1000, 33);
    return CALL(t, softmax_dx, false, ROW_IN(t, c), ROW_IN(t, c), ROW_OUT(t, c));
}
static ds_status log_softmax_dx(Trial *t)
{
    int64_t c = BIG(t, 1000, 33);
    return CALL(t, softmax_dx, true, ROW_IN(t, c), ROW_IN(t, c), ROW_OUT(t, c));
}

static ds_status entropy_of(Trial *t, const dsi_cross_entropy *c, bool weighted)
{
    int64_t n = BIG(t, 512, 3), k = BIG(t, 1000, 10);
    dsi_view x = IN(t, n, k, 2), label = INDEX(t, (double)k, n, 2);
    dsi_view weight = weighted ? STATS(t, k) : ABSENT, lse = OUT_STATS(t, n, 2);
    dsi_view loss = OUT_STATS(t, n, 2), divisor = OUT_STATS(t, 1);
    divisor.n = 0;
    if (c->reduction != 2) loss.n = 0;
    return CALL(t, cross_entropy, c, x, label, weight, loss, lse, divisor);
}
static ds_status entropy_mean(Trial *t)
{
    return entropy_of(t, &(dsi_cross_entropy){1, 0.1, 0}, true);
}
static ds_status entropy_none(Trial *t)
{
    return entropy_of(t, &(dsi_cross_entropy){-100, 0, 2}, false);
}
/* Rows as logits of language models: long, and with a gap behind each. lse is
 * what the backward takes. */
static ds_status entropy_long(Trial *t)
{
    const dsi_cross_entropy c = {3, 0, 0};
    int64_t n = BIG(t, 1024, 5), k = BIG(t, 50257, 2083), row = k + 16 - k % 8;
    dsi_view x = IN(t, n, row), dx = OUT(t, n, row), label = INDEX(t, (double)k, n, 1);
    dsi_view lse = OUT_STATS(t, n, 1), loss = OUT_STATS(t, 1), divisor = OUT_STATS(t, 1);
    x.n = dx.n = 3, x.d[1] = dx.d[1] = k, x.d[2] = dx.d[2] = 1, x.s[2] = dx.s[2] = 1;
    loss.n = divisor.n = 0;
    ds_status status = CALL(t, cross_entropy, &c, x, label, ABSENT, loss, lse, divisor);
    if (status != DS_OK) return status;
    return CALL(t, cross_entropy_dx, &c, loss, x, label, ABSENT, lse, divisor, dx);
}
static ds_status entropy_dx(Trial *t)
{
    const dsi_cross_entropy c = {1, 0.1, 0};
    int64_t n = BIG(t, 512, 3), k = BIG(t, 1000, 10);
    dsi_view x = IN(t, n, k, 2), label = INDEX(t, (double)k, n, 2), weight = STATS(t, k);
    dsi_view lse = OUT_STATS(t, n, 2), loss = OUT_STATS(t, 1), divisor = OUT_STATS(t, 1);
    loss.n = divisor.n = 0;
    ds_status status = CALL(t, cross_entropy, &c, x, label, weight, loss, lse, divisor);
    if (status != DS_OK) return status;
    return CALL(t, cross_entropy_dx, &c, loss, x, label, weight, lse, divisor, OUT(t, n, k, 2));
}
static dsi_view transposed(dsi_view v)
{
    dsi_view t = v;
    t.d[1] = v.d[2], t.d[2] = v.d[1], t.s[1] = v.s[2], t.s[2] = v.s[1];
    return t;
}

/* dw = dy' x, and db. */
static ds_status linear_dw(Trial *t, dsi_view dy, dsi_view x, dsi_view dw, dsi_view db)
{
    dsi_view wide = {db.p, db.dtype, 3, {1, db.d[0], 1}, {0, db.s[0], 0}};
    if (t->device->type->kind != DS_CPU)
        return CALL_FUSION(t, matmul_sums, transposed(dy), x, dw, db);
    ds_status status = CALL(t, matmul, transposed(dy), x, ABSENT, dw);
    return status == DS_OK ? CALL(t, reduce, DSI_SUM, 1, transposed(dy), wide, ABSENT) : status;
}

/* The last layer of a network, its cross entropy, and their gradients. */
static ds_status entropy_linear(Trial *t)
{
    const dsi_cross_entropy c = {3, 0, 1};
    int64_t n = BIG(t, 16, 4), k = 10, m = 84;
    dsi_view x = IN(t, 1, n, m), w = IN(t, 1, k, m), y = OUT(t, 1, n, k), dy = OUT(t, 1, n, k),
             dx = OUT(t, 1, n, m), dw = OUT(t, 1, k, m), label = INDEX(t, (double)k, n, 1);
    dsi_view lse = OUT_STATS(t, n, 1), loss = OUT_STATS(t, 1), divisor = OUT_STATS(t, 1);
    dsi_view seed = OUT_STATS(t, 1), rows = y, drows = dy, db = OUT(t, k), last = OUT(t, 1, n, m);
    loss.n = divisor.n = seed.n = 0;
    for (int i = 0; i < 2; i++)
        rows.d[i] = y.d[i + 1], rows.s[i] = y.s[i + 1], drows.d[i] = rows.d[i],
        drows.s[i] = dy.s[i + 1];
    rows.d[2] = drows.d[2] = 1;
    ds_status status = CALL(t, matmul, x, transposed(w), STATS(t, k), y);
    if (status == DS_OK)
        status = CALL(t, cross_entropy, &c, rows, label, ABSENT, loss, lse, divisor);
    if (status == DS_OK) status = CALL(t, fill, 2, seed);
    if (status == DS_OK)
        status = CALL(t, cross_entropy_dx, &c, seed, rows, label, ABSENT, lse, divisor, drows);
    if (status == DS_OK) status = CALL(t, matmul, dy, w, ABSENT, dx);
    if (status == DS_OK) status = CALL(t, unary_dx, DSI_RELU, 0, dx, x, last);
    return status == DS_OK ? linear_dw(t, dy, x, dw, db) : status;
}
static ds_status entropy_part(Trial *t)
{
    int64_t n = BIG(t, 4096, 5), m = BIG(t, 4096, 1031);
    dsi_view x = STATS(t, n, m), label = INDEX(t, 3.0 * (double)m, n);
    return CALL(t, cross_entropy_part_dx, m, x, label, STATS(t, n), STATS(t, n), OUT(t, n, m));
}
static ds_status entropy_part_aligned(Trial *t)
{
    int64_t n = BIG(t, 4096, 5), m = BIG(t, 4094, 1030), row = m + 2;
    dsi_view x = STATS(t, n, row), dx = OUT(t, n, row), label = INDEX(t, 3.0 * (double)m, n);
    x.d[1] = dx.d[1] = m;
    return CALL(t, cross_entropy_part_dx, m, x, label, STATS(t, n), STATS(t, n), dx);
}

/* ---- norms ---- */

#define CHANNELS(t)  BIG(t, 64, 33)
#define IMAGE_IN(t)  IN(t, BIG(t, 32, 2), CHANNELS(t), BIG(t, 1024, 5))
#define IMAGE_OUT(t) OUT(t, BIG(t, 32, 2), CHANNELS(t), BIG(t, 1024, 5))

static ds_status batch_stats(Trial *t)
{
    int64_t c = CHANNELS(t);
    return CALL(t, batch_stats, IMAGE_IN(t), OUT_STATS(t, c), OUT_STATS(t, c));
}
static ds_status batch_norm(Trial *t)
{
    int64_t c = CHANNELS(t);
    return CALL(t, batch_norm, IMAGE_IN(t), STATS(t, c), STATS(t, c), STATS(t, c), STATS(t, c),
                IMAGE_OUT(t));
}
static ds_status batch_norm_dx(Trial *t)
{
    int64_t c = CHANNELS(t);
    return CALL(t, batch_norm_dx, true, IMAGE_IN(t), IMAGE_IN(t), STATS(t, c), STATS(t, c),
                STATS(t, c), IMAGE_OUT(t), OUT_STATS(t, c), OUT_STATS(t, c));
}

/* [N,C,I] whose channels are neighbours in memory: what batch_norm_last takes. */
static dsi_view channels_last(Trial *t, double low, double high, bool output)
{
    int64_t n = BIG(t, 32, 3), i = BIG(t, 1024, 171), c = BIG(t, 64, 72);
    dsi_view v = trial_operand(t, t->dtype, DENSE, low, high, output, DIMS(n, i, c));
    return (dsi_view){v.p, v.dtype, 3, {n, c, i}, {v.s[0], v.s[2], v.s[1]}};
}
/* The mean is large beside the deviation. */
static ds_status batch_stats_last(Trial *t)
{
    dsi_view x = channels_last(t, 100, 101, false);
    return CALL(t, batch_stats, x, OUT_STATS(t, x.d[1]), OUT_STATS(t, x.d[1]));
}
static ds_status batch_norm_last(Trial *t)
{
    dsi_view x = channels_last(t, -1, 1, false);
    int64_t c = x.d[1];
    return CALL(t, batch_norm, x, STATS(t, c), STATS(t, c), STATS(t, c), STATS(t, c),
                channels_last(t, 0, 0, true));
}
static ds_status batch_norm_dx_last(Trial *t)
{
    dsi_view dy = channels_last(t, -1, 1, false), x = channels_last(t, -1, 1, false);
    int64_t c = x.d[1];
    return CALL(t, batch_norm_dx, true, dy, x, STATS(t, c), STATS(t, c), STATS(t, c),
                channels_last(t, 0, 0, true), OUT_STATS(t, c), OUT_STATS(t, c));
}
static ds_status layer_norm(Trial *t)
{
    int64_t m = BIG(t, 1024, 9), d = BIG(t, 768, 65);
    return CALL(t, layer_norm, 1e-5, IN(t, m, d), STATS(t, d), STATS(t, d), OUT(t, m, d),
                OUT_STATS(t, m), OUT_STATS(t, m));
}
static ds_status rms_norm_long(Trial *t)
{
    int64_t m = BIG(t, 1024, 2), d = BIG(t, 4096, 1030);
    return CALL(t, layer_norm, 1e-5, IN(t, m, d), STATS(t, d), ABSENT, OUT(t, m, d), ABSENT,
                OUT_STATS(t, m));
}
static ds_status layer_norm_dx(Trial *t)
{
    int64_t m = BIG(t, 1024, 66), d = BIG(t, 768, 33);
    return CALL(t, layer_norm_dx, IN(t, m, d), IN(t, m, d), STATS(t, d), STATS(t, m), STATS(t, m),
                OUT(t, m, d), OUT_STATS(t, d), OUT_STATS(t, d));
}

/* Rows of whole vectors of 16 bytes, which stay in registers. */
#define OWN(t, n) trial_operand(t, (t)->dtype, DENSE, 0.5, 1.5, false, DIMS(n))
static ds_status layer_norm_aligned(Trial *t)
{
    int64_t m = BIG(t, 8192, 9), d = BIG(t, 768, 72);
    return CALL(t, layer_norm, 1e-5, IN(t, m, d), OWN(t, d), OWN(t, d), OUT(t, m, d),
                OUT_STATS(t, m), OUT_STATS(t, m));
}
static ds_status rms_norm_aligned(Trial *t)
{
    int64_t m = BIG(t, 8192, 2), d = BIG(t, 4096, 1032);
    return CALL(t, layer_norm, 1e-5, IN(t, m, d), OWN(t, d), ABSENT, OUT(t, m, d), ABSENT,
                OUT_STATS(t, m));
}
/* A norm, a sum of its result, and an RMS norm of that, with a term: one launch. The core
 * adds the term. */
static ds_status norm_sum_norm(Trial *t)
{
    int64_t m = BIG(t, 8192, 9), d = BIG(t, 768, 72);
    dsi_view x = IN(t, m, d), other = IN(t, m, d), weight = OWN(t, d), bias = OWN(t, d),
             w = OWN(t, d), shifted = OUT_STATS(t, d);
    dsi_view first = OUT(t, m, d), sum = OUT(t, m, d), y = OUT(t, m, d), none = ABSENT,
             rstd = STATS(t, m);
    ds_status status = CALL(t, affine, 1, 1, w, shifted);
    if (status == DS_OK)
        status = CALL(t, layer_norm, 1e-5, x, weight, bias, first, OUT_STATS(t, m),
                      OUT_STATS(t, m));
    if (status == DS_OK) status = CALL(t, binary, DSI_ADD, 1, other, first, sum);
    if (status != DS_OK) return status;
    if (t->device->type->kind == DS_CPU)
        return CALL(t, layer_norm, 1e-5, sum, shifted, none, y, none, rstd);
    return CALL_FUSION(t, rms_norm_shifted, 1e-5, 1, sum, w, y);
}
static ds_status layer_norm_dx_aligned(Trial *t)
{
    int64_t m = BIG(t, 8192, 130), d = BIG(t, 768, 264);
    return CALL(t, layer_norm_dx, IN(t, m, d), IN(t, m, d), OWN(t, d), STATS(t, m), STATS(t, m),
                OUT(t, m, d), OUT_STATS(t, d), OUT_STATS(t, d));
}

/* ---- attention: two heads of queries share one of keys ---- */

static const dsi_attention all_keys = {.scale = 0.25}, causal = {.scale = 0.25, .causal = true},
                           capped = {.scale = 0.25, .softcap = 0.5},
                           window = {.scale = 0.25, .softcap = 0.5, .causal = true, .window = 20};

typedef enum Mask { NO_MASK, BOOL_MASK, FLOAT_MASK } Mask;

static dsi_view mask_of(Trial *t, Mask kind, int64_t l, int64_t s)
{
    if (kind == NO_MASK) return ABSENT;
    dsi_view v = kind == BOOL_MASK ? BOOLS(t, l, s) : IN(t, l, s);
    return (dsi_view){v.p, v.dtype, 3, {2, l, s}, {0, v.s[0], v.s[1]}};
}

static ds_status attention_of(Trial *t, const dsi_attention *c, Mask mask)
{
    int64_t l = BIG(t, 512, 65), s = BIG(t, 512, 66), d = BIG(t, 64, 9), e = BIG(t, 64, 17);
    return CALL(t, attention, c, IN(t, 2, l, d), IN(t, 1, s, d), IN(t, 1, s, e),
                mask_of(t, mask, l, s), OUT(t, 2, l, e), OUT_STATS(t, 2, l));
}
static ds_status attention_plain(Trial *t) { return attention_of(t, &all_keys, NO_MASK); }
static ds_status attention_causal(Trial *t) { return attention_of(t, &causal, FLOAT_MASK); }
static ds_status attention_bool(Trial *t) { return attention_of(t, &capped, BOOL_MASK); }
static ds_status attention_wide(Trial *t)
{
    return CALL(t, attention, &all_keys, IN(t, 1, 3, 70), IN(t, 1, 5, 70), IN(t, 1, 5, 65), ABSENT,
                OUT(t, 1, 3, 65), OUT_STATS(t, 1, 3));
}

/* x [A,L,B,D] as [A,B,L,D]: as the heads of a projection are. */
static dsi_view heads_of(dsi_view x)
{
    return (dsi_view){
        x.p, x.dtype, 4, {x.d[0], x.d[2], x.d[1], x.d[3]}, {x.s[0], x.s[2], x.s[1], x.s[3]}};
}
static ds_status attention_heads(Trial *t, int64_t d, const dsi_attention *c)
{
    int64_t l = BIG(t, 256, 66), h = BIG(t, 12, 4);
    dsi_view q = heads_of(IN(t, 2, l, h, d)), k = heads_of(IN(t, 2, l, h / 2, d)),
             v = heads_of(IN(t, 2, l, h / 2, d)), y = heads_of(OUT(t, 2, l, h, d));
    return CALL(t, attention, c, q, k, v, ABSENT, y, OUT_STATS(t, 2, h, l));
}
static ds_status attention_dx_heads(Trial *t, int64_t d, const dsi_attention *c)
{
    int64_t l = BIG(t, 256, 66), h = BIG(t, 12, 4);
    dsi_view lse = trial_operand(t, trial_wide(t), DENSE, 3, 4, false, DIMS(2, h, l));
    dsi_view dy = heads_of(IN(t, 2, l, h, d)), q = heads_of(IN(t, 2, l, h, d)),
             k = heads_of(IN(t, 2, l, h / 2, d)), v = heads_of(IN(t, 2, l, h / 2, d)),
             y = heads_of(IN(t, 2, l, h, d)), dq = heads_of(OUT(t, 2, l, h, d)),
             dk = heads_of(OUT(t, 2, l, h / 2, d)), dv = heads_of(OUT(t, 2, l, h / 2, d));
    return CALL(t, attention_dx, c, dy, q, k, v, ABSENT, y, lse, dq, dk, dv);
}
static ds_status attention_front(Trial *t) { return attention_heads(t, BIG(t, 64, 16), &causal); }
static ds_status attention_front_wide(Trial *t) { return attention_heads(t, 72, &all_keys); }
static ds_status attention_window(Trial *t) { return attention_heads(t, BIG(t, 64, 16), &window); }
static ds_status attention_dx_window(Trial *t)
{
    return attention_dx_heads(t, BIG(t, 64, 16), &window);
}
static ds_status attention_dx_front(Trial *t)
{
    return attention_dx_heads(t, BIG(t, 64, 16), &causal);
}
static ds_status attention_dx_front_wide(Trial *t) { return attention_dx_heads(t, 72, &all_keys); }

static const dsi_philox weights_random = {.seed = 98765432109, .offset = 5};

static ds_status attention_dropout_heads(Trial *t, int64_t d, const dsi_attention *c)
{
    int64_t l = BIG(t, 256, 66), h = BIG(t, 12, 4);
    dsi_view x[HA_VIEWS] = {[HA_Q] = heads_of(IN(t, 2, l, h, d)),
                            [HA_K] = heads_of(IN(t, 2, l, h / 2, d)),
                            [HA_V] = heads_of(IN(t, 2, l, h / 2, d)),
                            [HA_Y] = heads_of(OUT(t, 2, l, h, d))};
    dsi_view lse = OUT_STATS(t, 2, h, l);
    if (t->device->type->kind == DS_CPU)
        return host_attention_dropout(t, &weights_random, 0.3, c, x, lse);
    return CALL_FUSION(t, attention_dropout, &weights_random, 0.3, c, x[HA_Q], x[HA_K], x[HA_V],
                       ABSENT, x[HA_Y], lse);
}
static ds_status attention_dropout_dx_heads(Trial *t, int64_t d, const dsi_attention *c)
{
    int64_t l = BIG(t, 256, 66), h = BIG(t, 12, 4);
    dsi_view lse = trial_operand(t, trial_wide(t), DENSE, 3, 4, false, DIMS(2, h, l));
    dsi_view x[HA_VIEWS] = {
        [HA_Q] = heads_of(IN(t, 2, l, h, d)),       [HA_K] = heads_of(IN(t, 2, l, h / 2, d)),
        [HA_V] = heads_of(IN(t, 2, l, h / 2, d)),   [HA_Y] = heads_of(IN(t, 2, l, h, d)),
        [HA_DY] = heads_of(IN(t, 2, l, h, d)),      [HA_DQ] = heads_of(OUT(t, 2, l, h, d)),
        [HA_DK] = heads_of(OUT(t, 2, l, h / 2, d)), [HA_DV] = heads_of(OUT(t, 2, l, h / 2, d))};
    if (t->device->type->kind == DS_CPU)
        return host_attention_dropout(t, &weights_random, 0.3, c, x, lse);
    return CALL_FUSION(t, attention_dropout_dx, &weights_random, 0.3, c, x[HA_DY], x[HA_Q], x[HA_K],
                       x[HA_V], ABSENT, x[HA_Y], lse, x[HA_DQ], x[HA_DK], x[HA_DV]);
}
static ds_status attention_dropout(Trial *t)
{
    return attention_dropout_heads(t, BIG(t, 64, 16), &causal);
}
static ds_status attention_dropout_wide(Trial *t)
{
    return attention_dropout_heads(t, 72, &window);
}
static ds_status attention_dropout_dx(Trial *t)
{
    return attention_dropout_dx_heads(t, BIG(t, 64, 16), &causal);
}
static ds_status attention_dropout_dx_wide(Trial *t)
{
    return attention_dropout_dx_heads(t, 72, &window);
}

/* lse is large, so that the softmax of scores is below 1. */
static ds_status attention_dx_of(Trial *t, const dsi_attention *c, Mask mask)
{
    int64_t l = BIG(t, 512, 65), s = BIG(t, 512, 66), d = BIG(t, 64, 9), e = BIG(t, 64, 17);
    dsi_view lse = trial_operand(t, trial_wide(t), DENSE, 3, 4, false, DIMS(2, l));
    return CALL(t, attention_dx, c, IN(t, 2, l, e), IN(t, 2, l, d), IN(t, 1, s, d), IN(t, 1, s, e),
                mask_of(t, mask, l, s), IN(t, 2, l, e), lse, OUT(t, 2, l, d), OUT(t, 1, s, d),
                OUT(t, 1, s, e));
}
static ds_status attention_dx_plain(Trial *t) { return attention_dx_of(t, &all_keys, FLOAT_MASK); }
static ds_status attention_dx_causal(Trial *t) { return attention_dx_of(t, &window, BOOL_MASK); }

/* ---- fusions ---- */

static ds_status relu_max_pool(Trial *t)
{
    static const dsi_pool2d quads = {{2, 2}, {2, 2}, {0, 0}, {1, 1}, false, 0, false};
    dsi_view x = IN(t, 2, 3, 8, 6), y = OUT(t, 2, 3, 4, 3);
    dsi_view index = trial_operand(t, DS_I32, DENSE, 0, 0, false, DIMS(2, 3, 4, 3));
    return CALL_FUSION(t, relu_max_pool2d, &quads, x, y, index);
}

/* The host has none of the next two: the core's kernels that they replace. */

static ds_status relu_max_pool_dx(Trial *t)
{
    static const dsi_pool2d quads = {{2, 2}, {2, 2}, {0, 0}, {1, 1}, false, 0, false};
    dsi_view x = IN(t, 2, 3, 8, 6), max = OUT(t, 2, 3, 4, 3), dy = IN(t, 2, 3, 4, 3);
    dsi_view index = trial_operand(t, DS_I32, DENSE, 0, 0, false, DIMS(2, 3, 4, 3));
    dsi_view masked = OUT(t, 2, 3, 4, 3), dx = OUT(t, 2, 3, 8, 6);
    ds_status status = CALL(t, max_pool2d, &quads, x, max, index);
    if (status == DS_OK) status = CALL(t, unary_dx, DSI_RELU, 0, dy, max, masked);
    if (status != DS_OK) return status;
    if (t->device->type->kind == DS_CPU) return CALL(t, max_pool2d_dx, masked, index, dx);
    return CALL_FUSION(t, relu_max_pool2d_dx, dy, max, index, dx);
}

static ds_status batch_norm_stats(Trial *t)
{
    dsi_view x = IMAGE_IN(t);
    int64_t c = CHANNELS(t), n = x.d[0] * x.d[2];
    dsi_view mean = OUT_STATS(t, c), rstd = OUT_STATS(t, c), var = STATS(t, c);
    dsi_view rm = trial_operand(t, trial_wide(t), DENSE, 0.5, 1.5, true, DIMS(c)),
             rv = trial_operand(t, trial_wide(t), DENSE, 0.5, 1.5, true, DIMS(c));
    dsi_view weight = STATS(t, c), bias = STATS(t, c);
    dsi_view factor = OUT_STATS(t, c), term = OUT_STATS(t, c);
    if (t->device->type->kind != DS_CPU)
        return CALL_FUSION(t, batch_norm_stats, 1e-5, 0.1, x, mean, rstd, rm, rv, weight, bias,
                           factor, term);
    double unbiased = 0.1 * (double)n / (double)(n - 1);
    ds_status status = CALL(t, batch_stats, x, mean, var);
    if (status == DS_OK) status = CALL(t, affine, 0.9, 0, rm, rm);
    if (status == DS_OK) status = CALL(t, binary, DSI_ADD, 0.1, rm, mean, rm);
    if (status == DS_OK) status = CALL(t, affine, 0.9, 0, rv, rv);
    if (status == DS_OK) status = CALL(t, binary, DSI_ADD, unbiased, rv, var, rv);
    if (status == DS_OK) status = CALL(t, affine, 1, 1e-5, var, rstd);
    if (status == DS_OK) status = CALL(t, unary, DSI_POW, -0.5, rstd, rstd);
    if (status == DS_OK) status = CALL(t, binary, DSI_MUL, 0, rstd, weight, factor);
    return status == DS_OK ? CALL(t, copy, bias, term) : status;
}

/* On the host the core's kernels, which have the same bits. add may be absent. */
static ds_status norm_relu_of(Trial *t, dsi_view x, dsi_view add, dsi_view y)
{
    int64_t c = x.d[1];
    dsi_view mean = STATS(t, c), factor = STATS(t, c), term = STATS(t, c);
    if (t->device->type->kind != DS_CPU)
        return CALL_FUSION(t, batch_norm_relu, x, mean, factor, term, add, y);
    ds_status status = CALL(t, batch_norm, x, mean, factor, ABSENT, term, y);
    if (status == DS_OK && add.p) status = CALL(t, binary, DSI_ADD, 1, y, add, y);
    return status == DS_OK ? CALL(t, unary, DSI_RELU, 0, y, y) : status;
}
static ds_status norm_relu(Trial *t)
{
    dsi_view x = IMAGE_IN(t), add = IMAGE_IN(t);
    return norm_relu_of(t, x, add, IMAGE_OUT(t));
}
static ds_status norm_relu_last(Trial *t)
{
    dsi_view x = channels_last(t, -2, 1, false);
    return norm_relu_of(t, x, ABSENT, channels_last(t, 0, 0, true));
}
static ds_status norm_add_relu_last(Trial *t)
{
    dsi_view x = channels_last(t, -1, 1, false), add = channels_last(t, -1, 1, false);
    return norm_relu_of(t, x, add, channels_last(t, 0, 0, true));
}

/* The core computes the mask, and the host all. */
static ds_status norm_relu_dx_of(Trial *t, dsi_view dy, dsi_view x, dsi_view y, dsi_view masked,
                                 dsi_view dx)
{
    int64_t c = x.d[1];
    dsi_view mean = STATS(t, c), rstd = STATS(t, c), weight = STATS(t, c), term = STATS(t, c);
    dsi_view factor = OUT_STATS(t, c), dw = OUT_STATS(t, c), db = OUT_STATS(t, c);
    ds_status status = CALL(t, binary, DSI_MUL, 0, rstd, weight, factor);
    if (status == DS_OK) status = CALL(t, batch_norm, x, mean, factor, ABSENT, term, y);
    if (status == DS_OK) status = CALL(t, unary_dx, DSI_RELU, 0, dy, y, masked);
    if (status != DS_OK) return status;
    if (t->device->type->kind == DS_CPU)
        return CALL(t, batch_norm_dx, true, masked, x, mean, rstd, weight, dx, dw, db);
    return CALL_FUSION(t, batch_norm_relu_dx, dy, x, mean, rstd, factor, term, dx, dw, db);
}
static ds_status norm_relu_dx(Trial *t)
{
    dsi_view dy = IMAGE_IN(t), x = IMAGE_IN(t), y = IMAGE_OUT(t), masked = IMAGE_OUT(t);
    return norm_relu_dx_of(t, dy, x, y, masked, IMAGE_OUT(t));
}
static ds_status norm_relu_dx_last(Trial *t)
{
    dsi_view dy = channels_last(t, -1, 1, false), x = channels_last(t, -2, 1, false),
             y = channels_last(t, 0, 0, true), masked = channels_last(t, 0, 0, true);
    return norm_relu_dx_of(t, dy, x, y, masked, channels_last(t, 0, 0, true));
}

/* The host has no such kernel: the words of base/philox.h, and copies. */
static ds_status dropout_on_host(Trial *t, dsi_philox random, double p, dsi_view x, dsi_view y,
                                 dsi_view keep)
{
    uint64_t below = (uint64_t)((1 - p) * 0x1p32);
    int64_t n = keep.d[0] * keep.d[1];
    bool *kept = keep.p;
    for (int64_t i = 0; i < n; i++)
        kept[i] = dsi_philox_word(random.seed, random.offset, (uint64_t)i) < below;
    ds_status status = CALL(t, affine, 2, 0, x, y);
    dsi_view zero = y;
    double nothing = 0;
    zero.p = &nothing;
    for (int i = 0; i < zero.n; i++) zero.s[i] = 0;
    return status == DS_OK ? CALL(t, where, keep, y, zero, y) : status;
}

static ds_status dropout(Trial *t)
{
    dsi_philox random = {.seed = 12345678901, .offset = 77};
    int64_t n = BIG(t, 1024, 33);
    dsi_view x = IN(t, n, 31), y = OUT(t, n, 31), keep = OUT_INDEX(t, DS_BOOL, n, 31);
    if (t->device->type->kind == DS_CPU) return dropout_on_host(t, random, 0.3, x, y, keep);
    return CALL_FUSION(t, dropout, &random, 0.3, 2, x, y, keep);
}

const SelfCase selftest_nn[] = {
    {"max_pool2d", "overlapping", max_pool, 1, false},
    {"max_pool2d_dx", "overlapping", max_pool_dx, 2, false},
    {"avg_pool2d", "overlapping", avg_pool, 2, false},
    {"avg_pool2d_dx", "overlapping", avg_pool_dx, 2, false},
    {"avg_pool2d", "adaptive", adaptive_pool, 2, false},
    {"avg_pool2d_dx", "adaptive", adaptive_pool_dx, 2, false},
    {"softmax", "", softmax, 2, false},
    {"softmax", "log, long rows", log_softmax_long, 2, false},
    {"softmax_dx", "", softmax_dx, 4, false},
    {"softmax_dx", "log", log_softmax_dx, 8, false},
    {"cross_entropy", "mean, weights, smoothing", entropy_mean, 4, false},
    {"cross_entropy", "none", entropy_none, 4, false},
    {"cross_entropy_dx", "mean, weights, smoothing", entropy_dx, 4, false},
    {"cross_entropy", "long rows", entropy_long, 12, true},
    {"cross_entropy", "of a layer, and gradients", entropy_linear, 8, false},
    {"cross_entropy_part_dx", "", entropy_part, 4, true},
    {"cross_entropy_part_dx", "rows with gaps", entropy_part_aligned, 4, true},
    {"batch_stats", "", batch_stats, 2, false},
    {"batch_norm", "", batch_norm, 2, false},
    {"batch_norm_dx", "", batch_norm_dx, 8, false},
    {"batch_stats", "channels last", batch_stats_last, 2, true},
    {"batch_norm", "channels last", batch_norm_last, 2, true},
    {"batch_norm_dx", "channels last", batch_norm_dx_last, 8, true},
    {"layer_norm", "", layer_norm, 4, true},
    {"layer_norm", "rms, long rows", rms_norm_long, 4, true},
    {"layer_norm_dx", "", layer_norm_dx, 8, true},
    {"layer_norm", "aligned rows", layer_norm_aligned, 4, true},
    {"layer_norm", "rms, aligned long rows", rms_norm_aligned, 4, true},
    {"layer_norm_dx", "aligned rows", layer_norm_dx_aligned, 8, true},
    {"rms_norm_shifted", "of a sum of a norm", norm_sum_norm, 8, true},
    {"attention", "", attention_plain, 4, true},
    {"attention", "causal, mask", attention_causal, 4, true},
    {"attention", "bool mask, cap", attention_bool, 4, true},
    {"attention", "wide heads", attention_wide, 4, true},
    {"attention", "heads of a projection", attention_front, 4, true},
    {"attention", "heads of 72", attention_front_wide, 4, true},
    {"attention", "window, cap", attention_window, 4, true},
    {"attention_dx", "window, cap", attention_dx_window, 8, true},
    {"attention_dx", "heads of a projection", attention_dx_front, 8, true},
    {"attention_dx", "heads of 72", attention_dx_front_wide, 8, true},
    {"attention_dropout", "", attention_dropout, 4, true},
    {"attention_dropout", "heads of 72, window, cap", attention_dropout_wide, 4, true},
    {"attention_dropout_dx", "", attention_dropout_dx, 8, true},
    {"attention_dropout_dx", "heads of 72, window, cap", attention_dropout_dx_wide, 8, true},
    {"attention_dx", "mask", attention_dx_plain, 8, true},
    {"attention_dx", "bool mask, window, cap", attention_dx_causal, 8, true},
    {"relu_max_pool2d", "", relu_max_pool, 1, false},
    {"relu_max_pool2d_dx", "", relu_max_pool_dx, 2, false},
    {"batch_norm_stats", "", batch_norm_stats, 4, false},
    {"batch_norm_relu", "", norm_relu, 4, false},
    {"batch_norm_relu", "channels last", norm_relu_last, 2, true},
    {"batch_norm_relu", "channels last, sum", norm_add_relu_last, 4, true},
    {"batch_norm_relu_dx", "", norm_relu_dx, 8, false},
    {"batch_norm_relu_dx", "channels last", norm_relu_dx_last, 8, true},
    {"dropout", "", dropout, 1, false},
    {0}};
