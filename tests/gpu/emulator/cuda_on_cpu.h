/* tests/gpu/emulator/cuda_on_cpu.h: the kernels of src/device/cuda, compiled by
 * a host compiler with CUDA_ON_CPU, run on the CPU: types, machine, and what
 * kernels call. AddressSanitizer sees global memory and SHARED arrays,
 * UndefinedBehaviorSanitizer misaligned vector loads. Not expressible: TMA,
 * clusters, weak memory order, and races between blocks.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"
#include "ptx.h"
#include "ptx_wgmma.h"
