/* device/cuda/cublas_api.h: what we use of cublasLt, declared here, so that no
 * file of NVIDIA's is needed to compile. Names, types and numbers are those of
 * the cuBLAS manual (12); functions are looked up in libcublasLt.so at run time
 * (cublas.c).
 *
 * Invariants: a value here equals NVIDIA's, because it is passed to the library
 * as a number. Attributes have the sizes of their types here.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "api.h"

#include <stdint.h>

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDesc *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayout *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreference *cublasLtMatmulPreference_t;

/* X(constant's end, its value) */
#define DSI_CUBLAS_RESULTS(X) \
    X(SUCCESS, 0) \
    X(NOT_INITIALIZED, 1) \
    X(ALLOC_FAILED, 3) \
    X(INVALID_VALUE, 7) \
    X(ARCH_MISMATCH, 8) \
    X(MAPPING_ERROR, 11) \
    X(EXECUTION_FAILED, 13) \
    X(INTERNAL_ERROR, 14) \
    X(NOT_SUPPORTED, 15) \
    X(LICENSE_ERROR, 16)

#define DSI_CUBLAS_RESULT(name, value) CUBLAS_STATUS_##name = (value),
typedef enum cublasStatus_t { DSI_CUBLAS_RESULTS(DSI_CUBLAS_RESULT) } cublasStatus_t;
#undef DSI_CUBLAS_RESULT

typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType_t;
typedef enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;
typedef enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_BIAS = 4 } cublasLtEpilogue_t;

typedef enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,      /* cublasOperation_t */
    CUBLASLT_MATMUL_DESC_TRANSB = 4,      /* the same */
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,    /* cublasLtEpilogue_t */
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8 /* const void *; of the dtype of D */
} cublasLtMatmulDescAttributes_t;

typedef enum cublasLtMatrixLayoutAttribute_t {
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,         /* int32_t */
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6 /* int64_t, elements */
} cublasLtMatrixLayoutAttribute_t;

typedef enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,   /* uint64_t */
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3, /* uint32_t */
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5  /* uint32_t; B, C, D follow */
} cublasLtMatmulPreferenceAttributes_t;

/* How parts of a sum over k are added: the other schemes round each part to the
 * dtype of the result. */
typedef enum cublasLtReductionScheme_t {
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
} cublasLtReductionScheme_t;

typedef struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize; /* bytes */
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

/* All that is called but cublasLtGetVersion: X(our name, the library's symbol,
 * its arguments). Matrices are column-major. */
#define DSI_CUBLAS_FUNCTIONS(X) \
    X(create, cublasLtCreate, (cublasLtHandle_t * handle)) \
    X(destroy, cublasLtDestroy, (cublasLtHandle_t handle)) \
    X(desc_new, cublasLtMatmulDescCreate, \
      (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale)) \
    X(desc_free, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc)) \
    X(desc_set, cublasLtMatmulDescSetAttribute, \
      (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, const void *value, \
       size_t bytes)) \
    X(layout_new, cublasLtMatrixLayoutCreate, \
      (cublasLtMatrixLayout_t * layout, cudaDataType_t type, uint64_t rows, uint64_t columns, \
       int64_t ld)) \
    X(layout_free, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout)) \
    X(layout_set, cublasLtMatrixLayoutSetAttribute, \
      (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which, const void *value, \
       size_t bytes)) \
    X(preference_new, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference)) \
    X(preference_free, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference)) \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute, \
      (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which, \
       const void *value, size_t bytes)) \
    X(heuristic, cublasLtMatmulAlgoGetHeuristic, \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, \
       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, \
       cublasLtMatmulPreference_t preference, int wanted, \
       cublasLtMatmulHeuristicResult_t *results, int *found)) \
    X(matmul, cublasLtMatmul, \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, \
       cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, \
       const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d, \
       cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace, \
       size_t workspace_bytes, CUstream stream))

/* The functions in the order of DSI_CUBLAS_FUNCTIONS, pointers without gaps. */
#define DSI_CUBLAS_MEMBER(ours, symbol, args) cublasStatus_t(*ours) args;
typedef struct dsi_cublas_functions {
    DSI_CUBLAS_FUNCTIONS(DSI_CUBLAS_MEMBER)
} dsi_cublas_functions;
#undef DSI_CUBLAS_MEMBER
