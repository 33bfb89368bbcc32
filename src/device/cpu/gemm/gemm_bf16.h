/* device/cpu/gemm/gemm_bf16.h: products of floating-point matrices by the
 * instructions of newer x86 processors for bfloat16: AMX, AVX512_BF16.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

/* True if bf16_matmul is faster for bfloat16 matrices [m,k] and [k,n]. False if
 * this processor, or this build, has no such instructions. */
bool KERNEL(dsi_bf16_takes)(int64_t m, int64_t n, int64_t k);
#define bf16_takes KERNEL(dsi_bf16_takes)

/* y [B,M,N] = a [B,M,K] b [B,K,N] + bias [N], any strides, K >= 1. a and b are
 * bfloat16; y is bfloat16 or float32; bias.p is NULL if there is none. */
ds_status KERNEL(dsi_bf16_matmul)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y);
#define bf16_matmul KERNEL(dsi_bf16_matmul)

/* True if bf16_matmul_parts is faster for float16 or float32 matrices, which
 * takes AMX. */
bool KERNEL(dsi_bf16_takes_parts)(int64_t m, int64_t n, int64_t k);
#define bf16_takes_parts KERNEL(dsi_bf16_takes_parts)

/* The same product of float16 or float32 matrices; y has their dtype, or
 * float32. !*exact: y is not to be used, because a or b have numbers that are
 * not finite, or so large or small that parts of them are not. */
ds_status KERNEL(dsi_bf16_matmul_parts)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias,
                                        dsi_view y, bool *exact);
#define bf16_matmul_parts KERNEL(dsi_bf16_matmul_parts)

/* A batch with one b, whose rows follow each other, is one matrix of B M rows. */
static inline bool is_one_matrix(const dsi_view *a, const dsi_view *b, const dsi_view *y)
{
    return b->s[0] == 0 && a->s[0] == y->d[1] * a->s[1] && y->s[0] == y->d[1] * y->s[1];
}

/* v [B,M,N] as [B,N,M]. */
static inline dsi_view view_transposed(dsi_view v)
{
    int64_t d = v.d[1], step = v.s[1];
    v.d[1] = v.d[2], v.s[1] = v.s[2];
    v.d[2] = d, v.s[2] = step;
    return v;
}
