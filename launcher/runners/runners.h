/* launcher/runners/runners.h: the runners, one a file, and what they share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "plan.h"

/* The message about a program that is missing. */
#define NOT_INSTALLED(program, package) \
    program ": there is no such program on PATH; Debian, Ubuntu: apt-get install " package

/* ---- shared.c -------------------------------------------------------------- */

bool runner_is_installed(const char *program);
/* The first of the names (NULL-ended) on PATH, as a copy. hydra: the program
 * must be MPICH's or of its family; !hydra: it must not. Both MPIs call theirs
 * mpirun and mpiexec, so the target of symbolic links decides. */
char *runner_first_on_path(const char *const *names, bool hydra);
/* Is NAME or NAME=VALUE among the arguments of --launcher_args? */
bool runner_has_argument(const launch_plan *p, const char *name);
/* "node0:2,node1:2": hosts that have a slot. name: NULL, or what gives host i
 * another name (dsi_free). */
char *runner_host_list(const launch_plan *p, char *(*name)(int i));
/* Hydra's command line; genv: NAME, VALUE, ..., NULL for all ranks, or NULL. */
void runner_add_hydra(argv_list *argv, const launch_plan *p, const char *const *genv);
/* HYDRA_* that its program wants. */
void runner_add_hydra_environment(argv_list *environment, const launch_plan *p);

/* ---- openmpi.c ------------------------------------------------------------- */

/* How mpirun reaches other hosts. */
typedef struct openmpi_remote {
    const char *agent;     /* what it runs in place of ssh */
    char *(*name)(int i);  /* of host i in -H; NULL: as in the plan */
    bool choose_component; /* mpirun decides itself how to start its daemons */
    bool joined;           /* nodes that have joined: orted must stay attached,
                              and the names are not to be resolved */
} openmpi_remote;

char *openmpi_find_program(void);
void openmpi_add_mpirun(argv_list *argv, const launch_plan *p, const openmpi_remote *remote);

/* ---- per_node.c ------------------------------------------------------------ */

/* The name by which mpirun knows node k: one that no resolver could find. To be
 * freed with dsi_free. */
char *per_node_name(int k);
