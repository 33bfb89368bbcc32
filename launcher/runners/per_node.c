/* launcher/runners/per_node.c: the same command typed on each node, without
 * ssh.
 *
 * Node 0 runs Open MPI's mpirun once the other nodes have joined it; where
 * mpirun would run ssh, it runs `deepspeed --join_agent` (join/agent.c).
 * SPDX-License-Identifier: MIT */
#include "runners.h"

char *per_node_name(int k)
{
    dsi_text name = dsi_text_of("deepspeed-node-%d", k);
    return name.s;
}

/* Nodes are known by number: the name that one gives itself may mean this
 * machine here, or be that of all nodes. */
static char *per_node_host(int i) { return i ? per_node_name(i) : dsi_strdup("localhost"); }

static void per_node_add_command(argv_list *argv, const launch_plan *p)
{
    openmpi_add_mpirun(
        argv, p, &(openmpi_remote){.agent = p->join_agent, .name = per_node_host, .joined = true});
}

const runner runner_per_node = {
    .name = "per_node",
    .program = "mpirun",
    .missing = NOT_INSTALLED("mpirun", "openmpi-bin (--launcher mpich: mpich)"),
    .joins = true,
    .job_folders = true,
    .find_program = openmpi_find_program,
    .add_command = per_node_add_command,
};
