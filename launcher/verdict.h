/* launcher/verdict.h: which of all that went wrong was the cause, and the status that follows.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_VERDICT_H
#define LAUNCHER_VERDICT_H

#include "job.h"

typedef struct rank_state {
    int process;
    bool ended;
    ending how;
} rank_state;

/* What has been seen of a job. */
typedef struct facts {
    rank_state *rank; /* [size] */
    int ended, good;  /* ranks; with 0 */
    int first; /* of those that failed the one that says most, the earliest of these; -1: none */
    bool node_lost; /* said already */
    bool rank_lost; /* one failed, and has said why, before it knew which it is */
    int signal;     /* the launcher's; 0: none */
    int engine_status;
    bool engine_died; /* before a rank had failed */
    bool engine_hung; /* after all ranks had ended well */
    int unwritten; /* errno: what ranks printed was not taken; EPIPE ends them, as a shell's pipe does */
} facts;

void facts_note(facts *f, int rank, const ending *e);

/* Whether it is known, so that what the engine says about it does not matter. */
bool verdict_is_clear(const facts *f);
/* The status of the command; one line about it, unless nothing is to be said any more. */
int verdict(const facts *f, const job *j, dsi_text *line);

#endif
