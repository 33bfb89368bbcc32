/* device/cuda/kernels/route.h: arguments of route.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

enum { K_ROUTE_EXPERTS = 2048, K_ROUTE_THREADS = 512 };
enum { K_FAULT_GROUP = K_FAULT_ELEMENT + 1 };      /* one more of args.h's, of route_sort */
enum { K_DROP_LAST, K_DROP_LEAST, K_DROP_RANDOM }; /* dsi_drop */

/* All without gaps: score, second [S,E], used [S]; expert, place, slot [S,k];
 * counts [3,E]: chosen, first, taken. used and slot may be NULL. */
typedef struct dsi_cuda_route_args {
    const float *score, *second;
    const long long *used;
    long long *expert, *place, *slot, *counts;
    int *to; /* [S k], in the order of places: the expert, or -1 */
    long long tokens, capacity, rows;
    int experts, k, drop, by_choice;
    unsigned long long seed, offset;
    const unsigned long long *fresh_seed; /* in place of seed; may be NULL */
} dsi_cuda_route_args;

/* index [rows,k]: places of the largest of each row of x [rows,n] */
typedef struct dsi_cuda_topk_args {
    const void *x;
    long long *index, rows;
    int n, k, dtype;
} dsi_cuda_topk_args;

/* id, row [count], begin [groups + 1] */
typedef struct dsi_cuda_sort_args {
    const long long *id;
    long long *begin, *row, count, groups;
    void *fault;
} dsi_cuda_sort_args;

typedef struct dsi_cuda_noise_args {
    float *y;
    long long count;
    int gumbel;
    float low, high;
    unsigned long long seed, offset;
    const unsigned long long *fresh_seed;
} dsi_cuda_noise_args;
