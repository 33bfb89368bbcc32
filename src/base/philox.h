/* base/philox.h: Philox4x32-10, random numbers by counter: four words are a
 * function of a key and a counter alone, so that any number of threads may draw
 * at once, in any order. Source: Salmon, Moraes, Dror, Shaw: Parallel random
 * numbers: as easy as 1, 2, 3 (SC 2011).
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdint.h>

static inline void dsi_philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < 4; i++) out[i] = counter[i];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53 * out[0], b = (uint64_t)0xcd9e8d57 * out[2];
        uint32_t word0 = (uint32_t)(b >> 32) ^ out[1] ^ k0;
        uint32_t word2 = (uint32_t)(a >> 32) ^ out[3] ^ k1;
        out[0] = word0, out[1] = (uint32_t)b;
        out[2] = word2, out[3] = (uint32_t)a;
        k0 += 0x9e3779b9, k1 += 0xbb67ae85;
    }
}

/* The word of element i in the stream that kernels.h describes at dropout. */
static inline uint32_t dsi_philox_word(uint64_t seed, uint64_t offset, uint64_t i)
{
    uint64_t at = offset + i / 4;
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), 0, 0};
    uint32_t out[4];
    dsi_philox4x32(key, counter, out);
    return out[i % 4];
}

/* The word of weight [i,j] of a batch, in the stream that kernels.h describes at
 * attention_dropout. */
static inline uint32_t dsi_philox_weight(uint64_t seed, uint64_t batch, uint32_t i, uint32_t j)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {j / 16 * 8 + j % 8, i / 16 * 8 + i % 8, (uint32_t)batch,
                                 (uint32_t)(batch >> 32)};
    uint32_t out[4];
    dsi_philox4x32(key, counter, out);
    return out[i / 8 % 2 * 2 + j / 8 % 2];
}
