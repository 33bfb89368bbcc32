/* device/cpu/gemm/int8.h: matrices of 8 bits, and products with them, for
 * drafts of tokens (src/models). Not part of the contract of devices: only what
 * runs in the host's memory has them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A matrix [n,k] of 8 bits: element (i, j) is q[i][j] scale[i][j / 64]. A row of
 * q has whole groups, with zeros behind k. */
#define DSI_INT8_GROUP 64
typedef struct dsi_int8_matrix {
    int64_t n, k, groups; /* groups of a row: k / DSI_INT8_GROUP, rounded up */
    int8_t *q;            /* [n, groups DSI_INT8_GROUP] */
    float *scale;         /* [n, groups] */
} dsi_int8_matrix;

/* Compiled once for each instruction set. */
typedef struct dsi_cpu_int8 {
    /* The nearest such matrix to float32 w, whose rows, or columns if
     * transposed, are contiguous and `stride` elements apart: the largest
     * magnitude of a group becomes 127. */
    void (*quantize)(const float *w, bool transposed, int64_t stride, const dsi_int8_matrix *to);
    /* y [m,n] = x [m,k] w^T + bias [n], float32; bias NULL: none. A row has the
     * same bits among others. */
    void (*linear)(int64_t m, const float *x, const dsi_int8_matrix *w, const float *bias,
                   float *y);
} dsi_cpu_int8;

/* Those of a set of instructions, as dsi_cpu_table_of. */
const dsi_cpu_int8 *dsi_cpu_int8_of(const char *isa);
