/* comm/self.c: a world of one rank: a collective is a copy, done when it
 * starts.
 *
 * Invariants: nothing is outstanding between start and wait, so wait only notes
 * the time. A request's squares are counted in start, of the result, as a
 * backend with several ranks does. Roots other than 0, and messages, were
 * refused in comm.c.
 * SPDX-License-Identifier: MIT */
#include "comm.h"
#include "reduce.h"

#include <string.h>

/* With one rank a collective is a copy. */
static ds_status self_start(dsi_request *r)
{
    size_t bytes = (size_t)r->n * ds_dtype_size(r->dtype);
    if (r->what == DSI_ALL_TO_ALL_ROWS) bytes = (size_t)r->counts[0] * ds_dtype_size(r->dtype);
    if (bytes && r->in && r->out != r->in) memmove(r->out, r->in, bytes);
    const void *x = r->out;
    if (r->squares) dsi_reduce_ranks(r->dtype, DS_REDUCE_SUM, 1, &x, r->n, 1, &r->out, r->squares);
    return DS_OK;
}

static ds_status self_wait(dsi_request *r)
{
    dsi_request_done(r);
    return DS_OK;
}

static ds_comm *self_split(ds_comm *c, int color, int key)
{
    (void)c, (void)key;
    return color < 0 ? NULL : dsi_comm_new(&dsi_comm_self, 0, 1, NULL);
}

static void self_close(ds_comm *c) { (void)c; }

/* There is no other rank to end: the caller returns its own failure. */
static void self_abort(ds_comm *c, const char *why) { (void)c, (void)why; }

const dsi_comm_type dsi_comm_self = {.name = "self",
                                     .close = self_close,
                                     .split = self_split,
                                     .start = self_start,
                                     .wait = self_wait,
                                     .compares = true,
                                     .abort = self_abort};
