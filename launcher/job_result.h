/* launcher/job_result.h: the cause of a job's end and the status that follows.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "node_monitor.h"

#include <deepspeed/engine.h>

typedef struct rank_state {
    int process;         /* its number, once it has started */
    bool node_up;        /* its host's node monitor runs */
    bool node_connected; /* and the daemon there is connected to the runner */
    bool ended;
    rank_exit exit;
} rank_state;

/* The facts that are known of a job so far. */
typedef struct job_result {
    /* the job */
    int size;                /* ranks */
    const char *const *host; /* [size] */
    const char *program, *runner;
    bool status_ignored; /* the runner's exit status says nothing */

    /* what has happened */
    rank_state *rank;         /* [size] */
    int ended, succeeded;     /* ranks; those with status 0 */
    int first;                /* the failed rank that is most likely the cause, the
                                earliest of these; -1: none */
    bool node_lost;           /* and reported */
    bool unknown_rank_failed; /* and reported; before it knew its number */
    int signal;               /* that the launcher got; 0: none */
    node_event node;          /* the trouble of a host; NODE_UP: none */
    int start_timeout;        /* seconds after which a rank had not started; 0: all have */
    int launcher_killed;      /* process of the launcher that was killed; 0: none */
    int runner_status;
    int runner_process;
    int runner_signal;       /* that has killed the runner, and was not ours; 0: none */
    bool out_of_memory;      /* the kernel has killed a process here meanwhile */
    bool runner_ended_first; /* before a rank had failed */
    bool runner_hung;        /* after all ranks had succeeded */
    int output_error;        /* errno of a failed write of ranks' output */
} job_result;

/* Text of mpirun about a daemon that it has lost becomes
 * an event of that host; false: it is not that. */
bool job_result_read_loss(job_result *r, const char *text, size_t n);
/* A host's node monitor runs (NODE_UP), or its daemon is connected. */
void job_result_add_node(job_result *r, const node_event *e);
void job_result_add_exit(job_result *r, int rank, const rank_exit *e);

/* Was the end of the runner, killed by a signal, the cause? */
bool job_result_runner_killed(const job_result *r);

/* Is the cause known, so that what the runner prints about it can be dropped? */
bool job_result_is_known(const job_result *r);
/* The status of the command. Adds one line about it, unless the cause has been
 * reported. */
int job_result_status(const job_result *r, dsi_text *line);

/* The result of a job, in memory that its processes share: it is there even if
 * one of them is killed. */
typedef struct job_report {
    char cause[600]; /* the line about the first failure; "": there is none */
    rank_progress progress;
    bool counted; /* a rank has reported it */
    bool final;   /* it was ended from outside, or would end in the same way again */
} job_report;

/* Adds the report of one rank. Ranks take the same steps; only rank 0 knows of
 * a
 * checkpoint. */
void job_report_add_progress(job_report *report, rank_progress p);
/* At the end of the job: its status, and the line that says why. */
void job_report_finish(job_report *report, const job_result *r, int status, const dsi_text *line);
