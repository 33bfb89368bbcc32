/* device/cuda/api.h: what we use of the CUDA driver API, declared here, so that
 * no file of NVIDIA's toolkit is needed to compile. Names, types and numbers
 * are those of the CUDA Driver API Reference Manual; functions are looked up in
 * libcuda.so.1 at run time (driver.c).
 *
 * A suffix such as _v2 is a part of the symbol: the toolkit's cuda.h defines
 * the plain names as macros of the newest one, but libcuda.so.1 still has the
 * old functions under the plain names, with other arguments.
 *
 * Invariants: a value here equals NVIDIA's, because it is passed to the driver
 * as a number. Every function returns a CUresult; one that ends with Async or
 * that takes a stream only queues work, whose failure a later call returns.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stddef.h>

/* A device is a number; memory of a GPU is an address that only the GPU reads;
 * all else is a pointer to what the driver does not show. All threads of the
 * process share a GPU's primary context, but each makes it current for
 * itself. */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraphExec_st *CUgraphExec;

/* Some of the driver's results: those that are compared here, or that the
 * emulator of tests/gpu returns. The driver names the others too
 * (error_name). */
typedef enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_INVALID_SOURCE = 300,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;

/* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: bytes of shared memory that a block may
 * have after CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES was set; without
 * it, 48 KiB. */
typedef enum CUdevice_attribute {
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115
} CUdevice_attribute;

/* CUmemAccessDesc with the location's type DEVICE and the flags PROT_READWRITE:
 * which GPU may access a pool's memory. */
typedef struct CUmemAccessDesc {
    int location_type, location_id, flags;
} CUmemAccessDesc;
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };

typedef enum CUjit_option {
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
} CUjit_option;

typedef enum CUfunction_attribute {
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
} CUfunction_attribute;

/* NON_BLOCKING: the stream does not wait for the default stream, which other
 * libraries of the process may use. DISABLE_TIMING: an event that only orders
 * is cheaper. PORTABLE: pinned for the contexts of all GPUs. */
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2, CU_MEMHOSTALLOC_PORTABLE = 1 };
enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };

/* CUlaunchConfig and CUlaunchAttribute, with the one attribute that we use: the
 * kernel may start before the kernel before it on its stream has ended, once
 * each block of that kernel allows it (griddepcontrol.launch_dependents) or has
 * ended. From CUDA 11.8, in graphs from 12.3, on GPUs from 9.0. */
enum { CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
typedef struct CUlaunchAttribute {
    int id, unused;
    union {
        char room[64];
        int programmatic;
    } value;
} CUlaunchAttribute;
typedef struct CUlaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attribute;
    unsigned n_attributes;
} CUlaunchConfig;
typedef CUresult cuda_launch_early(const CUlaunchConfig *config, CUfunction function, void **args,
                                   void **extra);

/* All that is called: X(our name, the driver's symbol, its arguments). */
#define DSI_CUDA_FUNCTIONS(X) \
    X(init, cuInit, (unsigned flags)) \
    X(error_name, cuGetErrorName, (CUresult error, const char **name)) \
    X(error_text, cuGetErrorString, (CUresult error, const char **text)) \
    X(device_count, cuDeviceGetCount, (int *count)) \
    X(device_get, cuDeviceGet, (CUdevice * device, int index)) \
    X(device_name, cuDeviceGetName, (char *name, int room, CUdevice device)) \
    X(device_bus, cuDeviceGetPCIBusId, (char *bus, int room, CUdevice device)) \
    X(device_bytes, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device)) \
    X(device_attribute, cuDeviceGetAttribute, \
      (int *value, CUdevice_attribute which, CUdevice device)) \
    X(can_access_peer, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer)) \
    X(default_pool, cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device)) \
    X(pool_access, cuMemPoolSetAccess, \
      (CUmemoryPool pool, const CUmemAccessDesc *access, size_t n)) \
    X(context_access, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags)) \
    X(context_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device)) \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device)) \
    X(context_enter, cuCtxSetCurrent, (CUcontext context)) \
    X(memory_info, cuMemGetInfo_v2, (size_t * unused, size_t * all)) \
    X(alloc, cuMemAlloc_v2, (CUdeviceptr * p, size_t bytes)) \
    X(free, cuMemFree_v2, (CUdeviceptr p)) \
    X(alloc_async, cuMemAllocAsync, (CUdeviceptr * p, size_t bytes, CUstream stream)) \
    X(free_async, cuMemFreeAsync, (CUdeviceptr p, CUstream stream)) \
    X(alloc_host, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags)) \
    X(free_host, cuMemFreeHost, (void *p)) \
    X(copy_in, cuMemcpyHtoDAsync_v2, \
      (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)) \
    X(copy_out, cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream)) \
    X(copy, cuMemcpyDtoDAsync_v2, \
      (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)) \
    X(copy_peer, cuMemcpyPeerAsync, \
      (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, \
       size_t bytes, CUstream stream)) \
    X(set, cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)) \
    X(stream_new, cuStreamCreate, (CUstream * stream, unsigned flags)) \
    X(stream_free, cuStreamDestroy_v2, (CUstream stream)) \
    X(stream_sync, cuStreamSynchronize, (CUstream stream)) \
    X(stream_query, cuStreamQuery, (CUstream stream)) \
    X(stream_wait, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags)) \
    X(event_new, cuEventCreate, (CUevent * event, unsigned flags)) \
    X(event_query, cuEventQuery, (CUevent event)) \
    X(event_sync, cuEventSynchronize, (CUevent event)) \
    X(event_record, cuEventRecord, (CUevent event, CUstream stream)) \
    X(event_free, cuEventDestroy_v2, (CUevent event)) \
    X(capture_begin, cuStreamBeginCapture_v2, (CUstream stream, int mode)) \
    X(capture_end, cuStreamEndCapture, (CUstream stream, CUgraph * graph)) \
    X(graph_compile, cuGraphInstantiateWithFlags, \
      (CUgraphExec * work, CUgraph graph, unsigned long long flags)) \
    X(graph_launch, cuGraphLaunch, (CUgraphExec work, CUstream stream)) \
    X(graph_free, cuGraphDestroy, (CUgraph graph)) \
    X(graph_work_free, cuGraphExecDestroy, (CUgraphExec work)) \
    X(module_load, cuModuleLoadDataEx, \
      (CUmodule * module, const void *image, unsigned n, CUjit_option *option, void **value)) \
    X(module_free, cuModuleUnload, (CUmodule module)) \
    X(module_function, cuModuleGetFunction, \
      (CUfunction * function, CUmodule module, const char *name)) \
    X(function_set, cuFuncSetAttribute, \
      (CUfunction function, CUfunction_attribute which, int value)) \
    X(launch, cuLaunchKernel, \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **args, \
       void **extra))

/* The functions in the order of DSI_CUDA_FUNCTIONS, pointers without gaps:
 * dsi_library_open fills the struct as an array. */
#define DSI_CUDA_MEMBER(ours, symbol, args) CUresult(*ours) args;
typedef struct dsi_cuda_driver {
    DSI_CUDA_FUNCTIONS(DSI_CUDA_MEMBER)
} dsi_cuda_driver;
#undef DSI_CUDA_MEMBER
