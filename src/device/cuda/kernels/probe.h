/* device/cuda/kernels/probe.h: memory of probe.cu and probe_wgmma.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

/* On the GPU: operands of one warp or warpgroup, row-major, and what it found. */
typedef struct dsi_cuda_probe_memory {
    unsigned short a[64 * 16], b[16 * 256]; /* 16-bit floats; or any bits */
    float c[16 * 8];
    unsigned out[64 * 256], late[128]; /* late: of cp.async's second group */
} dsi_cuda_probe_memory;

typedef struct dsi_cuda_probe {
    dsi_cuda_probe_memory *m;
} dsi_cuda_probe;
