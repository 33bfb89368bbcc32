/* device/cuda/cublas.c: see cublas.h. A product's descriptors and its algorithm
 * are made once for its shape, strides, dtypes and alignment, and kept.
 *
 * Row-major y = a b is column-major y' = b' a': cublasLt's A is our b, its B
 * our a, its rows our columns.
 *
 * Invariants: `library` is written by library_open_once alone, and only read
 * after pthread_once has returned; it stays open. A dsi_cublas belongs to a
 * dsi_cuda_gpu, and so to one thread. While a graph is captured,
 * products only queue work on its stream, with memory of the graph's pool.
 * SPDX-License-Identifier: MIT */
#include "cublas.h"

#include "base/error.h"
#include "base/library.h"
#include "base/log.h"
#include "base/mem.h"
#include "cublas_api.h"
#include "operands.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLANS   64
#define ALIGNED 256 /* bytes; more does not matter */
#define PACKAGE "libcublas12 of NVIDIA's repository, or set DS_CUBLAS=off"

static const size_t workspace_most = (size_t)32 << 20; /* what NVIDIA advises for Hopper */

#define NAME(ours, symbol, args) #symbol,
static const char *const names[] = {DSI_CUBLAS_FUNCTIONS(NAME)};
#undef NAME
#define N_NAMES (int)(sizeof names / sizeof *names)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    dsi_cublas_functions f;
    bool found, required; /* required: DS_CUBLAS names it */
    char why[300];
} library;

/* ---- the library ----------------------------------------------------------------------------------------- */

static void library_open_once(void)
{
    static const char *const usual[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "libcublasLt.so.11", NULL};
    const char *wish = getenv("DS_CUBLAS"), *const given[] = {wish, NULL};
    if (wish && !strcmp(wish, "off")) return;
    library.required = wish && *wish && strcmp(wish, "on") != 0;
    if (library.required && !strchr(wish, '/')) {
        snprintf(library.why, sizeof library.why,
                 "DS_CUBLAS=%s: expected on, off, or the path of libcublasLt.so", wish);
        return;
    }
    int before = dsi_error_count();
    library.found = dsi_library_open("cublasLt", library.required ? given : usual, PACKAGE, names,
                                     N_NAMES, &library.f);
    if (library.found) return;
    snprintf(library.why, sizeof library.why, "%s", dsi_error_latest());
    dsi_error_forget(before);
    if (!library.required) dsi_log(DSI_INFO, "large products by our own kernels: %s", library.why);
}

static const char *result_name(cublasStatus_t result)
{
#define ROW(name, value) [value] = "CUBLAS_STATUS_" #name,
    static const char *const text[] = {DSI_CUBLAS_RESULTS(ROW)};
#undef ROW
    const char *name = (size_t)result < sizeof text / sizeof *text ? text[result] : NULL;
    return name ? name : "an unknown status";
}

static ds_status cublas_check(cublasStatus_t result, const char *function)
{
    if (result == CUBLAS_STATUS_SUCCESS) return DS_OK;
    return dsi_fail(DS_EDEVICE, "matmul: %s says %s; DS_CUBLAS=off does without it", function,
                    result_name(result));
}
#define CALL(member, ...) cublas_check(library.f.member(__VA_ARGS__), #member " of cublasLt")

/* ---- what is asked for ----------------------------------------------------------------------------------- */

/* A column-major matrix; its transpose, if `turned`, is what the product takes. */
typedef struct Matrix {
    int64_t rows, columns, ld, step; /* step: to that of the next batch */
    int64_t dtype, turned;
} Matrix;

/* Without gaps between members: compared as bytes. */
typedef struct Key {
    Matrix a, b, y; /* ours */
    int64_t batch, bias, aligned;
} Key;

typedef struct Plan {
    Key key;
    bool made, possible;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
    cublasLtMatmulHeuristicResult_t best;
} Plan;

typedef struct dsi_cublas {
    cublasLtHandle_t handle; /* NULL: it could not be made */
    Plan plan[PLANS];
    int next; /* is replaced next */
} dsi_cublas;

/* A row-major view of `lines` by `n` with these strides; false: it is neither
 * row-major nor column-major. */
static bool matrix_of(const long long *stride, int64_t lines, int64_t n, int dtype, Matrix *x)
{
    *x = (Matrix){.step = stride[0], .dtype = dtype};
    if ((stride[2] == 1 || n == 1) && (lines == 1 || stride[1] >= n)) {
        x->rows = n, x->columns = lines, x->ld = lines == 1 ? n : stride[1];
        return true;
    }
    if (stride[1] != 1 || stride[2] < lines) return false;
    x->rows = lines, x->columns = n, x->ld = stride[2], x->turned = 1;
    return true;
}

static bool dtype_fits(int dtype) { return dtype == DS_F32 || dtype == DS_F16 || dtype == DS_BF16; }

static bool key_of(const dsi_cuda_matmul_args *p, Key *k)
{
    memset(k, 0, sizeof *k);
    if (!dtype_fits(p->dtype) || !dtype_fits(p->y_dtype)) return false;
    if (p->bias && (p->bias_dtype != p->y_dtype || p->bias_s != 1)) return false;
    if (!matrix_of(p->as, p->m, p->k, p->dtype, &k->a) ||
        !matrix_of(p->bs, p->k, p->n, p->dtype, &k->b) ||
        !matrix_of(p->ys, p->m, p->n, p->y_dtype, &k->y) || k->y.turned)
        return false;
    if (p->batch > INT32_MAX) return false;
    uintptr_t bits = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->y | (uintptr_t)p->bias |
                     ALIGNED;
    k->aligned = (int64_t)(bits & -bits);
    k->batch = p->batch;
    k->bias = p->bias != NULL;
    return true;
}

/* ---- plans ----------------------------------------------------------------------------------------------- */

static void plan_drop(Plan *plan)
{
    if (plan->desc) library.f.desc_free(plan->desc);
    if (plan->a) library.f.layout_free(plan->a);
    if (plan->b) library.f.layout_free(plan->b);
    if (plan->y) library.f.layout_free(plan->y);
    *plan = (Plan){.made = false};
}

static ds_status layout_make(cublasLtMatrixLayout_t *layout, const Matrix *x, int64_t batch)
{
    static const cudaDataType_t types[] = {
        [DS_F32] = CUDA_R_32F, [DS_F16] = CUDA_R_16F, [DS_BF16] = CUDA_R_16BF};
    int32_t count = (int32_t)batch;
    ds_status status = CALL(layout_new, layout, types[x->dtype], (uint64_t)x->rows,
                            (uint64_t)x->columns, x->ld);
    if (status != DS_OK || batch == 1) return status;
    status = CALL(layout_set, *layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (status != DS_OK) return status;
    return CALL(layout_set, *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x->step,
                sizeof x->step);
}

static ds_status desc_make(Plan *plan)
{
    const Key *k = &plan->key;
    cublasOperation_t a = k->b.turned ? CUBLAS_OP_T : CUBLAS_OP_N,
                      b = k->a.turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    ds_status status = CALL(desc_new, &plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == DS_OK)
        status = CALL(desc_set, plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (status == DS_OK)
        status = CALL(desc_set, plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (status == DS_OK && k->bias)
        status = CALL(desc_set, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias);
    return status;
}

/* Asks for an algorithm, which adds parts of a sum in float32. None is no
 * failure: the product is not possible. */
static ds_status plan_choose(const dsi_cublas *c, Plan *plan)
{
    cublasLtMatmulPreference_t wish = NULL;
    uint64_t most = workspace_most;
    uint32_t aligned = (uint32_t)plan->key.aligned, parts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int found = 0;
    ds_status status = CALL(preference_new, &wish);
    if (status == DS_OK)
        status = CALL(preference_set, wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                      sizeof most);
    if (status == DS_OK)
        status = CALL(preference_set, wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &parts,
                      sizeof parts);
    for (int i = 0; status == DS_OK && i < 4; i++)
        status = CALL(
            preference_set, wish,
            (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &aligned, sizeof aligned);
    if (status == DS_OK) {
        cublasStatus_t asked = library.f.heuristic(c->handle, plan->desc, plan->b, plan->a, plan->y,
                                                   plan->y, wish, 1, &plan->best, &found);
        plan->possible = asked == CUBLAS_STATUS_SUCCESS && found > 0 &&
                         plan->best.state == CUBLAS_STATUS_SUCCESS &&
                         plan->best.workspaceSize <= workspace_most;
    }
    if (wish) library.f.preference_free(wish);
    return status;
}

/* NULL with the message. */
static Plan *plan_of(dsi_cublas *c, const Key *k)
{
    for (int i = 0; i < PLANS && c->plan[i].made; i++)
        if (!memcmp(&c->plan[i].key, k, sizeof *k)) return &c->plan[i];
    Plan *plan = &c->plan[c->next];
    c->next = (c->next + 1) % PLANS;
    plan_drop(plan);
    plan->key = *k;
    ds_status status = desc_make(plan);
    if (status == DS_OK) status = layout_make(&plan->a, &k->a, k->batch);
    if (status == DS_OK) status = layout_make(&plan->b, &k->b, k->batch);
    if (status == DS_OK) status = layout_make(&plan->y, &k->y, k->batch);
    if (status == DS_OK) status = plan_choose(c, plan);
    plan->made = true;
    if (status == DS_OK) return plan;
    plan->possible = false;
    return NULL;
}

/* ---- a product ------------------------------------------------------------------------------------------- */

/* This thread's handle; its first call opens the library, and makes it. Without
 * one the library is not asked again. */
static dsi_cublas *cublas_of(dsi_cuda_gpu *g)
{
    if (g->cublas) return g->cublas;
    dsi_cublas *c = g->cublas = dsi_alloc(sizeof *c);
    cublasStatus_t result = library.found ? library.f.create(&c->handle) : CUBLAS_STATUS_SUCCESS;
    if (result == CUBLAS_STATUS_SUCCESS) return c;
    c->handle = NULL;
    dsi_log(DSI_WARNING, "large products by our own kernels: cublasLtCreate says %s",
            result_name(result));
    return c;
}

static ds_status plan_run(dsi_stream *s, const dsi_cublas *c, const Plan *plan,
                          const dsi_cuda_matmul_args *p, void *workspace)
{
    static const float one = 1, zero = 0;
    ds_status status = DS_OK;
    if (p->bias)
        status = CALL(desc_set, plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                      sizeof p->bias);
    if (status != DS_OK) return status;
    return CALL(matmul, c->handle, plan->desc, &one, p->b, plan->b, p->a, plan->a, &zero, p->y,
                plan->y, p->y, plan->y, &plan->best.algo, workspace, plan->best.workspaceSize,
                s->handle);
}

/* The product, if cublasLt has an algorithm for it. */
static ds_status run(dsi_stream *s, dsi_cublas *c, const dsi_cuda_matmul_args *p, const Key *k,
                     bool *done)
{
    const Plan *plan = plan_of(c, k);
    if (!plan) return ds_error_status();
    size_t bytes = plan->best.workspaceSize;
    if (!plan->possible) return DS_OK;
    void *workspace = bytes ? dsi_cuda_scratch(s, bytes) : NULL;
    if (bytes && !workspace) return ds_error_status();
    ((dsi_cuda_gpu *)s->device->own)->fault_is_seen = false; /* work is queued */
    ds_status status = plan_run(s, c, plan, p, workspace);
    if (workspace) dsi_cuda_scratch_free(s, workspace, bytes);
    *done = status == DS_OK;
    return status;
}

/* ---- odd sizes of 16 bits --------------------------------------------------------------------------------
 *
 * Where k, n or a stride is no whole vectors of 16 bytes, such as 50257 classes,
 * cublasLt takes up to 9 times as long (H200), and our kernels 2 times. So large
 * products are of copies with zeros up to the next whole vector, and their result is
 * copied back; what is too small for that is left to our kernels. */

enum { VECTOR = 8, PAYS = 128 }; /* elements; multiplications for each element that is copied */

/* An operand: in its place, or in memory of its own. */
typedef struct Operand {
    Matrix x;           /* as the product takes it */
    dsi_view own, copy; /* copy.p NULL: in its place */
    size_t bytes;       /* of the copy */
} Operand;

static int64_t whole(int64_t n) { return (n + VECTOR - 1) / VECTOR * VECTOR; }

/* all: its columns must be whole vectors too. */
static bool has_vectors(const void *p, const Matrix *x, bool all, int64_t batch)
{
    return !((uintptr_t)p % 16) && !(x->ld % VECTOR) && !(x->rows % VECTOR) &&
           (!all || !(x->columns % VECTOR)) && (batch == 1 || !(x->step % VECTOR));
}

/* p is not written if it is an input. */
static Operand operand_of(const void *p, const Matrix *x, bool all)
{
    union {
        const void *in;
        void *out;
    } at = {.in = p};
    Operand o = {.x = *x,
                 .own = {at.out, (ds_dtype)x->dtype, 2, {x->columns, x->rows}, {x->ld, 1}}};
    if (has_vectors(p, x, all, 1)) return o;
    o.x.rows = o.x.ld = whole(x->rows);
    if (all) o.x.columns = whole(x->columns);
    o.copy = (dsi_view){NULL, o.own.dtype, 2, {o.x.columns, o.x.rows}, {o.x.ld, 1}};
    o.bytes = (size_t)(o.x.columns * o.x.ld) * ds_dtype_size(o.own.dtype);
    return o;
}

/* Strides of an operand's rows and columns, as a product's arguments have them. */
static void *place_of(const Operand *o, long long *stride)
{
    stride[1] = o->x.turned ? 1 : o->x.ld;
    stride[2] = o->x.turned ? o->x.ld : 1;
    return o->bytes ? o->copy.p : o->own.p;
}

static ds_status copy_in(dsi_stream *s, const Operand *o)
{
    return o->bytes ? dsi_cuda_pad(s, o->own, o->copy) : DS_OK;
}

static ds_status copy_out(dsi_stream *s, const Operand *o)
{
    dsi_view part = o->copy;
    for (int i = 0; i < 2; i++) part.d[i] = o->own.d[i];
    return o->bytes ? dsi_cuda_copy(s, part, o->own) : DS_OK;
}

enum { A, B, Y, BIAS, OPERANDS };

static ds_status run_copies(dsi_stream *s, dsi_cublas *c, dsi_cuda_matmul_args p, const Operand *o,
                            bool *done)
{
    Key k;
    long long line[3];
    ds_status status = DS_OK;
    p.a = place_of(&o[A], p.as), p.b = place_of(&o[B], p.bs), p.y = place_of(&o[Y], p.ys);
    if (p.bias) p.bias = place_of(&o[BIAS], line);
    p.m = o[Y].x.columns, p.n = o[Y].x.rows;
    p.k = o[A].x.turned ? o[A].x.columns : o[A].x.rows;
    if (!key_of(&p, &k)) return DS_OK;
    for (int i = 0; i < OPERANDS && status == DS_OK; i++)
        if (i != Y) status = copy_in(s, &o[i]);
    if (status == DS_OK) status = run(s, c, &p, &k, done);
    return status == DS_OK && *done ? copy_out(s, &o[Y]) : status;
}

static ds_status run_padded(dsi_stream *s, dsi_cublas *c, const dsi_cuda_matmul_args *p,
                            const Key *k, bool *done)
{
    Matrix line = {.rows = p->n, .columns = 1, .ld = p->n, .dtype = p->bias_dtype};
    bool turned = k->a.turned; /* a's lines are m long, and m need not be whole else */
    Operand o[OPERANDS] = {operand_of(p->a, &k->a, turned), operand_of(p->b, &k->b, true),
                           operand_of(p->y, &k->y, turned)};
    if (p->bias) o[BIAS] = operand_of(p->bias, &line, false);
    double copied = 0;
    for (int i = 0; i < BIAS; i++)
        copied += o[i].bytes ? (double)o[i].x.rows * (double)o[i].x.columns : 0;
    if (p->batch != 1 || (double)p->m * (double)p->n * (double)p->k < PAYS * copied) return DS_OK;
    ds_status status = DS_OK;
    bool room = true;
    int before = dsi_error_count();
    for (int i = 0; i < OPERANDS && room; i++)
        room = !o[i].bytes || (o[i].copy.p = dsi_cuda_scratch(s, o[i].bytes));
    if (room)
        status = run_copies(s, c, *p, o, done);
    else
        dsi_error_forget(before); /* our kernels need no copies */
    for (int i = OPERANDS - 1; i >= 0; i--)
        if (o[i].copy.p) dsi_cuda_scratch_free(s, o[i].copy.p, o[i].bytes);
    return status;
}

ds_status dsi_cuda_cublas_matmul(dsi_stream *s, const dsi_cuda_matmul_args *p, bool *done)
{
    Key k;
    *done = false;
    if ((double)p->batch * (double)p->m * (double)p->n * (double)p->k < DSI_CUBLAS_LEAST)
        return DS_OK;
    pthread_once(&once, library_open_once);
    if (library.required && !library.found) return dsi_fail(DS_EDEVICE, "matmul: %s", library.why);
    dsi_cublas *c = cublas_of(dsi_cuda_enter(s->device));
    if (!c->handle || !key_of(p, &k)) return DS_OK;
    bool turned = k.a.turned, vectors = has_vectors(p->a, &k.a, turned, k.batch) &&
                                        has_vectors(p->b, &k.b, true, k.batch) &&
                                        has_vectors(p->y, &k.y, turned, k.batch);
    return vectors || p->dtype == DS_F32 ? run(s, c, p, &k, done) : run_padded(s, c, p, &k, done);
}

void dsi_cuda_cublas_close(dsi_cuda_gpu *g)
{
    dsi_cublas *c = g->cublas;
    if (!c) return;
    for (int i = 0; i < PLANS; i++) plan_drop(&c->plan[i]);
    if (c->handle) library.f.destroy(c->handle);
    dsi_free(c);
    g->cublas = NULL;
}
