/* comm/staged.c: collectives of tensors that are on a GPU, for backends that
 * take host memory: what is sent is copied to pinned memory of the host, and
 * what was received back.
 *
 * Invariants: a block belongs to one request (r->staged) from dsi_staged_open to
 * dsi_staged_close, else to its communicator's list of unused ones, which keeps
 * it for the next request of that size. A request's in and out are places in its
 * block while it has one, with the same distance as on the device where they
 * overlap (in place, or a rank's own piece). Both copies have ended when the
 * functions return: the host never touches a block that the device still reads.
 * SPDX-License-Identifier: MIT */
#include "comm.h"

#include "base/error.h"
#include "base/mem.h"

#define ALIGN ((size_t)64)

typedef struct dsi_staged {
    dsi_device *device; /* that pinned the memory */
    char *host;
    size_t bytes;
    const void *in; /* the caller's operands, on the device */
    void *out;
    struct dsi_staged *next;
} dsi_staged;

static size_t counts_sum(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += counts[i];
    return (size_t)sum;
}

/* Bytes of both operands; 0 of one that this rank does not have. */
static void operand_bytes(const dsi_request *r, size_t *in, size_t *out)
{
    int size = r->comm->size;
    size_t each = (size_t)r->n, all = each * (size_t)size, element = ds_dtype_size(r->dtype);
    *in = *out = each;
    if (r->what == DSI_REDUCE_SCATTER || r->what == DSI_SCATTER || r->what == DSI_ALL_TO_ALL)
        *in = all;
    if (r->what == DSI_ALL_GATHER || r->what == DSI_GATHER || r->what == DSI_ALL_TO_ALL) *out = all;
    if (r->what == DSI_ALL_TO_ALL_ROWS) {
        *in = counts_sum(r->counts, size);
        *out = counts_sum(r->counts + size, size);
    }
    *in = r->in ? *in * element : 0;
    *out = r->out ? *out * element : 0;
}

/* Whether this rank's `in` is read: only then is it copied to the host. A rank
 * that is not the root of a broadcast only receives. */
static bool request_sends(const dsi_request *r)
{
    return r->what != DSI_RECV && (r->what != DSI_BROADCAST || r->root == r->comm->rank);
}

/* Whether this rank's `out` is written: only then is it copied back. The root
 * of a broadcast has it already; of reduce_to only the root gets a result. */
static bool request_receives(const dsi_request *r)
{
    bool root = r->root == r->comm->rank;
    return r->what != DSI_SEND && (r->what != DSI_BROADCAST || !root) &&
           (r->what != DSI_REDUCE || root);
}

/* An unused block that fits, or a new one. */
static dsi_staged *staged_take(ds_comm *c, dsi_device *device, size_t bytes)
{
    dsi_staged **at = &c->staged;
    while (*at && ((*at)->device != device || (*at)->bytes < bytes || (*at)->bytes / 2 > bytes))
        at = &(*at)->next;
    dsi_staged *s = *at;
    if (s) {
        *at = s->next;
        return s;
    }
    char *host = device->type->alloc_host(device, bytes);
    if (!host)
        return dsi_refuse_with(
            DS_ENOMEM, "%s: there are no %zu bytes of pinned host memory for a tensor on %s",
            ds_comm_backend(c), bytes, ds_device_name(dsi_device_id(device)));
    s = dsi_alloc(sizeof *s);
    *s = (dsi_staged){.device = device, .host = host, .bytes = bytes};
    return s;
}

ds_status dsi_staged_open(dsi_request *r)
{
    size_t in, out;
    operand_bytes(r, &in, &out);
    if (!in && !out) return DS_OK;
    const char *i = r->in, *o = r->out;
    bool overlap = in && out && i < o + out && o < i + in;
    const char *first = i < o ? i : o;
    size_t in_at = overlap ? (size_t)(i - first) : 0;
    size_t out_at = overlap ? (size_t)(o - first) : (in + ALIGN - 1) / ALIGN * ALIGN;
    size_t bytes = in_at + in > out_at + out ? in_at + in : out_at + out;
    dsi_staged *s = staged_take(r->comm, r->device, bytes);
    if (!s) return DS_ENOMEM;
    s->in = r->in;
    s->out = r->out;
    r->staged = s;
    if (r->in) r->in = s->host + in_at;
    if (r->out) r->out = s->host + out_at;
    dsi_stream *stream = &r->device->stream;
    if (!in || !request_sends(r) ||
        r->device->type->copy_out(stream, s->host + in_at, s->in, in) == DS_OK)
        return DS_OK;
    (void)dsi_staged_close(r, false);
    return ds_error_status();
}

ds_status dsi_staged_close(dsi_request *r, bool arrived)
{
    dsi_staged *s = r->staged;
    size_t in, out;
    operand_bytes(r, &in, &out);
    ds_status status = DS_OK;
    if (arrived && out && request_receives(r))
        status = r->device->type->copy_in(&r->device->stream, s->out, r->out, out);
    r->in = s->in;
    r->out = s->out;
    r->staged = NULL;
    s->next = r->comm->staged;
    r->comm->staged = s;
    return status;
}

void dsi_staged_free(ds_comm *c)
{
    while (c->staged) {
        dsi_staged *s = c->staged;
        c->staged = s->next;
        s->device->type->free_host(s->device, s->host);
        dsi_free(s);
    }
}
