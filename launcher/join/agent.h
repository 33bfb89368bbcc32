/* launcher/join/agent.h: what mpirun runs where it would run ssh.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_AGENT_H
#define LAUNCHER_AGENT_H

/* deepspeed --join_agent SOCKET NODE COMMAND...; returns its exit status. */
int agent_run(int argc, char **argv);

#endif
