/* examples/common/trace.h: --trace FILE: one line of numbers for each step.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdio.h>

/* Returns NULL if path is NULL, and on failure, which sets ds_error(). */
FILE *trace_open(const char *path, const char *header);
void trace_close(FILE *trace, const char *path);
