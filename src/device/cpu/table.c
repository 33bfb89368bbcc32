/* device/cpu/table.c: the CPU's kernels, once for each instruction set.
 * SPDX-License-Identifier: MIT */
#include "table.h"

#define ROW(name) .name = KERNEL(name),

extern const dsi_cpu_table KERNEL(dsi_cpu_table);
const dsi_cpu_table KERNEL(dsi_cpu_table) = {
    .kernels = {CPU_KERNELS(ROW)},
    .fusions = {CPU_FUSIONS(ROW)},
    .sum_ranks = KERNEL(sum_ranks),
};
