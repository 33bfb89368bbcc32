/* tests/gpu/emulator/fake.h: libcuda.so.1 without a GPU: what src/device/cuda
 * calls of the driver, strict where the real one is. Kernels run on the CPU.
 *
 *     FAKE_CUDA_COUNT=2        GPUs, of FAKE_CUDA_BYTES=1073741824 each; or a list, a number for each
 *     FAKE_CUDA_PEERS=0        no GPU can access the memory of another
 *     FAKE_CUDA_POOLS=0        no stream-ordered memory
 *     FAKE_CUDA_CAPABILITY=90  compute capability
 *     FAKE_CUDA_VERSION=12040  what cuDriverGetVersion says
 *     FAKE_CUDA_FAIL=cuLaunchKernel=700    what fails, and with which CUresult; all=700: everything after cuInit
 *     FAKE_CUDA_LAZY=1         queued work is done at a synchronisation, and not before; collectives
 *                              that wait for other streams or processes are looked at now and then.
 *                              1: that of other streams as late as it may. 2: that of the newest
 *                              stream first, as NCCL's. From 3 on: streams take turns, drawn with
 *                              that seed
 *     FAKE_CUDA_GAP=0          bytes of addresses between allocations (a GPU has 32 GiB of addresses)
 *     FAKE_CUDA_MOST_YZ=65535  blocks along y, and along z, at most
 *     FAKE_CUDA_NO_CUBIN=200   a cubin is refused, with that CUresult
 *     FAKE_CUDA_LOG=1          names each kernel on stderr
 *     FAKE_CUDA_PTX=FOLDER     writes each module's PTX there, KERNEL.ptx
 *     FAKE_CUDA_MACHINE=ptx    executes the PTX itself, in place of the sources of its kernels; refuses
 *                              machine code
 *     FAKE_CUDA_RACES=1        with it: accesses to memory that nothing orders are named, and
 *                              end the program with their kernel; 2: the program continues
 *     FAKE_CUDA_EDIT=KERNEL;OLD;NEW    with it: plants a mistake, NEW for the first OLD of kernels whose
 *                              name begins with KERNEL
 *
 * Invariants: all state is under one lock, which is recursive and is held while
 * kernels run. A stream or an event is an object whose first byte is its GPU's
 * number. Work of a stream is done in order; without FAKE_CUDA_LAZY when it is
 * given. While a stream captures, its work is kept in a graph, and that of
 * streams that wait for its events; a call that the driver refuses meanwhile
 * spoils the capture. A stream whose first work is not ready (a collective, for
 * which others must come) is blocked; whoever waits, and a thread of the
 * driver's own, tries all streams again.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cuda/api.h"

#include <stdbool.h>
#include <stdint.h>

#define SHOWN __attribute__((__visibility__("default")))

enum { FAKE_MOST = 16 }; /* GPUs */

/* The prototypes of the driver's functions: what is defined here has the types
 * that the library calls. */
#define FAKE_PROTOTYPE(ours, symbol, args) SHOWN CUresult symbol args;
DSI_CUDA_FUNCTIONS(FAKE_PROTOTYPE)
SHOWN cuda_launch_early cuLaunchKernelEx;
#undef FAKE_PROTOTYPE

SHOWN CUresult cuDriverGetVersion(int *version);

/* For tests: what the driver has handed out and not got back (contexts,
 * allocations, streams, events, pinned blocks, modules); kernels launched so
 * far, and the name of the last. */
SHOWN int fake_cuda_live(void);
SHOWN long fake_cuda_launches(void);
SHOWN const char *fake_cuda_last_kernel(void);
SHOWN long fake_cuda_compiled(void); /* modules of PTX that were loaded so far */
SHOWN long fake_cuda_used(void);     /* bytes of the first GPU that are allocated */
/* How often the GPU's memory was asked for so far. */
SHOWN long fake_cuda_allocs(void);
/* Launches of graphs; and how often the host waited for a stream, or for an
 * event, so far. */
SHOWN long fake_cuda_graph_launches(void);
SHOWN long fake_cuda_syncs(void);
SHOWN long fake_cuda_event_syncs(void);
/* Copies and memsets that the library called for so far, also into a graph. */
SHOWN long fake_cuda_copies(void);
/* Bytes that were copied between GPUs so far: directly, or (staged) by way of
 * the host's memory, for want of access. */
SHOWN long fake_cuda_peer_bytes(bool staged);
SHOWN long fake_cuda_peer_copies(void); /* and how many copies these were */
/* Kernels that ran while a collective was under way on another stream of their
 * GPU, so far. */
SHOWN long fake_cuda_overlapped(void);
/* Copies that were done before work that another stream of their GPU had by
 * then, so far. */
SHOWN long fake_cuda_copied_beside(void);
/* Kernels and copies that this thread has given to streams, so far. */
SHOWN long fake_cuda_given(void);

/* For the cublasLt of tests: queues a call whose argument is copied, which
 * graphs may hold; it returns true. */
SHOWN CUresult fake_cuda_submit_copied_call(CUstream stream, bool (*call)(void *arg),
                                            const void *arg, size_t bytes);

/* For the NCCL of tests: queues a call, which is made again and again until it
 * returns true. A graph keeps a copy of its argument, and each launch queues
 * another one. */
typedef struct fake_call {
    bool (*call)(void *arg);               /* the one that returns true frees arg */
    void *(*copy)(void *arg, bool queued); /* to be queued, or kept */
    void (*release)(void *arg);            /* one that was not called */
} fake_call;
SHOWN CUresult fake_cuda_submit_call(CUstream stream, const fake_call *type, void *arg);
/* The context's GPU (-1: none); where bytes of that GPU really are (NULL: not
 * within one allocation). */
SHOWN int fake_cuda_now(void);
SHOWN char *fake_cuda_real(CUdeviceptr p, size_t bytes);

CUresult fake_must_fail(const char *function);
#define MAY_FAIL() \
    do { \
        CUresult fails_with = fake_must_fail(__func__); \
        if (fails_with) return fails_with; \
    } while (0)
#define NEED(condition, otherwise) \
    do { \
        if (!(condition)) return CUDA_ERROR_##otherwise; \
    } while (0)

long fake_setting(const char *name, long otherwise);
int fake_capability(void);
int fake_most_shared(void);  /* bytes of shared memory of a block */
unsigned fake_most_yz(void); /* blocks along y, and along z */
size_t fake_gpu_bytes(int gpu);
void fake_count(int change); /* of fake_cuda_live */
void fake_lock(void);
void fake_unlock(void);
int fake_now(void); /* the GPU whose context the thread has entered; -1: none */
bool fake_is_ours(const void *stream_or_event);

/* ---- memory.c ---- */

/* Where bytes at p of a GPU (-1: any) really are; NULL: not within one
 * allocation. */
char *fake_real(CUdeviceptr p, size_t bytes, int gpu);
/* The allocation in which p is, of a GPU or pinned. */
bool fake_find(uint64_t p, uint64_t *from, uint64_t *to);
bool fake_is_pinned(const void *p);
void fake_release(CUdeviceptr p);
/* Opens, or closes, the memory of a GPU, and of those to which it has access:
 * it can be touched only while a kernel runs. */
void fake_gates(int gpu, bool open);
bool fake_has_access(int owner, int from); /* whether `from` has access to owner's memory */

/* ---- stream.c ---- */

enum { FAKE_ARGS = 4096 };

typedef struct fake_work {
    enum { FAKE_COPY, FAKE_SET, FAKE_FREE, FAKE_KERNEL, FAKE_WAIT, FAKE_CALL } kind;
    char *to, *from; /* real addresses; from may be `own` */
    size_t bytes;
    char *own; /* malloced, freed after; of a CALL: its argument, or NULL */
    CUdeviceptr p;
    struct fake_stream *other; /* WAIT: its work up to number `until` */
    long until;
    int branch, of;         /* in a graph: whose work it is; WAIT: for whose */
    const fake_call *again; /* CALL of NCCL: its argument is its own */
    bool (*call)(void *arg);
    void *arg;
    bool called; /* once at least */
    CUfunction function;
    unsigned grid[3], block[3], shared;
    struct fake_work *next;
} fake_work;

CUresult fake_submit(CUstream stream, fake_work w);
/* With the lock held once: waits for all that the stream has been given. */
void fake_wait_for(CUstream stream);
/* Whether the stream captures; then the capture is spoilt. */
bool fake_spoil_capture(CUstream stream);
/* With the lock held once: waits for all streams of a GPU; -1: of all GPUs. */
void fake_drain(int gpu);

/* ---- module.c ---- */

void fake_run_kernel(const fake_work *w, int gpu);
size_t fake_argument_bytes(const fake_work *w); /* of a kernel */

/* ---- cubin.c ---- */

bool fake_is_cubin(const void *image);
/* A copy of it, if the GPU runs it. */
CUresult fake_cubin_load(const void *image, char **copy);
/* Of a kernel in it: the bytes of its argument, the most threads of a block,
 * and whether it may start early. */
bool fake_cubin_read(const char *cubin, const char *name, size_t *bytes, unsigned *threads,
                     bool *waits);

/* ---- entry.cpp: the emulator ---- */

/* A registered kernel, and the size of its argument; NULL: none of that name. */
const void *emulator_find(const char *name, size_t *bytes);
void emulator_run(const void *kernel, const unsigned grid[3], const unsigned block[3],
                  size_t shared, const void *args);

/* ---- ptx_machine/run.cpp ---- */

/* A kernel of PTX text; NULL, with a message on stderr. */
void *ptx_machine_load(const char *text, const char *kernel);
void ptx_machine_free(void *kernel);
void ptx_machine_run(const void *kernel, const unsigned grid[3], const unsigned block[3],
                     size_t shared, const void *args);
