/* device/cuda/kernels/philox.cuh: Philox4x32-10, as base/philox.h has it in C.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "common.cuh"

/* low, high: words 0, 1 and 2, 3 of the counter. */
DEVICE void philox4x32(unsigned long long key, unsigned long long low, unsigned long long high,
                       unsigned (&out)[4])
{
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
    out[0] = (unsigned)low, out[1] = (unsigned)(low >> 32);
    out[2] = (unsigned)high, out[3] = (unsigned)(high >> 32);
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
