/* device/cpu/table.c: the CPU's row of pointers, once for each instruction set.
 * SPDX-License-Identifier: MIT */
#include "table.h"

#define ROW(name) .name = KERNEL(name),

extern const dsi_kernels KERNEL(dsi_cpu_kernels);
const dsi_kernels KERNEL(dsi_cpu_kernels) = {CPU_KERNELS(ROW)};
