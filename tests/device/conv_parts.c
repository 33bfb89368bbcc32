/* tests/device/conv_parts.c: convolutions of float32 by the matrix unit, in
 * parts, beside those of a set of instructions without it: errors to float64
 * are no larger; numbers that parts cannot hold give the same; results do not
 * depend on threads; a failed allocation is an error, and leaves no trace.
 * With a sanitizer, where float64 takes minutes, the two are compared with each
 * other. Skipped without the unit.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "device/device.h"

#include <pthread.h>

typedef struct Case {
    int64_t N, C, H, W, K, R;
    dsi_conv2d c;
} Case;

#define CONV(stride, padding) \
    { \
        {stride, stride}, {padding, padding}, {1, 1}, 1 \
    }
static const Case cases[] = {
    {2, 64, 9, 11, 64, 3, CONV(1, 1)},                                         /* 60 tiles */
    {1, 96, 18, 17, 64, 3, CONV(1, 0)},    {1, 64, 34, 33, 96, 3, CONV(1, 2)}, /* several blocks */
    {6, 160, 7, 9, 256, 3, CONV(1, 1)},    /* large blocks; dw by the unit */
    {40, 256, 10, 10, 128, 3, CONV(1, 1)}, /* dw in several blocks */
    {3, 128, 8, 8, 288, 3, CONV(1, 1)},    {4, 128, 12, 12, 256, 1, CONV(1, 0)}, /* products */
    {4, 128, 13, 13, 256, 1, CONV(2, 0)},
};
#define N_CASES (int)(sizeof cases / sizeof *cases)

typedef struct Operands {
    dsi_view x, w, b, dy; /* in */
    dsi_view y, dx, dw;
} Operands;

static const int planes[] = {0, 1, 2, 3}, pixels[] = {0, 2, 3, 1};

static Operands make(const Case *t, ds_dtype dtype, const int *order)
{
    int64_t out[2], in[2] = {t->H, t->W};
    for (int i = 0; i < 2; i++) out[i] = (in[i] + 2 * t->c.padding[i] - t->R) / t->c.stride[i] + 1;
    const int64_t x[] = {t->N, t->C, t->H, t->W}, w[] = {t->K, t->C, t->R, t->R},
                  y[] = {t->N, t->K, out[0], out[1]};
    return (Operands){.x = view_new(dtype, 4, x, order),
                      .w = view_new(dtype, 4, w, NULL),
                      .b = view_new(dtype, 1, &t->K, NULL),
                      .dy = view_new(dtype, 4, y, order),
                      .y = view_new(dtype, 4, y, order),
                      .dx = view_new(dtype, 4, x, order),
                      .dw = view_new(dtype, 4, w, NULL)};
}

static void free_all(Operands *o)
{
    view_free(&o->x), view_free(&o->w), view_free(&o->b), view_free(&o->dy);
    view_free(&o->y), view_free(&o->dx), view_free(&o->dw);
}

/* The same values in another dtype or order. */
static Operands copy_of(const Operands *from, const Case *t, ds_dtype dtype, const int *order)
{
    dsi_device *d = dsi_device_current();
    Operands to = make(t, dtype, order);
    const dsi_view *const a[] = {&from->x, &from->w, &from->b, &from->dy};
    const dsi_view *const b[] = {&to.x, &to.w, &to.b, &to.dy};
    for (int i = 0; i < 4; i++) CHECK_INT(d->kernels->copy(&d->stream, *a[i], *b[i]), DS_OK);
    return to;
}

static void run(const dsi_kernels *k, const Case *t, const Operands *o)
{
    dsi_stream *s = &dsi_device_current()->stream;
    CHECK_INT(k->conv2d(s, &t->c, o->x, o->w, o->b, o->y), DS_OK);
    CHECK_INT(k->conv2d_dx(s, &t->c, o->dy, o->w, o->dx), DS_OK);
    CHECK_INT(k->conv2d_dw(s, &t->c, o->dy, o->x, o->dw), DS_OK);
}

/* Root of the mean square of got - want, relative to that of want. */
static double error_of(const dsi_view *got, const dsi_view *want)
{
    double sum = 0, all = 0;
    for (int64_t i = 0; i < view_count(want); i++) {
        double x = view_get(want, i), e = view_get(got, i) - x;
        sum += e * e, all += x * x;
    }
    return sqrt(sum / all);
}

static bool same(const dsi_view *a, const dsi_view *b)
{
    return !memcmp(a->p, b->p, (size_t)view_count(a) * ds_dtype_size(a->dtype));
}

/* Skips without the unit. The tables of sets are compiled apart, so that of
 * avx2 does without it. */
static const dsi_kernels *without_unit(void)
{
    if (dsi_cpu_amx() && kernels_of(1)) return kernels_of(1);
    print_message("no AMX here, or DS_CPU names another set: skipped\n");
    skip();
    return NULL;
}

static void run_case(const Case *t, const dsi_kernels *plain, const int *order)
{
    const dsi_kernels *unit = dsi_device_current()->kernels;
    Operands want = make(t, DS_F64, planes), first = make(t, DS_F32, order);
    view_random(&first.x, 3), view_random(&first.w, 4);
    view_random(&first.b, 5), view_random(&first.dy, 6);
    free_all(&want);
    want = copy_of(&first, t, DS_F64, planes);
    Operands beside = copy_of(&first, t, DS_F32, order), again = copy_of(&first, t, DS_F32, order);
    if (!quick()) run(unit, t, &want);
    run(unit, t, &first), run(plain, t, &beside);
    ds_set_threads(3);
    run(unit, t, &again);
    ds_set_threads(1);
    CHECK(same(&first.y, &again.y) && same(&first.dx, &again.dx) && same(&first.dw, &again.dw));
    const dsi_view *const got[] = {&first.y, &first.dx, &first.dw};
    const dsi_view *const other[] = {&beside.y, &beside.dx, &beside.dw};
    const dsi_view *const exact[] = {&want.y, &want.dx, &want.dw};
    for (int i = 0; i < 3; i++) {
        double error = error_of(got[i], quick() ? other[i] : exact[i]);
        double largest = quick() ? 1e-6 : fmin(1.02 * error_of(other[i], exact[i]), 5e-7);
        if (!(error <= largest))
            fail_msg("case %d, result %d: error %.3g, at most %.3g", (int)(t - cases), i, error,
                     largest);
    }
    free_all(&want), free_all(&first), free_all(&beside), free_all(&again);
}

static void beside_float64(void **state)
{
    (void)state;
    const dsi_kernels *plain = without_unit();
    for (int i = 0; i < N_CASES; i++) run_case(&cases[i], plain, i % 2 ? planes : pixels);
}

/* The values of both are the same, or both are not a number. */
static void compare(const char *name, const dsi_view *a, const dsi_view *b, double largest)
{
    for (int64_t i = 0; i < view_count(a); i++) {
        double x = view_get(a, i), y = view_get(b, i);
        if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= largest) continue;
        fail_msg("%s: element %lld is %.9g, want %.9g", name, (long long)i, x, y);
    }
}

/* x and dy are scaled, and have `special` at one place, and so has w. */
static void run_special(const Case *t, const dsi_kernels *plain, float scale, float special)
{
    Operands o = make(t, DS_F32, pixels);
    view_random(&o.x, 7), view_random(&o.w, 8), view_random(&o.dy, 9);
    for (int64_t i = 0; i < view_count(&o.x); i++) view_set(&o.x, i, scale * view_get(&o.x, i));
    for (int64_t i = 0; i < view_count(&o.dy); i++) view_set(&o.dy, i, scale * view_get(&o.dy, i));
    if (special != 0)
        view_set(&o.x, 5000, special), view_set(&o.w, 777, special), view_set(&o.dy, 99, special);
    Operands p = copy_of(&o, t, DS_F32, pixels);
    run(dsi_device_current()->kernels, t, &o), run(plain, t, &p);
    double tolerance = special == 0 && scale < 1e30f ? 1e-4 * (double)scale : 0;
    compare("conv2d", &o.y, &p.y, tolerance);
    compare("conv2d_dx", &o.dx, &p.dx, tolerance);
    compare("conv2d_dw", &o.dw, &p.dw, scale < 1e15f ? tolerance * (double)scale : 0);
    free_all(&o), free_all(&p);
}

static void special_values(void **state)
{
    (void)state;
    const dsi_kernels *plain = without_unit();
    for (int i = 0; i < N_CASES; i += 3) {
        static const float special[] = {INFINITY, -INFINITY, NAN, 3.4e38f};
        for (int j = 0; j < 4; j++) run_special(&cases[i], plain, 1, special[j]);
        static const float scale[] = {1e38f, 1e25f, 1e-25f, 1e-35f, 0};
        for (int j = 0; j < 5; j++) run_special(&cases[i], plain, scale[j], 0);
    }
}

/* ---- without memory ----------------------------------------------------------------------------- */

/* One call, in a thread whose scratch memory is empty; the n-th allocation
 * fails. Then the same call, with memory. */
typedef struct Attempt {
    const Case *c;
    const Operands *o;
    int result; /* y, dx, dw */
    int64_t n;
    ds_status first, second;
    bool reached, one_line, untouched;
    size_t leaked;
} Attempt;

static const dsi_view *result_of(const Operands *o, int result)
{
    return result == 0 ? &o->y : result == 1 ? &o->dx : &o->dw;
}

static ds_status run_one(const Attempt *a)
{
    const dsi_kernels *k = dsi_device_current()->kernels;
    dsi_stream *s = &dsi_device_current()->stream;
    const Operands *o = a->o;
    if (a->result == 0) return k->conv2d(s, &a->c->c, o->x, o->w, o->b, o->y);
    if (a->result == 1) return k->conv2d_dx(s, &a->c->c, o->dy, o->w, o->dx);
    return k->conv2d_dw(s, &a->c->c, o->dy, o->x, o->dw);
}

static void *attempt_main(void *arg)
{
    enum { OLD = 0x5a };
    Attempt *a = arg;
    const dsi_view *y = result_of(a->o, a->result);
    size_t bytes = (size_t)view_count(y) * sizeof(float),
           live = dsi_cache_live(dsi_device_current());
    memset(y->p, OLD, bytes);
    dsi_cache_fail(a->n, false);
    a->first = run_one(a);
    a->reached = dsi_cache_fail(0, false) >= a->n;
    const char *said = ds_error();
    a->one_line = said && !strncmp(said, "no memory for ", 14) && !strchr(said, '\n');
    a->untouched = true;
    for (size_t i = 0; i < bytes; i++) a->untouched &= ((const char *)y->p)[i] == OLD;
    a->second = run_one(a);
    a->leaked = dsi_cache_live(dsi_device_current()) - live;
    return NULL;
}

/* Each allocation of a call in turn. The result is untouched then, unless it
 * was computed in parts and then found to need vectors, or set to 0 where a
 * stride passes elements. */
static void fail_each(const Case *c, const Operands *o, int result, bool twice,
                      const dsi_view *want)
{
    for (int64_t n = 1, reached = 1; reached; n++) {
        Attempt a = {.c = c, .o = o, .result = result, .n = n};
        pthread_t thread;
        CHECK_INT(pthread_create(&thread, NULL, attempt_main, &a), 0);
        CHECK_INT(pthread_join(thread, NULL), 0);
        reached = a.reached;
        CHECK_INT(a.first, reached ? DS_ENOMEM : DS_OK);
        CHECK_INT(a.second, DS_OK);
        CHECK(n > 1 || reached); /* there is one */
        if (reached && !(a.one_line && (a.untouched || twice || c->c.stride[0] > 1)))
            fail_msg("case %d, result %d, allocation %lld: %s", (int)(c - cases), result,
                     (long long)n, a.one_line ? "result was written" : "no message");
        CHECK_INT(a.leaked, 0);
        CHECK(same(result_of(o, result), want));
    }
}

/* Numbers in the unit's range, and others, which vectors then compute. */
static void without_memory(void **state)
{
    (void)state;
    if (!without_unit()) return;
    static const int some[] = {0, 3, 6, 7};
    for (int i = 0; i < 8; i++) {
        const Case *c = &cases[some[i / 2]];
        const int *order = i % 4 < 2 ? planes : pixels;
        Operands o = make(c, DS_F32, order);
        view_random(&o.x, 1), view_random(&o.w, 2), view_random(&o.b, 3), view_random(&o.dy, 4);
        if (i % 2) view_set(&o.x, 50, 1e38), view_set(&o.dy, 60, 1e38);
        Operands want = copy_of(&o, c, DS_F32, order);
        run(dsi_device_current()->kernels, c, &want);
        for (int result = 0; result < 3; result++)
            fail_each(c, &o, result, i % 2, result_of(&want, result));
        free_all(&o), free_all(&want);
    }
}

TEST_MAIN(cmocka_unit_test(beside_float64), cmocka_unit_test(special_values),
          cmocka_unit_test(without_memory))
