/* base/terminal.h: what a terminal can show.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <stdbool.h>

#define DSI_RED    "\033[1;31m"
#define DSI_YELLOW "\033[33m"
#define DSI_PLAIN  "\033[0m"

/* Whether to write colours to a file descriptor: it is a terminal with colours,
 * and NO_COLOR (https://no-color.org) is not set or empty. */
bool dsi_terminal_colors(int fd);

/* The width of the terminal that fd is; 0 if it is none, or does not know. */
DSI_SHARED int dsi_terminal_columns(int fd);

/* Prints text and a new line to stdout, whose cursor is at column `at`. On a
 * terminal, lines are broken between words; the next ones begin at `indent`, or
 * at 4 if few columns would be left. A longer word stays whole. */
DSI_SHARED void dsi_print_wrapped(const char *text, int at, int indent);
