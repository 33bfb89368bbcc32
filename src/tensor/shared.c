/* tensor/shared.c: gradients of leaves in memory that another tensor has too.
 *
 * Note [Shared gradients] The gradient of an operand is often the gradient of
 * the result itself, or a part of it: of a sum, of tensors that are joined. A
 * leaf must not keep it as a view, since later gradients are added to it in
 * place, and a copy costs a pass over it. So the leaf gets a *sharer*: a handle
 * on that memory which becomes a copy when anybody writes to the memory.
 *
 * Invariants:
 * - A storage lists its sharers. A writer to it, by any handle, has them made
 *   own before (dsi_acquire_to_write). A sharer with the only handle
 *   on its storage is made own without a copy.
 * - A sharer has no views: the first one makes it own, as ds_grad does, which
 *   gives it to callers. Kernels of clipping and of optimizers read it as it
 *   is.
 * - A storage whose address was given out for writing, or that others own, is
 *   not shared, nor is memory of a GPU, whose graphs hold addresses. A sharer
 *   has at least a quarter of its storage, of which it keeps all.
 * SPDX-License-Identifier: MIT */
#include "tensor.h"

bool dsi_share(ds_tensor *x)
{
    dsi_storage *s = x->storage;
    size_t bytes = (size_t)dsi_numel(x->shape) * ds_dtype_size(x->dtype);
    if (s->written || s->borrowed || s->release || s->device->type->kind != DS_CPU ||
        bytes < s->bytes / 4)
        return false;
    x->shares = true;
    x->next_sharer = s->sharers;
    s->sharers = x;
    return true;
}

void dsi_share_end(ds_tensor *x)
{
    if (!x->shares) return;
    ds_tensor **at = &x->storage->sharers;
    while (*at != x) at = &(*at)->next_sharer;
    *at = x->next_sharer;
    x->shares = false;
}

bool dsi_make_own(ds_tensor *x)
{
    if (!x->shares) return true;
    if (x->storage->refs == 1) {
        dsi_share_end(x);
        return true;
    }
    ds_scope *scope = ds_scope_open();
    ds_tensor *copy = dsi_new_like(x);
    bool done = dsi_copy(copy, x) == DS_OK;
    if (done) dsi_tensor_set_data(x, copy);
    ds_scope_close(scope);
    return done;
}

bool dsi_make_all_own(const dsi_storage *s)
{
    while (s->sharers)
        if (!dsi_make_own(s->sharers)) return false;
    return true;
}
