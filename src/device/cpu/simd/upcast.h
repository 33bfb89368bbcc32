/* device/cpu/simd/upcast.h: kernels for 16-bit tensors.
 *
 * Note [16-bit kernels] Arithmetic is in float32; what is stored has 16 bits
 * and is rounded once. A kernel does it in one of three ways: by the bits
 * (relu, and all that only moves elements); piece by piece in the first cache
 * (pointwise, sums, norms, softmax, losses, rows by index, pooling, depthwise
 * convolutions, Winograd's transforms, the packing of products: half.h;
 * products and attention of bfloat16); or, where neither was worth its lines,
 * IN_F32: itself, called for float32 copies of its operands, or of a slice of
 * them at a time. Statistics that a backward gets from its forward (mean, rstd,
 * lse, divisor) are float32.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "half.h"

#define MAX_OUTPUTS  3
#define MAX_OPERANDS 10

typedef struct in_f32 {
    dsi_stream *s;
    void *block; /* memory of all copies */
    size_t bytes;
    int n_out;
    dsi_view *out[MAX_OUTPUTS], half[MAX_OUTPUTS]; /* as they are now, as they were */
} in_f32;

#define in_f32_begin KERNEL(dsi_in_f32_begin)
#define in_f32_end   KERNEL(dsi_in_f32_end)

/* Replaces the 16-bit ones among n views, of which the first n_out are outputs,
 * by float32 ones in the same memory order; absent views and those of other
 * dtypes stay. False with the message. */
bool in_f32_begin(in_f32 *c, dsi_stream *s, int n_out, int n, dsi_view *const *views);
ds_status in_f32_end(in_f32 *c, ds_status status); /* rounds the outputs to where they belong */

#define IN_F32_SMALL ((size_t)1 << 20) /* bytes of copies that are in scratch memory */

/* A kernel whose items (heads, images) do not depend on each other calls itself
 * for slices of its 16-bit operands, so that few of them have copies at a time:
 * how many items a slice has, each of `elements` elements in all operands. */
static inline int64_t slice_items(int64_t elements)
{
    int64_t n = (int64_t)(IN_F32_SMALL / sizeof(float)) / (elements + 1);
    return n < 1 ? 1 : n;
}

/* Items first .. first + n - 1, or as many as there are, of dimension 0 of v,
 * which may be absent. */
static inline dsi_view view_slice(dsi_view v, int64_t first, int64_t n)
{
    if (!v.p) return v;
    v.p = (char *)v.p + first * v.s[0] * (int64_t)ds_dtype_size(v.dtype);
    v.d[0] = v.d[0] - first < n ? v.d[0] - first : n;
    return v;
}

/* For the head of a kernel: returns what `call`, the kernel itself, gives for
 * float32 copies:
 *     if (is_half(y.dtype)) IN_F32(s, 1, KERNEL(softmax)(s, x, y), &y, &x);
 * Outputs come first. */
#define IN_F32(s, n_out, call, ...) \
    do { \
        dsi_view *const views_[] = {__VA_ARGS__}; \
        _Static_assert(sizeof views_ / sizeof *views_ <= MAX_OPERANDS, "operands of IN_F32"); \
        in_f32 c_; \
        if (!in_f32_begin(&c_, s, n_out, (int)(sizeof views_ / sizeof *views_), views_)) \
            return DS_ENOMEM; \
        return in_f32_end(&c_, call); \
    } while (0)
