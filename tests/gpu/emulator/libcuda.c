/* tests/gpu/emulator/libcuda.c: see fake.h: devices, contexts, errors.
 * SPDX-License-Identifier: MIT */
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char contexts[FAKE_MOST]; /* behind the handles of contexts */
static int retained[FAKE_MOST];
static int live;
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static _Thread_local int now = -1;

int fake_cuda_live(void) { return live; }
void fake_count(int change) { __atomic_add_fetch(&live, change, __ATOMIC_SEQ_CST); }
void fake_lock(void) { pthread_mutex_lock(&lock); }
void fake_unlock(void) { pthread_mutex_unlock(&lock); }
int fake_now(void) { return now; }

bool fake_is_ours(const void *stream_or_event)
{
    return now >= 0 && stream_or_event && *(const char *)stream_or_event == now;
}

long fake_setting(const char *name, long otherwise)
{
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

int fake_capability(void) { return (int)fake_setting("FAKE_CUDA_CAPABILITY", 90); }

int fake_most_shared(void) { return (fake_capability() == 90 ? 227 : 99) << 10; }

unsigned fake_most_yz(void) { return (unsigned)fake_setting("FAKE_CUDA_MOST_YZ", 65535); }

size_t fake_gpu_bytes(int gpu)
{
    const char *list = getenv("FAKE_CUDA_BYTES");
    if (!list) return (size_t)1 << 30;
    for (int i = 0; i < gpu && strchr(list, ','); i++) list = strchr(list, ',') + 1;
    return (size_t)atol(list);
}

CUresult fake_must_fail(const char *function)
{
    const char *wish = getenv("FAKE_CUDA_FAIL"), *code = wish ? strchr(wish, '=') : NULL;
    if (!code) return CUDA_SUCCESS;
    size_t n = (size_t)(code - wish);
    bool all = n == 3 && !strncmp(wish, "all", n) && strcmp(function, "cuInit") != 0 && now >= 0;
    bool this = strlen(function) >= n && !strncmp(wish, function, n);
    return all || this ? (CUresult)atoi(code + 1) : CUDA_SUCCESS;
}

/* ---- errors ---- */

CUresult cuGetErrorName(CUresult error, const char **name)
{
#define ROW(n) \
    { \
        CUDA_ERROR_##n, "CUDA_ERROR_" #n \
    }
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {ROW(NO_DEVICE),
                 ROW(INVALID_VALUE),
                 ROW(OUT_OF_MEMORY),
                 ROW(DEVICE_UNAVAILABLE),
                 ROW(ILLEGAL_ADDRESS),
                 ROW(NOT_FOUND),
                 ROW(NOT_READY),
                 ROW(INVALID_PTX),
                 ROW(UNSUPPORTED_PTX_VERSION),
                 ROW(NO_BINARY_FOR_GPU),
                 ROW(STREAM_CAPTURE_UNSUPPORTED),
                 ROW(STREAM_CAPTURE_INVALIDATED),
                 ROW(UNKNOWN)};
#undef ROW
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return *name = names[i].name, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
                                                : "an error of the fake";
    return CUDA_SUCCESS;
}

/* ---- devices ---- */

CUresult cuDriverGetVersion(int *version)
{
    *version = (int)fake_setting("FAKE_CUDA_VERSION", 12040);
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
    MAY_FAIL();
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    MAY_FAIL();
    *count = (int)fake_setting("FAKE_CUDA_COUNT", 2);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int index)
{
    NEED(index >= 0 && index < fake_setting("FAKE_CUDA_COUNT", 2), INVALID_DEVICE);
    *device = index;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    snprintf(name, (size_t)room, "Fake %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bus, int room, CUdevice device)
{
    snprintf(bus, (size_t)room, "0000:%02x:00.0", (unsigned)fake_setting("FAKE_CUDA_BUS", device));
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    *bytes = fake_gpu_bytes(device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    int capability = fake_capability();
    (void)device;
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        *value = (int)fake_setting("FAKE_CUDA_POOLS", 1);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = capability / 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = capability % 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 4;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        *value = (int)fake_most_yz();
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = fake_most_shared();
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    MAY_FAIL();
    fake_count(1);
    __atomic_add_fetch(&retained[device], 1, __ATOMIC_SEQ_CST);
    *context = (CUcontext)(void *)&contexts[device];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    fake_count(-1);
    __atomic_sub_fetch(&retained[device], 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    int gpu = context ? (int)((char *)context - contexts) : -1;
    NEED(gpu < 0 || __atomic_load_n(&retained[gpu], __ATOMIC_SEQ_CST), INVALID_CONTEXT);
    now = gpu;
    return CUDA_SUCCESS;
}

/* ---- peers: whose memory a GPU may access ---- */

static bool access_given[FAKE_MOST][FAKE_MOST]; /* [owner][from] */
static long peer_bytes[2];                      /* [staged] */

static long peer_copies;

bool fake_has_access(int owner, int from)
{
    return __atomic_load_n(&access_given[owner][from], __ATOMIC_SEQ_CST);
}

long fake_cuda_peer_bytes(bool staged) { return peer_bytes[staged]; }
long fake_cuda_peer_copies(void) { return peer_copies; }

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    MAY_FAIL();
    *can = device != peer && fake_setting("FAKE_CUDA_PEERS", 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    *pool = (CUmemoryPool)(void *)&contexts[device];
    return CUDA_SUCCESS;
}

static CUresult give_access(int owner, int from)
{
    NEED(fake_setting("FAKE_CUDA_PEERS", 1) && owner != from, INVALID_DEVICE);
    __atomic_store_n(&access_given[owner][from], true, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t n)
{
    NEED(n == 1 && access->location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
             access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
         INVALID_VALUE);
    return give_access((int)((char *)pool - contexts), access->location_id);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    NEED(now >= 0 && !flags, INVALID_CONTEXT);
    return give_access((int)((char *)peer - contexts), now);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                           CUcontext src_context, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    int a = (int)((char *)dst_context - contexts), b = (int)((char *)src_context - contexts);
    char *to = fake_real(dst, bytes, a), *from = fake_real(src, bytes, b);
    NEED(to && from, INVALID_VALUE);
    __atomic_add_fetch(&peer_bytes[!fake_has_access(b, a)], (long)bytes, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&peer_copies, 1, __ATOMIC_SEQ_CST);
    return fake_submit(stream,
                       (fake_work){.kind = FAKE_COPY, .to = to, .from = from, .bytes = bytes});
}
