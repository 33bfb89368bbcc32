/* device/cpu/gemm/tile_size.h: how many outputs a register tile has (tile.h), which packing needs to know.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_GEMM_TILE_SIZE_H
#define DSI_DEVICE_CPU_GEMM_TILE_SIZE_H

#include "device/cpu/simd/isa.h"

#if defined(DSI_ISA_avx512) || defined(__aarch64__)
#define TILE_ROWS    8 /* 24 accumulators of 32 registers */
#define TILE_VECTORS 3
#define PER_POINTER  1 /* rows of a; see tile_n */
#elif defined(DSI_ISA_avx2)
#define TILE_ROWS    4 /* 12 of 16 */
#define TILE_VECTORS 3
#define PER_POINTER  3
#else
#define TILE_ROWS    4 /* without FMA a product needs a register */
#define TILE_VECTORS 2
#define PER_POINTER  3
#endif
#define TILE_COLS (TILE_VECTORS * VF)

#endif
