/* tools/selftest/cases.h: what is run: each entry of device/kernels.h, in
 * shapes that cross the edges of tiles by one.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "trial.h"

typedef struct SelfCase {
    const char *kernel, *what;
    TrialBody *run; /* NULL: there is no such entry */
    double room;    /* times the dtype's tolerance; 0: 1 */
    bool dense;     /* the entry takes no other layout */
} SelfCase;

/* A size: of a whole run, or of a quick one. */
#define BIG(t, large, small) ((t)->big ? (large) : (small))

/* end with kernel NULL */
extern const SelfCase selftest_math[], selftest_products[], selftest_nn[], selftest_route[];
