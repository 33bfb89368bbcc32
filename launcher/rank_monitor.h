/* launcher/rank_monitor.h: the program of a rank while it runs.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "wire.h"

typedef struct monitored {
    char **argv;
    wire wire;    /* to the launcher */
    int std[3];   /* become its stdin, stdout, stderr; closed here; -1: unchanged */
    bool piped;   /* its output is sent over the wire instead */
    int columns;  /* of the terminal that piped output looks like, so that progress
                    bars are shown; 0: it looks like a pipe */
    int group;    /* the process group to join; 0: none */
    bool watched; /* report how far its training has come */
    bool nohup;   /* ignore SIGHUP as the launcher does; runners undo that */
} monitored;

/* Starts the program, passes on its output and signals, ends what it leaves
 * behind and reports how it ended. Blocks until then; returns the status. */
int monitor_run(const monitored *w);

/* The process becomes the program, without a monitor. Returns only if that
 * fails, with a status after one message. */
int monitor_replace(char **argv);
