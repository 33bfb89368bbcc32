/* device/cuda/kernels/pairs.h: numbers of functions of two tensors that follow
 * those of args.h. C11 and CUDA C++; operands.c asserts that they are those of
 * device/operations.h.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

enum { K_POWER = K_REMAINDER + 1, K_ATAN2, K_BITS_AND };
