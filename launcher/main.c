/* launcher/main.c: the deepspeed command.
 *
 *     deepspeed --check_config ds_config.json --world_size 4
 *
 * prints the resolved configuration as JSON on stdout with status 0, or what is wrong with it on stderr
 * with status 2.
 *
 *     deepspeed --estimate_memory ds_config.json --params 50000000 --world_size 4
 *
 * says what each rank will need. They train nothing and start nothing.
 * SPDX-License-Identifier: MIT */
#include "estimate.h"
#include "rank.h"

#include <deepspeed.h>

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS_WRONG 2 /* of a configuration or a command line */

enum { CHECK_CONFIG = 256, WORLD_SIZE, ESTIMATE_MEMORY, PARAMS, LARGEST, ACTIVATIONS, JSON };

typedef struct command {
    const char *config, *program;
    int world_size;
    bool estimates, json;
    ds_estimate_opts estimate;
} command;

static const struct argp_option options[] = {
    {"check_config", CHECK_CONFIG, "FILE", 0,
     "Print what FILE (or JSON text, or base64 of it) resolves to, every key with its value", 0},
    {"check-config", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {"world_size", WORLD_SIZE, "N", 0, "... for N ranks (1)", 0},
    {"world-size", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {"estimate_memory", ESTIMATE_MEMORY, "FILE", 0,
     "Say how much memory training with FILE needs on each rank", 1},
    {"estimate-memory", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 1},
    {"params", PARAMS, "N", 0, "... for a model of N parameters", 1},
    {"largest", LARGEST, "N", 0, "... of which the largest tensor has N (no more than a bucket)",
     1},
    {"activations", ACTIVATIONS, "BYTES", 0, "... whose activations of a micro step take BYTES (0)",
     1},
    {"json", JSON, NULL, 0, "... and say it as JSON", 1},
    {0}};

/* Refuses what is no number of at least low. */
static int64_t number(struct argp_state *state, const char *option, const char *arg, int64_t low)
{
    char *end;
    errno = 0;
    long long n = strtoll(arg, &end, 10);
    if (errno || *end || end == arg || n < low)
        argp_error(state, "--%s %s: expected a number, at least %lld", option, arg, (long long)low);
    return n;
}

static error_t parse_estimate(int key, char *arg, struct argp_state *state)
{
    command *c = state->input;
    switch (key) {
    case ESTIMATE_MEMORY:
        c->estimates = true;
        c->config = arg;
        return 0;
    case PARAMS:
        c->estimate.params = number(state, "params", arg, 1);
        return 0;
    case LARGEST:
        c->estimate.largest = number(state, "largest", arg, 1);
        return 0;
    case ACTIVATIONS:
        c->estimate.activations = number(state, "activations", arg, 0);
        return 0;
    case JSON:
        c->json = true;
        return 0;
    case ARGP_KEY_END:
        if (c->estimates && !c->estimate.params && !c->program)
            argp_error(state, "--estimate_memory: of how many parameters? give --params N");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    command *c = state->input;
    char *end;
    long n;
    switch (key) {
    case CHECK_CONFIG:
        c->config = arg;
        return 0;
    case WORLD_SIZE:
        errno = 0;
        n = strtol(arg, &end, 10);
        if (errno || *end || end == arg || n < 1 || n > INT_MAX)
            argp_error(state, "--world_size %s: expected a number of ranks, at least 1", arg);
        c->world_size = (int)n;
        return 0;
    case ARGP_KEY_ARG:
        c->program = arg;
        state->next = state->argc; /* what follows is the program's own */
        return 0;
    default:
        return parse_estimate(key, arg, state);
    }
}

static int check(const command *c)
{
    char *resolved, *warnings;
    if (ds_config_check(c->config, c->world_size, &resolved, &warnings) != DS_OK) {
        fprintf(stderr, "%s\n", ds_error());
        return STATUS_WRONG;
    }
    fputs(warnings, stderr);
    int bad = puts(resolved) < 0 || fflush(stdout) != 0;
    if (bad) perror("deepspeed: stdout");
    free(resolved);
    free(warnings);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        options, parse, "[PROGRAM [ARGUMENT...]]", "Looks at a DeepSpeed configuration.", NULL,
        NULL,    NULL};
    command c = {.world_size = 1};
    if (argc > 1 && !strcmp(argv[1], "--rank_start")) return rank_start(argc, argv);
    argp_program_version = "deepspeed.c " DS_VERSION;
    argp_err_exit_status = STATUS_WRONG;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &c)) return STATUS_WRONG;
    c.estimate.config = c.config;
    c.estimate.world_size = c.world_size;
    if (c.estimates && !c.program) return estimate_memory(&c.estimate, c.json);
    if (c.config && !c.program) return check(&c);
    if (c.program)
        fprintf(stderr,
                "deepspeed: cannot start %s: starting programs on many ranks is not implemented; "
                "use mpirun -n N %s\n",
                c.program, c.program);
    else
        fprintf(stderr, "deepspeed: nothing to do; see deepspeed --help\n");
    return STATUS_WRONG;
}
