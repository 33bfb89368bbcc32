/* tests/gpu/linear_entropy.c: a linear layer, its cross entropy and their
 * gradients as one launch (device/cuda/held_entropy.c) beside the same calls
 * launched one by one: the same bits in all of the memory that they use, of
 * which later results may take what earlier ones no longer need, as a cache
 * gives it; shapes at and beyond the limits, orders of calls, calls that are
 * left out or interrupted, bad labels.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

enum { CASES = 500, FEW_CASES = 100, FLOATS = 1 << 17, STEPS = 7 };

typedef enum Step { LINEAR, ENTROPY, FILL, ENTROPY_DX, DX, RELU_DX, DW } Step;

typedef struct Range {
    int64_t at, n; /* floats */
} Range;

/* Where operands are in the memory that all have a part of. */
typedef struct Case {
    int64_t m, n, k; /* rows, classes, columns of x */
    dsi_cross_entropy c;
    bool bias, sums, mask_is_x;
    bool reuses;                         /* memory of what is no longer needed */
    int step[STEPS], steps, interrupted; /* before which step; -1: none */
    double dloss;
    Range x, w, b, mask, y, loss, lse, divisor, seed, dy, dx, relu_dx, dw, db;
    int64_t used;
} Case;

static bool meet(Range a, Range b) { return a.at < b.at + b.n && b.at < a.at + a.n; }

/* Memory for n floats: that of its own, or, for an output, now and then any
 * that none of `own`, the operands of the same call, has. */
static Range place(Case *c, int64_t n, const Range *own, int n_own)
{
    bool any = own && c->reuses && one_in(3);
    for (int tries = 0; any && tries < 20; tries++) {
        Range r = {pick(0, (c->used - 1) / 4) * 4, n};
        bool free = r.at + n <= c->used;
        for (int i = 0; i < n_own && free; i++) free = !meet(r, own[i]);
        if (free) return r;
    }
    Range r = {c->used, n};
    c->used += (n + 3) / 4 * 4 + (one_in(4) ? 4 : 0);
    CHECK(c->used <= FLOATS);
    return r;
}
#define OUT(c, n, ...) \
    place(c, n, (const Range[]){__VA_ARGS__}, (int)(sizeof((Range[]){__VA_ARGS__}) / sizeof(Range)))

static void steps_pick(Case *c)
{
    static const int orders[][3] = {{DX, RELU_DX, DW}, {DX, DW, RELU_DX}, {DW, DX, RELU_DX},
                                    {DW, DX, DX},      {DX, RELU_DX, DX}, {DX, DW, DW}};
    int first[] = {LINEAR, ENTROPY, FILL, ENTROPY_DX}, order = (int)pick(0, one_in(3) ? 5 : 2);
    for (int i = 0; i < 4; i++) c->step[i] = first[i];
    for (int i = 0; i < 3; i++) c->step[4 + i] = orders[order][i];
    c->steps = one_in(6) ? (int)pick(2, STEPS) : STEPS;
    c->interrupted = one_in(6) ? (int)pick(1, c->steps - 1) : -1;
}

static Case case_pick(void)
{
    Case c = {.m = one_in(4) ? pick(1, 66) : pick(1, 12),
              .n = one_in(5) ? pick(30, 34) : pick(1, 16),
              .k = one_in(6) ? pick(1, 40) : 4 * pick(8, 40),
              .bias = !one_in(4),
              .sums = !one_in(4),
              .mask_is_x = one_in(2),
              .reuses = one_in(2),
              .dloss = one_in(2) ? 1 : (double)pick(-300, 300) / 16};
    c.c.reduction = (int)pick(0, 1), c.c.ignore_index = one_in(3) ? 0 : -100;
    int64_t rows = c.m * c.k, classes = c.m * c.n, weights = c.n * c.k;
    c.x = place(&c, rows, NULL, 0), c.w = place(&c, weights, NULL, 0);
    c.b = place(&c, c.n, NULL, 0), c.mask = place(&c, rows, NULL, 0);
    if (c.mask_is_x) c.mask = c.x;
    c.y = OUT(&c, classes, c.x, c.w, c.b);
    c.loss = OUT(&c, 1, c.y), c.lse = OUT(&c, c.m, c.y, c.loss);
    c.divisor = OUT(&c, 1, c.y, c.loss, c.lse);
    c.seed = place(&c, 1, &c.y, 1);
    c.dy = OUT(&c, classes, c.y, c.lse, c.divisor, c.seed);
    c.dx = OUT(&c, rows, c.dy, c.w, c.mask);
    c.relu_dx = OUT(&c, rows, c.dx, c.mask);
    c.dw = OUT(&c, weights, c.dy, c.x), c.db = OUT(&c, c.n, c.dy, c.x, c.dw);
    steps_pick(&c);
    return c;
}

static dsi_view view3(const float *base, Range r, int64_t d1, int64_t d2, int64_t s1, int64_t s2)
{
    return (dsi_view){.p = (void *)(uintptr_t)(base + r.at),
                      .dtype = DS_F32,
                      .n = 3,
                      .d = {1, d1, d2},
                      .s = {d1 * d2, s1, s2}};
}
static dsi_view view1(const float *base, Range r, int64_t n)
{
    return (dsi_view){.p = (void *)(uintptr_t)(base + r.at), .n = 1, .d = {n}, .s = {1}};
}
static dsi_view scalar(const float *base, Range r)
{
    return (dsi_view){.p = (void *)(uintptr_t)(base + r.at), .n = 0};
}

static ds_status step_run(const Case *c, int step, const float *p, const int64_t *label)
{
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    const dsi_kernels *k = d->own_kernels;
    dsi_view x = view3(p, c->x, c->m, c->k, c->k, 1), w = view3(p, c->w, c->n, c->k, c->k, 1),
             wt = view3(p, c->w, c->k, c->n, 1, c->k), y = view3(p, c->y, c->m, c->n, c->n, 1),
             dy = view3(p, c->dy, c->m, c->n, c->n, 1), dyt = view3(p, c->dy, c->n, c->m, 1, c->n),
             dx = view3(p, c->dx, c->m, c->k, c->k, 1), dw = view3(p, c->dw, c->n, c->k, c->k, 1),
             none = {.p = NULL}, b = view1(p, c->b, c->n), lse = view3(p, c->lse, c->m, 1, 1, 1);
    dsi_view rows = {
        .p = (void *)(uintptr_t)(p + c->y.at), .n = 3, .d = {c->m, c->n, 1}, .s = {c->n, 1, 1}};
    dsi_view drows = rows, labels = {.p = (void *)(uintptr_t)label,
                                     .dtype = DS_I64,
                                     .n = 2,
                                     .d = {c->m, 1},
                                     .s = {1, 1}};
    drows.p = dy.p;
    lse.n = 2, lse.d[0] = c->m, lse.d[1] = 1, lse.s[0] = lse.s[1] = 1;
    switch (step) {
    case LINEAR:
        return k->matmul(s, x, wt, c->bias ? b : none, y);
    case ENTROPY:
        return k->cross_entropy(s, &c->c, rows, labels, none, scalar(p, c->loss), lse,
                                scalar(p, c->divisor));
    case FILL:
        return k->fill(s, c->dloss, scalar(p, c->seed));
    case ENTROPY_DX:
        return k->cross_entropy_dx(s, &c->c, scalar(p, c->seed), rows, labels, none, lse,
                                   scalar(p, c->divisor), drows);
    case DX:
        return k->matmul(s, dy, w, none, dx);
    case RELU_DX:
        return k->unary_dx(s, DSI_RELU, 0, view1(p, c->dx, c->m * c->k),
                           view1(p, c->mask, c->m * c->k), view1(p, c->relu_dx, c->m * c->k));
    default:
        return c->sums ? d->own_fusions->matmul_sums(s, dyt, x, dw, view1(p, c->db, c->n))
                       : k->matmul(s, dyt, x, none, dw);
    }
}

/* The calls one after another; apart: the device is asked for something else
 * between them. Whether there was a fault. */
static bool steps_run(const Case *c, float *p, const int64_t *label, const float *before,
                      float *after, bool apart)
{
    dsi_device *d = gpu_device();
    size_t bytes = (size_t)c->used * sizeof *before;
    int64_t first;
    CHECK_INT(d->type->copy_in(&d->stream, p, before, bytes), DS_OK);
    for (int i = 0; i < c->steps; i++) {
        if (apart || i == c->interrupted)
            CHECK_INT(d->type->copy_out(&d->stream, &first, label, sizeof first), DS_OK);
        CHECK_INT(step_run(c, c->step[i], p, label), DS_OK);
    }
    CHECK_INT(d->type->copy_out(&d->stream, after, p, bytes), DS_OK);
    bool fault = dsi_device_check(d) != DS_OK;
    ds_error_clear();
    return fault;
}

static void case_compare(const Case *c, int number, const float *got, const float *want)
{
    for (int64_t i = 0; i < c->used; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("case %d (%lld x %lld x %lld, %d steps, interrupted %d): float %lld is %.9g, "
                     "one by one %.9g",
                     number, (long long)c->m, (long long)c->n, (long long)c->k, c->steps,
                     c->interrupted, (long long)i, (double)got[i], (double)want[i]);
}

/* Returns whether all calls were one launch. */
static bool case_run(int number)
{
    dsi_device *d = gpu_device();
    static float before[FLOATS], got[FLOATS], want[FLOATS];
    operand_seed = (uint64_t)number * 7919 + 11;
    Case c = case_pick();
    int64_t labels[80];
    for (int64_t i = 0; i < c.used; i++) before[i] = (float)pick_value();
    for (int64_t i = 0; i < c.m; i++) labels[i] = one_in(6) ? c.c.ignore_index : pick(0, c.n - 1);
    bool bad = one_in(10);
    if (bad) labels[pick(0, c.m - 1)] = c.n + pick(0, 3);
    float *p = dsi_cache_alloc(d, sizeof before);
    int64_t *label = dsi_cache_alloc(d, sizeof labels);
    CHECK(p && label);
    CHECK_INT(d->type->copy_in(&d->stream, label, labels, sizeof labels), DS_OK);
    bool fault = steps_run(&c, p, label, before, want, true);
    CHECK(fault == bad);
    long launches = emulator_count("fake_cuda_launches");
    CHECK(steps_run(&c, p, label, before, got, false) == fault);
    launches = emulator_count("fake_cuda_launches") - launches;
    case_compare(&c, number, got, want);
    dsi_cache_free(d, p, sizeof before);
    dsi_cache_free(d, label, sizeof labels);
    return launches == 1 && c.steps == STEPS && !strcmp(last_kernel(), "linear_entropy_f32");
}

static void joined_as_one_by_one(void **state)
{
    (void)state;
    int n = quick() ? FEW_CASES : CASES, one = 0;
    for (int i = 0; i < n; i++) one += case_run(i);
    printf("# all calls of %d cases of %d were one launch\n", one, n);
    if (emulated()) CHECK(one > n / 12);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(joined_as_one_by_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
