/* device/cuda/kernels/dropout.cu: a mask by Philox4x32-10 (base/philox.h has it
 * in C), applied in the same pass. A thread draws 4 words.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "dropout.h"
#include "team.cuh"

DEVICE void philox4x32(unsigned k0, unsigned k1, unsigned long long counter, unsigned (&out)[4])
{
    out[0] = (unsigned)counter, out[1] = (unsigned)(counter >> 32), out[2] = 0, out[3] = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned long long a = 0xd2511f53ull * out[0], b = 0xcd9e8d57ull * out[2];
        unsigned word0 = (unsigned)(b >> 32) ^ out[1] ^ k0,
                 word2 = (unsigned)(a >> 32) ^ out[3] ^ k1;
        out[0] = word0, out[1] = (unsigned)b;
        out[2] = word2, out[3] = (unsigned)a;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
}

template <class C> DEVICE void dropout(const dsi_cuda_dropout_args &P)
{
    unsigned long long seed = P.fresh_seed ? *P.fresh_seed : P.seed;
    GRID_LOOP(quad, (P.count + 3) / 4)
    {
        unsigned word[4];
        philox4x32((unsigned)seed, (unsigned)(seed >> 32), P.offset + (unsigned long long)quad,
                   word);
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
