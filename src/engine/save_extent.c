/* engine/save_extent.c: tensors that are written from the memory in which they lie, piece after piece.
 * SPDX-License-Identifier: MIT */
#include "save.h"

#include "base/mem.h"
#include "checkpoint/value.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

dsi_extent *dsi_extent_new(dsi_extents *all)
{
    dsi_extent *s = dsi_alloc(sizeof *s);
    dsi_list_add(all, s);
    return s;
}

static void add(dsi_extent *s, const void *p, size_t bytes)
{
    if (!bytes) return;
    dsi_list_add(s, (dsi_piece){.p = p, .bytes = bytes});
    s->bytes += bytes;
}

ds_status dsi_extent_add(dsi_extent *s, const ds_tensor *x)
{
    if (!x) return dsi_passed("engine_save"), DS_EINVAL;
    size_t bytes = (size_t)dsi_numel(x->shape) * ds_dtype_size(x->dtype);
    if (bytes && !x->storage && x->hooks && x->hooks->fetch) { /* all at once need not fit */
        dsi_list_add(s, (dsi_piece){.x = dsi_ref(x->hooks->self), .bytes = bytes});
        s->bytes += bytes;
        return DS_OK;
    }
    const void *p = bytes ? dsi_v(x).p : NULL;
    if (bytes && !p) return ds_error_status();
    add(s, p, bytes);
    return DS_OK;
}

void dsi_extent_add_zeros(dsi_extent *s, size_t bytes) { add(s, NULL, bytes); }

/* n bytes of a piece, from `from` on. */
static ds_status read_piece(const dsi_piece *x, size_t from, char *out, size_t n)
{
    if (!x->p && !x->x) {
        memset(out, 0, n);
        return DS_OK;
    }
    if (x->x && dsi_bring(x->x) != DS_OK) return ds_error_status();
    const char *p = x->x ? dsi_v(x->x).p : x->p;
    memcpy(out, p + from, n);
    if (x->x && from + n == x->bytes) dsi_release_storage(x->x);
    return DS_OK;
}

/* Bytes offset .. offset + bytes - 1, for the writer. */
static ds_status read_extent(void *arg, int64_t offset, void *to, size_t bytes)
{
    const dsi_extent *s = arg;
    size_t skip = (size_t)offset;
    char *out = to;
    if (s->copy) {
        memcpy(out, s->copy + skip, bytes);
        return DS_OK;
    }
    for (int i = 0; bytes && i < s->n; i++) {
        const dsi_piece *x = &s->at[i];
        if (skip >= x->bytes) {
            skip -= x->bytes;
            continue;
        }
        size_t n = x->bytes - skip < bytes ? x->bytes - skip : bytes;
        if (read_piece(x, skip, out, n) != DS_OK) return ds_error_status();
        out += n;
        bytes -= n;
        skip = 0;
    }
    return DS_OK;
}

ds_value *dsi_extent_value(dsi_extent *s, ds_dtype dtype, ds_dims shape)
{
    return dsi_value_source(dtype, shape.d, shape.n, read_extent, s);
}

ds_value *dsi_extent_of(dsi_extents *all, const ds_tensor *x)
{
    if (!x) return dsi_passed("engine_save");
    dsi_extent *s = dsi_extent_new(all);
    return dsi_extent_add(s, x) == DS_OK ? dsi_extent_value(s, x->dtype, x->shape) : NULL;
}

size_t dsi_extents_bytes(const dsi_extents *all)
{
    size_t bytes = 0;
    for (int i = 0; i < all->n; i++) bytes += all->at[i]->bytes;
    return bytes;
}

ds_status dsi_extents_copy(dsi_extents *all)
{
    for (int i = 0; i < all->n; i++) {
        dsi_extent *s = all->at[i];
        char *copy = malloc(s->bytes ? s->bytes : 1);
        if (!copy)
            return dsi_fail(
                DS_ENOMEM,
                "engine_save: no memory for the copy that is written behind (%lld MB): leave "
                "\"checkpoint\": {\"async\": true} out",
                (long long)(dsi_extents_bytes(all) >> 20));
        if (read_extent(s, 0, copy, s->bytes) != DS_OK) {
            free(copy);
            return ds_error_status();
        }
        s->copy = copy;
    }
    return DS_OK;
}

void dsi_extents_free(dsi_extents *all)
{
    for (int i = 0; i < all->n; i++) {
        for (int k = 0; k < all->at[i]->n; k++) dsi_unref(all->at[i]->at[k].x);
        dsi_list_free(all->at[i]);
        free(all->at[i]->copy);
        dsi_free(all->at[i]);
    }
    dsi_list_free(all);
}
