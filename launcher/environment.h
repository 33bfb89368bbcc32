/* launcher/environment.h: the variables that ranks on other machines get.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "argv.h"

/* Adds the variables of this process that are forwarded (environment.c has the
 * list), then those of .deepspeed_env (or DS_ENV_FILE) in the home folder and
 * in the working folder. A later value replaces an earlier one. Messages name
 * file and line. */
ds_status environment_collect(argv_list *w);
/* Adds those of one such file, whose content is text. */
ds_status environment_parse(argv_list *w, const char *path, const char *text, size_t bytes);
/* Adds NAME=VALUE, or replaces the one with that name. */
void environment_set(argv_list *w, const char *name, const char *format, ...) DS_PRINTF(3, 4);
