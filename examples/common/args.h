/* examples/common/args.h: options of the programs, on glibc's argp.
 *
 * Every long option may be written with hyphens or underscores. A bad value ends the program through
 * argp_error, with status 2 and one line that names the option.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_ARGS_H
#define EXAMPLES_ARGS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* argp_parse after "--batch_size=4" has become "--batch-size=4"; arguments behind "--" stay as they are. */
error_t args_parse(const struct argp *argp, int argc, char **argv, void *input);

/* The number in arg, the value of --name; refuses other text and values outside [low, high]. */
int64_t args_int(struct argp_state *state, const char *name, const char *arg, int64_t low,
                 int64_t high);
double args_double(struct argp_state *state, const char *name, const char *arg, double low,
                   double high);

/* An option whose value only has to be stored: in which field of the parser's struct. */
typedef struct ArgsField {
    int key;
    enum { ARGS_INT64, ARGS_POSITIVE, ARGS_STRING, ARGS_BOOL } kind;
    size_t at;
    int64_t low, high; /* of a whole number */
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

#define ARGS_COUNT 1000000000 /* more of anything is a mistake */

/* Stores the option's value in `into`; ARGP_ERR_UNKNOWN if it is not among the fields, whose last has key 0. The
 * options are those of the parser, for names in messages. */
error_t args_store(struct argp_state *state, const struct argp_option *options,
                   const ArgsField *fields, int key, char *arg, void *into);

#endif
