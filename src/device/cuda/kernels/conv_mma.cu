/* device/cuda/kernels/conv_mma.cu: convolutions of 16-bit operands by tensor
 * cores: the products of conv.cu, whose operands are gathered, in tiles of
 * tile_mma.cuh. Sums are float32, rounded once.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "conv.cuh"
#include "team.cuh"
#include "tile_mma.cuh"

union conv_mma_shared {
    mma_tile_stage stage[2];
    float tile[MMA_TILE * (MMA_TILE + 1)];
};

/* y, or dx */
template <bool BF16> DEVICE void conv_mma(const dsi_cuda_conv_args &P, bool dx)
{
    SHARED(conv_mma_shared, s, [1]);
    long long column = blockIdx.x * (long long)TILE, row = blockIdx.y * (long long)TILE,
              group = blockIdx.z;
    conv_weights a = {P.w, P.dtype, P, group, dx};
    conv_pixels b = {dx ? P.dy : P.x, P.dtype, P, group, dx};
    float acc[4][4] = {};
    mma_tile_product<BF16>(acc, s[0].stage, a, true, b, P.channels_last != 0, row, column, 0,
                           P.taps);
    mma_tile_result(acc, s[0].tile);
    conv_write(P, dx, s[0].tile, row, column, group);
}

/* blockIdx.z: group splits + split */
template <bool BF16> DEVICE void conv_dw_mma(const dsi_cuda_conv_args &P)
{
    SHARED(conv_mma_shared, s, [1]);
    long long column = blockIdx.x * (long long)TILE, row = blockIdx.y * (long long)TILE,
              group = blockIdx.z / P.splits, split = blockIdx.z % P.splits;
    long long begin = split * P.split_pixels;
    conv_outputs a = {P.dy, P.dtype, P, group};
    conv_taps b = {P.x, P.dtype, P, group};
    float acc[4][4] = {};
    mma_tile_product<BF16>(acc, s[0].stage, a, !P.channels_last, b, !P.channels_last, row, column,
                           begin, min(begin + P.split_pixels, (long long)P.pixels));
    mma_tile_result(acc, s[0].tile);
    conv_dw_write(P, s[0].tile, row, column, group, split);
}

#define CONV_MMA(suffix, bf16) \
    KERNEL(conv2d_tile_##suffix, dsi_cuda_conv_args, 256) { conv_mma<bf16>(P, false); } \
    KERNEL(conv2d_dx_tile_##suffix, dsi_cuda_conv_args, 256) { conv_mma<bf16>(P, true); } \
    KERNEL(conv2d_dw_tile_##suffix, dsi_cuda_conv_args, 256) { conv_dw_mma<bf16>(P); }
CONV_MMA(f16, false)
CONV_MMA(bf16, true)
