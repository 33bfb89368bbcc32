/* examples/common/args.c: options of the programs, on glibc's argp.
 * SPDX-License-Identifier: MIT */
#include "args.h"

#include "parse_options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

error_t args_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    return parse_options(argp, argc, argv, ARGP_IN_ORDER | PARSE_ON_RANKS, input);
}

/* "1000000", or "1e6"; *end is the first character after it. errno: it is too
 * large. */
static long long parse_integer(const char *arg, char **end)
{
    errno = 0;
    long long n = strtoll(arg, end, 10);
    if (**end != 'e' && **end != 'E' && **end != '.') return n;
    double x = strtod(arg, end);
    if (x != trunc(x)) *end = (char *)arg;
    if (fabs(x) <= 0x1p53) return (long long)x;
    errno = ERANGE;
    return 0;
}

int64_t args_int(struct argp_state *state, const char *name, const char *arg, int64_t low,
                 int64_t high)
{
    char *end;
    long long n = parse_integer(arg, &end);
    if (end == arg || *end)
        argp_error(state, "--%s: \"%s\" is not an integer", name, arg);
    else if (!errno && n < low && high == INT64_MAX)
        argp_error(state, "--%s: %s: expected at least %lld", name, arg, (long long)low);
    else if (errno || n < low || n > high)
        argp_error(state, "--%s: %s is outside %lld to %lld", name, arg, (long long)low,
                   (long long)high);
    return n;
}

double args_double(struct argp_state *state, const char *name, const char *arg, double low,
                   double high)
{
    char *end;
    double x = strtod(arg, &end);
    if (end == arg || *end || !isfinite(x))
        argp_error(state, "--%s: \"%s\" is not a number", name, arg);
    else if (x < low && isinf(high))
        argp_error(state, "--%s: %s: expected at least %g", name, arg, low);
    else if (x < low || x > high)
        argp_error(state, "--%s: %s is outside %g to %g", name, arg, low, high);
    return x;
}

static const char *name_of(const struct argp_option *options, int key)
{
    while (options->key != key) options++;
    return options->name;
}

error_t args_store(struct argp_state *state, const struct argp_option *options,
                   const ArgsField *fields, int key, char *arg, void *into)
{
    const ArgsField *f = fields;
    while (f->key && f->key != key) f++;
    if (!f->key) return ARGP_ERR_UNKNOWN;
    void *to = (char *)into + f->at;
    switch (f->kind) {
    case ARGS_INT64:
        *(int64_t *)to = args_int(state, name_of(options, key), arg, f->low, f->high);
        break;
    case ARGS_POSITIVE:
        *(double *)to = args_double(state, name_of(options, key), arg, 0, HUGE_VAL);
        break;
    case ARGS_STRING:
        *(const char **)to = arg;
        break;
    case ARGS_BOOL:
        *(bool *)to = true;
        break;
    }
    return 0;
}

error_t args_local_rank(struct argp_state *state, const char *arg, const char *others)
{
    const char *ranks = getenv("WORLD_SIZE");
    args_int(state, "local-rank", arg, -1, 1000000);
    if (ranks && atoi(ranks) > 1)
        argp_error(state,
                   "it is one process, and %s ranks were started, which would all do the same: "
                   "deepspeed --num_devs 1, or %s",
                   ranks, others);
    return 0;
}
