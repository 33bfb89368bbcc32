/* base/aio_engine.h: the interface between aio.c, which divides operations into
 * requests, and the code that runs requests: aio_ring.c, or aio.c's threads.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "aio.h"

typedef struct dsi_aio_request {
    dsi_aio_op *op;
    char *p;
    size_t bytes;
    int64_t at;
} dsi_aio_request;

/* The next request of those that wait; false: there is none. */
bool dsi_aio_next(dsi_aio *a, dsi_aio_request *r);
/* n bytes of r were done, or -errno. true: the rest of it is to be run again,
 * as r says now. */
bool dsi_aio_done(dsi_aio_request *r, int64_t n);

/* ---- aio_ring.c: io_uring ------------------------------------------------------------------------------- */

typedef struct dsi_ring dsi_ring;

dsi_ring *dsi_ring_new(const dsi_aio_opts *o); /* NULL, without a message: there is none here */
void dsi_ring_free(dsi_ring *g);
bool dsi_ring_pin(dsi_ring *g, void *const *p, size_t bytes, int n);
/* Begins what may begin and takes what has ended; wait: until something has. */
void dsi_ring_progress(dsi_ring *g, dsi_aio *a, bool wait);
