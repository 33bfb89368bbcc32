/* tests/device/attention_parts.c: attention of float32 by the matrix unit, in
 * parts, beside that of a set of instructions without it: errors to float64 are
 * no larger; numbers that parts cannot hold give the same; results do not
 * depend on threads; a failed allocation is one error. Skipped without the
 * unit.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "device/device.h"

#include <pthread.h>

typedef struct Case {
    int64_t batch, group, rows, keys, depth, width;
    bool causal;
    ds_dtype mask; /* DS_I64: none */
    bool spaced;   /* rows have gaps between them */
} Case;

static const Case cases[] = {
    {2, 1, 96, 96, 32, 32, false, DS_I64, false},
    {1, 3, 130, 127, 64, 48, false, DS_I64, true},
    {2, 2, 201, 201, 40, 64, true, DS_I64, false},
    {1, 1, 97, 300, 64, 64, true, DS_I64, true}, /* more keys than are seen */
    {1, 2, 112, 140, 33, 128, false, DS_BOOL, false},
    {1, 1, 100, 99, 128, 35, false, DS_F32, true},
    {3, 1, 256, 256, 64, 64, true, DS_I64, false},
};
#define N_CASES (int)(sizeof cases / sizeof *cases)

enum { Q, K, V, DY, IN, Y = IN, LSE, DQ, DK, DV, ALL };

typedef struct Operands {
    dsi_view x[ALL], mask;
} Operands;

static Operands make(const Case *c, ds_dtype dtype)
{
    int64_t heads = c->batch * c->group, gap = c->spaced ? 5 : 0;
    const int64_t d[ALL][3] = {
        {heads, c->rows, c->depth}, {c->batch, c->keys, c->depth}, {c->batch, c->keys, c->width},
        {heads, c->rows, c->width}, {heads, c->rows, c->width},    {heads, c->rows, 1},
        {heads, c->rows, c->depth}, {c->batch, c->keys, c->depth}, {c->batch, c->keys, c->width}};
    Operands o = {.mask = {0}};
    for (int i = 0; i < ALL; i++) {
        int64_t room[3] = {d[i][0], d[i][1], d[i][2] + (i == LSE ? 0 : gap)};
        o.x[i] = view_new(dtype, 3, room, NULL);
        o.x[i].d[2] = d[i][2];
    }
    o.x[LSE].n = 2;
    if (c->mask == DS_I64) return o;
    const int64_t m[] = {heads, c->rows, c->keys};
    o.mask = view_new(c->mask == DS_BOOL ? DS_BOOL : dtype, 3, m, NULL);
    return o;
}

static void free_all(Operands *o)
{
    for (int i = 0; i < ALL; i++) view_free(&o->x[i]);
    view_free(&o->mask);
}

static void operands_fill(Operands *o)
{
    for (int i = 0; i < IN; i++) view_random(&o->x[i], (uint64_t)i + 1);
    for (int64_t i = 0; o->mask.p && i < view_count(&o->mask); i++)
        if (o->mask.dtype == DS_BOOL)
            *(uint8_t *)view_at(&o->mask, i) = i % 7 != 3 && i / o->mask.d[2] % 29 != 5;
        else
            view_set(&o->mask, i, (double)(i % 11) / 8 - 0.5);
}

static Operands copy_of(const Operands *from, const Case *c, ds_dtype dtype)
{
    Operands to = make(c, dtype);
    for (int i = 0; i < IN; i++)
        for (int64_t j = 0; j < view_count(&to.x[i]); j++)
            view_set(&to.x[i], j, view_get(&from->x[i], j));
    for (int64_t i = 0; to.mask.p && i < view_count(&to.mask); i++)
        if (to.mask.dtype == DS_BOOL)
            *(uint8_t *)view_at(&to.mask, i) = *(const uint8_t *)view_at(&from->mask, i);
        else
            view_set(&to.mask, i, view_get(&from->mask, i));
    return to;
}

static ds_status attention_run_one(const dsi_kernels *k, const Case *c, const Operands *o,
                                   bool back)
{
    dsi_stream *s = &dsi_device_current()->stream;
    dsi_attention how = {.scale = 1 / sqrt((double)c->depth), .causal = c->causal};
    const dsi_view *x = o->x;
    if (!back) return k->attention(s, &how, x[Q], x[K], x[V], o->mask, x[Y], x[LSE]);
    return k->attention_dx(s, &how, x[DY], x[Q], x[K], x[V], o->mask, x[Y], x[LSE], x[DQ], x[DK],
                           x[DV]);
}

static void run(const dsi_kernels *k, const Case *c, const Operands *o)
{
    CHECK_INT(attention_run_one(k, c, o, false), DS_OK);
    CHECK_INT(attention_run_one(k, c, o, true), DS_OK);
}

/* Root of the mean square of got - want, relative to that of want. */
static double error_of(const dsi_view *got, const dsi_view *want)
{
    double sum = 0, all = 0;
    for (int64_t i = 0; i < view_count(want); i++) {
        double x = view_get(want, i), e = x == view_get(got, i) ? 0 : view_get(got, i) - x;
        sum += e * e, all += isfinite(x) ? x * x : 0;
    }
    return sqrt(sum / all);
}

/* With what is between rows. */
static bool same(const dsi_view *a, const dsi_view *b)
{
    size_t n = (size_t)(a->d[0] * a->s[0]);
    return !memcmp(a->p, b->p, n * sizeof(float));
}

static const dsi_kernels *without_unit(void)
{
    if (dsi_cpu_amx() && kernels_of(1)) return kernels_of(1);
    print_message("no AMX here, or DS_CPU names another set: skipped\n");
    skip();
    return NULL;
}

static void beside_float64(void **state)
{
    (void)state;
    static const int threads[] = {2, 3, 7};
    const dsi_kernels *plain = without_unit(), *unit = dsi_device_current()->kernels;
    for (const Case *c = cases; c < cases + N_CASES; c++) {
        Operands first = make(c, DS_F32);
        operands_fill(&first);
        Operands want = copy_of(&first, c, DS_F64), beside = copy_of(&first, c, DS_F32);
        run(unit, c, &want), run(unit, c, &first), run(plain, c, &beside);
        for (int t = quick() ? 2 : 0; t < 3; t++) {
            Operands again = copy_of(&first, c, DS_F32);
            ds_set_threads(threads[t]);
            run(unit, c, &again);
            ds_set_threads(1);
            for (int i = Y; i < ALL; i++) CHECK(same(&first.x[i], &again.x[i]));
            free_all(&again);
        }
        for (int i = Y; i < ALL; i++) {
            double mine = error_of(&first.x[i], &want.x[i]),
                   its = error_of(&beside.x[i], &want.x[i]);
            if (!(mine <= 1.1 * its + 2e-8 && mine < 1e-6))
                fail_msg("case %d, result %d: error %.3g, of avx2 %.3g", (int)(c - cases), i, mine,
                         its);
        }
        free_all(&first), free_all(&want), free_all(&beside);
    }
}

static void special_values(void **state)
{
    (void)state;
    const dsi_kernels *plain = without_unit(), *unit = dsi_device_current()->kernels;
    static const double special[] = {INFINITY, -INFINITY, NAN, 3e38, 1e-38};
    for (int i = 0; i < 2 * 4 * 5; i += quick() ? 3 : 1) {
        const Case *c = &cases[i % 2 ? 2 : 0];
        int at = i / 2 % 4;
        double value = special[i / 8];
        Operands o = make(c, DS_F32);
        operands_fill(&o);
        if (value == 1e-38)
            for (int64_t j = 0; j < view_count(&o.x[at]); j++)
                view_set(&o.x[at], j, view_get(&o.x[at], j) * value);
        else
            view_set(&o.x[at], 1000, value);
        Operands p = copy_of(&o, c, DS_F32);
        run(unit, c, &o), run(plain, c, &p);
        int results = value == 3e38 ? DQ : ALL; /* it multiplies what rounding leaves of a 0 */
        for (int r = Y; r < results; r++)
            for (int64_t j = 0; j < view_count(&o.x[r]); j++) {
                double x = view_get(&o.x[r], j), y = view_get(&p.x[r], j);
                if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= 1e-5 * fmax(1, fabs(y)))
                    continue;
                fail_msg("%g in operand %d: result %d, element %lld is %.9g, want %.9g", value, at,
                         r, (long long)j, x, y);
            }
        free_all(&o), free_all(&p);
    }
}

/* ---- without memory ----------------------------------------------------------------------------- */

typedef struct Attempt {
    const Operands *o;
    bool back, told;
    ds_status first, second;
} Attempt;

/* In a thread whose scratch memory is empty. */
static void *attempt_main(void *arg)
{
    Attempt *a = arg;
    dsi_cache_fail(1, false);
    a->first = attention_run_one(dsi_device_current()->kernels, cases, a->o, a->back);
    dsi_cache_fail(0, false);
    const char *said = ds_error();
    a->told = said && !strncmp(said, "no memory for ", 14) && !strchr(said, '\n');
    a->second = attention_run_one(dsi_device_current()->kernels, cases, a->o, a->back);
    return NULL;
}

static void without_memory(void **state)
{
    (void)state;
    if (!without_unit()) return;
    Operands o = make(cases, DS_F32);
    operands_fill(&o);
    Operands want = copy_of(&o, cases, DS_F32);
    run(dsi_device_current()->kernels, cases, &want);
    for (int back = 0; back < 2; back++) {
        Attempt a = {.o = &o, .back = back};
        pthread_t thread;
        CHECK_INT(pthread_create(&thread, NULL, attempt_main, &a), 0);
        CHECK_INT(pthread_join(thread, NULL), 0);
        CHECK_INT(a.first, DS_ENOMEM);
        CHECK(a.told);
        CHECK_INT(a.second, DS_OK);
    }
    for (int i = Y; i < ALL; i++) CHECK(same(&o.x[i], &want.x[i]));
    free_all(&o), free_all(&want);
}

TEST_MAIN(cmocka_unit_test(beside_float64), cmocka_unit_test(special_values),
          cmocka_unit_test(without_memory))
