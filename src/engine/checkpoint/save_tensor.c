/* engine/checkpoint/save_tensor.c: tensors that are written from the memory
 * that has them, chunk after chunk.
 *
 * Invariants: a tensor counts a reference on each of its chunks' tensors, until
 * it is copied or freed. Reading may materialize a parameter from its file on
 * disk; it is released after its last byte was read.
 * SPDX-License-Identifier: MIT */
#include "save.h"

#include "checkpoint/value.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

dsi_save_tensor *dsi_save_tensor_new(dsi_save_tensors *all)
{
    dsi_save_tensor *s = dsi_alloc(sizeof *s);
    s->zero = all->zero;
    dsi_list_add(all, s);
    return s;
}

/* x NULL: zeros. */
static void tensor_add_chunk(dsi_save_tensor *s, ds_tensor *x, size_t bytes, int param)
{
    if (!bytes) return;
    dsi_list_add(s, (dsi_save_chunk){dsi_ref(x), bytes, param});
    s->bytes += bytes;
}

ds_status dsi_save_tensor_add(dsi_save_tensor *s, ds_tensor *x, int param)
{
    if (!x) return dsi_null_argument("engine_save");
    tensor_add_chunk(s, x, (size_t)dsi_numel(x->shape) * ds_dtype_size(x->dtype), param);
    return DS_OK;
}

void dsi_save_tensor_add_zeros(dsi_save_tensor *s, size_t bytes)
{
    tensor_add_chunk(s, NULL, bytes, -1);
}

/* Bytes [skip, skip + n) of a chunk. */
static ds_status chunk_read(const dsi_save_tensor *s, const dsi_save_chunk *x, size_t skip,
                            char *to, size_t n)
{
    if (!dsi_acquire(x->x)) return ds_error_status();
    const char *p = dsi_v(x->x).p;
    dsi_device *d = p ? x->x->device : NULL;
    if (!p)
        memset(to, 0, n);
    else if (d->type->kind == DS_CPU)
        memcpy(to, p + skip, n);
    else if (d->type->copy_out(&d->stream, to, p + skip, n) != DS_OK)
        return ds_error_status();
    bool ends = x->param >= 0 && skip + n == x->bytes;
    return ends && s->zero ? dsi_zero_release(s->zero, x->param, false) : DS_OK;
}

/* Bytes [offset, offset + bytes) of the tensor, for the writer of the file. */
static ds_status tensor_read(void *arg, int64_t offset, void *to, size_t bytes)
{
    const dsi_save_tensor *s = arg;
    size_t skip = (size_t)offset;
    char *out = to;
    if (s->copy) {
        memcpy(out, s->copy + skip, bytes);
        return DS_OK;
    }
    for (int i = 0; bytes && i < s->n; i++) {
        const dsi_save_chunk *x = &s->at[i];
        if (skip >= x->bytes) {
            skip -= x->bytes;
            continue;
        }
        size_t n = x->bytes - skip < bytes ? x->bytes - skip : bytes;
        ds_status status = chunk_read(s, x, skip, out, n);
        if (status != DS_OK) return status;
        out += n;
        bytes -= n;
        skip = 0;
    }
    return DS_OK;
}

static const void *tensor_memory(const void *arg) { return ((const dsi_save_tensor *)arg)->copy; }

/* A value whose bytes are read from the tensor when the file is written. */
ds_value *dsi_save_tensor_value(dsi_save_tensor *s, ds_dtype dtype, ds_dims shape)
{
    ds_value *v = dsi_value_reader(dtype, shape.d, shape.n, tensor_read, s);
    v->tensor.reader->memory = tensor_memory;
    return v;
}

ds_value *dsi_save_tensor_of(dsi_save_tensors *all, ds_tensor *x, int param)
{
    if (!x) return dsi_null_operand("engine_save");
    dsi_save_tensor *s = dsi_save_tensor_new(all);
    return dsi_save_tensor_add(s, x, param) == DS_OK ? dsi_save_tensor_value(s, x->dtype, x->shape)
                                                     : NULL;
}

static size_t tensors_bytes(const dsi_save_tensors *all)
{
    size_t bytes = 0;
    for (int i = 0; i < all->n; i++) bytes += all->at[i]->bytes;
    return bytes;
}

static void tensor_drop_chunks(dsi_save_tensor *s)
{
    for (int i = 0; i < s->n; i++) dsi_unref(s->at[i].x);
    dsi_list_free(s);
}

/* Room for `bytes` in *b. It is kept from save to save, since fresh pages take
 * longer than the copy; huge ones make the first save quicker. */
static bool buffer_reserve(dsi_copy_buffer *b, size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (b->bytes >= bytes) return true;
    free(b->p);
    *b = (dsi_copy_buffer){bytes < HUGE_PAGE ? malloc(bytes) : aligned_alloc(HUGE_PAGE, whole),
                           bytes};
    if (!b->p) b->bytes = 0;
    if (b->p && bytes >= HUGE_PAGE) (void)madvise(b->p, whole, MADV_HUGEPAGE); /* a hint */
    return b->p != NULL;
}

/* Chunks of a tensor are released as soon as it is copied. */
ds_status dsi_save_tensors_copy(dsi_save_tensors *all, dsi_copy_buffer *buffer)
{
    size_t bytes = tensors_bytes(all), at = 0;
    if (!buffer_reserve(buffer, bytes))
        return dsi_fail(DS_ENOMEM,
                        "engine_save: no memory for the copy of an asynchronous save (%lld MB): "
                        "leave \"checkpoint\": {\"async\": true} out",
                        (long long)(bytes >> 20));
    for (int i = 0; i < all->n; i++) {
        dsi_save_tensor *s = all->at[i];
        char *copy = buffer->p + at;
        if (s->bytes && tensor_read(s, 0, copy, s->bytes) != DS_OK) return ds_error_status();
        at += s->bytes;
        s->copy = copy;
        tensor_drop_chunks(s);
    }
    return DS_OK;
}

void dsi_save_tensors_free(dsi_save_tensors *all)
{
    for (int i = 0; i < all->n; i++) {
        tensor_drop_chunks(all->at[i]);
        dsi_free(all->at[i]);
    }
    dsi_list_free(all);
}
