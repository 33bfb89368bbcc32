/* device/cuda/driver.h: NVIDIA's driver, libcuda.so.1, opened when the first
 * GPU is asked for; a GPU as a device; launching kernels.
 *
 * Invariants: a dsi_cuda_gpu belongs to one thread, as its dsi_device does, and
 * is used by no other, except that cuda_copy uses the stream and the context of
 * a second device of the same thread. The driver's current context is a
 * property of the thread: what uses a GPU's memory or stream calls
 * dsi_cuda_enter first. Launches and copies within a GPU return before their
 * work is done; what waits is named in memory.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "api.h"
#include "device/device.h"

/* Opened and started once a process; its functions if there is at least one
 * GPU, else NULL. */
const dsi_cuda_driver *dsi_cuda_open(void);

int dsi_cuda_count(void);            /* GPUs that this process may use; 0: dsi_cuda_why says why */
const char *dsi_cuda_why_none(void); /* one line: what is missing, and what to do */

int dsi_cuda_version(void); /* of CUDA, that the driver is for: 12040 is 12.4; 0: there is no GPU */

/* cuLaunchKernelEx; NULL from a driver that cannot start a kernel early in a
 * graph. */
cuda_launch_early *dsi_cuda_launch_early(void);

/* DS_OK for CUDA_SUCCESS; else the message: "cuda:1: what: the driver's text
 * (its name)". */
ds_status dsi_cuda_check(int index, CUresult result, const char *what);

/* memory.c: waits for the stream, if there is something to watch meanwhile:
 * before calls that wait in the driver, where nothing is watched. */
ds_status dsi_cuda_await(dsi_stream *s);

/* A thread's handle on a GPU: dsi_device.own. */
typedef struct dsi_cuda_gpu {
    const dsi_cuda_driver *f;
    CUdevice device;
    CUcontext context;
    bool pools;                      /* allocation and release are ordered on the stream */
    int capability;                  /* 80: compute capability 8.0 */
    int processors;                  /* multiprocessors */
    bool warpgroups;                 /* capability 9.0, and a driver that takes PTX for sm_90a */
    cuda_launch_early *launch_early; /* NULL: a kernel starts when the one before has ended */
    CUdeviceptr fault;               /* a dsi_fault in the GPU's memory, which kernels set */
    dsi_fault *fault_seen;           /* pinned: where the flag is copied to */
    bool fault_is_seen;              /* no kernel was launched since */
    CUevent crossing;      /* orders streams of two GPUs around a copy; NULL: none so far */
    unsigned peers_opened; /* bit i: access between this GPU and GPU i was asked for */
    const char *cubins;    /* machine code for it; NULL: none, or refused */
    struct dsi_cuda_modules *modules;
    struct dsi_cuda_upload *upload;
    struct dsi_cublas *cublas;  /* NULL: no large product so far */
    struct dsi_cuda_held *held; /* held.h; NULL: no small product so far */
    ds_status lost;             /* of a held launch that failed; no call has said it so far */
} dsi_cuda_gpu;

/* The GPU behind d, whose context is then this thread's; what is held (held.h)
 * is launched. */
dsi_cuda_gpu *dsi_cuda_enter(const dsi_device *d);
/* After dsi_cuda_enter: the failure of a launch that was held, once, for a call
 * that must not succeed without it: a launch, a wait, an event, a graph. */
ds_status dsi_cuda_lost(const dsi_device *d);
/* The same, but what is held stays so: for calls whose order does not matter. */
dsi_cuda_gpu *dsi_cuda_context(const dsi_device *d);

/* ---- upload.c: copies to a GPU without a wait of the host ------------------- */

/* Pinned memory, also for fault_seen. */
CUresult dsi_cuda_upload_open(dsi_cuda_gpu *g);
void dsi_cuda_upload_close(dsi_cuda_gpu *g); /* when the stream has ended */
/* Whether a copy of `bytes` on s can be one: it is small, and s is the handle's
 * own stream, which is not captured. */
bool dsi_cuda_uploads(const dsi_stream *s, size_t bytes);
/* Then: copies host aside, to where the copy on s may read it. The host waits
 * only if it is a megabyte ahead of the stream. */
ds_status dsi_cuda_upload(dsi_stream *s, const void *host, size_t bytes, const void **pinned);

/* ---- module.c: kernels, loaded at their first launch ------------------------ */

/* X(family, compute capability that its PTX needs): kernels/FAMILY.cu and
 * ptx/FAMILY.ptx. 90 is no least one: sm_90a, of GPUs of 9.0 alone
 * (`warpgroups` of a dsi_cuda_gpu). */
#define DSI_CUDA_FAMILIES(X) \
    X(copy, 75) \
    X(pointwise, 75) \
    X(reduce, 75) \
    X(index, 75) \
    X(optimizer, 75) \
    X(gemm, 75) \
    X(gemm_lines, 75) \
    X(gemm_mma, 80) \
    X(gemm_wgmma, 90) \
    X(gemm_small, 75) \
    X(gemm_joined, 75) \
    X(pool, 75) \
    X(softmax, 75) \
    X(linear_entropy, 75) \
    X(normalize, 75) \
    X(batch_norm, 75) \
    X(batch_norm_last, 75) \
    X(conv, 75) \
    X(conv_mma, 80) \
    X(conv_last, 80) \
    X(conv_wgmma, 90) \
    X(conv_small, 75) \
    X(conv_step, 75) \
    X(attention, 75) \
    X(attention_mma, 80) \
    X(attention_flash, 80) \
    X(attention_flash_dropout, 80) \
    X(dropout, 75) \
    X(decode, 75) \
    X(route, 75) \
    X(groups, 75) \
    X(groups_mma, 80) \
    X(probe, 80) \
    X(probe_wgmma, 90)

#define DSI_CUDA_FAMILY(name, capability) DSI_CUDA_##name,
typedef enum dsi_cuda_family {
    DSI_CUDA_FAMILIES(DSI_CUDA_FAMILY) DSI_CUDA_N_FAMILIES
} dsi_cuda_family;
#undef DSI_CUDA_FAMILY

/* ptx.c: the text of a family's kernel; starts_early: it waits for the one
 * before it. dsi_free it. */
char *dsi_cuda_kernel_ptx(dsi_cuda_family family, const char *name, bool starts_early);

/* X(compute capability): cubin/sm_CAPABILITY. */
#define DSI_CUDA_CUBINS(X) X(75) X(80) X(90) X(100) X(120)

/* cubin.c: the machine code that a GPU runs -> *file; NULL: none, or not
 * wanted. Fails for a wrong DS_CUBINS. */
ds_status dsi_cuda_use_cubins(int capability, const char **file);
/* A kernel's; NULL: it is not among them. dsi_free it. */
void *dsi_cuda_cubin(const char *file, const char *name);

/* Blocks along y, and along z, at most: what the driver says, 65535. */
int64_t dsi_cuda_most_yz(void);

/* Blocks, threads of a block, bytes of dynamic shared memory. */
typedef struct dsi_cuda_grid {
    unsigned blocks[3], threads[3];
    unsigned shared;
} dsi_cuda_grid;

/* Starts the kernel `name` + `suffix` of a family; args: its one argument, a
 * struct of kernels/args.h, which is copied. Does nothing for a grid without
 * blocks. DS_EDEVICE, with the message, if the driver refuses. */
ds_status dsi_cuda_launch(dsi_stream *s, dsi_cuda_family family, const char *name,
                          const char *suffix, dsi_cuda_grid grid, const void *args);

/* Unloads all modules of g, before its context is released. Kernels of it must
 * have ended. */
void dsi_cuda_unload(dsi_cuda_gpu *g);

/* ---- graph.c: the entries of device.h for recorded work --------------------- */

/* Contracts: dsi_device_type. alloc_fixed may be called while the stream is
 * captured; free_fixed waits for the GPU. `work` is a CUgraphExec, which
 * belongs to the caller until dsi_cuda_graph_free. */
void *dsi_cuda_alloc_fixed(dsi_device *d, size_t bytes);
void dsi_cuda_free_fixed(dsi_device *d, void *p);
ds_status dsi_cuda_capture_begin(dsi_stream *s);
ds_status dsi_cuda_capture_end(dsi_stream *s, bool keep, void **work);
ds_status dsi_cuda_graph_launch(dsi_stream *s, void *work, void *slots, const void *host,
                                size_t bytes);
void dsi_cuda_graph_free(dsi_device *d, void *work);

/* probe.c: runs a wrapper of kernels/ptx.cuh or ptx_wgmma.cuh by its name;
 * memory: a dsi_cuda_probe_memory on the GPU. */
ds_status dsi_cuda_run_probe(dsi_stream *s, const char *wrapper, void *memory);

/* ---- the tables ------------------------------------------------------------ */

extern const dsi_kernels dsi_cuda_kernels;
extern const dsi_fusions dsi_cuda_fusions;
