/* launcher/job.h: the processes of a job from their start to their end.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "job_result.h"

/* Strings are borrowed from the caller. */
typedef struct job {
    char **command;               /* argv of the runner; a rank's, without one */
    int size;                     /* ranks */
    const char *const *host;      /* [size] on which they are to run */
    const char *const *prefix;    /* [size] of their lines; NULL: they write to
                                      the launcher's stdout themselves */
    int columns;                  /* of the terminal, less the prefix; 0: none */
    const char *program;          /* for messages */
    char secret[WIRE_SECRET + 1]; /* of this job's records (wire.h) */
    char file_size[48];           /* "SOFT:HARD", bytes: the ulimit -f that ranks get; "": this
                                     process's */
    bool local;                   /* all ranks are on this machine and reach the
                                      socket; else records come in stderr */
    bool status_ignored;          /* the runner's exit status says nothing */
    int start_timeout;            /* seconds for all ranks to start; 0: no limit */
    int node_lost;                /* descriptor from which a line comes when a
                                      node is lost; 0: none */
    int supervisor;               /* its process, the parent of this one */
    bool quiet;                   /* no lines of DeepSpeed's logger */
    bool verbose;                 /* show all that the runner prints */
    job_report *report;           /* NULL: not wanted */
} job;

/* Those that job_run handles, for supervisor_run: they must be blocked before
 * its process is forked. Ends with 0. */
extern const int job_signals[];

/* To be called in the process that supervisor_run made. Returns the status of
 * the command, after one line if it is not 0. */
int job_run(const job *j);
