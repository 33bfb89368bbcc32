/* device/cuda/conv_last.h: convolutions of 16 bits and float32 whose channels are
 * neighbours in memory, for launch_conv.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "driver.h"
#include "kernels/conv.h"

/* Whether the kernels of conv_last.cu and conv_wgmma.cu take these operands,
 * which may be gradients: tensor cores, channels of a group that are a multiple
 * of 16 bytes, x and y channels-last and aligned. */
bool dsi_cuda_conv_last_takes(const dsi_stream *s, const dsi_cuda_conv_args *p, const dsi_view *x,
                              const dsi_view *y);

/* y, or dx, of operands that are taken. */
ds_status dsi_cuda_conv_last(dsi_stream *s, const dsi_cuda_conv_args *p, bool dx);

/* The same of conv2d_dw, and dw. */
bool dsi_cuda_conv_dw_last_takes(const dsi_stream *s, const dsi_cuda_conv_args *p,
                                 const dsi_view *x, const dsi_view *dy);
ds_status dsi_cuda_conv_dw_last(dsi_stream *s, const dsi_cuda_conv_args *p);

/* Few channels of x, in any layout: y and dw of operands that are taken, by way
 * of a copy of x under each pixel's taps, which is no larger than y. */
bool dsi_cuda_conv_patches_takes(const dsi_stream *s, const dsi_cuda_conv_args *p,
                                 const dsi_view *y);
ds_status dsi_cuda_conv_patches(dsi_stream *s, const dsi_cuda_conv_args *p);
ds_status dsi_cuda_conv_patches_dw(dsi_stream *s, const dsi_cuda_conv_args *p);
