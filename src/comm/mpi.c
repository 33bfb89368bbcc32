/* comm/mpi.c: ranks as processes that MPI started.
 *
 * The process has one job: the plugin, and the list of active transfers, which
 * are messages (transfer.c), MPI's own collectives (collective_mpi.c) or, among
 * ranks of one host, copies through memory that they share (shm.c). A transfer
 * progresses when job_progress is called: by a rank that starts or waits for
 * one, and, where each rank of the host has a second processor, by a helper
 * thread as long as there are any, so that a reduction runs during backward.
 *
 * Invariants:
 *  - The mutex is held around every call of the plugin (MPI_THREAD_SERIALIZED) and
 *    guards the list and `kept`; no thread blocks in MPI or sleeps with it.
 *  - Transfers are in the order in which they were started. A transfer belongs to
 *    its request (r->own); mpi_wait removes and frees it. The helper never does.
 *  - start never blocks. wait blocks at most DS_TIMEOUT seconds (for a disk
 *    DS_SAVE_TIMEOUT), and so does init, which a thread watches (Joining); split
 *    and finalize block in MPI, split after a barrier that has the time limit.
 *  - Every failure ends the job: the message is printed, then MPI_Abort. atexit
 *    does the same for a process that ends without ds_destroy_process_group, so
 *    that no other rank waits for it.
 * SPDX-License-Identifier: MIT */
#include "mpi_open.h"
#include "nccl.h"
#include "shm.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/thread.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SPIN_S        200e-6 /* busy-wait before sleeping */
#define YIELD_AFTER_S 2e-6   /* busy-wait before yielding at each turn */
#define NAP_US        50
#define PATIENT_US    200
#define SLEEP_S       0.01 /* at most, if another process is to wake this one */
#define FINALIZE_S    1.0  /* for MPICH's MPI_Finalize between hosts */
/* A yield takes SLOW_S or longer if other processes want the processor. After
 * SLOW_YIELDS of these in a row waits do not yield for CROWDED_S. */
#define SLOW_S      200e-6
#define SLOW_YIELDS 3
#define CROWDED_S   100e-3
#define FORWARD_US  200000 /* what a launcher needs to pass a line on before it ends the job */
/* Ranks that fail alike do not all end the job at once, over which Open MPI's
 * mpirun would crash. */
#define TURN_US 100000
#define TURNS   10

typedef struct job {
    const dsi_mpi *mpi;
    int max_tag;
    ds_comm *world;
    pthread_mutex_t mutex;
    dsi_transfer *first, *last; /* under way, oldest first */
    dsi_buffer kept;
    bool helper_runs, quit;
    pthread_t helper;
    pthread_cond_t work;
    int slow_yields;      /* in a row; this and crowded_until are the rank's thread's, which
                           * does not wait in a communicator that is patient */
    double crowded_until; /* dsi_now: until then waits nap in place of yielding */
    bool aborting;        /* MPI_Abort was called, which may call exit */
} job;

/* Members of a communicator that MPI carries. */
typedef struct mpi_place {
    void *comm;   /* the plugin's */
    dsi_shm *shm; /* NULL: not all of its ranks are on one host */
    bool by_mpi;  /* MPI does what dsi_mpi_does, except in shm */
} mpi_place;

/* MPI is initialised once a process, and atexit must find it. Set and read by
 * the rank's own thread. */
static job *the_job;

/* After the last line of a rank: until the launcher has read the pipe that
 * stderr is, or five seconds long, and has passed the line on: a launcher that
 * ends the job drops what it has not read. */
static void flush_last_line(void)
{
    struct stat status;
    int unread = 0;
    fflush(stderr);
    bool piped = fstat(STDERR_FILENO, &status) == 0 && S_ISFIFO(status.st_mode);
    for (int i = 0; piped && i < 500 && ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread > 0;
         i++)
        usleep(10000);
    usleep(FORWARD_US);
}

static void job_abort(job *j, const char *why) __attribute__((__noreturn__));
/* Ranks write one after the other and wait a moment before they end the job, so
 * that the message of the first, which is the cause, is read before that of
 * mpirun. */
static void job_abort(job *j, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "deepspeed: rank %d of %d: %s\n", j->world->rank, j->world->size, why);
    flush_last_line();
    usleep((useconds_t)(j->world->rank < TURNS ? j->world->rank : TURNS) * TURN_US);
    j->aborting = true;
    j->mpi->abort(1);
    _exit(1);
}

/* Returns only if nothing is wrong: after an error of MPI its state is
 * undefined, so the job ends. */
static void mpi_check(const char *what, const char *wrong)
{
    if (!wrong) return;
    dsi_text why = dsi_text_of("%s: MPI says: %s", what, wrong);
    job_abort(the_job, why.s);
}

/* ---- transfers: with the mutex held -------------------------------------------------------------------- */

/* The functions that carry a transfer. */
typedef struct carrier {
    bool (*advance)(dsi_transfer *t); /* true: something was done */
    void (*probe)(dsi_transfer *t);
    void (*missing)(const dsi_transfer *t, dsi_text *ranks); /* NULL: it does not know */
} carrier;

static const carrier *transfer_carrier(const dsi_transfer *t)
{
    static const carrier shared = {dsi_shm_advance, dsi_shm_probe, dsi_shm_missing};
    static const carrier by_mpi = {dsi_mpi_advance, dsi_mpi_probe, NULL};
    static const carrier messages = {dsi_transfer_advance, dsi_transfer_probe,
                                     dsi_transfer_missing};
    return t->shm ? &shared : t->by_mpi ? &by_mpi : &messages;
}

static void transfer_abort(job *j, const dsi_transfer *t)
{
    dsi_text why = dsi_text_of("%s: %s", dsi_request_text(t->r), t->wrong.s);
    job_abort(j, why.s);
}

/* Advances all transfers, oldest first; a failure ends the job here. True:
 * something was done. */
static bool job_progress(job *j)
{
    bool moved = false;
    for (dsi_transfer *t = j->first; t; t = t->after) {
        moved |= transfer_carrier(t)->advance(t);
        if (t->wrong.n) transfer_abort(j, t);
    }
    return moved;
}

static void job_remove_transfer(job *j, dsi_transfer *t)
{
    dsi_transfer **at = &j->first, *before = NULL;
    for (; *at != t; at = &(*at)->after) before = *at;
    *at = t->after;
    if (j->last == t) j->last = before;
    dsi_transfer_free(t);
}

/* Moves transfers on while the rank computes; sleeps while there is none. One
 * thread at a time calls MPI: whoever holds the mutex. */
static void *mpi_helper_main(void *arg)
{
    job *j = arg;
    pthread_mutex_lock(&j->mutex);
    while (!j->quit) {
        bool some = false, gpu = false; /* whose context is the rank's own thread's */
        for (dsi_transfer *t = j->first; t; t = t->after)
            if (!t->finished) some = true, gpu |= t->gpu;
        if (!some || gpu) {
            pthread_cond_wait(&j->work, &j->mutex);
            continue;
        }
        job_progress(j);
        pthread_mutex_unlock(&j->mutex);
        sched_yield();
        pthread_mutex_lock(&j->mutex);
    }
    pthread_mutex_unlock(&j->mutex);
    return NULL;
}

/* A helper pays only where each rank of the machine has a second processor. */
static void job_start_helper(job *j, int local_size)
{
    if (dsi_processors() >= 2 * local_size)
        j->helper_runs = !dsi_thread_create(&j->helper, mpi_helper_main, j);
}

/* Posts what can be posted at once; does not block. */
static ds_status mpi_start(dsi_request *r)
{
    job *j = the_job;
    mpi_place *place = r->comm->own;
    dsi_transfer *t = dsi_alloc(sizeof *t);
    *t = (dsi_transfer){
        .r = r, .mpi = j->mpi, .comm = place->comm, .max_tag = j->max_tag, .kept = &j->kept};
    t->gpu = dsi_comm_is_direct(r);
    r->own = t;
    pthread_mutex_lock(&j->mutex);
    if (place->shm && !t->gpu && dsi_shm_takes(r)) {
        t->shm = place->shm;
        dsi_shm_add(t);
    } else if (place->by_mpi && !t->gpu && dsi_mpi_does(r)) {
        dsi_mpi_begin(t);
    }
    *(j->last ? &j->last->after : &j->first) = t;
    j->last = t;
    job_progress(j);
    bool finished = t->finished;
    pthread_mutex_unlock(&j->mutex);
    if (j->helper_runs && !finished && !r->blocking) pthread_cond_signal(&j->work);
    return DS_OK;
}

/* After DS_TIMEOUT seconds: names the ranks of which nothing came, and ends the
 * job. */
static void transfer_time_out(dsi_transfer *t, double waited)
{
    const carrier *by = transfer_carrier(t);
    dsi_text ranks = {0};
    if (t->r->comm->disk) {
        if (by->missing) by->missing(t, &ranks);
        job_abort(the_job, dsi_comm_disk_text(t->r->comm, ranks.n ? ranks.s : "", waited).s);
    }
    dsi_text why = dsi_text_of(
        "%s, number %llu of a communicator of %d, is stuck for %.3g s (DS_TIMEOUT)",
        dsi_request_text(t->r), (unsigned long long)t->r->number, t->r->comm->size, waited);
    if (by->missing)
        by->missing(t, &ranks);
    else
        dsi_text_add(&why, " in MPI; DS_COLLECTIVES=messages would name the missing ranks");
    if (ranks.n) dsi_text_add(&why, "; nothing came from rank%s", ranks.s);
    job_abort(the_job, why.s);
}

/* After a long wait: has another message come than the one that it waits for? */
static void transfer_probe(dsi_transfer *t)
{
    pthread_mutex_lock(&the_job->mutex);
    transfer_carrier(t)->probe(t);
    if (t->wrong.n) transfer_abort(the_job, t);
    pthread_mutex_unlock(&the_job->mutex);
}

/* Offers the processor to others. On a busy machine a yield costs a time slice
 * of each process that waits for the processor (7 ms with 8 busy loops on 2
 * cores), and since Linux 6.18 the rest of the caller's own slice. A process
 * that sleeps keeps its place in the queue. So after slow yields the rank
 * sleeps for a moment instead. */
static void job_yield(job *j, double now)
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

/* Sleeps until there may be something to do. A rank that only waits for others
 * of its host is woken by them: many ranks on few processors would have no time
 * to compute if all of them looked all the time. */
static void job_sleep(job *j, dsi_transfer *t)
{
    dsi_shm_nap nap;
    bool messages = false;
    pthread_mutex_lock(&j->mutex);
    for (dsi_transfer *u = j->first; u; u = u->after) messages |= !u->finished && u->shm != t->shm;
    bool woken = t->shm && !messages && !t->finished && dsi_shm_may_sleep(t->shm, &nap);
    pthread_mutex_unlock(&j->mutex);
    if (woken)
        dsi_shm_sleep(t->shm, &nap, SLEEP_S);
    else
        usleep(NAP_US);
}

/* Blocks until t is done; false: it was not within `limit` seconds. */
static bool transfer_wait(dsi_transfer *t, double limit)
{
    job *j = the_job;
    double begun = dsi_now(), moved = begun;
    for (;;) {
        pthread_mutex_lock(&j->mutex);
        bool some = job_progress(j);
        bool done = t->finished;
        pthread_mutex_unlock(&j->mutex);
        if (done) return true;
        double now = dsi_now();
        if (some) moved = now;
        if (now - begun > limit) return false;
        if (t->r->comm->patient) {
            transfer_probe(t);
            usleep(PATIENT_US);
        } else if (now - moved > SPIN_S) {
            transfer_probe(t);
            job_sleep(j, t);
        } else if (now - moved > YIELD_AFTER_S) {
            job_yield(j, now);
        }
    }
}

/* Blocks. Returns DS_OK or does not return: a transfer that cannot end ends the
 * job. */
static ds_status mpi_wait(dsi_request *r)
{
    job *j = the_job;
    dsi_transfer *t = r->own;
    double limit = dsi_comm_time_limit(r->comm);
    if (!transfer_wait(t, limit)) transfer_time_out(t, limit);
    pthread_mutex_lock(&j->mutex);
    job_remove_transfer(j, t);
    pthread_mutex_unlock(&j->mutex);
    return DS_OK;
}

/* ---- life --------------------------------------------------------------------------------------------- */

static ds_comm *mpi_comm_new(const dsi_mpi_place *p)
{
    mpi_place *own = dsi_alloc(sizeof *own);
    *own = (mpi_place){.comm = p->comm};
    ds_comm *c = dsi_comm_new(&dsi_comm_mpi, p->rank, p->size, own);
    c->local_rank = p->local_rank;
    c->local_size = p->local_size;
    return c;
}

/* Collective over c: its ranks share memory from now on, if they are on one
 * host. Else many ranks use MPI's own collectives. */
static void mpi_share_memory(ds_comm *c)
{
    static const char *const kinds[] = {"shared", "messages", "mpi", NULL};
    mpi_place *place = c->own;
    int kind = dsi_env_word_or("DS_COLLECTIVES", kinds, 0, "ranks of a host share memory");
    if (c->size > 1 && c->local_size == c->size) place->shm = dsi_shm_open(c, kind == 0);
    bool many = kind == 0 && !place->shm && c->size > DSI_FEW_RANKS;
    place->by_mpi = c->size > 1 && (kind == 2 || many);
}

/* Collective over c. */
static ds_comm *mpi_split(ds_comm *c, int color, int key)
{
    dsi_mpi_place part;
    if (ds_barrier(c) != DS_OK) return NULL; /* with a time limit, which MPI's split has not */
    pthread_mutex_lock(&the_job->mutex);
    mpi_check("comm_split", the_job->mpi->split(((mpi_place *)c->own)->comm, color, key, &part));
    pthread_mutex_unlock(&the_job->mutex);
    if (!part.comm) return NULL;
    ds_comm *made = mpi_comm_new(&part);
    mpi_share_memory(made);
    return made;
}

/* A rank that has failed alone waits for the others only a moment: they may
 * wait for it elsewhere, and would not if its shutdown were the barrier that
 * they wait in. Where all have failed alike, all come. */
static void job_shutdown_barrier(ds_comm *world)
{
    dsi_request r = {.comm = world, .what = DSI_BARRIER, .shutdown = true, .blocking = true};
    bool alone = ds_error() && !ds_error_is_collective();
    double limit = alone ? DSI_SHUTDOWN_S : dsi_comm_timeout();
    mpi_start(&r);
    if (!transfer_wait(r.own, limit)) {
        if (alone) job_abort(the_job, ds_error());
        transfer_time_out(r.own, limit);
    }
    pthread_mutex_lock(&the_job->mutex);
    job_remove_transfer(the_job, r.own);
    pthread_mutex_unlock(&the_job->mutex);
}

/* An event happens once, on one thread; another waits for it, but not for ever. */
typedef struct event {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool happened;
} event;

static void event_open(event *e)
{
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
}

static void event_close(event *e)
{
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->mutex);
}

static void event_happen(event *e)
{
    pthread_mutex_lock(&e->mutex);
    e->happened = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

static bool event_wait(event *e, double seconds)
{
    double until = dsi_wall_time() + seconds;
    const struct timespec end = {(time_t)until, (long)((until - floor(until)) * 1e9)};
    int error = 0;
    pthread_mutex_lock(&e->mutex);
    while (!e->happened && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&e->changed, &e->mutex, &end);
    bool happened = e->happened;
    pthread_mutex_unlock(&e->mutex);
    return happened;
}

/* MPICH's MPI_Finalize may wait for ever between hosts (mpi_plugin.c). All
 * ranks have passed the shutdown barrier, so that nothing is lost when it is
 * left: it runs on a thread, which ends with the process. */
typedef struct Finalizing {
    const dsi_mpi *mpi;
    event ended;
    const char *wrong;
} Finalizing;

static void *finalize_main(void *arg)
{
    Finalizing *f = arg;
    f->wrong = f->mpi->finalize();
    event_happen(&f->ended);
    return NULL;
}

/* The thread still runs in MPI, whose clean-up at exit would meet it. */
static void leave_at_exit(int status, void *arg)
{
    (void)arg;
    fflush(NULL);
    _exit(status);
}

/* The struct is left to a thread that does not end. */
static const char *finalize_within(const dsi_mpi *mpi, double seconds)
{
    Finalizing *f = dsi_alloc(sizeof *f);
    pthread_t thread;
    f->mpi = mpi;
    event_open(&f->ended);
    if (pthread_create(&thread, NULL, finalize_main, f)) return mpi->finalize();
    if (!event_wait(&f->ended, seconds)) {
        pthread_detach(thread);
        on_exit(leave_at_exit, NULL);
        return NULL;
    }
    pthread_join(thread, NULL);
    const char *wrong = f->wrong;
    event_close(&f->ended);
    dsi_free(f);
    return wrong;
}

static const char *job_finalize(const job *j, bool several_hosts)
{
    return several_hosts && j->mpi->finalize_hangs ? finalize_within(j->mpi, FINALIZE_S)
                                                   : j->mpi->finalize();
}

/* The helper ends before MPI does, as it may be inside of a call. */
static void job_close(job *j, bool several_hosts)
{
    pthread_mutex_lock(&j->mutex);
    j->quit = true;
    pthread_cond_signal(&j->work);
    pthread_mutex_unlock(&j->mutex);
    if (j->helper_runs) pthread_join(j->helper, NULL);
    mpi_check("destroy_process_group", job_finalize(j, several_hosts));
    free(j->kept.p);
    pthread_cond_destroy(&j->work);
    pthread_mutex_destroy(&j->mutex);
    the_job = NULL;
    dsi_free(j);
}

/* Closing the world waits for all ranks, so that none ends while others still
 * receive. */
static void mpi_close(ds_comm *c)
{
    job *j = the_job;
    mpi_place *place = c->own;
    dsi_shm_leave(place->shm);
    if (c == j->world) job_shutdown_barrier(c);
    pthread_mutex_lock(&j->mutex);
    dsi_shm_close(place->shm);
    j->mpi->free(place->comm);
    dsi_free(place);
    pthread_mutex_unlock(&j->mutex);
    if (c == j->world) job_close(j, c->local_size < c->size);
}

/* Runs when the process ends, by exit or by main's return. */
static void job_at_exit(void)
{
    if (!the_job || the_job->aborting) return;
    job_abort(the_job, ds_error()
                           ? ds_error()
                           : "ended without ds_destroy_process_group, so that other ranks may "
                             "wait for it");
}

/* MPI_Init waits for all ranks, without limit, spinning. A thread ends the
 * process if that takes longer than DS_TIMEOUT: nothing can interrupt it. */
typedef struct Joining {
    event ended;
    pthread_t thread;
    bool watched;
    double limit; /* seconds */
} Joining;

static void *joining_watch(void *arg)
{
    Joining *w = arg;
    if (event_wait(&w->ended, w->limit)) return NULL;
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    fprintf(stderr,
            "deepspeed: rank %s of %s: init_distributed: the ranks have not joined within %.3g s "
            "(DS_TIMEOUT): one has ended before, or its messages do not arrive\n",
            rank ? rank : "?", size ? size : "?", w->limit);
    flush_last_line();
    _exit(1);
}

static void joining_begin(Joining *w)
{
    event_open(&w->ended);
    w->watched = !dsi_thread_create(&w->thread, joining_watch, w);
}

static void joining_end(Joining *w)
{
    event_happen(&w->ended);
    if (w->watched) pthread_join(w->thread, NULL);
    event_close(&w->ended);
}

ds_comm *dsi_mpi_world(const char *library)
{
    if (the_job) return dsi_refuse("init_distributed: another thread of this process is the rank");
    const dsi_mpi *mpi = dsi_mpi_open(library);
    if (!mpi) return NULL;
    dsi_mpi_place place;
    Joining joining = {.limit = dsi_comm_timeout()};
    joining_begin(&joining);
    const char *wrong = mpi->init(&place);
    joining_end(&joining);
    if (wrong) return dsi_refuse_with(DS_ECOMM, "init_distributed: %s: %s", library, wrong);
    job *j = dsi_alloc(sizeof *j);
    *j = (job){.mpi = mpi, .max_tag = place.max_tag, .world = mpi_comm_new(&place)};
    pthread_mutex_init(&j->mutex, NULL);
    pthread_cond_init(&j->work, NULL);
    job_start_helper(j, place.local_size);
    the_job = j;
    atexit(job_at_exit);
    mpi_share_memory(j->world);
    return j->world;
}

bool dsi_mpi_takes_gpus(void)
{
    static const char *const kinds[] = {"off", "on", NULL};
    return the_job && dsi_env_word_or("DS_MPI_CUDA", kinds, 0, "the host's memory is used") &&
           the_job->mpi->takes_gpus();
}

static void mpi_abort(ds_comm *c, const char *why)
{
    (void)c;
    job_abort(the_job, why);
}

const dsi_comm_type dsi_comm_mpi = {.name = "mpi",
                                    .close = mpi_close,
                                    .split = mpi_split,
                                    .start = mpi_start,
                                    .wait = mpi_wait,
                                    .abort = mpi_abort};
