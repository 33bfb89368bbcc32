/* tools/selftest/trial.c: see trial.h.
 * SPDX-License-Identifier: MIT */
#include "trial.h"

#include "base/error.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILLER 0x5a /* outputs before the call, and all bytes between elements */

ds_dtype trial_wide(const Trial *t) { return t->dtype == DS_F64 ? DS_F64 : DS_F32; }

ds_status trial_missing(Trial *t)
{
    t->missing = true;
    return DS_OK;
}

static dsi_device *host(void) { return dsi_device_get((ds_device){DS_CPU, 0}); }

/* A host view of n contiguous float64. */
static dsi_view numbers_view(double *p, const dsi_view *like)
{
    dsi_view v = {.p = p, .dtype = DS_F64, .n = like->n};
    int64_t step = 1;
    for (int i = v.n - 1; i >= 0; i--) {
        v.d[i] = like->d[i], v.s[i] = step;
        step *= v.d[i];
    }
    return v;
}

static int64_t count_of(const dsi_view *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->n; i++) n *= v->d[i];
    return n;
}

/* Strides for the layout; returns the bytes that the operand spans. */
static size_t lay_out(dsi_view *v, Layout layout)
{
    int64_t step = layout == SPACED ? 2 : 1;
    for (int k = 0; k < v->n; k++) {
        int i = layout == TRANSPOSED ? k : v->n - 1 - k;
        v->s[i] = step;
        step *= v->d[i];
    }
    return (size_t)step * ds_dtype_size(v->dtype);
}

static uint64_t trial_draw(Trial *t)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return t->random >> 33;
}

/* The values, converted by the host's copy kernel. */
static ds_status fill_image(Trial *t, Operand *o, double low, double high)
{
    dsi_view image = o->view;
    int64_t n = count_of(&image);
    bool whole = image.dtype > DS_BF16;
    double *x = dsi_alloc((size_t)(n ? n : 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        double u = (double)trial_draw(t) / 0x1p31;
        x[i] = whole ? floor(low + u * (high - low)) : low + u * (high - low);
    }
    image.p = o->image;
    ds_status status = host()->kernels->copy(&host()->stream, numbers_view(x, &image), image);
    dsi_free(x);
    return status;
}

/* Outputs follow each other aligned. */
static size_t room_of(const Operand *o) { return (o->bytes + 63) / 64 * 64; }

dsi_view trial_operand(Trial *t, ds_dtype dtype, Layout layout, double low, double high,
                       bool output, dsi_view dims)
{
    Operand *o = &t->operand[t->n++];
    if (t->n <= t->made) return o->view;
    o->view = dims;
    o->view.dtype = dtype;
    o->output = output;
    o->bytes = lay_out(&o->view, layout);
    o->image = dsi_alloc(o->bytes ? o->bytes : 1);
    o->block = dsi_cache_alloc(t->device, o->bytes ? o->bytes : 1);
    memset(o->image, FILLER, o->bytes);
    if (low < high) fill_image(t, o, low, high);
    if (o->block) t->device->type->copy_in(&t->device->stream, o->block, o->image, o->bytes);
    o->view.p = o->block;
    t->made = t->n;
    return o->view;
}

ds_status trial_run(Trial *t, TrialBody *body, bool refill)
{
    for (int i = 0; i < t->made && refill; i++) {
        Operand *o = &t->operand[i];
        if (o->output) t->device->type->copy_in(&t->device->stream, o->block, o->image, o->bytes);
    }
    t->n = 0;
    return body(t);
}

void trial_end(Trial *t)
{
    for (int i = 0; i < t->made; i++) {
        dsi_cache_free(t->device, t->operand[i].block,
                       t->operand[i].bytes ? t->operand[i].bytes : 1);
        dsi_free(t->operand[i].image);
    }
    t->made = t->n = 0;
}

void *trial_outputs(Trial *t, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < t->made; i++)
        if (t->operand[i].output) *bytes += room_of(&t->operand[i]);
    char *all = dsi_alloc(*bytes ? *bytes : 1), *p = all;
    for (int i = 0; i < t->made; i++) {
        Operand *o = &t->operand[i];
        if (!o->output) continue;
        if (t->device->type->copy_out(&t->device->stream, p, o->block, o->bytes) != DS_OK) {
            dsi_free(all);
            return NULL;
        }
        p += room_of(o);
    }
    return all;
}

/* One output, `bytes` long: its elements as float64 in x; and whether the bytes
 * between them are as they were. */
static bool elements_of(const Operand *o, char *bytes, double *x)
{
    dsi_view v = o->view, image = o->view;
    bool same = true;
    v.p = bytes, image.p = o->image;
    host()->kernels->copy(&host()->stream, v, numbers_view(x, &v));
    host()->kernels->fill(&host()->stream, 0, v);
    char *before = dsi_alloc(o->bytes ? o->bytes : 1);
    memcpy(before, o->image, o->bytes);
    image.p = before;
    host()->kernels->fill(&host()->stream, 0, image);
    same = !memcmp(before, bytes, o->bytes);
    dsi_free(before);
    return same;
}

static double difference_of(const double *got, const double *want, int64_t n, bool whole)
{
    double most = 1e-3, worst = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i])) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
        double d = fabs(got[i] - want[i]) / most;
        worst = whole || !isfinite(d) ? INFINITY : fmax(worst, d);
    }
    return worst;
}

double trial_difference(Trial *got, Trial *want)
{
    size_t bytes, at = 0;
    char *a = trial_outputs(got, &bytes), *b = a ? trial_outputs(want, &bytes) : NULL;
    double worst = b ? 0 : -1;
    for (int i = 0; b && i < got->made; i++) {
        const Operand *o = &got->operand[i];
        int64_t n = count_of(&o->view);
        if (!o->output) continue;
        double *x = dsi_alloc((size_t)(2 * n + 1) * sizeof *x);
        bool clean = elements_of(o, a + at, x);
        elements_of(&want->operand[i], b + at, x + n);
        double d = difference_of(x, x + n, n, o->view.dtype > DS_BF16);
        worst = clean ? fmax(worst, d) : INFINITY;
        dsi_free(x);
        at += room_of(o);
    }
    dsi_free(a);
    dsi_free(b);
    return worst;
}
