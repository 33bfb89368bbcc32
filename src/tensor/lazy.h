/* tensor/lazy.h: a lazy tensor's owner that writes its values where they are
 * wanted: Note [Lazy tensors] in lazy.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor.h"

enum { DSI_COPIES = 16 };

typedef struct dsi_lazy_owner {
    /* x, which has no storage, gets one with its values. */
    ds_status (*materialize)(struct dsi_lazy_owner *owner, ds_tensor *x);
    /* Writes the values of n lazy tensors of the owner, x[i]'s to to[i]: a
     * row-major tensor of the same shape and dtype. They stay lazy. */
    ds_status (*write)(struct dsi_lazy_owner *owner, int n, ds_tensor *const *x,
                       ds_tensor *const *to);
    /* Whether a step that is recorded may write them itself: write is then
     * called while it is captured, and before each replay (dsi_graph_feed).
     * Optional. */
    bool (*is_recorded)(const struct dsi_lazy_owner *owner);
} dsi_lazy_owner;

/* A new lazy tensor (dsi_new_lazy) of that owner, which ends it with
 * dsi_set_materialize_hook(x, NULL, NULL). A step that is recorded may read it
 * only as an input. */
ds_tensor *dsi_new_owned(dsi_device *d, ds_dtype dtype, ds_dims shape, dsi_lazy_owner *owner);

/* to[i] = x[i], as by dsi_copy, for n up to DSI_COPIES; the values of lazy
 * tensors of one owner by one call of its write. A pair of one tensor is left
 * out. */
ds_status dsi_copy_all(int n, ds_tensor *const *to, ds_tensor *const *x);

/* recorded[i]: to[i] = x[i] is one that a step writes itself. The values of
 * these come from one owner, and each has them once. */
void dsi_copies_recorded(int n, ds_tensor *const *to, ds_tensor *const *x, bool *recorded);
