/* tests/ranks.h: a body that runs as 1, 2, 3, 4 and 8 rank threads (1, 2 and 3
 * if quick); under mpirun, as the ranks that it made.
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

#define TEST_RANKS(body, arg) test_ranks(body, arg, #body, __FILE__, __LINE__)
static inline void test_ranks(ds_status (*body)(void *arg), void *arg, const char *what,
                              const char *file, int line)
{
    static const int sizes[] = {1, 2, 3, 4, 8};
    if (under_mpirun()) {
        if (ds_init_distributed() != DS_OK || body(arg) != DS_OK)
            fail_msg("%s:%d: %s: %s", file, line, what, ds_error());
        return;
    }
    for (int i = 0; i < (quick() ? 3 : 5); i++)
        if (ds_run_ranks(sizes[i], body, arg) != DS_OK)
            fail_msg("%s:%d: %s on %d ranks: %s", file, line, what, sizes[i], ds_error());
}
