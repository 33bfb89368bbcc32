/* launcher/join/session.h: what the nodes of a job, on each of which the same command was typed, tell each other.
 *
 * Note [Nodes that join]. Node K connects to node 0 and proves the secret (channel.h); then
 *
 *     K -> 0    HELLO     who it is: {"version", "node_rank", "nnodes", "host", "slots", "program", "digest"}
 *     0 -> K    WELCOME   {"silence": seconds after which one that says nothing counts as lost}
 *               ... when all are there ...
 *     0 -> K    START     {"folder", "deepspeed"}: what must be there on each node
 *     K -> 0    READY
 *               ... node 0 runs mpirun, and mpirun the agent (agent.c) where it would run ssh ...
 *     0 -> K    COMMAND   a line for the shell
 *     K -> 0    OUTPUT    bytes that it wrote, and EXITED, its status
 *     0 -> K    END       the status of the job; node K ends with it
 *
 * REFUSED with a text, from either side, ends it before the job began; LEAVING with a text, from K, when it has to
 * go. Output and input of ranks go through mpirun's own connections.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_SESSION_H
#define LAUNCHER_SESSION_H

#include "channel.h"
#include "plan.h"

#include <signal.h>

enum {
    SAY_HELLO = 'h',
    SAY_WELCOME = 'w',
    SAY_START = 's',
    SAY_READY = 'y',
    SAY_REFUSED = 'n',
    SAY_COMMAND = 'c',
    SAY_OUTPUT = 'o',
    SAY_EXITED = 'x',
    SAY_LEAVING = 'q',
    SAY_END = 'e'
};

enum { NODE_NAME = 32 };

typedef struct node_state {
    channel c;
    bool joined, ready;
    char host[256]; /* its own name */
} node_state;

typedef struct meeting {
    launch_plan *p;
    dsi_text secret;
    const char *address; /* where the nodes meet */
    double silence;
    node_state *nodes; /* node 0: [n_hosts], the first unused */
} meeting;

#define DEFAULT_SILENCE_S 20.0

/* As mpirun knows node K: no name that a resolver could find. */
const char *node_name(char name[NODE_NAME], int k); /* returns name */

/* The program as typed: its text for messages, a digest of all its bytes to compare. */
void program_text(char *const *argv, dsi_text *text, char digest[2 * SECRET_BYTES + 1]);

/* A descriptor that SIGINT, SIGTERM, SIGHUP (not under nohup) and SIGCHLD come from. */
int signals_take(sigset_t *was);

/* gather.c, node 0: waits for all others. 0, or the status after one message, which the others got too. */
int gather_nodes(meeting *m);
/* hub.c, node 0: runs the job. */
int hub_run(meeting *m);
/* joiner.c, node K: all of it. Returns the status. */
int joiner_run(meeting *m);

/* keeper.c: a process that runs one shell command, whose output comes from `out`. Closing `hold` ends it; it
 * ends everything below it, and removes its folder, however it ends. */
typedef struct keeper {
    int process, out, hold;
    char folder[256]; /* "": none */
} keeper;
bool keeper_start(keeper *k, const char *command, size_t n);
void keeper_tidy(keeper *k); /* closes, and removes what a keeper that was killed has left */

#endif
