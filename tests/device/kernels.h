/* tests/device/kernels.h: what the tests of CPU kernels share: every kernel
 * table, views of any layout.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"

#include "device/cpu/cpu.h"

static inline const dsi_kernels *kernels_of(int isa)
{
    static const char *const names[] = {"generic", "avx2", "avx512"};
    const dsi_cpu_table *table = dsi_cpu_table_of(names[isa]);
    return table ? &table->kernels : NULL;
}

/* The table that contains k. */
static inline const dsi_cpu_table *table_with(const dsi_kernels *k)
{
    _Static_assert(offsetof(dsi_cpu_table, kernels) == 0, "the first member");
    return (const dsi_cpu_table *)(const void *)k;
}

/* The fault flag of the current device is reported with this message. */
#define CHECK_FAULT(text) \
    do { \
        CHECK_INT(dsi_device_check(dsi_device_current()), DS_EINVAL); \
        CHECK_ERROR(text); \
        CHECK_INT(dsi_device_check(dsi_device_current()), DS_OK); \
    } while (0)

/* Where FOR_EACH_ISA begins: threads share the same work whatever its
 * instructions, so that their sanitizer sees the widest alone. */
static inline int first_isa(void)
{
    int isa = 0;
#if defined(__SANITIZE_THREAD__)
    isa = 2;
    while (!kernels_of(isa)) isa--;
#endif
    return isa;
}

/* The thread sanitizer sees what threads do; values, by long loops of the test,
 * are compared in the other builds. */
static inline bool compares_values(void)
{
#if defined(__SANITIZE_THREAD__)
    return false;
#else
    return true;
#endif
}

/* Runs the block after it with k = the table of each instruction set that this
 * processor has. */
#define FOR_EACH_ISA(k) \
    for (int isa_ = first_isa(); isa_ < 3; isa_++) \
        for (const dsi_kernels *k = kernels_of(isa_); k; k = NULL)

static inline int64_t view_count(const dsi_view *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->n; i++) n *= v->d[i];
    return n;
}

/* Fresh zeroed memory seen as d[0] x ... x d[n-1], whose dimensions lie in
 * `order` (outermost first; NULL: row-major). view_free gives it back. */
static inline dsi_view view_new(ds_dtype dtype, int n, const int64_t *d, const int *order)
{
    dsi_view v = {.dtype = dtype, .n = n};
    int64_t step = 1;
    for (int i = n - 1; i >= 0; i--) {
        int at = order ? order[i] : i;
        v.d[at] = d[at];
        v.s[at] = step;
        step *= d[at];
    }
    v.p = calloc(step ? (size_t)step : 1, ds_dtype_size(dtype)); /* exact: overruns are seen */
    return v;
}

static inline void view_free(dsi_view *v) { free(v->p); }

/* The i-th element, counted in row-major order. */
static inline void *view_at(const dsi_view *v, int64_t i)
{
    int64_t offset = 0;
    for (int k = v->n - 1; k >= 0; k--) {
        offset += i % v->d[k] * v->s[k];
        i /= v->d[k];
    }
    return (char *)v->p + offset * (int64_t)ds_dtype_size(v->dtype);
}

/* The same for float32 and float64. */
static inline double view_get(const dsi_view *v, int64_t i)
{
    const void *p = view_at(v, i);
    return v->dtype == DS_F32 ? (double)*(const float *)p : *(const double *)p;
}

static inline void view_set(const dsi_view *v, int64_t i, double x)
{
    void *p = view_at(v, i);
    if (v->dtype == DS_F32)
        *(float *)p = (float)x;
    else
        *(double *)p = x;
}

/* The same pseudo-random numbers in [-1, 1) at each run (a linear congruence;
 * Knuth, TAOCP 2, 3.3.4). */
static inline double next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)*seed * 0x1p-63;
}

static inline void view_random(const dsi_view *v, uint64_t seed)
{
    for (int64_t i = 0; i < view_count(v); i++) view_set(v, i, next_random(&seed));
}
