/* bench/gemm.c: matrix products: GF/s, and the share of this core's measured peak.
 *
 *     bench_gemm [text]     only the rows whose name holds text
 *
 * DS_CPU chooses the instruction set. If libopenblas.so.0 is installed, its sgemm is timed beside ours,
 * on one thread. Each figure is the best of 15 runs of 3 ms or more: what neighbours on the machine take
 * away is not the kernel's.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "device/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the peak: independent multiply-adds in registers --------------------------------------------------- */

#define CHAINS 12 /* more than the latency of an FMA on two ports */
#define ROUNDS 1000000

/* The sum is looked at, so that it is computed. */
#define PEAK(name, V, lanes, set, fma, attribute) \
    attribute static double name(float x) \
    { \
        V a[CHAINS], m = set(x); \
        for (int i = 0; i < CHAINS; i++) a[i] = set((float)i); \
        double t = dsi_now(), sum = 0; \
        for (int n = 0; n < ROUNDS; n++) \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) a[i] = fma(a[i], m, m); \
        t = dsi_now() - t; \
        for (int i = 0; i < CHAINS; i++) sum += (double)a[i][0]; \
        return sum == 1 ? 0 : 2.0 * (lanes)*CHAINS * ROUNDS / t / 1e9; \
    }

typedef float Four __attribute__((__vector_size__(16)));
static inline Four four(float x) { return (Four){x, x, x, x}; }
static inline Four multiply_add(Four a, Four b, Four c) { return a * b + c; }

PEAK(peak_generic, Four, 4, four, multiply_add, )
#ifdef __x86_64__
#include <immintrin.h>
PEAK(peak_avx2, __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps, __attribute__((__target__("avx2,fma"))))
PEAK(peak_avx512, __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps,
     __attribute__((__target__("avx512f"))))
#endif

static double peak_of(const char *isa)
{
    double best = 0;
    for (int i = 0; i < 15; i++) {
        double (*run)(float) = peak_generic;
#ifdef __x86_64__
        if (!strcmp(isa, "avx2")) run = peak_avx2;
        if (!strcmp(isa, "avx512")) run = peak_avx512;
#endif
        double got = run(0.5f);
        if (got > best) best = got;
    }
    return best;
}

/* ---- products ------------------------------------------------------------------------------------------- */

/* a and b are row-major, or, transposed, the rows of their transpose are. */
typedef struct Row {
    const char *name;
    int m, n, k;
    bool transposed_a, transposed_b;
} Row;

typedef void Sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                   int lda, const float *b, int ldb, float beta, float *y, int ldy);

typedef struct Bench {
    const dsi_kernels *kernels;
    Sgemm *blas; /* or NULL */
    float *a, *b, *y;
    double peak;
} Bench;

static dsi_view matrix(float *p, int rows, int cols, bool transposed)
{
    return (dsi_view){
        p, DS_F32, 3, {1, rows, cols}, {0, transposed ? 1 : cols, transposed ? rows : 1}};
}

static void run_ours(const Bench *x, const Row *r)
{
    x->kernels->matmul(&dsi_device_current()->stream, matrix(x->a, r->m, r->k, r->transposed_a),
                       matrix(x->b, r->k, r->n, r->transposed_b), (dsi_view){0},
                       matrix(x->y, r->m, r->n, false));
}

static void run_blas(const Bench *x, const Row *r)
{
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };
    x->blas(ROW_MAJOR, r->transposed_a ? TRANSPOSED : AS_IS, r->transposed_b ? TRANSPOSED : AS_IS,
            r->m, r->n, r->k, 1, x->a, r->transposed_a ? r->m : r->k, x->b,
            r->transposed_b ? r->k : r->n, 0, x->y, r->n);
}

static double seconds(const Bench *x, const Row *r, void (*run)(const Bench *, const Row *))
{
    double best = dsi_now();
    run(x, r);
    best = dsi_now() - best;
    int times = 1 + (int)(0.003 / (best + 1e-7));
    for (int i = 0; i < 15; i++) {
        double t = dsi_now();
        for (int k = 0; k < times; k++) run(x, r);
        t = (dsi_now() - t) / times;
        if (t < best) best = t;
    }
    return best;
}

static void bench(const Bench *x, const Row *r)
{
    double flops = 2.0 * r->m * r->n * r->k, ours = seconds(x, r, run_ours);
    printf("%-12s %c%c %5d %5d %5d  %9.2f us %7.1f GF/s %4.0f %%", r->name,
           r->transposed_a ? 'T' : 'N', r->transposed_b ? 'T' : 'N', r->m, r->n, r->k, ours * 1e6,
           flops / ours / 1e9, 100 * flops / ours / 1e9 / x->peak);
    if (x->blas) printf("  %7.1f GF/s", flops / seconds(x, r, run_blas) / 1e9);
    printf("\n");
}

/* The linear layers of the tutorial network at one batch size. */
static void bench_layers(const Bench *x, int batch, const char *only)
{
    static const int in[] = {400, 120, 84}, out[] = {120, 84, 10};
    for (int i = 0; i < 3; i++) {
        char name[3][16];
        snprintf(name[0], sizeof name[0], "fc%d", i + 1);
        snprintf(name[1], sizeof name[1], "fc%d_dx", i + 1);
        snprintf(name[2], sizeof name[2], "fc%d_dw", i + 1);
        Row rows[] = {{name[0], batch, out[i], in[i], false, true},
                      {name[1], batch, in[i], out[i], false, false},
                      {name[2], out[i], in[i], batch, true, false}};
        for (int k = 0; k < 3; k++)
            if (strstr(rows[k].name, only)) bench(x, &rows[k]);
    }
}

int main(int argc, char **argv)
{
    static const int batches[] = {4, 16, 32, 128, 512}, sides[] = {128, 256, 512, 1024, 2048};
    const char *only = argc > 1 ? argv[1] : "", *isa = dsi_cpu_isa();
    if (!isa) return fprintf(stderr, "%s\n", ds_error()), 1;
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    Bench x = {.kernels = dsi_cpu_kernels_of(isa), .peak = peak_of(isa)};
    if (library) *(void **)&x.blas = dlsym(library, "cblas_sgemm");
    const size_t room = 2048 * 2048;
    x.a = aligned_alloc(64, room * sizeof *x.a);
    x.b = aligned_alloc(64, room * sizeof *x.b);
    x.y = aligned_alloc(64, room * sizeof *x.y);
    if (!x.a || !x.b || !x.y) return fprintf(stderr, "no memory\n"), 1;
    for (size_t i = 0; i < room; i++) x.a[i] = x.b[i] = (float)(i % 11) / 11;

    printf("%s, peak %.1f GF/s%s\n", isa, x.peak, x.blas ? "; last column: OpenBLAS" : "");
    const Row tile = {"tile", 96, 48, 128, false, false}; /* whole tiles, all in the first cache */
    if (strstr(tile.name, only)) bench(&x, &tile);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        bench_layers(&x, batches[i], only);
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        for (int t = 0; t < 3; t++) {
            Row r = {"square", sides[i], sides[i], sides[i], t == 2, t == 1};
            if (strstr(r.name, only)) bench(&x, &r);
        }
    free(x.a), free(x.b), free(x.y);
    return 0;
}
