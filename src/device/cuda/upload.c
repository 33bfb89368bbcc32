/* device/cuda/upload.c: copies to a GPU for which the host does not wait: their
 * bytes are copied aside, to pinned memory of the handle's own.
 *
 * Invariants: the memory has two halves, and copies are queued from one until
 * it is full. Then an event marks the end of its copies on the stream, and a
 * half is written again when the stream has come to its event; so the host
 * waits only when it is more than a half ahead. All of it is queued on the
 * handle's own stream. Behind the halves is where the fault flag is copied to:
 * pinned memory is dear.
 * SPDX-License-Identifier: MIT */
#include "driver.h"

#include "base/mem.h"
#include "device/graph.h"

#include <string.h>

#define HALF  ((size_t)1 << 20)
#define ALIGN ((size_t)64)

struct dsi_cuda_upload {
    char *memory;    /* pinned: both halves, then a dsi_fault */
    CUevent read[2]; /* the copies from a half; NULL: it was never full */
    size_t used;     /* bytes of the half in use */
    int half;        /* in use */
};

CUresult dsi_cuda_upload_open(dsi_cuda_gpu *g)
{
    void *p = NULL;
    CUresult result = g->f->alloc_host(&p, 2 * HALF + sizeof(dsi_fault), CU_MEMHOSTALLOC_PORTABLE);
    if (result != CUDA_SUCCESS) return result;
    g->upload = dsi_alloc(sizeof *g->upload);
    g->upload->memory = p;
    g->fault_seen = (dsi_fault *)(void *)(g->upload->memory + 2 * HALF);
    return CUDA_SUCCESS;
}

void dsi_cuda_upload_close(dsi_cuda_gpu *g)
{
    if (!g->upload) return;
    for (int i = 0; i < 2; i++)
        if (g->upload->read[i]) g->f->event_free(g->upload->read[i]);
    g->f->free_host(g->upload->memory);
    dsi_free(g->upload);
}

/* The other half, once the copies from it have ended. */
static ds_status half_change(dsi_stream *s, dsi_cuda_gpu *g)
{
    struct dsi_cuda_upload *u = g->upload;
    CUevent *full = &u->read[u->half], next = u->read[!u->half];
    CUresult result = *full ? CUDA_SUCCESS : g->f->event_new(full, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) result = g->f->event_record(*full, s->handle);
    if (next && dsi_cuda_await(s) != DS_OK) return ds_error_status();
    if (result == CUDA_SUCCESS && next) result = g->f->event_sync(next);
    if (result != CUDA_SUCCESS)
        return dsi_cuda_check(s->device->index, result, "waiting for copies to it");
    u->half = !u->half;
    u->used = 0;
    return DS_OK;
}

bool dsi_cuda_uploads(const dsi_stream *s, size_t bytes)
{
    const dsi_device *d = s->device;
    return bytes && bytes <= HALF && s == &d->stream && !dsi_graph_capturing(d);
}

ds_status dsi_cuda_upload(dsi_stream *s, const void *host, size_t bytes, const void **pinned)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(s->device);
    struct dsi_cuda_upload *u = g->upload;
    if (bytes > HALF - u->used && half_change(s, g) != DS_OK) return ds_error_status();
    *pinned = memcpy(u->memory + (size_t)u->half * HALF + u->used, host, bytes);
    size_t taken = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    u->used = taken < HALF - u->used ? u->used + taken : HALF;
    return DS_OK;
}
