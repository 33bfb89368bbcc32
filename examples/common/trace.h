/* examples/common/trace.h: --trace FILE: a line of numbers a step.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_TRACE_H
#define EXAMPLES_TRACE_H

#include <stdio.h>

/* path NULL: no trace, and NULL. Failures stand in ds_error(). */
FILE *trace_open(const char *path, const char *header);
void trace_close(FILE *trace, const char *path);

#endif
