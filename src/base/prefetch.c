/* base/prefetch.c: numbered pieces of work, done ahead of their use by worker
 * threads.
 *
 * The consumer is the thread that must not wait: in the steady state it takes
 * no lock. It reads whether its piece is done (`ready` of the place) and raises
 * `limit`. Workers take the next number under the lock. Waking a sleeping
 * thread costs several microseconds, so the consumer does it only when half of
 * the places are free: once in places / 2 pieces, and long before they are used
 * up.
 *
 * Invariants: one thread, the consumer, calls begin, wait, release, stop and
 * free. Piece i uses place i % places, and is started only if i < limit <= end,
 * that is after piece i - places was released. ready[place] is i + 1 from the
 * end of piece i to its release, else 0. `next` is written under the lock;
 * busy, waiting and quit are read and written under it. Only dsi_prefetch_wait,
 * _stop and _free block.
 * SPDX-License-Identifier: MIT */
#include "prefetch.h"

#include "clock.h"
#include "mem.h"
#include "thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#define PATIENCE_NS 50000 /* how long the consumer offers its processor before it sleeps */

struct dsi_prefetch {
    void (*fill)(void *arg, int64_t i, int place);
    void *arg;
    int places, workers;
    pthread_t *thread;

    _Atomic int64_t limit;  /* pieces below it have a free place */
    _Atomic int64_t next;   /* the next piece to begin; written under the lock */
    _Atomic int sleepers;   /* workers that wait for a place */
    int64_t end;            /* pieces below it exist */
    _Atomic int64_t *ready; /* [places] 1 + the piece that is done there; 0: none */

    pthread_mutex_t lock;
    pthread_cond_t free_place; /* for workers */
    pthread_cond_t done;       /* for the consumer: a piece is done, or no worker is busy */
    int busy;                  /* workers inside of fill */
    bool waiting;              /* the consumer sleeps */
    bool quit;
};

/* ---- the workers' side -------------------------------------------------------------------------- */

/* The next piece with a free place, or -1 at the end. Called and returning with
 * the lock held. */
static int64_t prefetch_next_piece(dsi_prefetch *p)
{
    /* As in base/work.c: the count is raised before limit is read; the consumer
     * writes limit before it reads the count. */
    atomic_fetch_add(&p->sleepers, 1);
    while (!p->quit &&
           atomic_load_explicit(&p->next, memory_order_relaxed) >= atomic_load(&p->limit))
        pthread_cond_wait(&p->free_place, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    if (p->quit) return -1;
    return atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
}

static void *prefetch_worker_main(void *arg)
{
    dsi_prefetch *p = arg;
    pthread_mutex_lock(&p->lock);
    for (int64_t i; (i = prefetch_next_piece(p)) >= 0;) {
        int place = (int)(i % p->places);
        p->busy++;
        pthread_mutex_unlock(&p->lock);
        p->fill(p->arg, i, place);
        atomic_store_explicit(&p->ready[place], i + 1, memory_order_release);
        pthread_mutex_lock(&p->lock);
        p->busy--;
        if (p->waiting) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

dsi_prefetch *dsi_prefetch_new(int workers, int places,
                               void (*fill)(void *arg, int64_t i, int place), void *arg)
{
    dsi_prefetch *p = dsi_alloc(sizeof *p);
    *p = (dsi_prefetch){.fill = fill, .arg = arg, .places = places};
    p->thread = dsi_alloc((size_t)workers * sizeof *p->thread);
    p->ready = dsi_alloc((size_t)places * sizeof *p->ready);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->free_place, NULL);
    pthread_cond_init(&p->done, NULL);

    /* fewer than asked for will do */
    while (p->workers < workers &&
           !dsi_thread_create(&p->thread[p->workers], prefetch_worker_main, p))
        p->workers++;
    if (p->workers) return p;
    dsi_prefetch_free(p);
    return NULL;
}

/* ---- the consumer's side ------------------------------------------------------------------------ */

void dsi_prefetch_begin(dsi_prefetch *p, int64_t first, int64_t end)
{
    pthread_mutex_lock(&p->lock);
    p->end = end;
    atomic_store_explicit(&p->next, first, memory_order_relaxed);
    atomic_store(&p->limit, first + p->places < end ? first + p->places : end);
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->free_place);
}

bool dsi_prefetch_is_done(const dsi_prefetch *p, int64_t i)
{
    return atomic_load_explicit(&p->ready[i % p->places], memory_order_acquire) == i + 1;
}

void dsi_prefetch_wait(dsi_prefetch *p, int64_t i)
{
    if (dsi_prefetch_is_done(p, i)) return;
    for (int64_t until = dsi_now_ns() + PATIENCE_NS; dsi_now_ns() < until;) {
        sched_yield();
        if (dsi_prefetch_is_done(p, i)) return;
    }
    pthread_mutex_lock(&p->lock);
    p->waiting = true;
    while (!dsi_prefetch_is_done(p, i)) pthread_cond_wait(&p->done, &p->lock);
    p->waiting = false;
    pthread_mutex_unlock(&p->lock);
}

void dsi_prefetch_release(dsi_prefetch *p, int64_t i)
{
    atomic_store_explicit(&p->ready[i % p->places], 0, memory_order_relaxed);
    int64_t limit = i + 1 + p->places;
    if (limit > p->end) return; /* no piece is left for this place */
    atomic_store(&p->limit, limit);
    if (!atomic_load(&p->sleepers)) return;
    int64_t open = limit - atomic_load_explicit(&p->next, memory_order_relaxed);
    if (2 * open < p->places && limit < p->end)
        return;                   /* at the end no later call would wake them */
    pthread_mutex_lock(&p->lock); /* whoever saw the old limit is waiting by now */
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->free_place);
}

void dsi_prefetch_stop(dsi_prefetch *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->limit, INT64_MIN);
    p->waiting = true;
    while (p->busy) pthread_cond_wait(&p->done, &p->lock);
    p->waiting = false;
    pthread_mutex_unlock(&p->lock);
    for (int k = 0; k < p->places; k++)
        atomic_store_explicit(&p->ready[k], 0, memory_order_relaxed);
}

void dsi_prefetch_free(dsi_prefetch *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->free_place);
    pthread_mutex_unlock(&p->lock);
    for (int k = 0; k < p->workers; k++) pthread_join(p->thread[k], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->free_place);
    pthread_mutex_destroy(&p->lock);
    dsi_free(p->ready);
    dsi_free(p->thread);
    dsi_free(p);
}
