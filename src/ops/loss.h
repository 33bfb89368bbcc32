/* ops/loss.h: what losses that are made of other ops share (loss_composed.c).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "op.h"

/* losses as the reduction says, in that dtype, which is that of the loss's
 * operand x. The mean is over all elements. */
ds_tensor *dsi_loss_reduced(ds_tensor *losses, ds_reduction how, ds_dtype dtype);

/* Floats of one dtype and shape, or, if `broadcast`, shapes that broadcast.
 * False with the message. */
bool dsi_loss_check(const char *op, ds_tensor *x, ds_tensor *y, bool broadcast,
                    ds_reduction reduction);
/* The same; 16-bit ones become float32. */
bool dsi_loss_operands(const char *op, ds_tensor **x, ds_tensor **y, bool broadcast,
                       ds_reduction reduction);

/* *weight, which may be NULL, in float32 for 16 bits; false with the message if
 * it wants a gradient. */
bool dsi_loss_weight(const char *op, ds_tensor **weight);
