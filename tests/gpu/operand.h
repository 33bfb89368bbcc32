/* tests/gpu/operand.h: operands of kernels on the GPU, in random layouts, beside
 * the same values in float64 without gaps on the CPU. Memory around an operand and
 * between its elements is guarded: a read of it gives NaN, a write is seen.
 *
 * A case makes its operands (operand_in, operand_out), runs a kernel on their
 * .gpu views and a reference on their .cpu views, compares (operand_check), and
 * frees all of them (operands_free).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"
#include "emulated.h"

#include "device/device.h"

#include <math.h>

enum { GUARD = 256, OPERANDS = 12 };

typedef struct Operand {
    dsi_view gpu, cpu; /* cpu: floats as float64, integers as they are */
    char *image;       /* on the host, what the block held before */
    char *block;       /* on the GPU */
    size_t bytes;      /* of both */
} Operand;

static Operand operands[OPERANDS];
static int operands_made;
static uint64_t operand_seed;

static inline dsi_device *cpu_device(void) { return dsi_device_get((ds_device){DS_CPU, 0}); }
static inline dsi_device *gpu_device(void) { return dsi_device_get((ds_device){DS_CUDA, 0}); }

/* A whole number, low to high. */
static inline int64_t pick(int64_t low, int64_t high)
{
    operand_seed = operand_seed * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((operand_seed >> 33) % (uint64_t)(high - low + 1));
}
static inline bool one_in(int64_t n) { return pick(1, n) == 1; }
static inline double pick_value(void) { return (double)pick(-2048, 2048) / 2048; }

#define DIMS(...) \
    ((dsi_view){.n = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .d = {__VA_ARGS__}})

/* Of a view without gaps, from p[at] on. */
static inline dsi_view operand_dense(const float *p, int64_t at, ds_dtype dtype, dsi_view dims)
{
    int64_t step = 1;
    for (int i = dims.n - 1; i >= 0; i--) dims.s[i] = step, step *= dims.d[i];
    dims.p = (void *)(uintptr_t)(p + at), dims.dtype = dtype;
    return dims;
}

static inline int64_t elements_of(const dsi_view *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->n; i++) n *= v->d[i];
    return n;
}

/* Strides without gaps, or in a random order of dimensions with some; *span: the
 * elements from the first to the last. */
static inline void operand_lay_out(dsi_view *v, bool dense, bool repeats, int64_t *span)
{
    int order[DS_MAX_DIMS];
    int64_t step = dense || !one_in(4) ? 1 : 2;
    for (int i = 0; i < v->n; i++) order[i] = i;
    for (int i = v->n - 1; i > 0 && !dense; i--) {
        int k = (int)pick(0, i), kept = order[i];
        order[i] = order[k], order[k] = kept;
    }
    for (int i = v->n - 1; i >= 0; i--) {
        v->s[order[i]] = step;
        step *= v->d[order[i]] + (!dense && one_in(3) ? pick(1, 3) : 0);
    }
    if (v->n && repeats) v->s[pick(0, v->n - 1)] = 0;
    *span = 1;
    for (int i = 0; i < v->n; i++) *span += (v->d[i] ? v->d[i] - 1 : 0) * v->s[i];
}

static inline ds_dtype operand_reference(ds_dtype dtype)
{
    return dtype <= DS_BF16 ? DS_F64 : dtype;
}

/* From the dense memory p to or from the view v; once where v repeats. */
static inline void operand_convert(const dsi_view *v, void *p, bool to)
{
    dsi_device *d = cpu_device();
    dsi_view dense = *v, other = *v;
    int64_t step = 1;
    for (int i = v->n - 1; i >= 0; i--) dense.s[i] = step, step *= v->d[i];
    dense.p = p, dense.dtype = operand_reference(v->dtype);
    for (int i = 0; to && i < v->n; i++)
        if (!v->s[i] && v->d[i] > 1) dense.d[i] = other.d[i] = 1;
    CHECK_INT(d->kernels->copy(&d->stream, to ? dense : other, to ? other : dense), DS_OK);
}

/* values: dense, of the reference's dtype; NULL: an output. Floats may repeat along
 * a dimension (stride 0). */
static inline Operand *operand_make(ds_dtype dtype, dsi_view dims, bool dense, const void *values)
{
    CHECK(operands_made < OPERANDS);
    Operand *o = &operands[operands_made++];
    dsi_device *d = gpu_device();
    int64_t span, n = elements_of(&dims), size = (int64_t)ds_dtype_size(dtype),
                  reference = (int64_t)ds_dtype_size(operand_reference(dtype));
    o->gpu = dims, o->gpu.dtype = dtype;
    operand_lay_out(&o->gpu, dense, values && dtype <= DS_BF16 && !dense && one_in(6), &span);
    int64_t first = GUARD + (dense ? 0 : pick(0, 3) * size);
    o->bytes = (size_t)(first + span * size + GUARD);
    o->image = malloc(o->bytes);
    memset(o->image, values ? 0xff : 0xa5, o->bytes);
    dsi_view image = o->gpu;
    image.p = o->image + first;
    o->cpu = dims, o->cpu.dtype = operand_reference(dtype);
    o->cpu.p = calloc((size_t)n + 1, (size_t)reference);
    int64_t step = 1;
    for (int i = dims.n - 1; i >= 0; i--) o->cpu.s[i] = step, step *= dims.d[i];
    if (values && n) {
        memcpy(o->cpu.p, values, (size_t)(n * reference));
        operand_convert(&image, o->cpu.p, true);
        operand_convert(&image, o->cpu.p, false); /* as it was rounded, and repeats */
    }
    o->block = dsi_cache_alloc(d, o->bytes);
    CHECK(o->block);
    CHECK_INT(d->type->copy_in(&d->stream, o->block, o->image, o->bytes), DS_OK);
    o->gpu.p = o->block + first;
    return o;
}

static inline Operand *operand_out(ds_dtype dtype, dsi_view dims)
{
    return operand_make(dtype, dims, one_in(2), NULL);
}

/* Values -1 to 1. */
static inline Operand *operand_in(ds_dtype dtype, dsi_view dims)
{
    int64_t n = elements_of(&dims);
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = pick_value();
    Operand *o = operand_make(dtype, dims, one_in(2), x);
    free(x);
    return o;
}

/* The GPU's values are those that the reference left in .cpu, within tol of the
 * largest of them, or of `least`; memory around them is as it was. */
static inline void operand_check(const char *name, Operand *o, double tol, double least)
{
    dsi_device *d = gpu_device(), *host = cpu_device();
    int64_t n = elements_of(&o->cpu);
    char *bytes = malloc(o->bytes);
    double *got = calloc((size_t)n + 1, sizeof *got), *want = o->cpu.p, most = least;
    CHECK_INT(d->type->copy_out(&d->stream, bytes, o->block, o->bytes), DS_OK);
    dsi_view view = o->gpu;
    view.p = bytes + ((char *)o->gpu.p - o->block);
    if (n) operand_convert(&view, got, false);
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i])) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
        if (!(fabs(got[i] - want[i]) <= tol * most))
            fail_msg("%s: element %lld is %.9g, want %.9g within %.3g", name, (long long)i, got[i],
                     want[i], tol * most);
    }
    if (n) host->kernels->fill(&host->stream, 0, view);
    view.p = o->image + ((char *)o->gpu.p - o->block);
    if (n) host->kernels->fill(&host->stream, 0, view);
    for (size_t i = 0; i < o->bytes; i++)
        if (bytes[i] != o->image[i])
            fail_msg("%s: byte %zu of %zu, which is none of its elements', was written", name, i,
                     o->bytes);
    free(bytes), free(got);
}

static inline void operands_free(void)
{
    for (int i = 0; i < operands_made; i++) {
        dsi_cache_free(gpu_device(), operands[i].block, operands[i].bytes);
        free(operands[i].image), free(operands[i].cpu.p);
    }
    operands_made = 0;
}

/* The kernel that the emulator was given last; "" with NVIDIA's driver. */
static inline const char *last_kernel(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW),
         *f = driver ? dlsym(driver, "fake_cuda_last_kernel") : NULL;
    const char *(*name)(void);
    if (!f) return "";
    memcpy(&name, &f, sizeof f);
    return name();
}

/* Rows (i = 0) or columns (1) of a convolution's result. */
static inline int64_t out_size(int64_t size, int64_t kernel, const dsi_conv2d *o, int i)
{
    return (size + 2 * o->padding[i] - o->dilation[i] * (kernel - 1) - 1) / o->stride[i] + 1;
}
