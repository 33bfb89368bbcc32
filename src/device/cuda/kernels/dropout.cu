/* device/cuda/kernels/dropout.cu: a mask by Philox4x32-10, applied in the same
 * pass. A thread draws 4 words.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "dropout.h"
#include "philox.cuh"
#include "team.cuh"

template <class C> DEVICE void dropout(const dsi_cuda_dropout_args &P)
{
    unsigned long long seed = P.fresh_seed ? *P.fresh_seed : P.seed;
    GRID_LOOP(quad, (P.count + 3) / 4)
    {
        unsigned word[4];
        philox4x32(seed, P.offset + (unsigned long long)quad, 0, word);
#pragma unroll 1
        for (int j = 0; j < 4 && quad * 4 + j < P.count; j++) {
            long long i = quad * 4 + j;
            unsigned w = j == 0 ? word[0] : j == 1 ? word[1] : j == 2 ? word[2] : word[3];
            bool kept = w < P.kept;
            P.keep[i] = kept;
            C x = load<C>(P.x.p, P.x.dtype, place_in(P.x, i));
            store<C>(P.y.p, P.y.dtype, place_in(P.y, i), kept ? (C)P.factor * x : (C)0);
        }
    }
}
FLOAT_AND_DOUBLE(dropout, dsi_cuda_dropout_args, 256)
