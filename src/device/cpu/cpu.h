/* device/cpu/cpu.h: the instruction sets that kernels are compiled for, and which of them run here.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_CPU_H
#define DSI_DEVICE_CPU_CPU_H

#include "device/device.h"

/* The kernels for "generic", "avx2", "avx512" or "amx", which are avx512's; NULL, without a message, if this processor or this
 * build has them not. */
const dsi_kernels *dsi_cpu_kernels_of(const char *isa);

/* The name of the set that $DS_CPU or else the processor chooses; NULL, with the message, if $DS_CPU
 * names one that cannot run here. */
const char *dsi_cpu_isa(void);

/* Whether that is "amx": kernels of avx512, and products of bfloat16 by the matrix unit. As it was when first asked. */
bool dsi_cpu_amx(void);

/* Bytes of the second cache, of one core. */
int64_t dsi_cpu_l2_bytes(void);

#endif
