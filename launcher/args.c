/* launcher/args.c: the command line of deepspeed: one row for each option.
 *
 * Options have DeepSpeed's names, with underscores or hyphens, and those of
 * torch.distributed.launch. The first word that is no option is the program;
 * the words after it are the program's arguments. Options of DeepSpeed that
 * mean nothing for compiled programs are rows too: each is refused with a
 * reason, not ignored.
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "hosts.h"
#include "parse_options.h"

#include "base/mem.h"
#include "base/text.h"

#include <deepspeed/types.h>

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum option_kind {
    TITLE,    /* of a group of options, for --help */
    TEXT,     /* const char *, at least low bytes; empty: as if not given */
    NUMBER,   /* int from low to high */
    NUMBER64, /* int64_t, at least low; of "N" also 7B, 124M, of "BYTES" also 16GB */
    FLAG,     /* bool, set to true */
    ACCEPTED, /* has no effect: what it requests is always so */
    REFUSED,
    HELP
} option_kind;

typedef struct option_row {
    const char *name;
    option_kind kind;
    char letter;     /* -H, or 0 */
    const char *arg; /* as --help calls it; NULL: takes none */
    size_t at;       /* in options */
    long low, high;
    const char *help; /* NULL: hidden; of a REFUSED one: the reason */
} option_row;

#define AT(field) offsetof(options, field)
#define ROW(...) \
    { \
        __VA_ARGS__ \
    }
#define COUNT(name, field, low, help)        ROW(name, NUMBER, 0, "N", AT(field), low, INT_MAX, help)
#define PORT(name, field, help)              ROW(name, NUMBER, 0, "PORT", AT(field), 1, 65535, help)
#define WORD(name, letter, arg, field, help) ROW(name, TEXT, letter, arg, AT(field), 1, 0, help)
/* may be empty: DeepSpeed's default is "", which scripts give */
#define WORD_OR_EMPTY(name, letter, arg, field, help) \
    ROW(name, TEXT, letter, arg, AT(field), 0, 0, help)
#define SET(name, letter, field, help) ROW(name, FLAG, letter, NULL, AT(field), 0, 0, help)
#define SECTION(text)                  ROW(NULL, TITLE, 0, NULL, 0, 0, 0, text)
#define NO(name, arg, reason)          ROW(name, REFUSED, 0, arg, 0, 0, 0, reason)

#define NO_RENDEZVOUS \
    "there is no rendezvous service: use --nnodes, --node_rank, --master_addr, --master_port"

static const option_row flags[] = {
    SECTION("Where ranks run:"),
    WORD("hostfile", 'H', "FILE", hostfile,
         "Hosts, each on a line \"NAME slots=N\" (" DEFAULT_HOSTFILE ", if it is there)"),
    WORD_OR_EMPTY("include", 'i', "SPEC", include,
                  "Only these: NAME[:SLOT[,SLOT...]][@NAME...], such as worker-0@worker-1:0,2"),
    WORD_OR_EMPTY("exclude", 'e', "SPEC", exclude, "All but these, in the form of --include"),
    COUNT("num_nodes", num_nodes, -1, "The first N hosts"),
    {"num_gpus", NUMBER, 0, "N", AT(num_gpus), -1, MOST_SLOTS,
     "N ranks on each host, on devices 0 to N-1; also --num_accelerators, and --num_devs, which "
     "does not ask "
     "Slurm for GPUs"},
    {"num_accelerators", NUMBER, 0, "N", AT(num_gpus), -1, MOST_SLOTS, NULL},
    {"num_devs", NUMBER, 0, "N", AT(num_devs), -1, MOST_SLOTS, NULL},
    {"nproc_per_node", NUMBER, 0, "N", AT(nproc_per_node), 1, MOST_SLOTS,
     "As torch.distributed.launch has it: N ranks, on the first devices of CUDA_VISIBLE_DEVICES"},

    SECTION("The same command typed on each node, without ssh:"),
    COUNT("nnodes", nnodes, 1, "The number of nodes"),
    COUNT("node_rank", node_rank, -1, "The number of this node, from 0"),
    SET("no_ssh", 0, no_ssh,
        "The hostfile says which nodes there are; the command is typed on each"),
    WORD_OR_EMPTY("master_addr", 0, "ADDRESS", master_addr,
                  "Of node 0, where the others join it (first address of the first host)"),
    PORT("master_port", master_port, "The port of --master_addr (29500)"),
    WORD("join_secret_file", 0, "FILE", join_secret_file,
         "The secret that the nodes share (or DS_JOIN_SECRET)"),
    COUNT("join_timeout", join_timeout, 1, "Seconds until a missing node is an error (300)"),

    SECTION("How ranks are started:"),
    WORD(
        "launcher", 0, "NAME", launcher,
        "local, ssh, pdsh, openmpi, mpich, mvapich or slurm (local for one host, ssh for several)"),
    WORD_OR_EMPTY("launcher_args", 0, "WORDS", launcher_args,
                  "More arguments for mpirun, mpiexec or srun"),
    PORT("ssh_port", ssh_port, "Where the hosts' sshd listens"),
    SET("force_multi", 0, force_multi, "One host of a hostfile is remote too"),
    SET("no_ssh_check", 0, no_ssh_check, "Do not look first whether all hosts can be reached"),
    COUNT("start_timeout", start_timeout, 1,
          "Seconds until a host whose ranks have not started is an error (60)"),
    SET("dry_run", 0, dry_run, "Start nothing; print resources, commands and environment as JSON"),

    SECTION("After a failure:"),
    COUNT("max_restarts", max_restarts, 0,
          "Start the ranks again, up to N times, on the hosts that answer (0)"),
    COUNT("min_nodes", min_nodes, 1, "On at least N hosts; fewer are waited for (1)"),
    COUNT("min_elastic_nodes", min_nodes, 1, NULL),
    COUNT("min_ranks", min_ranks, 1, "With at least N ranks (1)"),
    WORD("error_file", 0, "FILE", error_file,
         "Append the first failure of each attempt to FILE, as a line of JSON"),
    SET("elastic_training", 0, elastic_training, "As DeepSpeed has it: --max_restarts 100"),
    COUNT("max_elastic_nodes", num_nodes, 1, NULL),

    SECTION("Resources of each rank:"),
    SET("no_local_rank", 0, no_local_rank, "No --local_rank=N in front of its arguments"),
    SET("use_env", 0, no_local_rank, NULL),
    SET("bind_cores_to_rank", 0, bind_cores_to_rank, "Cores of its own"),
    WORD("bind_core_list", 0, "LIST", bind_core_list,
         "The cores of --bind_cores_to_rank: 0,2-5 (all)"),
    WORD("enable_each_rank_log", 0, "DIR", rank_log,
         "A log file in DIR in place of stdout, stderr"),
    SET("tag_output", 0, tag_output, "Lines that begin with its number"),
    SET("save_pid", 0, save_pid, "The launcher's process number in /tmp/PID.deepspeed"),
    SET("quiet", 'q', quiet, "Nothing but errors from the launcher"),
    WORD("log_level", 0, "LEVEL", log_level, "debug, info, warning, error or critical (info)"),
    {"no_python", ACCEPTED, 0, NULL, 0, 0, 0, NULL},

    SECTION("Prints a configuration:"),
    WORD("check_config", 0, "FILE", check_config,
         "Print what FILE (or JSON text, or base64 of it) resolves to, every key with its value"),
    SET("auto", 0, auto_values,
        "With --check_config: values in place of \"auto\", where not the defaults of transformers' "
        "Trainer: learning_rate=1e-4 max_steps=1000 ..."),
    COUNT("world_size", world_size, 1,
          "The ranks of --check_config, --estimate_memory and --init_config (1)"),
    WORD("estimate_memory", 0, "FILE", estimate_memory,
         "Print how much memory training with FILE needs on each rank"),
    {"params", NUMBER64, 0, "N", AT(params), 1, 0,
     "The model of --estimate_memory or --init_config has N parameters: 50000000, 124M, 7B"},
    {"largest", NUMBER64, 0, "N", AT(largest), 1, 0,
     "Its largest tensor has N of them (no more than a bucket)"},
    {"activations", NUMBER64, 0, "BYTES", AT(activations), 0, 0,
     "Activations of a micro step take BYTES (0)"},
    SET("json", 0, json, "Print --estimate_memory as JSON"),

    SECTION("Writes a configuration:"),
    WORD("init_config", 0, "FILE", init_config,
         "Write a ds_config.json with comments to FILE, which must not exist (-: stdout), for "
         "--world_size, --params, --dtype, --memory and --batch"),
    WORD("dtype", 0, "TYPE", dtype, "fp32, bf16 or fp16 (bf16)"),
    {"memory", NUMBER64, 0, "BYTES", AT(memory), 1, 0,
     "Memory of a rank, such as 16GB: the first ZeRO stage that fits is chosen"},
    {"batch", NUMBER, 0, "N", AT(batch), 1, INT_MAX,
     "Samples of an update on all ranks (8 for each rank)"},
    SECTION(""),
    {"help_", HELP, 'h', NULL, 0, 0, 0, NULL},

    NO("module", NULL, "it names a Python module; give the path of a program"),
    NO("venv_script", "FILE",
       "programs here need no Python environment; variables go into .deepspeed_env"),
    NO("autotuning", "MODE",
       "there is no autotuner; deepspeed --estimate_memory says what fits, bench/run what is fast"),
    NO("rdzv_backend", "NAME", NO_RENDEZVOUS),
    NO("rdzv_endpoint", "ADDRESS", NO_RENDEZVOUS),
    NO("rdzv_id", "ID", NO_RENDEZVOUS),
};
enum { FLAGS = sizeof flags / sizeof *flags, FIRST_KEY = 256 };

/* ---- one option ------------------------------------------------------------------ */

/* "1000000000", or "1e9"; *end is the first character after it. */
static long long option_parse_integer(const char *text, char **end)
{
    errno = 0;
    long long n = strtoll(text, end, 10);
    if (**end != 'e' && **end != 'E' && **end != '.') return n;
    double x = strtod(text, end);
    if (x == trunc(x) && fabs(x) <= 0x1p53) return (long long)x;
    errno = ERANGE;
    return 0;
}

/* The number with its unit: parameters in thousands, millions, billions, memory
 * in bytes; *end as above. */
static long long option_parse_units(const char *text, bool bytes, char **end)
{
    static const char *const units[2][4] = {{"K", "M", "B", "T"}, {"KB", "MB", "GB", "TB"}};
    long long n = option_parse_integer(text, end);
    double x = strtod(text, end);
    for (int i = 0; i < 4; i++)
        if (!strcasecmp(*end, units[bytes][i]) && fabs(x *= pow(1000, i + 1)) < 0x1p53) {
            *end += strlen(*end);
            errno = 0;
            return (long long)x;
        }
    return n;
}

/* argp_error exits after two lines: the mistake, and a hint at --help. */
static int64_t option_read_number(struct argp_state *state, const option_row *f, const char *text,
                                  int64_t high)
{
    char *end;
    long long n = f->kind == NUMBER64 ? option_parse_units(text, *f->arg == 'B', &end)
                                      : option_parse_integer(text, &end);
    if (errno || *end || end == text || n < f->low || n > high) {
        if (high < INT_MAX)
            argp_error(state, "--%s %s: expected a number from %ld to %lld", f->name, text, f->low,
                       (long long)high);
        else
            argp_error(state, "--%s %s: expected a number, at least %ld%s", f->name, text, f->low,
                       f->kind != NUMBER64 ? ""
                       : *f->arg == 'B'    ? ", such as 16GB"
                                           : ", such as 124M");
    }
    return n;
}

/* An empty TEXT counts as not given, unless `low` forbids that. */
static void option_apply(const option_row *f, char *arg, struct argp_state *state)
{
    char *field = (char *)state->input + f->at;
    switch (f->kind) {
    case TEXT:
        if (!*arg && f->low)
            argp_error(state, "--%s: expected %s, which is empty", f->name, f->arg);
        *(const char **)field = *arg ? arg : NULL;
        break;
    case NUMBER:
        *(int *)field = (int)option_read_number(state, f, arg, f->high);
        break;
    case NUMBER64:
        *(int64_t *)field = option_read_number(state, f, arg, INT64_MAX);
        break;
    case FLAG:
        *(bool *)field = true;
        break;
    case REFUSED:
        argp_error(state, "--%s: %s", f->name, f->help);
        break;
    case HELP:
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
        break;
    default:
        break;
    }
}

/* Options that only some of the forms have which start nothing. */
static void check_config_owners(const options *o, struct argp_state *state)
{
    const bool check = o->check_config, estimate = o->estimate_memory, init = o->init_config;
    const struct {
        bool given, has_owner;
        const char *text;
    } owned[] = {
        {o->auto_values, check, "--auto belongs to --check_config"},
        {o->params, estimate || init, "--params belongs to --estimate_memory and --init_config"},
        {o->largest || o->activations, estimate || init,
         "--largest and --activations belong to --estimate_memory and --init_config"},
        {o->dtype || o->memory || o->batch, init,
         "--dtype, --memory and --batch belong to --init_config"},
        {o->json, estimate || check, "--json belongs to --estimate_memory"},
        {o->world_size, check || estimate || init,
         "--world_size belongs to --check_config, --estimate_memory and --init_config; --num_gpus, "
         "--num_devs say how many ranks are started"}};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i].given && !owned[i].has_owner) argp_error(state, "%s", owned[i].text);
}

/* Either a program is started, or a configuration is printed or written. */
static void check_config_options(const options *o, struct argp_state *state)
{
    const char *looks = o->check_config      ? "check_config"
                        : o->estimate_memory ? "estimate_memory"
                        : o->init_config     ? "init_config"
                                             : NULL;
    if (!!o->check_config + !!o->estimate_memory + !!o->init_config > 1)
        argp_error(state,
                   "--check_config, --estimate_memory and --init_config: expected one of them");
    check_config_owners(o, state);
    if (looks && o->program && !o->auto_values)
        argp_error(state, "--%s starts nothing, so what is %s?", looks, *o->program);
    if ((o->estimate_memory || (o->init_config && o->memory)) && !o->params)
        argp_error(state, "--%s: of how many parameters? give --params N", looks);
    if (o->dtype && strcmp(o->dtype, "fp32") != 0 && strcmp(o->dtype, "bf16") != 0 &&
        strcmp(o->dtype, "fp16") != 0)
        argp_error(state, "--dtype %s: expected fp32, bf16 or fp16", o->dtype);
    if (!looks && !o->program)
        argp_error(state, "which program is to be started? deepspeed PROGRAM [ARGUMENT...]");
}

/* Numbers that leave nothing to start, and options that mean the same, with
 * different numbers. */
static void check_counts(const options *o, struct argp_state *state)
{
    const struct {
        const char *one, *other;
        int n, m;
    } pair[] = {{"num_gpus", "num_devs", o->num_gpus, o->num_devs},
                {"num_gpus", "nproc_per_node", o->num_gpus, o->nproc_per_node},
                {"num_devs", "nproc_per_node", o->num_devs, o->nproc_per_node},
                {"num_nodes", "nnodes", o->num_nodes, o->nnodes}};
    const struct {
        const char *name;
        int n;
    } counts[] = {
        {"num_nodes", o->num_nodes}, {"num_gpus", o->num_gpus}, {"num_devs", o->num_devs}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (!counts[i].n)
            argp_error(state, "--%s 0: expected at least 1, or -1 for all", counts[i].name);
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        if (pair[i].n > 0 && pair[i].m > 0 && pair[i].n != pair[i].m)
            argp_error(state, "--%s %d and --%s %d: expected one of them", pair[i].one, pair[i].n,
                       pair[i].other, pair[i].m);
}

/* DeepSpeed's agent, which --elastic_training runs, restarts 100 times. */
static void check_restarts(options *o, struct argp_state *state)
{
    const char *belongs = o->min_nodes > 0   ? "min_nodes (--min_elastic_nodes)"
                          : o->min_ranks > 0 ? "min_ranks"
                          : o->error_file    ? "error_file"
                                             : NULL;
    if (o->max_restarts < 0) o->max_restarts = o->elastic_training ? 100 : 0;
    if (belongs && !o->max_restarts)
        argp_error(state, "--%s belongs to --max_restarts N or --elastic_training", belongs);
    if (options_nodes(o) > 0 && o->min_nodes > options_nodes(o))
        argp_error(state, "--min_nodes %d: the job has %d node%s (--nnodes, --num_nodes)",
                   o->min_nodes, options_nodes(o), options_nodes(o) == 1 ? "" : "s");
}

/* Checks that concern several options. */
static void options_check(options *o, struct argp_state *state)
{
    static const char *const levels[] = {"debug", "info", "warning", "error", "critical"};
    size_t i = 0;
    while (i < 5 && strcmp(o->log_level, levels[i]) != 0) i++;
    if (i == 5)
        argp_error(state, "--log_level %s: expected debug, info, warning, error or critical",
                   o->log_level);
    check_counts(o, state);
    check_restarts(o, state);
    check_config_options(o, state);
    if (o->rank_log && !strcmp(o->rank_log, "None")) o->rank_log = NULL; /* DeepSpeed's default */
    if (!o->world_size) o->world_size = 1;
}

/* The first argument that is no option ends the parsing: the rest belongs to
 * the program. */
static error_t options_parse(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;
    if (key == ARGP_KEY_ARG) {
        o->program = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    }
    if (key == ARGP_KEY_END) options_check(o, state);
    for (int i = 0; i < FLAGS; i++)
        if (key == FIRST_KEY + i || (flags[i].letter && key == flags[i].letter)) {
            option_apply(&flags[i], arg, state);
            return 0;
        }
    return ARGP_ERR_UNKNOWN;
}

/* ---- all options ----------------------------------------------------------------- */

/* argp's rows. */
static void options_fill_argp(struct argp_option *row)
{
    int group = 0;
    for (int i = 0; i < FLAGS; i++) {
        const option_row *f = &flags[i];
        if (f->kind == TITLE) {
            group++;
            if (*f->help) *row++ = (struct argp_option){.doc = f->help, .group = group};
            continue;
        }
        bool shown = f->help && f->kind != REFUSED;
        int key = f->letter ? f->letter : FIRST_KEY + i;
        const char *name = f->kind == HELP ? NULL : f->name;
        *row++ = (struct argp_option){
            name, key, f->arg, shown ? 0 : OPTION_HIDDEN, shown ? f->help : NULL, group};
    }
}

/* parse_options exits on a mistake, so there is nothing to return. */
void args_read(options *o, int argc, char **argv)
{
    *o = (options){.num_nodes = -1,
                   .num_gpus = -1,
                   .num_devs = -1,
                   .nproc_per_node = -1,
                   .nnodes = -1,
                   .node_rank = -1,
                   .master_port = DEFAULT_PORT,
                   .join_timeout = 300,
                   .start_timeout = -1,
                   .max_restarts = -1,
                   .min_nodes = -1,
                   .min_ranks = -1,
                   .ssh_port = -1,
                   .log_level = "info"};
    struct argp_option rows[FLAGS + 1] = {{0}};
    options_fill_argp(rows);
    const struct argp argp = {
        rows,
        options_parse,
        "PROGRAM [ARGUMENT...]",
        "Starts PROGRAM on many devices, here or on many hosts. The words after PROGRAM are its "
        "arguments."
        "\vBefore a start, --dry_run shows what would be started. docs/launcher.md has more.",
        NULL,
        NULL,
        NULL};
    char *slash = strrchr(argv[0], '/');
    if (slash) argv[0] = slash + 1; /* getopt begins its messages with it */
    argp_program_version = "deepspeed.c " DS_VERSION;
    parse_options(&argp, argc, argv, PARSE_BEFORE_COMMAND, o);
}

int options_ranks_per_node(const options *o)
{
    if (o->num_gpus >= 0) return o->num_gpus;
    return o->num_devs >= 0 ? o->num_devs : o->nproc_per_node;
}

int options_nodes(const options *o) { return o->num_nodes > 0 ? o->num_nodes : o->nnodes; }

/* --quiet or a --log_level above info. */
bool options_silent(const options *o)
{
    return o->quiet || (strcmp(o->log_level, "debug") != 0 && strcmp(o->log_level, "info") != 0);
}
