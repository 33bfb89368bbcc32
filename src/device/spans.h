/* device/spans.h: what the optimizers of all devices check.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "kernels.h"

/* The dtypes of n spans: a floating-point one, a gradient of the same or of 16
 * bits beside float32, a low-precision copy beside float32, a rest beside
 * bfloat16. */
ds_status dsi_spans_check(const char *device, dsi_rule rule, int n, const dsi_span *x);
