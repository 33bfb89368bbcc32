/* base/env.c: values of environment variables, checked.
 *
 * Invariants: the environment is not changed by the library. Each thread warns
 * of a variable once; the names of which it has warned are its own.
 * SPDX-License-Identifier: MIT */
#include "env.h"

#include "error.h"
#include "log.h"
#include "text.h"
#include "thread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Threads that read the same variable again and again say once that it is
 * wrong. */
static bool env_first_time(const char *name)
{
    enum { KEPT = 16 };
    static _Thread_local void *names;
    const char **said = dsi_thread_memory(&names, KEPT * sizeof *said);
    int n = 0;
    for (; n < KEPT && said[n]; n++)
        if (!strcmp(said[n], name)) return false;
    if (n < KEPT) said[n] = name;
    return true;
}

/* ---- numbers ---------------------------------------------------------------------------------------------- */

/* Describes the error of the value; empty if there is none. */
static dsi_text env_read_number(const dsi_env *v, double *value)
{
    const char *s = getenv(v->name);
    char *end;
    dsi_text wrong = {0};
    if (!s || !*s) return wrong;
    double x = strtod(s, &end);
    if (!*end && x >= v->least && x <= v->most && (!v->whole || x == floor(x)))
        *value = x;
    else
        dsi_text_add(&wrong, "%s=%s: expected %s", v->name, s, v->expected);
    return wrong;
}

ds_status dsi_env_number(const dsi_env *v, double *value)
{
    dsi_text wrong = env_read_number(v, value);
    if (!wrong.n) return DS_OK;
    dsi_fail(DS_EINVAL, "%s", wrong.s);
    dsi_text_free(&wrong);
    return DS_EINVAL;
}

double dsi_env_number_or(const dsi_env *v, double unset)
{
    double value = unset;
    dsi_text wrong = env_read_number(v, &value);
    if (wrong.n && env_first_time(v->name)) dsi_log(DSI_WARNING, "%s; %g is used", wrong.s, unset);
    dsi_text_free(&wrong);
    return value;
}

/* ---- words ------------------------------------------------------------------------------------------------ */

static dsi_text env_read_word(const char *name, const char *const *words, int *which)
{
    const char *s = getenv(name);
    dsi_text wrong = {0};
    if (!s || !*s) return wrong;
    for (int i = 0; words[i]; i++)
        if (!strcmp(s, words[i])) {
            *which = i;
            return wrong;
        }
    dsi_text_add(&wrong, "%s=%s: expected %s", name, s, words[0]);
    for (int i = 1; words[i]; i++)
        dsi_text_add(&wrong, "%s%s", words[i + 1] ? ", " : " or ", words[i]);
    return wrong;
}

ds_status dsi_env_word(const char *name, const char *const *words, int *which)
{
    dsi_text wrong = env_read_word(name, words, which);
    if (!wrong.n) return DS_OK;
    dsi_fail(DS_EINVAL, "%s", wrong.s);
    dsi_text_free(&wrong);
    return DS_EINVAL;
}

int dsi_env_word_or(const char *name, const char *const *words, int unset, const char *used)
{
    int which = unset;
    dsi_text wrong = env_read_word(name, words, &which);
    if (wrong.n && env_first_time(name)) dsi_log(DSI_WARNING, "%s; %s", wrong.s, used);
    dsi_text_free(&wrong);
    return which;
}
