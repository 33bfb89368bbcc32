/* device/cuda/memory.c: an NVIDIA GPU as a device: its memory, pinned memory of
 * the host, copies, streams, events.
 *
 * A thread's handle on a GPU has one stream of its own, on which everything
 * happens in order: allocation and release too where the driver has memory
 * pools, so that neither waits for kernels. The context is the one that the
 * GPU's users in this process share; a thread may hold several GPUs, so each
 * call enters its own.
 *
 * A function that waits for the stream or reads memory of the host cannot be
 * repeated by a graph, and calls dsi_graph_forbid; graph.c has the rest of
 * graphs.
 * SPDX-License-Identifier: MIT */
#include "cublas.h"
#include "driver.h"
#include "held.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/graph.h"

#include <stdio.h>
#include <unistd.h>

#define OLDEST 75    /* compute capability of Turing: what the PTX is for */
#define EARLY  90    /* of Hopper: a kernel may start before the one before it ends */
#define GROUPS 90    /* of Hopper alone: products of warpgroups */
#define SM_90A 12000 /* the first CUDA whose driver knows them */

static CUdeviceptr address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

dsi_cuda_gpu *dsi_cuda_context(const dsi_device *d)
{
    dsi_cuda_gpu *g = d->own;
    g->f->context_enter(g->context);
    return g;
}

/* Enters the context, and launches the held kernel first. If the context does
 * not work, the driver's next call fails. */
dsi_cuda_gpu *dsi_cuda_enter(const dsi_device *d)
{
    dsi_cuda_gpu *g = dsi_cuda_context(d);
    ds_status status = dsi_cuda_held_launch(g);
    if (status != DS_OK) g->lost = status;
    return g;
}

ds_status dsi_cuda_lost(const dsi_device *d)
{
    dsi_cuda_gpu *g = d->own;
    ds_status status = g->lost;
    g->lost = DS_OK;
    return status == DS_OK
               ? DS_OK
               : dsi_fail(status, "cuda:%d: a kernel before this call was not launched", d->index);
}

/* ---- the device ------------------------------------------------------------------------------------------ */

static bool attribute(const dsi_cuda_gpu *g, CUdevice_attribute which, int *value)
{
    *value = 0;
    return g->f->device_attribute(value, which, g->device) == CUDA_SUCCESS;
}

/* Closes a handle, also one that make_stream left half made. It waits for the
 * stream first: cuMemFreeAsync may still be queued. */
static void close_gpu(dsi_device *d)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(d);
    if (d->stream.handle) g->f->stream_sync(d->stream.handle); /* what was released last */
    dsi_cuda_cublas_close(g);
    dsi_cuda_unload(g);
    dsi_cuda_upload_close(g);
    dsi_free(g->held);
    if (g->fault) g->f->free(g->fault);
    if (g->crossing) g->f->event_free(g->crossing);
    if (d->stream.handle) g->f->stream_free(d->stream.handle);
    g->f->context_enter(NULL);
    g->f->context_release(g->device);
    dsi_free(g);
    d->own = NULL;
}

/* Reads the GPU's abilities; fails with a message if they do not suffice. */
static ds_status read_attributes(dsi_cuda_gpu *g, int index)
{
    int pools, major, minor;
    attribute(g, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &pools);
    attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
    attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor);
    attribute(g, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &g->processors);
    g->pools = pools != 0;
    g->capability = major * 10 + minor;
    g->warpgroups = g->capability == GROUPS && dsi_cuda_version() >= SM_90A;
    if (g->capability >= EARLY) g->launch_early = dsi_cuda_launch_early();
    if (g->capability >= OLDEST) return dsi_cuda_use_cubins(g->capability, &g->cubins);
    return dsi_fail(DS_EDEVICE,
                    "cuda:%d: this GPU has compute capability %d.%d, and %d.%d or newer is needed: "
                    "use a newer GPU, or the CPU",
                    index, major, minor, OLDEST / 10, OLDEST % 10);
}

/* The stream, and the fault flag, cleared on it. */
static CUresult make_stream(dsi_device *d)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(d);
    CUstream stream = NULL;
    CUresult result = g->f->stream_new(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return result;
    d->stream.handle = stream;
    result = g->f->alloc(&g->fault, sizeof(dsi_fault));
    if (result == CUDA_SUCCESS) result = dsi_cuda_upload_open(g);
    if (result == CUDA_SUCCESS) result = g->f->set(g->fault, 0, sizeof(dsi_fault), stream);
    return result;
}

static ds_status open_gpu(dsi_device *d, int index)
{
    dsi_cuda_gpu *g = dsi_alloc(sizeof *g);
    g->f = dsi_cuda_open();
    CUresult result = g->f->device_get(&g->device, index);
    ds_status status = result == CUDA_SUCCESS ? read_attributes(g, index) : DS_OK;
    if (status == DS_OK && result == CUDA_SUCCESS)
        result = g->f->context_retain(&g->context, g->device);
    if (status == DS_OK) status = dsi_cuda_check(index, result, "this GPU cannot be used");
    if (status != DS_OK) {
        dsi_free(g);
        return status;
    }
    d->own = g;
    result = make_stream(d);
    if (result != CUDA_SUCCESS) {
        close_gpu(d);
        return dsi_cuda_check(index, result, "a stream");
    }
    d->kernels = &dsi_cuda_kernels;
    d->own_fusions = &dsi_cuda_fusions;
    return DS_OK;
}

/* Without a context, which takes some hundred megabytes of the GPU. */
static ds_status cuda_describe(int index, char *text, size_t room)
{
    char name[128] = "?";
    size_t bytes = 0;
    dsi_cuda_gpu g = {.f = dsi_cuda_open()};
    int major, minor;
    CUresult result = g.f->device_get(&g.device, index);
    if (result == CUDA_SUCCESS) result = g.f->device_name(name, sizeof name, g.device);
    if (result == CUDA_SUCCESS) result = g.f->device_bytes(&bytes, g.device);
    attribute(&g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
    attribute(&g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor);
    snprintf(text, room, "%s, %.1f GB, compute capability %d.%d", name,
             (double)bytes / (double)((size_t)1 << 30), major, minor);
    return dsi_cuda_check(index, result, "its name");
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

/* NULL of a full GPU is without a message: the cache gives unused blocks back,
 * tries again, and then says what did not fit. Blocks that were given back are
 * free when the stream has come to that, so a full GPU is waited for. */
static void *cuda_alloc(dsi_device *d, size_t bytes)
{
    dsi_cuda_gpu *g = dsi_cuda_context(d);
    CUdeviceptr p = 0;
    CUresult result = g->pools ? g->f->alloc_async(&p, bytes, d->stream.handle)
                               : g->f->alloc(&p, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && g->pools && !dsi_graph_capturing(d)) {
        g->f->stream_sync(d->stream.handle);
        result = g->f->alloc_async(&p, bytes, d->stream.handle);
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY) dsi_cuda_check(d->index, result, "taking memory");
    return result == CUDA_SUCCESS ? (void *)(uintptr_t)p : NULL;
}

/* Errors are ignored: a failure here has an earlier cause, and a later call
 * reports it. */
static void cuda_free(dsi_device *d, void *p)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(d);
    if (g->pools)
        g->f->free_async(address(p), d->stream.handle);
    else
        g->f->free(address(p));
}

static ds_status cuda_room(dsi_device *d, size_t *unused, size_t *all)
{
    return dsi_cuda_check(d->index, dsi_cuda_enter(d)->f->memory_info(unused, all), "its memory");
}

static void *cuda_alloc_host(dsi_device *d, size_t bytes)
{
    void *p = NULL;
    CUresult result = dsi_cuda_enter(d)->f->alloc_host(&p, bytes, CU_MEMHOSTALLOC_PORTABLE);
    return result == CUDA_SUCCESS ? p : NULL;
}

static void cuda_free_host(dsi_device *d, void *p) { dsi_cuda_enter(d)->f->free_host(p); }

/* ---- copies ---------------------------------------------------------------------------------------------- */

/* Seconds: the watches of the device are called every WATCH_S; after SPIN_S the
 * host sleeps NAP_US microseconds between two queries of the stream. */
#define WATCH_S 1e-3
#define SPIN_S  100e-6
#define NAP_US  20

static ds_status stream_watch(dsi_stream *s)
{
    double begun = dsi_now(), next = WATCH_S;
    while (dsi_cuda_enter(s->device)->f->stream_query(s->handle) == CUDA_ERROR_NOT_READY) {
        double waited = dsi_now() - begun;
        if (waited > SPIN_S) usleep(NAP_US);
        if (waited < next) continue;
        next = waited + WATCH_S;
        for (dsi_device_watch *w = s->device->watches; w; w = w->next)
            if (w->check(w, waited) != DS_OK) return ds_error_status();
    }
    return DS_OK; /* what else went wrong, the wait below says */
}

ds_status dsi_cuda_await(dsi_stream *s) { return s->device->watches ? stream_watch(s) : DS_OK; }

static ds_status stream_finish(dsi_stream *s)
{
    if (dsi_cuda_await(s) != DS_OK) return ds_error_status();
    CUresult result = dsi_cuda_enter(s->device)->f->stream_sync(s->handle);
    if (dsi_cuda_lost(s->device) != DS_OK) return ds_error_status();
    return dsi_cuda_check(s->device->index, result, "waiting for its stream");
}

static ds_status cuda_sync(dsi_stream *s)
{
    ds_status status = dsi_graph_forbid(s->device, "it waits for the GPU");
    return status == DS_OK ? stream_finish(s) : status;
}

/* Neither copy waits: see device.h. */
static ds_status cuda_queue_in(dsi_stream *s, void *dst, const void *pinned, size_t bytes)
{
    if (!bytes) return DS_OK;
    ds_status status = dsi_graph_forbid(
        s->device, "it copies from host memory (random numbers, ds_from_data)");
    if (status != DS_OK) return status;
    CUresult result = dsi_cuda_enter(s->device)->f->copy_in(address(dst), pinned, bytes, s->handle);
    return dsi_cuda_check(s->device->index, result, "copying to it");
}

static ds_status cuda_queue_out(dsi_stream *s, void *pinned, const void *src, size_t bytes)
{
    if (!bytes) return DS_OK;
    ds_status status = dsi_graph_forbid(s->device, "it copies to host memory");
    if (status != DS_OK) return status;
    CUresult result = dsi_cuda_enter(s->device)->f->copy_out(pinned, address(src), bytes,
                                                             s->handle);
    return dsi_cuda_check(s->device->index, result, "copying from it");
}

/* The flag, to pinned memory. */
static ds_status queue_fault(dsi_stream *s)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(s->device);
    CUresult result = g->f->copy_out(g->fault_seen, g->fault, sizeof(dsi_fault), s->handle);
    return dsi_cuda_check(s->device->index, result, "looking at its faults");
}

/* When a copy returns, the host may use its memory, pinned or not. */
static ds_status cuda_copy_in(dsi_stream *s, void *dst, const void *host, size_t bytes)
{
    bool aside = dsi_cuda_uploads(s, bytes);
    ds_status status = aside ? dsi_cuda_upload(s, host, bytes, &host) : DS_OK;
    if (status == DS_OK) status = cuda_queue_in(s, dst, host, bytes);
    return status == DS_OK && bytes && !aside ? stream_finish(s) : status;
}

static ds_status cuda_copy_out(dsi_stream *s, void *host, const void *src, size_t bytes)
{
    dsi_cuda_gpu *g = s->device->own;
    if (!bytes) return DS_OK;
    if (dsi_graph_forbid(s->device, "it reads a value on the host (ds_item, ds_data, a norm)") !=
        DS_OK)
        return ds_error_status();
    ds_status status = dsi_cuda_await(s);
    if (status == DS_OK) status = cuda_queue_out(s, host, src, bytes);
    if (status == DS_OK) status = queue_fault(s);
    if (status == DS_OK) status = stream_finish(s);
    g->fault_is_seen = status == DS_OK;
    return status;
}

/* Lets GPU `from` access the memory of `owner`, so that copies need no detour
 * through the host's. Access that cannot be had is no failure: the driver makes
 * the detour. */
static void open_access(const dsi_cuda_gpu *owner, const dsi_cuda_gpu *from)
{
    CUmemoryPool pool;
    const CUmemAccessDesc access = {CU_MEM_LOCATION_TYPE_DEVICE, from->device,
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (!owner->pools) {
        from->f->context_enter(from->context);
        from->f->context_access(owner->context, 0);
    } else if (from->f->default_pool(&pool, owner->device) == CUDA_SUCCESS) {
        from->f->pool_access(pool, &access, 1);
    }
}

/* Once for each two handles. */
static void open_peers(const dsi_device *to, const dsi_device *from)
{
    dsi_cuda_gpu *a = to->own;
    const dsi_cuda_gpu *b = from->own;
    int can = 0;
    if (a->peers_opened & 1u << from->index) return;
    a->peers_opened |= 1u << from->index;
    if (a->f->can_access_peer(&can, a->device, b->device) == CUDA_SUCCESS && can) {
        open_access(a, b);
        open_access(b, a);
    } else {
        dsi_log(DSI_INFO,
                "cuda:%d and cuda:%d cannot access each other's memory: the driver "
                "copies through the host's",
                to->index, from->index);
    }
}

/* Work given to `later` from now on waits for all that `earlier` was given; the
 * host does not wait. */
static CUresult streams_order(const dsi_device *earlier, const dsi_device *later)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(earlier);
    CUresult result = CUDA_SUCCESS;
    if (!g->crossing) result = g->f->event_new(&g->crossing, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) result = g->f->event_record(g->crossing, earlier->stream.handle);
    if (result != CUDA_SUCCESS) return result;
    return dsi_cuda_enter(later)->f->stream_wait(later->stream.handle, g->crossing, 0);
}

/* Between two GPUs, ordered on both streams: src is complete before, and may be
 * released after. */
static ds_status cuda_copy(dsi_stream *s, void *dst, dsi_device *from, const void *src,
                           size_t bytes)
{
    if (!bytes) return DS_OK;
    dsi_device *to = s->device;
    if (from == to)
        return dsi_cuda_check(
            to->index, dsi_cuda_enter(to)->f->copy(address(dst), address(src), bytes, s->handle),
            "copying");
    ds_status status = dsi_graph_forbid(to, "it copies from another GPU");
    if (status == DS_OK) status = dsi_graph_forbid(from, "it copies to another GPU");
    if (status != DS_OK) return status;
    open_peers(to, from);
    CUresult result = streams_order(from, to);
    const dsi_cuda_gpu *a = from->own, *b = dsi_cuda_enter(to);
    if (result == CUDA_SUCCESS)
        result = b->f->copy_peer(address(dst), b->context, address(src), a->context, bytes,
                                 s->handle);
    if (result == CUDA_SUCCESS) result = streams_order(to, from);
    return dsi_cuda_check(to->index, result, "copying from another GPU");
}

/* ---- faults ---------------------------------------------------------------------------------------------- */

/* The flag is copied to pinned memory, which waits for the kernels before,
 * unless a copy to the host has brought it since the last of them. It is
 * cleared only if it was set: mostly it is not. */
static ds_status stream_take_fault(dsi_stream *s, dsi_fault *out)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(s->device);
    if (!g->fault_is_seen) {
        ds_status status = queue_fault(s);
        if (status == DS_OK) status = stream_finish(s);
        if (status != DS_OK) return status;
        g->fault_is_seen = true;
    }
    *out = *g->fault_seen;
    if (out->op == DSI_NO_FAULT) return DS_OK;
    g->fault_is_seen = false;
    CUresult result = g->f->set(g->fault, 0, sizeof *out, s->handle);
    return dsi_cuda_check(s->device->index, result, "clearing its faults");
}

static ds_status cuda_take_fault(dsi_stream *s, bool all, dsi_fault *out)
{
    dsi_cuda_gpu *g = s->device->own;
    struct dsi_cuda_held *waits = all ? NULL : dsi_cuda_held_aside(s);
    ds_status status = stream_take_fault(s, out);
    if (waits) g->held = waits;
    return status;
}

/* ---- events ---------------------------------------------------------------------------------------------- */

/* Makes the driver's event at its first record; it is kept, and each later
 * record moves it to the stream's end. */
static ds_status cuda_record(dsi_stream *s, dsi_event *e)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(s->device);
    CUevent event = e->handle;
    CUresult result = CUDA_SUCCESS;
    if (dsi_cuda_lost(s->device) != DS_OK) return ds_error_status();
    if (!event) result = g->f->event_new(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) {
        e->handle = event;
        result = g->f->event_record(event, s->handle);
    }
    return dsi_cuda_check(s->device->index, result, "an event");
}

static ds_status wait_event(dsi_stream *s, dsi_event *e)
{
    if (!e->handle) return DS_OK; /* never recorded */
    CUresult result = dsi_cuda_enter(s->device)->f->stream_wait(s->handle, e->handle, 0);
    return dsi_cuda_check(s->device->index, result, "waiting for an event");
}

static void cuda_event_free(dsi_device *d, dsi_event *e)
{
    if (e->handle) dsi_cuda_enter(d)->f->event_free(e->handle);
    e->handle = NULL;
}

/* ---- further streams ---------------------------------------------------------------------------------------- */

static ds_status cuda_stream_open(dsi_device *d, dsi_stream *out)
{
    CUstream stream = NULL;
    CUresult result = dsi_cuda_enter(d)->f->stream_new(&stream, CU_STREAM_NON_BLOCKING);
    *out = (dsi_stream){d, stream};
    return dsi_cuda_check(d->index, result, "a stream");
}

static void cuda_stream_close(dsi_stream *s)
{
    if (s->handle) dsi_cuda_enter(s->device)->f->stream_free(s->handle);
    s->handle = NULL;
}

static ds_status cuda_reached(dsi_stream *s, const dsi_event *e, bool *out)
{
    CUresult result = e->handle ? dsi_cuda_enter(s->device)->f->event_query(e->handle)
                                : CUDA_SUCCESS;
    *out = result == CUDA_SUCCESS;
    if (result == CUDA_ERROR_NOT_READY) return DS_OK;
    return dsi_cuda_check(s->device->index, result, "looking at an event");
}

static ds_status cuda_identify(const dsi_device *d, char *text, size_t size)
{
    const dsi_cuda_gpu *g = d->own;
    return dsi_cuda_check(d->index, g->f->device_bus(text, (int)size, g->device), "its PCI bus");
}

const dsi_device_type dsi_cuda = {
    .name = "cuda",
    .kind = DS_CUDA,
    .channels_last_from = 24, /* conv_small.cu has lanes along pixels */
    .slab_bytes = (size_t)2 << 20,
    .count = dsi_cuda_count,
    .why_none = dsi_cuda_why_none,
    .describe = cuda_describe,
    .open = open_gpu,
    .close = close_gpu,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .room = cuda_room,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy = cuda_copy,
    .record = cuda_record,
    .wait = wait_event,
    .free_event = cuda_event_free,
    .sync = cuda_sync,
    .take_fault = cuda_take_fault,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .reached = cuda_reached,
    .queue_in = cuda_queue_in,
    .queue_out = cuda_queue_out,
    .identify = cuda_identify,
    .alloc_fixed = dsi_cuda_alloc_fixed,
    .free_fixed = dsi_cuda_free_fixed,
    .capture_begin = dsi_cuda_capture_begin,
    .capture_end = dsi_cuda_capture_end,
    .graph_launch = dsi_cuda_graph_launch,
    .graph_free = dsi_cuda_graph_free,
    .probe = dsi_cuda_run_probe,
};
