/* bench/comm.c: latency and bandwidth of collectives by size, compared with a
 * memory copy.
 *
 *     bench_comm                       2 and 4 ranks as threads
 *     mpirun -n 4 bench_comm           4 ranks as processes
 *
 * Bus bandwidth is defined as in NCCL's tests: the bytes that an ideal ring
 * sends on each link.
 * SPDX-License-Identifier: MIT */
#include "comm/comm.h"
#include "base/clock.h"
#include "median.h"
#include "tensor/tensor.h"

#include <deepspeed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int main(void)
{
    ds_status status = ds_init_distributed();
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
