/* data/sampler.h: the order of an epoch, index for index as PyTorch's samplers
 * give it.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DATA_SAMPLER_H
#define DSI_DATA_SAMPLER_H

#include "base/rng.h"

/* RandomSampler: n indices below len: permutations one after the other, or
 * drawn with replacement. */
void dsi_order_random(dsi_rng *g, int64_t len, bool replacement, int64_t *order, int64_t n);

/* DistributedSampler: every rank gets the same number of indices. Without
 * drop_last the order is repeated from its start until it divides; with it the
 * rest is left out. */
int64_t dsi_order_share(int64_t len, int ranks, bool drop_last);
/* order[0..len-1] -> share[0..dsi_order_share() - 1], every ranks-th from
 * `rank` on. */
void dsi_order_of_rank(const int64_t *order, int64_t len, int rank, int ranks, int64_t *share,
                       int64_t n);
/* The same in stretches of `batch`, of which every ranks-th is the rank's. */
void dsi_order_of_batches(const int64_t *order, int64_t len, int64_t batch, int rank, int ranks,
                          int64_t *share, int64_t n);

#endif
