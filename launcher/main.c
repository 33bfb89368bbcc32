/* launcher/main.c: the deepspeed command.
 *
 *     deepspeed --check_config ds_config.json --world_size 4
 *
 * prints the resolved configuration as JSON on stdout with status 0, or what is wrong with it on stderr
 * with status 2. It trains nothing and starts nothing.
 * SPDX-License-Identifier: MIT */
#include <deepspeed.h>

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define STATUS_WRONG 2 /* of a configuration or a command line */

enum { CHECK_CONFIG = 256, WORLD_SIZE };

typedef struct command {
    const char *config, *program;
    int world_size;
} command;

static const struct argp_option options[] = {
    {"check_config", CHECK_CONFIG, "FILE", 0,
     "Print what FILE (or JSON text, or base64 of it) resolves to, every key with its value", 0},
    {"check-config", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {"world_size", WORLD_SIZE, "N", 0, "... for N ranks (1)", 0},
    {"world-size", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {0}};

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
        return ARGP_ERR_UNKNOWN;
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
    argp_program_version = "deepspeed.c " DS_VERSION;
    argp_err_exit_status = STATUS_WRONG;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &c)) return STATUS_WRONG;
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
