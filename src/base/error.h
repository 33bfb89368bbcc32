/* base/error.h: the thread's last failure, and the three ways to report one.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_BASE_ERROR_H
#define DSI_BASE_ERROR_H

#include <deepspeed/types.h>

/* Sets the message and returns status: for functions that return ds_status. */
ds_status dsi_fail(ds_status status, const char *format, ...) DS_PRINTF(2, 3);

/* Puts "front: " in front of a failure's message, unless it is there; returns status. */
ds_status dsi_fail_in(const char *front, ds_status status);

/* Sets the message (DS_EINVAL) and returns NULL: for functions that make things. */
void *dsi_refuse(const char *format, ...) DS_PRINTF(1, 2);

/* An operand is NULL: keeps the message that there is, or says that `what` was given NULL. */
void *dsi_null_operand(const char *what);
/* The same for functions that return ds_status: the status of that message. */
ds_status dsi_null_argument(const char *what);

/* What runs now, for the front of each message ("net.fc1"); a stack frame, so that entering costs
 * nothing: the text is written only when something fails. */
typedef struct dsi_error_context {
    void (*write)(const void *what, char *text, size_t room);
    const void *what;
} dsi_error_context;

const dsi_error_context *
dsi_error_context_enter(const dsi_error_context *here); /* returns what it was */
void dsi_error_context_leave(const dsi_error_context *was);
/* The path of what runs now, "net.fc1", or "". */
void dsi_error_context_path(char *text, size_t room);

/* A broken invariant of our own: ends the program with file and line. Never for what a user can cause. */
#define DSI_ASSERT(x) ((x) ? (void)0 : dsi_broken(#x, __FILE__, __LINE__))
void dsi_broken(const char *what, const char *file, int line) __attribute__((__noreturn__));

#endif
