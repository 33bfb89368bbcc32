/* device/cpu/conv/conv.c: convolution: the kernels' entries, and the bias's
 * gradient.
 *
 *     conv_tile.h      register tiles of a correlation
 *     conv_forward.c   y, and dx of a dense gradient, by those tiles
 *     conv_dw.c        dw, of a dense gradient and of one in pooled form
 *     conv_dx.c        dx of a gradient in pooled form
 *     conv_list.h      the gradients of a pooled form that are not 0
 *     conv_pack.c      one sample rearranged: planes with a border, pixels side by side
 *     conv_winograd.c  3x3 of unit stride with many channels
 *     conv_winograd_amx.c  the same by the matrix unit
 *     conv_1x1.c       1x1: matrix products
 *     conv_depthwise.c a group for each channel
 *     conv_bf16.c      bfloat16: products of unfolded images, where Winograd is not faster
 *     conv_taps.c      the same without unfolding, where vectors multiply bfloat16: y and dx
 *     conv_taps_dw.c   dw
 *     conv_plain.h     plain loops: float64
 *
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "conv_plain.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"

/* float32. Asks the kernels for special shapes in this order; the first that is
 * made for the shape computes it. The same order for dx and dw. */
static ds_status best_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w,
                              dsi_view b, dsi_view y)
{
    ds_status status;
    if (winograd_forward(s, c, x, w, b, y, &status)) return status;
    if (point_forward(s, c, x, w, b, y, &status)) return status;
    if (depth_forward(s, c, x, w, b, y, &status)) return status;
    return conv_forward(s, c, x, w, b, y);
}

static ds_status best_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx)
{
    ds_status status;
    if (winograd_dx(s, c, dy, w, dx, &status)) return status;
    if (point_dx(s, c, dy, w, dx, &status)) return status;
    if (depth_dx(s, c, dy, w, dx, &status)) return status;
    return conv_dx(s, c, dy, w, dx);
}

static ds_status best_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw)
{
    ds_status status;
    if (winograd_dw(s, c, dy, x, dw, &status)) return status;
    if (point_dw(s, c, dy, x, dw, &status)) return status;
    if (depth_dw(s, c, dy, x, dw, &status)) return status;
    return conv_dw(s, c, dy, x, dw);
}

ds_status KERNEL(conv2d)(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                         dsi_view y)
{
    ds_status status;
    if (y.dtype == DS_F32) return best_forward(s, c, x, w, b, y);
    if (winograd_forward(s, c, x, w, b, y, &status)) return status;
    if (bf16_forward(s, c, x, w, b, y, &status)) return status;
    if (is_half(y.dtype) && depth_forward(s, c, x, w, b, y, &status)) return status;
    if (is_half(y.dtype)) IN_F32(s, 1, KERNEL(conv2d)(s, c, x, w, b, y), &y, &x, &w, &b);
    if (y.dtype != DS_F64) return no_dtype("conv2d", y.dtype);
    plain_forward(&(Plain){c, &x, &w}, &b, &y);
    return DS_OK;
}

ds_status KERNEL(conv2d_dx)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                            dsi_view dx)
{
    ds_status status;
    if (dx.dtype == DS_F32) return best_dx(s, c, dy, w, dx);
    if (winograd_dx(s, c, dy, w, dx, &status)) return status;
    if (bf16_dx(s, c, dy, w, (dsi_view){0}, dx, &status)) return status;
    if (is_half(dx.dtype) && depth_dx(s, c, dy, w, dx, &status)) return status;
    if (is_half(dx.dtype)) IN_F32(s, 1, KERNEL(conv2d_dx)(s, c, dy, w, dx), &dx, &dy, &w);
    if (dx.dtype != DS_F64) return no_dtype("conv2d_dx", dx.dtype);
    KERNEL(fill)(s, 0, dx);
    plain_gradient(&(Plain){c, &dx, &w}, ADD_DX, &(dsi_pooled){.value = dy, .w = dy.d[3]});
    return DS_OK;
}

ds_status KERNEL(conv2d_dx_bias)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                                 dsi_view b, dsi_view dx)
{
    ds_status status;
    if (bf16_dx(s, c, dy, w, b, dx, &status)) return status;
    if (is_half(dx.dtype))
        IN_F32(s, 1, KERNEL(conv2d_dx_bias)(s, c, dy, w, b, dx), &dx, &dy, &w, &b);
    status = KERNEL(conv2d_dx)(s, c, dy, w, dx);
    if (!status) status = KERNEL(binary)(s, DSI_ADD, 1, dx, bias_like(b, &dx), dx);
    return status;
}

ds_status KERNEL(conv2d_dw)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                            dsi_view dw)
{
    ds_status status;
    if (dw.dtype == DS_F32) return best_dw(s, c, dy, x, dw);
    if (winograd_dw(s, c, dy, x, dw, &status)) return status;
    if (bf16_dw(s, c, dy, x, dw, &status)) return status;
    if (is_half(dw.dtype) && depth_dw(s, c, dy, x, dw, &status)) return status;
    if (is_half(dw.dtype)) IN_F32(s, 1, KERNEL(conv2d_dw)(s, c, dy, x, dw), &dw, &dy, &x);
    if (dw.dtype != DS_F64) return no_dtype("conv2d_dw", dw.dtype);
    KERNEL(fill)(s, 0, dw);
    plain_gradient(&(Plain){c, &x, &dw}, ADD_DW, &(dsi_pooled){.value = dy, .w = dy.d[3]});
    return DS_OK;
}

ds_status KERNEL(conv2d_dx_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                   dsi_view w, dsi_view dx)
{
    if (dx.dtype == DS_F32) return conv_dx_pooled(s, c, dy, w, dx);
    dsi_pooled g = *dy; /* its value is replaced by a float32 copy */
    if (is_half(dx.dtype))
        IN_F32(s, 1, KERNEL(conv2d_dx_pooled)(s, c, &g, w, dx), &dx, &g.value, &w);
    if (dx.dtype != DS_F64) return no_dtype("conv2d_dx_pooled", dx.dtype);
    KERNEL(fill)(s, 0, dx);
    plain_gradient(&(Plain){c, &dx, &w}, ADD_DX, dy);
    return DS_OK;
}

ds_status KERNEL(conv2d_dw_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                   dsi_view x, dsi_view dw)
{
    if (dw.dtype == DS_F32) return conv_dw_pooled(s, c, dy, x, dw);
    dsi_pooled g = *dy;
    if (is_half(dw.dtype))
        IN_F32(s, 1, KERNEL(conv2d_dw_pooled)(s, c, &g, x, dw), &dw, &g.value, &x);
    if (dw.dtype != DS_F64) return no_dtype("conv2d_dw_pooled", dw.dtype);
    KERNEL(fill)(s, 0, dw);
    plain_gradient(&(Plain){c, &x, &dw}, ADD_DW, dy);
    return DS_OK;
}

/* ---- sum over all but the channels: the bias's gradient -------------------------------------------- */

/* The sum of n neighbours. Four independent sums hide the latency of an
 * addition. */
static float sum_line(const float *x, int64_t n)
{
    vf a[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VF <= n; i += 4 * VF)
        UNROLL for (int j = 0; j < 4; j++) a[j] = vf_add(a[j], vf_load(x + i + j * VF));
    for (; i < n; i += VF) a[0] = vf_add(a[0], vf_load_n(x + i, n - i < VF ? (int)(n - i) : VF));
    return vf_sum(vf_add(vf_add(a[0], a[1]), vf_add(a[2], a[3])));
}

/* The sum of n pixels, `step` elements apart, for `lanes` <= VF channels. */
static vf sum_pixels(const float *x, int64_t step, int64_t n, int lanes)
{
    vf a[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4, x += 4 * step)
        UNROLL for (int j = 0; j < 4; j++) a[j] = vf_add(a[j], vf_load_n(x + j * step, lanes));
    for (; i < n; i++, x += step) a[0] = vf_add(a[0], vf_load_n(x, lanes));
    return vf_add(vf_add(a[0], a[1]), vf_add(a[2], a[3]));
}

typedef struct {
    dsi_view x, y;
} Sum;

/* Channels begin .. end-1, any strides, in float64. */
static void sum_any(void *arg, int64_t begin, int64_t end)
{
    const dsi_view *x = &((Sum *)arg)->x, *y = &((Sum *)arg)->y;
    bool f32 = x->dtype == DS_F32;
    for (int64_t c = begin; c < end; c++) {
        double sum = 0;
        for (int64_t n = 0; n < x->d[0]; n++)
            for (int64_t h = 0; h < x->d[2]; h++)
                for (int64_t w = 0; w < x->d[3]; w++) {
                    int64_t at = n * x->s[0] + c * x->s[1] + h * x->s[2] + w * x->s[3];
                    sum += f32 ? (double)((const float *)x->p)[at] : ((const double *)x->p)[at];
                }
        if (f32)
            ((float *)y->p)[c * y->s[0]] = (float)sum;
        else
            ((double *)y->p)[c * y->s[0]] = sum;
    }
}

/* Channels begin .. end-1 of planes without gaps: each plane is summed in
 * float32, its samples in float64. */
static void sum_planes(void *arg, int64_t begin, int64_t end)
{
    const dsi_view *x = &((Sum *)arg)->x, *y = &((Sum *)arg)->y;
    for (int64_t c = begin; c < end; c++) {
        const float *plane = (const float *)x->p + c * x->s[1];
        double sum = 0;
        for (int64_t n = 0; n < x->d[0]; n++)
            sum += sum_line(plane + n * x->s[0], x->d[2] * x->d[3]);
        ((float *)y->p)[c * y->s[0]] = (float)sum;
    }
}

/* Pixel order: blocks begin .. end-1 of VF channels. A sample is summed in
 * float32, the samples in float64. */
static void sum_blocks(void *arg, int64_t begin, int64_t end)
{
    const dsi_view *x = &((Sum *)arg)->x, *y = &((Sum *)arg)->y;
    for (int64_t c = begin * VF; c < dsi_min(end * VF, x->d[1]); c += VF) {
        int lanes = (int)dsi_min(VF, x->d[1] - c);
        double sum[VF] = {0};
        for (int64_t n = 0; n < x->d[0]; n++) {
            float one[VF];
            vf_store(one, sum_pixels((const float *)x->p + n * x->s[0] + c, x->s[3],
                                     x->d[2] * x->d[3], lanes));
            for (int i = 0; i < VF; i++) sum[i] += (double)one[i];
        }
        for (int i = 0; i < lanes; i++) ((float *)y->p)[(c + i) * y->s[0]] = (float)sum[i];
    }
}

ds_status KERNEL(sum_channels)(dsi_stream *s, dsi_view x, dsi_view y)
{
    if (is_half(x.dtype)) IN_F32(s, 1, KERNEL(sum_channels)(s, x, y), &y, &x);
    Sum o = {x, y};
    if (x.dtype != DS_F32 && x.dtype != DS_F64) return no_dtype("sum_channels", x.dtype);
    int64_t each = x.d[0] * x.d[2] * x.d[3]; /* elements of a channel */
    bool lines = x.dtype == DS_F32 && x.s[2] == x.d[3] * x.s[3];
    if (lines && x.s[1] == 1)
        dsi_parallel((x.d[1] + VF - 1) / VF, 1 + 200000 / (VF * each + 1), sum_blocks, &o);
    else
        dsi_parallel(x.d[1], 1 + 200000 / (each + 1), lines && x.s[3] == 1 ? sum_planes : sum_any,
                     &o);
    return DS_OK;
}
