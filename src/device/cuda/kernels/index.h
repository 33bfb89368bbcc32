/* device/cuda/kernels/index.h: arguments of index.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* x, y: operand and output; index: int64; w: weights of experts, or absent */
typedef struct dsi_cuda_index {
    dsi_cuda_view x, index, w, y;
    long long skip; /* scatter_rows */
    void *fault;
    /* scatter_rows of many: the positions 0 .. n - 1, sorted by their row in
     * passes of 8 bits; `from` and `to` are [n]: row << 32 | position */
    unsigned long long *from, *to;
    unsigned *counts; /* [256][chunks] */
    long long n, chunks;
    int shift;
} dsi_cuda_index;

enum { K_BATCH_FIELDS = 8 };

/* One element of 1, 2, 4 or 8 bytes. */
typedef struct dsi_cuda_element {
    const void *from;
    void *to;
    long long bytes;
} dsi_cuda_element;

/* Rows of a data set, without padding, since graphs compare its bytes. y NULL:
 * the field is left out. Beside them one element (bytes 0: none) is copied, of
 * memory that is none of the batch's. */
typedef struct dsi_cuda_batch {
    long long n, rows; /* of the batch, of the data set */
    const void *index, *table;
    void *fault;
    int fields, plane;        /* elements of one channel */
    unsigned long long taken; /* blocks that have read this as `next`; 0 between launches */
    dsi_cuda_element copy;
    struct {
        const void *x;
        void *y;
        int elements, dtype; /* of a row; of y */
    } field[K_BATCH_FIELDS];
} dsi_cuda_batch;

/* gather_batch: the batch, or, in a graph, *next in the GPU's memory. The
 * launch then moves `index` and `copy.to` of that on, to the batch and the
 * element that follow. */
typedef struct dsi_cuda_batch_args {
    dsi_cuda_batch batch;
    dsi_cuda_batch *next;
} dsi_cuda_batch_args;

enum { K_SORT_CHUNK = 1024, K_SORT_DIGITS = 256 };
