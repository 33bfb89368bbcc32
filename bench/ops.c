/* bench/ops.c: the rows of tests/ops/cases.h that have sizes for it, timed through the public face:
 * forward alone, and forward with backward; medians of many calls.
 *
 *     bench_ops [word ...]      rows whose op or name holds one of the words
 * SPDX-License-Identifier: MIT */
#include "ops/cases.h"

#include <stdio.h>
#include <time.h>

#define SAMPLES   15
#define SAMPLE_US 3000 /* calls are repeated until a sample takes so long */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* One call, in a scope of its own; false with a line when it fails. */
static bool turn(const Case *c, ds_tensor **in, ds_tensor *dy)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = c->call(in);
    bool right = y && (!dy || ds_backward_from(y, dy) == DS_OK);
    ds_scope_close(scope);
    for (int i = 0; dy && i < case_inputs(c->bench); i++) ds_set_grad_of(in[i], NULL);
    if (!right) fprintf(stderr, "%s (%s): %s\n", c->op, c->name, ds_error());
    return right;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Microseconds a call; 0 when it fails. */
static double time_us(const Case *c, ds_tensor **in, ds_tensor *dy)
{
    double samples[SAMPLES];
    int calls = 1;
    for (int s = -1; s < SAMPLES; s++) { /* the first finds out how many calls, and warms up */
        double begin = now_us(), took = 0;
        int n = 0;
        while (s < 0 ? took < SAMPLE_US : n < calls) {
            if (!turn(c, in, dy)) return 0;
            n++;
            if (s < 0) took = now_us() - begin;
        }
        if (s < 0)
            calls = n;
        else
            samples[s] = (now_us() - begin) / calls;
    }
    qsort(samples, SAMPLES, sizeof *samples, by_size);
    return samples[SAMPLES / 2];
}

static double bytes(const ds_tensor *x)
{
    return (double)ds_numel(x) * (double)ds_dtype_size(ds_dtype_of(x));
}

static bool bench(const Case *c)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *in[MAX_IN] = {NULL};
    int n = case_inputs(c->bench);
    double moved = 0;
    for (int i = 0; i < n; i++) {
        in[i] = case_input(c->bench, i, DS_F32);
        moved += bytes(in[i]);
    }
    ds_tensor *y = c->call(in), *dy = ds_like(y, 1);
    if (!dy) fprintf(stderr, "%s (%s): %s\n", c->op, c->name, ds_error());
    bool was = ds_set_grad(false);
    double forward = dy ? time_us(c, in, NULL) : 0;
    ds_set_grad(was);
    double both = forward > 0 ? time_us(c, in, dy) : 0;
    if (both > 0) {
        double work = c->flops ? c->flops(in, y) : moved + bytes(y);
        printf("%-20s %-24s %10.2f us %8.1f %s %10.2f us\n", c->op, c->name, forward,
               work / forward * 1e-3, c->flops ? "GFLOP/s" : "GB/s   ", both);
    }
    ds_scope_close(scope);
    return both > 0;
}

static bool wanted(const Case *c, char **words, int n)
{
    bool found = !n;
    for (int i = 0; i < n; i++) found |= strstr(c->op, words[i]) || strstr(c->name, words[i]);
    return found && c->bench[0].used;
}

int main(int argc, char **argv)
{
    int failed = 0;
    printf("%-20s %-24s %13s %16s %13s\n", "op", "", "forward", "", "and backward");
    for (int i = 0; i < OP_CASES; i++)
        if (wanted(&op_cases[i], argv + 1, argc - 1)) failed += !bench(&op_cases[i]);
    return failed > 0;
}
