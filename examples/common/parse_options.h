/* examples/common/parse_options.h: argp_parse for programs that may be started
 * as several ranks.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <argp.h>
#include <stdbool.h>

#define PARSE_WRONG 2 /* the status of a program that is used wrongly */
/* Of parse_options: the first word that is no option is a command, and the
 * options after it are its own. */
#define PARSE_BEFORE_COMMAND (1u << 16)
/* Of parse_options: the program may run as several ranks. All find the same
 * mistake or --help, and only rank 0 writes it, except on a terminal. */
#define PARSE_ON_RANKS (1u << 17)

/* argp_parse; a mistake ends the program with status 2. A stdout that cannot be
 * written makes the program end with a message and status 1, also after --help.
 * Long options may be written with underscores or hyphens: argv's words may be
 * written to. For an option that argp does not know the message has the nearest
 * one, in the user's spelling.
 * flags: ARGP_IN_ORDER, PARSE_BEFORE_COMMAND, PARSE_ON_RANKS, or 0. */
error_t parse_options(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* Whether this process is rank 0, or no launcher has started it: by the
 * variables in which launchers tell a rank its number. */
bool parse_is_first_rank(void);
