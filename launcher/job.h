/* launcher/job.h: the processes of a job from their start to their end.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_JOB_H
#define LAUNCHER_JOB_H

#include "wire.h"

typedef struct job {
    char ***commands; /* [n_commands] the engine's */
    int n_commands;
    int size;                /* ranks */
    const char *const *host; /* [size] where they are to run */
    /* [size] of their lines; NULL: they write to the launcher's stdout themselves */
    const char *const *prefix;
    int columns;         /* of the terminal, less the prefix; 0: output goes elsewhere */
    const char *program; /* for messages */
    char secret[WIRE_SECRET + 1];
    /* all ranks are on this machine and reach the socket; if not, stderr brings their records */
    bool local;
    bool hydra;   /* its status says nothing: it dies of SIGPIPE now and then when all is well */
    int lost;     /* a line comes from this descriptor when a node is lost; 0: none */
    bool quiet;   /* no lines of DeepSpeed's logger */
    bool verbose; /* what the engine says is shown in any case */
} job;

/* In the process of guard_run. Returns the status of the command, after one line if it is not 0. */
int job_run(const job *j);

#endif
