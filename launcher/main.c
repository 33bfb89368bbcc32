/* launcher/main.c: the deepspeed command.
 *
 *     deepspeed [OPTIONS] PROGRAM [ARGUMENT...]
 *
 * starts PROGRAM on many devices: plan.c decides what is to be started, run.c
 * starts it and waits for it.
 *
 *     deepspeed --check_config ds_config.json --world_size 4
 *
 * prints the resolved configuration as JSON on stdout, with status 0, or the
 * mistakes in it on stderr, with status 2.
 *
 *     deepspeed --estimate_memory ds_config.json --params 50000000 --world_size 4
 *
 * prints how much memory each rank will need.
 *
 *     deepspeed --init_config ds_config.json --world_size 4 --params 124M --memory 8GB
 *
 * writes a configuration for that.
 *
 * Four more forms are for processes that the launcher starts itself:
 * --rank_start (rank.h), --node_monitor (node_monitor.h), --join_agent
 * (join/agent.h) and --ask_hosts (reachable.h).
 * SPDX-License-Identifier: MIT */
#include "estimate.h"
#include "init_config.h"
#include "join/agent.h"
#include "node_monitor.h"
#include "plan.h"
#include "rank.h"
#include "reachable.h"
#include "run.h"

#include <deepspeed.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANY_STEPS 1000000 /* of a program that --check_config knows nothing about */

/* "auto" is accepted where a program may fill it. The number of steps alone has
 * no default: without --auto any does, as it is checked against other keys and
 * decides no other value. Prints the failure. */
static ds_status config_check(const options *o, char **resolved, char **warnings)
{
    ds_auto_values v = {0};
    ds_status status = DS_OK;
    for (char **text = o->program; text && *text && status == DS_OK; text++)
        status = ds_auto_values_set(&v, *text);
    if (status == DS_OK)
        status = ds_config_check_auto(o->check_config, &v, o->world_size, resolved, warnings);
    if (status == DS_OK) return DS_OK;
    char *failure = strdup(ds_error());
    v.max_steps = ANY_STEPS;
    if (!o->auto_values)
        status = ds_config_check_auto(o->check_config, &v, o->world_size, resolved, warnings);
    if (status == DS_OK)
        fprintf(stderr, "deepspeed: max_steps is %d here; --auto max_steps=N sets it\n", ANY_STEPS);
    else
        fprintf(stderr, "%s\n", failure ? failure : "out of memory");
    free(failure);
    return status;
}

static int print_config(const options *o)
{
    char *resolved, *warnings;
    if (config_check(o, &resolved, &warnings) != DS_OK) return STATUS_WRONG;
    fputs(warnings, stderr);
    puts(resolved);
    free(resolved);
    free(warnings);
    return EXIT_SUCCESS;
}

static int print_estimate(const options *o)
{
    const ds_estimate_opts opts = {.config = o->estimate_memory,
                                   .world_size = o->world_size,
                                   .params = o->params,
                                   .largest = o->largest,
                                   .activations = o->activations};
    return estimate_memory(&opts, o->json);
}

int main(int argc, char **argv)
{
    options o;
    if (argc > 1 && !strcmp(argv[1], "--rank_start")) return rank_start(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "--node_monitor")) return node_monitor_run(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "--join_agent")) return agent_run(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "--ask_hosts")) return reachable_ask_hosts(argc, argv);
    args_read(&o, argc, argv);
    if (o.check_config) return print_config(&o);
    if (o.estimate_memory) return print_estimate(&o);
    if (o.init_config) return init_config(&o);
    launch_plan p;
    int status = plan_decide(&p, &o);
    if (!status) status = o.dry_run ? plan_print(&p) : run_plan(&p);
    plan_free(&p);
    return status;
}
