/* base/error.c: the thread's last failure, and the three ways to report one.
 *
 * A message is written once, by the function that decides which failure it is, and starts with the
 * path of the modules that were running. It stays until the next fresh failure or ds_error_clear.
 * SPDX-License-Identifier: MIT */
#include "error.h"

#include "thread.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 1024

static _Thread_local void *message;  /* MESSAGE_BYTES, from the first failure on */
static _Thread_local ds_status last; /* DS_OK: there is no message */
static _Thread_local const dsi_error_context *where;

/* Writes "net.fc1: " into text; returns its length. */
static int write_path(char *text, size_t room)
{
    text[0] = 0;
    if (!where) return 0;
    where->write(where->what, text, room - 2);
    return (int)strlen(strcat(text, ": "));
}

static void set(ds_status status, const char *format, va_list args) DS_PRINTF(2, 0);
static void set(ds_status status, const char *format, va_list args)
{
    char fresh[MESSAGE_BYTES] = ""; /* an argument may be the old message */
    int n = write_path(fresh, MESSAGE_BYTES / 2);
    vsnprintf(fresh + n, (size_t)(MESSAGE_BYTES - n), format, args);
    /* One line, whatever the names in a file may hold. */
    for (char *c = fresh; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = *c == '\t' ? ' ' : '?';
    memcpy(dsi_thread_memory(&message, MESSAGE_BYTES), fresh, MESSAGE_BYTES);
    last = status;
}

ds_status dsi_fail(ds_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set(status, format, args);
    va_end(args);
    return status;
}

ds_status dsi_fail_in(const char *front, ds_status status)
{
    size_t n = strlen(front);
    const char *why = ds_error();
    bool there = why && !strncmp(why, front, n) && why[n] == ':';
    return status == DS_OK || !why || there ? status : dsi_fail(status, "%s: %s", front, why);
}

ds_status ds_fail(ds_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set(status == DS_OK ? DS_ESTATE : status, format, args);
    va_end(args);
    return last;
}

void *dsi_refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set(DS_EINVAL, format, args);
    va_end(args);
    return NULL;
}

void *dsi_null_operand(const char *what)
{
    if (last == DS_OK) dsi_fail(DS_EINVAL, "%s: an operand is NULL", what);
    return NULL;
}

ds_status dsi_null_argument(const char *what)
{
    dsi_null_operand(what);
    return last;
}

const char *ds_error(void) { return last == DS_OK ? NULL : message; }
ds_status ds_error_status(void) { return last; }
void ds_error_clear(void) { last = DS_OK; }

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
