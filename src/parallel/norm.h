/* parallel/norm.h: the norm of the gradients of all ranks.
 *
 * Note [Norm] The squares of each gradient's elements are added by one rank, in
 * double: while it sums the gradients of all ranks and has them in registers,
 * or else in a pass over its shards. The sums of the ranks are gathered and
 * added in the order of ranks. So every rank has the same norm and takes the
 * same decisions, and stages differ by no more than the rounding of a double,
 * which is lost when the factor becomes a float.
 *
 * The norm is finite unless a gradient is inf or NaN: it is the search for
 * overflow too. Where collectives are queued on a GPU, norms take the place of
 * sums: that of each rank's shards, and the norm of these. Only after an overflow is the parameter looked for. If no
 * decision depends on the norm, it is gathered while the parameters are
 * updated.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "comm/comm.h"
#include "tensor/tensor.h"

/* g's elements as one line, in their order of memory; p is NULL, with the
 * message, on failure. */
dsi_view dsi_norm_line(ds_tensor *g);

/* The L2 norm of n lines of one dtype on x's device. */
ds_status dsi_norm_of(const ds_tensor *x, int n, const dsi_view *lines, double *norm);

/* Starts the all-gather of this rank's sum of squares; NULL with the message.
 * buffer: float64 [ranks + 1] on the CPU, in use until dsi_norm_take. */
dsi_request *dsi_norm_send(ds_comm *comm, ds_tensor *buffer, double squares);
/* The same with this rank's norm, of n lines (below 0: a failure), where
 * collectives are queued on a GPU, which has the buffer too. */
dsi_request *dsi_norm_queue(ds_comm *comm, ds_tensor *buffer, int n, const dsi_view *lines);
/* The norm of all ranks into the GPU's memory: [] float64. NULL passes on the
 * failure that there is. */
ds_status dsi_norm_total(dsi_request *sent, ds_tensor *buffer, dsi_view norm);
/* Blocks until the sums, or norms, of all ranks have arrived; *norm is that of
 * all. */
ds_status dsi_norm_take(dsi_request *sent, ds_tensor *buffer, double *norm);
