/* launcher/plan.h: what is to be started, decided before anything is started.
 * --dry_run prints it.
 *
 * Every runner starts a rank as
 *
 *     deepspeed --rank_start --world_info=BASE64 --master_addr=A \
 *               --master_port=P [OPTIONS] -- PROGRAM ARGS...
 *
 * with OPTIONS among --node_rank=K (only where the runner starts the ranks of
 * node K alone), --no_local_rank, --enable_each_rank_log=DIR,
 * --bind_cores_to_rank, --bind_core_list=LIST, --chdir=DIR, --quiet,
 * --log_level=LEVEL. The process finds its place in the world from the runner's
 * variables (runner.h; none: it is the only rank) and executes PROGRAM with
 * --local_rank=N before ARGS. Ranks are numbered host by host in the order of
 * world_info.
 *
 * Invariants: the plan owns all it points to but the strings in `o` and
 * `launcher`, which are argv's and the runner's. hosts[0] has rank 0. No
 * function here starts a rank; only plan_reach starts processes (ssh) and waits
 * for them, at most 15 seconds. A function that changes hosts, master_addr or
 * join_agent composes the plan again, as world_info, environment and command
 * follow from them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"
#include "hosts.h"
#include "resources.h"
#include "runner.h"

typedef struct launch_plan {
    options o;
    ds_host *hosts; /* [n_hosts] */
    int n_hosts, world_size;
    host_origin origin;
    char *world_info;     /* base64url of {"host": [slots]} */
    char *master_addr;    /* NULL: not known yet, or the ranks find it */
    const char *launcher; /* --launcher as its runner spells it, or the default */
    const runner *runner;
    bool remote;          /* the runner starts ranks on other hosts than this */
    char *runner_program; /* mpirun, srun, ...; NULL: the runner needs none */
    char *join_agent;     /* what mpirun runs in place of ssh if runner->joins */
    char *deepspeed;      /* path of this program */
    char *folder;         /* in which ranks run */
    char **command;       /* argv of the process that this launcher starts; NULL
                             on a node that joins node 0, and without ranks */
    /* NAME=VALUE, NULL-ended: what ranks get beside what is theirs. The runner
     * is started with these, and its command names those that it forwards. */
    char **environment;
    char **launcher_args; /* of --launcher_args, NULL-ended */
    char *notices;        /* DeepSpeed's lines about what was decided */
    int restarts;         /* of this job so far */
    bool tree;            /* hosts reach each other over ssh: each starts some of the others */
    int full_size;        /* ranks if all hosts answer; for those the batch sizes of
                             the configuration are meant */
    int exit_status;      /* of the command, if there is no plan */
} launch_plan;

/* Decides all but what only other machines know. Returns 0, or the status of
 * the command after one message on stderr. plan_free frees the plan either
 * way. */
int plan_decide(launch_plan *p, const options *o);
/* Asks the hosts over ssh whether they can be reached (unless --no_ssh_check)
 * and the first one for its address. Returns as plan_decide does. */
int plan_reach(launch_plan *p);
struct reach_queries; /* reachable.h */
/* For a job that may go on with fewer hosts: asks `all` of its hosts and plans
 * those that answer, each of the others after a line. The plan may have none
 * then: world_size 0, and no command. begun: NULL, or what plan_begin_asking
 * has returned for them, which this frees. Returns as plan_decide does. */
int plan_reach_some(launch_plan *p, const ds_hosts *all, struct reach_queries *begun);
/* Starts to ask them (reachable_begin); NULL where none is asked. */
struct reach_queries *plan_begin_asking(const launch_plan *p, const ds_hosts *all);
/* Whether the numbers of hosts and ranks reach --min_nodes and --min_ranks: at
 * least one of each. */
bool plan_has_enough(const launch_plan *p, int hosts, int ranks);
/* Adds that all hosts, called `name`, with all their ranks are too few. */
void plan_add_too_few(const launch_plan *p, const char *name, int hosts, int ranks, dsi_text *t);
/* Once nodes have joined: their names and slots, which become the plan's, how
 * many ranks all nodes would have, and the agent that mpirun is to run. */
void plan_set_joined(launch_plan *p, const ds_hosts *joined, int full_size, char *join_agent);
/* --dry_run: one JSON object on stdout; the status of the command. */
int plan_print(const launch_plan *p);
void plan_free(launch_plan *p);

/* plan_runner.c, called by plan_decide in this order. */
/* Sets runner, launcher and remote from --launcher and the hosts. */
ds_status plan_choose_runner(launch_plan *p);
/* Sets runner_program. If the runner or one of its tools is missing, the
 * message names the package that has it and the usual name is used. */
ds_status plan_find_program(launch_plan *p);
/* Checks --launcher_args and host names against what the runner accepts. */
ds_status plan_check_runner(const launch_plan *p);

/* announce.c: DeepSpeed's lines of what is known before the start: cmd =, WORLD
 * INFO DICT, nnodes=, global_rank_mapping=, dist_world_size=, Setting
 * CUDA_VISIBLE_DEVICES=. Prints nothing under --quiet. */
void plan_announce(const launch_plan *p);
