/* examples/common/args.h: options of the programs, on glibc's argp.
 *
 * Every long option may be written with hyphens or underscores. A bad value ends the program through
 * argp_error, with status 2 and one line that names the option.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_ARGS_H
#define EXAMPLES_ARGS_H

#include <argp.h>
#include <stdint.h>

/* argp_parse after "--batch_size=4" has become "--batch-size=4"; arguments behind "--" stay as they are. */
error_t args_parse(const struct argp *argp, int argc, char **argv, void *input);

/* The number in arg, the value of --name; refuses other text and values outside [low, high]. */
int64_t args_int(struct argp_state *state, const char *name, const char *arg, int64_t low,
                 int64_t high);
double args_double(struct argp_state *state, const char *name, const char *arg, double low,
                   double high);

#endif
