/* base/terminal.h: what a terminal can show.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>

#define DSI_RED    "\033[1;31m"
#define DSI_YELLOW "\033[33m"
#define DSI_PLAIN  "\033[0m"

/* Whether to write colours to a file descriptor: it is a terminal with colours,
 * and NO_COLOR (https://no-color.org) is not set or empty. */
bool dsi_terminal_colors(int fd);
