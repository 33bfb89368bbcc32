/* tools/ds_to_universal.c: a checkpoint as a universal one.
 *
 *     ds_to_universal --input_folder DIR/global_step120 --output_folder DIR/global_step120_universal
 *
 * As DeepSpeed's script of that name, for checkpoints of ds_engine_save and of
 * DeepSpeed, of stages 0 to 3: src/engine/checkpoint/save_universal.c.
 * SPDX-License-Identifier: MIT */
#include "parse_options.h"

#include "base/mem.h"
#include "base/text.h"
#include "engine/checkpoint/universal.h"

#include <deepspeed.h>

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WORKERS 64

typedef struct Options {
    char *in, *out; /* without a slash at the end */
    int verifiers, writers;
    bool keep, not_strict, inject;
} Options;

static void say(const char *line)
{
    puts(line);
    fflush(stdout);
}

static ds_status convert(const Options *o)
{
    const dsi_universal_opts opts = {o->in,         o->out,    o->verifiers, o->writers,
                                     o->not_strict, o->inject, say};
    say("Convert DeepSpeed Checkpoint to Universal Checkpoint");
    printf("Converting DeepSpeed checkpoint in %s to Universal checkpoint in %s\n", o->in, o->out);
    if (o->keep) say("There is no temporary folder to keep: parameters are written once");
    ds_status status = dsi_universal_convert(&opts);
    if (status == DS_OK) say("*** Done!");
    return status;
}

/* ---- options --------------------------------------------------------------------------------------------- */

enum { IN = 256, OUT, VERIFIERS, WRITERS, KEEP, NO_STRICT, INJECT };

static int parse_workers(const char *arg, const char *name, struct argp_state *state)
{
    char *end;
    long n = strtol(arg, &end, 10);
    if (!*arg || *end || n < 1 || n > MOST_WORKERS)
        argp_error(state, "--%s %s: expected 1 to %d", name, arg, MOST_WORKERS);
    return (int)n;
}

/* The path without slashes at its end. */
static char *parse_folder(const char *arg)
{
    int n = (int)strlen(arg);
    while (n > 1 && arg[n - 1] == '/') n--;
    return dsi_text_of("%.*s", n, arg).s;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    switch (key) {
    case IN:
        dsi_free(o->in);
        o->in = parse_folder(arg);
        return 0;
    case OUT:
        dsi_free(o->out);
        o->out = parse_folder(arg);
        return 0;
    case VERIFIERS:
        o->verifiers = parse_workers(arg, "num_extract_workers", state);
        return 0;
    case WRITERS:
        o->writers = parse_workers(arg, "num_merge_workers", state);
        return 0;
    case KEEP:
        o->keep = true;
        return 0;
    case NO_STRICT:
        o->not_strict = true;
        return 0;
    case INJECT:
        o->inject = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\": expected options only", arg);
        return 0;
    case ARGP_KEY_END:
        if (!o->in || !o->out || !*o->in || !*o->out)
            argp_error(state, "expected --input_folder DIR and --output_folder DIR");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"input_folder", IN, "DIR", 0, "The checkpoint: DIR/global_step120", 0},
        {"output_folder", OUT, "DIR", 0,
         "The folder to make; `latest_universal` beside it will name it", 0},
        {"num_extract_workers", VERIFIERS, "N", 0, "Threads that verify the files (4)", 0},
        {"num_merge_workers", WRITERS, "N", 0, "Threads that write parameters (2)", 0},
        {"keep_temp_folder", KEEP, NULL, 0, "Says that there is no temporary folder", 0},
        {"no_strict", NO_STRICT, NULL, 0,
         "Leave out tensors of which elements are missing, with a line each", 0},
        {"inject_missing_state", INJECT, NULL, 0,
         "Put universal_checkpoint_info into model files that lack it", 0},
        {0}};
    const struct argp argp = {
        options,
        parse_option,
        NULL,
        "Writes a checkpoint of deepspeed.c or DeepSpeed, of any stage and number of ranks, as a "
        "universal checkpoint: a folder for each parameter.\vIt loads with \"checkpoint\": "
        "{\"load_universal\": true}, here and in DeepSpeed (stages 1 to 3).",
        NULL,
        NULL,
        NULL};
    Options o = {.verifiers = 4, .writers = 2};
    argp_program_version = "ds_to_universal (deepspeed.c) " DS_VERSION;
    if (parse_options(&argp, argc, argv, 0, &o)) return 2;
    ds_status status = convert(&o);
    fflush(stdout);
    if (status != DS_OK) ds_perror("ds_to_universal");
    dsi_free(o.in), dsi_free(o.out);
    return status == DS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
