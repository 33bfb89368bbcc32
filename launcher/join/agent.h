/* launcher/join/agent.h: what mpirun runs where it would run ssh.
 * SPDX-License-Identifier: MIT */
#pragma once

/* deepspeed --join_agent SOCKET NODE COMMAND...; returns its exit status. */
int agent_run(int argc, char **argv);
