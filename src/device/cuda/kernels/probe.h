/* device/cuda/kernels/probe.h: memory of probe.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

/* On the GPU: operands of one warp, row-major, and what it found. */
typedef struct dsi_cuda_probe_memory {
    unsigned short a[16 * 16], b[16 * 8]; /* 16-bit floats; or any bits */
    float c[16 * 8];
    unsigned out[128], late[128]; /* late: of cp.async's second group */
} dsi_cuda_probe_memory;

typedef struct dsi_cuda_probe {
    dsi_cuda_probe_memory *m;
} dsi_cuda_probe;
