/* device/cpu/gemm/tile_size.h: the size of a register tile (tile.h), for tiles
 * and for the code that packs their operands.
 *
 * A tile has TILE_ROWS x TILE_VECTORS accumulators. Beside them it needs
 * TILE_VECTORS registers for a row of b and one for a number of a. At least
 * eight accumulators are needed to hide the latency of a multiply-add (4 cycles
 * on most processors, two of them start in each).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

#if defined(DSI_ISA_avx512)
#define TILE_ROWS    6 /* 24 accumulators, of 32 registers */
#define TILE_VECTORS 4 /* 64 columns: layers are seldom a multiple of 48 wide */
#define PER_POINTER  1 /* rows of a that share a pointer; see tile_n */
#elif defined(__aarch64__)
#define TILE_ROWS    8 /* 24 accumulators, of 32 registers */
#define TILE_VECTORS 3
#define PER_POINTER  1
#elif defined(DSI_ISA_avx2)
#define TILE_ROWS    4 /* 12 accumulators, of 16 registers */
#define TILE_VECTORS 3
#define PER_POINTER  3
#else
#define TILE_ROWS    4 /* 8 of 16: without FMA, each product needs a register too */
#define TILE_VECTORS 2
#define PER_POINTER  3
#endif
#define TILE_COLS (TILE_VECTORS * VF)
