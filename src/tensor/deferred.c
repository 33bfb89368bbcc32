/* tensor/deferred.c: results that are computed when they are first read.
 *
 * Note [Deferred ops] An op is called alone, but one kernel may compute it
 * together with the op that reads its result, and save a pass over the largest
 * tensors of a network. So some ops only allocate their result, record their
 * operands and how to compute it in the storage (`deferred`), and leave the
 * rest to its reader:
 *
 *     batch_norm, its sum with another tensor   ReLU computes all three
 *                                               (ops/norm_relu.c)
 *     ReLU of planes [N,C,H,W]                  max-pooling does, on a quarter of the
 *                                               values: max(0, .) and the maximum of a
 *                                               window commute (ops/pool.c)
 *
 * All other ops have the result computed when they acquire it (Note [Residency]
 * in acquire.c). If a device fails then, the result stays deferred.
 *
 * Invariants:
 * - `deferred` holds its tensors, counted. The storages of its sources point
 *   back by `reader`, at one reader at most; no other op has the rest of its
 *   tensors.
 * - A source keeps its values until the result is computed: whoever writes to
 *   it in place has the reader computed first (dsi_acquire_to_write). A handle
 *   that gets other storage leaves its own to the reader (dsi_leave_to_reader).
 *   A source may itself be deferred.
 * - A storage whose address was given out for writing is never a source, nor is
 *   the handle of a trained leaf.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "tensor.h"

/* Refuses if x may change before the result is read: another deferred result
 * reads x, its address was given out, or an optimizer writes to it. */
static bool may_be_source(const ds_tensor *x)
{
    const dsi_storage *s = x->storage;
    return s && !s->reader && !s->written && !x->requires_grad;
}

bool dsi_may_defer(const ds_tensor *a, const ds_tensor *b)
{
    return a->shape.n == 4 && a->dtype != DS_F64 && may_be_source(a) &&
           (!b || (may_be_source(b) && b->storage != a->storage));
}

bool dsi_defer(ds_tensor *y, dsi_deferred by)
{
    if (!dsi_may_defer(by.source[0], by.source[1]) || !dsi_same_layout(by.source[0], y))
        return false;
    dsi_deferred *d = y->storage->deferred = dsi_alloc(sizeof *d);
    *d = by;
    for (int i = 0; i < DSI_SOURCES; i++) {
        ds_tensor *x = dsi_ref(d->source[i]);
        if (x) x->storage->reader = y->storage;
    }
    for (int i = 0; i < DSI_OPERANDS; i++) dsi_ref(d->operand[i]);
    return true;
}

/* Only if y is the whole result: a view of it has another layout or offset. */
const dsi_deferred *dsi_deferred_by(const ds_tensor *y, dsi_compute_fn *compute)
{
    const dsi_deferred *d = y->storage ? y->storage->deferred : NULL;
    return d && d->compute == compute && !y->offset && dsi_same_layout(d->source[0], y) ? d : NULL;
}

/* Ends the wait: the caller frees what it gets. */
static dsi_deferred *take(dsi_storage *s)
{
    dsi_deferred *d = s->deferred;
    s->deferred = NULL;
    for (int i = 0; d && i < DSI_SOURCES; i++)
        if (d->source[i]) d->source[i]->storage->reader = NULL;
    return d;
}

static void deferred_free(dsi_deferred *d)
{
    if (!d) return;
    for (int i = 0; i < DSI_SOURCES; i++) dsi_unref(d->source[i]);
    for (int i = 0; i < DSI_OPERANDS; i++) dsi_unref(d->operand[i]);
    dsi_free(d);
}

void dsi_drop_deferred(dsi_storage *s) { deferred_free(take(s)); }

void dsi_leave_to_reader(const ds_tensor *x)
{
    dsi_storage *reader = x->storage ? x->storage->reader : NULL;
    for (int i = 0; reader && i < DSI_SOURCES; i++)
        if (reader->deferred->source[i] == x) dsi_hold(&reader->deferred->source[i], dsi_alias(x));
}

ds_status dsi_compute_deferred(dsi_storage *s)
{
    const dsi_deferred *d = s->deferred;
    if (!dsi_acquire(d->source[0], d->source[1])) return ds_error_status();
    dsi_view y = dsi_v(d->source[0]);
    y.p = s->p;
    if (!d->compute(d, y)) return ds_error_status();
    deferred_free(take(s));
    return DS_OK;
}

/* ---- ReLU ----------------------------------------------------------------------------------------------- */

static bool relu_compute(const dsi_deferred *d, dsi_view y)
{
    return dsi_run_op(d->source[0], unary, DSI_RELU, 0.0, dsi_v(d->source[0]), y);
}

bool dsi_defer_relu(ds_tensor *y, ds_tensor *x)
{
    return dsi_fusion(x->device, relu_max_pool2d) &&
           dsi_defer(y, (dsi_deferred){.compute = relu_compute, .source = {x}});
}

ds_tensor *dsi_deferred_relu(const ds_tensor *y)
{
    const dsi_deferred *d = dsi_deferred_by(y, relu_compute);
    return d ? d->source[0] : NULL;
}
