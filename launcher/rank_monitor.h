/* launcher/rank_monitor.h: the program of a rank while it runs.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_RANK_MONITOR_H
#define LAUNCHER_RANK_MONITOR_H

#include "wire.h"

typedef struct watched {
    char **argv;
    wire wire;
    int std[3]; /* what its stdin, stdout, stderr become; -1: they stay */
    bool piped; /* its output goes over the wire, line by line, instead */
    int columns; /* what is piped looks like a terminal of so many, and bars are shown; 0: like a pipe */
    int group;  /* the process group to join; 0: none */
    bool nohup; /* the launcher ignores SIGHUP, and so does the program: engines undo that */
} watched;

/* Starts it, passes its output and signals on, ends what it leaves behind, reports how it ended, and returns
 * that as a status. */
int watch_program(const watched *w);

/* Becomes the program; returns only with a status after one message. */
int become_program(char **argv);

#endif
