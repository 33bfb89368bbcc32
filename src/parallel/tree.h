/* parallel/tree.h: sums whose bits do not depend on how many ranks share the
 * work.
 *
 * Note [Fixed tree] A global batch is cut into micro batches of one size,
 * numbered c = micro step * ranks + rank, and each has a gradient of its own:
 * the same bits, whoever computes it. They are added as the leaves of one
 * binary tree:
 *
 *     ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))
 *
 * With 2^k ranks the lowest k levels lie across ranks: every rank gets all
 * pieces of its shard (all_to_all, which sends what reduce_scatter sends)
 * and adds them itself. The levels above lie in time: a counter in base 2, of
 * which a set bit is a sum that waits for its neighbour, so that n micro steps
 * keep log2(n) sums. 1, 2, 4, 8 ranks thus get the same bits of a batch of 2^m
 * micro batches, with any communicator. All sums are float32, of 16-bit
 * gradients too. The loss of a micro batch counts 1 / (ranks * micro steps)
 * times from the start, so that a gradient does not depend on who computes it
 * when it is tiny.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "flat.h"

typedef struct dsi_tree dsi_tree;

dsi_tree *dsi_tree_new(const dsi_flat *f); /* borrows f */
void dsi_tree_free(dsi_tree *t);

void dsi_tree_next(dsi_tree *t); /* a pass begins: the next micro step */
/* pieces [ranks][shard_size] of unit k: the ranks' gradients of this micro
 * step; they are overwritten. */
ds_status dsi_tree_add(dsi_tree *t, int k, ds_tensor *pieces);
/* The sum of all passes, float32 [f->owned], borrowed; NULL with the message.
 * More passes may follow. */
ds_tensor *dsi_tree_total(dsi_tree *t);
void dsi_tree_reset(dsi_tree *t);
int64_t dsi_tree_bytes(const dsi_tree *t);
