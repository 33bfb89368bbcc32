/* device/cuda/kernels/attention_dropout.cuh: which weights of attention dropout
 * keeps: a function of seed, batch, query and key, so that each kernel draws its
 * own tiles again and no mask is stored.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "attention.h"
#include "philox.cuh"

DEVICE unsigned long long dropout_seed(const dsi_cuda_attention_args &P)
{
    return P.fresh_seed ? *P.fresh_seed : P.seed;
}

/* The words of 4 weights: word 2 a + b of query i + 8 a and key j + 8 b, for i
 * and j that are below 8 modulo 16. A thread of mma's fragments holds all 4,
 * whether its rows are queries or keys. */
DEVICE void dropout_words(const dsi_cuda_attention_args &P, unsigned long long seed,
                          long long batch, unsigned i, unsigned j, unsigned (&word)[4])
{
    unsigned query = i / 16 * 8 + i % 8, key = j / 16 * 8 + j % 8;
    philox4x32(seed, (unsigned long long)query << 32 | key, P.offset + (unsigned long long)batch,
               word);
}
