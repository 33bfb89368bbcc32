/* bench/gemm.c: matrix products: GF/s, the fraction of this core's measured
 * peak, and a BLAS for comparison.
 *
 *     bench_gemm [text [dtype]]     only the rows whose first words hold text; "-": as bench/peer_gemm.py asks
 *
 * DS_CPU chooses the instruction set, DS_THREADS the threads (1). DS_BLAS names
 * a shared library that has sgemm_ (libopenblas.so.0; PyTorch's
 * libtorch_cpu.so, for MKL; OMP_NUM_THREADS for its threads): both are timed in
 * turns of 3 ms or more, in one process and on the same memory. The last
 * columns are the median of the turns' ratios, above 1 where ours is faster,
 * and the ratio of the least times: what a core without other load would show.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "device/device.h"
#include "median.h"

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
        for (int n = 0; n < ROUNDS; n++) { \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) a[i] = fma(a[i], m, m); \
        } \
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
        if (!strncmp(isa, "avx512", 6) || !strcmp(isa, "amx")) run = peak_avx512;
#endif
        double got = run(0.5f);
        if (got > best) best = got;
    }
    return best;
}

/* ---- products ------------------------------------------------------------------------------------------- */

/* a and b are row-major, or, transposed, the rows of their transpose are. */
typedef struct Row {
    char name[12];
    int m, n, k;
    bool transposed_a, transposed_b;
    int batch;
} Row;

/* BLAS in Fortran's manner: its matrices lie column by column. */
typedef void Sgemm(const char *ta, const char *tb, const int *m, const int *n, const int *k,
                   const float *alpha, const float *a, const int *lda, const float *b,
                   const int *ldb, const float *beta, float *y, const int *ldy);

typedef struct Bench {
    const dsi_kernels *kernels;
    Sgemm *blas; /* or NULL */
    float *a, *b, *y;
    double peak;
    int threads;
    ds_dtype dtype;
} Bench;

static dsi_view matrices(const Bench *x, float *p, const Row *r, int rows, int cols,
                         bool transposed)
{
    int64_t row = transposed ? 1 : cols, col = transposed ? rows : 1;
    return (dsi_view){p, x->dtype, 3, {r->batch, rows, cols}, {(int64_t)rows * cols, row, col}};
}

static void run_ours(const Bench *x, const Row *r)
{
    x->kernels->matmul(&dsi_device_current()->stream,
                       matrices(x, x->a, r, r->m, r->k, r->transposed_a),
                       matrices(x, x->b, r, r->k, r->n, r->transposed_b), (dsi_view){0},
                       matrices(x, x->y, r, r->m, r->n, false));
}

/* y^T = b^T a^T */
static void run_blas(const Bench *x, const Row *r)
{
    const float one = 1, zero = 0;
    const size_t m = (size_t)r->m, n = (size_t)r->n, k = (size_t)r->k;
    for (size_t i = 0; i < (size_t)r->batch; i++)
        x->blas(r->transposed_b ? "T" : "N", r->transposed_a ? "T" : "N", &r->n, &r->m, &r->k, &one,
                x->b + i * k * n, r->transposed_b ? &r->k : &r->n, x->a + i * m * k,
                r->transposed_a ? &r->m : &r->k, &zero, x->y + i * m * n, &r->n);
}

typedef void Run(const Bench *, const Row *);

/* Of one thread, the processor's time: what others run on the core meanwhile
 * does not count. */
static double clock_of(const Bench *x) { return x->threads > 1 ? dsi_now() : dsi_thread_time(); }

static double seconds(const Bench *x, const Row *r, Run *run, int times)
{
    double t = clock_of(x);
    for (int i = 0; i < times; i++) run(x, r);
    return (clock_of(x) - t) / times;
}

#define TURNS 15

/* How many make 3 ms; the first of all is not counted. */
static int times_of(const Bench *x, const Row *r, Run *run)
{
    seconds(x, r, run, 1);
    return 1 + (int)(0.003 / (seconds(x, r, run, 1) + 1e-7));
}

static double least(const double t[TURNS])
{
    double best = t[0];
    for (int i = 1; i < TURNS; i++) best = t[i] < best ? t[i] : best;
    return best;
}

static void bench(const Bench *x, const char *only, const Row *r)
{
    char label[64];
    int n = snprintf(label, sizeof label, "%-10s %c%c", r->name, r->transposed_a ? 'T' : 'N',
                     r->transposed_b ? 'T' : 'N');
    if (r->batch > 1) n += snprintf(label + n, sizeof label - (size_t)n, " %d x", r->batch);
    snprintf(label + n, sizeof label - (size_t)n, " %d %d %d", r->m, r->n, r->k);
    if (!strstr(label, only)) return;
    Run *runs[] = {run_ours, run_blas};
    int who = x->blas ? 2 : 1, times[2];
    double t[2][TURNS], ratio[TURNS];
    for (int w = 0; w < who; w++) times[w] = times_of(x, r, runs[w]);
    for (int i = 0; i < TURNS; i++) {
        for (int w = 0; w < who; w++) t[w][i] = seconds(x, r, runs[w], times[w]);
        ratio[i] = x->blas ? t[1][i] / t[0][i] : 0;
    }
    double gf = 2e-9 * r->batch * r->m * r->n * r->k, ours = median(t[0], TURNS);
    printf("%-30s %10.2f us %7.1f GF/s %4.0f %%", label, ours * 1e6, gf / ours,
           100 * gf / ours / x->peak);
    if (x->blas)
        printf("  %7.1f GF/s %6.2f %6.2f", gf / median(t[1], TURNS), median(ratio, TURNS),
               least(t[1]) / least(t[0]));
    printf("\n");
}

/* Answers bench/peer_gemm.py: how many rows there are, row i, a turn of it. */
static void serve(const Bench *x, const Row *rows, int count)
{
    char line[64];
    const Row *r = rows;
    int i = 0, times = 1;
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "rows\n")) {
            printf("%d\n", count);
        } else if (sscanf(line, "row %d", &i) == 1 && i >= 0 && i < count) {
            r = &rows[i];
            times = 0;
            printf("%s %d %d %d %d %d %d\n", r->name, r->batch, r->m, r->n, r->k, r->transposed_a,
                   r->transposed_b);
        } else {
            if (!times) times = times_of(x, r, run_ours);
            printf("%.9f\n", seconds(x, r, run_ours, times));
        }
        fflush(stdout);
    }
}

/* ---- which ---------------------------------------------------------------------------------------------- */

typedef struct Rows {
    Row row[160];
    int n;
} Rows;

static void add(Rows *r, const char *name, Row row)
{
    snprintf(row.name, sizeof row.name, "%s", name);
    r->row[r->n++] = row;
}

/* A linear layer at one batch size: forward, dx and dw. */
static void add_layer(Rows *r, const char *name, int batch, int in, int out)
{
    char dx[12], dw[12];
    snprintf(dx, sizeof dx, "%s_dx", name);
    snprintf(dw, sizeof dw, "%s_dw", name);
    add(r, name, (Row){"", batch, out, in, false, true, 1});
    add(r, dx, (Row){"", batch, in, out, false, false, 1});
    add(r, dw, (Row){"", out, in, batch, true, false, 1});
}

static void add_all(Rows *r)
{
    static const int batches[] = {4, 16, 32, 128, 512}, wide[] = {16, 64, 128, 256, 512},
                     tokens[] = {64, 128, 512};
    static const struct {
        const char *name;
        int tokens, dim;
    } blocks[] = {{"gpt2", 512, 768}, {"small", 2048, 256}, {"vit", 2080, 192}}; /* bench_models' */
    add(r, "tile", (Row){"", 96, 64, 64, false, false, 1}); /* all in the first cache */
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        add_layer(r, "fc1", batches[i], 400, 120);
        add_layer(r, "fc2", batches[i], 120, 84);
        add_layer(r, "fc3", batches[i], 84, 10);
    }
    for (int side = 128; side <= 2048; side *= 2)
        for (int t = 0; t < 3; t++)
            add(r, "square", (Row){"", side, side, side, t == 2, t == 1, 1});
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        add_layer(r, "mlp", wide[i], 1600, 1600);
        add_layer(r, "wide", wide[i], 1024, 4096);
    }
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (int t = 0; t < 4; t++) { /* qkv, projection, and the two of the MLP */
            static const int in[] = {1, 1, 1, 4}, out[] = {3, 1, 4, 1};
            int dim = blocks[i].dim;
            add_layer(r, blocks[i].name, blocks[i].tokens, dim * in[t], dim * out[t]);
        }
    add_layer(r, "head", 512, 768, 32001); /* of an odd vocabulary */
    for (int i = 256; i <= 2048; i *= 8) {
        add_layer(r, "expert", i, 512, 512);
        add_layer(r, "expert", i, 512, 2048);
    }
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        add(r, "scores", (Row){"", tokens[i], tokens[i], 64, false, true, 64});
        add(r, "attend", (Row){"", tokens[i], 64, tokens[i], false, false, 64});
        add(r, "attend_dv", (Row){"", tokens[i], 64, tokens[i], true, false, 64});
    }
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "", *dtype = argc > 2 ? argv[2] : "float32",
               *isa = dsi_cpu_isa(), *blas = getenv("DS_BLAS"), *threads = getenv("DS_THREADS");
    if (!isa) return fprintf(stderr, "%s\n", ds_error()), 1;
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    setenv("OMP_NUM_THREADS", "1", 0);
    void *library = dlopen(blas ? blas : "libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library && blas) return fprintf(stderr, "bench_gemm: %s\n", dlerror()), 1;
    Bench x = {.kernels = &dsi_cpu_table_of(isa)->kernels, .peak = peak_of(isa)};
    while (strcmp(dtype, ds_dtype_name(x.dtype)) && x.dtype < DS_BF16) x.dtype++;
    if (library && x.dtype == DS_F32) *(void **)&x.blas = dlsym(library, "sgemm_");
    x.threads = threads ? atoi(threads) : 1;
    ds_set_threads(x.threads);

    const size_t room = (size_t)1 << 25; /* the head's weight */
    dsi_device *device = dsi_device_current();
    float **all[] = {&x.a, &x.b, &x.y};
    for (int i = 0; i < 3; i++) {
        *all[i] = dsi_cache_alloc(device, room * sizeof(float));
        if (!*all[i]) return fprintf(stderr, "%s\n", ds_error()), 1;
        for (size_t j = 0; j < room; j++) (*all[i])[j] = (float)(j % 11) / 11;
        for (size_t j = 0; j < room && x.dtype != DS_F32; j++)
            ((uint16_t *)*all[i])[j] = (uint16_t)(0x3800 + j % 11 * 64); /* 0.5 or less than 1e-4 */
    }
    Rows rows = {.n = 0};
    add_all(&rows);
    if (!strcmp(only, "-")) {
        serve(&x, rows.row, rows.n);
    } else {
        printf("%s, peak %.1f GF/s%s\n", isa, x.peak,
               x.blas ? "; then BLAS, and how many times as fast we are" : "");
        for (int i = 0; i < rows.n; i++) bench(&x, only, &rows.row[i]);
    }
    for (int i = 0; i < 3; i++) dsi_cache_free(device, *all[i], room * sizeof(float));
    return 0;
}
