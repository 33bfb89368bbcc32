/* launcher/plan.h: what is to be started, decided without starting anything. --dry_run prints it.
 *
 * A rank is started, by whichever engine, as
 *
 *     deepspeed --rank_start --world_info=BASE64 --master_addr=A --master_port=P [OPTIONS] -- PROGRAM ARGS...
 *
 * with OPTIONS among --node_rank=K (of this node: only where the engine starts the ranks of one node alone),
 * --no_local_rank, --enable_each_rank_log=DIR, --bind_cores_to_rank, --bind_core_list=LIST, --chdir=DIR,
 * --quiet, --log_level=LEVEL. It finds its place in the world from what the engine says (OMPI_*, PMI_*,
 * SLURM_*, or nothing at all: the only rank), and executes PROGRAM with --local_rank=N put before ARGS.
 * Ranks are numbered host by host in the order of world_info.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_PLAN_H
#define LAUNCHER_PLAN_H

#include "args.h"
#include "hosts.h"
#include "resources.h"

typedef enum engine {
    ENGINE_DIRECT,  /* one rank on this machine: executed in place of the launcher, without MPI */
    ENGINE_LOCAL,   /* several on this machine: mpirun (Open MPI), or MPICH's mpiexec.hydra */
    ENGINE_OPENMPI, /* several hosts: mpirun, over ssh, over pdsh, or as Open MPI itself decides */
    ENGINE_MPICH,   /* mpiexec.hydra */
    ENGINE_MVAPICH, /* MVAPICH's mpiexec, a hydra too */
    ENGINE_SLURM,   /* srun */
    ENGINE_NODES    /* the same command typed on each node; node 0 runs mpirun, the others join */
} engine;

typedef struct launch_plan {
    options o;
    ds_host *hosts; /* [n_hosts] */
    int n_hosts, world_size;
    origin from;
    char *world_info;  /* base64url of {"host": [slots]} */
    char *master_addr; /* NULL: not known yet (plan_reach), or for srun to find */
    engine engine;
    bool hydra;   /* the program started is a hydra, whose exit status is not to be trusted */
    char *agent;  /* ENGINE_NODES: Open MPI's plm_rsh_agent; set it before plan_compose */
    int lost;     /* ENGINE_NODES: a line comes from this descriptor when a node is lost; 0: none */
    char *self;   /* path of this deepspeed */
    char *folder; /* in which ranks run */

    char ***commands; /* [n_commands] argv of each process that this launcher starts, NULL-ended */
    int n_commands;   /* 0 for ENGINE_NODES on another node than 0 */
    /* KEY=VALUE, NULL-ended: what ranks get beside what is theirs. The engine is started with these in its
     * environment, and its command names those that it must forward. */
    char **environment;

    char **launcher_words; /* of --launcher_args */
    char *starter;         /* the program that commands[0] begins with: mpirun, srun... */
    char *said;            /* lines of DeepSpeed's about what was decided */
    int wrong;             /* the status of the command, if there is no plan */
} launch_plan;

/* Decides all but what only other machines can say. 0, or the status of the command after one message on
 * stderr. plan_free frees the plan either way. */
int plan_decide(launch_plan *p, const options *o);
int plan_make(launch_plan *p, int argc, char **argv); /* of a command line */
/* Asks the hosts: can they be reached by ssh (not with --no_ssh_check), what is the first one's address. Then
 * composes again. Same status as plan_make. */
int plan_reach(launch_plan *p);
/* world_size, world_info, environment, commands anew from the other fields: for whoever changes hosts (a
 * joiner says how many slots it has), master_addr or agent. */
void plan_compose(launch_plan *p);
/* --dry_run: one JSON object on stdout; status of the command */
int plan_print(const launch_plan *p);
void plan_free(launch_plan *p);

/* announce.c: DeepSpeed's lines of what is known before the start: cmd =, WORLD INFO DICT, nnodes=,
 * global_rank_mapping=, dist_world_size=, Setting CUDA_VISIBLE_DEVICES=. Nothing under --quiet. */
void plan_announce(const launch_plan *p);

#endif
