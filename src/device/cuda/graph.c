/* device/cuda/graph.c: CUDA graphs: a step's work, captured from the stream and
 * launched as a whole.
 *
 * The capture is "relaxed": the thread may allocate memory meanwhile, outside of
 * the stream's order. The graph itself is freed once it is compiled.
 *
 * Invariants: between capture_begin and capture_end nothing on the stream is
 * done, so no call may wait for it: those of memory.c that do are refused by
 * dsi_graph_forbid. A captured kernel keeps the values of its arguments,
 * pointers too; the graph's pool keeps that memory (device/graph.h). A compiled
 * graph runs once at a time: launches are on one stream, in order.
 * SPDX-License-Identifier: MIT */
#include "driver.h"

/* cuMemAlloc, not cuMemAllocAsync, which a capture would record as a node that
 * allocates at each launch. 256-byte aligned; NULL without a message, as from
 * alloc: the cache says what did not fit. */
void *dsi_cuda_alloc_fixed(dsi_device *d, size_t bytes)
{
    CUdeviceptr p = 0;
    return dsi_cuda_context(d)->f->alloc(&p, bytes) == CUDA_SUCCESS ? (void *)(uintptr_t)p : NULL;
}

/* cuMemFree waits for all work of the GPU, so a graph in flight still reads its
 * memory. */
void dsi_cuda_free_fixed(dsi_device *d, void *p)
{
    dsi_cuda_enter(d)->f->free((CUdeviceptr)(uintptr_t)p);
}

ds_status dsi_cuda_capture_begin(dsi_stream *s)
{
    CUresult result = dsi_cuda_enter(s->device)->f->capture_begin(s->handle,
                                                                  CU_STREAM_CAPTURE_MODE_RELAXED);
    return dsi_cuda_check(s->device->index, result, "recording a step");
}

/* Ends the capture in any case, so that the stream works again. Without `keep`
 * its failure is not reported: what was captured is not wanted. The driver
 * invalidates a capture when a call that cannot be recorded came between; then
 * graph is NULL. */
ds_status dsi_cuda_capture_end(dsi_stream *s, bool keep, void **work)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(s->device);
    CUgraph graph = NULL;
    CUgraphExec compiled = NULL;
    CUresult result = g->f->capture_end(s->handle, &graph);
    *work = NULL;
    if (!keep) g->lost = DS_OK;
    ds_status status = dsi_cuda_lost(s->device);
    if (result == CUDA_SUCCESS && keep && status == DS_OK)
        result = g->f->graph_compile(&compiled, graph, 0);
    if (graph) g->f->graph_free(graph);
    if (result == CUDA_SUCCESS) *work = compiled;
    if (!keep || status != DS_OK) return status;
    return dsi_cuda_check(s->device->index, result, "the graph of a step");
}

/* Memory of the host that is not pinned is copied aside before copy_in
 * returns. */
ds_status dsi_cuda_graph_launch(dsi_stream *s, void *work, void *slots, const void *host,
                                size_t bytes)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(s->device);
    CUresult result = CUDA_SUCCESS;
    if (dsi_cuda_lost(s->device) != DS_OK) return ds_error_status();
    g->fault_is_seen = false;
    if (bytes) result = g->f->copy_in((CUdeviceptr)(uintptr_t)slots, host, bytes, s->handle);
    if (result == CUDA_SUCCESS) result = g->f->graph_launch(work, s->handle);
    return dsi_cuda_check(s->device->index, result, "launching a step");
}

/* It may run still: the driver frees it after that. */
void dsi_cuda_graph_free(dsi_device *d, void *work) { dsi_cuda_enter(d)->f->graph_work_free(work); }
