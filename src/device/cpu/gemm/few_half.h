/* device/cpu/gemm/few_half.h: products of a few rows of bfloat16, such as the
 * tokens of a step of generation.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

/* Rows that have the same bits alone and together. */
#define FEW_HALF_ROWS 8

/* True if few_half is faster than other ways. */
bool KERNEL(dsi_few_half_takes)(const dsi_view *a, const dsi_view *b, const dsi_view *y);
#define few_half_takes KERNEL(dsi_few_half_takes)

/* y [1,M,N] = a [1,M,K] b [1,K,N] + bias [N], M <= FEW_HALF_ROWS. a and b are
 * bfloat16, and b has unit stride along K or N; bias.p is NULL if there is
 * none. */
ds_status KERNEL(dsi_few_half)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y);
#define few_half KERNEL(dsi_few_half)
