/* device/cuda/table.c: CUDA's row of pointers. There is none yet: tensors can
 * lie on a GPU and be copied, and every op on them refuses by name.
 * SPDX-License-Identifier: MIT */
#include "driver.h"

const dsi_kernels dsi_cuda_kernels = {0};
