/* tools/selftest/selftest.c: see selftest.h. Each kernel, dtype and layout on
 * the GPU beside the CPU: values within a tolerance, the same bits in each
 * repeat, no byte written outside of the outputs, memory returned; the time of
 * a call.
 * SPDX-License-Identifier: MIT */
#include "selftest.h"

#include "cases.h"
#include "graph.h"
#include "probe.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "base/text.h"

#include <deepspeed.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SEED    20261122
#define REPEATS 100
#ifdef __SANITIZE_ADDRESS__ /* to which a repeat is the same accesses: other builds compare the bits */
#define QUICK_REPEATS 1
#else
#define QUICK_REPEATS 2
#endif
#define TIMED 20

enum { NUMBERS = 46, RESULT = 88 }; /* columns of the table */
enum { LARGE_DTYPES = 2 };          /* of those below, that large sizes are run in */

typedef enum Verdict { SAME, DIFFERS, UNSTABLE, FAILS, MISSING, N_VERDICTS } Verdict;
static const char *const verdicts[] = {"same", "DIFFERS", "NOT REPEATED", "FAILS", "no kernel"};

/* The worst of one case over its dtypes and layouts. */
typedef struct Outcome {
    Verdict verdict;
    int runs;
    double error, tolerance; /* of the run that comes closest to its tolerance */
    double seconds;          /* of a float32 call, without gaps; 0: not measured */
    char why[256];           /* which dtype and layout, the message */
} Outcome;

typedef struct Selftest {
    selftest_options o;
    dsi_device *gpu, *cpu;
    json_t *rows;
    int count[N_VERDICTS];
} Selftest;

static const char *const layouts[] = {"dense", "transposed", "spaced"};

/* Of the largest number of an output. 16 bits: one rounding, which a last bit
 * of float32 may move. */
static double tolerance_of(ds_dtype dtype)
{
    switch (dtype) {
    case DS_F64:
        return 1e-13;
    case DS_F16:
        return 0x1p-10;
    case DS_BF16:
        return 0x1p-7;
    default:
        return 2e-6;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ds_status wait_for(dsi_device *d) { return d->type->sync(&d->stream); }

static double time_of(Trial *t, TrialBody *body)
{
    double start = now();
    for (int i = 0; i < TIMED; i++) trial_run(t, body);
    wait_for(t->device);
    return (now() - start) / TIMED;
}

/* One case in one dtype and layout. */
static Verdict run_one(const Selftest *s, const SelfCase *c, Trial *got, Trial *want, double *error,
                       double *seconds)
{
    if (trial_run(want, c->run) != DS_OK || trial_run(got, c->run) != DS_OK) return FAILS;
    if (got->missing || want->missing) return MISSING;
    if ((*error = trial_difference(got, want)) < 0) return FAILS;
    if (!(*error <= (c->room > 0 ? c->room : 1) * tolerance_of(got->dtype))) return DIFFERS;
    if (!trial_repeats(got, c->run, (s->o.quick ? QUICK_REPEATS : REPEATS) - 1)) return UNSTABLE;
    if (got->big && got->dtype == DS_F32) *seconds = time_of(got, c->run);
    return SAME;
}

static void run_in(const Selftest *s, const SelfCase *c, ds_dtype dtype, Layout layout, bool big,
                   Outcome *out)
{
    Trial want = {.device = s->cpu, .dtype = dtype, .layout = layout, .big = big, .random = SEED};
    Trial got = want;
    double error = 0, room = (c->room > 0 ? c->room : 1) * tolerance_of(dtype);
    got.device = s->gpu, got.like = &want;
    Verdict v = run_one(s, c, &got, &want, &error, &out->seconds);
    if (out->runs++ == 0 || error / room > out->error / out->tolerance)
        out->error = error, out->tolerance = room;
    if (v != SAME && out->verdict == SAME) {
        out->verdict = v;
        snprintf(out->why, sizeof out->why, "%s %s%s%s%s", ds_dtype_name(dtype), layouts[layout],
                 big ? " large" : "", ds_error() ? ": " : "", ds_error() ? ds_error() : "");
    }
    ds_error_clear();
    trial_end(&got);
    trial_end(&want);
}

/* Each dtype and layout in the sizes of --quick, on which the CPU takes little
 * time; then the large sizes, without gaps, in the dtypes of training. */
static Outcome run_case(const Selftest *s, const SelfCase *c)
{
    static const ds_dtype dtypes[] = {DS_F32, DS_F16, DS_BF16, DS_F64};
    Outcome out = {.verdict = SAME};
    for (int k = 0; k < 4 && out.verdict == SAME; k++)
        for (int l = 0; l < (c->dense ? 1 : N_LAYOUTS) && out.verdict == SAME; l++)
            run_in(s, c, dtypes[k], (Layout)l, false, &out);
    for (int k = 0; k < LARGE_DTYPES && out.verdict == SAME && !s->o.quick; k++)
        run_in(s, c, dtypes[k], DENSE, true, &out);
    return out;
}

/* On a narrow terminal the numbers have a line of their own. */
static void print_cells(const char *kernel, const char *what, const char *numbers,
                        const char *result)
{
    int columns = dsi_terminal_columns(STDOUT_FILENO);
    bool narrow = columns > 0 && columns <= RESULT + 8;
    printf("%-18s %-26s %s%s", kernel, what, narrow ? "" : numbers, narrow ? "" : "  ");
    dsi_print_wrapped(result, narrow ? NUMBERS : RESULT, narrow ? NUMBERS : RESULT);
    if (narrow) printf("%s\n", numbers);
    fflush(stdout);
}

static void print_row(const SelfCase *c, const Outcome *o)
{
    char time[32] = "", numbers[64], result[sizeof o->why + 32];
    if (o->seconds > 0) snprintf(time, sizeof time, "%.1f us", 1e6 * o->seconds);
    snprintf(numbers, sizeof numbers, "%5d %10.2g %10.2g %12s", o->runs, o->error, o->tolerance,
             time);
    snprintf(result, sizeof result, "%s%s%s", verdicts[o->verdict], *o->why ? ": " : "", o->why);
    print_cells(c->kernel, c->what, numbers, result);
}

static void add_row(json_t *rows, const SelfCase *c, const Outcome *o)
{
    json_array_append_new(rows, json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:s, s:s}", "kernel",
                                          c->kernel, "case", c->what, "runs", o->runs, "error",
                                          isfinite(o->error) ? o->error : -1, "tolerance",
                                          o->tolerance, "seconds", o->seconds, "result",
                                          verdicts[o->verdict], "message", o->why));
}

static void add_outcome(Selftest *s, const SelfCase *row, const Outcome *out)
{
    s->count[out->verdict]++;
    if (s->o.json)
        add_row(s->rows, row, out);
    else
        print_row(row, out);
}

static bool is_wanted(const Selftest *s, const SelfCase *row)
{
    return !s->o.only || strstr(row->kernel, s->o.only) || strstr(row->what, s->o.only);
}

static void run_cases(Selftest *s, const SelfCase *c)
{
    for (; c->kernel; c++) {
        if (!c->run || !is_wanted(s, c)) continue;
        Outcome out = run_case(s, c);
        add_outcome(s, c, &out);
    }
}

/* Rows for steps as graphs. */
static void run_graphs(Selftest *s)
{
    static const struct {
        SelfCase row;
        bool (*run)(ds_device gpu, char *why, size_t room);
    } graphs[] = {
        {{.kernel = "step_graph", .what = "12 steps beside the same"}, selftest_graph},
        {{.kernel = "step_graph", .what = "of an engine in fp16"}, selftest_engine_graph}};
    for (int k = 0; k < 2; k++) {
        if (!is_wanted(s, &graphs[k].row)) continue;
        Outcome out = {.verdict = SAME, .runs = 1, .tolerance = 0};
        if (!graphs[k].run((ds_device){DS_CUDA, 0}, out.why, sizeof out.why)) out.verdict = DIFFERS;
        ds_error_clear();
        add_outcome(s, &graphs[k].row, &out);
    }
}

/* A row for each instruction that kernels use by inline PTX; none on a GPU that
 * lacks them. */
static void run_probes(Selftest *s)
{
    for (int k = 0; s->gpu->type->probe && selftest_probes[k]; k++) {
        const SelfCase row = {.kernel = "PTX", .what = selftest_probes[k]};
        if (!is_wanted(s, &row)) continue;
        Outcome out = {
            .verdict = SAME, .runs = s->o.quick ? QUICK_REPEATS : REPEATS, .tolerance = 0};
        for (int i = 0; i < out.runs && out.verdict == SAME; i++)
            if (!selftest_probe(s->gpu, k, out.why, sizeof out.why))
                out.verdict = ds_error_status() == DS_EDEVICE ? MISSING : DIFFERS;
        ds_error_clear();
        add_outcome(s, &row, &out);
    }
}

/* Bytes in use that were not before. */
static size_t memory_kept(const Selftest *s, size_t before)
{
    wait_for(s->gpu);
    return dsi_cache_live(s->gpu) - before;
}

static int finish(Selftest *s, const char *name, size_t kept, double seconds)
{
    int bad = s->count[DIFFERS] + s->count[UNSTABLE] + s->count[FAILS];
    if (s->o.json) {
        json_t *all = json_pack("{s:s, s:o, s:i, s:i, s:i, s:I, s:f}", "gpu", name, "kernels",
                                s->rows, "same", s->count[SAME], "wrong", bad, "missing",
                                s->count[MISSING], "bytes_kept", (json_int_t)kept, "seconds",
                                seconds);
        json_dumpf(all, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(all);
    } else {
        dsi_text t = dsi_text_of("%s: %d cases agree with the CPU, %d do not, %d have no kernel; "
                                 "%zu bytes of memory not returned; %.1f s",
                                 name, s->count[SAME], bad, s->count[MISSING], kept, seconds);
        dsi_print_wrapped(t.s, 0, 0);
        dsi_text_free(&t);
    }
    return bad || kept ? EXIT_FAILURE : EXIT_SUCCESS;
}

int selftest_gpu(selftest_options o)
{
    char name[200];
    const ds_device first = {DS_CUDA, 0};
    double start = now();
    if (!ds_device_count(DS_CUDA)) {
        fprintf(stderr, "ds_report: --gpu_selftest: %s\n", dsi_device_why_none(DS_CUDA));
        return 2;
    }
    Selftest s = {
        .o = o, .gpu = dsi_device_get(first), .cpu = dsi_device_get((ds_device){DS_CPU, 0})};
    if (!s.gpu || !s.cpu || dsi_device_describe(first, name, sizeof name) != DS_OK) {
        fprintf(stderr, "ds_report: --gpu_selftest: %s\n", ds_error());
        return 2;
    }
    size_t before = dsi_cache_live(s.gpu);
    if (o.json)
        s.rows = json_array();
    else
        print_cells("kernel", "case", " runs      error  tolerance         time", "result");
    run_probes(&s);
    run_cases(&s, selftest_math);
    run_cases(&s, selftest_products);
    run_cases(&s, selftest_nn);
    run_cases(&s, selftest_route);
    run_graphs(&s);
    int rows = 0;
    for (int k = 0; k < N_VERDICTS; k++) rows += s.count[k];
    if (!rows) {
        fprintf(stderr, "ds_report: --only %s: no kernel or case has that in its name\n", o.only);
        json_decref(s.rows);
        return 2;
    }
    return finish(&s, name, memory_kept(&s, before), now() - start);
}
