/* data/sampler.h: the order of an epoch, index for index as PyTorch's samplers
 * give it.
 *
 * Invariants: orders are plain arrays of the caller; nothing is kept here. All
 * ranks make the same order, from the same seed, and each takes its share, so
 * that no rank has to send indices.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/rng.h"

/* RandomSampler: n indices below len, permutations one after the other, or
 * drawn with replacement. The numbers of g are drawn in PyTorch's order. */
void dsi_order_random(dsi_rng *g, int64_t len, bool replacement, int64_t *order, int64_t n);

/* WeightedRandomSampler: n indices below len, drawn with these weights, finite,
 * none below 0; without replacement at least n of them are above 0. */
void dsi_order_weighted(dsi_rng *g, const double *weights, int64_t len, bool replacement,
                        int64_t *order, int64_t n);

/* DistributedSampler: returns how many indices each rank gets, the same number
 * for all. Without drop_last the order is repeated from its start until it
 * divides; with drop_last the remainder is left out. */
int64_t dsi_order_share(int64_t len, int ranks, bool drop_last);
/* Puts the n = dsi_order_share() indices of a rank into share: every ranks-th
 * of order[0 .. len-1], from index `rank` on. */
void dsi_order_of_rank(const int64_t *order, int64_t len, int rank, int ranks, int64_t *share,
                       int64_t n);
/* The same by batches: the order is cut into global batches of ranks * batch
 * indices, of which the rank takes `batch` contiguous ones. */
void dsi_order_of_batches(const int64_t *order, int64_t len, int64_t batch, int rank, int ranks,
                          int64_t *share, int64_t n);
