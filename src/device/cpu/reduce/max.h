/* device/cpu/reduce/max.h: maxima over one dimension, for the kernel reduce.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

/* y and index [outer,1,inner]: the maximum of x [outer,C,inner] over C and its
 * place; y.p may be NULL. */
#define reduce_max KERNEL(reduce_max)
ds_status reduce_max(dsi_stream *s, dsi_view x, dsi_view y, dsi_view index);
