/* base/work.c: threads inside a kernel.
 *
 * Each thread that uses them (a rank) has its own pool of helpers, so that
 * ranks never wait for each other. A job is divided into PARTS_PER_THREAD parts
 * for each thread; the parts that no thread has started are bits of one word,
 * `open`:
 *
 *     caller   writes the job, sets the bits, runs part 0, then the parts whose bits are still set, then
 *              waits for the parts that helpers took
 *     helper   sees a bit, clears it (and so owns that part), runs it, counts it as done
 *
 * Helper k begins with the k-th share of the bits, so that the same part of the
 * next kernel finds its data in the same cache. A helper that sleeps, or that
 * the system does not run, takes no bit: the caller runs its parts and is no
 * slower than alone.
 *
 * Helper policy (helper_policy): whether a job uses helpers. One that loses its
 * processor within a part delays the caller by some milliseconds. So the caller
 * counts a credit: the time that helpers have saved it, less its waits for late
 * ones. When the credit falls below 0, another process wants their processor,
 * and the caller works solo for `backoff` times the deficit. backoff doubles
 * each time, up to MAX_BACKOFF, and is 1 again when the credit reaches
 * MAX_CREDIT_NS. So a single delay costs little more than itself, and many of
 * them a tenth of the time. Waking a sleeper costs the caller some ten
 * microseconds, as much as a small job takes: a small job wakes helpers only if
 * another one came less than SPIN_NS before, as more will follow while they are
 * awake; a single one runs on the caller.
 *
 * Helpers look for bits for SPIN_NS (fork and join take some hundred
 * nanoseconds then; to be woken takes a hundred microseconds on a virtual
 * machine), and sleep on a condition variable afterwards: an idle program uses
 * no processor. A thread that has spun for YIELD_AFTER_NS yields at each look,
 * so that many ranks on few processors do not delay each other. A pool has at
 * most as many threads as the process has processors: one more would only take
 * time from the others.
 *
 * Invariants: a pool belongs to the thread that made it, which alone starts
 * jobs; jobs do not nest. A bit is set only while its job is alive, and the
 * caller returns only when each cleared bit is counted in `done`, so that the
 * thread that cleared one may read the job; no generation count is needed.
 * `job` is written only while open is 0. mutex guards falling asleep and quit,
 * never a job.
 * SPDX-License-Identifier: MIT */
#include "work.h"

#include "clock.h"
#include "error.h"
#include "int.h"
#include "mem.h"
#include "thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#define MAX_THREADS      64       /* bits of a word */
#define SPIN_NS          1000000  /* how long a helper looks for work before it sleeps */
#define YIELD_AFTER_NS   20000    /* how long a thread spins before it yields its processor */
#define PARTS_PER_THREAD 4        /* of a job, if there are enough items */
#define LATE_NS          200000   /* a shorter wait of the caller is not a helper's fault */
#define MAX_CREDIT_NS    20000000 /* what was saved long ago does not count */
#define MAX_LOSS_NS      40000000 /* of one wait: a stopped process has not lost hours by helpers */
#define MAX_BACKOFF      16
#define LARGE_JOB_PARTS  8 /* a job that can have fewer parts is a small one */
#define CACHE_LINE       64

typedef struct job {
    void (*body)(void *arg, int64_t begin, int64_t end);
    void *arg;
    int64_t n;
    int parts;
} job;

/* See the head of this file. Only the caller reads and writes it. */
typedef struct helper_policy {
    int64_t credit_ns;         /* saved by helpers, less the waits for late ones: at least 0 */
    int64_t solo_until_ns;     /* by dsi_now_ns: the end of the caller's solo time; 0: none */
    int64_t last_small_job_ns; /* by dsi_now_ns: when one last found sleepers; 0: never */
    int backoff;               /* factor of the next deficit: 1, 2, 4 .. MAX_BACKOFF */
} helper_policy;

typedef struct pool {
    char before[CACHE_LINE];
    _Atomic uint64_t open; /* bit k: part k waits for somebody */
    job job;               /* written only while open is 0 and all parts are done */
    char between[CACHE_LINE];
    _Atomic int done;     /* parts that helpers have finished */
    _Atomic int sleepers; /* helpers that need a signal */
    char after[CACHE_LINE];

    pthread_mutex_t mutex; /* guards falling asleep, and quit */
    pthread_cond_t wake;
    bool quit;
    int helpers;
    int parts_per_thread; /* 1 .. PARTS_PER_THREAD, so that MAX_THREADS bits are enough */
    helper_policy policy;
    struct helper {
        pthread_t thread;
        struct pool *pool;
        int k;
    } helper[MAX_THREADS - 1];
} pool;

static _Thread_local int threads_wanted = 1;
static _Thread_local int limit;   /* threads of a job; 0: all there are */
static _Thread_local pool *mine;  /* NULL until the first job that is worth it */
static _Thread_local bool inside; /* this thread is running a part: what it starts runs inline */

/* ---- the helpers' side -------------------------------------------------------------------------- */

/* Takes the first open part from `like` on, else the first of all; -1: there is
 * none. */
static int part_claim(pool *p, int like)
{
    uint64_t open = atomic_load_explicit(&p->open, memory_order_relaxed);
    while (open) {
        uint64_t from = open >> like << like, bit = from ? from & -from : open & -open;
        if (atomic_compare_exchange_weak_explicit(&p->open, &open, open & ~bit,
                                                  memory_order_acquire, memory_order_relaxed))
            return __builtin_ctzll(bit);
    }
    return -1;
}

static void part_run(const job *j, int part)
{
    j->body(j->arg, j->n * part / j->parts, j->n * (part + 1) / j->parts);
}

/* Looks for an open part for SPIN_NS. */
static bool spin_for_work(pool *p)
{
    int64_t begun = dsi_now_ns(), spent = 0;
    while (spent < SPIN_NS) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&p->open, memory_order_relaxed)) return true;
            dsi_relax();
        }
        spent = dsi_now_ns() - begun;
        if (spent > YIELD_AFTER_NS)
            sched_yield(); /* to a thread that has work: perhaps another rank */
    }
    return false;
}

/* Returns when there is a part to take, or with false when the pool is to end. */
static bool wait_for_work(pool *p)
{
    bool quit = false;
    while (!quit && !spin_for_work(p)) {
        /* The count of sleepers is raised before open is read, and the caller
         * sets open before it reads the count (both in the one order of
         * seq_cst): one of the two sees the other's write. A woken thread spins
         * again: that job may be over, but the next one is near. */
        pthread_mutex_lock(&p->mutex);
        atomic_fetch_add(&p->sleepers, 1);
        if (!p->quit && !atomic_load(&p->open)) pthread_cond_wait(&p->wake, &p->mutex);
        atomic_fetch_sub(&p->sleepers, 1);
        quit = p->quit;
        pthread_mutex_unlock(&p->mutex);
    }
    return !quit;
}

static void *pool_helper_main(void *arg)
{
    struct helper *h = arg;
    inside = true;
    while (wait_for_work(h->pool)) {
        int part;
        while ((part = part_claim(h->pool, h->k * h->pool->parts_per_thread)) >= 0) {
            part_run(&h->pool->job, part);
            atomic_fetch_add_explicit(&h->pool->done, 1, memory_order_release);
        }
    }
    return NULL;
}

/* ---- life of a pool ----------------------------------------------------------------------------- */

static void pool_free(void *arg)
{
    pool *p = arg;
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->quit = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->helpers; i++) pthread_join(p->helper[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    dsi_free(p);
}

/* Helpers do not live on in the child of a fork, and their lock may be held for
 * ever there: the child forgets the pool (some kilobytes), and makes a new one
 * when it needs one. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void forget_pool(void) { mine = NULL; }
static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_pool); }

static void drop_pool(void)
{
    pool_free(mine);
    mine = NULL;
}

static pool *pool_new(int threads)
{
    pool *p = dsi_alloc(sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    int available = dsi_processors();
    p->policy.backoff = 1;
    p->parts_per_thread = (int)dsi_min(MAX_THREADS / threads, PARTS_PER_THREAD);
    for (int k = 1; k < threads && k < available; k++) {
        struct helper *h = &p->helper[p->helpers];
        *h = (struct helper){.pool = p, .k = k};
        if (dsi_thread_create(&h->thread, pool_helper_main, h)) break; /* fewer will do */
        p->helpers++;
    }
    return p;
}

static pool *my_pool(void)
{
    if (mine) return mine;
    pthread_once(&once, watch_forks);
    dsi_at_thread_end(DSI_END_MEMORY, drop_pool);
    return mine = pool_new(threads_wanted);
}

ds_status ds_set_threads(int n)
{
    if (n < 1) return dsi_fail(DS_EINVAL, "set_threads: %d threads, but one at least must work", n);
    if (inside) return dsi_fail(DS_ESTATE, "set_threads: called from inside of a parallel kernel");
    if (n > MAX_THREADS) n = MAX_THREADS;
    if (n != threads_wanted) drop_pool();
    threads_wanted = n;
    return DS_OK;
}

int ds_threads(void) { return threads_wanted; }

/* Helpers inherit the mode when they are started: the next job starts new ones. */
bool ds_set_flush_denormal(bool on)
{
#if defined(__x86_64__)
    enum { FLUSH = 0x8040 }; /* of MXCSR: flush to zero, denormals are zero */
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(on ? mode | FLUSH : mode & ~(unsigned)FLUSH);
#elif defined(__aarch64__)
    uint64_t mode, flush = UINT64_C(1) << 24; /* of FPCR: FZ */
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(on ? mode | flush : mode & ~flush));
#else
    return false;
#endif
    drop_pool();
    return true;
}

int dsi_limit_threads(int n)
{
    int was = limit;
    limit = n;
    return was;
}

/* ---- the caller's side -------------------------------------------------------------------------- */

/* Returns for how many nanoseconds it waited; 0 if it was a moment only. */
static int64_t wait_for_helpers(pool *p, int parts)
{
    int64_t begun = 0, now = 0;
    for (int i = 1; atomic_load_explicit(&p->done, memory_order_acquire) != parts; i++) {
        dsi_relax();
        if (i % 32) continue;
        /* A helper that long in a part may have lost its processor: to us,
         * perhaps. */
        now = dsi_now_ns();
        if (!begun) begun = now;
        if (now - begun > YIELD_AFTER_NS) sched_yield();
    }
    return now - begun;
}

/* Counts a job of which helpers ran helper_parts. Each part took the caller
 * part_ns, and it waited for waited_ns at the end. */
static void policy_count_job(helper_policy *policy, int64_t part_ns, int helper_parts,
                             int64_t waited_ns)
{
    policy->credit_ns = dsi_min(policy->credit_ns + helper_parts * part_ns, MAX_CREDIT_NS);
    if (policy->credit_ns == MAX_CREDIT_NS) policy->backoff = 1;
    if (waited_ns >= LATE_NS) policy->credit_ns -= dsi_min(waited_ns, MAX_LOSS_NS);
    if (policy->credit_ns >= 0) return;
    policy->solo_until_ns = dsi_now_ns() - policy->backoff * policy->credit_ns;
    if (policy->backoff < MAX_BACKOFF) policy->backoff *= 2;
    policy->credit_ns = 0;
}

/* Whether the caller works solo now because helpers were late. */
static bool policy_is_solo(helper_policy *policy)
{
    if (policy->solo_until_ns && dsi_now_ns() >= policy->solo_until_ns) policy->solo_until_ns = 0;
    return policy->solo_until_ns;
}

/* Whether a job of max_parts at most is to wake sleepers. */
static bool policy_wakes(helper_policy *policy, int64_t max_parts)
{
    if (max_parts >= LARGE_JOB_PARTS) return true;
    int64_t now = dsi_now_ns(), before = policy->last_small_job_ns;
    policy->last_small_job_ns = now;
    return now - before < SPIN_NS;
}

/* Parts of a job, max_parts at most. Of a job that is limited, one for each
 * thread, so that no more threads take one. */
static int job_parts(const pool *p, int64_t max_parts)
{
    int parts = (p->helpers + 1) * (limit ? 1 : p->parts_per_thread);
    if (parts > max_parts) parts = (int)max_parts;
    return limit && parts > limit ? limit : parts;
}

static void wake_helpers(pool *p)
{
    pthread_mutex_lock(&p->mutex); /* whoever saw no bit is waiting by now */
    pthread_mutex_unlock(&p->mutex);
    pthread_cond_broadcast(&p->wake);
}

void dsi_parallel(int64_t n, int64_t grain, void (*body)(void *arg, int64_t begin, int64_t end),
                  void *arg)
{
    if (n <= 0) return;
    int64_t max_parts = grain > 1 ? n / grain : n;
    if (max_parts < 2 || threads_wanted == 1 || limit == 1 || inside) {
        body(arg, 0, n);
        return;
    }
    pool *p = my_pool();
    int parts = job_parts(p, max_parts);
    int asleep = atomic_load_explicit(&p->sleepers, memory_order_relaxed);
    bool wake = asleep && policy_wakes(&p->policy, max_parts);
    if (!p->helpers || parts == 1 || (asleep == p->helpers && !wake) ||
        policy_is_solo(&p->policy)) {
        body(arg, 0, n);
        return;
    }
    p->job = (job){body, arg, n, parts};
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    uint64_t all = parts == 64 ? ~(uint64_t)0 : ((uint64_t)1 << parts) - 1;
    atomic_store(&p->open, all & ~(uint64_t)1);
    /* those that fall asleep just now are woken as well: they were awake a
     * moment ago */
    if (atomic_load(&p->sleepers) && (wake || !asleep)) wake_helpers(p);

    inside = true;
    int part = 0, own = 0;
    int64_t begun = dsi_now_ns();
    do {
        part_run(&p->job, part);
        own++;
    } while ((part = part_claim(p, 0)) >= 0);
    inside = false;
    int64_t part_ns = (dsi_now_ns() - begun) / own;
    int64_t waited_ns = wait_for_helpers(p, parts - own);
    policy_count_job(&p->policy, part_ns, parts - own, waited_ns);
}
