/* device/cuda/kernels/matrix.cuh: a matrix of any strides as an operand of
 * tile.cuh.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "place.cuh"
#include "team.cuh"

struct matrix_operand {
    const void *p;
    int dtype;
    long long first, n, k, s, ks; /* sizes and strides along the tile and along k */
    bool ones;                    /* element n is a line of ones */
    DEVICE_MEMBER long long place(long long i, long long j) const
    {
        return j >= k ? OUTSIDE : i < n ? first + i * s + j * ks : ones && i == n ? ONE : OUTSIDE;
    }
};
