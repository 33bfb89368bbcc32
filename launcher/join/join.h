/* launcher/join/join.h: the same command typed on each node, without ssh.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_JOIN_H
#define LAUNCHER_JOIN_H

#include "plan.h"

/* ENGINE_NODES: node 0 waits for the others and runs the job, the others join it. Returns the exit status of the
 * command, after one line on stderr if it is not 0. */
int join_nodes(launch_plan *p);

/* `deepspeed --join_agent SOCKET NODE COMMAND...`: what mpirun runs where it would run ssh. */
int join_agent(int argc, char **argv);

#endif
