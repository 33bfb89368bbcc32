/* tensor/scope.c: scopes: lists of handles that are released together.
 *
 * Invariants:
 * - A scope holds one count of each handle in it. A handle may be in several
 *   scopes, and in one scope several times.
 * - The scopes of a thread form a stack, `current` at its top. The first one
 *   opens by itself and ends with the thread. Closing a scope closes those
 *   above it.
 * - Closed scopes are kept in a free list with their memory, as a training step
 *   opens about ten of them. Whoever keeps a pointer to a scope that others may
 *   close keeps its number too: numbers are not used again on a thread.
 * SPDX-License-Identifier: MIT */
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"
#include "tensor.h"

struct ds_scope {
    DSI_LIST(ds_tensor *)
    ds_scope *up;
    uint64_t number;
};

static _Thread_local ds_scope *current;
static _Thread_local ds_scope *unused;
static _Thread_local uint64_t opened; /* scopes since this thread began */

#define MANY 100000 /* tensors of a thread's first scope */

static void drop_all(ds_scope *s)
{
    const char *was = dsi_handle_reason("the end of its scope");
    while (s->n) dsi_unref(s->at[--s->n]);
    dsi_handle_reason_end(was);
}

static void end_of_thread(void)
{
    while (current) {
        ds_scope *s = current;
        drop_all(s); /* what dies here may look at current */
        current = s->up;
        dsi_list_free(s);
        dsi_free(s);
    }
    while (unused) {
        ds_scope *s = unused;
        unused = s->up;
        dsi_list_free(s);
        dsi_free(s);
    }
}

static ds_scope *push(void)
{
    ds_scope *s = unused;
    if (s)
        unused = s->up;
    else
        s = dsi_alloc(sizeof *s);
    s->up = current;
    s->number = ++opened;
    return current = s;
}

/* The bottom of this thread's stack, which no one closes. */
static void open_bottom(void)
{
    if (current) return;
    dsi_at_thread_end(DSI_END_SCOPES, end_of_thread);
    push();
}

ds_scope *ds_scope_open(void)
{
    open_bottom();
    return push();
}

static bool scope_is_open(const ds_scope *scope)
{
    const ds_scope *s = current;
    while (s && s != scope) s = s->up;
    return s && s->up;
}

static void pop(void)
{
    ds_scope *s = current;
    drop_all(s);
    current = s->up;
    s->up = unused;
    unused = s;
}

void ds_scope_close(ds_scope *scope)
{
    if (!scope) return;
    if (!scope_is_open(scope)) {
        dsi_fail(DS_ESTATE, "scope_close: this scope is not open on this thread");
        return;
    }
    while (current != scope) pop();
    pop();
}

uint64_t dsi_scope_number(const ds_scope *scope) { return scope->number; }

void dsi_scope_close_if(ds_scope *scope, uint64_t number)
{
    if (scope && scope_is_open(scope) && scope->number == number) ds_scope_close(scope);
}

/* A loop of one's own in which nobody opens a scope: memory grows with each
 * turn, and nothing else says why. */
static void warn_of_many(void)
{
    dsi_log(DSI_WARNING,
            "%d tensors were made outside of any scope, where they stay until this thread ends: a "
            "loop without a loader has ds_scope *s = ds_scope_open(); ... ds_scope_close(s);",
            MANY);
}

ds_tensor *dsi_scope_add(ds_tensor *x)
{
    if (!x) return NULL;
    open_bottom();
    dsi_list_add(current, x);
    if (current->n == MANY && !current->up) warn_of_many();
    return x;
}

ds_tensor *dsi_scope_return(ds_scope *scope, ds_tensor *x)
{
    ds_scope_close(scope);
    return dsi_scope_add(x);
}
