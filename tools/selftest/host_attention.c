/* tools/selftest/host_attention.c: attention with dropout in plain C.
 * SPDX-License-Identifier: MIT */
#include "host_attention.h"

#include "base/mem.h"
#include "base/philox.h"

#include <math.h>

/* A view in float64 without gaps, whose memory is the caller's. */
static dsi_view wide_copy(const dsi_view *v)
{
    dsi_view wide = *v;
    int64_t n = 1;
    for (int i = v->n - 1; i >= 0; i--) wide.s[i] = n, n *= v->d[i];
    wide.dtype = DS_F64;
    wide.p = dsi_alloc((size_t)n * sizeof(double));
    return wide;
}

/* Row i of batch b of a wide [A,B,rows,width]; of a wide lse: width 1. */
static double *row_of(const dsi_view *v, int64_t b, int64_t i)
{
    int64_t width = v->n == 4 ? v->d[3] : 1;
    return (double *)v->p + (b * v->d[2] + i) * width;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add(double *y, double factor, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += factor * x[i];
}

typedef struct Weights {
    const dsi_philox *random;
    double p;
    const dsi_attention *c;
} Weights;

/* Row i of batch b, whose keys are those of batch g: w[j] = exp(score - lse), and
 * kept[j]: keep / (1 - p). Without lse it is computed. Returns the number of
 * keys. */
static int64_t weights_row(const Weights *o, const dsi_view *x, int64_t b, int64_t g, int64_t i,
                           bool known, double *lse, double *w, double *kept)
{
    const dsi_attention *c = o->c;
    int64_t keys = c->causal && i < x[HA_K].d[2] ? i + 1 : x[HA_K].d[2];
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        w[j] = c->scale * dot(row_of(&x[HA_Q], b, i), row_of(&x[HA_K], g, j), x[HA_Q].d[3]);
        if (c->softcap > 0) w[j] = c->softcap * tanh(w[j] / c->softcap);
        if (c->window && j <= i - c->window) w[j] = -INFINITY;
        most = fmax(most, w[j]);
    }
    for (int64_t j = 0; j < keys; j++) sum += exp(w[j] - most);
    if (!known) *lse = most + log(sum);
    for (int64_t j = 0; j < keys; j++) {
        uint32_t word = dsi_philox_weight(o->random->seed, o->random->offset + (uint64_t)b,
                                          (uint32_t)i, (uint32_t)j);
        w[j] = exp(w[j] - *lse);
        kept[j] = word < (1 - o->p) * 0x1p32 ? 1 / (1 - o->p) : 0;
    }
    return keys;
}

static void row_backward(const Weights *o, const dsi_view *x, int64_t b, int64_t g, int64_t i,
                         int64_t keys, double lse, const double *w, const double *kept)
{
    int64_t d = x[HA_Q].d[3], e = x[HA_V].d[3];
    const double *dy = row_of(&x[HA_DY], b, i);
    double mean = dot(dy, row_of(&x[HA_Y], b, i), e);
    for (int64_t j = 0; j < keys; j++) {
        double dp = kept[j] * dot(dy, row_of(&x[HA_V], g, j), e);
        double ds = w[j] * (dp - mean) * o->c->scale, cap = o->c->softcap;
        if (cap > 0 && w[j] > 0) ds *= 1 - pow((log(w[j]) + lse) / cap, 2);
        add(row_of(&x[HA_DQ], b, i), ds, row_of(&x[HA_K], g, j), d);
        add(row_of(&x[HA_DK], g, j), ds, row_of(&x[HA_Q], b, i), d);
        add(row_of(&x[HA_DV], g, j), w[j] * kept[j], dy, e);
    }
}

static void all_rows(const Weights *o, const dsi_view *x, dsi_view *lse)
{
    bool backward = x[HA_DY].p;
    int64_t batches = x[HA_Q].d[0] * x[HA_Q].d[1], group = x[HA_Q].d[1] / x[HA_K].d[1];
    double *w = dsi_alloc((size_t)x[HA_K].d[2] * 2 * sizeof *w), *kept = w + x[HA_K].d[2];
    for (int64_t b = 0; b < batches; b++)
        for (int64_t i = 0; i < x[HA_Q].d[2]; i++) {
            int64_t g = b / group,
                    keys = weights_row(o, x, b, g, i, backward, row_of(lse, b, i), w, kept);
            if (backward) row_backward(o, x, b, g, i, keys, *row_of(lse, b, i), w, kept);
            for (int64_t j = 0; j < keys && !backward; j++)
                add(row_of(&x[HA_Y], b, i), w[j] * kept[j], row_of(&x[HA_V], g, j), x[HA_V].d[3]);
        }
    dsi_free(w);
}

ds_status host_attention_dropout(Trial *t, const dsi_philox *random, double p,
                                 const dsi_attention *c, const dsi_view *x, dsi_view lse)
{
    Weights o = {random, p, c};
    bool backward = x[HA_DY].p;
    dsi_view wide[HA_VIEWS + 1] = {{0}}, from[HA_VIEWS + 1];
    ds_status status = DS_OK;
    for (int i = 0; i <= HA_VIEWS; i++) {
        from[i] = i < HA_VIEWS ? x[i] : lse;
        if (!from[i].p) continue;
        wide[i] = wide_copy(&from[i]);
        bool output = i == HA_VIEWS || i == HA_Y ? !backward : i >= HA_DQ;
        if (status == DS_OK && !output) status = CALL(t, copy, from[i], wide[i]);
        if (status == DS_OK && output) status = CALL(t, fill, 0, wide[i]);
    }
    if (status == DS_OK) all_rows(&o, wide, &wide[HA_VIEWS]);
    for (int i = 0; i <= HA_VIEWS; i++) {
        bool output = i == HA_VIEWS || i == HA_Y ? !backward : i >= HA_DQ;
        if (wide[i].p && output && status == DS_OK) status = CALL(t, copy, wide[i], from[i]);
        dsi_free(wide[i].p);
    }
    return status;
}
