/* base/env.h: what environment variables say. docs/environment.md lists them
 * all.
 *
 * A value that is none is never replaced in silence: "DS_GRACE=soon: expected
 * seconds, from 0 to 3600" is a failure where the caller can fail, and else a
 * warning that says what is used instead. One that is empty counts as not set.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <deepspeed/types.h>

typedef struct dsi_env {
    const char *name, *expected; /* "seconds, from 0 to 3600" */
    double least, most;
    bool whole;
} dsi_env;

/* *value is the number, or stays what it was where the variable is not set.
 * Else a failure with the message. */
DSI_SHARED ds_status dsi_env_number(const dsi_env *v, double *value);
/* The number; `unset` where it is not set, or is none: then with a warning,
 * once a thread for all of them. */
DSI_SHARED double dsi_env_number_or(const dsi_env *v, double unset);

/* The place of the value among `words` (NULL-ended) -> *which, which stays what
 * it was where it is not set. */
ds_status dsi_env_word(const char *name, const char *const *words, int *which);
/* The same, with a warning that says `used` ("they are not compared") in place
 * of a failure. */
int dsi_env_word_or(const char *name, const char *const *words, int unset, const char *used);
