/* parallel/reduce.h: gradients of several ranks, summed while backward goes on.
 *
 * Note [Buckets] A bucket is a unit of the layout (flat.h). Backward writes a
 * parameter's gradient to its place in the bucket (or a hook copies what an op
 * has made elsewhere); a bucket that is full leaves: one all_reduce or
 * reduce_scatter is begun and backward goes on. Buckets leave in their order on
 * every rank, whatever the order in which they fill. Those that lack a
 * parameter when the pass ends (it was not used on this rank) leave then, with
 * zeros.
 *
 *     whole      stages 0, 1, DDP: gradients are added up here while no pass is the last one, so that they
 *                are nowhere else; in the last pass each bucket is reduced and stays: all of it, or at
 *                stage 1 this rank's slice, is the sum
 *     partition  stages 2, 3: each pass reduces; a bucket lives only until its sum has arrived, of which
 *                this rank adds its own slice to what it has. There are two at a time
 *
 * The result is the mean over all ranks: of an expert that not all of them
 * have, the sum over those that have it, whose tokens are those of all, divided
 * by the number of all. Every element is summed alone, in the order of ranks
 * (comm.h), so that neither the kind of collective nor the size of buckets
 * changes a bit.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_PARALLEL_REDUCE_H
#define DSI_PARALLEL_REDUCE_H

#include "comm/comm.h"
#include "flat.h"

typedef struct dsi_reduce_opts {
    bool partition;
    bool all_reduce;  /* where slices have owners too, not reduce_scatter */
    bool overlap;     /* else a bucket is waited for as soon as it has left */
    bool prescale;    /* divide by the number of ranks before the sum, not after it */
    double predivide; /* with f: by f before, by ranks / f after; 0: 1 */
    bool squares;     /* the sums' are added up on the way, where they can be: dsi_reduce_slices */
    bool tree; /* the bits do not depend on the number of ranks: Note [Fixed tree]; partition */
    ds_dtype accum; /* what gradients of several passes are added up in */
    ds_dtype comm;  /* on the wire */
} dsi_reduce_opts;

typedef struct dsi_reduce dsi_reduce;

/* Hooks the parameters of f. Borrows f and comm (NULL: one rank, nothing is
 * sent). */
dsi_reduce *dsi_reduce_new(const dsi_flat *f, ds_comm *comm, const dsi_reduce_opts *o);
void dsi_reduce_free(dsi_reduce *r);

/* Lets go of memory of earlier gradients of which somebody has kept a part,
 * besides parameters: the next ones lie elsewhere. */
void dsi_reduce_spare_kept(dsi_reduce *r);

/* Around a backward pass; last: gradients are complete with it. */
ds_status dsi_reduce_begin(dsi_reduce *r, bool last);
ds_status dsi_reduce_end(dsi_reduce *r);  /* of a pass that did not fail */
ds_status dsi_reduce_wait(dsi_reduce *r); /* until all that left has arrived */

/* a last pass came since the gradients were forgotten */
bool dsi_reduce_complete(const dsi_reduce *r);

double dsi_reduce_seconds(const dsi_reduce *r); /* of the last pass, spent on sending and waiting */

/* After the last pass: the mean gradient of parameter i's own elements, a view
 * in the current scope; NULL: it has none, or on one rank no gradient came. */
ds_tensor *dsi_reduce_grad(const dsi_reduce *r, int i);
/* The own slices of all gradients, at most units, without what lies between
 * parameters but zeros; but *squares for those whose squares are there. These
 * are of some elements on this rank, of each on one of the ranks. */
int dsi_reduce_slices(const dsi_reduce *r, dsi_view *views, double *squares);

void dsi_reduce_reset(dsi_reduce *r); /* the gradients; their memory stays for the next ones */
int64_t dsi_reduce_bytes(const dsi_reduce *r); /* of that memory */

#endif
