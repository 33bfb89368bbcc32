/* comm/collective_mpi.c: collectives that the MPI library does itself.
 *
 * Among many ranks the library knows the network: its nonblocking forms send
 * O(log p) messages for small data. Up to 8 ranks transfer.c is quicker, which
 * compares sizes and names ranks that are missing, and which sends what is small
 * to each. MPI's forms add in an order of their own, so transfer.c does
 * what must be added in the order of ranks (zero_optimization.deterministic,
 * DS_COLLECTIVES=messages), and what MPI lacks or rounds more often:
 *
 *   here          all_reduce, reduce of float32 and float64 (sums, averages), int32 and int64;
 *                 all_gather, broadcast, barrier
 *   transfer.c    sums of 16-bit floats, which are rounded once there; maxima of floats, for a NaN;
 *                 reduce_scatter and all_to_all: a message to each rank is the best for large pieces;
 *                 gather, scatter, rows; more than 2 GB; the shutdown's barrier, of which a rank that
 *                 waits sees the messages
 *
 * SPDX-License-Identifier: MIT */
#include "transfer.h"

#include "reduce.h"

#include <limits.h>

static bool collective_adds_alike(const dsi_request *r)
{
    if (r->comm->ordered) return false;
    bool whole = r->dtype == DS_I32 || r->dtype == DS_I64;
    bool floats = r->dtype == DS_F32 || r->dtype == DS_F64;
    return whole ? r->op != DS_REDUCE_AVG : floats && r->op <= DS_REDUCE_SUM;
}

bool dsi_mpi_does(const dsi_request *r)
{
    if (r->shutdown) return false;
    if (r->n * (int64_t)ds_dtype_size(r->dtype) > INT_MAX / r->comm->size) return false;
    switch (r->what) {
    case DSI_ALL_REDUCE:
    case DSI_REDUCE:
        return collective_adds_alike(r);
    case DSI_ALL_GATHER:
    case DSI_BROADCAST:
    case DSI_BARRIER:
        return true;
    default:
        return false;
    }
}

void dsi_mpi_begin(dsi_transfer *t)
{
    size_t bytes = (size_t)t->r->n * ds_dtype_size(t->r->dtype);
    const char *wrong = t->mpi->collective(t->comm, t->r, bytes, &t->whole);
    t->by_mpi = true;
    if (wrong) dsi_text_add(&t->wrong, "MPI says: %s", wrong);
}

/* x /= ranks */
static void collective_average(const dsi_request *r)
{
    float *f = r->out;
    double *d = r->out;
    for (int64_t i = 0; i < r->n; i++)
        if (r->dtype == DS_F32)
            f[i] /= (float)r->comm->size;
        else
            d[i] /= r->comm->size;
}

/* The rest of the work on a sum: each rank adds the squares of its slice. */
static void collective_complete(const dsi_request *r)
{
    const ds_comm *c = r->comm;
    bool has_sum = r->what == DSI_ALL_REDUCE || (r->what == DSI_REDUCE && c->rank == r->root);
    if (!has_sum) return;
    if (r->op == DS_REDUCE_AVG) collective_average(r);
    if (!r->squares) return;
    int64_t first = r->n * c->rank / c->size, after = r->n * (c->rank + 1) / c->size;
    void *slice = (char *)r->out + (size_t)first * ds_dtype_size(r->dtype);
    const void *in = slice;
    dsi_reduce_ranks(r->dtype, DS_REDUCE_SUM, 1, &in, after - first, 1, &slice, r->squares);
}

bool dsi_mpi_advance(dsi_transfer *t)
{
    size_t ignored;
    bool done = false;
    if (t->finished) return false;
    const char *wrong = t->wrong.n ? NULL : t->mpi->test(&t->whole, &done, &ignored);
    if (wrong) dsi_text_add(&t->wrong, "MPI says: %s", wrong);
    t->finished = done || t->wrong.n;
    if (!done) return false;
    collective_complete(t->r);
    dsi_request_done(t->r);
    return true;
}

void dsi_mpi_probe(dsi_transfer *t)
{
    for (int q = 0; q < t->r->comm->size && !t->wrong.n; q++) {
        size_t bytes;
        int tag;
        if (q == t->r->comm->rank || t->mpi->probe(t->comm, q, &tag, &bytes) || tag < 0) continue;
        if (dsi_transfer_is_shutdown(tag)) dsi_transfer_await_cause(t, q);
    }
}
