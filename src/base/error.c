/* base/error.c: the thread's failures since ds_error_clear: the first one, the
 * latest one, and how many.
 *
 * The function that decides which failure it is writes the message, once.
 * Callers may add context by a message that quotes the latest one
 * (dsi_error_latest), which stays the same failure.
 *
 * Invariants: all state belongs to one thread. n_failures is 0 if and only if
 * ds_error() is NULL; then both texts are stale. n_failures is 1: first and
 * latest are equal. A text is one line and ends within its array. `collective`
 * is stale unless n_failures is 1; each failure resets it.
 * SPDX-License-Identifier: MIT */
#include "error.h"

#include "text.h"
#include "thread.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 1024
#define QUOTE_BYTES   200 /* of a message that a quote has at least: what quotes it may cut it */

typedef struct Messages {
    char first[MESSAGE_BYTES], latest[MESSAGE_BYTES];
    char told[MESSAGE_BYTES + 40]; /* what ds_error returns if several have failed */
} Messages;

static _Thread_local void *messages; /* a Messages, from the first failure on */
static _Thread_local int n_failures;
static _Thread_local ds_status first_status;
static _Thread_local bool collective; /* all ranks have the one failure */
static _Thread_local const dsi_error_context *where;

/* Writes "net.fc1: " into text; returns its length. */
static int error_write_path(char *text, size_t room)
{
    text[0] = 0;
    if (!where) return 0;
    where->write(where->what, text, room - 2);
    return (int)strlen(strcat(text, ": "));
}

/* Whether `message` tells of the failure `old` with more context: "a.json: no
 * such file" and "config: a.json: no such file". The same text again is another
 * failure. */
static bool error_quotes(const char *message, const char *old)
{
    char quote[QUOTE_BYTES + 1];
    snprintf(quote, sizeof quote, "%.*s", QUOTE_BYTES, old);
    return strstr(message, quote) && strcmp(message, old) != 0;
}

static void error_set(ds_status status, const char *format, va_list args) DS_PRINTF(2, 0);
static void error_set(ds_status status, const char *format, va_list args)
{
    char message[MESSAGE_BYTES] = ""; /* an argument may be an old message */
    int n = error_write_path(message, MESSAGE_BYTES / 2);
    vsnprintf(message + n, (size_t)(MESSAGE_BYTES - n), format, args);
    dsi_make_printable(message); /* whatever the names in a file may hold */

    Messages *m = dsi_thread_memory(&messages, sizeof *m);
    collective = false;
    bool more_of_latest = n_failures && error_quotes(message, m->latest);
    bool more_of_first = n_failures && error_quotes(message, m->first);
    if (!more_of_latest && !more_of_first) n_failures++;
    if (n_failures > 1 && *m->told && strstr(message, m->told))
        n_failures = 1; /* it says the rest */
    memcpy(m->latest, message, MESSAGE_BYTES);
    if (n_failures > 1 && !more_of_first) return;
    memcpy(m->first, message, MESSAGE_BYTES);
    first_status = status;
}

ds_status dsi_fail(ds_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error_set(status, format, args);
    va_end(args);
    return status;
}

ds_status dsi_fail_in(const char *front, ds_status status)
{
    size_t n = strlen(front);
    const char *why = dsi_error_latest();
    bool there = why && !strncmp(why, front, n) && why[n] == ':';
    return status == DS_OK || !why || there ? status : dsi_fail(status, "%s: %s", front, why);
}

ds_status ds_fail(ds_status status, const char *format, ...)
{
    if (status == DS_OK) status = DS_ESTATE;
    va_list args;
    va_start(args, format);
    error_set(status, format, args);
    va_end(args);
    return status;
}

void *dsi_refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error_set(DS_EINVAL, format, args);
    va_end(args);
    return NULL;
}

void *dsi_null_operand(const char *what)
{
    if (!n_failures) dsi_fail(DS_EINVAL, "%s: an operand is NULL", what);
    return NULL;
}

const char *ds_error(void)
{
    Messages *m = messages;
    if (n_failures <= 1) return n_failures ? m->first : NULL;
    snprintf(m->told, sizeof m->told, "%s (and %d more failure%s)", m->first, n_failures - 1,
             n_failures > 2 ? "s" : "");
    return m->told;
}

ds_status ds_error_status(void) { return n_failures ? first_status : DS_OK; }
void ds_error_clear(void) { n_failures = 0; }
bool ds_error_is_collective(void) { return n_failures == 1 && collective; }
void dsi_error_set_collective(void) { collective = true; }
int dsi_error_count(void) { return n_failures; }
const char *dsi_error_latest(void) { return n_failures ? ((Messages *)messages)->latest : NULL; }

void dsi_error_forget(int count)
{
    Messages *m = messages;
    if (n_failures <= count) return;
    n_failures = count;
    collective = false;
    if (count) memcpy(m->latest, m->first, MESSAGE_BYTES);
}

const dsi_error_context *dsi_error_context_enter(const dsi_error_context *here)
{
    const dsi_error_context *was = where;
    where = here;
    return was;
}

void dsi_error_context_leave(const dsi_error_context *was) { where = was; }

void dsi_error_context_path(char *text, size_t room)
{
    text[0] = 0;
    if (where) where->write(where->what, text, room);
}

void dsi_broken(const char *what, const char *file, int line)
{
    fprintf(stderr, "deepspeed: broken invariant at %s:%d: %s\n", file, line, what);
    abort();
}
