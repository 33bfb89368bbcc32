/* bench/pointwise.c: copies, pointwise kernels, sums and softmax compared with
 * memcpy: ns a call on 96 elements, GB/s (bytes read and written) on tensors in
 * the first caches and in memory.
 *
 * DS_CPU=generic|avx2|avx512 chooses the instruction set.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define C    6 /* channels of the images */
#define MOST ((int64_t)C << 21)

typedef struct {
    const dsi_kernels *k;
    float *a, *b, *y;
    int64_t n; /* elements: images [n/C/16, C, 4, 4], rows [n/16, 16] */
} bench;

/* n elements as a line; as images whose channels are outermost but one, or
 * innermost */
static dsi_view line(float *p, int64_t n) { return (dsi_view){p, DS_F32, 1, {n}, {1}}; }
static dsi_view nchw(float *p, int64_t n)
{
    return (dsi_view){p, DS_F32, 4, {n / C / 16, C, 4, 4}, {C * 16, 16, 4, 1}};
}
static dsi_view nhwc(float *p, int64_t n)
{
    return (dsi_view){p, DS_F32, 4, {n / C / 16, C, 4, 4}, {C * 16, 1, 4 * C, C}};
}
static dsi_view as(ds_dtype dtype, dsi_view v)
{
    v.dtype = dtype;
    return v;
}
/* b [16] repeated along the rows of [n/16, 16] */
static dsi_view rows(float *p, int64_t n, int64_t stride)
{
    return (dsi_view){p, DS_F32, 2, {n / 16, 16}, {stride, 1}};
}

static void memory_copy(const bench *t) { memcpy(t->y, t->a, (size_t)t->n * sizeof *t->y); }
static void copy(const bench *t) { t->k->copy(NULL, line(t->a, t->n), line(t->y, t->n)); }
static void to_nhwc(const bench *t) { t->k->copy(NULL, nchw(t->a, t->n), nhwc(t->y, t->n)); }
static void to_nchw(const bench *t) { t->k->copy(NULL, nhwc(t->a, t->n), nchw(t->y, t->n)); }
static void from_u8(const bench *t)
{
    t->k->copy(NULL, as(DS_U8, line(t->a, t->n)), line(t->y, t->n));
}
static void to_bf16(const bench *t)
{
    t->k->copy(NULL, line(t->a, t->n), as(DS_BF16, line(t->y, t->n)));
}
static void to_f16(const bench *t)
{
    t->k->copy(NULL, line(t->a, t->n), as(DS_F16, line(t->y, t->n)));
}
static void fill(const bench *t) { t->k->fill(NULL, 1, line(t->y, t->n)); }
static void add(const bench *t)
{
    t->k->binary(NULL, DSI_ADD, 1, line(t->a, t->n), line(t->b, t->n), line(t->y, t->n));
}
static void add_in_place(const bench *t)
{
    t->k->binary(NULL, DSI_ADD, 1, line(t->y, t->n), line(t->b, t->n), line(t->y, t->n));
}
static void add_row(const bench *t)
{
    t->k->binary(NULL, DSI_ADD, 1, rows(t->a, t->n, 16), rows(t->b, t->n, 0), rows(t->y, t->n, 16));
}
static void relu(const bench *t)
{
    t->k->unary(NULL, DSI_RELU, 0, nhwc(t->a, t->n), nhwc(t->y, t->n));
}
static void relu_dx(const bench *t)
{
    t->k->unary_dx(NULL, DSI_RELU, 0, nhwc(t->a, t->n), nhwc(t->b, t->n), nhwc(t->y, t->n));
}
static void exponential(const bench *t)
{
    t->k->unary(NULL, DSI_EXP, 0, line(t->a, t->n), line(t->y, t->n));
}
static void hyperbolic(const bench *t)
{
    t->k->unary(NULL, DSI_TANH, 0, line(t->a, t->n), line(t->y, t->n));
}
static void gelu(const bench *t)
{
    t->k->unary(NULL, DSI_GELU, 0, line(t->a, t->n), line(t->y, t->n));
}
static void sum(const bench *t)
{
    t->k->reduce(NULL, DSI_SUM, 1, line(t->a, t->n), line(t->y, 1), (dsi_view){0});
}
static void sum_rows(const bench *t)
{
    dsi_view y = rows(t->y, 16, 16);
    t->k->reduce(NULL, DSI_SUM, 1, rows(t->a, t->n, 16), y, (dsi_view){0});
}
static void softmax(const bench *t)
{
    dsi_view v = {t->a, DS_F32, 3, {t->n / 16, 16, 1}, {16, 1, 1}}, y = v;
    y.p = t->y;
    t->k->softmax(NULL, false, v, y);
}
static void batch_stats(const bench *t)
{
    dsi_view v = nhwc(t->a, t->n);
    dsi_view flat = {v.p, DS_F32, 3, {v.d[0], C, 16}, {v.s[0], 1, C}};
    t->k->batch_stats(NULL, flat, line(t->y, C), line(t->y + C, C));
}

static const struct {
    const char *name;
    void (*run)(const bench *t);
    double bytes; /* read and written, an element */
} cases[] = {
    {"memcpy", memory_copy, 8},
    {"copy", copy, 8},
    {"copy nchw -> nhwc", to_nhwc, 8},
    {"copy nhwc -> nchw", to_nchw, 8},
    {"copy u8 -> f32", from_u8, 5},
    {"copy f32 -> bf16", to_bf16, 6},
    {"copy f32 -> f16", to_f16, 6},
    {"fill", fill, 4},
    {"add", add, 12},
    {"add in place", add_in_place, 12},
    {"add row of 16", add_row, 8},
    {"relu nhwc", relu, 8},
    {"relu_dx nhwc", relu_dx, 12},
    {"exp", exponential, 8},
    {"tanh", hyperbolic, 8},
    {"gelu", gelu, 8},
    {"sum", sum, 4},
    {"sum of rows of 16", sum_rows, 4},
    {"softmax rows of 16", softmax, 8},
    {"batch_stats nhwc", batch_stats, 8},
};

static double now_ns(void) { return dsi_now() * 1e9; }

/* The best of some runs of a few hundred microseconds: ns a call. */
static double best_ns(void (*run)(const bench *t), const bench *t)
{
    double best = 1e30;
    int64_t calls = 1 + 2000000 / (t->n + 200);
    for (int i = 0; i < 7; i++) {
        double start = now_ns();
        for (int64_t c = 0; c < calls; c++) run(t);
        double took = (now_ns() - start) / (double)calls;
        if (took < best) best = took;
    }
    return best;
}

int main(void)
{
    static const int64_t sizes[] = {C * 16, 28 * 28 * C * 4, MOST};
    const char *isa = dsi_cpu_isa();
    if (!isa) return fprintf(stderr, "%s\n", ds_error()), 1;
    bench t = {.k = &dsi_cpu_table_of(isa)->kernels};
    t.a = aligned_alloc(64, MOST * sizeof *t.a);
    t.b = aligned_alloc(64, MOST * sizeof *t.b);
    t.y = aligned_alloc(64, MOST * sizeof *t.y);
    if (!t.a || !t.b || !t.y) return fprintf(stderr, "bench: no memory\n"), 1;
    for (int64_t i = 0; i < MOST; i++) t.a[i] = t.b[i] = t.y[i] = (float)(i % 2001 - 1000) / 500;

    printf("%-20s %14s %14s %14s\n", isa, "96 elements", "18816", "12.6 million");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        printf("%-20s", cases[c].name);
        for (int s = 0; s < 3; s++) {
            t.n = sizes[s];
            double ns = best_ns(cases[c].run, &t);
            if (s == 0)
                printf(" %11.0f ns", ns);
            else
                printf(" %9.1f GB/s", cases[c].bytes * (double)t.n / ns);
        }
        printf("\n");
    }
    free(t.a), free(t.b), free(t.y);
    return 0;
}
