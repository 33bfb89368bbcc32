/* engine/checkpoint/save_extent.c: tensors that are written from the memory in which they lie, piece after piece.
 * SPDX-License-Identifier: MIT */
#include "save.h"

#include "base/mem.h"
#include "checkpoint/value.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

dsi_extent *dsi_extent_new(dsi_extents *all)
{
    dsi_extent *s = dsi_alloc(sizeof *s);
    s->zero = all->zero;
    dsi_list_add(all, s);
    return s;
}

static void add(dsi_extent *s, ds_tensor *x, size_t bytes, int param)
{
    if (!bytes) return;
    dsi_list_add(s, (dsi_piece){dsi_ref(x), bytes, param});
    s->bytes += bytes;
}

ds_status dsi_extent_add(dsi_extent *s, ds_tensor *x, int param)
{
    if (!x) return dsi_null_argument("engine_save");
    add(s, x, (size_t)dsi_numel(x->shape) * ds_dtype_size(x->dtype), param);
    return DS_OK;
}

void dsi_extent_add_zeros(dsi_extent *s, size_t bytes) { add(s, NULL, bytes, -1); }

/* Bytes skip .. skip + n - 1 of a piece. What lies in a file is brought, and goes after its last byte. */
static ds_status read_piece(const dsi_extent *s, const dsi_piece *x, size_t skip, char *to,
                            size_t n)
{
    const char *p = x->x ? dsi_v(x->x).p : NULL;
    if (x->x && !p) return ds_error_status();
    if (p)
        memcpy(to, p + skip, n);
    else
        memset(to, 0, n);
    bool ends = x->param >= 0 && skip + n == x->bytes;
    return ends && s->zero ? dsi_zero_release(s->zero, x->param, false) : DS_OK;
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
        ds_status status = read_piece(s, x, skip, out, n);
        if (status != DS_OK) return status;
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

ds_value *dsi_extent_of(dsi_extents *all, ds_tensor *x, int param)
{
    if (!x) return dsi_null_operand("engine_save");
    dsi_extent *s = dsi_extent_new(all);
    return dsi_extent_add(s, x, param) == DS_OK ? dsi_extent_value(s, x->dtype, x->shape) : NULL;
}

static size_t bytes_of(const dsi_extents *all)
{
    size_t bytes = 0;
    for (int i = 0; i < all->n; i++) bytes += all->at[i]->bytes;
    return bytes;
}

static void drop_pieces(dsi_extent *s)
{
    for (int i = 0; i < s->n; i++) dsi_unref(s->at[i].x);
    dsi_list_free(s);
}

/* Fresh memory costs more than the copy where it comes in pages of 4 KiB. */
static char *room_for(size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (bytes < HUGE_PAGE) return malloc(bytes ? bytes : 1);
    char *p = aligned_alloc(HUGE_PAGE, whole);
    if (p) (void)madvise(p, whole, MADV_HUGEPAGE); /* a hint */
    return p;
}

ds_status dsi_extents_copy(dsi_extents *all)
{
    for (int i = 0; i < all->n; i++) {
        dsi_extent *s = all->at[i];
        char *copy = room_for(s->bytes);
        if (!copy)
            return dsi_fail(
                DS_ENOMEM,
                "engine_save: no memory for the copy that is written behind (%lld MB): leave "
                "\"checkpoint\": {\"async\": true} out",
                (long long)(bytes_of(all) >> 20));
        if (read_extent(s, 0, copy, s->bytes) != DS_OK) {
            free(copy);
            return ds_error_status();
        }
        s->copy = copy;
        drop_pieces(s);
    }
    return DS_OK;
}

void dsi_extents_free(dsi_extents *all)
{
    for (int i = 0; i < all->n; i++) {
        drop_pieces(all->at[i]);
        free(all->at[i]->copy);
        dsi_free(all->at[i]);
    }
    dsi_list_free(all);
}
