/* base/error.h: the thread's failures since ds_error_clear, and the ways to
 * report one.
 *
 * Note [Failures] A user reads the first failure: those that follow are mostly
 * its consequences, and are only counted. Code of the library that has just
 * seen a call fail reads the latest one (dsi_error_latest):
 *
 *     more context    if (f(x) != DS_OK) return dsi_fail(DS_EIO, "load: %s", dsi_error_latest());
 *     a way around    int before = dsi_error_count();
 *                     if (f(x) != DS_OK) dsi_error_forget(before), g(x);
 *
 * A message that quotes the latest one, or the first 200 bytes of it, replaces
 * it and is not counted.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <deepspeed/types.h>

#include <stddef.h>

/* Reports a failure and returns status: for functions that return ds_status. */
DSI_SHARED ds_status dsi_fail(ds_status status, const char *format, ...) DS_PRINTF(2, 3);

/* Puts "front: " in front of the latest failure's message, unless it is there;
 * returns status. */
ds_status dsi_fail_in(const char *front, ds_status status);

/* Reports a failure (DS_EINVAL) and returns NULL: for constructors. */
DSI_SHARED void *dsi_refuse(const char *format, ...) DS_PRINTF(1, 2);

/* The same with another status. */
#define dsi_refuse_with(status, ...) (dsi_fail(status, __VA_ARGS__), NULL)

/* The same for checks: false. dsi_wrong: a file is not what it should be
 * (DS_EFORMAT). */
#define dsi_invalid(...) (dsi_refuse(__VA_ARGS__), false)
#define dsi_wrong(...)   (dsi_fail(DS_EFORMAT, __VA_ARGS__), false)

/* An operand of `what` is NULL: reports that, unless something has failed
 * before, of which the NULL is a consequence. Returns NULL; for functions that
 * return ds_status, the status of the first failure. */
void *dsi_null_operand(const char *what);
static inline ds_status dsi_null_argument(const char *what)
{
    dsi_null_operand(what);
    ds_status status = ds_error_status();
    return status == DS_OK ? DS_EINVAL : status; /* never DS_OK, as the analyzer sees here */
}

/* The latest failure's message, without a count; NULL if nothing has failed.
 * Valid until the next failure. */
const char *dsi_error_latest(void);

/* All ranks have reported the latest failure, with this message
 * (ds_error_is_collective). */
void dsi_error_set_collective(void);

/* How many failures there were since ds_error_clear; and forgets all but the
 * first `count` of them, for a caller that has another way. */
int dsi_error_count(void);
void dsi_error_forget(int count);

/* The module that runs now, for the front of each message ("net.fc1"). It is in
 * a stack frame, so that entering costs nothing: the text is written only when
 * something fails. */
typedef struct dsi_error_context {
    void (*write)(const void *what, char *text, size_t room);
    const void *what;
} dsi_error_context;

const dsi_error_context *
dsi_error_context_enter(const dsi_error_context *here); /* returns what it was */
void dsi_error_context_leave(const dsi_error_context *was);
/* The path of what runs now, "net.fc1", or "". */
void dsi_error_context_path(char *text, size_t room);

/* A broken invariant of our own: ends the program with file and line. Never for
 * what a user can cause. */
#define DSI_ASSERT(x) ((x) ? (void)0 : dsi_broken(#x, __FILE__, __LINE__))
void dsi_broken(const char *what, const char *file, int line) __attribute__((__noreturn__));
