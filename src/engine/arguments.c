/* engine/arguments.c: DeepSpeed's options for the parser of a program
 * (deepspeed.add_config_arguments).
 * SPDX-License-Identifier: MIT */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>

#include <deepspeed/engine.h>

enum { DEEPSPEED = 0x64730, CONFIG, LOCAL_RANK, MPI };

/* DeepSpeed's names have underscores; hyphens are taken too. */
static const struct argp_option options[] = {
    {"deepspeed", DEEPSPEED, 0, 0, "use DeepSpeed (for the program to ask; the library does not)",
     0},
    {"deepspeed_config", CONFIG, "FILE", 0, "DeepSpeed's JSON configuration", 0},
    {"deepspeed-config", CONFIG, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, 0},
    {"local_rank", LOCAL_RANK, "N", 0, "rank on this machine; launchers append it", 0},
    {"local-rank", LOCAL_RANK, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, 0},
    {"deepspeed_mpi", MPI, 0, 0, "the ranks are those of mpirun", 0},
    {"deepspeed-mpi", MPI, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, 0},
    {0}};

/* Launchers append --local_rank; a value that is no rank ends the program,
 * as argp does for wrong options. */
static void argument_set_local_rank(ds_arguments *a, const char *text, struct argp_state *state)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || errno || n < -1 || n > 1000000)
        argp_error(state, "--local_rank: \"%s\" is not a rank", text);
    a->local_rank = n;
}

static error_t argument_parse(int key, char *arg, struct argp_state *state)
{
    ds_arguments *a = state->input;
    if (!a) return ARGP_ERR_UNKNOWN;
    if (key == ARGP_KEY_INIT)
        *a = (ds_arguments){.local_rank = -1};
    else if (key == DEEPSPEED)
        a->deepspeed = true;
    else if (key == CONFIG)
        a->deepspeed_config = arg;
    else if (key == LOCAL_RANK)
        argument_set_local_rank(a, arg, state);
    else if (key == MPI)
        a->deepspeed_mpi = true;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

const struct argp *ds_add_config_arguments(void)
{
    static const struct argp argp = {options, argument_parse, NULL, NULL, NULL, NULL, NULL};
    return &argp;
}
