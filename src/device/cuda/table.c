/* device/cuda/table.c: the entries of kernels.h that CUDA has. An op whose
 * entry is missing refuses by name.
 * SPDX-License-Identifier: MIT */
#include "driver.h"
#include "launch.h"

#define ENTRY(name) .name = dsi_cuda_##name

const dsi_kernels dsi_cuda_kernels = {
    ENTRY(copy),  ENTRY(fill),

    ENTRY(unary), ENTRY(unary_dx), ENTRY(binary), ENTRY(compare), ENTRY(affine), ENTRY(where),
};

const dsi_fusions dsi_cuda_fusions = {
    ENTRY(mul_add),
    ENTRY(mask_scale),
};
