/* device/cuda/kernels/probe.cu: each wrapper of ptx.cuh and
 * ptx_tf32.cuh alone, by one warp: for
 * ds_report --gpu_selftest, which knows the results. Fragments: PTX ISA, matrix
 * fragments of mma.m16n8k16.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "probe.h"
#include "ptx.cuh"
#include "ptx_tf32.cuh"

DEVICE unsigned pair(const unsigned short *low, const unsigned short *high)
{
    return *low | (unsigned)*high << 16;
}

/* out = a [16,16] b [16,8] + c [16,8], float32 */
template <bool BF16> DEVICE void probe_mma(dsi_cuda_probe_memory &m)
{
    unsigned a[4], b[2];
    int lane = threadIdx.x, group = lane / 4, at = lane % 4 * 2;
    float c[4], d[4] = {};
    UNROLL
    for (int i = 0; i < 4; i++) {
        const unsigned short *p = &m.a[(group + i % 2 * 8) * 16 + at + i / 2 * 8];
        a[i] = pair(p, p + 1);
        c[i] = m.c[(group + i / 2 * 8) * 8 + at + i % 2];
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        const unsigned short *p = &m.b[(at + i * 8) * 8 + group];
        b[i] = pair(p, p + 8);
    }
    if (BF16)
        mma_bf16_16816(d, a, b, c);
    else
        mma_f16_16816(d, a, b, c);
    UNROLL
    for (int i = 0; i < 4; i++) m.out[(group + i / 2 * 8) * 8 + at + i % 2] = __float_as_uint(d[i]);
}
KERNEL(probe_mma_f16_16816, dsi_cuda_probe, 32) { probe_mma<false>(*P.m); }
KERNEL(probe_mma_bf16_16816, dsi_cuda_probe, 32) { probe_mma<true>(*P.m); }

/* out = a [16,8] b [8,8] + c [16,8]; a and b are float32, in the memory of 16-bit
 * ones */
KERNEL(probe_mma_tf32_1688, dsi_cuda_probe, 32)
{
    const unsigned *x = (const unsigned *)P.m->a, *y = (const unsigned *)P.m->b;
    unsigned a[4], b[2];
    int lane = threadIdx.x, group = lane / 4, at = lane % 4;
    float c[4], d[4] = {};
    for (int i = 0; i < 4; i++) {
        a[i] = x[(group + i % 2 * 8) * 8 + at + i / 2 * 4];
        c[i] = P.m->c[(group + i / 2 * 8) * 8 + at * 2 + i % 2];
    }
    for (int i = 0; i < 2; i++) b[i] = y[(at + i * 4) * 8 + group];
    mma_tf32_1688(d, a, b, c);
    for (int i = 0; i < 4; i++)
        P.m->out[(group + i / 2 * 8) * 8 + at * 2 + i % 2] = __float_as_uint(d[i]);
}

/* out[lane][i]: what the lane gets of matrix i, of four [8,8] */
template <bool TRANS> DEVICE void probe_ldmatrix(dsi_cuda_probe_memory &m)
{
    SHARED(float4, matrix, [32]);
    unsigned short *row = (unsigned short *)&matrix[threadIdx.x];
    for (int i = 0; i < 8; i++) row[i] = m.a[threadIdx.x * 8 + i];
    __syncthreads();
    unsigned r[4];
    if (TRANS)
        ldmatrix_x4_trans(r, row);
    else
        ldmatrix_x4(r, row);
    for (int i = 0; i < 4; i++) m.out[threadIdx.x * 4 + i] = r[i];
}
KERNEL(probe_ldmatrix_x4, dsi_cuda_probe, 32) { probe_ldmatrix<false>(*P.m); }
KERNEL(probe_ldmatrix_x4_trans, dsi_cuda_probe, 32) { probe_ldmatrix<true>(*P.m); }

/* Lane l copies 16 bytes of a, of which l % 17 count, in a first group, and
 * those of the lane beside it in a second one. */
template <class Copy> DEVICE void probe_copy(dsi_cuda_probe_memory &m, Copy copy)
{
    SHARED(float4, first, [32]);
    SHARED(float4, second, [32]);
    int lane = threadIdx.x;
    copy(&first[lane], &m.a[lane * 8], lane % 17);
    cp_async_commit();
    copy(&second[lane], &m.a[(lane ^ 1) * 8], 16);
    cp_async_commit();
    cp_async_wait(1);
    __syncthreads();
    for (int i = 0; i < 4; i++) m.out[lane * 4 + i] = ((const unsigned *)&first[lane ^ 5])[i];
    cp_async_wait(0);
    __syncthreads();
    for (int i = 0; i < 4; i++) m.late[lane * 4 + i] = ((const unsigned *)&second[lane ^ 5])[i];
}
KERNEL(probe_cp_async16, dsi_cuda_probe, 32) { probe_copy(*P.m, cp_async16); }
KERNEL(probe_cp_async16_again, dsi_cuda_probe, 32) { probe_copy(*P.m, cp_async16_again); }
