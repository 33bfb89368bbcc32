/* base/clock.h: what time it is.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <stdint.h>

int64_t dsi_now_ns(void); /* as dsi_now, in nanoseconds: for waits of microseconds */
/* seconds since some moment; never decreases: for lengths of time */
DSI_SHARED double dsi_now(void);
/* seconds that this thread has run: a neighbour on its core does not count */
double dsi_thread_time(void);
double dsi_wall_time(void); /* seconds since 1970: for files and messages */
