/* base/terminal.c: colours for errors and warnings, where a person reads them.
 * SPDX-License-Identifier: MIT */
#include "terminal.h"

#include <deepspeed/types.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool dsi_terminal_colors(int fd)
{
    const char *no = getenv("NO_COLOR"), *type = getenv("TERM");
    if (no && *no) return false;
    return type && *type && strcmp(type, "dumb") != 0 && isatty(fd);
}

void ds_perror(const char *program)
{
    if (!ds_error()) return;
    bool color = dsi_terminal_colors(STDERR_FILENO);
    fflush(stdout); /* what the program printed comes first */
    fprintf(stderr, "%s%s:%s %s\n", color ? DSI_RED : "", program, color ? DSI_PLAIN : "",
            ds_error());
}
