/* tests/gpu/fake_cublas/cublas.cpp: libcublasLt.so without a GPU: what
 * src/device/cuda calls of cublasLt, on the emulator's GPUs, strict where the
 * real one is.
 *
 *     FAKE_CUBLAS_FAIL=cublasLtMatmul=13    what fails, and with which cublasStatus_t
 *     FAKE_CUBLAS_NONE=1                    the heuristic finds no algorithm
 *     FAKE_CUBLAS_LOG=1                     names each product on stderr
 *
 * Sums are taken in double and rounded once. The workspace that an algorithm
 * asked for is written to, so that one that is too small or gone is seen.
 * SPDX-License-Identifier: MIT */
extern "C" {
#include "device/cuda/cublas_api.h"
#include "gpu/emulator/fake.h"
}

#include "gpu/emulator/types.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CUBLAS_SHOWN extern "C" __attribute__((__visibility__("default")))

static const size_t WORKSPACE = 4096;
static std::atomic<long> products;

/* For tests: products queued so far. */
CUBLAS_SHOWN long fake_cublas_products(void) { return products; }

struct cublasLtContext {
    int gpu;
};

struct cublasLtMatmulDesc {
    int op[2];
    int epilogue;
    const void *bias;
};

struct cublasLtMatrixLayout {
    int type;
    uint64_t rows, columns;
    int64_t ld, step;
    int batch;
};

struct cublasLtMatmulPreference {
    uint64_t workspace;
    uint32_t aligned[4], reduction;
};

static int must_fail(const char *function)
{
    const char *wish = getenv("FAKE_CUBLAS_FAIL"), *code = wish ? strchr(wish, '=') : NULL;
    size_t n = code ? (size_t)(code - wish) : 0;
    return code && strlen(function) == n && !strncmp(wish, function, n) ? atoi(code + 1) : 0;
}
#define CUBLAS_MAY_FAIL() \
    do { \
        int fails_with = must_fail(__func__); \
        if (fails_with) return (cublasStatus_t)fails_with; \
    } while (0)
#define CUBLAS_NEED(condition) \
    do { \
        if (!(condition)) return CUBLAS_STATUS_INVALID_VALUE; \
    } while (0)

/* ---- objects ---- */

CUBLAS_SHOWN cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    CUBLAS_MAY_FAIL();
    if (fake_cuda_now() < 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasLtContext{fake_cuda_now()};
    return CUBLAS_STATUS_SUCCESS;
}

#define CUBLAS_DESTROY(function, type) \
    CUBLAS_SHOWN cublasStatus_t function(type object) \
    { \
        delete object; \
        return CUBLAS_STATUS_SUCCESS; \
    }
CUBLAS_DESTROY(cublasLtDestroy, cublasLtHandle_t)
CUBLAS_DESTROY(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t)
CUBLAS_DESTROY(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t)
CUBLAS_DESTROY(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)

CUBLAS_SHOWN cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc,
                                                     cublasComputeType_t compute,
                                                     cudaDataType_t scale)
{
    CUBLAS_MAY_FAIL();
    CUBLAS_NEED(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F);
    *desc = new cublasLtMatmulDesc{{CUBLAS_OP_N, CUBLAS_OP_N}, 1, NULL};
    return CUBLAS_STATUS_SUCCESS;
}

CUBLAS_SHOWN cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                           cublasLtMatmulDescAttributes_t which,
                                                           const void *value, size_t bytes)
{
    CUBLAS_MAY_FAIL();
    bool bias = which == CUBLASLT_MATMUL_DESC_BIAS_POINTER;
    CUBLAS_NEED(desc && value && bytes == (bias ? sizeof(void *) : sizeof(int32_t)));
    int32_t number = 0;
    if (!bias) memcpy(&number, value, sizeof number);
    if (which == CUBLASLT_MATMUL_DESC_TRANSA || which == CUBLASLT_MATMUL_DESC_TRANSB)
        desc->op[which - CUBLASLT_MATMUL_DESC_TRANSA] = number;
    else if (which == CUBLASLT_MATMUL_DESC_EPILOGUE)
        desc->epilogue = number;
    else if (bias)
        memcpy(&desc->bias, value, sizeof desc->bias);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

CUBLAS_SHOWN cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                                       cudaDataType_t type, uint64_t rows,
                                                       uint64_t columns, int64_t ld)
{
    CUBLAS_MAY_FAIL();
    CUBLAS_NEED(rows && columns && ld >= (int64_t)rows);
    *layout = new cublasLtMatrixLayout{type, rows, columns, ld, 0, 1};
    return CUBLAS_STATUS_SUCCESS;
}

CUBLAS_SHOWN cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                             cublasLtMatrixLayoutAttribute_t which,
                                                             const void *value, size_t bytes)
{
    CUBLAS_MAY_FAIL();
    bool count = which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    CUBLAS_NEED(count || which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
    CUBLAS_NEED(layout && bytes == (count ? sizeof layout->batch : sizeof layout->step));
    memcpy(count ? (void *)&layout->batch : (void *)&layout->step, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

CUBLAS_SHOWN cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    CUBLAS_MAY_FAIL();
    *preference = new cublasLtMatmulPreference{0, {256, 256, 256, 256}, 7};
    return CUBLAS_STATUS_SUCCESS;
}

CUBLAS_SHOWN cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which,
    const void *value, size_t bytes)
{
    CUBLAS_MAY_FAIL();
    int i = (int)which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    bool most = which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         parts = which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
    CUBLAS_NEED(most ? bytes == sizeof preference->workspace
                     : (parts || (i >= 0 && i < 4)) && bytes == sizeof preference->reduction);
    memcpy(most    ? (void *)&preference->workspace
           : parts ? (void *)&preference->reduction
                   : (void *)&preference->aligned[i],
           value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

/* What the queued call has; addresses are real ones. */
struct Product {
    cublasLtMatrixLayout a, b, d;
    int op[2];
    const char *a_at, *b_at, *bias;
    char *d_at, *workspace;
    uint64_t inner;
};

static size_t element(int type) { return type == CUDA_R_32F ? 4 : 2; }

static float load(const char *p, int type, int64_t i)
{
    if (type == CUDA_R_32F) {
        float x;
        memcpy(&x, p + 4 * i, sizeof x);
        return x;
    }
    __half h;
    __nv_bfloat16 b;
    memcpy(&h, p + 2 * i, sizeof h);
    memcpy(&b, p + 2 * i, sizeof b);
    return type == CUDA_R_16F ? __half2float(h) : __bfloat162float(b);
}

static void store(char *p, int type, int64_t i, float x)
{
    __half h = __float2half_rn(x);
    __nv_bfloat16 b = __float2bfloat16_rn(x);
    if (type == CUDA_R_32F)
        memcpy(p + 4 * i, &x, sizeof x);
    else if (type == CUDA_R_16F)
        memcpy(p + 2 * i, &h, sizeof h);
    else
        memcpy(p + 2 * i, &b, sizeof b);
}

/* Element (row, column) of what an operand is after its transposition. */
static int64_t place(const cublasLtMatrixLayout *x, int op, uint64_t row, uint64_t column)
{
    if (op == CUBLAS_OP_T) return (int64_t)column + (int64_t)row * x->ld;
    return (int64_t)row + (int64_t)column * x->ld;
}

/* Of copies of a row and a column, so that nothing here needs a sanitizer. */
__attribute__((no_sanitize("address", "undefined"))) static double
sum_of_products(double sum, const float *row, const float *column, uint64_t n)
{
    for (uint64_t k = 0; k < n; k++) sum += (double)row[k] * column[k];
    return sum;
}

static bool product_run(void *arg)
{
    const Product *p = (const Product *)arg;
    uint64_t inner = p->inner, columns = p->d.columns;
    if (p->workspace) memset(p->workspace, 0x5a, WORKSPACE);
    float *row = new float[inner], *b = new float[inner * columns]; /* b: column after column */
    for (int z = 0; z < p->d.batch; z++) {
        for (uint64_t j = 0; j < columns; j++)
            for (uint64_t k = 0; k < inner; k++)
                b[j * inner + k] = load(p->b_at, p->b.type,
                                        z * p->b.step + place(&p->b, p->op[1], k, j));
        for (uint64_t i = 0; i < p->d.rows; i++) {
            for (uint64_t k = 0; k < inner; k++)
                row[k] = load(p->a_at, p->a.type, z * p->a.step + place(&p->a, p->op[0], i, k));
            for (uint64_t j = 0; j < columns; j++) {
                double sum = p->bias ? load(p->bias, p->d.type, (int64_t)i) : 0;
                sum = sum_of_products(sum, row, b + j * inner, inner);
                store(p->d_at, p->d.type, z * p->d.step + place(&p->d, CUBLAS_OP_N, i, j),
                      (float)sum);
            }
        }
    }
    delete[] row;
    delete[] b;
    return true;
}

static uint64_t rows_of(const cublasLtMatrixLayout *x, int op)
{
    return op == CUBLAS_OP_T ? x->columns : x->rows;
}
static uint64_t columns_of(const cublasLtMatrixLayout *x, int op)
{
    return op == CUBLAS_OP_T ? x->rows : x->columns;
}

static bool fits(const cublasLtMatmulDesc *desc, const cublasLtMatrixLayout *a,
                 const cublasLtMatrixLayout *b, const cublasLtMatrixLayout *d)
{
    return rows_of(a, desc->op[0]) == d->rows && columns_of(b, desc->op[1]) == d->columns &&
           columns_of(a, desc->op[0]) == rows_of(b, desc->op[1]) && a->type == b->type &&
           (d->type == a->type || d->type == CUDA_R_32F) && a->batch == b->batch &&
           a->batch == d->batch;
}

CUBLAS_SHOWN cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t *results,
    int *found)
{
    CUBLAS_MAY_FAIL();
    *found = 0;
    CUBLAS_NEED(handle && wanted == 1 && c == d && fits(desc, a, b, d));
    CUBLAS_NEED(preference->reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE); /* or it rounds parts */
    if (getenv("FAKE_CUBLAS_NONE")) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    results->algo.data[0] = preference->aligned[0]; /* holds for these pointers alone */
    results->workspaceSize = preference->workspace < WORKSPACE ? 0 : WORKSPACE;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* The real address of all that the operand's matrices span; NULL: not of the
 * GPU. */
static char *operand(const void *p, const cublasLtMatrixLayout *x, uint64_t aligned)
{
    int64_t last = (x->batch - 1) * x->step + ((int64_t)x->columns - 1) * x->ld + (int64_t)x->rows;
    if ((uintptr_t)p % aligned) return NULL;
    return fake_cuda_real((CUdeviceptr)(uintptr_t)p, (size_t)last * element(x->type));
}

CUBLAS_SHOWN cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                           const void *alpha, const void *a,
                                           cublasLtMatrixLayout_t a_layout, const void *b,
                                           cublasLtMatrixLayout_t b_layout, const void *beta,
                                           const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                           cublasLtMatrixLayout_t d_layout,
                                           const cublasLtMatmulAlgo_t *algo, void *workspace,
                                           size_t workspace_bytes, CUstream stream)
{
    CUBLAS_MAY_FAIL();
    Product p = {};
    float factors[2];
    memcpy(&factors[0], alpha, sizeof factors[0]);
    memcpy(&factors[1], beta, sizeof factors[1]);
    CUBLAS_NEED(factors[0] == 1 && factors[1] == 0 && c == d && c_layout == d_layout);
    CUBLAS_NEED(handle->gpu == fake_cuda_now() && fits(desc, a_layout, b_layout, d_layout));
    p.a = *a_layout, p.b = *b_layout, p.d = *d_layout;
    p.op[0] = desc->op[0], p.op[1] = desc->op[1];
    p.inner = columns_of(a_layout, desc->op[0]);
    p.a_at = operand(a, a_layout, algo->data[0]);
    p.b_at = operand(b, b_layout, algo->data[0]);
    p.d_at = operand(d, d_layout, algo->data[0]);
    CUBLAS_NEED(p.a_at && p.b_at && p.d_at && (workspace_bytes >= WORKSPACE || !workspace));
    if (workspace) p.workspace = fake_cuda_real((CUdeviceptr)(uintptr_t)workspace, WORKSPACE);
    CUBLAS_NEED(!workspace || p.workspace);
    if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS) {
        size_t bytes = p.d.rows * element(p.d.type);
        p.bias = fake_cuda_real((CUdeviceptr)(uintptr_t)desc->bias, bytes);
        CUBLAS_NEED(p.bias);
    }
    products++;
    if (getenv("FAKE_CUBLAS_LOG"))
        fprintf(stderr, "cublasLtMatmul %dx%dx%d op %d %d batch %d%s\n", (int)p.d.rows,
                (int)p.d.columns, (int)p.inner, p.op[0], p.op[1], p.d.batch, p.bias ? " bias" : "");
    CUresult result = fake_cuda_submit_copied_call(stream, product_run, &p, sizeof p);
    return result ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
