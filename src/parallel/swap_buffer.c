/* parallel/swap_buffer.c: memory that is read from and written to a file.
 * SPDX-License-Identifier: MIT */
#include "swap_buffer.h"

#include "base/int.h"
#include "base/mem.h"
#include "base/trace.h"

static void *swap_memory(const ds_tensor *t)
{
    return (char *)t->storage->p + dsi_swap_begin(t) * (int64_t)ds_dtype_size(t->dtype);
}

int64_t dsi_swap_begin(const ds_tensor *t)
{
    int64_t p = (int64_t)(uintptr_t)t->storage->p;
    return (dsi_round_up(p, DSI_AIO_ALIGN) - p) / (int64_t)ds_dtype_size(t->dtype);
}

dsi_swap_buffer dsi_swap_buffer_new(dsi_staging *staging, ds_dtype dtype, int64_t elements)
{
    int64_t all = elements + DSI_AIO_ALIGN / (int64_t)ds_dtype_size(dtype);
    ds_scope *scope = ds_scope_open();
    dsi_swap_buffer b = {0};
    b.t = dsi_ref(staging ? dsi_staging_memory(staging, dtype, all)
                          : dsi_fill(dsi_new_host(dtype, ds_shape(all)), 0));
    ds_scope_close(scope);
    return b;
}

void dsi_swap_start(dsi_aio *aio, const dsi_aio_file *file, dsi_swap_buffer *b, bool write,
                    int64_t at, int64_t bytes)
{
    b->op = (dsi_aio_op){
        .file = file, .write = write, .p = swap_memory(b->t), .bytes = (size_t)bytes, .at = at};
    dsi_aio_start(aio, &b->op);
}

ds_status dsi_swap_wait(dsi_aio *aio, dsi_swap_buffer *b)
{
    if (!b->op.runs) return DS_OK;
    dsi_trace_begin("wait for file");
    ds_status status = dsi_aio_wait(aio, &b->op);
    dsi_trace_end();
    return status;
}

void dsi_swap_pin(dsi_aio *aio, const dsi_swap_buffer *b, size_t stride, int n, size_t bytes)
{
    void **p = dsi_alloc((size_t)n * sizeof *p);
    for (int i = 0; i < n; i++)
        p[i] = swap_memory(((const dsi_swap_buffer *)((const char *)b + (size_t)i * stride))->t);
    dsi_aio_pin(aio, p, bytes, n);
    dsi_free(p);
}
