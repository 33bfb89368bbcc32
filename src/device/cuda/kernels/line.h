/* device/cuda/kernels/line.h: a vector as an argument of the norms.
 * SPDX-License-Identifier: MIT */
#pragma once

/* One value a channel or a row; p NULL: absent. */
typedef struct dsi_cuda_line {
    void *p;
    long long s;
    int dtype;
} dsi_cuda_line;
