/* parallel/worker.c: a thread that does one job at a time for the thread that
 * made it.
 *
 * Invariants:
 * - `turn` says which of the two threads works; only that one changes it. What
 *   the job works on belongs to that thread.
 * - The thread that waits polls `turn` for SPIN_NS and then sleeps; after
 *   PATIENCE_NS it yields its processor at each poll, as the other thread may
 *   need it. A sleeper counts itself before it polls for the last time, and
 *   `turn` changes before that count is read: one of the two sees the other.
 * SPDX-License-Identifier: MIT */
#include "worker.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define SPIN_NS     100000
#define PATIENCE_NS 10000

enum { CALLERS, WORKERS, OVER };

struct dsi_worker {
    pthread_t thread;
    pid_t process; /* that has the thread: its forks have not */
    void (*fn)(void *arg);
    void *arg;
    _Atomic int turn, sleepers;
    pthread_mutex_t mutex; /* guards falling asleep */
    pthread_cond_t changed;
};

static void give_turn(dsi_worker *w, int to)
{
    atomic_store(&w->turn, to);
    if (!atomic_load(&w->sleepers)) return;
    pthread_mutex_lock(&w->mutex); /* whoever saw the old turn sleeps by now */
    pthread_mutex_unlock(&w->mutex);
    pthread_cond_broadcast(&w->changed);
}

static bool spin_while(dsi_worker *w, int turn)
{
    double begun = dsi_now(), spent = 0;
    while (spent < SPIN_NS * 1e-9) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&w->turn, memory_order_acquire) != turn) return true;
            dsi_relax();
        }
        spent = dsi_now() - begun;
        if (spent > PATIENCE_NS * 1e-9) sched_yield();
    }
    return false;
}

/* Returns whose turn it is when it is no longer that one's. */
static int wait_while(dsi_worker *w, int turn)
{
    if (!spin_while(w, turn)) {
        pthread_mutex_lock(&w->mutex);
        atomic_fetch_add(&w->sleepers, 1);
        while (atomic_load(&w->turn) == turn) pthread_cond_wait(&w->changed, &w->mutex);
        atomic_fetch_sub(&w->sleepers, 1);
        pthread_mutex_unlock(&w->mutex);
    }
    return atomic_load_explicit(&w->turn, memory_order_acquire);
}

static void *replica_worker_main(void *arg)
{
    dsi_worker *w = arg;
    while (wait_while(w, CALLERS) == WORKERS) {
        w->fn(w->arg);
        give_turn(w, CALLERS);
    }
    return NULL;
}

dsi_worker *dsi_worker_new(void)
{
    dsi_worker *w = dsi_alloc(sizeof *w);
    w->process = getpid();
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    sigset_t all, was; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    int failure = pthread_create(&w->thread, NULL, replica_worker_main, w);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (!failure) return w;
    dsi_fail(DS_ENOMEM, "no thread for a worker: %s", strerror(failure));
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    dsi_free(w);
    return NULL;
}

bool dsi_worker_is_here(const dsi_worker *w) { return w->process == getpid(); }

void dsi_worker_start(dsi_worker *w, void (*fn)(void *arg), void *arg)
{
    w->fn = fn;
    w->arg = arg;
    give_turn(w, WORKERS);
}

void dsi_worker_wait(dsi_worker *w) { wait_while(w, WORKERS); }

void dsi_worker_free(dsi_worker *w)
{
    if (!w) return;
    if (dsi_worker_is_here(w)) {
        give_turn(w, OVER);
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->mutex);
    }
    dsi_free(w);
}
