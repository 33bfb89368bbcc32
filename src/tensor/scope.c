/* tensor/scope.c: scopes: lists of handles that are released together.
 *
 * Invariants:
 * - A scope holds one count of each handle in it. A handle may be in several
 *   scopes, and in one scope several times.
 * - The scopes of a thread form a stack, `current` at its top. The first one
 *   opens by itself and ends with the thread. Closing a scope closes those
 *   above it.
 * - Closed scopes are kept in a free list with their memory, as a training step
 *   opens about ten of them. A holder of a pointer to a scope that others may
 *   close keeps its number too: numbers are not used again on a thread.
 * SPDX-License-Identifier: MIT */
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"
#include "tensor.h"

struct ds_scope {
    DSI_LIST(ds_tensor *)
    ds_scope *outer;
    uint64_t number;
};

static const dsi_handle_kind scope_kind = {
    "scope", .advice = "closing a scope closes those that were opened in it",
    .maker = "scope_open"};

static _Thread_local ds_scope *current;
static _Thread_local ds_scope *unused;
static _Thread_local uint64_t opened; /* scopes since this thread began */

#define LEAK_WARNING 100000 /* tensors of a thread's first scope */

static void scope_release_handles(ds_scope *s)
{
    const char *was = dsi_handle_reason("the end of its scope");
    while (s->n) dsi_unref(s->at[--s->n]);
    dsi_handle_reason_end(was);
}

/* Removes the innermost scope of a stack and frees it. */
static void scope_free(ds_scope **stack)
{
    ds_scope *s = *stack;
    scope_release_handles(s); /* destructors that run here may use `current` */
    *stack = s->outer;
    dsi_list_free(s);
    if (!dsi_handle_freed_by(s, "ds_scope_close")) dsi_free(s);
}

static void scopes_free(void)
{
    while (current) scope_free(&current);
    while (unused) scope_free(&unused);
}

/* Opens a scope above the current one, from the free list if possible. */
static ds_scope *scope_push(void)
{
    ds_scope *s = unused;
    if (s)
        unused = s->outer;
    else
        s = dsi_alloc(sizeof *s);
    dsi_handle_made(s, &scope_kind);
    s->outer = current;
    s->number = ++opened;
    return current = s;
}

/* The bottom of this thread's stack, which no one closes. */
static void scope_open_bottom(void)
{
    if (current) return;
    dsi_at_thread_end(DSI_END_SCOPES, scopes_free);
    scope_push();
}

ds_scope *ds_scope_open(void)
{
    scope_open_bottom();
    return scope_push();
}

/* The bottom of the stack does not count: only the thread's end closes it. */
static bool scope_is_open(const ds_scope *scope)
{
    const ds_scope *s = current;
    while (s && s != scope) s = s->outer;
    return s && s->outer;
}

/* Closes the innermost scope; its memory is kept in the free list, or by the
 * registry of handles. */
static void scope_pop(void)
{
    if (dsi_handles_checked()) {
        scope_free(&current);
        return;
    }
    ds_scope *s = current;
    scope_release_handles(s);
    current = s->outer;
    s->outer = unused;
    unused = s;
}

void ds_scope_close(ds_scope *scope)
{
    if (!dsi_live(scope, "scope_close")) return;
    if (!scope_is_open(scope)) {
        dsi_fail(DS_ESTATE, "scope_close: this scope is not open on this thread");
        return;
    }
    while (current != scope) scope_pop();
    scope_pop();
}

uint64_t dsi_scope_number(const ds_scope *scope) { return scope->number; }

void dsi_scope_close_if(ds_scope *scope, uint64_t number)
{
    if (scope && scope_is_open(scope) && scope->number == number) ds_scope_close(scope);
}

/* A training loop that opens no scope keeps the tensors of every iteration
 * until the thread ends. Nothing else would say why memory grows. */
static void scope_warn_leak(void)
{
    dsi_log(DSI_WARNING,
            "%d tensors were made outside of any scope, where they stay until this thread ends: a "
            "loop without a loader has ds_scope *s = ds_scope_open(); ... ds_scope_close(s);",
            LEAK_WARNING);
}

ds_tensor *dsi_scope_add(ds_tensor *x)
{
    if (!x) return NULL;
    scope_open_bottom();
    dsi_list_add(current, x);
    if (current->n == LEAK_WARNING && !current->outer) scope_warn_leak();
    return x;
}

ds_tensor *dsi_scope_return(ds_scope *scope, ds_tensor *x)
{
    ds_scope_close(scope);
    return dsi_scope_add(x);
}
