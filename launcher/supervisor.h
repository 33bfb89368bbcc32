/* launcher/supervisor.h: two processes that tidy up after each other.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_SUPERVISOR_H
#define LAUNCHER_SUPERVISOR_H

typedef struct guarded {
    /* returns the status of the command; signals of guard_signals are blocked in it */
    int (*work)(void *arg);
    void (*tidy)(void *arg); /* when work was killed, and all processes below are gone */
    void *arg;
    int signals; /* bit s: signal s is passed on to work */
} guarded;

/* Runs work in a process of its own, in a process group of its own. Signals that reach this one are passed on to
 * it, SIGHUP unless it was ignored (nohup). If this process dies, work gets SIGTERM; if work dies, all below it is
 * ended and tidied here. Returns the status. */
int guard_run(const guarded *g);

#endif
