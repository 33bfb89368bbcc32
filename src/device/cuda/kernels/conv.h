/* device/cuda/kernels/conv.h: arguments of conv.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* Division of numbers below 2^31 by d: (high word of n mul + n) >> shift. */
typedef struct dsi_cuda_divisor {
    unsigned d, mul, shift;
} dsi_cuda_divisor;

/* A pooled form [n, channels, p, q] of an image (device/kernels.h): its values,
 * their places h W + w in a plane, and, beside a gradient, the maxima themselves:
 * with relu a value counts where its maximum is positive, and as an output it is
 * at least 0. */
typedef struct dsi_cuda_pooled {
    void *value;
    const void *max;
    int *index;
    long long vs[4], ms[4], is[4];
    int p, q, relu;
    dsi_cuda_divisor windows, row; /* p q and q */
} dsi_cuda_pooled;

/* x [n, groups c, h, w], w [groups k, c, r, s], y [n, groups k, p, q]; x and y
 * may be gradients; strides in elements. A pixel is (n, p, q), or (n, h, w) in
 * the backward of x; plane and row are its divisors. A tap is (channel, r, s),
 * or (r, s, channel) if channels_last; outer and inner are its divisors. In the
 * backward of w `columns` are the taps, and one more for db, if it is there; the
 * sum over `pixels` pixels is cut into `splits` parts of split_pixels, each of
 * which writes its own dw [k,columns], float32, to part. */
typedef struct dsi_cuda_conv_args {
    const void *x, *w, *bias, *dy;
    void *out, *db; /* out: y, dx, dw */
    float *part;
    long long xs[4], ws[4], ys[4], bias_s, db_s;
    int n, c, h, width, k, r, s, p, q, groups;
    int stride[2], padding[2], dilation[2];
    int pixels, taps, columns, channels_last, dtype, bias_dtype;
    dsi_cuda_divisor plane, row, outer, inner, by_stride[2];
    int splits, split_pixels;

    int row_blocks;         /* of conv_small.cu: parts that a group's channels are cut into */
    dsi_cuda_pooled pooled; /* value NULL: none */
} dsi_cuda_conv_args;

/* Of conv2d_back_pooled and conv2d_back_scanned: warps of a block; columns of dw
 * that a warp computes; windows that a block of dw has in shared memory at once, of
 * 16 bytes. */
enum { K_BACK_WARPS = 16, K_BACK_COLUMNS = 8, K_BACK_HELD = 1024 };
enum { K_SCANNED = 8 }; /* channels of dx_scanned's blocks */

/* dx and dw of one gradient in pooled form: blocks from dw_first on are dw's. They
 * have teams of 2^team_bits threads, which share the windows that their block
 * holds. Divisors of dx's blocks: parts of a group's channels, groups, and 32
 * pixels of a sample; of dw's: blocks of a channel out, and channels out of a group;
 * width: of dx's places in a plane of dy. */
typedef struct dsi_cuda_conv_back {
    dsi_cuda_conv_args dx, dw;
    unsigned dw_first;
    int team_bits;
    dsi_cuda_divisor parts, groups, tiles, blocks, outputs, width;
} dsi_cuda_conv_back;
