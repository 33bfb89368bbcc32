/* device/cuda/kernels/place.cuh: where an operand of a tile has an element:
 * offsets from its pointer, or these.
 * SPDX-License-Identifier: MIT */
#pragma once

constexpr long long OUTSIDE = -1, ONE = -2; /* not in memory: 0, and 1 */
