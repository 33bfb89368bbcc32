/* tests/device/fake/libcuda.c: a libcuda.so.1 without GPUs: what
 * src/device/cuda calls of it, strict where the real one is.
 *
 * Memory of a "GPU" is an address range that nobody may touch, so that who
 * takes it for memory of the host ends with a signal as it would with a GPU;
 * the bytes lie elsewhere, and only copies within one allocation reach them.
 * What a thread asks must be of the context that it entered. Streams have
 * nothing to wait for.
 *
 *     FAKE_CUDA_COUNT=2    GPUs, of FAKE_CUDA_BYTES=1073741824 each; FAKE_CUDA_POOLS=0: no stream-ordered memory
 *     FAKE_CUDA_VERSION    what cuDriverGetVersion says
 *     FAKE_CUDA_FAIL=cuMemcpyHtoDAsync=700    what fails, and with which CUresult; all=700: everything after cuInit
 *
 * SPDX-License-Identifier: MIT */
#include <cuda.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SHOWN __attribute__((__visibility__("default")))

enum { MOST = 16 };

typedef struct Allocation {
    struct Allocation *next;
    CUdeviceptr p;
    size_t bytes;
    char *real;
    int gpu;
    bool pooled;
} Allocation;

/* Behind the handles of contexts; a stream or an event is a byte of its own
 * that holds its GPU's number. */
static char contexts[MOST];
static struct {
    int retained;
    size_t used;
} gpus[MOST];
static Allocation *allocations;
static int live; /* allocations, retained contexts, streams, events, pinned blocks */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int now = -1; /* the GPU whose context the thread has entered */

SHOWN int fake_cuda_live(void);
int fake_cuda_live(void) { return live; }

static long setting(const char *name, long otherwise)
{
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

static CUresult must_fail(const char *function)
{
    const char *wish = getenv("FAKE_CUDA_FAIL"), *code = wish ? strchr(wish, '=') : NULL;
    if (!code) return CUDA_SUCCESS;
    size_t n = (size_t)(code - wish);
    bool all = n == 3 && !strncmp(wish, "all", n) && strcmp(function, "cuInit") != 0 && now >= 0;
    return all || !strncmp(wish, function, n) ? (CUresult)atoi(code + 1) : CUDA_SUCCESS;
}

#define MAY_FAIL() \
    do { \
        CUresult fails_with = must_fail(__func__); \
        if (fails_with) return fails_with; \
    } while (0)
#define NEED(condition, otherwise) \
    do { \
        if (!(condition)) return CUDA_ERROR_##otherwise; \
    } while (0)
#define COUNT_UP()   __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST)
#define COUNT_DOWN() __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST)

/* ---- devices, contexts ------------------------------------------------------------------------------------ */

SHOWN CUresult cuDriverGetVersion(int *version)
{
    *version = (int)setting("FAKE_CUDA_VERSION", CUDA_VERSION);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuInit(unsigned flags)
{
    MAY_FAIL();
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SHOWN CUresult cuGetErrorName(CUresult error, const char **name)
{
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                 {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
                 {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return *name = names[i].name, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

SHOWN CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
                                                : "an error of the fake";
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGetCount(int *count)
{
    MAY_FAIL();
    *count = (int)setting("FAKE_CUDA_COUNT", 2);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGet(CUdevice *device, int index)
{
    NEED(index >= 0 && index < setting("FAKE_CUDA_COUNT", 2), INVALID_DEVICE);
    *device = index;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    snprintf(name, (size_t)room, "Fake %d", device);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)setting("FAKE_CUDA_BYTES", 1 << 30);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    (void)device;
    *value = which == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
                 ? (int)setting("FAKE_CUDA_POOLS", 1)
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
                                                                     : 0;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    MAY_FAIL();
    COUNT_UP();
    __atomic_add_fetch(&gpus[device].retained, 1, __ATOMIC_SEQ_CST);
    *context = (CUcontext)(void *)&contexts[device];
    return CUDA_SUCCESS;
}

SHOWN CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    COUNT_DOWN();
    __atomic_sub_fetch(&gpus[device].retained, 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuCtxSetCurrent(CUcontext context)
{
    int gpu = context ? (int)((char *)context - contexts) : -1;
    NEED(gpu < 0 || __atomic_load_n(&gpus[gpu].retained, __ATOMIC_SEQ_CST), INVALID_CONTEXT);
    now = gpu;
    return CUDA_SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

SHOWN CUresult cuMemGetInfo(size_t *unused, size_t *all)
{
    MAY_FAIL();
    NEED(now >= 0, INVALID_CONTEXT);
    *all = (size_t)setting("FAKE_CUDA_BYTES", 1 << 30);
    *unused = *all - gpus[now].used;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *p, size_t bytes, bool pooled)
{
    NEED(now >= 0, INVALID_CONTEXT);
    NEED(bytes, INVALID_VALUE);
    pthread_mutex_lock(&lock);
    bool fits = bytes <= (size_t)setting("FAKE_CUDA_BYTES", 1 << 30) - gpus[now].used;
    Allocation *a = fits ? malloc(sizeof *a) : NULL;
    if (a) {
        void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *a = (Allocation){allocations, (CUdeviceptr)(uintptr_t)range, bytes, malloc(bytes), now,
                          pooled};
        allocations = a;
        gpus[now].used += bytes;
        *p = a->p;
        COUNT_UP();
    }
    pthread_mutex_unlock(&lock);
    return a ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUdeviceptr p, bool pooled)
{
    NEED(now >= 0, INVALID_CONTEXT);
    pthread_mutex_lock(&lock);
    Allocation **at = &allocations;
    while (*at && (*at)->p != p) at = &(*at)->next;
    Allocation *a = *at;
    bool good = a && a->gpu == now && a->pooled == pooled;
    if (good) {
        *at = a->next;
        gpus[now].used -= a->bytes;
        munmap((void *)(uintptr_t)p, a->bytes);
        free(a->real);
        free(a);
        COUNT_DOWN();
    }
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_ours(const void *stream_or_event)
{
    return now >= 0 && stream_or_event && *(const char *)stream_or_event == now;
}

SHOWN CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes)
{
    MAY_FAIL();
    return allocate(p, bytes, false);
}

SHOWN CUresult cuMemFree(CUdeviceptr p) { return release(p, false); }

SHOWN CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    NEED(is_ours(stream), INVALID_HANDLE);
    return setting("FAKE_CUDA_POOLS", 1) ? allocate(p, bytes, true) : CUDA_ERROR_NOT_SUPPORTED;
}

SHOWN CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
    NEED(is_ours(stream), INVALID_HANDLE);
    return release(p, true);
}

SHOWN CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    MAY_FAIL();
    (void)flags;
    *p = malloc(bytes);
    if (*p) COUNT_UP();
    return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SHOWN CUresult cuMemFreeHost(void *p)
{
    free(p);
    COUNT_DOWN();
    return CUDA_SUCCESS;
}

/* Where bytes at p of a GPU (-1: any) really are; NULL: not within one
 * allocation. */
static char *real(CUdeviceptr p, size_t bytes, int gpu)
{
    char *found = NULL;
    pthread_mutex_lock(&lock);
    for (Allocation *a = allocations; a && !found; a = a->next)
        if (p >= a->p && p + bytes <= a->p + a->bytes && (gpu < 0 || gpu == a->gpu))
            found = a->real + (p - a->p);
    pthread_mutex_unlock(&lock);
    return found;
}

SHOWN CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    NEED(is_ours(stream), INVALID_HANDLE);
    char *to = real(dst, bytes, now);
    NEED(to, INVALID_VALUE);
    memcpy(to, src, bytes);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    NEED(is_ours(stream), INVALID_HANDLE);
    const char *from = real(src, bytes, now);
    NEED(from, INVALID_VALUE);
    memcpy(dst, from, bytes);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    NEED(is_ours(stream), INVALID_HANDLE);
    char *to = real(dst, bytes, now);
    const char *from = real(src, bytes, now);
    NEED(to && from, INVALID_VALUE);
    memcpy(to, from, bytes);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                                 CUcontext src_context, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    NEED(is_ours(stream), INVALID_HANDLE);
    char *to = real(dst, bytes, (int)((char *)dst_context - contexts));
    const char *from = real(src, bytes, (int)((char *)src_context - contexts));
    NEED(to && from, INVALID_VALUE);
    memcpy(to, from, bytes);
    return CUDA_SUCCESS;
}

/* ---- streams, events --------------------------------------------------------------------------------------- */

static CUresult new_byte(void *out)
{
    NEED(now >= 0, INVALID_CONTEXT);
    char *p = malloc(1);
    NEED(p, OUT_OF_MEMORY);
    *p = (char)now;
    memcpy(out, &p, sizeof p);
    COUNT_UP();
    return CUDA_SUCCESS;
}

static CUresult free_byte(void *p)
{
    NEED(is_ours(p), INVALID_HANDLE);
    free(p);
    COUNT_DOWN();
    return CUDA_SUCCESS;
}

SHOWN CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    MAY_FAIL();
    (void)flags;
    return new_byte(stream);
}

SHOWN CUresult cuStreamDestroy(CUstream stream) { return free_byte(stream); }

SHOWN CUresult cuStreamSynchronize(CUstream stream)
{
    MAY_FAIL();
    NEED(is_ours(stream), INVALID_HANDLE);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    MAY_FAIL();
    NEED(is_ours(stream) && event && !flags, INVALID_HANDLE);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    MAY_FAIL();
    (void)flags;
    return new_byte(event);
}

SHOWN CUresult cuEventRecord(CUevent event, CUstream stream)
{
    NEED(is_ours(event) && is_ours(stream), INVALID_HANDLE);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuEventDestroy(CUevent event) { return free_byte(event); }
