/* examples/common/trace.c: --trace FILE: one line of numbers for each step.
 * SPDX-License-Identifier: MIT */
#include "trace.h"

#include <errno.h>
#include <string.h>

#include <deepspeed.h>

FILE *trace_open(const char *path, const char *header)
{
    if (!path) return NULL;
    FILE *trace = fopen(path, "w");
    if (!trace || fprintf(trace, "%s\n", header) < 0)
        ds_fail(DS_EIO, "--trace %s: %s", path, strerror(errno));
    return trace;
}

void trace_close(FILE *trace, const char *path)
{
    if (!trace) return;
    bool bad = ferror(trace);
    if (fclose(trace) != 0 || bad) ds_fail(DS_EIO, "--trace %s: %s", path, strerror(errno));
}
