/* comm/thread.c: N ranks as N threads of one process.
 *
 * A collective is a slot of its group. Each rank puts its request into it. The
 * last one opens it, and its work, cut into pieces (thread_work.c), is done by
 * whichever thread takes a piece: the ranks that wait, and, if there are more
 * processors than ranks, a helper thread, so that a reduction runs during
 * backward. The last rank does a collective of one piece itself, at once. A
 * piece's result does not depend on the thread that computes it.
 *
 *     start    puts a request into slot number k of the group; never blocks
 *     wait     blocks until the slot is open, computes pieces, then blocks until
 *              the pieces that other threads took are done
 *
 * send and recv use a group of two, made for each pair of ranks when needed.
 *
 * Invariants:
 *  - All ranks of a group start collectives in the same order; slot k is the k-th
 *    of each rank. They may wait in any order: a rank that waits takes pieces of
 *    its own slot only, and each piece that was taken ends without waiting.
 *  - The mutex of rank_threads guards all fields that are not atomic, of
 *    rank_threads, groups and slots. Pieces are computed without it. Functions
 *    that need it held say so.
 *  - A slot is freed when all ranks have left it (`left`) and the helper does not
 *    use it (`users`). A group lives as long as `refs`: its ranks, and its slots
 *    that the helper has.
 *  - A request and its operands belong to the rank that started it, and are
 *    touched by other threads only until its wait returns, whatever it returns.
 *  - The first failure is stored in rank_threads. From then on start fails and no
 *    slot opens; one that was open is still finished, as a rank may be in it.
 *  - wait spins for SPIN_NS, then sleeps, at most DS_TIMEOUT seconds (for a disk
 *    DS_SAVE_TIMEOUT) until the slot opens. A sleeper adds itself to `sleepers` before it checks its
 *    condition again; a thread that changes something reads `sleepers` after the
 *    change. So one of the two sees the other, and no wake-up is lost.
 * SPDX-License-Identifier: MIT */
#include "thread.h"
#include "thread_slots.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/trace.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SPIN_NS        50000
#define YIELD_AFTER_NS 2000 /* how long to spin before offering the processor at each turn */

/* ---- slots ----------------------------------------------------------------------------------------- */

static void rank_threads_wake(rank_threads *t)
{
    if (!atomic_load(&t->sleepers)) return;
    pthread_mutex_lock(&t->mutex); /* whoever saw nothing sleeps by now */
    pthread_mutex_unlock(&t->mutex);
    pthread_cond_broadcast(&t->changed);
}

/* All pieces are done. */
static void slot_end(slot *m)
{
    if (m->squares) dsi_request_add_squares(m->of, m->pieces, m->squares);
    for (int r = 0; r < m->group->size; r++) dsi_request_done(m->of[r]);
    atomic_store(&m->ended, true);
    rank_threads_wake(m->group->threads);
}

/* Takes pieces until there are none. The caller has not left m, or is one of
 * its users. */
static void slot_work(slot *m)
{
    int64_t piece, pieces = m->pieces;
    while ((piece = atomic_fetch_add(&m->next, 1)) < pieces) {
        dsi_run_piece(m->of, m->group->size, piece, m->squares ? &m->squares[piece] : NULL);
        if (atomic_fetch_add(&m->done, 1) + 1 == pieces) slot_end(m);
    }
}

/* ---- failure: with the mutex held ---------------------------------------------------------------------- */

static void rank_threads_fail(rank_threads *t, ds_status status, const char *why)
{
    if (t->failed) return;
    t->status = status;
    snprintf(t->why, sizeof t->why, "%s", why);
    atomic_store(&t->failed, true);
    pthread_cond_broadcast(&t->changed);
}

/* The failure of a collective after a rank has failed. */
static ds_status rank_threads_failure(const rank_threads *t, const dsi_request *r)
{
    return dsi_fail(DS_ECOMM, "%s: %s", dsi_collective_name(r->what), t->why);
}

/* How many have not come; with ended: only those that never will. *ranks, if
 * not NULL: "s 1, 3". */
static int slot_missing_ranks(const slot *m, bool ended, dsi_text *ranks)
{
    const comm_group *g = m->group;
    int n = 0;
    dsi_text list = {0};
    for (int r = 0; r < g->size; r++) {
        if (m->of[r] || (ended && !g->threads->ended_ranks[g->world_rank[r]])) continue;
        if (ranks) dsi_text_add(&list, "%s%d", n ? ", " : " ", g->comm_rank[r]);
        n++;
    }
    if (ranks) dsi_text_add(ranks, "%s%s", n > 1 ? "s" : "", list.s);
    dsi_text_free(&list);
    return n;
}

/* m will never open: fails with the request of this rank. */
static void slot_fail(slot *m, const dsi_request *r, double waited)
{
    dsi_text ranks = {0}, why;
    bool ended = slot_missing_ranks(m, true, NULL) > 0;
    slot_missing_ranks(m, ended, &ranks);
    const char *text = dsi_request_text(r);
    if (ended)
        why = dsi_text_of("rank %d calls %s, but rank%s ended without it", r->comm->rank, text,
                          ranks.s);
    else if (r->comm->disk)
        why = dsi_comm_disk_text(r->comm, ranks.s, waited);
    else
        why = dsi_text_of("rank %d calls %s, and rank%s did not come within %.3g s (DS_TIMEOUT)",
                          r->comm->rank, text, ranks.s, waited);
    if (!ended) dsi_log(DSI_ERROR, "%s", why.s); /* for the thread that is stuck may never return */
    rank_threads_fail(m->group->threads, DS_ECOMM, why.s);
    dsi_text_free(&ranks);
    dsi_text_free(&why);
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

typedef bool condition(slot *m);

static bool slot_is_open(slot *m) { return atomic_load_explicit(&m->open, memory_order_acquire); }

static bool slot_has_ended(slot *m)
{
    return atomic_load_explicit(&m->ended, memory_order_acquire);
}

static bool slot_spin(slot *m, condition *met)
{
    rank_threads *t = m->group->threads;
    double begun = dsi_now(), spent = 0;
    while (spent < SPIN_NS * 1e-9) {
        for (int i = 0; i < 32; i++) {
            if (met(m)) return true;
            dsi_relax();
        }
        if (atomic_load_explicit(&t->failed, memory_order_relaxed)) return met(m);
        spent = dsi_now() - begun;
        if (t->oversubscribed || spent > YIELD_AFTER_NS * 1e-9) sched_yield();
    }
    return false;
}

static struct timespec deadline_after(double seconds)
{
    double until = dsi_now() + seconds;
    return (struct timespec){(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
}

/* Until m is open; false: it never will be. */
static bool slot_sleep_until_open(slot *m, const dsi_request *r)
{
    rank_threads *t = m->group->threads;
    double limit = dsi_comm_time_limit(r->comm);
    struct timespec until = deadline_after(limit);
    bool late = false;
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->sleepers, 1);
    while (!slot_is_open(m) && !t->failed) {
        if (late || slot_missing_ranks(m, true, NULL))
            slot_fail(m, r, limit);
        else
            late = pthread_cond_timedwait(&t->changed, &t->mutex, &until) == ETIMEDOUT;
    }
    atomic_fetch_sub(&t->sleepers, 1);
    bool opened = slot_is_open(m);
    pthread_mutex_unlock(&t->mutex);
    return opened;
}

static void slot_sleep_until_ended(slot *m)
{
    rank_threads *t = m->group->threads;
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->sleepers, 1);
    while (!slot_has_ended(m)) pthread_cond_wait(&t->changed, &t->mutex);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->mutex);
}

/* With the mutex held: where r's rank meets the others, and the number that it
 * has there. */
static comm_group *group_of(const dsi_request *r, int *place)
{
    comm_group *g = r->comm->own;
    int ends[2] = {r->comm->rank, r->root};
    *place = r->comm->rank;
    if (!dsi_is_message(r)) return g;
    *place = r->what == DSI_RECV;
    if (*place) ends[0] = r->root, ends[1] = r->comm->rank;
    if (!g->pair) g->pair = dsi_alloc((size_t)g->size * (size_t)g->size * sizeof *g->pair);
    comm_group **pair = &g->pair[ends[0] * g->size + ends[1]];
    if (*pair) return *pair;
    *pair = dsi_comm_group_new(g->threads, 2);
    for (int k = 0; k < 2; k++)
        (*pair)->comm_rank[k] = ends[k], (*pair)->world_rank[k] = g->world_rank[ends[k]];
    return *pair;
}

/* ---- the helper --------------------------------------------------------------------------------------- */

static void *rank_threads_helper_main(void *arg)
{
    rank_threads *t = arg;
    pthread_mutex_lock(&t->mutex);
    while (t->first_work || !t->quit) {
        slot *m = t->first_work;
        if (!m) {
            pthread_cond_wait(&t->work, &t->mutex);
            continue;
        }
        comm_group *g = m->group;
        t->first_work = m->next_work;
        if (!m->next_work) t->last_work = NULL;
        pthread_mutex_unlock(&t->mutex);
        slot_work(m);
        pthread_mutex_lock(&t->mutex);
        m->users--;
        dsi_slot_release(m);
        if (!--g->refs) dsi_comm_group_free(g);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

/* With the mutex held: m is open, and the rank that opened it does not wait
 * for it. */
static void rank_threads_give_helper(rank_threads *t, slot *m)
{
    if (!t->helper_wanted) return;
    if (!t->helper_runs)
        t->helper_runs = !pthread_create(&t->helper, NULL, rank_threads_helper_main, t);
    if (!t->helper_runs) return; /* the ranks will do it */
    m->users++;
    m->group->refs++; /* the ranks may all be gone before the helper comes to it */
    *(t->last_work ? &t->last_work->next_work : &t->first_work) = m;
    t->last_work = m;
    pthread_cond_signal(&t->work);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

/* With the mutex held: the last request has come. */
static void slot_open(slot *m, const dsi_request *last)
{
    rank_threads *t = m->group->threads;
    char why[WHY_BYTES];
    if (!dsi_requests_agree(m->of, m->group->size, why, sizeof why)) {
        rank_threads_fail(t, DS_ECOMM, why);
        return;
    }
    m->pieces = dsi_pieces(last, m->group->size);
    if (last->squares) m->squares = dsi_alloc((size_t)m->pieces * sizeof *m->squares);
    if (m->pieces > 1 && !last->blocking && !dsi_is_message(last)) rank_threads_give_helper(t, m);
    atomic_store(&m->open, true);
}

static ds_status thread_start(dsi_request *r)
{
    rank_threads *t = ((comm_group *)r->comm->own)->threads;
    pthread_mutex_lock(&t->mutex);
    ds_status status = DS_OK;
    bool last = false;
    if (!t->failed) {
        int place;
        comm_group *g = group_of(r, &place);
        slot *m = dsi_slot_at(g, r->number);
        r->own = m;
        m->of[place] = r;
        last = ++m->arrived == g->size;
        if (last) slot_open(m, r);
    }
    if (t->failed) status = rank_threads_failure(t, r);
    pthread_mutex_unlock(&t->mutex);
    if (status != DS_OK || !last) return status;

    slot *m = r->own; /* stays: this rank has not left it */
    if (m->pieces == 0)
        slot_end(m);
    else if (m->pieces == 1)
        slot_work(m);
    else
        rank_threads_wake(t);
    return DS_OK;
}

static ds_status thread_wait(dsi_request *r)
{
    slot *m = r->own;
    rank_threads *t = m->group->threads;
    bool opened = slot_spin(m, slot_is_open) || slot_sleep_until_open(m, r);
    if (opened) {
        slot_work(m);
        if (!slot_spin(m, slot_has_ended)) slot_sleep_until_ended(m);
    }
    pthread_mutex_lock(&t->mutex);
    m->left++;
    dsi_slot_release(m);
    ds_status status = opened ? DS_OK : rank_threads_failure(t, r);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

/* ---- groups ------------------------------------------------------------------------------------------- */

static void thread_close(ds_comm *c)
{
    comm_group *g = c->own;
    rank_threads *t = g->threads;
    pthread_mutex_lock(&t->mutex);
    g->departure[c->rank] = (departure){true, c->queued, c->messages};
    c->messages = NULL;
    bool last = !--g->refs;
    pthread_mutex_unlock(&t->mutex);
    if (last) dsi_comm_group_free(g);
}

static ds_status split_gather(ds_comm *c, const int64_t *in, int64_t n, int64_t *out)
{
    return dsi_request_run(&(dsi_request){DSI_NUMBERS(c, DSI_ALL_GATHER, DS_I64, in, out, n)});
}

/* chosen[k]: the k-th rank of c in my new group; words[r] = {color, key} of
 * rank r. Returns how many. */
static int split_choose_ranks(const int64_t (*words)[2], int size, int64_t color, int *chosen)
{
    int n = 0;
    for (int r = 0; r < size; r++) {
        if (words[r][0] != color) continue;
        int at = n++;
        for (; at && words[chosen[at - 1]][1] > words[r][1]; at--) chosen[at] = chosen[at - 1];
        chosen[at] = r;
    }
    return n;
}

/* The first rank of each new group makes it, and hands out its address. */
static ds_comm *thread_split(ds_comm *c, int color, int key)
{
    comm_group *old = c->own, *g = NULL;
    int64_t mine[2] = {color, key}, address,
            (*words)[2] = dsi_alloc((size_t)c->size * sizeof *words);
    int64_t *addresses = dsi_alloc((size_t)c->size * sizeof *addresses);
    int *chosen = dsi_alloc((size_t)c->size * sizeof *chosen), n = 0, rank = 0;
    bool good = split_gather(c, mine, 2, words[0]) == DS_OK;
    if (good && color >= 0) {
        n = split_choose_ranks((const int64_t(*)[2])words, c->size, color, chosen);
        while (chosen[rank] != c->rank) rank++;
        if (!rank) {
            g = dsi_comm_group_new(old->threads, n);
            for (int k = 0; k < n; k++) g->world_rank[k] = old->world_rank[chosen[k]];
        }
    }
    address = (int64_t)(intptr_t)g;
    good = good && split_gather(c, &address, 1, addresses) == DS_OK;
    if (!good && g) dsi_comm_group_free(g);
    if (good && n) g = (comm_group *)(intptr_t)addresses[chosen[0]];
    dsi_free(words);
    dsi_free(addresses);
    dsi_free(chosen);
    return good && n ? dsi_comm_new(&dsi_comm_thread, rank, n, g) : NULL;
}

static void thread_abort(ds_comm *c, const char *why)
{
    comm_group *g = c->own;
    char text[WHY_BYTES];
    snprintf(text, sizeof text, "rank %d: %s", g->world_rank[c->rank], why);
    pthread_mutex_lock(&g->threads->mutex);
    rank_threads_fail(g->threads, DS_ECOMM, text);
    pthread_mutex_unlock(&g->threads->mutex);
}

/* Whether rank q has left and never begins r, for which c's rank waits. */
static bool rank_left_without(const ds_comm *c, int q, const dsi_request *r)
{
    const comm_group *g = c->own;
    const departure *d = &g->departure[q];
    bool message = r && dsi_is_message(r);
    if (message && q != r->root) return false;
    if (!d->departed) return g->threads->left_ranks[g->world_rank[q]];
    if (!message) return d->queued <= (r ? r->number : 0);
    return !d->messages || d->messages[(r->what == DSI_SEND) * c->size + c->rank] <= r->number;
}

/* For ranks that wait for a GPU. */
static ds_status thread_failed(ds_comm *c, bool ended, const dsi_request *r)
{
    rank_threads *t = ((const comm_group *)c->own)->threads;
    ds_status status = DS_OK;
    pthread_mutex_lock(&t->mutex);
    if (t->failed) status = dsi_fail(DS_ECOMM, "%s", t->why);
    for (int q = 0; ended && status == DS_OK && q < c->size; q++)
        if (q != c->rank && rank_left_without(c, q, r))
            status = dsi_fail(DS_ECOMM, "rank %d ended without it", q);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

const dsi_comm_type dsi_comm_thread = {.name = "thread",
                                       .close = thread_close,
                                       .split = thread_split,
                                       .start = thread_start,
                                       .wait = thread_wait,
                                       .compares = true,
                                       .abort = thread_abort,
                                       .failed = thread_failed};

/* ---- ds_run_ranks ------------------------------------------------------------------------------------- */

typedef struct rank_start {
    pthread_t thread;
    int rank;
    comm_group *world;
    ds_status (*body)(void *arg);
    void *arg;
} rank_start;

static void *rank_main(void *p)
{
    rank_start *me = p;
    rank_threads *t = me->world->threads;
    char name[32];
    snprintf(name, sizeof name, "rank %d", me->rank);
    dsi_trace_name_thread(name);
    dsi_set_world(dsi_comm_new(&dsi_comm_thread, me->rank, t->size, me->world));
    ds_status status = ds_set_device(t->device);
    if (status == DS_OK) status = me->body(me->arg);
    char why[WHY_BYTES], silent[64];
    snprintf(silent, sizeof silent, "ended with status %d", (int)status);
    snprintf(why, sizeof why, "rank %d: %s", me->rank, ds_error() ? ds_error() : silent);
    pthread_mutex_lock(&t->mutex);
    if (status != DS_OK) rank_threads_fail(t, status, why);
    t->ended_ranks[me->rank] = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    dsi_set_world(NULL);
    pthread_mutex_lock(&t->mutex);
    t->left_ranks[me->rank] = true;
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

static void rank_threads_open(rank_threads *t, int n)
{
    *t = (rank_threads){.size = n,
                        .device = ds_current_device(),
                        .oversubscribed = n > dsi_processors(),
                        .helper_wanted = n < dsi_processors()};
    t->ended_ranks = dsi_alloc((size_t)n * sizeof *t->ended_ranks);
    t->left_ranks = dsi_alloc((size_t)n * sizeof *t->left_ranks);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&t->work, NULL);
    pthread_mutex_init(&t->mutex, NULL);
}

static void rank_threads_close(rank_threads *t)
{
    pthread_mutex_lock(&t->mutex);
    t->quit = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
    if (t->helper_runs) pthread_join(t->helper, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->mutex);
    dsi_free(t->ended_ranks);
    dsi_free(t->left_ranks);
}

ds_status ds_run_ranks(int n, ds_status (*body)(void *arg), void *arg)
{
    if (n < 1 || n > DSI_THREAD_RANKS)
        return dsi_fail(DS_EINVAL, "run_ranks: %d ranks, but 1 to %d are possible", n,
                        DSI_THREAD_RANKS);
    if (!body) return dsi_null_argument("run_ranks");
    rank_threads t;
    rank_threads_open(&t, n);
    comm_group *world = dsi_comm_group_new(&t, n);
    rank_start *ranks = dsi_alloc((size_t)n * sizeof *ranks);
    int begun = 0, error = 0;
    for (int r = 0; r < n; r++) world->world_rank[r] = r;
    for (; begun < n; begun++) {
        ranks[begun] = (rank_start){.rank = begun, .world = world, .body = body, .arg = arg};
        error = pthread_create(&ranks[begun].thread, NULL, rank_main, &ranks[begun]);
        if (error) break;
    }
    if (error) {
        char why[WHY_BYTES];
        snprintf(why, sizeof why, "the system gives no thread for rank %d: %s", begun,
                 strerror(error));
        pthread_mutex_lock(&t.mutex);
        rank_threads_fail(&t, DS_ECOMM, why);
        world->refs -= n - begun;
        bool unused = !world->refs;
        pthread_mutex_unlock(&t.mutex);
        if (unused) dsi_comm_group_free(world);
    }
    for (int r = 0; r < begun; r++) pthread_join(ranks[r].thread, NULL);
    ds_status status = t.failed ? dsi_fail(t.status, "%s", t.why) : DS_OK;
    rank_threads_close(&t);
    dsi_free(ranks);
    return status;
}
