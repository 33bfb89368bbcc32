/* tests/gpu/emulator/memory.c: memory of a "GPU": a file in memory that is
 * mapped twice. At the GPU's addresses it can be touched only while a kernel
 * runs, so that a host that takes it for its own ends with a signal; copies use
 * the other mapping.
 *
 * Invariants: addresses are not used again, so that a use after release is not
 * another tensor's; new memory is filled with NaN; AddressSanitizer knows where
 * an allocation ends.
 * SPDX-License-Identifier: MIT */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define ROOM ((size_t)1 << 35) /* addresses of one GPU */
#define PAGE ((size_t)4096)

typedef struct Allocation {
    struct Allocation *next;
    char *p;
    size_t bytes;
    int gpu;
    bool pooled;
} Allocation;

typedef struct Pinned {
    struct Pinned *next;
    char *p;
    size_t bytes;
} Pinned;

static struct {
    char *range, *real; /* ROOM each */
    size_t top, used;
} gpus[FAKE_MOST];
static Allocation *allocations;
static Pinned *pinned;
static long allocs;

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void map_gpu(int gpu)
{
    int fd = memfd_create("gpu", 0);
    if (fd < 0 || ftruncate(fd, (off_t)ROOM)) abort();
    gpus[gpu].range = mmap(NULL, ROOM, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    gpus[gpu].real = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (gpus[gpu].range == MAP_FAILED || gpus[gpu].real == MAP_FAILED) abort();
    close(fd);
}

/* mprotect takes as long as there are pages in the tables of the range: now and
 * then they forget all, which come back from the file when a kernel touches
 * them. */
void fake_gates(int gpu, bool open)
{
    static unsigned closed;
    bool forget = !open && ++closed % 32 == 0;
    for (int i = 0; i < FAKE_MOST; i++) {
        if (!gpus[i].top || (i != gpu && !fake_has_access(i, gpu))) continue;
        if (forget) madvise(gpus[i].range, gpus[i].top, MADV_DONTNEED);
        mprotect(gpus[i].range, gpus[i].top, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

long fake_cuda_allocs(void) { return allocs; }
long fake_cuda_used(void) { return (long)gpus[0].used; }

CUresult cuMemGetInfo_v2(size_t *unused, size_t *all)
{
    MAY_FAIL();
    NEED(fake_now() >= 0, INVALID_CONTEXT);
    *all = fake_gpu_bytes(fake_now());
    *unused = *all - gpus[fake_now()].used;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *p, size_t bytes, bool pooled)
{
    int now = fake_now();
    NEED(now >= 0, INVALID_CONTEXT);
    NEED(bytes, INVALID_VALUE);
    fake_lock();
    size_t room = fake_gpu_bytes(now), at = gpus[now].top;
    bool fits = bytes <= room - gpus[now].used && at + pages(bytes) <= ROOM;
    allocs++;
    if (fits) {
        if (!gpus[now].range) map_gpu(now);
        Allocation *a = malloc(sizeof *a);
        *a = (Allocation){allocations, gpus[now].range + at, bytes, now, pooled};
        allocations = a;
        gpus[now].top += pages(bytes) + pages((size_t)fake_setting("FAKE_CUDA_GAP", 0));
        gpus[now].used += bytes;
        memset(gpus[now].real + at, 0xff, bytes);
        UNPOISON(a->p, bytes);
        POISON(a->p + bytes, pages(bytes) - bytes);
        *p = (CUdeviceptr)(uintptr_t)a->p;
        fake_count(1);
    }
    fake_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void fake_release(CUdeviceptr p)
{
    Allocation **at = &allocations;
    while (*at && (CUdeviceptr)(uintptr_t)(*at)->p != p) at = &(*at)->next;
    Allocation *a = *at;
    if (!a) abort();
    *at = a->next;
    gpus[a->gpu].used -= a->bytes;
    madvise(gpus[a->gpu].real + (a->p - gpus[a->gpu].range), pages(a->bytes), MADV_REMOVE);
    POISON(a->p, pages(a->bytes));
    free(a);
    fake_count(-1);
}

/* Whether p was allocated on this GPU, that way. */
static bool is_allocated(CUdeviceptr p, bool pooled)
{
    bool good = false;
    fake_lock();
    for (Allocation *a = allocations; a && !good; a = a->next)
        good = (CUdeviceptr)(uintptr_t)a->p == p && a->gpu == fake_now() && a->pooled == pooled;
    fake_unlock();
    return good;
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes)
{
    MAY_FAIL();
    return allocate(p, bytes, false);
}

CUresult cuMemFree_v2(CUdeviceptr p)
{
    NEED(is_allocated(p, false), INVALID_VALUE);
    fake_lock();
    fake_drain(fake_now());
    fake_release(p);
    fake_unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    NEED(fake_is_ours(stream), INVALID_HANDLE);
    NEED(!fake_spoil_capture(stream),
         STREAM_CAPTURE_UNSUPPORTED); /* the real one makes a node of it */
    return fake_setting("FAKE_CUDA_POOLS", 1) ? allocate(p, bytes, true) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
    NEED(is_allocated(p, true), INVALID_VALUE);
    NEED(!fake_spoil_capture(stream), STREAM_CAPTURE_UNSUPPORTED);
    return fake_submit(stream, (fake_work){.kind = FAKE_FREE, .p = p});
}

CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    MAY_FAIL();
    (void)flags;
    Pinned *one = malloc(sizeof *one);
    *one = (Pinned){pinned, aligned_alloc(PAGE, pages(bytes)), bytes};
    fake_lock();
    one->next = pinned;
    pinned = one;
    fake_unlock();
    *p = one->p;
    fake_count(1);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *p)
{
    fake_lock();
    fake_drain(-1);
    Pinned **at = &pinned;
    while (*at && (*at)->p != p) at = &(*at)->next;
    Pinned *one = *at;
    if (one) *at = one->next;
    fake_unlock();
    NEED(one, INVALID_VALUE);
    free(one->p);
    free(one);
    fake_count(-1);
    return CUDA_SUCCESS;
}

bool fake_is_pinned(const void *p)
{
    const char *at = p;
    bool found = false;
    fake_lock();
    for (Pinned *one = pinned; one && !found; one = one->next)
        found = at >= one->p && at < one->p + one->bytes;
    fake_unlock();
    return found;
}

bool fake_find(uint64_t p, uint64_t *from, uint64_t *to)
{
    char *at = (char *)(uintptr_t)p, *found = NULL;
    size_t bytes = 0;
    fake_lock();
    for (Allocation *a = allocations; a && !found; a = a->next)
        if (at >= a->p && at < a->p + a->bytes) found = a->p, bytes = a->bytes;
    for (Pinned *one = pinned; one && !found; one = one->next)
        if (at >= one->p && at < one->p + one->bytes) found = one->p, bytes = one->bytes;
    fake_unlock();
    *from = (uint64_t)(uintptr_t)found;
    *to = *from + bytes;
    return found;
}

char *fake_real(CUdeviceptr p, size_t bytes, int gpu)
{
    char *found = NULL, *from = (char *)(uintptr_t)p;
    fake_lock();
    for (Allocation *a = allocations; a && !found; a = a->next)
        if (from >= a->p && from + bytes <= a->p + a->bytes && (gpu < 0 || gpu == a->gpu))
            found = gpus[a->gpu].real + (from - gpus[a->gpu].range);
    fake_unlock();
    return found;
}

char *fake_cuda_real(CUdeviceptr p, size_t bytes) { return fake_real(p, bytes, fake_now()); }
int fake_cuda_now(void) { return fake_now(); }
