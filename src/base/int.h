/* base/int.h: what C has no word for: the smaller and the larger of two, and
 * division and multiples rounded up.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdint.h>

static inline int64_t dsi_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t dsi_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* For a >= 0, by > 0. */
static inline int64_t dsi_div_up(int64_t a, int64_t by) { return (a + by - 1) / by; }
static inline int64_t dsi_round_up(int64_t a, int64_t to) { return dsi_div_up(a, to) * to; }
