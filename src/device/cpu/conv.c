/* device/cpu/conv.c: convolution: the kernels' entries.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "table.h"

#define REAL        double
#define PLAIN(name) name##_f64
#include "conv_plain.h"

ds_status KERNEL(conv2d)(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                         dsi_view y)
{
    if (y.dtype == DS_F32) return conv_forward(s, c, x, w, b, y);
    if (y.dtype != DS_F64) return no_dtype("conv2d", y.dtype);
    conv2d_f64(&(Place_f64){c, &x, &w}, &b, &y);
    return DS_OK;
}

ds_status KERNEL(conv2d_dx)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                            dsi_view dx)
{
    if (dx.dtype == DS_F32) return conv_dx(s, c, dy, w, dx);
    if (dx.dtype != DS_F64) return no_dtype("conv2d_dx", dx.dtype);
    zero_f64(&dx);
    gradient_f64(&(Place_f64){c, &dx, &w}, add_dx_f64, &dy);
    return DS_OK;
}

ds_status KERNEL(conv2d_dw)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                            dsi_view dw)
{
    if (dw.dtype == DS_F32) return conv_dw(s, c, dy, x, dw);
    if (dw.dtype != DS_F64) return no_dtype("conv2d_dw", dw.dtype);
    zero_f64(&dw);
    gradient_f64(&(Place_f64){c, &x, &dw}, add_dw_f64, &dy);
    return DS_OK;
}

ds_status KERNEL(conv2d_dx_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                   dsi_view w, dsi_view dx)
{
    if (dx.dtype == DS_F32) return conv_dx_pooled(s, c, dy, w, dx);
    if (dx.dtype != DS_F64) return no_dtype("conv2d_dx_pooled", dx.dtype);
    zero_f64(&dx);
    gradient_pooled_f64(&(Place_f64){c, &dx, &w}, add_dx_f64, dy);
    return DS_OK;
}

ds_status KERNEL(conv2d_dw_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                   dsi_view x, dsi_view dw)
{
    if (dw.dtype == DS_F32) return conv_dw_pooled(s, c, dy, x, dw);
    if (dw.dtype != DS_F64) return no_dtype("conv2d_dw_pooled", dw.dtype);
    zero_f64(&dw);
    gradient_pooled_f64(&(Place_f64){c, &x, &dw}, add_dw_f64, dy);
    return DS_OK;
}

ds_status KERNEL(sum_channels)(dsi_stream *s, dsi_view x, dsi_view y)
{
    (void)s;
    if (x.dtype != DS_F32 && x.dtype != DS_F64) return no_dtype("sum_channels", x.dtype);
    for (int64_t c = 0; c < x.d[1]; c++) {
        double sum = 0;
        for (int64_t n = 0; n < x.d[0]; n++)
            for (int64_t h = 0; h < x.d[2]; h++) {
                int64_t row = n * x.s[0] + c * x.s[1] + h * x.s[2];
                for (int64_t w = 0; w < x.d[3]; w++)
                    sum += x.dtype == DS_F32 ? (double)((float *)x.p)[row + w * x.s[3]]
                                             : ((double *)x.p)[row + w * x.s[3]];
            }
        if (x.dtype == DS_F32)
            ((float *)y.p)[c * y.s[0]] = (float)sum;
        else
            ((double *)y.p)[c * y.s[0]] = sum;
    }
    return DS_OK;
}
