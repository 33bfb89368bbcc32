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

/* The bytes of a block and its image. Outputs follow each other aligned. */
static size_t room_of(const Operand *o) { return (o->bytes + 64) / 64 * 64; }

static void *block_new(const Trial *t, const Operand *o)
{
    return dsi_cache_alloc(t->device, room_of(o));
}

/* Of the trial like t, or its own; the bytes behind the last element are filler
 * too. */
static void *image_new(Trial *t, Operand *o, double low, double high)
{
    if (t->like && t->n <= t->like->made) return t->like->operand[t->n - 1].image;
    o->image = memset(dsi_alloc(room_of(o)), FILLER, room_of(o));
    if (low < high) fill_image(t, o, low, high);
    return o->image;
}

dsi_view trial_operand(Trial *t, ds_dtype dtype, Layout layout, double low, double high,
                       bool output, dsi_view dims)
{
    Operand *o = &t->operand[t->n++];
    if (t->n <= t->made) return o->view;
    o->view = dims;
    o->view.dtype = dtype;
    o->output = output;
    o->bytes = lay_out(&o->view, layout);
    o->image = image_new(t, o, low, high);
    o->block = block_new(t, o);
    if (o->block) t->device->type->copy_in(&t->device->stream, o->block, o->image, room_of(o));
    o->view.p = o->block;
    t->made = t->n;
    return o->view;
}

ds_status trial_run(Trial *t, TrialBody *body)
{
    t->n = 0;
    return body(t);
}

void trial_end(Trial *t)
{
    for (int i = 0; i < t->made; i++) {
        const Operand *o = &t->operand[i];
        void *const blocks[] = {o->block, o->fresh, o->first};
        for (int k = 0; k < 3; k++)
            if (blocks[k]) dsi_cache_free(t->device, blocks[k], room_of(o));
        if (!t->like || i >= t->like->made) dsi_free(o->image);
    }
    t->made = t->n = 0;
}

/* ---- repeats -------------------------------------------------------------------------------------------- */

static ds_status device_copy(const Trial *t, void *to, const void *from, const Operand *o)
{
    return t->device->type->copy(&t->device->stream, to, t->device, from, room_of(o));
}

static ds_status first_keep(const Trial *t, Operand *o)
{
    o->fresh = block_new(t, o);
    o->first = block_new(t, o);
    if (!o->fresh || !o->first) return ds_error_status();
    ds_status status = t->device->type->copy_in(&t->device->stream, o->fresh, o->image, room_of(o));
    return status == DS_OK ? device_copy(t, o->first, o->block, o) : status;
}

/* Whether o's block differs from o->first: as int64, of which not equal are
 * counted in float32 (a sum of ones is 0 only if there are none). */
static bool first_differs(const Trial *t, const Operand *o)
{
    const dsi_kernels *k = t->device->own_kernels;
    dsi_stream *s = &t->device->stream;
    int64_t n = (int64_t)(room_of(o) / sizeof(int64_t));
    size_t bytes = (size_t)(n + 1) * sizeof(float), bools = (size_t)n;
    float *number = dsi_cache_alloc(t->device, bytes), sum = 0;
    bool *unequal = dsi_cache_alloc(t->device, bools);
    dsi_view now = {.p = o->block, .dtype = DS_I64, .n = 1, .d = {n}, .s = {1}}, first = now;
    dsi_view y = now, wide = now,
             total = {.p = number, .dtype = DS_F32, .n = 1, .d = {1}, .s = {1}};
    first.p = o->first;
    y.p = unequal, y.dtype = DS_BOOL;
    wide.p = number + 1, wide.dtype = DS_F32;
    bool done = number && unequal && k->compare(s, DSI_NE, now, first, y) == DS_OK &&
                k->copy(s, y, wide) == DS_OK &&
                k->reduce(s, DSI_SUM, 1, wide, total, (dsi_view){.p = NULL}) == DS_OK &&
                t->device->type->copy_out(s, &sum, number, sizeof sum) == DS_OK;
    if (number) dsi_cache_free(t->device, number, bytes);
    if (unequal) dsi_cache_free(t->device, unequal, bools);
    return !done || sum != 0;
}

bool trial_repeats(Trial *t, TrialBody *body, int n)
{
    bool same = true;
    for (int i = 0; n > 0 && same && i < t->made; i++)
        if (t->operand[i].output) same = first_keep(t, &t->operand[i]) == DS_OK;
    for (int k = 0; same && k < n; k++) {
        for (int i = 0; same && i < t->made; i++) {
            const Operand *o = &t->operand[i];
            if (o->output) same = device_copy(t, o->block, o->fresh, o) == DS_OK;
        }
        same = same && trial_run(t, body) == DS_OK;
        for (int i = 0; same && i < t->made; i++)
            if (t->operand[i].output) same = !first_differs(t, &t->operand[i]);
    }
    return same;
}

/* ---- beside another trial ------------------------------------------------------------------------------- */

/* The outputs' bytes on the host, one after another; NULL with the message. */

static void *trial_outputs(Trial *t, size_t *bytes)
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
