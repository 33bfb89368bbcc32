/* parallel/param_swap.c: shards of partitioned parameters on disk: Note [Param
 * swap].
 * Source: Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857, section 6.
 *
 * Invariants:
 * - A unit's shard is in at most one buffer. A buffer's values are newer than
 *   the file until its write has ended.
 * - A buffer with users > 0 keeps its unit, and is not written to.
 * - After a read or write has failed, `failed` refuses all further reads.
 * SPDX-License-Identifier: MIT */
#include "param_swap.h"

#include "base/int.h"
#include "base/mem.h"
#include "base/text.h"
#include "swap_buffer.h"

#include <unistd.h>

typedef struct Buffer {
    dsi_swap_buffer swap; /* first */
    int unit;             /* whose shard it has, or is reading; -1: none */
    int users;            /* that have it open */
    bool ahead;           /* it was read ahead, and was not opened yet */
    uint64_t stamp;       /* of its last use */
} Buffer;

struct dsi_param_swap {
    const dsi_flat *f;
    int64_t *at;             /* [f->units]: places in the file, bytes; -1: it is not there */
    int64_t capacity, bytes; /* of a buffer: elements; of the file */
    Buffer *buffer;
    int buffers, in_file; /* in_file: units */
    uint64_t clock;
    bool failed; /* a shard was not written, or not read: no further reads */
    dsi_aio *aio;
    dsi_aio_file file;
};

static ds_tensor *buffer_shard(const dsi_param_swap *h, const Buffer *b, int k)
{
    int64_t from = dsi_swap_begin(b->swap.t);
    return dsi_flat_range(b->swap.t, from, from + h->f->unit[k].shard_size);
}

/* ---- buffers -------------------------------------------------------------------------------------------- */

static Buffer *buffer_with(const dsi_param_swap *h, int k)
{
    for (int i = 0; i < h->buffers; i++)
        if (h->buffer[i].unit == k) return &h->buffer[i];
    return NULL;
}

/* The least recently used buffer that is not open, preferably one that was not
 * read ahead. NULL: none. */
static Buffer *buffer_oldest(const dsi_param_swap *h, bool ahead_too)
{
    Buffer *best = NULL;
    for (int i = 0; i < h->buffers; i++) {
        Buffer *b = &h->buffer[i];
        if (b->users || (b->ahead && !ahead_too)) continue;
        if (!best || b->ahead < best->ahead || (b->ahead == best->ahead && b->stamp < best->stamp))
            best = b;
    }
    return best;
}

static void buffer_start(dsi_param_swap *h, Buffer *b, bool write)
{
    int64_t each = (int64_t)ds_dtype_size(h->buffer->swap.t->dtype);
    int64_t bytes = dsi_round_up(h->f->unit[b->unit].shard_size * each, DSI_AIO_ALIGN);
    b->stamp = ++h->clock;
    dsi_swap_start(h->aio, &h->file, &b->swap, write, h->at[b->unit], bytes);
}

/* Waits for the read or write of b. After a failure b is empty. */
static ds_status buffer_wait(dsi_param_swap *h, Buffer *b)
{
    ds_status status = dsi_swap_wait(h->aio, &b->swap);
    if (status != DS_OK) b->unit = -1, h->failed = true;
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

bool dsi_param_swap_has_room(const dsi_param_swap *h, int k)
{
    return buffer_with(h, k) || buffer_oldest(h, true);
}

/* Starts to read unit k's shard into the least recently used buffer, whose
 * earlier read or write is waited for. NULL: no buffer, or a failure. */
static Buffer *buffer_read(dsi_param_swap *h, int k, bool ahead)
{
    Buffer *b = buffer_oldest(h, !ahead);
    if (!b || buffer_wait(h, b) != DS_OK) return NULL;
    b->unit = k;
    b->ahead = ahead;
    buffer_start(h, b, false);
    return b;
}

void dsi_param_swap_ahead(dsi_param_swap *h, int k)
{
    if (!h->failed && !buffer_with(h, k)) buffer_read(h, k, true);
    dsi_aio_progress(h->aio);
}

ds_tensor *dsi_param_swap_open(dsi_param_swap *h, int k)
{
    Buffer *b = h->failed ? NULL : buffer_with(h, k);
    if (h->failed && !ds_error()) dsi_fail(DS_EIO, "offload_param: %s has failed", h->file.path);
    if (!b && !h->failed) b = buffer_read(h, k, false);
    if (!b || buffer_wait(h, b) != DS_OK) return NULL;
    b->users++;
    b->ahead = false;
    b->stamp = ++h->clock;
    return buffer_shard(h, b, k);
}

void dsi_param_swap_close(dsi_param_swap *h, int k) { buffer_with(h, k)->users--; }

/* ---- writing -------------------------------------------------------------------------------------------- */

ds_status dsi_param_swap_write(dsi_param_swap *h, int k, const ds_tensor *x)
{
    Buffer *b = buffer_with(h, k);
    if (!b) b = buffer_oldest(h, true);
    DSI_ASSERT(b && !b->users);
    if (buffer_wait(h, b) != DS_OK) return ds_error_status();
    int64_t n = dsi_numel(x->shape);
    ds_scope *scope = ds_scope_open();
    ds_tensor *shard = buffer_shard(h, b, k);
    ds_status status = dsi_copy(dsi_flat_range(shard, 0, n), dsi_flat_range(x, 0, n));
    ds_scope_close(scope);
    b->unit = status == DS_OK ? k : -1;
    b->ahead = false;
    if (status == DS_OK) buffer_start(h, b, true);
    return status;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

/* Places the shards in the file, each at a multiple of DSI_AIO_ALIGN bytes. */
static ds_status choose_places(dsi_param_swap *h, const ds_module *model, int first,
                               const dsi_param_swap_opts *o)
{
    const dsi_flat *f = h->f;
    int64_t size = (int64_t)ds_dtype_size(f->param[0].x->dtype);
    h->at = dsi_alloc((size_t)f->units * sizeof *h->at);
    for (int k = 0; k < f->units; k++) {
        int64_t shard_size = f->unit[k].shard_size;
        h->at[k] = -1;
        if (k < first || !f->unit[k].solo) continue;
        if (shard_size > o->buffer_size)
            return dsi_fail(DS_EINVAL,
                            "offload_param: %s has %lld elements on each rank, but buffer_size is "
                            "%lld: set it to at least %lld",
                            dsi_flat_path(f, model, f->unit[k].first), (long long)shard_size,
                            (long long)o->buffer_size, (long long)shard_size);
        h->at[k] = h->bytes;
        h->bytes += dsi_round_up(shard_size * size, DSI_AIO_ALIGN);
        h->capacity = dsi_max(h->capacity, shard_size);
        h->in_file++;
    }
    return DS_OK;
}

static ds_status param_swap_make_buffers(dsi_param_swap *h, const dsi_param_swap_opts *o,
                                         dsi_staging *staging)
{
    const ds_tensor *like = h->f->param[0].x;
    int64_t size = (int64_t)ds_dtype_size(like->dtype),
            n = dsi_round_up(h->capacity, DSI_AIO_ALIGN / size);
    int wanted = (int)dsi_min(dsi_max(o->buffer_count, 1), dsi_max(h->in_file, 1));
    h->buffer = dsi_alloc((size_t)wanted * sizeof *h->buffer);
    for (; h->buffers < wanted; h->buffers++) {
        dsi_swap_buffer b = dsi_swap_buffer_new(staging, like->dtype, n);
        if (!b.t) return ds_error_status();
        h->buffer[h->buffers] = (Buffer){.swap = b, .unit = -1};
    }
    if (o->pin_memory)
        dsi_swap_pin(h->aio, &h->buffer->swap, sizeof *h->buffer, h->buffers, (size_t)(n * size));
    return DS_OK;
}

dsi_param_swap *dsi_param_swap_new(const dsi_flat *f, const ds_module *model, int first,
                                   const char *folder, const dsi_param_swap_opts *o,
                                   dsi_staging *staging)
{
    dsi_param_swap *h = dsi_alloc(sizeof *h);
    h->f = f;
    h->file.fd = -1;
    h->aio = dsi_aio_new(&o->aio);
    dsi_text name = dsi_text_of("param_rank%d_%lld_%lx", f->rank, (long long)getpid(),
                                (unsigned long)(uintptr_t)h);
    ds_status status = choose_places(h, model, first, o);
    if (status == DS_OK)
        status = dsi_aio_file_open(&h->file, "offload_param", folder, name.s, h->bytes);
    if (status == DS_OK) status = param_swap_make_buffers(h, o, staging);
    dsi_text_free(&name);
    if (status == DS_OK) return h;
    dsi_param_swap_free(h);
    return NULL;
}

void dsi_param_swap_free(dsi_param_swap *h)
{
    if (!h) return;
    for (int i = 0; i < h->buffers; i++) {
        buffer_wait(h, &h->buffer[i]);
        dsi_unref(h->buffer[i].swap.t);
    }
    dsi_aio_free(h->aio);
    dsi_aio_file_close(&h->file);
    dsi_free(h->buffer);
    dsi_free(h->at);
    dsi_free(h);
}

int64_t dsi_param_swap_memory(const dsi_param_swap *h)
{
    return h->buffers * (int64_t)h->buffer->swap.t->storage->bytes;
}

int64_t dsi_param_swap_file(const dsi_param_swap *h) { return h->file.bytes; }

int64_t dsi_param_swap_needs(const dsi_param_swap_opts *o, int64_t owned, int64_t longest,
                             ds_dtype dtype)
{
    int64_t size = (int64_t)ds_dtype_size(dtype), in_memory = dsi_min(owned, o->max_in_cpu);
    int64_t buffer = dsi_round_up(longest * size, DSI_AIO_ALIGN) + DSI_AIO_ALIGN;
    if (in_memory == owned) return owned * size;
    return in_memory * size + (o->buffer_count > 0 ? o->buffer_count : 1) * buffer;
}
