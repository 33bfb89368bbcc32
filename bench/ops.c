/* bench/ops.c: the rows of tests/ops/cases.h that have sizes for it, and those
 * of bench/ops_network.h, timed through the public headers: forward alone, and
 * forward with backward; medians of many calls.
 *
 *     bench_ops [--bf16 | --f16] [word ...]     rows whose op or name holds one of the words
 *     bench_ops --threads N [...]               on N threads (1); then times are those of a clock
 *     bench_ops [...] --ask                     for bench/peer_ops.py: the rows in JSON, a line each, then an
 *                                               empty one; then for each number of a row on its input a line
 *                                               with the two times in microseconds
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "median.h"
#include "ops_network.h"

#include <stdio.h>

#define SAMPLES   15
#define ASKED     5    /* samples in an answer; the asker takes the median of several */
#define SAMPLE_US 3000 /* calls are repeated until a sample takes so long */
#define ROWS      (OP_CASES + NETWORK_CASES + OPTIM_CASES)

static double now_us(void) { return (ds_threads() == 1 ? dsi_thread_time() : dsi_now()) * 1e6; }

/* A row that is ready to run: of an op, or of an optimizer. */
typedef struct Bench {
    const Case *c;
    ds_tensor *in[MAX_IN], *dy;
    bool backward; /* its result has a gradient */
    ds_module *model;
    ds_optim *optim;
} Bench;

static const Case *case_of(int row)
{
    return row < OP_CASES                   ? &op_cases[row]
           : row < OP_CASES + NETWORK_CASES ? &network_cases[row - OP_CASES]
                                            : NULL;
}

static const OptimCase *optim_of(int row)
{
    return &optim_cases[(row - OP_CASES - NETWORK_CASES) / OPTIM_SIZES];
}

static int64_t size_of(int row)
{
    return optim_sizes[(row - OP_CASES - NETWORK_CASES) % OPTIM_SIZES];
}

static const char *op_of(int row) { return case_of(row) ? case_of(row)->op : "optimizer"; }

static const char *name_of(int row)
{
    static char name[64];
    if (case_of(row)) return case_of(row)->name;
    snprintf(name, sizeof name, "%s, %lld", optim_of(row)->name, (long long)size_of(row));
    return name;
}

/* ---- running ----------------------------------------------------------------------------------------- */

/* One call, in a scope of its own; false when it fails. */
static bool turn(const Bench *b, bool backward)
{
    if (b->optim) return ds_optim_step(b->optim) == DS_OK;
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = b->c->call((ds_tensor **)b->in);
    bool right = y && (!backward || ds_backward_from(y, b->dy) == DS_OK);
    ds_scope_close(scope);
    for (int i = 0; backward && i < case_inputs(b->c->bench); i++) ds_set_grad_of(b->in[i], NULL);
    return right;
}

/* Microseconds a call; 0 when it fails. */
static double time_us(const Bench *b, bool backward, int n_samples)
{
    double samples[SAMPLES];
    int calls = 1;
    for (int s = -1; s < n_samples; s++) { /* the first finds out how many calls, and warms up */
        double begin = now_us(), took = 0;
        int n = 0;
        while (s < 0 ? took < SAMPLE_US : n < calls) {
            if (!turn(b, backward)) return 0;
            n++;
            if (s < 0) took = now_us() - begin;
        }
        if (s < 0)
            calls = n;
        else
            samples[s] = (now_us() - begin) / calls;
    }
    return median(samples, n_samples);
}

/* x [N,C,H,W] with the memory layout [N,H,W,C] */
static ds_tensor *channels_last(ds_tensor *x)
{
    ds_tensor *y = ds_contiguous(ds_permute(x, ds_shape(0, 2, 3, 1)));
    return ds_permute(y, ds_shape(0, 3, 1, 2));
}

static ds_tensor *input(const Case *c, int i, ds_dtype dtype)
{
    bool gradient = c->bench[i].kind == FLOAT, was = ds_set_grad(false);
    ds_tensor *x = case_input(c->bench, i, dtype);
    if (c->channels_last && i == 0 && x && ds_ndim(x) == 4) x = channels_last(x);
    ds_set_grad(was);
    return gradient ? ds_require_grad(x, true) : x;
}

static bool open_optim(Bench *b, int row)
{
    static const ds_module_type type = {.name = "Parameter"};
    b->model = ds_module_new(NULL, "model", &type);
    ds_tensor *p = ds_module_param(b->model, "p", ds_ones(DS_F32, ds_shape(size_of(row))));
    ds_set_grad_of(p, ds_like(p, 0.5));
    b->optim = optim_of(row)->make(b->model);
    return b->optim;
}

/* Its tensors belong to the scope that is open. */
static bool open_row(Bench *b, int row, ds_dtype dtype)
{
    *b = (Bench){.c = case_of(row)};
    if (!b->c) return open_optim(b, row);
    for (int i = 0; i < case_inputs(b->c->bench); i++) b->in[i] = input(b->c, i, dtype);
    ds_tensor *y = b->c->call(b->in);
    b->backward = ds_requires_grad(y);
    b->dy = ds_like(y, 1);
    return b->dy;
}

static void close_row(Bench *b)
{
    ds_optim_free(b->optim);
    ds_module_free(b->model);
}

/* -> us: forward, and with backward; an optimizer's step, and a result without
 * a gradient, have the first alone. */
static bool time_row(const Bench *b, int n_samples, double us[2])
{
    bool was = ds_set_grad(false);
    us[0] = time_us(b, false, n_samples), us[1] = 0;
    ds_set_grad(was);
    if (us[0] > 0 && b->backward) us[1] = time_us(b, true, n_samples);
    return us[0] > 0 && (!b->backward || us[1] > 0);
}

/* ---- our own table ----------------------------------------------------------------------------------- */

static double bytes(const ds_tensor *x)
{
    return (double)ds_numel(x) * (double)ds_dtype_size(ds_dtype_of(x));
}

static void print_row(int row, const Bench *b, const double us[2])
{
    printf("%-20s %-34s %10.2f us", op_of(row), name_of(row), us[0]);
    if (b->optim) {
        printf("\n");
        return;
    }
    double work = bytes(b->dy);
    for (int i = 0; i < MAX_IN && b->in[i]; i++) work += bytes(b->in[i]);
    if (b->c->flops) work = b->c->flops((ds_tensor **)b->in, b->dy);
    printf(" %8.1f %s %10.2f us\n", work / us[0] * 1e-3, b->c->flops ? "GFLOP/s" : "GB/s   ",
           us[1]);
}

static bool bench(int row, ds_dtype dtype, int n_samples, bool asked)
{
    ds_scope *scope = ds_scope_open();
    Bench b;
    double us[2];
    bool right = open_row(&b, row, dtype) && time_row(&b, n_samples, us);
    if (!right) fprintf(stderr, "%s (%s): %s\n", op_of(row), name_of(row), ds_error());
    if (asked)
        printf("%.3f %.3f\n", right ? us[0] : 0, right ? us[1] : 0);
    else if (right)
        print_row(row, &b, us);
    close_row(&b);
    ds_scope_close(scope);
    return right;
}

/* ---- beside another's -------------------------------------------------------------------------------- */

static void print_inputs(const Case *c)
{
    static const char *const kinds[] = {"float", "fixed", "index", "bool"};
    for (int i = 0; i < case_inputs(c->bench); i++) {
        const Input *in = &c->bench[i];
        printf("%s{\"kind\": \"%s\", \"low\": %g, \"high\": %g, \"shape\": [", i ? ", " : "",
               kinds[in->kind], in->low, in->high);
        for (int d = 0; d < in->shape.n; d++)
            printf("%s%lld", d ? ", " : "", (long long)in->shape.d[d]);
        printf("]}");
    }
}

static void list_row(int row)
{
    const Case *c = case_of(row);
    printf("{\"row\": %d, \"op\": \"%s\", \"name\": \"%s\", ", row, op_of(row), name_of(row));
    if (!c) {
        printf("\"torch\": \"%s\", \"elements\": %lld}\n", optim_of(row)->torch,
               (long long)size_of(row));
        return;
    }
    printf("\"torch\": \"%s\", \"in\": [", c->torch ? c->torch : "");
    print_inputs(c);
    printf("]}\n");
}

static int answer(ds_dtype dtype)
{
    int row, failed = 0;
    printf("\n");
    fflush(stdout);
    while (scanf("%d", &row) == 1) {
        if (row < 0 || row >= ROWS) return fprintf(stderr, "bench_ops: no row %d\n", row), 1;
        failed += !bench(row, dtype, ASKED, true);
        fflush(stdout);
    }
    return failed > 0;
}

static bool wanted(int row, char **words, int n)
{
    bool found = !n;
    for (int i = 0; i < n; i++)
        found |= strstr(op_of(row), words[i]) || strstr(name_of(row), words[i]);
    return found && (!case_of(row) || case_of(row)->bench[0].used);
}

int main(int argc, char **argv)
{
    int failed = 0, words = 0;
    bool ask = false;
    ds_dtype dtype = DS_F32;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--ask"))
            ask = true;
        else if (!strcmp(argv[i], "--bf16"))
            dtype = DS_BF16;
        else if (!strcmp(argv[i], "--f16"))
            dtype = DS_F16;
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            failed += ds_set_threads(atoi(argv[++i])) != DS_OK;
        else
            argv[1 + words++] = argv[i];
    }
    if (!ask) printf("%-20s %-34s %13s %16s %13s\n", "op", "", "forward", "", "and backward");
    for (int row = 0; row < ROWS; row++) {
        if (!wanted(row, argv + 1, words) || (dtype != DS_F32 && !case_of(row))) continue;
        if (ask)
            list_row(row);
        else
            failed += !bench(row, dtype, SAMPLES, false);
    }
    return ask ? answer(dtype) : failed > 0;
}
