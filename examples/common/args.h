/* examples/common/args.h: options of the programs, on glibc's argp.
 *
 * Every long option may be written with hyphens or underscores. A bad value
 * ends the program through argp_error, with status 2 and one line that names
 * the option.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Calls argp_parse after replacing underscores in option names
 * ("--batch_size=4") by hyphens. Arguments after "--" are not changed. */
error_t args_parse(const struct argp *argp, int argc, char **argv, void *input);

/* The number in arg, which is the value of --name; also an integer as "1e6". Other text, and values
 * outside of [low, high], end the program with a message. */
int64_t args_int(struct argp_state *state, const char *name, const char *arg, int64_t low,
                 int64_t high);
double args_double(struct argp_state *state, const char *name, const char *arg, double low,
                   double high);

/* An option whose value is stored in a field of the parser's struct. */
typedef struct ArgsField {
    int key;
    enum { ARGS_INT64, ARGS_POSITIVE, ARGS_STRING, ARGS_BOOL } kind;
    size_t at;
    int64_t low, high; /* range of an integer */
} ArgsField;

#define ARGS_WHOLE(key, type, field, low, high) \
    { \
        key, ARGS_INT64, offsetof(type, field), low, high \
    }
#define ARGS_REAL(key, type, field) \
    { \
        key, ARGS_POSITIVE, offsetof(type, field), 0, 0 \
    } /* from 0 up */
#define ARGS_TEXT(key, type, field) \
    { \
        key, ARGS_STRING, offsetof(type, field), 0, 0 \
    }
#define ARGS_FLAG(key, type, field) \
    { \
        key, ARGS_BOOL, offsetof(type, field), 0, 0 \
    }

/* The row of --local-rank, which the launcher puts in front of the arguments,
 * for a program of one process. */
#define ARGS_LOCAL_RANK(key) \
    { \
        "local-rank", key, "N", OPTION_HIDDEN, 0, 0 \
    }

#define ARGS_COUNT 1000000000 /* larger counts are mistakes */

/* Stores the option's value in the struct `into`. Returns ARGP_ERR_UNKNOWN if
 * key is not among the fields; their last has key 0. Messages take names from
 * the parser's options. */
error_t args_store(struct argp_state *state, const struct argp_option *options,
                   const ArgsField *fields, int key, char *arg, void *into);

/* Checks the value of --local-rank, which has no other effect. Ends the program
 * if several ranks were started, which would all do the same: others: the
 * programs for that. */
error_t args_local_rank(struct argp_state *state, const char *arg, const char *others);
