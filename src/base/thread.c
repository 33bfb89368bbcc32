/* base/thread.c: memory of a thread, and the functions to call when it ends.
 *
 * Invariants: a thread's list of functions and its memory belong to that
 * thread, and are freed by the key's destructor in the order of dsi_end. `key`
 * is made once and read by all.
 * SPDX-License-Identifier: MIT */
#include "thread.h"

#include "list.h"

#include <sched.h>
#include <signal.h>

typedef struct End {
    dsi_end when;
    void (*fn)(void);
} End;

typedef struct Ends {
    DSI_LIST(End)
    struct {
        DSI_LIST(void **)
    } slots; /* of dsi_thread_memory */
} Ends;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void run_ends(void *arg)
{
    Ends *ends = arg;
    for (int when = DSI_END_SCOPES; when <= DSI_END_MEMORY; when++)
        for (int i = ends->n - 1; i >= 0; i--)
            if (ends->at[i].when == (dsi_end)when) ends->at[i].fn();
    for (int i = 0; i < ends->slots.n; i++) {
        dsi_free(*ends->slots.at[i]);
        *ends->slots.at[i] = NULL;
    }
    dsi_list_free(&ends->slots);
    dsi_list_free(ends);
    dsi_free(ends);
}

static void make_key(void) { pthread_key_create(&key, run_ends); }

static Ends *ends_of_thread(void)
{
    pthread_once(&once, make_key);
    Ends *ends = pthread_getspecific(key);
    if (!ends) {
        ends = dsi_alloc(sizeof *ends);
        pthread_setspecific(key, ends);
    }
    return ends;
}

void dsi_at_thread_end(dsi_end when, void (*fn)(void))
{
    Ends *ends = ends_of_thread();
    for (int i = 0; i < ends->n; i++)
        if (ends->at[i].fn == fn) return;
    dsi_list_add(ends, (End){when, fn});
}

void *dsi_thread_memory(void **slot, size_t bytes)
{
    if (!*slot) {
        *slot = dsi_alloc(bytes);
        dsi_list_add(&ends_of_thread()->slots, slot);
    }
    return *slot;
}

int dsi_thread_create(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    static const int own[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV}; /* by an instruction */
    sigset_t others, was;
    sigfillset(&others);
    for (int i = 0; i < 5; i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_SETMASK, &others, &was);
    int error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return error;
}

int dsi_processors(void)
{
    cpu_set_t set; /* too small for more than CPU_SETSIZE of them */
    return sched_getaffinity(0, sizeof set, &set) ? CPU_SETSIZE : CPU_COUNT(&set);
}
