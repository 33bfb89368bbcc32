/* launcher/join/session.h: one job on nodes that have joined: what the files of
 * this folder share.
 *
 * Note [Messages between nodes]. Node K connects to node 0 and proves the
 * secret (channel.h). Then
 *
 *     K -> 0    HELLO     {"version", "node_rank", "nnodes", "host", "slots",
 *                         "program", "digest"}: who it is
 *     0 -> K    WELCOME   {"silence": seconds without a message after which a
 *                         node counts as lost,
 *                         "restarts": whether K joins again after such a loss}
 *               ... when all nodes have joined, or enough of them ...
 *     0 -> K    START     {"folder", "deepspeed"}: paths that must exist on K
 *     K -> 0    READY
 *               ... node 0 runs mpirun, which runs the agent (agent.c) ...
 *     0 -> K    COMMAND   a line for the shell
 *     K -> 0    OUTPUT    bytes that the command wrote; EXITED, its status
 *     0 -> K    END       the status of the job; node K ends with it. Followed by
 *                         " again": K joins again, for the next attempt
 *
 * REFUSED with a text, from either side, ends the session before the job began.
 * LEAVING with a text comes from a node K that has to end. Output and input of
 * ranks use mpirun's own connections.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "channel.h"
#include "join.h"
#include "plan.h"
#include "signals.h"

enum {
    MESSAGE_HELLO = 'h',
    MESSAGE_WELCOME = 'w',
    MESSAGE_START = 's',
    MESSAGE_READY = 'y',
    MESSAGE_REFUSED = 'n',
    MESSAGE_COMMAND = 'c',
    MESSAGE_OUTPUT = 'o',
    MESSAGE_EXITED = 'x',
    MESSAGE_LEAVING = 'q',
    MESSAGE_END = 'e'
};

enum { AGENT_PACKET = 1 << 17 }; /* largest between agent and relay */

typedef struct node_state {
    channel c;
    bool joined, ready;
    char host[256]; /* its own name */
} node_state;

struct node_session {
    const launch_plan *p;
    ds_hosts
        all; /* the nodes of the first plan, with the slots that they were last known to have */
    dsi_text secret;
    const char *address; /* of node 0, where the nodes meet */
    double silence;      /* seconds without a message until a node is lost */
    node_state *nodes;   /* node 0: [all.n], the first one unused; else NULL */
};

#define DEFAULT_SILENCE_S 20.0

/* Adds the program as typed, for messages; digest: of all its bytes. */
void session_program(char *const *argv, dsi_text *text, char digest[2 * SECRET_BYTES + 1]);

/* Is node k in this attempt? Node 0 always is. */
bool session_has(const node_session *s, int k);
/* Closes the connections that are left of an attempt. */
void session_forget_nodes(node_session *s);

/* Those that a node handles, for signals_open. */
extern const int session_signals[];
