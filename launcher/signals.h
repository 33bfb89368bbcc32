/* launcher/signals.h: signals that are read from a descriptor, so that poll can
 * wait for them too; and what wait reports of a process.
 *
 * Lists of signals end with 0. SIGHUP is left out where it is ignored: whoever
 * started the launcher by nohup wants it to survive.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <signal.h>

void signals_fill(sigset_t *set, const int *list);
/* Blocks the signals and returns a descriptor that never blocks; -1 with errno.
 * previous: NULL, or where the mask before is stored. SIGCHLD gets its default
 * action, as children of a process that ignores it cannot be waited for. */
int signals_open(const int *list, sigset_t *previous);
/* The next signal that has come; 0: none. */
int signals_read(int fd);
void signals_close(int fd, const sigset_t *previous);
/* In a child, before exec: no signal is blocked. */
void signals_unblock(void);

/* waitpid's status as a shell counts it: 128 + signal. */
int signals_exit_status(int status);
