/* device/cuda/launch_batch.c: a batch of a data set that is on the GPU.
 *
 * In a step that is captured it is a node of the graph whose arguments are in a
 * slot (device/graph.h). The node itself moves them on to the batch that
 * follows, and the element that is copied beside it (a kept loss) to the next
 * place, so that a step after the one before it copies nothing to the GPU. Any
 * other batch differs from what the GPU's memory holds, and is copied there
 * before the launch; so is an n of 0, where the inputs of the graph come from
 * elsewhere.
 * SPDX-License-Identifier: MIT */
#include "held.h"
#include "kernels/index.h"
#include "launch.h"
#include "operands.h"

#include "base/mem.h"
#include "device/graph.h"

#include <string.h>

_Static_assert((int)K_BATCH_FIELDS == (int)DSI_BATCH_FIELDS, "gather_batch");
_Static_assert(sizeof(dsi_cuda_batch) == 80 + 24 * DSI_BATCH_FIELDS, "padding");

/* One launch for all fields: a block for 256 elements of a row, up to
 * BLOCKS_A_ROW. */
static ds_status batch_launch(dsi_stream *s, const dsi_cuda_batch_args *a)
{
    enum { THREADS = 256, BLOCKS = 8192, BLOCKS_A_ROW = 64 };
    const dsi_cuda_batch *x = &a->batch;
    int64_t most = 1;
    for (int f = 0; f < x->fields; f++)
        if (x->field[f].y && x->field[f].elements > most) most = x->field[f].elements;
    int64_t along = (most + THREADS - 1) / THREADS;
    dsi_cuda_grid grid = dsi_cuda_blocks(x->n < BLOCKS ? x->n : BLOCKS, THREADS);
    grid.blocks[1] = (unsigned)(along < BLOCKS_A_ROW ? along : BLOCKS_A_ROW);
    return dsi_cuda_launch(s, DSI_CUDA_index, "gather_batch", "", grid, a);
}

/* ---- as a node of a graph ------------------------------------------------- */

typedef struct Source {
    dsi_stream *s;
    dsi_cuda_batch recorded;     /* what the node's grid and outputs are for */
    dsi_cuda_batch *slot, *sent; /* of the next launch; what the GPU's memory holds */
    bool given;                  /* *slot is a batch for that */
} Source;

/* Whether the node writes what x would. */
static bool is_alike(const dsi_cuda_batch *node, const dsi_cuda_batch *x)
{
    bool alike = node->n == x->n && node->fields == x->fields;
    for (int f = 0; alike && f < x->fields; f++)
        alike = node->field[f].y == x->field[f].y && node->field[f].dtype == x->field[f].dtype &&
                node->field[f].elements == x->field[f].elements;
    return alike;
}

static bool source_give(void *arg, const void *batch)
{
    Source *source = arg;
    source->given = batch && is_alike(&source->recorded, batch);
    if (source->given) memcpy(source->slot, batch, sizeof *source->slot);
    return source->given;
}

static void source_before(void *arg)
{
    Source *source = arg;
    source->slot->copy = (dsi_cuda_element){0};
    if (!source->given) source->slot->n = 0;
    dsi_cuda_held_copy(source->s, source->slot);
}

/* Nothing was launched: the element is held again. */
static void source_undo(void *arg)
{
    Source *source = arg;
    if (source->slot->copy.bytes) (void)dsi_cuda_hold_copy(source->s, &source->slot->copy);
}

/* As batch_advance of the kernel. */
static ds_status source_queued(void *arg)
{
    dsi_cuda_batch *sent = ((Source *)arg)->sent;
    sent->index = (const int64_t *)sent->index + sent->n;
    if (sent->copy.bytes) sent->copy.to = (char *)sent->copy.to + sent->copy.bytes;
    return DS_OK;
}

static void source_release(void *arg) { dsi_free(arg); }

static const dsi_graph_hook source_hook = {.before = source_before,
                                           .release = source_release,
                                           .queued = source_queued,
                                           .undo = source_undo,
                                           .give = source_give};

static ds_status batch_record(dsi_stream *s, dsi_cuda_batch_args *a)
{
    void *host = NULL;
    a->next = dsi_graph_slot(s->device, sizeof a->batch, &host);
    if (!a->next) return ds_error_status();
    memcpy(host, &a->batch, sizeof a->batch);
    Source *source = dsi_alloc(sizeof *source);
    *source = (Source){.s = s, .recorded = a->batch, .slot = host};
    source->sent = dsi_graph_slot_sent(s->device, host);
    dsi_graph_add_hook(s->device, &source_hook, source);
    return batch_launch(s, a);
}

ds_status dsi_cuda_gather_batch(dsi_stream *s, dsi_view index, dsi_view table, int n,
                                const dsi_view *x, const dsi_view *y)
{
    dsi_cuda_batch_args a = {.batch = {.n = index.d[0],
                                       .rows = x[0].d[0],
                                       .index = index.p,
                                       .table = table.p,
                                       .fault = dsi_cuda_fault(s),
                                       .fields = n,
                                       .plane = (int)x[0].d[2]}};
    for (int f = 0; f < n; f++) {
        a.batch.field[f].x = x[f].p, a.batch.field[f].y = y[f].p;
        a.batch.field[f].elements = (int)(x[f].d[1] * x[f].d[2]);
        a.batch.field[f].dtype = (int)y[f].dtype;
    }
    if (dsi_graph_capturing(s->device)) return batch_record(s, &a);
    if (dsi_graph_give(s->device, &source_hook, &a.batch)) return DS_OK;
    dsi_cuda_held_copy(s, &a.batch);
    return batch_launch(s, &a);
}
