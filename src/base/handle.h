/* base/handle.h: finds misuse of handles: use after free, double free.
 *
 * Note [Handle checks]
 * In a debug build, and with DS_CHECK_HANDLES=1 in any build, each public
 * object (tensor, module, scope, communicator, engine, ...) is entered in a
 * registry when it is made. When it is freed its entry stays, and its memory
 * is kept from reuse for a while (quarantine). A public function that is given
 * a freed object then fails with one message, which names the call, what freed
 * the object, and where the object was made.
 *
 * Without the checks a public function pays for one load and one branch.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A kind of object; one const struct in the file that makes the objects. */
typedef struct dsi_handle_kind {
    const char *name; /* "tensor" */
    /* Writes what messages say of p, such as its shape; called when p is freed,
     * while all of it is still there. NULL: nothing. */
    void (*describe)(const void *p, char *text, size_t room);
    const char *advice; /* ends the message; NULL: nothing */
    /* The one function that makes this kind, also for other functions; NULL:
     * messages name the public function that ran. */
    const char *maker;
} dsi_handle_kind;

enum { DSI_HANDLES_UNKNOWN, DSI_HANDLES_UNCHECKED, DSI_HANDLES_CHECKED };
extern int dsi_handles_state __attribute__((__visibility__("hidden"))); /* of the process; atomic */
bool dsi_handles_read_env(void); /* reads DS_CHECK_HANDLES once; true if checks are on */

static inline bool dsi_handles_checked(void)
{
    int state = __atomic_load_n(&dsi_handles_state, __ATOMIC_RELAXED);
    return __builtin_expect(state != DSI_HANDLES_UNCHECKED, 0) && dsi_handles_read_env();
}

/* The work behind the inline functions below; only called when checks are on. */
bool dsi_handle_check(const void *p, const char *call);
void dsi_handle_enter(const void *p, const dsi_handle_kind *kind);
void dsi_handle_quarantine(void *p);
const char *dsi_handle_set_reason(const char *reason);
void dsi_handle_set_call(const char *call);
void dsi_free(void *p); /* base/mem.h */

/* At the head of a public function: true if p may be used. False for NULL,
 * without a message, and for a freed object, with the message (DS_ESTATE).
 * call: the function's name without ds_, a string that is never freed. */
static inline bool dsi_live(const void *p, const char *call)
{
    return p && (!dsi_handles_checked() || dsi_handle_check(p, call));
}

/* dsi_live for several objects: dsi_live_all("matmul", a, b). */
#define dsi_live_all(call, ...) \
    dsi_live_n(call, (const void *const[]){__VA_ARGS__}, \
               (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *)))
static inline bool dsi_live_n(const char *call, const void *const *p, int n)
{
    for (int i = 0; i < n; i++)
        if (!dsi_live(p[i], call)) return false;
    return true;
}

/* Notes that the public function `call` begins, for objects it makes. dsi_live
 * does the same; this is for functions that take no object. */
static inline void dsi_handle_call(const char *call)
{
    if (dsi_handles_checked()) dsi_handle_set_call(call);
}

/* p is made. */
static inline void dsi_handle_made(const void *p, const dsi_handle_kind *kind)
{
    if (dsi_handles_checked()) dsi_handle_enter(p, kind);
}

/* p ends; dsi_alloc or malloc made it. Called before what p points to is freed.
 * True if the checks keep p's memory and free it later; false if the caller is
 * to free or reuse it. */
static inline bool dsi_handle_freed(void *p)
{
    if (!dsi_handles_checked()) return false;
    dsi_handle_quarantine(p);
    return true;
}

/* Sets the reason for which objects are freed from now on, for messages:
 * "ds_drop", "the end of its scope". Returns the one before; the outermost one
 * counts:
 *
 *     const char *was = dsi_handle_reason("ds_engine_free");
 *     ...
 *     dsi_handle_reason_end(was);
 */
static inline const char *dsi_handle_reason(const char *reason)
{
    return dsi_handles_checked() ? dsi_handle_set_reason(reason) : NULL;
}

static inline void dsi_handle_reason_end(const char *was)
{
    if (dsi_handles_checked() && !was) dsi_handle_set_reason(NULL);
}

/* dsi_handle_freed in the public function `by` that frees p. */
static inline bool dsi_handle_freed_by(void *p, const char *by)
{
    const char *was = dsi_handle_reason(by);
    bool quarantined = dsi_handle_freed(p);
    dsi_handle_reason_end(was);
    return quarantined;
}
