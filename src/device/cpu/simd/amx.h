/* device/cpu/simd/amx.h: whether this compiler knows the matrix unit, AMX,
 * and AVX512_BF16.
 * SPDX-License-Identifier: MIT */
#pragma once

#if defined(__linux__) && \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define DSI_KNOWS_AMX
#endif
