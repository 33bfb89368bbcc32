/* base/handle.c: the registry of live and freed objects (Note [Handle checks]).
 *
 * Invariants:
 * - Every function here but dsi_handles_read_env takes `lock`; none blocks
 *   otherwise. They run only when checks are on.
 * - `entries` is a tree (tsearch) keyed by address. It holds each live object,
 *   and each freed one whose memory is still in quarantine. The registry owns
 *   the memory of the latter, so no new object can have the same address.
 * - `oldest` to `newest` is the queue of freed entries, at most QUARANTINE.
 * SPDX-License-Identifier: MIT */
#include "handle.h"

#include "env.h"
#include "error.h"
#include "mem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#if __has_include(<execinfo.h>)
#include <execinfo.h>
#define HAVE_BACKTRACE 1
#else
#define HAVE_BACKTRACE 0
#endif

#define FRAMES     8     /* return addresses kept of each object's maker */
#define QUARANTINE 65536 /* freed objects whose memory is not reused yet */

typedef struct Entry {
    const void *p; /* the key; first, as tree_compare reads it */
    const dsi_handle_kind *kind;
    const char *made_by, *freed_by; /* public functions; freed_by NULL: alive */
    char module[64];                /* path of the module that ran, or "" */
    char text[96];                  /* what describe wrote when p was freed */
    void *frame[FRAMES];
    int frames;
    struct Entry *next; /* in the queue, once freed */
} Entry;

int dsi_handles_state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *entries;
static Entry *oldest, *newest;
static int quarantined;
static _Thread_local const char *current_call, *current_reason;

bool dsi_handles_read_env(void)
{
    int state = __atomic_load_n(&dsi_handles_state, __ATOMIC_ACQUIRE);
    if (state != DSI_HANDLES_UNKNOWN) return state == DSI_HANDLES_CHECKED;
#ifdef NDEBUG
    double on = 0;
#else
    double on = 1;
#endif
    const dsi_env v = {"DS_CHECK_HANDLES", "1 to find handles used after their end, or 0",
                       .most = 1, .whole = true};
    on = dsi_env_number_or(&v, on);
    state = on > 0 ? DSI_HANDLES_CHECKED : DSI_HANDLES_UNCHECKED;
    __atomic_store_n(&dsi_handles_state, state, __ATOMIC_RELEASE);
    return state == DSI_HANDLES_CHECKED;
}

static int tree_compare(const void *a, const void *b)
{
    const char *x = *(void *const *)a, *y = *(void *const *)b;
    return x < y ? -1 : x > y;
}

static Entry *entry_find(const void *p)
{
    Entry **at = tfind(&p, &entries, tree_compare);
    return at ? *at : NULL;
}

void dsi_handle_set_call(const char *call) { current_call = call; }

const char *dsi_handle_set_reason(const char *reason)
{
    const char *was = current_reason;
    if (!was || !reason) current_reason = reason;
    return was;
}

void dsi_handle_enter(const void *p, const dsi_handle_kind *kind)
{
    Entry *e = dsi_alloc(sizeof *e);
    *e = (Entry){.p = p, .kind = kind, .made_by = kind->maker ? kind->maker : current_call};
    dsi_error_context_path(e->module, sizeof e->module);
#if HAVE_BACKTRACE
    e->frames = backtrace(e->frame, FRAMES);
#endif
    pthread_mutex_lock(&lock);
    Entry **at = tsearch(e, &entries, tree_compare);
    if (!at || *at != e) dsi_free(e); /* no memory; or p was not freed through here */
    pthread_mutex_unlock(&lock);
}

/* Frees the oldest object of the quarantine. Under the lock. */
static void quarantine_pop(void)
{
    Entry *e = oldest;
    oldest = e->next;
    if (!oldest) newest = NULL;
    quarantined--;
    tdelete(e, &entries, tree_compare);
    dsi_free((void *)e->p);
    dsi_free(e);
}

void dsi_handle_quarantine(void *p)
{
    pthread_mutex_lock(&lock);
    Entry *e = entry_find(p);
    if (e && !e->freed_by) { /* without an entry there was no memory for it: p is never freed */
        if (e->kind->describe) e->kind->describe(p, e->text, sizeof e->text);
        e->freed_by = current_reason ? current_reason : "the end of its last holder";
        if (newest)
            newest->next = e;
        else
            oldest = e;
        newest = e;
        if (++quarantined > QUARANTINE) quarantine_pop();
    }
    pthread_mutex_unlock(&lock);
}

/* Writes the first frame outside this library, or, in a program that contains
 * the library, the frames that follow the registry's own. */
static void frames_text(const Entry *e, char *text, size_t room)
{
    Dl_info here, there;
    size_t n = 0;
    text[0] = 0;
    if (!dladdr(&dsi_handles_state, &here)) return;
    bool inside = true; /* all frames so far belong to the library's file */
    for (int pass = 0; pass < 2 && inside; pass++)
        for (int i = 1; i < e->frames && n + 1 < room; i++) {
            if (!dladdr(e->frame[i], &there) || !there.dli_fname) continue;
            if (pass == 0 && there.dli_fbase == here.dli_fbase) continue;
            inside = false;
            char *base = there.dli_fbase, *at = e->frame[i];
            int more = there.dli_sname
                           ? snprintf(text + n, room - n, "%s%s (%s)", n ? ", " : ", at ",
                                      there.dli_sname, there.dli_fname)
                           : snprintf(text + n, room - n, "%s%s+0x%zx", n ? ", " : ", at ",
                                      there.dli_fname, (size_t)(at - base));
            n += more > 0 ? (size_t)more : 0;
            if (pass == 0 || i >= 5) return;
        }
}

bool dsi_handle_check(const void *p, const char *call)
{
    current_call = call;
    pthread_mutex_lock(&lock);
    const Entry *e = entry_find(p);
    bool live = !e || !e->freed_by;
    if (!live) {
        char where[512];
        frames_text(e, where, sizeof where);
        dsi_fail(DS_ESTATE, "%s: this %s%s%s has ended: freed by %s; made by %s%s%s%s%s%s", call,
                 e->kind->name, e->text[0] ? " " : "", e->text, e->freed_by,
                 e->made_by ? e->made_by : "a call that has no name", e->module[0] ? " in " : "",
                 e->module, where, e->kind->advice ? "; " : "",
                 e->kind->advice ? e->kind->advice : "");
    }
    pthread_mutex_unlock(&lock);
    return live;
}
