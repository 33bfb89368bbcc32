/* tests/gpu/emulator/ptx_wgmma.h: the wrappers of
 * src/device/cuda/kernels/ptx_wgmma.cuh; wgmma.cpp computes them, from the
 * descriptors' bits.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"

namespace cuda_on_cpu
{
struct Product {
    bool bf16, a_across, b_across;
    int columns;
};
void product(const Product &kind, float *d, unsigned long long a, unsigned long long b, int line);
void products_fence(int line);
void products_commit(int line);
void products_wait(int groups_left, int line);
} // namespace cuda_on_cpu

/* Of dynamic shared memory; no multiple of more than 16. */
unsigned shared_address(const void *p);
void fence_proxy_async();
template <int N> static inline void wgmma_set(float (&)[N][4]) {}
static inline void wgmma_fence(HERE) { cuda_on_cpu::products_fence(line); }
static inline void wgmma_commit(HERE) { cuda_on_cpu::products_commit(line); }
static inline void wgmma_wait(int groups_left, HERE)
{
    cuda_on_cpu::products_wait(groups_left, line);
}
template <bool BF16, bool A_ACROSS, bool B_ACROSS, int N>
static inline void wgmma(float (&d)[N][4], unsigned long long a, unsigned long long b, HERE)
{
    cuda_on_cpu::product({BF16, A_ACROSS, B_ACROSS, N * 8}, d[0], a, b, line);
}
