/* tests/device/views.h: tensors without the tensor layer, for tests of kernels:
 * a view on guarded memory in some memory order, its values beside it as
 * doubles in row-major order.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"

#include "base/half.h"
#include "device/cpu/cpu.h"

typedef enum { ROW_MAJOR, CHANNELS_LAST, GAPS, ORDERS } Order;

typedef struct {
    dsi_view v;
    char *memory; /* guarded: elements outside the view keep their value */
    int64_t room; /* elements of memory */
    int64_t n;    /* elements of the view */
} Tensor;

/* The kernel tables that this machine can run. */
typedef struct {
    const char *name;
    const dsi_kernels *kernels;
    const dsi_fusions *fusions;
} Isa;

static inline int isas(Isa out[3])
{
    static const char *const names[] = {"generic", "avx2", "avx512"};
    int n = 0;
    for (int i = 0; i < 3; i++) {
        const dsi_cpu_table *t = dsi_cpu_table_of(names[i]);
        if (t) out[n++] = (Isa){names[i], &t->kernels, &t->fusions};
    }
#if defined(__SANITIZE_THREAD__) /* threads share the same work whatever its instructions */
    out[0] = out[n - 1];
    n = 1;
#endif
    return n;
}

#define GUARD     32   /* elements before and after */
#define UNTOUCHED 7776 /* exact in 16 bits too */

static inline double get(const Tensor *t, int64_t at)
{
    switch (t->v.dtype) {
    case DS_F32:
        return ((float *)t->memory)[at];
    case DS_F64:
        return ((double *)t->memory)[at];
    case DS_F16:
        return (double)dsi_f16_to_f32(((uint16_t *)t->memory)[at]);
    case DS_BF16:
        return (double)dsi_bf16_to_f32(((uint16_t *)t->memory)[at]);
    default:
        return ((int32_t *)t->memory)[at];
    }
}

static inline void set(Tensor *t, int64_t at, double x)
{
    switch (t->v.dtype) {
    case DS_F32:
        ((float *)t->memory)[at] = (float)x;
        break;
    case DS_F64:
        ((double *)t->memory)[at] = x;
        break;
    case DS_F16:
        ((uint16_t *)t->memory)[at] = dsi_f32_to_f16((float)x);
        break;
    case DS_BF16:
        ((uint16_t *)t->memory)[at] = dsi_f32_to_bf16((float)x);
        break;
    default:
        ((int32_t *)t->memory)[at] = (int32_t)x;
    }
}

/* the place of element i (row-major) in memory */
static inline int64_t place(const Tensor *t, int64_t i)
{
    int64_t at = GUARD;
    for (int k = t->v.n - 1; k >= 0; k--) {
        at += i % t->v.d[k] * t->v.s[k];
        i /= t->v.d[k];
    }
    return at;
}

/* the same; element i - 1 is at `before`; fast within a row */
static inline int64_t place_after(const Tensor *t, int64_t i, int64_t before)
{
    int last = t->v.n - 1;
    return last >= 0 && i % t->v.d[last] ? before + t->v.s[last] : place(t, i);
}

static inline Tensor tensor(ds_dtype dtype, ds_dims shape, Order order)
{
    Tensor t = {.v = {.dtype = dtype, .n = shape.n}, .n = 1};
    int64_t step = 1;
    for (int j = 0; j < shape.n; j++) {
        int k = shape.n - 1 - j;
        if (order == CHANNELS_LAST && shape.n == 4) k = (int[]){1, 3, 2, 0}[j];
        t.v.d[k] = shape.d[k];
        t.v.s[k] = step;
        step = step * shape.d[k] + (order == GAPS && j ? 3 : 0);
        t.n *= shape.d[k];
    }
    t.room = step + 2 * GUARD;
    t.memory = malloc((size_t)t.room * ds_dtype_size(dtype));
    for (int64_t i = 0; i < t.room; i++) set(&t, i, UNTOUCHED);
    t.v.p = t.memory + GUARD * ds_dtype_size(dtype);
    return t;
}

static inline void tensor_free(Tensor *t) { free(t->memory); }

/* row-major values -> memory, and back; free() what values() returns */
static inline void put(Tensor *t, const double *x)
{
    for (int64_t i = 0, at = 0; i < t->n; i++) set(t, at = place_after(t, i, at), x[i]);
}

static inline double *values(const Tensor *t)
{
    double *x = malloc((size_t)(t->n + 1) * sizeof *x);
    for (int64_t i = 0, at = 0; i < t->n; i++) x[i] = get(t, at = place_after(t, i, at));
    return x;
}

/* Nothing outside the view was written. */
static inline bool guards_hold(const Tensor *t)
{
    bool *inside = calloc((size_t)t->room, 1);
    for (int64_t i = 0, at = 0; i < t->n; i++) inside[at = place_after(t, i, at)] = true;
    bool ok = true;
    for (int64_t i = 0; i < t->room; i++) ok &= inside[i] || get(t, i) == UNTOUCHED;
    free(inside);
    return ok;
}

/* n repeatable values in [-1, 1), exact in float32 */
static inline double *noise(int64_t n, uint32_t seed)
{
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    uint32_t a = seed * 2654435761u + 12345;
    for (int64_t i = 0; i < n; i++) {
        a = a * 1664525u + 1013904223u;
        x[i] = (double)(a >> 12) / (1 << 19) - 1;
    }
    return x;
}
