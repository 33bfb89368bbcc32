/* parallel/swap_buffer.h: memory that is read from and written to a file while
 * the caller continues. For param_swap.c and offload.c.
 *
 * A buffer's elements begin at element dsi_swap_begin of its tensor, aligned to
 * DSI_AIO_ALIGN for reads and writes that bypass the kernel's page cache.
 * Invariants: while `op` runs, the buffer must not be read or written.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/aio.h"
#include "staging.h"

typedef struct dsi_swap_buffer {
    ds_tensor *t;  /* counted */
    dsi_aio_op op; /* the last one that was started */
} dsi_swap_buffer;

/* A buffer of zeros in the host's memory: of staging; NULL: not pinned. Its
 * tensor is NULL, with the message, if there is no memory. */
dsi_swap_buffer dsi_swap_buffer_new(dsi_staging *staging, ds_dtype dtype, int64_t elements);
int64_t dsi_swap_begin(const ds_tensor *t);

/* Reads `bytes` at `at` of the file into the buffer, from its beginning; or
 * writes them. */
void dsi_swap_start(dsi_aio *aio, const dsi_aio_file *file, dsi_swap_buffer *b, bool write,
                    int64_t at, int64_t bytes);
ds_status dsi_swap_wait(dsi_aio *aio, dsi_swap_buffer *b); /* blocks; nothing if none runs */

/* Tells the kernel of n buffers' memory that will be used again and again. */
void dsi_swap_pin(dsi_aio *aio, const dsi_swap_buffer *b, size_t stride, int n, size_t bytes);
