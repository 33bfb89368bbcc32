/* tools/selftest/selftest.h: ds_report --gpu_selftest.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>

typedef struct selftest_options {
    bool json;        /* one JSON object in place of a table */
    bool quick;       /* small sizes and few repeats: for a GPU that is emulated */
    const char *only; /* rows whose kernel or case has this text in its name; NULL: all */
} selftest_options;

/* Runs each kernel of cuda:0 beside the CPU's and prints what came out. Returns
 * the exit status: 0 if all agree, 1 if not, 2 if there is no GPU. */
int selftest_gpu(selftest_options o);
