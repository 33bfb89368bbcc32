/* ops/collective.c: collectives that have a backward.
 *
 * all_reduce_sum  y = sum over ranks of x; the gradient of x, which is in the y
 *                of every rank, is the sum over ranks of dy
 *                (torch.distributed.nn.functional.all_reduce).
 * exchange_rows  rank r sends to[q] rows of x to each rank q, and receives from[q]
 *                rows of it; y has them in the order of ranks. The backward sends the
 *                rows of dy back: it is the same collective with both lists exchanged
 *                (torch.distributed.nn.functional.all_to_all_single).
 *
 * Invariants: both lists of counts are copied into the node, so the caller may
 * free its own; the communicator is borrowed and must outlive the backward.
 * The call blocks until all ranks have come. Both directions must be called by
 * all ranks in the same order, also by ranks that send and receive no rows.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include "base/mem.h"

#include <string.h>

/* ---- sums -------------------------------------------------------------------------------------------- */

/* The sum over the ranks of c of x, in memory of its own. */
static ds_tensor *summed(const ds_tensor *x, ds_comm *c)
{
    ds_tensor *y = dsi_new(x, x->shape);
    bool done = y && dsi_copy(y, x) == DS_OK && ds_all_reduce(c, y, DS_REDUCE_SUM) == DS_OK;
    return dsi_result_if(done, y);
}

static void all_reduce_sum_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_accumulate_grad(n, 0, summed(dy, *(ds_comm *const *)dsi_attr(n)));
}

const dsi_op dsi_op_all_reduce_sum = {.name = "all_reduce_sum",
                                      .backward = all_reduce_sum_backward};

ds_tensor *ds_all_reduce_sum(ds_tensor *x, ds_comm *c)
{
    if (!dsi_live(x, "all_reduce_sum")) return dsi_null_operand("all_reduce_sum");
    if (!dsi_want_float("all_reduce_sum", x)) return NULL;
    if (!c) c = ds_world();
    if (!dsi_acquire(x)) return NULL;

    ds_tensor *y = summed(x, c);

    if (!y) return NULL;
    dsi_set_attr(dsi_record(&dsi_op_all_reduce_sum, y, x), &c, sizeof c);
    return y;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

typedef struct Exchange {
    ds_comm *comm;  /* borrowed; alive until the backward */
    ds_dims x;      /* shape */
    int64_t rows[]; /* [size] to each rank, then [size] from each */
} Exchange;

/* Sends each row of dy back to the rank that it came from. All ranks must run
 * it in the same order of nodes, because it is a collective. */
static void exchange_backward(dsi_node *n, ds_tensor *dy)
{
    const Exchange *e = dsi_attr(n);
    ds_tensor *dx = dsi_new(dy, e->x), *g = ds_contiguous(dy);
    const int64_t *to = e->rows, *from = e->rows + ds_comm_size(e->comm);
    bool done = dx && g && ds_all_to_all_rows(e->comm, dx, to, g, from) == DS_OK;
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_exchange_rows = {.name = "exchange_rows", .backward = exchange_backward};

/* Stores the communicator, x's shape and both lists of row counts with node n. */
static void collective_remember(dsi_node *n, const ds_tensor *x, ds_comm *c, const int64_t *to,
                                const int64_t *from)
{
    size_t bytes = (size_t)ds_comm_size(c) * sizeof *to;
    Exchange *e = n ? dsi_alloc(sizeof *e + 2 * bytes) : NULL;
    if (!n) return;
    e->comm = c;
    e->x = x->shape;
    memcpy(e->rows, to, bytes);
    memcpy(e->rows + ds_comm_size(c), from, bytes);
    dsi_set_attr(n, e, sizeof *e + 2 * bytes);
    dsi_free(e);
}

/* x [rows,...], sorted by rank: to[q] rows are sent to rank q, from[q] come
 * from it. Collective, and so is its backward, which exchanges the gradient
 * the other way. to, from: [size of c], borrowed; from[q] here must be what
 * rank q has in to for this rank. c NULL is the world. y has as many rows as
 * `from` in all; NULL, with the message, after a failure. */
ds_tensor *ds_exchange_rows(ds_tensor *x, ds_comm *c, const int64_t *to, const int64_t *from)
{
    if (!dsi_live_all("exchange_rows", x, to, from)) return dsi_null_operand("exchange_rows");
    if (!dsi_want_float("exchange_rows", x)) return NULL;
    if (!x->shape.n) return dsi_refuse("exchange_rows: x is [], which has no rows");
    if (!c) c = ds_world();
    if (!(x = ds_contiguous(x)) || !dsi_acquire(x)) return NULL;

    ds_dims shape = x->shape;
    shape.d[0] = 0;
    for (int r = 0; r < ds_comm_size(c); r++) shape.d[0] += from[r];
    ds_tensor *y = dsi_new(x, shape);

    if (!y || ds_all_to_all_rows(c, y, from, x, to) != DS_OK) return NULL;

    collective_remember(dsi_record(&dsi_op_exchange_rows, y, x), x, c, to, from);
    return y;
}
