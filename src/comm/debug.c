/* comm/debug.c: DS_DEBUG=comm: before each collective the ranks exchange a
 * description of what they call, and compare them.
 *
 * The descriptions have a fixed size, so that this works even where the
 * collectives themselves do not match.
 *
 * Invariants: the exchange is an all_gather on the same communicator, so it has
 * a number of its own there, on all ranks alike. It is internal: neither
 * compared nor logged. c->calls numbers what was compared, for the message: the
 * n-th comparison of a rank is always with the n-th of the others. After a
 * disagreement the job ends: the ranks would wait for each other.
 * SPDX-License-Identifier: MIT */
#include "comm.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 192

/* Blocks until all ranks have come to a collective. Their descriptions are
 * gathered and compared on every rank, so all of them fail with the same
 * message. */
bool dsi_comm_agrees(const dsi_request *r)
{
    ds_comm *c = r->comm;
    char mine[TEXT_BYTES] = "", *all = dsi_alloc((size_t)c->size * TEXT_BYTES);
    snprintf(mine, sizeof mine, "%s, number %llu", dsi_request_text(r),
             (unsigned long long)c->calls++);
    bool good = dsi_request_run(
                    &(dsi_request){DSI_NUMBERS(c, DSI_ALL_GATHER, DS_U8, mine, all, TEXT_BYTES),
                                   .internal = true}) == DS_OK;
    for (int q = 1; good && q < c->size; q++) {
        const char *theirs = all + (size_t)q * TEXT_BYTES;
        if (!strcmp(all, theirs)) continue;
        good = dsi_refuse("ranks do not agree: rank 0 calls %s, rank %d calls %s", all, q, theirs);
    }
    dsi_free(all);
    if (!good) c->type->abort(c, ds_error());
    return good;
}
