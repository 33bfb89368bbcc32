/* launcher/join/join.h: the same command typed on each node, without ssh: the
 * other nodes join node 0. run.c calls these in order.
 *
 *     node 0: session_open, plan_reach, gather_nodes, relay_start,
 *             plan_set_joined, the job, relay_finish, session_close; for each
 *             attempt of the job from gather_nodes to relay_finish
 *     others: session_open, joiner_run, session_close
 *
 * Functions that return int return 0, or the exit status of the command after
 * one message on stderr.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "plan.h"

typedef struct node_session node_session;
typedef struct relay relay;

/* Reads the secret and DS_JOIN_SILENCE. Refuses to meet at an address that
 * other machines can reach without a secret. p must outlive the session. */
int session_open(node_session **s, const launch_plan *p);
/* The hosts of the nodes that have joined, for plan_set_joined. */
void session_hosts(const node_session *s, ds_hosts *joined);
int session_full_size(const node_session *s); /* ranks, if all nodes had joined */
void session_close(node_session *s);          /* s may be NULL */

/* Node 0: waits until all other nodes have joined and are ready, at most
 * --join_timeout and 30 seconds. Without `all` --min_nodes and
 * --min_ranks are enough, after some seconds for the others. A node that does not
 * fit, or fewer ranks on all nodes than --min_ranks, ends the start on all nodes,
 * with the same message. */
int gather_nodes(node_session *s, bool all);

/* Node 0: starts the relay, a process that takes over the connections. */
int relay_start(relay **r, node_session *s);
char *relay_agent(const relay *r); /* command of mpirun's agent; dsi_free */
int relay_lost(const relay *r);    /* a line comes from it when a node is lost */
/* Reports the status of the job to all nodes, waits for them, frees r. again:
 * they are to join again. */
void relay_finish(relay *r, int status, bool again);

/* Another node: joins, runs what node 0 sends, joins again after an attempt
 * that another follows. Returns the job's status. */
int joiner_run(node_session *s);
