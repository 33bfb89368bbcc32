/* bench/work.c: the cost of a fork and a join: with helper threads awake,
 * asleep, and compared with one thread.
 * SPDX-License-Identifier: MIT */
#include "base/work.h"
#include "base/clock.h"
#include "median.h"

#include <deepspeed.h>
#include <stdio.h>
#include <stdlib.h>

static double now_us(void) { return dsi_now() * 1e6; }

/* n times some work of about a quarter of a nanosecond each */
static void spin(void *arg, int64_t begin, int64_t end)
{
    (void)arg;
    for (volatile int64_t i = begin; i < end; i = i + 1) {}
}

/* The median time of a job of n items, `pause_us` after the one before. */
static double job_us(int64_t n, int64_t grain, double pause_us, int repeats)
{
    double *took = malloc((size_t)repeats * sizeof *took);
    for (int i = 0; i < repeats; i++) {
        double start = now_us();
        while (now_us() - start < pause_us) {}
        start = now_us();
        dsi_parallel(n, grain, spin, NULL);
        took[i] = now_us() - start;
    }
    double middle = median(took, repeats);
    free(took);
    return middle;
}

int main(void)
{
    static const int64_t sizes[] = {64, 4096, 16384, 65536, 262144};
    printf("%-8s %10s", "threads", "empty us");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) printf(" %9lld", (long long)sizes[s]);
    printf(" %17s %17s\n", "small after sleep", "large after sleep");
    for (int threads = 1; threads <= 4; threads++) {
        ds_set_threads(threads);
        job_us(64, 1, 0, 1000);
        double start = now_us();
        for (int i = 0; i < 100000; i++) dsi_parallel(threads, 1, spin, NULL);
        printf("%-8d %10.3f", threads, (now_us() - start) / 100000);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            printf(" %9.2f", job_us(sizes[s], 1, 1, 2000));
        /* a part is worth 10 us, as dsi_parallel asks for */
        printf(" %17.2f %17.2f\n", job_us(3 * 40000, 40000, 1000, 200),
               job_us(30 * 40000, 40000, 1000, 200));
    }
    ds_set_threads(1);
    return 0;
}
