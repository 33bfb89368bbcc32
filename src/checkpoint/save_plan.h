/* checkpoint/save_plan.h: which memory a save writes for the tensors of a
 * value.
 *
 * Note [Storages] A .pth holds storages, and tensors as views of them.
 * torch.save writes each storage whole, also for a view of a thousandth of it.
 * Here tensors that overlap in memory make one storage, from the first of their
 * bytes to the last. Tensors that do not overlap make one each, also if they
 * are in one buffer. So tensors that shared memory share it after the load, and
 * parameters in a flat buffer, or a slice of a large tensor, cost only their
 * own bytes. A view that uses less than half of the bytes that it spans, a
 * column for example, does not add the bytes between its elements to the file:
 * it becomes a view of a storage that other tensors need, or is written
 * row-major.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "value.h"

/* A tensor as a view of storages.at[storage]. */
typedef struct dsi_planned_tensor {
    const ds_value *value;
    int storage;
    ds_dtype dtype;
    ds_dims shape;
    int64_t offset, stride[DS_MAX_DIMS]; /* elements */
} dsi_planned_tensor;

typedef struct dsi_planned_storage {
    ds_dtype dtype;
    int64_t numel;
    const char *begin;   /* its bytes, in `memory`; NULL: those of `from`, row-major */
    ds_value *from;      /* a value of the tree, not counted */
    dsi_storage *memory; /* counted; NULL if begin is NULL */
} dsi_planned_storage;

typedef struct dsi_save_plan {
    struct {
        DSI_LIST(dsi_planned_tensor)
    } tensors; /* in the order of the walk */
    struct {
        DSI_LIST(dsi_planned_storage)
    } storages;
} dsi_save_plan;

/* Plans what to write for v; false with the message, which begins with
 * `what`. */
bool dsi_save_plan_make(dsi_save_plan *s, const char *what, ds_value *v);
void dsi_save_plan_free(dsi_save_plan *s);

/* Hands the bytes of storage i to sink in chunks of about a MiB, in order.
 * Fails if a reader fails or a copy has no memory. */
ds_status dsi_save_plan_write(const dsi_save_plan *s, int i,
                              void (*sink)(void *arg, const void *data, size_t bytes), void *arg);

/* The same for the elements of x in row-major order. Of a tensor that is not
 * contiguous it copies a part at a time. */
ds_status dsi_tensor_bytes(ds_tensor *x, void (*sink)(void *arg, const void *data, size_t bytes),
                           void *arg);

/* Properties and bytes of a tensor's value, which may be a reader. */
DSI_SHARED ds_dtype dsi_value_dtype(const ds_value *v);
DSI_SHARED ds_dims dsi_value_shape(const ds_value *v);
int64_t dsi_value_size(const ds_value *v); /* bytes */
DSI_SHARED ds_status dsi_value_bytes(const ds_value *v,
                                     void (*sink)(void *arg, const void *data, size_t bytes),
                                     void *arg);
