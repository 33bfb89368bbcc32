/* launcher/program.h: finds a program, executes it, and explains why it cannot.
 * SPDX-License-Identifier: MIT */
#pragma once

/* As in shells. */
enum {
    STATUS_UNFIT = 126, /* it cannot be executed */
    STATUS_ABSENT = 127 /* it does not exist */
};

/* The path of the program for a name as typed (dsi_free). A name without a
 * slash is searched in the working folder, as python does, and then on PATH.
 * NULL with ds_error, which begins with the name, and *status. */
char *program_find(const char *name, int *status);

char *program_on_path(const char *name); /* NULL: not on PATH; dsi_free */

/* Replaces this process; returns only if that fails, with errno. A file that is
 * neither binary nor begins with #! is a script for /bin/sh, as in shells. */
void program_execute(char **argv);

/* Sets ds_error to why `name` could not be executed; error: the errno of the
 * attempt. Returns the status. */
int program_explain(const char *name, int error);
