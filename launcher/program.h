/* launcher/program.h: a program: where it is, starting it, and why that cannot be.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_PROGRAM_H
#define LAUNCHER_PROGRAM_H

enum {
    STATUS_UNFIT = 126,
    STATUS_ABSENT = 127
}; /* of a program that cannot be executed, as of shells */

/* The path of what is executed for a program's name as typed: a name without a slash is looked for in this folder, as
 * python does, and then on PATH. NULL with the message, which begins with the name, and the status. To be freed with
 * dsi_free. */
char *program_find(const char *name, int *status);

char *program_on_path(const char *name); /* NULL if PATH has no such executable; likewise */

/* Becomes it; returns only if it cannot, with errno. What is neither a binary file nor begins with #! is a script of
 * /bin/sh, as for every shell. */
void program_execute(char **argv);

/* The message (ds_error) why `name` could not be executed, which errno's `error` says; returns the status. */
int program_explain(const char *name, int error);

#endif
