/* tests/gpu/headers/headers.cpp: what api.h, cublas_api.h and nccl_api.h declare,
 * beside NVIDIA's own cuda.h, cublasLt.h and nccl.h: numbers, sizes, members,
 * arguments; and the names of the functions beside the libraries. It needs no
 * GPU. What is not installed is skipped; DS_NCCL and DS_CUBLAS name libraries
 * that the system does not find.
 * SPDX-License-Identifier: MIT */
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>
#include <type_traits>

namespace ours
{
#include "comm/nccl_api.h"
#include "device/cuda/cublas_api.h"
} // namespace ours

/* A macro in cuda.h. */
static const long long portable = ours::CU_MEMHOSTALLOC_PORTABLE;
#undef NCCL_CONFIG_UNDEF_INT

static int wrong, compared;

static void check(bool good, const char *what)
{
    compared++;
    if (!good) printf("not ok: %s differs from NVIDIA's\n", what), wrong++;
}

/* ---- arguments: alike if a call with ours passes the same ---------------------------------------------- */

/* Numbers of one size, pointers to alike, pointers to structs (compared where
 * they are not hidden), structs of one size by value. */
template <class A, class B> constexpr bool alike()
{
    using U = std::remove_cv_t<A>;
    using V = std::remove_cv_t<B>;
    if constexpr (std::is_pointer_v<U> && std::is_pointer_v<V>) {
        using P = std::remove_pointer_t<U>;
        using Q = std::remove_pointer_t<V>;
        if constexpr (std::is_const_v<P> != std::is_const_v<Q>)
            return false;
        else if constexpr (std::is_void_v<P> || std::is_void_v<Q>)
            return std::is_void_v<P> && std::is_void_v<Q>;
        else if constexpr (std::is_class_v<P> && std::is_class_v<Q>)
            return true;
        else
            return alike<P, Q>();
    } else if constexpr (std::is_pointer_v<U> || std::is_pointer_v<V>) {
        return false;
    } else {
        return sizeof(U) == sizeof(V) && std::is_class_v<U> == std::is_class_v<V> &&
               std::is_floating_point_v<U> == std::is_floating_point_v<V>;
    }
}

template <class A, class B> struct functions {
    static constexpr bool same = false; /* another number of arguments */
};
template <class R, class... A, class S, class... B> struct functions<R(A...), S(B...)> {
    static constexpr bool same = [] {
        if constexpr (sizeof...(A) != sizeof...(B))
            return false;
        else
            return alike<R, S>() && (alike<A, B>() && ...);
    }();
};

#define SAME(name)        check((long long)ours::name == (long long)::name, #name);
#define SAME_SIZE(type)   check(sizeof(ours::type) == sizeof(::type), "the size of " #type);
#define SAME_MEMBER(type, member) \
    check(offsetof(ours::type, member) == offsetof(::type, member) && \
              sizeof(ours::type::member) == sizeof(::type::member), \
          #type "." #member);

#if __has_include(<cuda.h>)
#include <cuda.h>
static bool compare_driver()
{
    SAME(CUDA_SUCCESS) SAME(CUDA_ERROR_INVALID_VALUE) SAME(CUDA_ERROR_OUT_OF_MEMORY)
    SAME(CUDA_ERROR_DEVICE_UNAVAILABLE) SAME(CUDA_ERROR_NO_DEVICE) SAME(CUDA_ERROR_INVALID_DEVICE)
    SAME(CUDA_ERROR_INVALID_CONTEXT) SAME(CUDA_ERROR_NO_BINARY_FOR_GPU) SAME(CUDA_ERROR_INVALID_PTX)
    SAME(CUDA_ERROR_UNSUPPORTED_PTX_VERSION) SAME(CUDA_ERROR_INVALID_HANDLE)
    SAME(CUDA_ERROR_ILLEGAL_STATE) SAME(CUDA_ERROR_NOT_FOUND) SAME(CUDA_ERROR_NOT_READY)
    SAME(CUDA_ERROR_ILLEGAL_ADDRESS) SAME(CUDA_ERROR_NOT_SUPPORTED)
    SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) SAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    SAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED) SAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    SAME(CUDA_ERROR_CAPTURED_EVENT)
    SAME(CUDA_ERROR_UNKNOWN)
    SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    SAME(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    SAME(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
    SAME(CU_JIT_ERROR_LOG_BUFFER) SAME(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
    SAME(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    SAME(CU_MEM_LOCATION_TYPE_DEVICE) SAME(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    SAME(CU_STREAM_NON_BLOCKING) SAME(CU_EVENT_DISABLE_TIMING) SAME(CU_STREAM_CAPTURE_MODE_RELAXED)
    check(portable == CU_MEMHOSTALLOC_PORTABLE, "CU_MEMHOSTALLOC_PORTABLE");
    SAME_SIZE(CUdevice) SAME_SIZE(CUdeviceptr) SAME_SIZE(CUmemAccessDesc)
    SAME_MEMBER(CUmemAccessDesc, flags)
    check(offsetof(ours::CUmemAccessDesc, location_id) == offsetof(::CUmemAccessDesc, location.id),
          "CUmemAccessDesc.location.id");
    SAME(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    SAME_SIZE(CUlaunchAttribute) SAME_MEMBER(CUlaunchAttribute, id)
    SAME_MEMBER(CUlaunchAttribute, value) SAME_SIZE(CUlaunchConfig)
    check(offsetof(ours::CUlaunchConfig, block) == offsetof(::CUlaunchConfig, blockDimX) &&
              offsetof(ours::CUlaunchConfig, shared_bytes) == offsetof(::CUlaunchConfig, sharedMemBytes) &&
              offsetof(ours::CUlaunchConfig, stream) == offsetof(::CUlaunchConfig, hStream) &&
              offsetof(ours::CUlaunchConfig, attribute) == offsetof(::CUlaunchConfig, attrs) &&
              offsetof(ours::CUlaunchConfig, n_attributes) == offsetof(::CUlaunchConfig, numAttrs),
          "the members of CUlaunchConfig");
    check(functions<ours::cuda_launch_early, decltype(::cuLaunchKernelEx)>::same, "cuLaunchKernelEx");
#define FUNCTION(name, symbol, args) \
    { \
        check(functions<std::remove_pointer_t<decltype(ours::dsi_cuda_driver::name)>, \
                        decltype(::symbol)>::same, \
              #symbol); \
    }
    DSI_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
    return true;
}
#else
static bool compare_driver() { return false; }
#endif

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
static bool compare_cublas()
{
#define RESULT(name, value) SAME(CUBLAS_STATUS_##name)
    DSI_CUBLAS_RESULTS(RESULT)
    SAME(CUDA_R_32F) SAME(CUDA_R_16F) SAME(CUDA_R_16BF) SAME(CUBLAS_COMPUTE_32F) SAME(CUBLAS_OP_N)
    SAME(CUBLAS_OP_T) SAME(CUBLASLT_EPILOGUE_BIAS) SAME(CUBLASLT_MATMUL_DESC_TRANSA)
    SAME(CUBLASLT_MATMUL_DESC_TRANSB) SAME(CUBLASLT_MATMUL_DESC_EPILOGUE)
    SAME(CUBLASLT_MATMUL_DESC_BIAS_POINTER) SAME(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    SAME(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) SAME(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) SAME(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    SAME(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    check(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ==
              ours::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + 3,
          "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES");
    SAME_SIZE(cublasOperation_t) SAME_SIZE(cublasLtEpilogue_t) SAME_SIZE(cublasLtMatmulAlgo_t)
    SAME_SIZE(cublasLtMatmulHeuristicResult_t)
    SAME_MEMBER(cublasLtMatmulHeuristicResult_t, algo)
    SAME_MEMBER(cublasLtMatmulHeuristicResult_t, workspaceSize)
    SAME_MEMBER(cublasLtMatmulHeuristicResult_t, state)
#define FUNCTION(name, symbol, args) \
    check(functions<std::remove_pointer_t<decltype(ours::dsi_cublas_functions::name)>, \
                    decltype(::symbol)>::same, \
          #symbol);
    DSI_CUBLAS_FUNCTIONS(FUNCTION)
#undef FUNCTION
    return true;
}
#else
static bool compare_cublas() { return false; }
#endif

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
static bool compare_nccl()
{
#define CONSTANT(name, value) SAME(nccl##name)
    DSI_NCCL_RESULTS(CONSTANT)
    SAME(ncclInt8) SAME(ncclUint8) SAME(ncclInt32) SAME(ncclInt64) SAME(ncclFloat16)
    SAME(ncclFloat32) SAME(ncclFloat64) SAME(ncclBfloat16)
    SAME(ncclSum) SAME(ncclMax) SAME(ncclMin) SAME(ncclAvg)
    SAME_SIZE(ncclUniqueId)
    SAME_MEMBER(ncclConfig_t, size) SAME_MEMBER(ncclConfig_t, magic)
    SAME_MEMBER(ncclConfig_t, version) SAME_MEMBER(ncclConfig_t, blocking)
    SAME_MEMBER(ncclConfig_t, cgaClusterSize) SAME_MEMBER(ncclConfig_t, minCTAs)
    SAME_MEMBER(ncclConfig_t, maxCTAs) SAME_MEMBER(ncclConfig_t, netName)
    SAME_MEMBER(ncclConfig_t, splitShare)
    check(sizeof(ours::ncclConfig_t) <= sizeof(::ncclConfig_t), "the size of ncclConfig_t");
    ncclConfig_t usual = NCCL_CONFIG_INITIALIZER;
    check(usual.magic == NCCL_CONFIG_MAGIC, "the magic number of ncclConfig_t");
    check(usual.splitShare == INT_MIN && !usual.netName, "what is not set in ncclConfig_t");
    check(NCCL_CONFIG_VERSION == NCCL_VERSION(2, 18, 0), "NCCL_VERSION");
#define FUNCTION(name, symbol, result, args) \
    check(functions<std::remove_pointer_t<decltype(ours::dsi_nccl_functions::name)>, \
                    decltype(::symbol)>::same, \
          #symbol);
    DSI_NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    return true;
}
#else
static bool compare_nccl() { return false; }
#endif

/* ---- the libraries ------------------------------------------------------------------------------------- */

#define NAME(ours, symbol, args)              #symbol,
#define NAME_NCCL(ours, symbol, result, args) #symbol,
static const char *const driver_names[] = {"cuDriverGetVersion", DSI_CUDA_FUNCTIONS(NAME)};
static const char *const cublas_names[] = {"cublasLtGetVersion", DSI_CUBLAS_FUNCTIONS(NAME)};
static const char *const nccl_names[] = {"ncclGetVersion", DSI_NCCL_FUNCTIONS(NAME_NCCL)};

/* The first of the files that can be opened has all the names; else NULL. */
template <size_t N>
static void *library_check(const char *const (&names)[N], const char *const *files)
{
    void *library = nullptr;
    for (; !library && *files; files++)
        if (**files) library = dlopen(*files, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; library && i < N; i++) check(dlsym(library, names[i]) != nullptr, names[i]);
    return library;
}

static const char *path_of(const char *variable)
{
    const char *path = getenv(variable);
    return path && strchr(path, '/') ? path : "";
}

/* cublasLt takes our constants, with the sizes of their values, also without a
 * GPU; and refuses other sizes. */
static void cublas_try(void *library)
{
    using namespace ours;
    dsi_cublas_functions f;
    void **to = (void **)&f;
    for (size_t i = 1; i < sizeof cublas_names / sizeof *cublas_names; i++)
        *to++ = dlsym(library, cublas_names[i]);
    ours::cublasLtMatmulDesc_t desc = nullptr;
    ours::cublasLtMatrixLayout_t layout = nullptr;
    ours::cublasLtMatmulPreference_t wish = nullptr;
    ours::cublasOperation_t turned = ours::CUBLAS_OP_T;
    ours::cublasLtEpilogue_t bias = ours::CUBLASLT_EPILOGUE_BIAS;
    const void *p = &f;
    int32_t batch = 2;
    int64_t step = 64;
    uint64_t bytes = 1 << 20;
    uint32_t aligned = 16, parts = ours::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
#define TAKES(call) check(f.call == ours::CUBLAS_STATUS_SUCCESS, #call)
    TAKES(desc_new(&desc, ours::CUBLAS_COMPUTE_32F, ours::CUDA_R_32F));
    TAKES(desc_set(desc, ours::CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned));
    TAKES(desc_set(desc, ours::CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof turned));
    TAKES(desc_set(desc, ours::CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias));
    TAKES(desc_set(desc, ours::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p, sizeof p));
    check(f.desc_set(desc, ours::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p, 2) !=
              ours::CUBLAS_STATUS_SUCCESS,
          "a pointer of two bytes");
    TAKES(layout_new(&layout, ours::CUDA_R_16BF, 8, 8, 8));
    TAKES(layout_set(layout, ours::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    TAKES(layout_set(layout, ours::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step));
    TAKES(preference_new(&wish));
    TAKES(preference_set(wish, ours::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    TAKES(preference_set(wish, ours::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &parts, sizeof parts));
    for (int i = 0; i < 4; i++)
        TAKES(preference_set(wish,
                             (ours::cublasLtMatmulPreferenceAttributes_t)(
                                 ours::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
                             &aligned, sizeof aligned));
    TAKES(preference_free(wish));
    TAKES(layout_free(layout));
    TAKES(desc_free(desc));
}

/* NCCL's version, and the names of its results. */
static void nccl_try(void *library)
{
    int version = 0;
    auto ask = (ours::ncclResult_t(*)(int *))dlsym(library, "ncclGetVersion");
    auto text = (const char *(*)(ours::ncclResult_t))dlsym(library, "ncclGetErrorString");
    check(ask(&version) == ours::ncclSuccess && version >= 21800, "NCCL's version");
    check(strstr(text(ours::ncclInvalidUsage), "invalid usage") != nullptr, "ncclInvalidUsage's text");
    check(!strcmp(text(ours::ncclInProgress), "NCCL operation in progress"), "ncclInProgress's text");
}

int main()
{
    const char *const driver[] = {DRIVER_STUB, "libcuda.so.1", nullptr};
    const char *const cublas[] = {path_of("DS_CUBLAS"), "libcublasLt.so.13", "libcublasLt.so.12",
                                  "libcublasLt.so.11", nullptr};
    const char *const nccl[] = {path_of("DS_NCCL"), "libnccl.so.2", nullptr};
    const char *const without = "skipped: %s is not installed\n";
    bool headers[] = {compare_driver(), compare_cublas(), compare_nccl()};
    const char *const names[] = {"cuda.h", "cublasLt.h", "nccl.h"};
    for (int i = 0; i < 3; i++)
        if (!headers[i]) printf(without, names[i]);
    if (!library_check(driver_names, driver)) printf(without, "NVIDIA's driver");
    if (void *library = library_check(cublas_names, cublas))
        cublas_try(library);
    else
        printf(without, "cublasLt");
    if (void *library = library_check(nccl_names, nccl))
        nccl_try(library);
    else
        printf(without, "NCCL");
    printf("%d compared, %d differ\n", compared, wrong);
    return wrong ? 1 : compared ? 0 : 77;
}
