/* base/terminal.c: colours for errors and warnings, and lines between words,
 * where a person reads them.
 * SPDX-License-Identifier: MIT */
#include "terminal.h"

#include <deepspeed/types.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool dsi_terminal_colors(int fd)
{
    const char *no = getenv("NO_COLOR"), *type = getenv("TERM");
    if (no && *no) return false;
    return type && *type && strcmp(type, "dumb") != 0 && isatty(fd);
}

int dsi_terminal_columns(int fd)
{
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
}

void dsi_print_wrapped(const char *text, int at, int indent)
{
    enum { LEAST = 25 }; /* columns of a line */
    int columns = dsi_terminal_columns(STDOUT_FILENO);
    if (columns - indent < LEAST) indent = 4;
    for (size_t n; *text; text += n) {
        size_t blanks = strspn(text, " ");
        n = blanks + strcspn(text + blanks, " ");
        if (columns > 0 && at > indent && at + (int)n >= columns) {
            printf("\n%*s", indent, "");
            at = indent, text += blanks, n -= blanks;
        }
        printf("%.*s", (int)n, text);
        at += (int)n;
    }
    putchar('\n');
}

void ds_perror(const char *program)
{
    if (!ds_error()) return;
    bool color = dsi_terminal_colors(STDERR_FILENO);
    fflush(stdout); /* what the program printed comes first */
    fprintf(stderr, "%s%s:%s %s\n", color ? DSI_RED : "", program, color ? DSI_PLAIN : "",
            ds_error());
}
