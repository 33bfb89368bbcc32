/* comm/mpi.c: ranks as processes that MPI started.
 *
 * The process has one job: the plugin, and the list of transfers that are under way (transfer.c). They move
 * when somebody looks at them: a rank that begins or waits for one, and, where there are processors to
 * spare, a helper thread that looks all the time while there are any; so that a reduction runs while backward
 * does. The mutex is held by whoever is in MPI (MPI_THREAD_SERIALIZED).
 *
 * Whatever goes wrong ends the job: the message is printed, then MPI_Abort. A process that ends without
 * ds_destroy_process_group is found by atexit and does the same, so that nobody waits for it.
 * SPDX-License-Identifier: MIT */
#include "mpi_open.h"
#include "transfer.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SPIN_S     200e-6 /* how long to look before offering the processor for longer */
#define PATIENCE_S 2e-6   /* how long to look before offering it at each turn */
#define NAP_US     50
/* A yield takes SLOW_S or longer if other processes want the processor. After
 * SLOW_YIELDS of these in a row waits do not yield for CROWDED_S. */
#define SLOW_S      200e-6
#define SLOW_YIELDS 3
#define CROWDED_S   100e-3
#define FORWARD_US  200000 /* what a launcher needs to pass a line on before it ends the job */
/* Ranks that fail alike do not all end the job at once, over which Open MPI's mpirun would crash. */
#define TURN_US 100000
#define TURNS   10

typedef struct job {
    const dsi_mpi *mpi;
    int most_tag;
    ds_comm *world;
    pthread_mutex_t mutex;
    dsi_transfer *first, *last; /* under way, oldest first */
    dsi_spare spare;
    bool helper_runs, quit;
    pthread_t helper;
    pthread_cond_t work;
    int slow_yields;      /* in a row; this and crowded_until are the rank's thread's */
    double crowded_until; /* dsi_now: until then waits nap in place of yielding */
} job;

/* MPI is initialised once a process, and atexit must find it. Set and read by the rank's own thread. */
static job *the_job;

static void end_job(job *j, const char *why) __attribute__((__noreturn__));
static void end_job(job *j, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "deepspeed: rank %d of %d: %s\n", j->world->rank, j->world->size, why);
    fflush(stderr);
    usleep(FORWARD_US + (useconds_t)(j->world->rank < TURNS ? j->world->rank : TURNS) * TURN_US);
    j->mpi->abort(1);
    _exit(1);
}

static void check(const char *what, const char *wrong)
{
    if (!wrong) return;
    dsi_text why = {0};
    dsi_text_add(&why, "%s: MPI says: %s", what, wrong);
    end_job(the_job, why.s);
}

/* ---- transfers: with the mutex held -------------------------------------------------------------------- */

static void end_wrong(job *j, const dsi_transfer *t)
{
    dsi_text why = {0};
    dsi_text_add(&why, "%s: %s", dsi_request_text(t->r), t->wrong.s);
    end_job(j, why.s);
}

static void advance_all(job *j)
{
    for (dsi_transfer *t = j->first; t; t = t->after) {
        dsi_transfer_advance(t);
        if (t->wrong.n) end_wrong(j, t);
    }
}

static void remove_transfer(job *j, dsi_transfer *t)
{
    dsi_transfer **at = &j->first, *before = NULL;
    for (; *at != t; at = &(*at)->after) before = *at;
    *at = t->after;
    if (j->last == t) j->last = before;
    dsi_transfer_free(t);
}

static void *helper_main(void *arg)
{
    job *j = arg;
    pthread_mutex_lock(&j->mutex);
    while (!j->quit) {
        bool idle = true;
        for (dsi_transfer *t = j->first; t; t = t->after)
            if (!t->finished) idle = false;
        if (idle) {
            pthread_cond_wait(&j->work, &j->mutex);
            continue;
        }
        advance_all(j);
        pthread_mutex_unlock(&j->mutex);
        sched_yield();
        pthread_mutex_lock(&j->mutex);
    }
    pthread_mutex_unlock(&j->mutex);
    return NULL;
}

/* A helper pays only where each rank of the machine has a second processor. */
static void start_helper(job *j, int local_size)
{
    cpu_set_t set;
    sigset_t all, was;
    if (sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) < 2 * local_size) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    j->helper_runs = !pthread_create(&j->helper, NULL, helper_main, j);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
}

static ds_status mpi_start(dsi_request *r)
{
    job *j = the_job;
    dsi_transfer *t = dsi_alloc(sizeof *t);
    *t = (dsi_transfer){
        .r = r, .mpi = j->mpi, .comm = r->comm->own, .most_tag = j->most_tag, .spare = &j->spare};
    r->own = t;
    pthread_mutex_lock(&j->mutex);
    *(j->last ? &j->last->after : &j->first) = t;
    j->last = t;
    advance_all(j);
    bool finished = t->finished;
    pthread_mutex_unlock(&j->mutex);
    if (j->helper_runs && !finished && !r->blocking) pthread_cond_signal(&j->work);
    return DS_OK;
}

static void give_up(dsi_transfer *t, double waited)
{
    dsi_text why = {0}, ranks = {0};
    dsi_transfer_missing(t, &ranks);
    dsi_text_add(&why, "%s, number %llu of a communicator of %d, is stuck for %.3g s (DS_TIMEOUT)",
                 dsi_request_text(t->r), (unsigned long long)t->r->number, t->r->comm->size,
                 waited);
    if (ranks.n) dsi_text_add(&why, "; nothing came from rank%s", ranks.s);
    end_job(the_job, why.s);
}

/* It takes long: has something else come than what it waits for? */
static void look_for_others(dsi_transfer *t)
{
    pthread_mutex_lock(&the_job->mutex);
    dsi_transfer_look(t);
    if (t->wrong.n) end_wrong(the_job, t);
    pthread_mutex_unlock(&the_job->mutex);
}

/* Offers the processor to others. On a busy machine a yield costs a time slice of
 * each process that waits for the processor (7 ms with 8 busy loops on 2 cores), and
 * since Linux 6.18 the rest of the caller's own slice. A process that sleeps keeps its
 * place in the queue. So after slow yields the rank sleeps for a moment instead. */
static void offer_processor(job *j, double now)
{
    if (now < j->crowded_until) {
        usleep(NAP_US);
        return;
    }
    sched_yield();
    double after = dsi_now();
    j->slow_yields = after - now > SLOW_S ? j->slow_yields + 1 : 0;
    if (j->slow_yields >= SLOW_YIELDS) j->crowded_until = after + CROWDED_S;
}

/* Looks at it until it is done; false: it was not within `limit` seconds. */
static bool look_until_done(dsi_transfer *t, double limit)
{
    job *j = the_job;
    double begun = dsi_now();
    for (;;) {
        pthread_mutex_lock(&j->mutex);
        advance_all(j);
        bool done = t->finished;
        pthread_mutex_unlock(&j->mutex);
        if (done) return true;
        double now = dsi_now(), spent = now - begun;
        if (spent > limit) return false;
        if (spent > SPIN_S) {
            look_for_others(t);
            usleep(NAP_US);
        } else if (spent > PATIENCE_S) {
            offer_processor(j, now);
        }
    }
}

static ds_status mpi_wait(dsi_request *r)
{
    job *j = the_job;
    dsi_transfer *t = r->own;
    double limit = dsi_comm_timeout();
    if (!look_until_done(t, limit)) give_up(t, limit);
    pthread_mutex_lock(&j->mutex);
    remove_transfer(j, t);
    pthread_mutex_unlock(&j->mutex);
    return DS_OK;
}

/* ---- life --------------------------------------------------------------------------------------------- */

static ds_comm *new_comm(const dsi_mpi_place *p)
{
    ds_comm *c = dsi_comm_new(&dsi_comm_mpi, p->rank, p->size, p->comm);
    c->local_rank = p->local_rank;
    c->local_size = p->local_size;
    return c;
}

static ds_comm *mpi_split(ds_comm *c, int color, int key)
{
    dsi_mpi_place part;
    if (ds_barrier(c) != DS_OK) return NULL; /* with a time limit, which MPI's split has not */
    pthread_mutex_lock(&the_job->mutex);
    check("comm_split", the_job->mpi->split(c->own, color, key, &part));
    pthread_mutex_unlock(&the_job->mutex);
    return part.comm ? new_comm(&part) : NULL;
}

/* A rank whose last call failed waits for the others only a moment: they may wait for it elsewhere, and would
 * not if its farewell were the barrier that they wait in. */
static void say_goodbye(ds_comm *world)
{
    dsi_request r = {.comm = world, .what = DSI_BARRIER, .farewell = true, .blocking = true};
    double limit = ds_error() ? DSI_GOODBYE_S : dsi_comm_timeout();
    mpi_start(&r);
    if (!look_until_done(r.own, limit)) {
        if (ds_error()) end_job(the_job, ds_error());
        give_up(r.own, limit);
    }
    pthread_mutex_lock(&the_job->mutex);
    remove_transfer(the_job, r.own);
    pthread_mutex_unlock(&the_job->mutex);
}

static void close_job(job *j)
{
    pthread_mutex_lock(&j->mutex);
    j->quit = true;
    pthread_cond_signal(&j->work);
    pthread_mutex_unlock(&j->mutex);
    if (j->helper_runs) pthread_join(j->helper, NULL);
    check("destroy_process_group", j->mpi->finalize());
    free(j->spare.p);
    pthread_cond_destroy(&j->work);
    pthread_mutex_destroy(&j->mutex);
    the_job = NULL;
    dsi_free(j);
}

static void mpi_close(ds_comm *c)
{
    job *j = the_job;
    if (c == j->world) say_goodbye(c);
    pthread_mutex_lock(&j->mutex);
    j->mpi->free(c->own);
    pthread_mutex_unlock(&j->mutex);
    if (c == j->world) close_job(j);
}

/* Runs when the process ends, by exit or by main's return. */
static void find_early_end(void)
{
    if (!the_job) return;
    end_job(the_job, ds_error() ? ds_error()
                                : "ended without ds_destroy_process_group, so that other ranks may "
                                  "wait for it");
}

ds_comm *dsi_mpi_world(const char *library)
{
    if (the_job) return dsi_refuse("init_distributed: another thread of this process is the rank");
    const dsi_mpi *mpi = dsi_mpi_open(library);
    if (!mpi) return NULL;
    dsi_mpi_place place;
    const char *wrong = mpi->init(&place);
    if (wrong) {
        dsi_fail(DS_ECOMM, "init_distributed: %s: %s", library, wrong);
        return NULL;
    }
    job *j = dsi_alloc(sizeof *j);
    *j = (job){.mpi = mpi, .most_tag = place.most_tag, .world = new_comm(&place)};
    pthread_mutex_init(&j->mutex, NULL);
    pthread_cond_init(&j->work, NULL);
    start_helper(j, place.local_size);
    the_job = j;
    atexit(find_early_end);
    return j->world;
}

static void mpi_abort(ds_comm *c, const char *why)
{
    (void)c;
    end_job(the_job, why);
}

const dsi_comm_type dsi_comm_mpi = {.name = "mpi",
                                    .close = mpi_close,
                                    .split = mpi_split,
                                    .start = mpi_start,
                                    .wait = mpi_wait,
                                    .abort = mpi_abort};
