/* base/clock.c: what time it is.
 * SPDX-License-Identifier: MIT */
#include "clock.h"

#include <time.h>

static double clock_seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t dsi_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double dsi_now(void) { return clock_seconds(CLOCK_MONOTONIC); }
double dsi_thread_time(void) { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }
double dsi_wall_time(void) { return clock_seconds(CLOCK_REALTIME); }
