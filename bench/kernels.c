/* bench/kernels.c: the convolution and pooling kernels at the tutorial
 * network's shapes, in the order of a training step, as time a sample and as a
 * share of the core's FMA peak; and the register tiles alone.
 *
 *     bench_kernels              tiles, some shapes, and the step at batches 4, 16 and 128
 *     bench_kernels batch ...    the step alone
 *
 * DS_CPU=generic|avx2|avx512 chooses the instruction set.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "median.h"

#include <deepspeed.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static double now_us(void) { return dsi_now() * 1e6; }

/* ---- the core's peak: independent FMAs in registers, GFLOP/s ------------------------------------------- */

#define PEAK_TURNS 200000
#if defined(__x86_64__)
#define PEAK(name, target_, type, lanes, set1, fma) \
    static __attribute__((__target__(target_))) double name(void) \
    { \
        type a[12], b = set1(0.5f); \
        for (int i = 0; i < 12; i++) a[i] = set1((float)i); \
        double t = now_us(); \
        for (int n = 0; n < PEAK_TURNS; n++) { \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) a[i] = fma(a[i], b, b); \
        } \
        t = now_us() - t; \
        volatile type sink = a[0]; \
        for (int i = 1; i < 12; i++) sink = a[i]; \
        (void)sink; \
        return 12.0 * 2 * lanes * PEAK_TURNS / t * 1e-3; \
    }
PEAK(peak_avx2, "avx2,fma", __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps)
PEAK(peak_avx512, "avx512f", __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps)
#endif

static const dsi_kernels *kernels_of(const char *isa)
{
    const dsi_cpu_table *table = dsi_cpu_table_of(isa);
    return table ? &table->kernels : NULL;
}

/* The generic kernels have vectors of 4 and no FMA everywhere: compared with
 * half of AVX2's peak. */
static double peak_of(const dsi_kernels *k)
{
    double best = 1;
    for (int i = 0; i < 50; i++) {
        double p = 1;
#if defined(__x86_64__)
        bool fma = __builtin_cpu_supports("fma");
        p = k == kernels_of("avx512")
                ? peak_avx512()
                : (fma ? peak_avx2() : 1) / (k == kernels_of("generic") ? 2 : 1);
#endif
        best = p > best ? p : best;
    }
    return best;
}

/* ---- tensors ------------------------------------------------------------------------------------------------ */

static dsi_view view(ds_dtype dtype, bool channels_last, int64_t N, int64_t C, int64_t H, int64_t W)
{
    dsi_view v = {.dtype = dtype, .n = 4, .d = {N, C, H, W}, .s = {C * H * W, H * W, W, 1}};
    if (channels_last) v.s[1] = 1, v.s[2] = W * C, v.s[3] = C;
    size_t n = (size_t)(N * C * H * W);
    v.p = aligned_alloc(64, (n * 4 + 191) / 64 * 64);
    if (!v.p) abort();
    for (size_t i = 0; i < n; i++)
        if (dtype == DS_F32)
            ((float *)v.p)[i] = (float)(rand() % 2001 - 1000) / 1000;
        else
            ((int32_t *)v.p)[i] = 0;
    return v;
}

static dsi_view line(int64_t n)
{
    dsi_view v = view(DS_F32, false, 1, 1, 1, n);
    v.n = 1, v.d[0] = n, v.s[0] = 1;
    return v;
}

/* ---- one step of the network's convolutions --------------------------------------------------------------- */

typedef struct {
    const dsi_kernels *k;
    dsi_stream *s;
    int64_t N;
    dsi_view x, w1, b1, y1, r1, m1, i1,
        g1; /* conv1: input, weight, bias, output, relu, pooled, index, gradient */
    dsi_view w2, b2, y2, r2, m2, i2, g2;
    dsi_view dw1, dw2, db1, db2;
} Net;

static const dsi_conv2d conv = {{1, 1}, {0, 0}, {1, 1}, 1};
static const dsi_pool2d half = {.kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}};

static Net net(const dsi_kernels *k, dsi_stream *s, int64_t N)
{
    Net o = {.k = k, .s = s, .N = N};
    o.x = view(DS_F32, false, N, 3, 32, 32);
    o.w1 = view(DS_F32, false, 6, 3, 5, 5), o.b1 = line(6), o.dw1 = view(DS_F32, false, 6, 3, 5, 5);
    o.y1 = view(DS_F32, false, N, 6, 28, 28), o.r1 = view(DS_F32, false, N, 6, 28, 28);
    o.m1 = view(DS_F32, false, N, 6, 14, 14), o.g1 = view(DS_F32, false, N, 6, 14, 14);
    o.i1 = view(DS_I32, false, N, 6, 14, 14);
    o.w2 = view(DS_F32, false, 16, 6, 5, 5), o.b2 = line(16),
    o.dw2 = view(DS_F32, false, 16, 6, 5, 5);
    o.y2 = view(DS_F32, true, N, 16, 10, 10), o.r2 = view(DS_F32, true, N, 16, 10, 10);
    o.m2 = view(DS_F32, true, N, 16, 5, 5), o.g2 = view(DS_F32, true, N, 16, 5, 5);
    o.i2 = view(DS_I32, true, N, 16, 5, 5);
    o.db1 = line(6), o.db2 = line(16);
    return o;
}

static void net_free(Net *o)
{
    void *p[] = {o->x.p,  o->w1.p,  o->b1.p,  o->y1.p,  o->r1.p, o->m1.p, o->i1.p,
                 o->g1.p, o->w2.p,  o->b2.p,  o->y2.p,  o->r2.p, o->m2.p, o->i2.p,
                 o->g2.p, o->dw1.p, o->dw2.p, o->db1.p, o->db2.p};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) free(p[i]);
}

enum {
    CONV1,
    RELU1,
    POOL1,
    CONV2,
    RELU2,
    POOL2,
    RELU2_DX,
    DW2,
    DB2,
    DX2,
    RELU1_DX,
    DW1,
    DB1,
    STAGES
};
static const struct {
    const char *name;
    double mflop; /* of one sample, dense */
} stages[STAGES] = {{"conv1", 0.7056}, {"relu1", 0},
                    {"max_pool1", 0},  {"conv2", 0.48},
                    {"relu2", 0},      {"max_pool2", 0},
                    {"relu2_dx", 0},   {"conv2_dw_pooled", 0.12},
                    {"conv2_db", 0},   {"conv2_dx_pooled", 0.12},
                    {"relu1_dx", 0},   {"conv1_dw_pooled", 0.1764},
                    {"conv1_db", 0}};

static void stage(Net *o, int which)
{
    const dsi_kernels *k = o->k;
    const dsi_fusions *f = o->s->device->own_fusions;
    dsi_pooled p1 = {o->g1, o->m1, o->i1, 28, 28, false}, p2 = {o->g2, o->m2, o->i2, 10, 10, false};
    dsi_view line_m1 = o->m1, line_g1 = o->g1;
    switch (which) {
    case CONV1:
        k->conv2d(o->s, &conv, o->x, o->w1, o->b1, o->y1);
        break;
    case RELU1:
        k->unary(o->s, DSI_RELU, 0, o->y1, o->r1);
        break;
    case POOL1:
        k->max_pool2d(o->s, &half, o->r1, o->m1, o->i1);
        break;
    case CONV2:
        k->conv2d(o->s, &conv, o->m1, o->w2, o->b2, o->y2);
        break;
    case RELU2:
        k->unary(o->s, DSI_RELU, 0, o->y2, o->r2);
        break;
    case POOL2:
        k->max_pool2d(o->s, &half, o->r2, o->m2, o->i2);
        break;
    case RELU2_DX:
        k->unary_dx(o->s, DSI_RELU, 0, o->m2, o->m2, o->g2);
        break;
    case DW2:
        f->conv2d_dw_pooled(o->s, &conv, &p2, o->m1, o->dw2);
        break;
    case DB2:
        f->sum_channels(o->s, o->g2, o->db2);
        break;
    case DX2:
        f->conv2d_dx_pooled(o->s, &conv, &p2, o->w2, o->g1);
        break;
    case RELU1_DX:
        k->unary_dx(o->s, DSI_RELU, 0, line_g1, line_m1, o->g1);
        break;
    case DW1:
        f->conv2d_dw_pooled(o->s, &conv, &p1, o->x, o->dw1);
        break;
    case DB1:
        f->sum_channels(o->s, o->g1, o->db1);
        break;
    }
}

/* Medians over turns of the step. */
static void bench_net(const dsi_kernels *k, dsi_stream *s, int64_t N, double peak)
{
    enum { TURNS = 200 };
    static double us[STAGES + 1][TURNS];
    Net o = net(k, s, N);
    for (int turn = -20; turn < TURNS; turn++) {
        double begin = now_us(), last = begin;
        for (int i = 0; i < STAGES; i++) {
            stage(&o, i);
            double t = now_us();
            if (turn >= 0) us[i][turn] = t - last;
            last = t;
        }
        if (turn >= 0) us[STAGES][turn] = last - begin;
    }
    printf("batch %lld\n", (long long)N);
    for (int i = 0; i <= STAGES; i++) {
        double t = median(us[i], TURNS) / (double)N;
        printf("  %-18s %8.3f us a sample", i < STAGES ? stages[i].name : "all", t);
        if (i < STAGES && stages[i].mflop > 0)
            printf(" %8.1f GF/s %5.1f %%", stages[i].mflop / t * 1e3,
                   stages[i].mflop / t * 1e5 / peak);
        printf("\n");
    }
    net_free(&o);
}

/* ---- single shapes ---------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int64_t N, C, H, W, K, R, S, stride, padding;
    bool last;   /* y is channels-last */
    bool repeat; /* all samples are the same memory */
} Shape;

static double best_us(const dsi_kernels *k, dsi_stream *s, const Shape *o, int which)
{
    dsi_conv2d c = {{o->stride, o->stride}, {o->padding, o->padding}, {1, 1}, 1};
    int64_t P = (o->H + 2 * o->padding - o->R) / o->stride + 1,
            Q = (o->W + 2 * o->padding - o->S) / o->stride + 1;
    dsi_view x = view(DS_F32, false, o->N, o->C, o->H, o->W),
             w = view(DS_F32, false, o->K, o->C, o->R, o->S);
    dsi_view y = view(DS_F32, o->last, o->N, o->K, P, Q), none = {0};
    if (o->repeat) x.s[0] = y.s[0] = 0;
    double best = 1e30;
    for (int turn = 0; turn < 15; turn++) {
        double t = now_us();
        if (which == 0) k->conv2d(s, &c, x, w, none, y);
        if (which == 1) k->conv2d_dx(s, &c, y, w, x);
        if (which == 2) k->conv2d_dw(s, &c, y, x, w);
        t = now_us() - t;
        if (t < best) best = t;
    }
    free(x.p), free(w.p), free(y.p);
    return best;
}

static void bench_shape(const dsi_kernels *k, dsi_stream *s, const Shape *o, int kinds, double peak)
{
    static const char *const kind[] = {"y", "dx", "dw"};
    double P = (double)((o->H + 2 * o->padding - o->R) / o->stride + 1);
    double Q = (double)((o->W + 2 * o->padding - o->S) / o->stride + 1);
    double flop = 2.0 * (double)(o->N * o->C * o->K * o->R * o->S) * P * Q;
    printf("%-28s", o->name);
    for (int i = 0; i < kinds; i++) {
        double us = best_us(k, s, o, i);
        printf("  %s %9.1f us %6.1f GF/s %5.1f %%", kind[i], us, flop / us * 1e-3,
               flop / us * 1e-1 / peak);
    }
    printf("\n");
}

/* One sample in the first cache again and again: what is left is the tile
 * itself. */
static const Shape tiles[] = {
    {"channel tile, 16 channels", 100, 24, 8, 24, 16, 3, 5, 1, 0, true, true},
    {"channel tile, 32 channels", 100, 24, 8, 16, 32, 3, 5, 1, 0, true, true},
    {"pixel tile", 100, 24, 8, 36, 6, 3, 5, 1, 0, false, true},
};
static const Shape shapes[] = {
    {"conv1 of the tutorial", 16, 3, 32, 32, 6, 5, 5, 1, 0, false, false},
    {"conv2 of the tutorial", 16, 6, 14, 14, 16, 5, 5, 1, 0, true, false},
    {"64-128 3x3 on 16x16", 4, 64, 16, 16, 128, 3, 3, 1, 1, true, false},
    {"64-64 3x3 on 32x32", 2, 64, 32, 32, 64, 3, 3, 1, 1, true, false},
    {"64-64 3x3 on 32x32, planes", 2, 64, 32, 32, 64, 3, 3, 1, 1, false, false},
    {"64-128 3x3 on 32x32, by 2", 2, 64, 32, 32, 128, 3, 3, 2, 1, true, false},
    {"256-256 3x3 on 8x8", 4, 256, 8, 8, 256, 3, 3, 1, 1, true, false},
    {"256-64 1x1 on 16x16", 4, 256, 16, 16, 64, 1, 1, 1, 0, true, false},
    {"3-64 7x7 on 112x112, by 2", 1, 3, 112, 112, 64, 7, 7, 2, 3, true, false},
};

int main(int argc, char **argv)
{
    dsi_device *d = dsi_device_current();
    if (!d) return fprintf(stderr, "%s\n", ds_error()), 1;
    double peak = peak_of(d->kernels);
    printf("FMA peak of a core: %.1f GF/s\n", peak);
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles && argc == 1; i++)
        bench_shape(d->kernels, &d->stream, &tiles[i], 1, peak);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && argc == 1; i++)
        bench_shape(d->kernels, &d->stream, &shapes[i], 3, peak);
    static const int64_t batches[] = {4, 16, 128};
    for (int i = 1; i < argc; i++) bench_net(d->kernels, &d->stream, atoll(argv[i]), peak);
    for (int i = 0; i < 3 && argc == 1; i++) bench_net(d->kernels, &d->stream, batches[i], peak);
    return 0;
}
