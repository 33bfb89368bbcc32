/* comm/thread.c: N ranks as N threads of one process.
 *
 * A collective is a meeting. Each rank brings its request; the last to come opens the meeting, and then
 * the work is cut into pieces (thread_work.c) that anybody takes: the ranks that wait, and, where there are
 * processors that no rank needs, a helper thread, so that a reduction runs while backward does. A small one
 * is done at once by the last to come. Who takes a piece changes nothing in it, so the result does not
 * depend on it.
 *
 *     start    brings a request to meeting number k of the group; never waits
 *     wait     until the meeting is open, takes pieces, then waits for those that others have taken
 *
 * send and recv meet in a group of two, which there is for each pair of ranks, from the one to the other.
 *
 * A rank that waits takes pieces of its own meeting only, and every piece taken ends: so ranks may wait in
 * any order for what they began in the same order.
 *
 * Failure: the first to fail writes who and why into the team, and from then on nobody comes to a
 * meeting. One that was open is still finished, for somebody may be in it; others never open. So no memory
 * of a rank is touched after its wait has returned, whatever it returned.
 *
 * Waiting is spinning for SPIN_NS, then sleeping. A sleeper counts itself before it looks again, and
 * whoever changes something looks at the count after that: one of the two sees the other.
 * SPDX-License-Identifier: MIT */
#include "thread.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/trace.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SPIN_NS     50000
#define PATIENCE_NS 2000 /* how long to spin before offering the processor at each turn */
#define WHY_BYTES   1024

typedef struct meeting {
    struct group *group;
    uint64_t number;
    int arrived, left; /* ranks */
    int users;         /* the helper's list, and the helper */
    int64_t pieces;
    _Atomic bool open, ended;
    _Atomic int64_t next, done; /* pieces */
    double *squares;            /* [pieces]; NULL: nobody wants them */
    struct meeting *behind;     /* in the helper's list */
    dsi_request *of[];          /* [size] */
} meeting;

typedef struct group {
    struct team *team;
    int refs; /* ranks that have not closed it, and meetings that the helper has */
    int size;
    int *member;         /* [size] ranks of the team */
    int *called;         /* [size] ranks of the communicator: 0, 1, .. but in a pair */
    struct group **pair; /* [size][size]: from one rank to another, as they are needed; or NULL */
    /* meetings number oldest .. newest-1; that of number k is ring[k % room], NULL when all have left */
    meeting **ring;
    uint64_t oldest, newest, room;
} group;

/* All ranks of one ds_run_ranks. The mutex guards all that is not atomic, in groups and meetings too. */
typedef struct team {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a meeting opened or ended, a rank went, the team failed */
    _Atomic int sleepers;
    int size;
    bool *gone;   /* [size] ranks whose body has returned */
    bool crowded; /* more ranks than processors: whoever spins takes time from who works */

    _Atomic bool failed;
    ds_status status; /* of the first failure */
    char why[WHY_BYTES];

    bool helper_wanted, helper_runs, quit;
    pthread_t helper;
    pthread_cond_t work;
    meeting *first_work, *last_work;
} team;

/* ---- meetings ----------------------------------------------------------------------------------------- */

/* Makes room for meetings up to `number`. */
static void grow_ring(group *g, uint64_t number)
{
    uint64_t room = g->room ? g->room : 16;
    while (number - g->oldest >= room) room *= 2;
    if (room == g->room) return;
    meeting **ring = dsi_alloc(room * sizeof *ring);
    for (uint64_t k = g->oldest; g->room && k < g->newest; k++)
        ring[k % room] = g->ring[k % g->room];
    dsi_free(g->ring);
    g->ring = ring;
    g->room = room;
}

static meeting *meeting_at(group *g, uint64_t number)
{
    grow_ring(g, number);
    meeting **m = &g->ring[number % g->room];
    if (*m) return *m;
    *m = dsi_alloc(sizeof **m + (size_t)g->size * sizeof(dsi_request *));
    (*m)->group = g;
    (*m)->number = number;
    if (number >= g->newest) g->newest = number + 1;
    return *m;
}

static void free_meeting(meeting *m)
{
    if (m) dsi_free(m->squares);
    dsi_free(m);
}

/* Frees m if nobody will look at it again. */
static void release_meeting(meeting *m)
{
    group *g = m->group;
    if (m->users || m->left < g->size) return;
    g->ring[m->number % g->room] = NULL;
    while (g->oldest < g->newest && !g->ring[g->oldest % g->room]) g->oldest++;
    free_meeting(m);
}

static void wake_all(team *t)
{
    if (!atomic_load(&t->sleepers)) return;
    pthread_mutex_lock(&t->mutex); /* whoever saw nothing sleeps by now */
    pthread_mutex_unlock(&t->mutex);
    pthread_cond_broadcast(&t->changed);
}

/* All pieces are done. */
static void end_meeting(meeting *m)
{
    if (m->squares) dsi_request_add_squares(m->of, m->pieces, m->squares);
    for (int r = 0; r < m->group->size; r++) dsi_request_done(m->of[r]);
    atomic_store(&m->ended, true);
    wake_all(m->group->team);
}

/* Takes pieces until there are none. The caller has not left m, or is one of its users. */
static void work_at(meeting *m)
{
    int64_t piece, pieces = m->pieces;
    while ((piece = atomic_fetch_add(&m->next, 1)) < pieces) {
        dsi_run_piece(m->of, m->group->size, piece, m->squares ? &m->squares[piece] : NULL);
        if (atomic_fetch_add(&m->done, 1) + 1 == pieces) end_meeting(m);
    }
}

/* ---- failure: with the mutex held ---------------------------------------------------------------------- */

static void fail_team(team *t, ds_status status, const char *why)
{
    if (t->failed) return;
    t->status = status;
    snprintf(t->why, sizeof t->why, "%s", why);
    atomic_store(&t->failed, true);
    pthread_cond_broadcast(&t->changed);
}

/* What a collective says of a failed team. */
static ds_status failed(const team *t, const dsi_request *r)
{
    return dsi_fail(DS_ECOMM, "%s: %s", dsi_collective_name(r->what), t->why);
}

/* How many have not come; with gone: and never will. *ranks, if not NULL: "s 1, 3". */
static int absent(const meeting *m, bool gone, dsi_text *ranks)
{
    const group *g = m->group;
    int n = 0;
    dsi_text list = {0};
    for (int r = 0; r < g->size; r++) {
        if (m->of[r] || (gone && !g->team->gone[g->member[r]])) continue;
        if (ranks) dsi_text_add(&list, "%s%d", n ? ", " : " ", g->called[r]);
        n++;
    }
    if (ranks) dsi_text_add(ranks, "%s%s", n > 1 ? "s" : "", list.s);
    dsi_text_free(&list);
    return n;
}

/* Nobody will open m: says so, with what this rank wanted there. */
static void fail_meeting(meeting *m, const dsi_request *r, double waited)
{
    dsi_text ranks = {0}, why = {0};
    bool gone = absent(m, true, NULL) > 0;
    absent(m, gone, &ranks);
    dsi_text_add(&why, "rank %d calls %s, ", r->comm->rank, dsi_request_text(r));
    if (gone)
        dsi_text_add(&why, "but rank%s ended without it", ranks.s);
    else
        dsi_text_add(&why, "and rank%s did not come within %.3g s (DS_TIMEOUT)", ranks.s, waited);
    if (!gone) dsi_log(DSI_ERROR, "%s", why.s); /* for the thread that is stuck may never return */
    fail_team(m->group->team, DS_ECOMM, why.s);
    dsi_text_free(&ranks);
    dsi_text_free(&why);
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

typedef bool condition(meeting *m);

static bool is_open(meeting *m) { return atomic_load_explicit(&m->open, memory_order_acquire); }

static bool has_ended(meeting *m) { return atomic_load_explicit(&m->ended, memory_order_acquire); }

static bool spin(meeting *m, condition *met)
{
    team *t = m->group->team;
    double begun = dsi_now(), spent = 0;
    while (spent < SPIN_NS * 1e-9) {
        for (int i = 0; i < 32; i++) {
            if (met(m)) return true;
            dsi_relax();
        }
        if (atomic_load_explicit(&t->failed, memory_order_relaxed)) return met(m);
        spent = dsi_now() - begun;
        if (t->crowded || spent > PATIENCE_NS * 1e-9) sched_yield();
    }
    return false;
}

static struct timespec after(double seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double until = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 + seconds;
    return (struct timespec){(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
}

/* Until m is open; false: it never will be. */
static bool sleep_until_open(meeting *m, const dsi_request *r)
{
    team *t = m->group->team;
    double limit = dsi_comm_timeout();
    struct timespec until = after(limit);
    bool late = false;
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->sleepers, 1);
    while (!is_open(m) && !t->failed) {
        if (late || absent(m, true, NULL))
            fail_meeting(m, r, limit);
        else
            late = pthread_cond_timedwait(&t->changed, &t->mutex, &until) == ETIMEDOUT;
    }
    atomic_fetch_sub(&t->sleepers, 1);
    bool opened = is_open(m);
    pthread_mutex_unlock(&t->mutex);
    return opened;
}

static void sleep_until_ended(meeting *m)
{
    team *t = m->group->team;
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->sleepers, 1);
    while (!has_ended(m)) pthread_cond_wait(&t->changed, &t->mutex);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->mutex);
}

static void group_free(group *g)
{
    for (uint64_t k = g->oldest; k < g->newest; k++) free_meeting(g->ring[k % g->room]);
    for (int k = 0; g->pair && k < g->size * g->size; k++)
        if (g->pair[k]) group_free(g->pair[k]);
    dsi_free(g->pair);
    dsi_free(g->ring);
    dsi_free(g->member);
    dsi_free(g->called);
    dsi_free(g);
}

static group *group_new(team *t, int size)
{
    group *g = dsi_alloc(sizeof *g);
    *g = (group){.team = t, .refs = size, .size = size};
    g->member = dsi_alloc((size_t)size * sizeof *g->member);
    g->called = dsi_alloc((size_t)size * sizeof *g->called);
    for (int r = 0; r < size; r++) g->called[r] = r;
    return g;
}

/* With the mutex held: where r's rank meets the others, and the number that it has there. */
static group *group_of(const dsi_request *r, int *place)
{
    group *g = r->comm->own;
    int ends[2] = {r->comm->rank, r->root};
    *place = r->comm->rank;
    if (!dsi_is_message(r)) return g;
    *place = r->what == DSI_RECV;
    if (*place) ends[0] = r->root, ends[1] = r->comm->rank;
    if (!g->pair) g->pair = dsi_alloc((size_t)g->size * (size_t)g->size * sizeof *g->pair);
    group **pair = &g->pair[ends[0] * g->size + ends[1]];
    if (*pair) return *pair;
    *pair = group_new(g->team, 2);
    for (int k = 0; k < 2; k++) {
        (*pair)->called[k] = ends[k];
        (*pair)->member[k] = g->member[ends[k]];
    }
    return *pair;
}

/* ---- the helper --------------------------------------------------------------------------------------- */

static void *helper_main(void *arg)
{
    team *t = arg;
    pthread_mutex_lock(&t->mutex);
    while (t->first_work || !t->quit) {
        meeting *m = t->first_work;
        if (!m) {
            pthread_cond_wait(&t->work, &t->mutex);
            continue;
        }
        group *g = m->group;
        t->first_work = m->behind;
        if (!m->behind) t->last_work = NULL;
        pthread_mutex_unlock(&t->mutex);
        work_at(m);
        pthread_mutex_lock(&t->mutex);
        m->users--;
        release_meeting(m);
        if (!--g->refs) group_free(g);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

/* With the mutex held: m is open, and who opened it goes on with something else. */
static void give_to_helper(team *t, meeting *m)
{
    if (!t->helper_wanted) return;
    if (!t->helper_runs) t->helper_runs = !pthread_create(&t->helper, NULL, helper_main, t);
    if (!t->helper_runs) return; /* the ranks will do it */
    m->users++;
    m->group->refs++; /* the ranks may all be gone before the helper comes to it */
    *(t->last_work ? &t->last_work->behind : &t->first_work) = m;
    t->last_work = m;
    pthread_cond_signal(&t->work);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

/* With the mutex held: the last request has come. */
static void open_meeting(meeting *m, const dsi_request *last)
{
    team *t = m->group->team;
    char why[WHY_BYTES];
    if (!dsi_requests_agree(m->of, m->group->size, why, sizeof why)) {
        fail_team(t, DS_ECOMM, why);
        return;
    }
    m->pieces = dsi_pieces(last, m->group->size);
    if (last->squares) m->squares = dsi_alloc((size_t)m->pieces * sizeof *m->squares);
    if (m->pieces > 1 && !last->blocking && !dsi_is_message(last)) give_to_helper(t, m);
    atomic_store(&m->open, true);
}

static ds_status thread_start(dsi_request *r)
{
    team *t = ((group *)r->comm->own)->team;
    pthread_mutex_lock(&t->mutex);
    ds_status status = DS_OK;
    bool last = false;
    if (!t->failed) {
        int place;
        group *g = group_of(r, &place);
        meeting *m = meeting_at(g, r->number);
        r->own = m;
        m->of[place] = r;
        last = ++m->arrived == g->size;
        if (last) open_meeting(m, r);
    }
    if (t->failed) status = failed(t, r);
    pthread_mutex_unlock(&t->mutex);
    if (status != DS_OK || !last) return status;

    meeting *m = r->own; /* stays: this rank has not left it */
    if (m->pieces == 0)
        end_meeting(m);
    else if (m->pieces == 1)
        work_at(m);
    else
        wake_all(t);
    return DS_OK;
}

static ds_status thread_wait(dsi_request *r)
{
    meeting *m = r->own;
    team *t = m->group->team;
    bool opened = spin(m, is_open) || sleep_until_open(m, r);
    if (opened) {
        work_at(m);
        if (!spin(m, has_ended)) sleep_until_ended(m);
    }
    pthread_mutex_lock(&t->mutex);
    m->left++;
    release_meeting(m);
    ds_status status = opened ? DS_OK : failed(t, r);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

/* ---- groups ------------------------------------------------------------------------------------------- */

static void thread_close(ds_comm *c)
{
    group *g = c->own;
    team *t = g->team;
    pthread_mutex_lock(&t->mutex);
    bool last = !--g->refs;
    pthread_mutex_unlock(&t->mutex);
    if (last) group_free(g);
}

static ds_status gather_words(ds_comm *c, const int64_t *in, int64_t n, int64_t *out)
{
    dsi_request r = {.comm = c,
                     .what = DSI_ALL_GATHER,
                     .dtype = DS_I64,
                     .in = in,
                     .out = out,
                     .n = n,
                     .blocking = true};
    dsi_request *begun = dsi_request_start(&r);
    return begun ? dsi_request_wait(begun) : ds_error_status();
}

/* chosen[k]: the k-th rank of c in my new group; words[r] = {color, key} of rank r. Returns how many. */
static int choose(const int64_t (*words)[2], int size, int64_t color, int *chosen)
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
    group *old = c->own, *g = NULL;
    int64_t mine[2] = {color, key}, address,
            (*words)[2] = dsi_alloc((size_t)c->size * sizeof *words);
    int64_t *addresses = dsi_alloc((size_t)c->size * sizeof *addresses);
    int *chosen = dsi_alloc((size_t)c->size * sizeof *chosen), n = 0, rank = 0;
    bool good = gather_words(c, mine, 2, words[0]) == DS_OK;
    if (good && color >= 0) {
        n = choose((const int64_t(*)[2])words, c->size, color, chosen);
        while (chosen[rank] != c->rank) rank++;
        if (!rank) {
            g = group_new(old->team, n);
            for (int k = 0; k < n; k++) g->member[k] = old->member[chosen[k]];
        }
    }
    address = (int64_t)(intptr_t)g;
    good = good && gather_words(c, &address, 1, addresses) == DS_OK;
    if (!good && g) group_free(g);
    if (good && n) g = (group *)(intptr_t)addresses[chosen[0]];
    dsi_free(words);
    dsi_free(addresses);
    dsi_free(chosen);
    return good && n ? dsi_comm_new(&dsi_comm_thread, rank, n, g) : NULL;
}

static void thread_abort(ds_comm *c, const char *why)
{
    group *g = c->own;
    char text[WHY_BYTES];
    snprintf(text, sizeof text, "rank %d: %s", g->member[c->rank], why);
    pthread_mutex_lock(&g->team->mutex);
    fail_team(g->team, DS_ECOMM, text);
    pthread_mutex_unlock(&g->team->mutex);
}

const dsi_comm_type dsi_comm_thread = {.name = "thread",
                                       .close = thread_close,
                                       .split = thread_split,
                                       .start = thread_start,
                                       .wait = thread_wait,
                                       .compares = true,
                                       .abort = thread_abort};

/* ---- ds_run_ranks ------------------------------------------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    int rank;
    group *world;
    ds_status (*body)(void *arg);
    void *arg;
} rank_thread;

static void *rank_main(void *p)
{
    rank_thread *me = p;
    team *t = me->world->team;
    char name[32];
    snprintf(name, sizeof name, "rank %d", me->rank);
    dsi_trace_name_thread(name);
    dsi_set_world(dsi_comm_new(&dsi_comm_thread, me->rank, t->size, me->world));
    ds_status status = me->body(me->arg);

    char why[WHY_BYTES];
    if (status != DS_OK && ds_error())
        snprintf(why, sizeof why, "rank %d: %s", me->rank, ds_error());
    else
        snprintf(why, sizeof why, "rank %d ended with status %d", me->rank, (int)status);
    pthread_mutex_lock(&t->mutex);
    if (status != DS_OK) fail_team(t, status, why);
    t->gone[me->rank] = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    dsi_set_world(NULL);
    return NULL;
}

static int processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? CPU_SETSIZE : CPU_COUNT(&set);
}

static void team_open(team *t, int n)
{
    *t = (team){.size = n, .crowded = n > processors(), .helper_wanted = n < processors()};
    t->gone = dsi_alloc((size_t)n * sizeof *t->gone);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&t->work, NULL);
    pthread_mutex_init(&t->mutex, NULL);
}

static void team_close(team *t)
{
    pthread_mutex_lock(&t->mutex);
    t->quit = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
    if (t->helper_runs) pthread_join(t->helper, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->mutex);
    dsi_free(t->gone);
}

ds_status ds_run_ranks(int n, ds_status (*body)(void *arg), void *arg)
{
    if (n < 1 || n > DSI_THREAD_RANKS)
        return dsi_fail(DS_EINVAL, "run_ranks: %d ranks, but 1 to %d are possible", n,
                        DSI_THREAD_RANKS);
    if (!body) return dsi_null_operand("run_ranks"), DS_EINVAL;
    team t;
    team_open(&t, n);
    group *world = group_new(&t, n);
    for (int r = 0; r < n; r++) world->member[r] = r;
    rank_thread *ranks = dsi_alloc((size_t)n * sizeof *ranks);
    int begun = 0, error = 0;
    for (; begun < n; begun++) {
        ranks[begun] = (rank_thread){.rank = begun, .world = world, .body = body, .arg = arg};
        error = pthread_create(&ranks[begun].thread, NULL, rank_main, &ranks[begun]);
        if (error) break;
    }
    if (error) {
        char why[WHY_BYTES];
        snprintf(why, sizeof why, "the system gives no thread for rank %d: %s", begun,
                 strerror(error));
        pthread_mutex_lock(&t.mutex);
        fail_team(&t, DS_ECOMM, why);
        world->refs -= n - begun;
        bool unused = !world->refs;
        pthread_mutex_unlock(&t.mutex);
        if (unused) group_free(world);
    }
    for (int r = 0; r < begun; r++) pthread_join(ranks[r].thread, NULL);
    ds_status status = t.failed ? dsi_fail(t.status, "%s", t.why) : DS_OK;
    team_close(&t);
    dsi_free(ranks);
    return status;
}
