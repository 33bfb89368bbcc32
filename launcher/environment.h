/* launcher/environment.h: the variables that ranks on other machines get too.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_ENVIRONMENT_H
#define LAUNCHER_ENVIRONMENT_H

#include "argv.h"

/* KEY=VALUE of this process whose names begin as what is forwarded (environment.c has the list), then the lines
 * of .deepspeed_env (DS_ENV_FILE) in the home folder and in this one. A later value takes an earlier one's place.
 * Messages name file and line. */
ds_status environment_collect(argv_list *w);
/* The lines of one such text. */
ds_status environment_parse(argv_list *w, const char *path, const char *text, size_t bytes);
/* Adds NAME=VALUE, or replaces the one with that name. */
void environment_set(argv_list *w, const char *name, const char *format, ...) DS_PRINTF(3, 4);

#endif
