/* data/sampler.c: the order of an epoch, index for index as PyTorch's samplers
 * give it (torch/utils/data/sampler.py and distributed.py).
 * SPDX-License-Identifier: MIT */
#include "sampler.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* As torch's RandomSampler: whole permutations while they fit, then the
 * beginning of one more. The last one is drawn in full, as PyTorch does, so
 * that the generator is at the same place afterwards. */
void dsi_order_random(dsi_rng *g, int64_t len, bool replacement, int64_t *order, int64_t n)
{
    if (replacement) {
        for (int64_t i = 0; i < n; i++) order[i] = dsi_rng_below(g, 0, len);
        return;
    }
    int64_t done = 0;
    for (; n - done >= len; done += len) dsi_rng_permutation(g, order + done, len);
    if (done == n) return;
    int64_t *last = dsi_alloc((size_t)len * sizeof *last);
    dsi_rng_permutation(g, last, len);
    memcpy(order + done, last, (size_t)(n - done) * sizeof *order);
    dsi_free(last);
}

typedef struct placed {
    double place;
    int64_t index;
} placed;

/* The largest place first; of equal ones the smaller index. */
static int by_place(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->place != y->place) return x->place > y->place ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

void dsi_order_weighted(dsi_rng *g, const double *weights, int64_t len, bool replacement,
                        int64_t *order, int64_t n)
{
    if (replacement && n > 1) { /* one draw: as PyTorch, by the other way */
        dsi_rng_draw(g, weights, len, false, order, n);
        return;
    }
    double *place = dsi_alloc((size_t)len * sizeof *place);
    placed *all = dsi_alloc((size_t)len * sizeof *all);
    dsi_rng_race(g, weights, len, false, place);
    for (int64_t i = 0; i < len; i++) all[i] = (placed){place[i], i};
    qsort(all, (size_t)len, sizeof *all, by_place);
    for (int64_t i = 0; i < n; i++) order[i] = all[i].index;
    dsi_free(all);
    dsi_free(place);
}

/* len / ranks, rounded down with drop_last, else up. */
int64_t dsi_order_share(int64_t len, int ranks, bool drop_last)
{
    return drop_last ? len / ranks : (len + ranks - 1) / ranks;
}

/* Indices behind the end are those from the beginning: the repetition. */
void dsi_order_of_rank(const int64_t *order, int64_t len, int rank, int ranks, int64_t *share,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i++) share[i] = order[(rank + i * ranks) % len];
}

/* Index i of the share is in batch i / batch of this rank, which is global
 * batch i / batch, part `rank`. Beyond the end the order begins again. */
void dsi_order_of_batches(const int64_t *order, int64_t len, int64_t batch, int rank, int ranks,
                          int64_t *share, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        share[i] = order[((i / batch * ranks + rank) * batch + i % batch) % len];
}
