/* comm/nccl_api.h: what we use of NCCL, declared here, so that no file of
 * NVIDIA's is needed to compile. Names, types and numbers are those of the NCCL
 * User Guide (2.18); functions are looked up in libnccl.so.2 at run time
 * (nccl_open.c).
 *
 * Invariants: a value here equals NVIDIA's, because it is passed to the library
 * as a number. Later versions of libnccl.so.2 take this ncclConfig_t, by its
 * size and version.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <limits.h>
#include <stddef.h>

typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *ncclStream;
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

/* X(constant's end, its value) */
#define DSI_NCCL_RESULTS(X) \
    X(Success, 0) \
    X(UnhandledCudaError, 1) \
    X(SystemError, 2) \
    X(InternalError, 3) \
    X(InvalidArgument, 4) \
    X(InvalidUsage, 5) \
    X(RemoteError, 6) \
    X(InProgress, 7)

#define DSI_NCCL_RESULT(name, value) nccl##name = (value),
typedef enum ncclResult_t { DSI_NCCL_RESULTS(DSI_NCCL_RESULT) } ncclResult_t;
#undef DSI_NCCL_RESULT

typedef enum ncclDataType_t {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt64 = 4,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9
} ncclDataType_t;

typedef enum ncclRedOp_t { ncclSum = 0, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;

/* Of 2.18. blocking 0: calls may return ncclInProgress, and go on in the
 * background. */
typedef struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

#define NCCL_CONFIG_VERSION   21800
#define NCCL_CONFIG_MAGIC     0xcafebeefu
#define NCCL_CONFIG_UNDEF_INT INT_MIN

/* All that is called: X(our name, the library's symbol, its result, its arguments). */
#define DSI_NCCL_FUNCTIONS(X) \
    X(get_id, ncclGetUniqueId, ncclResult_t, (ncclUniqueId * id)) \
    X(init, ncclCommInitRankConfig, ncclResult_t, \
      (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)) \
    X(finalize, ncclCommFinalize, ncclResult_t, (ncclComm_t comm)) \
    X(destroy, ncclCommDestroy, ncclResult_t, (ncclComm_t comm)) \
    X(abort, ncclCommAbort, ncclResult_t, (ncclComm_t comm)) \
    X(async_error, ncclCommGetAsyncError, ncclResult_t, (ncclComm_t comm, ncclResult_t * error)) \
    X(error_text, ncclGetErrorString, const char *, (ncclResult_t result)) \
    X(last_error, ncclGetLastError, const char *, (ncclComm_t comm)) \
    X(group_begin, ncclGroupStart, ncclResult_t, (void)) \
    X(group_end, ncclGroupEnd, ncclResult_t, (void)) \
    X(all_reduce, ncclAllReduce, ncclResult_t, \
      (const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, \
       ncclStream stream)) \
    X(reduce, ncclReduce, ncclResult_t, \
      (const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, int root, \
       ncclComm_t comm, ncclStream stream)) \
    X(reduce_scatter, ncclReduceScatter, ncclResult_t, \
      (const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, \
       ncclStream stream)) \
    X(all_gather, ncclAllGather, ncclResult_t, \
      (const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t comm, \
       ncclStream stream)) \
    X(broadcast, ncclBroadcast, ncclResult_t, \
      (const void *in, void *out, size_t n, ncclDataType_t type, int root, ncclComm_t comm, \
       ncclStream stream)) \
    X(send, ncclSend, ncclResult_t, \
      (const void *in, size_t n, ncclDataType_t type, int to, ncclComm_t comm, ncclStream stream)) \
    X(recv, ncclRecv, ncclResult_t, \
      (void *out, size_t n, ncclDataType_t type, int from, ncclComm_t comm, ncclStream stream))

/* The functions in the order of DSI_NCCL_FUNCTIONS, pointers without gaps:
 * dsi_library_open fills the struct as an array. */
#define DSI_NCCL_MEMBER(ours, symbol, result, args) result(*ours) args;
typedef struct dsi_nccl_functions {
    DSI_NCCL_FUNCTIONS(DSI_NCCL_MEMBER)
} dsi_nccl_functions;
#undef DSI_NCCL_MEMBER
