/* tests/ranks.h: a body that runs as 1, 2, 3, 4 and 8 rank threads (1, 2 and 3
 * if quick); under mpirun, as the ranks that it made. With DS_TEST_DEVICE=cuda
 * 2 and 4 ranks, with a GPU each if there are as many.
 *
 *     static ds_status body(void *arg) { ...; RANK_CHECK(x == 1); return DS_OK; }
 *     static void test(void **state) { TEST_RANKS(body, NULL); }
 *
 * cmocka's macros jump in the main thread only; in a rank a check is a failure
 * of the body.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"

#define RANK_CHECK(x) \
    do { \
        if (!(x)) return rank_failed(#x, __FILE__, __LINE__); \
    } while (0)

static inline ds_status rank_failed(const char *what, const char *file, int line)
{
    return ds_fail(DS_ESTATE, "%s:%d: not true: %s%s%s", file, line, what,
                   ds_error() ? "; ds_error: " : "", ds_error() ? ds_error() : "");
}

static inline bool under_mpirun(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMI_RANK");
}

/* Whether tensors are made on GPUs. */
static inline bool on_gpu(void) { return ds_current_device().kind == DS_CUDA; }

/* Whether a test does less since its kernels run on the emulated GPU, slowly. */
static inline bool quick_gpu(void) { return on_gpu() && quick(); }

/* How many ranks, where a single number is tried: 4 GPUs, or an odd number. */
static inline int some_ranks(void) { return on_gpu() ? 4 : 3; }

typedef struct rank_body {
    ds_status (*body)(void *arg);
    void *arg;
} rank_body;

/* Rank r is on GPU r, from the first one again where there are fewer. */
static inline ds_status rank_run(void *p)
{
    const rank_body *b = p;
    ds_device own = ds_current_device();
    if (own.kind == DS_CUDA) own.index = ds_comm_rank(NULL) % ds_device_count(DS_CUDA);
    return ds_set_device(own) == DS_OK ? b->body(b->arg) : ds_error_status();
}

static inline ds_status run_ranks(int n, ds_status (*body)(void *arg), void *arg)
{
    return ds_run_ranks(n, rank_run, &(rank_body){body, arg});
}

#define TEST_RANKS(body, arg) test_ranks(body, arg, #body, __FILE__, __LINE__)
static inline void test_ranks(ds_status (*body)(void *arg), void *arg, const char *what,
                              const char *file, int line)
{
    static const int all[] = {1, 2, 3, 4, 8}, gpus[] = {2, 4};
    const int *sizes = on_gpu() ? gpus : all, n = on_gpu() ? 2 : quick() ? 3 : 5;
    if (under_mpirun()) {
        if (ds_init_distributed() != DS_OK || body(arg) != DS_OK)
            fail_msg("%s:%d: %s: %s", file, line, what, ds_error());
        return;
    }
    for (int i = 0; i < n; i++)
        if (run_ranks(sizes[i], body, arg) != DS_OK)
            fail_msg("%s:%d: %s on %d ranks: %s", file, line, what, sizes[i], ds_error());
}
