/* launcher/supervisor.h: two processes, each of which cleans up if the other is
 * killed.
 * SPDX-License-Identifier: MIT */
#pragma once

typedef struct supervised {
    int (*work)(void *arg);      /* returns the status; `signals` are blocked */
    void (*clean_up)(void *arg); /* called if work was killed, once all processes
                                    below it have ended; may be NULL */
    void *arg;
    void (*ending)(void *arg); /* called in this process when work sends it SIGURG; may be NULL */
    const int *signals;        /* passed on to work; with SIGCHLD, ends with 0 */
    int ended_by;              /* set to the last of these that ends a job; 0: none came */
} supervised;

/* Runs work in a process and a process group of its own. Passes signals of this
 * process on to it; SIGHUP not if it is ignored (nohup). If this process dies,
 * work gets SIGTERM; if work dies, this process ends all processes below it and
 * cleans up. Returns the status. Blocks until work has ended. */
int supervisor_run(supervised *s);
