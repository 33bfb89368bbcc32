/* bench/median.h: the middle one of several measurements: what neighbours on
 * the machine disturb are the others.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdlib.h>

static inline int median_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of x [n], which is in ascending order afterwards. */
static inline double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, median_ascending);
    return x[n / 2];
}
