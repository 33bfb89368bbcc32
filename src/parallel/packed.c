/* parallel/packed.c: see packed.h.
 * SPDX-License-Identifier: MIT */
#include "packed.h"

#include "base/int.h"

#include <string.h>

#define ALIGN 64

int64_t dsi_packed_bytes(dsi_view v)
{
    return dsi_numel(dsi_view_dims(v)) * (int64_t)ds_dtype_size(v.dtype);
}

int64_t dsi_packed_places(int n, const dsi_view *v, int64_t *at)
{
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        at[i] = v[i].p ? bytes : -1;
        if (v[i].p) bytes += dsi_round_up(dsi_packed_bytes(v[i]), ALIGN);
    }
    return bytes;
}

dsi_view dsi_packed_view(void *p, int64_t at, dsi_view like)
{
    ds_tensor as = {.shape = dsi_view_dims(like)};
    memcpy(as.stride, like.s, sizeof as.stride);
    if (!dsi_is_dense(&as)) dsi_row_major(as.shape, like.s);
    like.p = (char *)p + at;
    return like;
}

ds_tensor *dsi_packed_of(dsi_device *d, int n, const dsi_view *v, const int64_t *at, int64_t bytes)
{
    ds_tensor *block = dsi_new_on(d, DS_U8, ds_shape(bytes));
    for (int i = 0; block && i < n; i++) {
        if (at[i] < 0) continue;
        ds_tensor *to = dsi_borrow(d, dsi_packed_view(dsi_v(block).p, at[i], v[i]));
        if (dsi_copy(to, dsi_borrow(d, v[i])) != DS_OK) block = NULL;
    }
    return block;
}

void dsi_packed_bind(ds_tensor *x, const ds_tensor *block, int64_t at, dsi_view like)
{
    dsi_view v = dsi_packed_view(NULL, 0, like);
    ds_tensor *y = dsi_alias(block);
    y->dtype = v.dtype;
    y->shape = dsi_view_dims(v);
    memcpy(y->stride, v.s, sizeof y->stride);
    y->offset = at / (int64_t)ds_dtype_size(v.dtype);
    dsi_tensor_set_data(x, y);
}
