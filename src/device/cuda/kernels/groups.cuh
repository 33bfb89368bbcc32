/* device/cuda/kernels/groups.cuh: which part of the products of groups a block
 * computes.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "groups.h"

#include "common.cuh"
#include "team.cuh"

/* The work of a block: rows `row` .. `end` - 1 of a product, sums over `from` ..
 * `to` - 1, of group g; g < 0: nothing. */
struct group_tile {
    int g;
    long long row, end, from, to;
};

/* The tile of `edge` rows of number blockIdx.x, counted group by group; the same
 * in each warp. */
DEVICE group_tile group_tile_of(const dsi_cuda_groups_args &P, int edge)
{
    int lane = threadIdx.x % 32, tile = (int)blockIdx.x;
    for (int g = 0; g < P.groups; g += 32) {
        int first = 0, end = 0;
        if (g + lane < P.groups) first = (int)P.begin[g + lane], end = (int)P.begin[g + lane + 1];
        int n = (end - first + edge - 1) / edge, upto = n;
        for (int d = 1; d < 32; d *= 2) {
            int other = __shfl_up_sync(ALL_LANES, upto, d);
            if (lane >= d) upto += other;
        }
        unsigned past = __ballot_sync(ALL_LANES, upto <= tile); /* lanes 0 .. at - 1 */
        int at = __popc(past), before = upto - n;
        if (at < 32) {
            first = __shfl_sync(ALL_LANES, first + (tile - before) * edge, at);
            return {g + at, first, __shfl_sync(ALL_LANES, end, at), 0, P.k};
        }
        tile -= __shfl_sync(ALL_LANES, upto, 31);
    }
    return {-1, 0, 0, 0, 0};
}

/* The same of either kind of product, in tiles of `edge` rows. */
DEVICE group_tile group_tile_find(const dsi_cuda_groups_args &P, int edge)
{
    if (!P.over) return group_tile_of(P, edge);
    int g = (int)blockIdx.z;
    return {P.w[g] ? g : -1, blockIdx.x * (long long)edge, P.m, P.begin[g], P.begin[g + 1]};
}
