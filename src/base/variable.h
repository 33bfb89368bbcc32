/* base/variable.h: what environment variables say. docs/environment.md lists them all.
 *
 * A value that is none is never replaced in silence: "DS_GRACE=soon: expected seconds, from 0 to 3600" is a failure
 * where the caller can fail, and else a warning that says what is used instead. One that is empty counts as not set.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_BASE_VARIABLE_H
#define DSI_BASE_VARIABLE_H

#include <deepspeed/types.h>

typedef struct dsi_variable {
    const char *name, *expected; /* "seconds, from 0 to 3600" */
    double least, most;
    bool whole;
} dsi_variable;

/* *value is the number, or stays what it was where the variable is not set. Else a failure with the message. */
ds_status dsi_variable_number(const dsi_variable *v, double *value);
/* The number; `unset` where it is not set, or is none: then with a warning, once a thread for all of them. */
double dsi_variable_or(const dsi_variable *v, double unset);

/* The place of the value among `words` (NULL-ended) -> *which, which stays what it was where it is not set. */
ds_status dsi_variable_word(const char *name, const char *const *words, int *which);
/* The same, with a warning that says `used` ("they are not compared") in place of a failure. */
int dsi_variable_word_or(const char *name, const char *const *words, int unset, const char *used);

#endif
