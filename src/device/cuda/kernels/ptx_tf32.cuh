/* device/cuda/kernels/ptx_tf32.cuh: ptx.cuh for tf32, which are float32 without
 * their last 13 bits.
 * Source: PTX ISA, matrix fragments of mma.m16n8k8.
 * SPDX-License-Identifier: MIT */
#pragma once

#ifndef CUDA_ON_CPU

/* d [16,8] = a [16,8] b [8,8] + c, float32 sums, of a warp */
DEVICE void mma_tf32_1688(float *d, const unsigned *a, const unsigned *b, const float *c)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]),
                   "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

#endif
