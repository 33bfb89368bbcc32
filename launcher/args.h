/* launcher/args.h: the command line of deepspeed.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define STATUS_WRONG 2 /* a mistake in a configuration or a command line */

#define DEFAULT_HOSTFILE "/job/hostfile"
enum { DEFAULT_PORT = 29500 };

/* The options as typed; plan.h has what follows from them. Strings point into
 * argv; NULL: not given. Numbers: -1 if not given. */
typedef struct options {
    /* resources */
    const char *hostfile, *include, *exclude;
    int num_nodes;
    int num_gpus;       /* --num_gpus, --num_accelerators: GPUs, which Slurm is asked for */
    int num_devs;       /* --num_devs: ranks on each node, whatever they run on */
    int nproc_per_node; /* torch.distributed.launch's: of CUDA_VISIBLE_DEVICES, if that is set */

    /* the same command typed on each node */
    int nnodes, node_rank;
    bool no_ssh;
    const char *master_addr;
    int master_port; /* DEFAULT_PORT */
    const char *join_secret_file;
    int join_timeout; /* seconds; 300 */

    /* how ranks are started */
    const char *launcher;
    const char *launcher_args; /* more arguments for the runner */
    int ssh_port;
    int start_timeout; /* seconds; 60; -1: no limit, for hosts of a queue */
    bool force_multi, no_ssh_check, dry_run;

    /* what each rank gets */
    bool no_local_rank, bind_cores_to_rank;
    const char *bind_core_list; /* "0,2-5" */
    const char *rank_log;       /* --enable_each_rank_log DIR */
    bool tag_output;            /* ranks' lines begin with the rank */

    /* after a failure (restart.h) */
    int max_restarts;         /* 0, or with --elastic_training 100 */
    int min_nodes, min_ranks; /* to start again with; -1: not given */
    bool elastic_training;
    const char *error_file;

    bool save_pid, quiet;
    const char *log_level; /* debug, info, warning, error, critical */

    char **program; /* argv of the program as typed, NULL-ended; NULL if there is none */

    /* deepspeed --check_config, --estimate_memory, --init_config */
    const char *check_config, *estimate_memory, *init_config;
    bool auto_values; /* --auto: `program` is a list of NAME=VALUE */
    int world_size;   /* 1 */
    int64_t params, largest, activations;
    bool json;
    const char *dtype; /* of --init_config, as the two below; NULL: bf16 */
    int64_t memory;    /* bytes of a rank; 0: not given */
    int batch;         /* 0: not given */
} options;

/* Fills o. Exits, as argp does, after --help and --version, and with
 * STATUS_WRONG after a message on stderr about a mistake. */
void args_read(options *o, int argc, char **argv);

/* Ranks on each node, from whichever option says it; -1: none does. */
int options_ranks_per_node(const options *o);
/* Nodes, from --num_nodes or --nnodes; <= 0: neither is given. */
int options_nodes(const options *o);
bool options_silent(const options *o); /* no lines of level info are wanted */
