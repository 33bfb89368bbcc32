/* launcher/join/supervised_shell.h: a process that runs one shell command and
 * leaves nothing of it behind.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "job_folders.h"

#include <stddef.h>

typedef struct supervised_shell {
    int process; /* a child of the caller; it exits with the command's status */
    int out;     /* the command's stdout and stderr; reading does not block */
    int hold;    /* the process kills the command when this is closed */
    job_folders folders;
} supervised_shell;

/* Runs command[0..n-1] by /bin/sh. false: it cannot be started. */
bool supervised_shell_start(supervised_shell *s, const char *command, size_t n);
/* After the process has ended: closes the descriptors, and removes the folders
 * in case it was killed. */
void supervised_shell_clean_up(supervised_shell *s);
