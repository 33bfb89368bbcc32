/* launcher/job_running.h: the state of a job that runs, which job.c and job_records.c
 * share: the invariants are at the head of job.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "job.h"
#include "output.h"
#include "runner_process.h"

#include "base/list.h"

typedef enum phase { RUNNING, ENDING, KILLED } phase;

typedef struct peer { /* a rank's connection */
    int fd;           /* -1: closed */
    int rank;         /* -1: not known yet */
    wire_reader reader;
} peer;

typedef struct running {
    const job *j;
    output *output;
    job_result result;
    runner_process runner;
    struct {
        DSI_LIST(peer)
    } peers;
    int listener, signals;
    phase phase;
    bool runner_signalled; /* SIGTERM was sent to it */
    bool runner_told;      /* by a signal of ours to end */
    int n_started;         /* ranks */
    long oom_kills;        /* before the start */
    double begun;          /* when the runner was started */
    double since;          /* when the phase began */
    double runner_ended;   /* when the runner ended; 0: not yet */
    double runner_read;    /* when the last of its text came */
    double all_succeeded;  /* when the last rank succeeded; 0: not yet */
    dsi_text held;         /* the runner's text until all ranks have started,
                                   and about an end; shown unless the launcher
                                   knows the cause of that */
    double held_since;
    dsi_text last; /* last message of ours, which several ranks may
                                   send */
    peer *sender;  /* whose records are being read; NULL: none's */
} running;

/* ---- job.c ---- */

/* Tells all ranks to end. The first call counts. */
void job_begin_end(running *r);
/* To the programs of all connected ranks. 0: their monitors may exit. */
void job_signal_ranks(running *r, int signal);
/* Asks the runner to end, and with it the ranks on other machines. */
void runner_terminate(running *r);

/* ---- job_records.c ---- */

bool job_has_started(const running *r);
/* Prints the runner's text that was held back. */
void job_show_held(running *r);
/* Takes the connections of ranks that wait on the listening socket. */
void job_accept(running *r);
/* Reads and handles a record of peer i. */
void peer_read(running *r, int i);
void peer_close(running *r, peer *l);
/* Reads and handles text of the runner, in which there may be records. Returns
 * fd, or -1 at the end of the stream. */
int runner_read(running *r, int fd, bool records);
/* Reads the line about a lost node. */
void job_read_loss(running *r);
