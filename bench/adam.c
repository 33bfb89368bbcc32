/* bench/adam.c: AdamW over 100 million parameters, compared with a triad a = b
 * + s c on the same threads: GB/s.
 *
 *   bench_adam [millions of parameters] [threads ...]
 *
 * An element of float32 Adam moves 28 bytes: p, m, v read and written, g read.
 * With a float32 master, a 16-bit gradient and a 16-bit copy it is 28 as well;
 * with a bfloat16 parameter and the other half of its master it is 26.
 * The triad moves 12. Plain stores read a cache line before they write it, so a
 * second triad uses streaming stores. Rounds alternate; the results are medians
 * of 9. With one thread, thread time is measured, so that other load on the
 * core does not count.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/work.h"
#include "median.h"
#include "optim/optim.h"

#include <deepspeed.h>

#include <stdio.h>
#include <stdlib.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#define ROUNDS 9
#define PIECE  1024 /* elements of a triad's item */

typedef struct Adam {
    ds_module *model;
    ds_optim *optim;
} Adam;

typedef struct Triad {
    int64_t n;
    float *a;
    const float *b, *c;
} Triad;

static void triad_pieces(void *arg, int64_t begin, int64_t end)
{
    const Triad *t = arg;
    int64_t to = end * PIECE < t->n ? end * PIECE : t->n;
    float *restrict a = t->a;
    const float *restrict b = t->b, *restrict c = t->c;
    for (int64_t i = begin * PIECE; i < to; i++) a[i] = b[i] + 3 * c[i];
}

static void streamed_pieces(void *arg, int64_t begin, int64_t end)
{
#ifdef __SSE__
    const Triad *t = arg;
    int64_t to = end * PIECE < t->n ? end * PIECE : t->n;
    const __m128 factor = _mm_set1_ps(3);
    for (int64_t i = begin * PIECE; i + 4 <= to; i += 4)
        _mm_stream_ps(t->a + i,
                      _mm_add_ps(_mm_load_ps(t->b + i), _mm_mul_ps(factor, _mm_load_ps(t->c + i))));
    _mm_sfence();
#else
    triad_pieces(arg, begin, end);
#endif
}

static double now(void) { return ds_threads() == 1 ? dsi_thread_time() : dsi_now(); }

static double time_triad(const Triad *t, void (*pieces)(void *arg, int64_t begin, int64_t end))
{
    double start = now();
    dsi_parallel((t->n + PIECE - 1) / PIECE, 256, pieces, (void *)(uintptr_t)t);
    return now() - start;
}

static double time_adam(const Adam *x)
{
    double start = now();
    if (ds_optim_step(x->optim) != DS_OK) return fprintf(stderr, "%s\n", ds_error()), 1e9;
    return now() - start;
}

/* One parameter [n]; half: bfloat16, with a float32 master, split or not. */
static Adam make(int64_t n, bool half, bool split)
{
    static const ds_module_type type = {.name = "Flat"};
    ds_module *m = ds_module_new(NULL, "flat", &type);
    ds_dtype dtype = half ? DS_BF16 : DS_F32;
    ds_tensor *p = ds_module_param(m, "weight", ds_full(dtype, ds_shape(n), 0.5));
    ds_optim *o = ds_optim_adamw(m, 1e-3, .weight_decay = 0.01);
    if (half) {
        ds_tensor *master = ds_full(DS_F32, ds_shape(n), 0.5);
        dsi_optim_set_param(o, 0, master, p);
        if (split) dsi_optim_set_rest(o, 0, ds_zeros(DS_I16, ds_shape(n)));
        ds_set_grad_of(master, ds_full(DS_BF16, ds_shape(n), 0.01));
    } else {
        ds_set_grad_of(p, ds_full(DS_F32, ds_shape(n), 0.01));
    }
    return (Adam){m, o};
}

static void print_row(const char *name, int64_t n, double bytes, double t, double triad)
{
    double rate = bytes * (double)n / t / 1e9;
    printf("  %-36s %8.1f ms %6.1f GB/s  %3.0f %% of the better triad's\n", name, t * 1e3, rate,
           100 * rate / (12 * (double)n / triad / 1e9));
}

/* adam: float32, masters, halves of masters. */
static void measure(int64_t n, int threads, const Triad *triad, const Adam adam[3])
{
    double t[5][ROUNDS];
    ds_set_threads(threads);
    for (int k = 0; k < 3; k++) time_adam(&adam[k]); /* moments are made, pages touched */
    for (int i = 0; i < ROUNDS; i++) {
        t[0][i] = time_triad(triad, triad_pieces);
        t[1][i] = time_triad(triad, streamed_pieces);
        for (int k = 0; k < 3; k++) t[2 + k][i] = time_adam(&adam[k]);
    }
    double one = median(t[0], ROUNDS), other = median(t[1], ROUNDS),
           best = one < other ? one : other;
    printf("%lld parameters, %d of %d threads\n", (long long)n, ds_threads(), threads);
    print_row("triad", n, 12, one, best);
    print_row("triad, stores past the caches", n, 12, other, best);
    print_row("adamw, float32", n, 28, median(t[2], ROUNDS), best);
    print_row("adamw, masters, bfloat16 g and copy", n, 28, median(t[3], ROUNDS), best);
    print_row("adamw, split masters, bfloat16 g", n, 26, median(t[4], ROUNDS), best);
}

int main(int argc, char **argv)
{
    int64_t n = (int64_t)(1e6 * (argc > 1 ? atof(argv[1]) : 100));
    ds_scope *scope = ds_scope_open();
    ds_tensor *a = ds_ones(DS_F32, ds_shape(n)), *b = ds_ones(DS_F32, ds_shape(n));
    const Adam adam[] = {make(n, false, false), make(n, true, false), make(n, true, true)};
    Triad triad = {n, ds_data_mut(a), ds_data(b),
                   ds_data(ds_grad(ds_module_param_at(adam[0].model, 0, NULL)))};
    if (ds_error()) return fprintf(stderr, "%s\n", ds_error()), 1;
    for (int i = 2; i < argc; i++) measure(n, atoi(argv[i]), &triad, adam);
    if (argc < 3) measure(n, 1, &triad, adam), measure(n, 2, &triad, adam);
    for (int k = 0; k < 3; k++) ds_optim_free(adam[k].optim), ds_module_free(adam[k].model);
    ds_scope_close(scope);
    return 0;
}
