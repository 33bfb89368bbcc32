/* device/cuda/kernels/dropout.cu: a mask by Philox4x32-10, applied in the same
 * pass. A thread draws 4 words.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "dropout.h"
#include "philox.cuh"
#include "team.cuh"
#include "vector.cuh"

/* Four neighbours of x, y without gaps. */
DEVICE void dropout_quad(const dsi_cuda_dropout_args &P, long long quad, const unsigned (&word)[4])
{
    float v[4];
    unsigned kept = 0;
    quad_load(v, P.x.p, P.x.dtype, quad * 4);
UNROLL
    for (int j = 0; j < 4; j++) {
        bool keep = word[j] < P.kept;
        v[j] = keep ? (float)P.factor * v[j] : 0.f;
        kept |= (unsigned)keep << 8 * j;
    }
    ((unsigned *)P.keep)[quad] = kept;
    quad_store(P.y.p, P.y.dtype, quad * 4, v);
}

template <class C> DEVICE void dropout(const dsi_cuda_dropout_args &P)
{
    unsigned long long seed = P.fresh_seed ? *P.fresh_seed : P.seed;
    GRID_LOOP(quad, (P.count + 3) / 4)
    {
        unsigned word[4];
        philox4x32(seed, P.offset + (unsigned long long)quad, 0, word);
        if (sizeof(C) == 4 && P.quads && quad * 4 + 4 <= P.count) {
            dropout_quad(P, quad, word);
            continue;
        }
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
