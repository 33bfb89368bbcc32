/* parallel/staging.h: copies between a GPU and memory of the host, for state
 * that waits there.
 *
 * The memory is pinned, and the copies are on a stream of their own: neither
 * the host nor the GPU's stream waits for one until it is asked to. A device
 * without such streams copies at once, and its memory is the host's ordinary
 * one.
 *
 * Invariants: a copy begins after all that the GPU's stream has been given
 * before it; copies are done in the order in which they were queued. Until
 * dsi_staging_wait, memory of the host that a copy reads is not written, and
 * what it writes is not read; a tensor of the GPU is not freed before the GPU's
 * stream has joined its copy.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

typedef struct dsi_staging dsi_staging;

dsi_staging *dsi_staging_new(dsi_device *d); /* NULL with the message */
void dsi_staging_free(dsi_staging *s);       /* waits; NULL passes */

/* [n] zeros on the CPU, in the current scope. Its last handle is dropped before
 * the thread's handle on the GPU. NULL with the message. */
ds_tensor *dsi_staging_memory(dsi_staging *s, ds_dtype dtype, int64_t n);

/* Queues a copy of src to dst, one on the GPU and one in that memory: both
 * row-major, of one dtype, with as many elements. done, if not NULL: is
 * recorded behind it; the caller's, freed by dsi_staging_forget. */
ds_status dsi_staging_copy(dsi_staging *s, ds_tensor *dst, const ds_tensor *src, dsi_event *done);

/* Later work of the GPU's stream is behind `done`; NULL: behind all copies that
 * were queued so far. */
ds_status dsi_staging_join(dsi_staging *s, dsi_event *done);
ds_status dsi_staging_wait(dsi_staging *s); /* the host waits for all of it */
void dsi_staging_forget(dsi_staging *s, dsi_event *done);
