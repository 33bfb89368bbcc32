/* base/prefetch.h: numbered pieces of work, done ahead of their use by threads
 * of their own.
 *
 * Piece i uses place i % places, and may be begun when piece i - places was
 * released. Pieces are begun in order and waited for in order; one thread waits
 * and releases, the workers fill.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct dsi_prefetch dsi_prefetch;

/* fill(arg, i, i % places) does piece i on one of the workers. NULL if no
 * thread can be had. */
dsi_prefetch *dsi_prefetch_new(int workers, int places,
                               void (*fill)(void *arg, int64_t i, int place), void *arg);
void dsi_prefetch_free(dsi_prefetch *p);

/* Pieces first .. end - 1 from now on; all places are free. Only at the start
 * and after a stop. */
void dsi_prefetch_begin(dsi_prefetch *p, int64_t first, int64_t end);
void dsi_prefetch_wait(dsi_prefetch *p, int64_t i);          /* returns when piece i is done */
bool dsi_prefetch_is_done(const dsi_prefetch *p, int64_t i); /* and not released */
void dsi_prefetch_release(dsi_prefetch *p, int64_t i);       /* its place may be used again */
void dsi_prefetch_stop(dsi_prefetch *p); /* begins no more, and waits for those begun */
