/* device/cuda/kernels/probe_wgmma.cu: each wrapper of ptx_wgmma.cuh, by one
 * warpgroup, for ds_report --gpu_selftest; between them, each layout of
 * operands.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "probe.h"
#include "ptx.cuh"
#include "ptx_wgmma.cuh"

enum { K = 16, M = 64 };

/* Puts element k of a line into an operand of lines of `bytes` along k, or of
 * 128 bytes across. */
template <bool ACROSS> DEVICE void put(char *to, int bytes, int line, int k, unsigned short bits)
{
    int at = ACROSS ? line / 64 * (K * 128) + k * 128 + line % 64 * 2 : line * bytes + k * 2;
    *(unsigned short *)&to[at ^ (at >> 7 & (bytes / 16 - 1)) << 4] = bits;
}

/* out [64,N] = a [64,16] b [16,N] */
template <int N, bool BF16, bool A_ACROSS, bool B_ACROSS, int BYTES>
DEVICE void probe_wgmma(dsi_cuda_probe_memory &m)
{
    DYNAMIC_SHARED(float4, shared);
    char *a = (char *)shared + (-shared_address(shared) & 1023), *b = a + M * 128;
    int t = threadIdx.x, lines = BYTES == 128 ? K_LINES_128 : K_LINES_64;
    for (int i = t; i < M * K; i += 128) put<A_ACROSS>(a, BYTES, i / K, i % K, m.a[i]);
    for (int i = t; i < K * N; i += 128) put<B_ACROSS>(b, BYTES, i % N, i / N, m.b[i]);
    fence_proxy_async();
    __syncthreads();
    float sums[N / 8][4] = {};
    wgmma_set(sums);
    wgmma_fence();
    wgmma<BF16, A_ACROSS, B_ACROSS>(
        sums, wgmma_operand(shared_address(a), lines, K * 128, A_ACROSS ? 1024 : BYTES * 8),
        wgmma_operand(shared_address(b), lines, K * 128, B_ACROSS ? 1024 : BYTES * 8));
    wgmma_commit();
    wgmma_wait(0);
    UNROLL
    for (int j = 0; j < N / 8; j++)
        UNROLL
        for (int e = 0; e < 4; e++)
            m.out[(t / 4 % 8 + t / 32 * 16 + e / 2 * 8) * N + j * 8 + t % 4 * 2 + e % 2] =
                __float_as_uint(sums[j][e]);
}
KERNEL(probe_wgmma_128, dsi_cuda_probe, 128) { probe_wgmma<128, false, false, false, 64>(*P.m); }
KERNEL(probe_wgmma_192, dsi_cuda_probe, 128) { probe_wgmma<192, true, true, false, 128>(*P.m); }
KERNEL(probe_wgmma_256, dsi_cuda_probe, 128) { probe_wgmma<256, false, false, true, 128>(*P.m); }
