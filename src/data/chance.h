/* data/chance.h: random numbers of a sample: a hash of (seed, epoch, i), by
 * splitmix64 (Steele, Lea and Flood, OOPSLA 2014), so that the same sample of
 * the same epoch comes out the same on any worker and after a resume.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdint.h>

typedef struct dsi_chance {
    uint64_t seed;
    int64_t epoch;
} dsi_chance;

/* One step of splitmix64: the number after z. */
static inline uint64_t dsi_chance_next(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The first random number of sample i; `kind` separates transforms that have
 * the same seed. */
static inline uint64_t dsi_chance_first(const dsi_chance *c, int64_t i, uint64_t kind)
{
    uint64_t z = dsi_chance_next(c->seed + kind);
    return dsi_chance_next(dsi_chance_next(z ^ (uint64_t)c->epoch) ^ (uint64_t)i);
}

/* A draw scaled to 0 .. n - 1, n below 2^32. */
static inline int64_t dsi_chance_below(uint64_t draw, int64_t n)
{
    return (int64_t)((draw >> 32) * (uint64_t)n >> 32);
}

/* A draw as a number of [0, 1). */
static inline double dsi_chance_unit(uint64_t draw) { return (double)(draw >> 11) * 0x1p-53; }
