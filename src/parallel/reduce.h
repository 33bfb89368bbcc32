/* parallel/reduce.h: gradients of several ranks, summed while backward runs.
 *
 * Note [Buckets] A bucket is a unit of the layout (flat.h). Backward writes a
 * parameter's gradient to its place in the bucket (or a hook copies what an op
 * has made elsewhere); a full bucket is sent: one all_reduce or reduce_scatter
 * starts and backward continues. Buckets are sent in their order on every rank,
 * whatever the order in which they fill. Buckets that lack a parameter when the
 * pass ends (it was not used on this rank) are sent then, with zeros.
 *
 *     whole      stages 0, 1, DDP. Passes before the last one only add to the
 *                bucket. The last pass reduces it. Then the bucket has the sum:
 *                all of it, or at stage 1 this rank's shard.
 *     partition  stages 2, 3. Each pass reduces each bucket. This rank adds its
 *                shard of the sum to that of earlier passes, and the bucket is
 *                freed. At most two buckets exist at a time.
 *
 * The result is the mean over all ranks. The gradient of an expert that only
 * some ranks have is the sum over those ranks, which have seen the tokens of
 * all, divided by the number of all ranks. Every element is summed by itself,
 * in the order of ranks (comm.h), so that neither the kind of collective nor
 * the size of buckets changes a bit.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "comm/comm.h"
#include "flat.h"

typedef struct dsi_reduce_opts {
    bool partition;
    bool all_reduce;  /* all_reduce instead of reduce_scatter, even if ranks have shards */
    bool overlap;     /* else a bucket is waited for as soon as it has left */
    bool prescale;    /* divide by the number of ranks before the sum, not after it */
    double predivide; /* with f: by f before, by ranks / f after; 0: 1 */
    bool squares;     /* the sums' are added up on the way, where they can be: dsi_reduce_shards */
    bool tree; /* the bits do not depend on the number of ranks: Note [Fixed tree]; partition */
    ds_dtype accum; /* what gradients of several passes are added up in */
    ds_dtype comm;  /* on the wire */
    /* On the CPU: what a rank keeps until the step is in mapped files there
     * (mapped.h). Borrowed during dsi_reduce_new. NULL: in memory */
    const char *folder;
    void (*on_ready)(void *arg, ds_tensor *x); /* runs after each gradient of a pass; or NULL */
    void *on_ready_arg;
} dsi_reduce_opts;

typedef struct dsi_reduce dsi_reduce;

/* Hooks the parameters of f. Borrows f and comm (NULL: one rank, nothing is
 * sent). */
dsi_reduce *dsi_reduce_new(const dsi_flat *f, ds_comm *comm, const dsi_reduce_opts *o);
void dsi_reduce_free(dsi_reduce *r);

/* Releases buckets whose memory has holders other than the parameters'
 * gradients; the next gradients get new memory. So a gradient that a user has
 * kept does not change; but once a device has recorded a pass it does. */
void dsi_reduce_spare_kept(dsi_reduce *r);

/* Around a backward pass; last: gradients are complete with it. */
ds_status dsi_reduce_begin(dsi_reduce *r, bool last);
ds_status
dsi_reduce_end(dsi_reduce *r); /* after a pass that did not fail; sends the other buckets */
/* Makes the passes since the gradients were forgotten complete, as if the
 * latest one had been the last. Not for a tree. */
ds_status dsi_reduce_complete_now(dsi_reduce *r);
ds_status dsi_reduce_wait(dsi_reduce *r); /* blocks until all buckets that were sent are summed */

/* Whether gradients of the last pass are final before it ends; whether that of
 * parameter i is by now. */
bool dsi_reduce_finishes_early(const dsi_reduce *r);
bool dsi_reduce_is_final(const dsi_reduce *r, int i);
/* a last pass came since the gradients were forgotten */
bool dsi_reduce_complete(const dsi_reduce *r);

double dsi_reduce_seconds(const dsi_reduce *r); /* of the last pass, spent on sending and waiting */

/* After the last pass: the mean gradient of parameter i's own elements, a view
 * in the current scope; NULL: it has none, or on one rank no gradient came. */
ds_tensor *dsi_reduce_grad(const dsi_reduce *r, int i);
/* This rank's shards of all gradients, at most units, with zeros between
 * parameters; but *squares for those whose squares are there. These are of some
 * elements on this rank, of each on one of the ranks. */
int dsi_reduce_shards(const dsi_reduce *r, dsi_view *views, double *squares);

/* Gradient i was written since: its squares are not used. */
void dsi_reduce_forget_squares(dsi_reduce *r, int i);

/* The state of r without its values, at the begin of a backward pass or after
 * its sums were waited for: for a pass that a device has captured. It holds the
 * buckets' memory. Not for a tree. Given NULL it returns NULL, which the other
 * functions accept. */
typedef struct dsi_reduce_record dsi_reduce_record;
dsi_reduce_record *dsi_reduce_record_new(const dsi_reduce *r);
void dsi_reduce_record_free(dsi_reduce_record *x);
bool dsi_reduce_is_as(const dsi_reduce *r, const dsi_reduce_record *x);
void dsi_reduce_set_as(dsi_reduce *r, const dsi_reduce_record *x);

void dsi_reduce_reset(dsi_reduce *r); /* the gradients; their memory stays for the next ones */
int64_t dsi_reduce_bytes(const dsi_reduce *r); /* of that memory */
