/* launcher/args.h: the command line of deepspeed.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_ARGS_H
#define LAUNCHER_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#define STATUS_WRONG 2 /* of a configuration or a command line */

#define DEFAULT_HOSTFILE "/job/hostfile"
enum { DEFAULT_PORT = 29500 };

/* What ends up in a launch is in plan.h; these are the words as typed. Strings are argv's own; NULL: not
 * given; numbers: -1 if not given. */
typedef struct options {
    /* resources */
    const char *hostfile, *include, *exclude;
    int num_nodes; /* --num_nodes */
    int num_gpus;  /* --num_gpus, --num_accelerators, --num_devs, --nproc_per_node */

    /* the same command typed on each node */
    int nnodes, node_rank;
    bool no_ssh;
    const char *master_addr;
    int master_port; /* DEFAULT_PORT */
    const char *join_secret_file;
    int join_timeout; /* seconds; 300 */

    /* how it is started */
    const char *launcher; /* lower case is not assumed */
    const char
        *launcher_args; /* words for the engine, split as a shell would, but nothing is expanded */
    int ssh_port;
    bool force_multi, no_ssh_check, dry_run;

    /* what each rank gets */
    bool no_local_rank, bind_cores_to_rank;
    const char *bind_core_list; /* "0,2-5" */
    const char *rank_log;       /* --enable_each_rank_log DIR */
    bool tag_output;            /* ranks' lines begin with "[rank]: " */

    bool save_pid, quiet;
    const char *log_level; /* debug, info (not given: that), warning, error, critical */

    char **program; /* argv of the program as typed, NULL-ended; NULL if there is none */

    /* deepspeed --check_config, --estimate_memory: main.c */
    const char *check_config, *estimate_memory;
    int world_size;
    int64_t params, largest, activations;
    bool json;
} options;

/* 0, or the status of the command after one message (or the help). */
int args_parse(options *o, int argc, char **argv);

bool args_quiet(const options *o); /* whether lines of level info are not printed */

#endif
