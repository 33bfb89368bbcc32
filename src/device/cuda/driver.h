/* device/cuda/driver.h: NVIDIA's driver, libcuda.so.1, opened when the first
 * GPU is asked for. The toolkit's header is needed to compile this folder, and
 * no file of the toolkit to run it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/device.h"

#include <cuda.h>

/* All that is called of it: our name, the driver's. A function whose arguments
 * have changed has its old name as a macro of the new one (cuMemAlloc is
 * cuMemAlloc_v2): types and looked-up names both follow the macro. */
#define DSI_CUDA_FUNCTIONS(X) \
    X(init, cuInit) \
    X(error_name, cuGetErrorName) \
    X(error_text, cuGetErrorString) \
    X(device_count, cuDeviceGetCount) \
    X(device_get, cuDeviceGet) \
    X(device_name, cuDeviceGetName) \
    X(device_bytes, cuDeviceTotalMem) \
    X(device_attribute, cuDeviceGetAttribute) \
    X(context_retain, cuDevicePrimaryCtxRetain) \
    X(context_release, cuDevicePrimaryCtxRelease) \
    X(context_enter, cuCtxSetCurrent) \
    X(memory_info, cuMemGetInfo) \
    X(alloc, cuMemAlloc) \
    X(free, cuMemFree) \
    X(alloc_async, cuMemAllocAsync) \
    X(free_async, cuMemFreeAsync) \
    X(alloc_host, cuMemHostAlloc) \
    X(free_host, cuMemFreeHost) \
    X(copy_in, cuMemcpyHtoDAsync) \
    X(copy_out, cuMemcpyDtoHAsync) \
    X(copy, cuMemcpyDtoDAsync) \
    X(copy_peer, cuMemcpyPeerAsync) \
    X(stream_new, cuStreamCreate) \
    X(stream_free, cuStreamDestroy) \
    X(stream_sync, cuStreamSynchronize) \
    X(stream_wait, cuStreamWaitEvent) \
    X(event_new, cuEventCreate) \
    X(event_record, cuEventRecord) \
    X(event_free, cuEventDestroy)

#define DSI_CUDA_MEMBER(ours, theirs) __typeof__(&theirs) ours;
typedef struct dsi_cuda_driver {
    DSI_CUDA_FUNCTIONS(DSI_CUDA_MEMBER)
} dsi_cuda_driver;
#undef DSI_CUDA_MEMBER

/* Opened and started once a process; its functions if there is at least one
 * GPU, else NULL. */
const dsi_cuda_driver *dsi_cuda_open(void);

int dsi_cuda_count(void);            /* GPUs that this process may use; 0: dsi_cuda_why says why */
const char *dsi_cuda_why_none(void); /* one line: what is missing, and what to do */

/* DS_OK for CUDA_SUCCESS; else the message: "cuda:1: what: the driver's text
 * (its name)". */
ds_status dsi_cuda_check(int index, CUresult result, const char *what);

extern const dsi_kernels dsi_cuda_kernels;
