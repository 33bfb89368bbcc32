/* parallel/worker.c: a thread that does one job at a time for the thread that
 * made it.
 *
 * Invariants:
 * - `owner` is the thread that works; only that thread changes it. The memory
 *   that the job uses belongs to it.
 * - The thread that waits polls `owner` for SPIN_NS and then sleeps; after
 *   PATIENCE_NS it yields its processor at each poll, as the other thread may
 *   need it. A sleeper counts itself before it polls for the last time, and
 *   `owner` changes before that count is read: one of the two sees the other.
 * SPDX-License-Identifier: MIT */
#include "worker.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define SPIN_NS     100000
#define PATIENCE_NS 10000

enum { CALLER, WORKER, STOPPED };

struct dsi_worker {
    pthread_t thread;
    pid_t process; /* the process of the thread: a fork has none */
    void (*fn)(void *arg);
    void *arg;
    _Atomic int owner, sleepers;
    pthread_mutex_t mutex; /* guards falling asleep */
    pthread_cond_t changed;
};

/* Hands the job's memory to the other thread, and wakes it if it sleeps. */
static void worker_set_owner(dsi_worker *w, int to)
{
    atomic_store(&w->owner, to);
    if (!atomic_load(&w->sleepers)) return;
    pthread_mutex_lock(&w->mutex); /* a waiter that saw the old owner is asleep now */
    pthread_mutex_unlock(&w->mutex);
    pthread_cond_broadcast(&w->changed);
}

/* True if the owner has changed within SPIN_NS. */
static bool worker_spin_while(dsi_worker *w, int owner)
{
    double begun = dsi_now(), spent = 0;
    while (spent < SPIN_NS * 1e-9) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&w->owner, memory_order_acquire) != owner) return true;
            dsi_relax();
        }
        spent = dsi_now() - begun;
        if (spent > PATIENCE_NS * 1e-9) sched_yield();
    }
    return false;
}

/* Blocks while `owner` is the owner; returns the new one. */
static int worker_wait_while(dsi_worker *w, int owner)
{
    if (!worker_spin_while(w, owner)) {
        pthread_mutex_lock(&w->mutex);
        atomic_fetch_add(&w->sleepers, 1);
        while (atomic_load(&w->owner) == owner) pthread_cond_wait(&w->changed, &w->mutex);
        atomic_fetch_sub(&w->sleepers, 1);
        pthread_mutex_unlock(&w->mutex);
    }
    return atomic_load_explicit(&w->owner, memory_order_acquire);
}

static void *replica_worker_main(void *arg)
{
    dsi_worker *w = arg;
    while (worker_wait_while(w, CALLER) == WORKER) {
        w->fn(w->arg);
        worker_set_owner(w, CALLER);
    }
    return NULL;
}

dsi_worker *dsi_worker_new(void)
{
    dsi_worker *w = dsi_alloc(sizeof *w);
    w->process = getpid();
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    int failure = dsi_thread_create(&w->thread, replica_worker_main, w);
    if (!failure) return w;
    dsi_fail(DS_ENOMEM, "no thread for a worker: %s", strerror(failure));
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    dsi_free(w);
    return NULL;
}

bool dsi_worker_has_thread(const dsi_worker *w) { return w->process == getpid(); }

void dsi_worker_start(dsi_worker *w, void (*fn)(void *arg), void *arg)
{
    w->fn = fn;
    w->arg = arg;
    worker_set_owner(w, WORKER);
}

void dsi_worker_wait(dsi_worker *w) { worker_wait_while(w, WORKER); }

void dsi_worker_free(dsi_worker *w)
{
    if (!w) return;
    if (dsi_worker_has_thread(w)) {
        worker_set_owner(w, STOPPED);
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->mutex);
    }
    dsi_free(w);
}
