/* base/clock.c: what time it is.
 * SPDX-License-Identifier: MIT */
#include "clock.h"

#include <time.h>

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double dsi_now(void) { return seconds(CLOCK_MONOTONIC); }
double dsi_thread_time(void) { return seconds(CLOCK_THREAD_CPUTIME_ID); }
double dsi_wall_time(void) { return seconds(CLOCK_REALTIME); }
