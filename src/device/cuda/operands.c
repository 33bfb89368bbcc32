/* device/cuda/operands.c: see operands.h.
 *
 * Invariants: the numbers of args.h, which kernels are compiled with, are those
 * of device/kernels.h: the assertions below hold the two together. Joined
 * dimensions never change which elements are paired, only how they are counted.
 * SPDX-License-Identifier: MIT */
#include "operands.h"

#include "base/error.h"
#include "kernels/decode.h"
#include "kernels/pairs.h"
#include "kernels/route.h"

#include <string.h>

/* The numbers of kernels/args.h, pairs.h and route.h are those of the contract. */
#define SAME(constant, ...) \
    _Static_assert((int)K_##constant == (int)DSI_##constant, "args.h: " #constant);
#define SAME_FAULT(constant, ...) \
    _Static_assert((int)K_FAULT_##constant == (int)DSI_FAULT_##constant, "args.h: " #constant);
#define SAME_DTYPE(name) _Static_assert((int)K_##name == (int)DS_##name, "args.h: " #name);
DSI_UNARY_OPS(SAME)
DSI_BINARY_OPS(SAME)
DSI_COMPARE_OPS(SAME)
DSI_REDUCE_OPS(SAME)
DSI_FAULT_OPS(SAME_FAULT)
SAME_DTYPE(F32)
SAME_DTYPE(F64)
SAME_DTYPE(F16)
SAME_DTYPE(BF16)
SAME_DTYPE(I64)
SAME_DTYPE(I32)
SAME_DTYPE(I16)
SAME_DTYPE(I8)
SAME_DTYPE(U8)
SAME_DTYPE(BOOL)
_Static_assert(sizeof(dsi_fault) == sizeof(dsi_cuda_fault_flag), "args.h: the fault flag");
_Static_assert(DS_MAX_DIMS == K_DIMS, "args.h: K_DIMS");

#define BLOCK  256
#define BLOCKS 8192 /* at most: 2 million threads, more than any GPU holds at once */

int64_t dsi_cuda_elements_in(const dsi_view *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->n; i++) n *= v->d[i];
    return n;
}

bool dsi_cuda_contiguous(const dsi_view *v)
{
    int64_t step = 1;
    for (int i = v->n - 1; i >= 0; step *= v->d[i--])
        if (v->d[i] != 1 && v->s[i] != step) return false;
    return true;
}

dsi_cuda_view dsi_cuda_view_of(const dsi_view *v)
{
    dsi_cuda_view out = {.p = v->p, .dtype = (int)v->dtype, .n = v->n};
    for (int i = 0; i < v->n && v->p; i++) out.d[i] = v->d[i], out.s[i] = v->s[i];
    return out;
}

dsi_cuda_line dsi_cuda_line_of(const dsi_view *v)
{
    return (dsi_cuda_line){.p = v->p, .s = v->p ? v->s[0] : 0, .dtype = (int)v->dtype};
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* Dimensions of more than one element, the output's longest stride first. */
static int order_dimensions(const dsi_view *y, int *order)
{
    int n = 0;
    for (int i = 0; i < y->n; i++) {
        if (y->d[i] == 1) continue;
        int k = n++;
        for (; k > 0 && magnitude(y->s[order[k - 1]]) < magnitude(y->s[i]); k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    return n;
}

/* Whether dimension k follows the last one of e without a gap in every view. */
static bool elements_continue(const dsi_cuda_elements *e, int n, const dsi_view *const *views,
                              int k)
{
    for (int v = 0; v < n; v++)
        if (e->s[v][e->n - 1] != views[v]->s[k] * views[v]->d[k]) return false;
    return true;
}

/* A kernel divides a thread's number by each dimension to find its element:
 * fewer dimensions are fewer divisions. Contiguous operands have one, without
 * any; in the output's order neighbouring threads write neighbours. */
dsi_cuda_elements dsi_cuda_elements_of(int n, const dsi_view *const *views)
{
    const dsi_view *y = views[n - 1];
    dsi_cuda_elements e = {.count = dsi_cuda_elements_in(y)};
    int order[DS_MAX_DIMS], dims = order_dimensions(y, order);
    for (int v = 0; v < n; v++) e.p[v] = views[v]->p, e.dtype[v] = (int)views[v]->dtype;
    for (int i = 0; i < dims; i++) {
        int k = order[i];
        bool joined = e.n && elements_continue(&e, n, views, k);
        if (!joined) e.d[e.n++] = 1;
        e.d[e.n - 1] *= y->d[k];
        for (int v = 0; v < n; v++) e.s[v][e.n - 1] = views[v]->s[k];
    }
    return e;
}

dsi_cuda_grid dsi_cuda_blocks(int64_t blocks, unsigned threads)
{
    return (dsi_cuda_grid){.blocks = {(unsigned)blocks, 1, 1}, .threads = {threads, 1, 1}};
}

/* Less than a block is one block of whole warps. */
dsi_cuda_grid dsi_cuda_grid_of(int64_t count)
{
    int64_t threads = count < BLOCK ? (count + 31) / 32 * 32 : BLOCK;
    int64_t blocks = threads ? (count + threads - 1) / threads : 0;
    return dsi_cuda_blocks(blocks < BLOCKS ? blocks : BLOCKS, (unsigned)threads);
}

const char *dsi_cuda_suffix(ds_dtype dtype) { return dtype == DS_F64 ? "_f64" : "_f32"; }

const char *dsi_cuda_dtype_suffix(ds_dtype dtype)
{
    return dtype == DS_F16 ? "_f16" : dtype == DS_BF16 ? "_bf16" : dsi_cuda_suffix(dtype);
}

ds_status dsi_cuda_floating(const char *kernel, ds_dtype dtype)
{
    if (dtype <= DS_BF16) return DS_OK;
    return dsi_fail(DS_EINVAL, "%s: no cuda kernel for %s", kernel, ds_dtype_name(dtype));
}

ds_status dsi_cuda_launch_floating(dsi_stream *s, dsi_cuda_family family, const char *kernel,
                                   ds_dtype dtype, dsi_cuda_grid grid, const void *args)
{
    ds_status status = dsi_cuda_floating(kernel, dtype);
    if (status != DS_OK) return status;
    return dsi_cuda_launch(s, family, kernel, dsi_cuda_suffix(dtype), grid, args);
}

void *dsi_cuda_fault(dsi_stream *s)
{
    const dsi_cuda_gpu *g = s->device->own;
    return (void *)(uintptr_t)g->fault;
}

void *dsi_cuda_scratch(dsi_stream *s, size_t bytes) { return dsi_cache_alloc(s->device, bytes); }

void dsi_cuda_scratch_free(dsi_stream *s, void *p, size_t bytes)
{
    if (p) dsi_cache_free(s->device, p, bytes);
}

dsi_cuda_divisor dsi_cuda_divisor_of(int64_t d)
{
    dsi_cuda_divisor v = {.d = (unsigned)d};
    while ((INT64_C(1) << v.shift) < d) v.shift++;
    v.mul = (unsigned)(((UINT64_C(1) << 32) * ((UINT64_C(1) << v.shift) - (uint64_t)d)) /
                           (uint64_t)d +
                       1);
    return v;
}
