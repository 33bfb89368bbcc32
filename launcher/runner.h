/* launcher/runner.h: a way of starting ranks, as one table of functions.
 *
 * A runner is a program that starts the ranks of a job: Open MPI's mpirun,
 * MPICH's and MVAPICH's mpiexec, Slurm's srun. runners/NAME.c has all that is
 * known of one: how --launcher names it, where its program is, which hosts it
 * takes, its command line, and the variables from which a rank learns its
 * place. Other files ask the table, never for a certain runner.
 * CONTRIBUTING.md, "Add a way of starting ranks", lists the steps for a new
 * one.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "argv.h"
#include "resources.h"

struct launch_plan; /* plan.h */

/* In a runner's command: the place of the job's secret (wire.h). */
#define NODE_SECRET "NODE-SECRET"

/* Environment variables in which a runner tells a rank its place. */
typedef struct rank_variables {
    const char *rank, *size, *local_rank;
    const char *other; /* set beside them, and removed with them; may be NULL */
} rank_variables;

typedef struct runner {
    const char *name;             /* as messages call it */
    const char *const *launchers; /* values of --launcher, lower case, ended by
                                     NULL; NULL: --launcher cannot select it */
    const char *program;          /* the usual name of its program */
    const char *missing;          /* message if find_program returns NULL */
    rank_variables variables;     /* .rank NULL: it tells a rank nothing */

    bool in_place;                 /* one rank, which replaces the launcher: no program */
    bool local;                    /* can start several ranks on this machine */
    bool automatic;                /* considered for that where --launcher is not given */
    bool over_ssh;                 /* is given host names, and reaches the hosts by ssh */
    bool joins;                    /* the command is typed on each node: the nodes join
                            node 0, which runs the program */
    bool status_ignored;           /* its program's exit status says nothing */
    bool job_folders;              /* its program here uses the job's folders even if all
                            ranks are on other machines (job_folders.h) */
    int files_per_rank;            /* descriptors that its program opens for a local rank */
    const struct runner *per_node; /* takes its place where the command is typed
                                      on each node; NULL: it cannot do that */

    /* Each of the following may be NULL. */

    /* Path or name of the installed program (dsi_free); NULL if missing. */
    char *(*find_program)(void);
    /* Are the other programs there that it needs? */
    ds_status (*check_tools)(const struct launch_plan *p);
    /* Can it start ranks on the hosts and slots of the plan? */
    ds_status (*check_hosts)(const struct launch_plan *p);
    /* The hosts that it offers by itself; used without a hostfile. */
    ds_status (*find_hosts)(ds_hosts *h, host_origin *origin, const options *o);
    /* In a rank, if the launcher could not know the host of rank 0: its name
     * -> *name (dsi_free), NULL if the environment does not say it. */
    ds_status (*find_master)(char **name);
    /* If p->tree, a host starts at most that number of others; 0: the first host
     * starts all. */
    int (*fan_out)(const struct launch_plan *p);
    /* Appends the command line up to the command of a rank. */
    void (*add_command)(argv_list *argv, const struct launch_plan *p);
    /* Adds NAME=VALUE that its program wants in its environment. */
    void (*add_environment)(argv_list *environment, const struct launch_plan *p);
} runner;

extern const runner runner_openmpi, runner_mpich, runner_mvapich, runner_slurm, runner_per_node,
    runner_direct;

/* All runners, in the order in which they are considered; NULL-ended. */
extern const runner *const runners[];

/* The runner that a value of --launcher selects, in any case of letters; NULL:
 * none. launcher NULL selects the default. *value: as the runner spells it. */
const runner *runner_find(const char *launcher, const char **value);
