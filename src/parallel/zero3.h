/* parallel/zero3.h: parameters that are divided among ranks, and whole only while they are used.
 *
 * Note [Stage 3]
 * A parameter above the persistence threshold is alone in its unit (flat.h). Between uses only its slices
 * exist, each on its rank, in the home buffer; the model's handle keeps its shape and has no storage.
 *
 *     forward    before a module's call its own parameters are gathered, after it they are let go
 *     backward   a node that reads a parameter which it saved finds no storage, and has it gathered
 *                (dsi_set_materialize_hook); when the node has passed it is let go (dsi_set_after_use_hook)
 *     else       who reads one is told of ds_gathered: a gather that only some ranks begin never ends
 *
 * The uses of one step are the trace by which the next one prefetches: from each use on, what comes next is
 * gathered while this one computes, up to prefetch_bucket elements. A parameter stays when the trace says
 * that it comes again within max_reuse_distance elements, and there are not more than max_live. A step that
 * goes otherwise than the last one throws the trace away; as all ranks do the same things in the same
 * order, all do so at the same time. Where home is a file (Note [Home]), what comes next is read one use before it
 * is gathered.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_PARALLEL_ZERO3_H
#define DSI_PARALLEL_ZERO3_H

#include "comm/comm.h"
#include "flat.h"
#include "param_swap.h"

typedef struct dsi_zero3_opts {
    int64_t prefetch, max_live, max_reuse_distance; /* elements */
    dsi_param_swap_opts files;                      /* nvme_path NULL: all is at home in memory */
} dsi_zero3_opts;

typedef struct dsi_zero3 dsi_zero3;

/* Divides the parameters of f that are alone in their unit, and watches the calls of the model. Borrows all.
 * Their values are equal on all ranks. NULL with the message. */
dsi_zero3 *dsi_zero3_new(ds_module *model, const dsi_flat *f, ds_comm *comm,
                         const dsi_zero3_opts *o);
void dsi_zero3_free(dsi_zero3 *z); /* divided parameters stay without storage */

/* The own elements of divided parameter i, at home; NULL: there are none, or it is not divided. If home is a
 * file, reading them brings them, and dsi_zero3_store writes them back and lets them go. */
ds_tensor *dsi_zero3_part(const dsi_zero3 *z, int i);
bool dsi_zero3_in_file(const dsi_zero3 *z, int i);
/* brings memory without values, to be written */
ds_status dsi_zero3_blank(const dsi_zero3 *z, int i);
ds_status dsi_zero3_store(const dsi_zero3 *z, int i);
void dsi_zero3_release(const dsi_zero3 *z, int i); /* without writing */
bool dsi_zero3_divides(const dsi_zero3 *z, int unit);

/* Around a backward pass, and after it: what it has brought is let go. */
void dsi_zero3_backward(dsi_zero3 *z, bool runs);
/* Around a change of the parts: ends what is being gathered ahead; then forgets what is gathered, and begins
 * the trace anew. */
ds_status dsi_zero3_wait_gathers(dsi_zero3 *z);
void dsi_zero3_changed(dsi_zero3 *z);

int64_t dsi_zero3_bytes(const dsi_zero3 *z); /* at home, in memory */
int64_t dsi_zero3_file(const dsi_zero3 *z);

#endif
