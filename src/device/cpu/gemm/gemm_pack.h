/* device/cpu/gemm/gemm_pack.h: blocks of a matrix, packed for a product of matrices (gemm.c).
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_GEMM_GEMM_PACK_H
#define DSI_DEVICE_CPU_GEMM_GEMM_PACK_H

#include "device/cpu/simd/isa.h"

#define pack_vectors KERNEL(dsi_pack_vectors)

/* n vectors of k elements (float32 or 16 bits), `across` apart, their elements `along` apart -> panels of `width`
 * vectors. What lies beyond the last vector of the last panel is not written. */
typedef struct Packing {
    const void *from;
    ds_dtype dtype;
    int64_t across, along, n, k;
    int width;
    float *to; /* [panels][k][width] */
} Packing;

void pack_vectors(const Packing *x);
#endif
