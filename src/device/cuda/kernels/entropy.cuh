/* device/cuda/kernels/entropy.cuh: rows of cross entropies, and small ones by a
 * block: a warp a row, a lane a class (lanes of softmax.h).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "common.cuh"
#include "softmax.h"
#include "team.cuh"

enum { MEAN, SUM, NONE }; /* ds_reduction */

DEVICE long long row_place(const long long *s, unsigned row, unsigned inner)
{
    return (long long)(row / inner) * s[0] + (long long)(row % inner) * s[2];
}
DEVICE long long pair_place(const long long *s, unsigned row, unsigned inner)
{
    return (long long)(row / inner) * s[0] + (long long)(row % inner) * s[1];
}

/* Not a part of a multiply-add, so that all kernels of a gradient have its
 * bits. */
DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }
DEVICE double rounded_product(double a, double b) { return __dmul_rn(a, b); }

/* The row's label; -1: it is ignored, or bad, which sets the fault flag. */
DEVICE long long row_label(const dsi_cuda_entropy_args &P, long long row)
{
    long long label = P.label[pair_place(P.label_s, (unsigned)row, P.inner)];
    if (label == P.ignore_index) return -1;
    if (label >= 0 && label < P.columns) return label;
    if (threadIdx.x % P.team == 0)
        set_fault(P.fault, K_FAULT_LABEL, label, row, -1, P.columns);
    return -1;
}

/* ---- few rows: P.lanes ---- */

/* The label of this lane's rows, lane and lane + 32; loaded long before it is
 * needed. */
struct lanes_labels {
    long long of[K_FEW_ROWS / 32];
};
DEVICE lanes_labels labels_of(const dsi_cuda_entropy_args &P)
{
    lanes_labels labels;
UNROLL
    for (int i = 0; i < K_FEW_ROWS / 32; i++) {
        int row = min((int)threadIdx.x % 32 + i * 32, (int)P.rows - 1);
        labels.of[i] = P.label[pair_place(P.label_s, (unsigned)row, P.inner)];
    }
    return labels;
}

/* By which the sum of losses is divided. The same in all threads. */
DEVICE float lanes_divisor(const dsi_cuda_entropy_args &P, const lanes_labels &labels)
{
    int count = 0;
UNROLL
    for (int i = 0; i < K_FEW_ROWS / 32; i++) {
        long long label = labels.of[i];
        bool counts = (int)threadIdx.x % 32 + i * 32 < (int)P.rows && label >= 0 &&
                      label < P.columns && label != P.ignore_index;
        count += __popc(__ballot_sync(ALL_LANES, counts));
    }
    return P.reduction == MEAN ? (float)count : 1.f;
}

/* A row by a warp, whose lanes have a class's x each, -INFINITY beyond the
 * last: stores loss and lse; dx, for the loss's gradient g / divisor. */
DEVICE float lanes_row(const dsi_cuda_entropy_args &P, int row, float v, float g, float *losses)
{
    int lane = threadIdx.x % 32;
    long long label = row_label(P, row);
    float most = lanes_max(v), e = lane < (int)P.columns ? exp_of(v - most) : 0.f,
          sum = lanes_sum(e), log_sum = log_of(sum), own = __shfl_sync(ALL_LANES, v, (int)label & 31);
    if (lane == 0) {
        losses[row] = label < 0 ? 0.f : log_sum + (most - own);
        ((float *)P.lse)[pair_place(P.lse_s, row, P.inner)] = most + log_sum;
    }
    return label < 0 ? 0.f : rounded_product(e, g / sum) - (lane == label ? g : 0.f);
}

/* Loss, divisor and seed, by a warp. */
DEVICE void lanes_total(const dsi_cuda_entropy_args &P, float divisor, const float *losses)
{
    double loss = 0;
#pragma unroll 1
    for (int row = threadIdx.x % 32; row < (int)P.rows; row += 32) loss += (double)losses[row];
    loss = lanes_sum(loss);
    if (threadIdx.x % 32) return;
    *(float *)P.divisor = divisor;
    *(float *)P.loss = (float)(loss / (double)divisor);
    if (P.seed) *(float *)P.seed = (float)P.seed_value;
}
