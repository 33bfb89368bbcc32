/* bench/comm.c: latency and bandwidth of collectives by size, compared with a
 * memory copy.
 *
 *     bench_comm                              2 and 4 ranks as threads
 *     mpirun -n 4 bench_comm                  4 ranks as processes
 *     mpirun -n 4 bench_comm vote             what a vote takes before a step that is a CUDA graph
 *     mpirun -n 2 bench_comm BYTES ...        all_reduce of float32 alone, in turns with copies: on each line
 *                                             BYTES, its median and least microseconds, and those of the copies
 *
 * The copies are what an all_reduce of two ranks of one host moves through
 * memory that they share, if it uses copies alone: each copies half of its data
 * in, and half of the other's out, for the parts of the sum and for the sum.
 * Bus bandwidth is defined as in NCCL's tests: the bytes that an ideal ring
 * sends on each link.
 * SPDX-License-Identifier: MIT */
#include "comm/comm.h"
#include "base/clock.h"
#include "median.h"
#include "tensor/tensor.h"

#include <deepspeed.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t sizes[] = {0, 4, 1024, 65536, 262144, 1 << 20, 16 << 20, 64 << 20}; /* bytes */
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef enum kind {
    BARRIER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    BROADCAST,
    ALL_TO_ALL,
    KINDS
} kind;
static const char *const names[] = {"barrier",    "all_reduce", "reduce_scatter",
                                    "all_gather", "broadcast",  "all_to_all"};

/* x: the whole, part: a rank's piece of another whole */
static ds_status run(kind k, ds_tensor *x, ds_tensor *y, ds_tensor *part)
{
    switch (k) {
    case ALL_REDUCE:
        return ds_all_reduce(NULL, x, DS_REDUCE_SUM);
    case REDUCE_SCATTER:
        return ds_reduce_scatter(NULL, part, x, DS_REDUCE_SUM);
    case ALL_GATHER:
        return ds_all_gather(NULL, x, part);
    case BROADCAST:
        return ds_broadcast(NULL, x, 0);
    case ALL_TO_ALL:
        return ds_all_to_all(NULL, y, x);
    default:
        return ds_barrier(NULL);
    }
}

static double bus_share(kind k, int ranks)
{
    double share = (ranks - 1.0) / ranks;
    return k == ALL_REDUCE ? 2 * share : k == BROADCAST ? 1 : share;
}

/* The median over repeats, in seconds. */
static double time_of(kind k, ds_dtype dtype, int64_t bytes)
{
    int ranks = ds_comm_size(ds_world()), repeats = bytes < 1 << 20    ? 300
                                                    : bytes < 16 << 20 ? 30
                                                                       : 7;
    int64_t n = bytes / (int64_t)ds_dtype_size(dtype), each = n / ranks ? n / ranks : 1;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_zeros(dtype, ds_shape(k == ALL_REDUCE || k == BROADCAST ? n : each * ranks));
    ds_tensor *y = ds_zeros(dtype, ds_shape(each * ranks)), *part = ds_zeros(dtype, ds_shape(each));
    double *took = malloc((size_t)repeats * sizeof *took);
    for (int i = -3; i < repeats; i++) {
        double begun = dsi_now();
        if (run(k, x, y, part) != DS_OK) fprintf(stderr, "%s\n", ds_error());
        if (i >= 0) took[i] = dsi_now() - begun;
    }
    double middle = median(took, repeats);
    free(took);
    ds_scope_close(scope);
    return middle;
}

static ds_status table(void *arg)
{
    static const ds_dtype dtypes[] = {DS_F32, DS_BF16};
    (void)arg;
    ds_comm *c = ds_world();
    bool first = !ds_comm_rank(c);
    if (first)
        printf("\n%d ranks, %s: microseconds, and GB/s on the bus\n%-22s", ds_comm_size(c),
               ds_comm_backend(c), "bytes");
    for (int s = 0; first && s < SIZES; s++) printf(" %15lld", (long long)sizes[s]);
    for (int k = 0; k < KINDS; k++)
        for (int d = 0; d < 2; d++) {
            if (d && k > REDUCE_SCATTER) continue; /* what does not add does not care */
            if (d && k == BARRIER) continue;
            if (first)
                printf("\n%-14s %-7s", names[k], k == BARRIER ? "" : ds_dtype_name(dtypes[d]));
            for (int s = 0; s < SIZES; s++) {
                if ((k == BARRIER) != (sizes[s] == 0)) {
                    if (first) printf(" %15s", "");
                    continue;
                }
                double t = time_of((kind)k, dtypes[d], sizes[s]);
                double rate = (double)sizes[s] / t * bus_share((kind)k, ds_comm_size(c)) * 1e-9;
                if (first) printf(" %9.1f %5.2f", t * 1e6, rate);
            }
        }
    if (first) printf("\n");
    return DS_OK;
}

static void copies(void)
{
    size_t n = 64 << 20;
    char *a = malloc(n), *b = malloc(n);
    memset(a, 1, n);
    memset(b, 2, n);
    double best = 1e9;
    for (int i = 0; i < 7; i++) {
        double begun = dsi_now();
        memcpy(i % 2 ? a : b, i % 2 ? b : a, n);
        double took = dsi_now() - begun;
        if (took < best) best = took;
    }
    printf("memcpy of 64 MiB, one core: %.2f GB/s copied (%d)\n", (double)n / best * 1e-9,
           a[n / 2]);
    free(a);
    free(b);
}

/* ---- two ranks, beside copies through shared memory --------------------------------------------------- */

enum { CHUNK = 128 << 10, CHUNKS = 4 };

/* Memory that both ranks have: what each has written and read, in chunks. */
typedef struct lane {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(64) char chunk[CHUNKS][CHUNK];
} lane;

/* [2], NULL where the system has no memfd. */
static lane *lanes_open(void)
{
    ds_scope *scope = ds_scope_open();
    int fd = -1;
    if (!ds_comm_rank(ds_world())) {
        fd = memfd_create("bench_comm", 0);
        if (fd >= 0 && ftruncate(fd, 2 * sizeof(lane))) fd = -1;
    }
    ds_tensor *where = ds_full(DS_I64, ds_shape(2), 0);
    int64_t *at = ds_data_mut(where);
    at[0] = getpid();
    at[1] = fd;
    ds_broadcast(NULL, where, 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)at[0], (long long)at[1]);
    if (fd < 0) fd = open(path, O_RDWR);
    void *p = mmap(NULL, 2 * sizeof(lane), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ds_scope_close(scope);
    return p == MAP_FAILED ? NULL : p;
}

static void await(_Atomic uint64_t *counter, uint64_t value)
{
    for (int i = 0; atomic_load(counter) < value; i++)
        if (i > 1000) sched_yield();
}

/* Copies `bytes` to the other rank, and as many from it. */
static void exchange(lane *lanes, int rank, const char *from, char *to, size_t bytes)
{
    lane *mine = &lanes[rank], *other = &lanes[!rank];
    for (size_t at = 0; at < bytes; at += CHUNK) {
        size_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
        uint64_t k = atomic_load(&mine->written);
        if (k >= CHUNKS) await(&other->read, k + 1 - CHUNKS);
        memcpy(mine->chunk[k % CHUNKS], from + at, n);
        atomic_store(&mine->written, k + 1);
        await(&other->written, k + 1);
        memcpy(to + at, other->chunk[k % CHUNKS], n);
        atomic_store(&mine->read, k + 1);
    }
}

/* One line: see the head of this file. */
static void beside_copies(lane *lanes, size_t bytes)
{
    int rank = ds_comm_rank(ds_world()), repeats = bytes < 1 << 20 ? 500 : 15;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_zeros(DS_F32, ds_shape((int64_t)(bytes / sizeof(float))));
    char *p = ds_data_mut(x), *half = p + bytes / 2;
    double *took = malloc((size_t)repeats * sizeof *took),
           *copied = malloc((size_t)repeats * sizeof *took);
    for (int i = -3; i < repeats; i++) {
        double begun = dsi_now();
        if (ds_all_reduce(NULL, x, DS_REDUCE_SUM) != DS_OK) fprintf(stderr, "%s\n", ds_error());
        double summed = dsi_now();
        if (lanes) {
            exchange(lanes, rank, rank ? p : half, rank ? half : p, bytes / 2);
            exchange(lanes, rank, rank ? half : p, rank ? p : half, bytes / 2);
        }
        if (i >= 0) took[i] = summed - begun, copied[i] = dsi_now() - summed;
    }
    double middle = median(took, repeats), of_copies = median(copied, repeats);
    if (!rank)
        printf("%zu %.1f %.1f %.1f %.1f\n", bytes, middle * 1e6, took[0] * 1e6, of_copies * 1e6,
               copied[0] * 1e6);
    free(took);
    free(copied);
    ds_scope_close(scope);
}

/* As ds_step_graph_run does (device/graph.h, Note [Graph votes]): ranks that
 * come at the same time, and ranks that have worked until then. */
static void votes(void)
{
    enum { VOTES = 4000 };
    static double took[VOTES];
    for (int work = 0; work < 2; work++) {
        for (int i = -10; i < VOTES; i++) {
            double begun = dsi_now();
            while (work && dsi_now() < begun + 100e-6) continue;
            int64_t x[] = {3, -3};
            begun = dsi_now();
            ds_status status = dsi_request_run(
                &(dsi_request){DSI_NUMBERS(ds_world(), DSI_ALL_REDUCE, DS_I64, x, x, 2),
                               .op = DS_REDUCE_MIN, .internal = true});
            if (status != DS_OK) fprintf(stderr, "%s\n", ds_error());
            if (i >= 0) took[i] = dsi_now() - begun;
        }
        double middle = median(took, VOTES); /* sorted */
        if (!ds_comm_rank(ds_world()))
            printf("%d ranks, %s, vote %s: median %.1f us, a tenth below %.1f, least %.1f\n",
                   ds_comm_size(ds_world()), ds_comm_backend(ds_world()),
                   work ? "after 100 us of work" : "at once", middle * 1e6, took[VOTES / 10] * 1e6,
                   took[0] * 1e6);
    }
}

int main(int argc, char **argv)
{
    ds_status status = ds_init_distributed();
    if (status == DS_OK && argc > 1 && !strcmp(argv[1], "vote")) {
        votes();
        ds_destroy_process_group();
        return 0;
    }
    if (status == DS_OK && argc > 1) {
        lane *lanes = ds_comm_size(ds_world()) == 2 ? lanes_open() : NULL;
        for (int i = 1; i < argc; i++) beside_copies(lanes, strtoul(argv[i], NULL, 10));
        ds_destroy_process_group();
        return 0;
    }
    if (status == DS_OK && !ds_comm_rank(ds_world())) copies();
    if (status == DS_OK && ds_comm_size(ds_world()) > 1) {
        status = table(NULL);
    } else if (status == DS_OK) {
        status = ds_run_ranks(2, table, NULL);
        if (status == DS_OK) status = ds_run_ranks(4, table, NULL);
    }
    if (status != DS_OK) fprintf(stderr, "%s\n", ds_error());
    ds_destroy_process_group();
    return status != DS_OK;
}
