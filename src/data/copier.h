/* data/copier.h: copies a loader's batches to a GPU on a stream of their own,
 * while the GPU computes.
 *
 * A slot is pinned host memory for one batch. One batch at a time is ahead: it
 * has memory of the GPU, and its copy may have been queued.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

#include <deepspeed/data.h>

typedef struct dsi_copier dsi_copier;

/* For batches of up to `rows` samples of d, which is borrowed. *out is NULL if
 * batches are to be copied as other tensors are: they are small, the device has
 * no further streams, or the host has too little pinned memory. */
ds_status dsi_copier_new(ds_dataset *d, dsi_device *device, int64_t rows, int slots,
                         dsi_copier **out);
void dsi_copier_free(dsi_copier *c); /* after dsi_copier_stop; NULL passes */

/* Where the samples of field f begin in a slot, row-major. */
char *dsi_copier_memory(const dsi_copier *c, int slot, int f);

/* Takes memory for the batch of n samples that comes next, which may be written
 * when the device's stream has done what it was given so far. If slot is not
 * -1, the batch is there, and its copy is queued. DS_ENOMEM: there is none. */
ds_status dsi_copier_ahead(dsi_copier *c, int slot, int64_t n);
bool dsi_copier_is_queued(const dsi_copier *c, int slot); /* the copy of the batch in it */

/* That batch -> field [n, ...] of each field, in the current scope, after what
 * dsi_copier_ahead has not done so far. The device's stream waits for the copy,
 * the host does not. False with the message. */
bool dsi_copier_batch(dsi_copier *c, int slot, int64_t n, ds_tensor **field);

/* *out: whether the slot may be filled again, as its copy has ended. If `wait`,
 * the host waits for that. */
ds_status dsi_copier_release(dsi_copier *c, int slot, bool wait, bool *out);

/* Drops the batch that is ahead. Waits for copies: all slots are free. */
void dsi_copier_stop(dsi_copier *c);
