/* parallel/norm.h: the norm of the gradients of all ranks.
 *
 * Note [Norm]
 * Each rank adds the squares of its own slices, in double, also where it has all gradients; the sums are
 * gathered and added in the order of ranks. So every rank has the same norm and takes the same decisions,
 * and stages differ by no more than the rounding of a double, which is lost when the factor becomes a
 * float. The norm is not finite just when a gradient is inf or NaN: it is the search for overflow too.
 * Which parameter it was is asked only then.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_PARALLEL_NORM_H
#define DSI_PARALLEL_NORM_H

#include "comm/comm.h"
#include "tensor/tensor.h"

/* g's elements in the order in which they lie; p is NULL, with the message, if they cannot be had. */
dsi_view dsi_norm_line(ds_tensor *g);

/* The L2 norm of n lines of one dtype on x's device. */
ds_status dsi_norm_of(const ds_tensor *x, int n, const dsi_view *lines, double *norm);

/* *norm of this rank -> that of all. room: float64 [ranks + 1]. */
ds_status dsi_norm_over(ds_comm *comm, ds_tensor *room, double *norm);

#endif
