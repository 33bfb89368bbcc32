/* device/cuda/kernels/groups.h: arguments of groups.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

enum { K_GROUPS = 128 }; /* of a launch, at most */

/* Rows begin[g] .. begin[g + 1] - 1 of a and y, or of a and b, are of group g.
 * Strides in elements.
 *   over 0: y[r,:] = a[r,:] w[g]: a [rows,k], w[g] [k,n], y [rows,n]
 *   over 1: w[g] [m,n] = sum over g's rows of a[r,:]^T b[r,:]: a [rows,m], b [rows,n];
 *           a group whose w is NULL is left out */
typedef struct dsi_cuda_groups_args {
    const void *a, *b;
    void *y;
    const long long *begin; /* [groups + 1] */
    long long m, n, k, as[2], bs[2], ws[2], ys[2];
    int groups, over, dtype, whole; /* whole: of groups_rows, lines of a and w are aligned for
                                       4 elements; of groups_mma.cu, rows of y or w for 8 */
    void *w[K_GROUPS];
} dsi_cuda_groups_args;
