/* tools/ds_bench.c: latency and bandwidth of collectives by size, beside what a
 * memory copy reaches.
 *
 *     ds_bench [--ranks N]                      ranks as threads
 *     deepspeed --num_devs N ds_bench           ranks as processes; mpirun -n N ds_bench too
 *
 * Options and tables are those of DeepSpeed's ds_bench where they mean
 * something here. A row is the median of --trials calls, on the slowest rank.
 * Throughput counts the bytes as DeepSpeed does (all_reduce: twice those of the
 * tensor); bus bandwidth is what an ideal ring would have to carry on each
 * link, as in NCCL's tests. The last column is bus bandwidth in parts of the
 * bandwidth of memory copies that all ranks of a machine make at once; more
 * than 1 is what stays in the caches.
 * SPDX-License-Identifier: MIT */
#include "parse_options.h"

#include "base/clock.h"

#include <deepspeed.h>

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum kind {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BROADCAST,
    PT2PT,
    KINDS
} kind;

static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter",
                                    "all_to_all", "broadcast",  "pt2pt"};

enum {
    RANKS = 256,
    DTYPE,
    TRIALS,
    WARMUPS,
    MAXSIZE,
    MINSIZE,
    UNIT,
    SCAN,
    RAW,
    MEMORY,
    BACKEND,
    DEVICE,
    DIST,
    ASYNC,
    DEBUG,
    LOCAL_RANK,
    FIRST_KIND
};

typedef struct plan {
    bool wanted[KINDS], scan, raw, bytes; /* bytes: GBps instead of Gbps */
    ds_dtype dtype;
    int64_t ranks, trials, warmups, maxsize, minsize; /* sizes: powers of two, of elements */
    double memory;       /* the part of it that one size is to fill; 0: maxsize says the size */
    const char *backend; /* NULL: whatever the ranks are */
    double copy;         /* bytes a second and rank */
} plan;

enum { MOST_POWER = 34 };

/* ---- one call -------------------------------------------------------------------------------------------- */

/* small: a rank's piece of what is n elements on all */
typedef struct buffers {
    ds_tensor *whole, *other, *small;
} buffers;

static ds_status point_to_point(const buffers *b)
{
    int rank = ds_comm_rank(ds_world());
    if (rank == 0) {
        ds_status sent = ds_send(NULL, b->whole, 1);
        return sent == DS_OK ? ds_recv(NULL, b->whole, 1) : sent;
    }
    if (rank != 1) return DS_OK;
    ds_status came = ds_recv(NULL, b->whole, 0);
    return came == DS_OK ? ds_send(NULL, b->whole, 0) : came;
}

static ds_status bench_collective(kind k, const buffers *b)
{
    switch (k) {
    case ALL_REDUCE:
        return ds_all_reduce(NULL, b->whole, DS_REDUCE_SUM);
    case ALL_GATHER:
        return ds_all_gather(NULL, b->whole, b->small);
    case REDUCE_SCATTER:
        return ds_reduce_scatter(NULL, b->small, b->whole, DS_REDUCE_SUM);
    case ALL_TO_ALL:
        return ds_all_to_all(NULL, b->other, b->whole);
    case BROADCAST:
        return ds_broadcast(NULL, b->whole, 0);
    default:
        return point_to_point(b);
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a call, the median, on the slowest rank; negative: it failed. */
static double time_of(const plan *p, kind k, int64_t elements)
{
    int64_t ranks = ds_comm_size(ds_world());
    ds_scope *scope = ds_scope_open();
    const buffers b = {.whole = ds_zeros(p->dtype, ds_shape(elements)),
                       .other = k == ALL_TO_ALL ? ds_zeros(p->dtype, ds_shape(elements)) : NULL,
                       .small = ds_zeros(p->dtype, ds_shape(elements / ranks))};
    double *took = malloc((size_t)p->trials * sizeof *took);
    ds_status status = took && !ds_error() ? DS_OK : DS_ENOMEM;
    for (int64_t i = -p->warmups; i < p->trials && status == DS_OK; i++) {
        status = ds_barrier(NULL);
        double begun = dsi_now();
        if (status == DS_OK) status = bench_collective(k, &b);
        if (i >= 0) took[i] = (dsi_now() - begun) / (k == PT2PT ? 2 : 1);
    }
    double median = -1;
    if (status == DS_OK) {
        qsort(took, (size_t)p->trials, sizeof *took, compare_doubles);
        ds_tensor *slowest = ds_full(DS_F64, ds_shape(1), took[p->trials / 2]);
        status = ds_all_reduce(NULL, slowest, DS_REDUCE_MAX);
        median = status == DS_OK ? ds_item(slowest) : -1;
    }
    free(took);
    ds_scope_close(scope);
    return median;
}

/* ---- tables ---------------------------------------------------------------------------------------------- */

/* DeepSpeed's two rates, bytes a second. bytes: of the whole tensor. */
static void rates(kind k, double bytes, double seconds, int ranks, double *throughput, double *bus)
{
    double share = (ranks - 1.0) / ranks;
    *throughput = (k == ALL_REDUCE ? 2 : 1) * bytes / seconds;
    *bus = bytes / seconds *
           (k == ALL_REDUCE                ? 2 * share
            : k == BROADCAST || k == PT2PT ? 1
                                           : share);
}

/* Without long numbers the lines fit a terminal of 60 columns. */
#define COLUMNS "%-8s %-12s %-10s %-10s %-9s %s\n"

static void print_header(const plan *p, kind k, int ranks)
{
    const char *unit = p->bytes ? "(GBps)" : "(Gbps)";
    char line[60], title[60];
    memset(line, '-', sizeof line - 1);
    line[sizeof line - 1] = 0;
    snprintf(title, sizeof title, "Performance of %s on %d devices", names[k],
             k == PT2PT ? 2 : ranks);
    printf("\n---- %s %s\n\n", title, line + strlen(title) + strlen("----  "));
    printf(COLUMNS, "Size", "Description", "Duration", "Throughput", "BusBW", "of");
    printf(COLUMNS, "(Bytes)", "", p->raw ? "(us)" : "", unit, unit, "copy");
    puts(line);
}

static void add_size(char *text, size_t n, double bytes)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++) bytes /= 1024;
    snprintf(text, n, "%.4g %s", bytes, units[u]);
}

static void add_duration(char *text, size_t n, double s)
{
    if (s < 1e-3)
        snprintf(text, n, "%.2f us", s * 1e6);
    else if (s < 1)
        snprintf(text, n, "%.2f ms", s * 1e3);
    else
        snprintf(text, n, "%.2f s", s);
}

static void print_row(const plan *p, kind k, int64_t elements, double seconds)
{
    char size[40], what[60], duration[40], rate[2][40], part[40];
    size_t each = ds_dtype_size(p->dtype);
    double bytes = (double)elements * (double)each, throughput, bus, unit = p->bytes ? 1e9 : 1.25e8;
    rates(k, bytes, seconds, ds_comm_size(ds_world()), &throughput, &bus);
    add_size(size, sizeof size, bytes);
    add_duration(duration, sizeof duration, seconds);
    if (p->raw) snprintf(size, sizeof size, "%.0f", bytes);
    if (p->raw) snprintf(duration, sizeof duration, "%.2f", seconds * 1e6);
    snprintf(what, sizeof what, "%lldx%zu", (long long)elements, each);
    snprintf(rate[0], sizeof rate[0], "%.3f", throughput / unit);
    snprintf(rate[1], sizeof rate[1], "%.3f", bus / unit);
    snprintf(part, sizeof part, "%.2f", bus / p->copy);
    printf(COLUMNS, size, what, duration, rate[0], rate[1], part);
    fflush(stdout);
}

/* Bytes of this machine, or of what its control group may use. */
static double memory_here(void)
{
    double pages = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), limit = pages;
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "r");
    if (f && fscanf(f, "%lf", &limit) != 1) limit = pages; /* "max" */
    if (f) fclose(f);
    return limit < pages ? limit : pages;
}

/* --mem-factor: the largest power of two whose tensors, on all ranks of the
 * machine, fit into that part of it. */
static int64_t fitting_size(const plan *p, kind k)
{
    double tensors = k == ALL_TO_ALL ? 2 : k == ALL_GATHER || k == REDUCE_SCATTER ? 1.5 : 1;
    double room = memory_here() * p->memory / ds_comm_local_size(ds_world()) / tensors;
    double power = floor(log2(room / (double)ds_dtype_size(p->dtype)));
    return power < 0 ? 0 : power > MOST_POWER ? MOST_POWER : (int64_t)power;
}

static ds_status table(const plan *p, kind k)
{
    int ranks = ds_comm_size(ds_world());
    bool first = ds_comm_rank(ds_world()) == 0;
    int64_t largest = p->memory > 0 ? fitting_size(p, k) : p->maxsize;
    if (first) print_header(p, k, ranks);
    for (int64_t power = p->scan ? p->minsize : largest; power <= largest; power++) {
        int64_t elements = ((int64_t)1 << power) / ranks * ranks;
        if (elements < ranks) elements = ranks;
        double s = time_of(p, k, elements);
        if (s < 0) return ds_error_status();
        if (first) print_row(p, k, elements, s);
    }
    return DS_OK;
}

/* Of all ranks at once: bytes that one of them reads and writes again in a
 * second. */
static ds_status measure_copies(plan *p)
{
    enum { BYTES = 32 << 20, TIMES = 8 };
    char *a = malloc(BYTES), *b = malloc(BYTES);
    if (!a || !b) {
        free(a);
        free(b);
        return ds_fail(DS_ENOMEM, "ds_bench: no memory for two buffers of %d bytes", BYTES);
    }
    memset(a, 1, BYTES);
    memset(b, 2, BYTES);
    ds_status status = ds_barrier(NULL);
    double best = HUGE_VAL;
    for (int i = 0; i < TIMES; i++) {
        double begun = dsi_now();
        memcpy(i % 2 ? a : b, i % 2 ? b : a, BYTES);
        __asm__ volatile("" ::"r"(a), "r"(b) : "memory");
        best = fmin(best, dsi_now() - begun);
    }
    ds_scope *scope = ds_scope_open();
    ds_tensor *rate = ds_full(DS_F64, ds_shape(1), (double)BYTES / best);
    if (status == DS_OK) status = ds_all_reduce(NULL, rate, DS_REDUCE_AVG);
    p->copy = ds_item(rate);
    ds_scope_close(scope);
    free(a);
    free(b);
    return status;
}

static ds_status bench(void *arg)
{
    plan p = *(const plan *)arg; /* ranks may be threads */
    ds_comm *world = ds_world();
    bool any = false;
    ds_status status = measure_copies(&p);
    for (int k = 0; k < KINDS; k++) any = any || p.wanted[k];
    if (status == DS_OK && ds_comm_rank(world) == 0)
        printf("%d ranks, %s; memory copies at once: %.2f GB/s each\n", ds_comm_size(world),
               ds_comm_backend(world), p.copy * 1e-9);
    for (int k = 0; k < KINDS && status == DS_OK; k++)
        if (!any || p.wanted[k]) status = table(&p, (kind)k);
    return status;
}

/* ---- the command line ------------------------------------------------------------------------------------ */

static int64_t option_number(struct argp_state *state, const char *option, const char *arg,
                             int64_t low, int64_t high)
{
    char *end;
    errno = 0;
    long long n = strtoll(arg, &end, 10);
    if (errno || *end || end == arg || n < low || n > high)
        argp_error(state, "--%s %s: expected a number, %lld to %lld", option, arg, (long long)low,
                   (long long)high);
    return n;
}

static ds_dtype dtype_of(struct argp_state *state, const char *name)
{
    static const ds_dtype all[] = {DS_F32, DS_F64, DS_F16, DS_BF16, DS_I64, DS_I32};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *prefix = "torch.";
        const char *short_name = strncmp(name, prefix, strlen(prefix)) ? name
                                                                       : name + strlen(prefix);
        if (!strcmp(short_name, ds_dtype_name(all[i]))) return all[i];
    }
    argp_error(state, "--dtype %s: expected float32, float64, float16, bfloat16, int64 or int32",
               name);
    return DS_F32;
}

static bool option_unit(struct argp_state *state, const char *name)
{
    if (strcmp(name, "GBps") != 0 && strcmp(name, "Gbps") != 0)
        argp_error(state, "--bw_unit %s: expected Gbps or GBps", name);
    return name[1] == 'B';
}

static error_t parse_number(int key, char *arg, struct argp_state *state)
{
    plan *p = state->input;
    switch (key) {
    case RANKS:
        p->ranks = option_number(state, "ranks", arg, 2, 64);
        return 0;
    case TRIALS:
        p->trials = option_number(state, "trials", arg, 1, 1000000);
        return 0;
    case WARMUPS:
        p->warmups = option_number(state, "warmups", arg, 0, 1000000);
        return 0;
    case MAXSIZE:
        p->maxsize = option_number(state, "maxsize", arg, 0, MOST_POWER);
        return 0;
    case MINSIZE:
        p->minsize = option_number(state, "minsize", arg, 0, MOST_POWER);
        return 0;
    case LOCAL_RANK: /* launchers append it; the communicator knows */
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static double option_fraction(struct argp_state *state, const char *arg)
{
    char *end;
    double part = strtod(arg, &end);
    if (end == arg || *end || !(part > 0 && part <= 0.9))
        argp_error(state, "--mem-factor %s: expected a part of the memory, up to 0.9", arg);
    return part;
}

/* Options of DeepSpeed's that choose among what there is not here. */
static error_t parse_choice(int key, char *arg, struct argp_state *state)
{
    plan *p = state->input;
    switch (key) {
    case BACKEND:
        p->backend = arg;
        if (strcmp(arg, "mpi") != 0 && strcmp(arg, "thread") != 0)
            argp_error(state, "--backend %s: expected mpi or thread", arg);
        return 0;
    case DEVICE:
        if (strcmp(arg, "cpu") != 0)
            argp_error(state, "--device %s: expected cpu, on which collectives run here", arg);
        return 0;
    case DIST:
        if (strcmp(arg, "deepspeed") != 0)
            argp_error(state, "--dist %s: expected deepspeed; there is no PyTorch here", arg);
        return 0;
    case ASYNC:
        argp_error(state,
                   "--async-op: each call is waited for here, as a row is how long one takes");
        return 0;
    case DEBUG:
        argp_error(state, "--debug: nothing more is printed here; DS_DEBUG=comm compares what "
                          "ranks call");
        return 0;
    default:
        return parse_number(key, arg, state);
    }
}

static error_t bench_parse_option(int key, char *arg, struct argp_state *state)
{
    plan *p = state->input;
    if (key >= FIRST_KIND && key < FIRST_KIND + KINDS) {
        p->wanted[key - FIRST_KIND] = true;
        return 0;
    }
    switch (key) {
    case DTYPE:
        p->dtype = dtype_of(state, arg);
        return 0;
    case UNIT:
        p->bytes = option_unit(state, arg);
        return 0;
    case SCAN:
        p->scan = true;
        return 0;
    case RAW:
        p->raw = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\": expected no argument", arg);
        return 0;
    case MEMORY:
        p->memory = option_fraction(state, arg);
        return 0;
    case ARGP_KEY_END:
        if (p->memory > 0 && p->scan)
            argp_error(state, "--mem-factor and --scan: expected one size, or all of them");
        return 0;
    default:
        return parse_choice(key, arg, state);
    }
}

/* Whether the ranks are of the kind that --backend names. */
static ds_status check_backend(const plan *p)
{
    const char *is = ds_comm_size(ds_world()) > 1 ? ds_comm_backend(ds_world()) : "thread";
    if (!p->backend || !strcmp(p->backend, is)) return DS_OK;
    return ds_fail(
        DS_EINVAL,
        "ds_bench: --backend %s: the ranks would be of %s: deepspeed and mpirun start mpi's "
        "(deepspeed --num_devs 2 ds_bench), ds_bench alone has threads",
        p->backend, is);
}

static int64_t default_ranks(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 2 ? 2 : n > 4 ? 4 : n;
}

static int complain(void)
{
    fprintf(stderr, "%s\n", ds_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    static const struct argp_option rows[] = {
        {"all-reduce", FIRST_KIND + ALL_REDUCE, NULL, 0, "all_reduce", 0},
        {"all-gather", FIRST_KIND + ALL_GATHER, NULL, 0, "Only these of all: all_gather", 0},
        {"reduce-scatter", FIRST_KIND + REDUCE_SCATTER, NULL, 0, "reduce_scatter", 0},
        {"all-to-all", FIRST_KIND + ALL_TO_ALL, NULL, 0, "all_to_all", 0},
        {"broadcast", FIRST_KIND + BROADCAST, NULL, 0, "broadcast", 0},
        {"pt2pt", FIRST_KIND + PT2PT, NULL, 0, "A message from rank 0 to 1 and back, halved", 0},
        {"scan", SCAN, NULL, 0, "All sizes from --minsize on, not only the largest", 1},
        {"maxsize", MAXSIZE, "N", 0, "2^N elements (24)", 1},
        {"minsize", MINSIZE, "N", 0, "2^N elements (0)", 1},
        {"mem-factor", MEMORY, "F", 0, "Instead: a size that fills so much of the memory, 0 to 0.9",
         1},
        {"dtype", DTYPE, "TYPE", 0, "float32 (and so on)", 1},
        {"trials", TRIALS, "N", 0, "Calls of a row (20)", 1},
        {"warmups", WARMUPS, "N", 0, "Calls before them (5)", 1},
        {"ranks", RANKS, "N", 0, "Threads, where no launcher started ranks", 1},
        {"backend", BACKEND, "NAME", 0, "Refuse other ranks: mpi or thread", 1},
        {"device", DEVICE, "NAME", 0, "cpu, the only one", 1},
        {"dist", DIST, "NAME", OPTION_HIDDEN, NULL, 1},
        {"async-op", ASYNC, NULL, OPTION_HIDDEN, NULL, 1},
        {"debug", DEBUG, NULL, OPTION_HIDDEN, NULL, 1},
        {"raw", RAW, NULL, 0, "Bytes and microseconds as plain numbers", 2},
        {"bw_unit", UNIT, "UNIT", 0, "Gbps (bits) or GBps (bytes)", 2},
        {"local_rank", LOCAL_RANK, "N", OPTION_HIDDEN, NULL, 0},
        {0}};
    const struct argp argp = {rows, bench_parse_option, "", "Measures collectives.", NULL, NULL,
                              NULL};
    plan p = {.ranks = default_ranks(), .trials = 20, .warmups = 5, .maxsize = 24};
    argp_program_version = "ds_bench (deepspeed.c) " DS_VERSION;
    if (parse_options(&argp, argc, argv, PARSE_ON_RANKS, &p)) return 2;
    if (p.minsize > p.maxsize) p.minsize = p.maxsize;
    if (ds_init_distributed() != DS_OK || check_backend(&p) != DS_OK) return complain();
    ds_status status = ds_comm_size(ds_world()) > 1 ? bench(&p)
                                                    : ds_run_ranks((int)p.ranks, bench, &p);
    int code = status == DS_OK ? EXIT_SUCCESS : complain();
    ds_destroy_process_group();
    return code;
}
