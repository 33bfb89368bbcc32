/* tests/base/work.c: every item is done once, whatever the number of threads,
 * ranks and nested calls.
 * SPDX-License-Identifier: MIT */
#include "base/work.h"
#include "base/thread.h"
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define ITEMS 1000

typedef struct count {
    _Atomic int times[ITEMS];
    _Atomic int parts;
} count;

static void count_items(void *arg, int64_t begin, int64_t end)
{
    count *c = arg;
    atomic_fetch_add(&c->parts, 1);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&c->times[i], 1);
}

static void check_counts(count *c, int64_t n, int times)
{
    for (int64_t i = 0; i < ITEMS; i++) CHECK_INT(c->times[i], i < n ? times : 0);
}

static void every_item_is_done_once(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 7, 64, 1000};
    static const int64_t sizes[] = {0, 1, 2, 3, 63, 64, 65, 999, 1000},
                         grains[] = {0, 1, 10, 400, 5000};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        CHECK_INT(ds_set_threads(threads[t]), DS_OK);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                count c = {0};
                dsi_parallel(sizes[s], grains[g], count_items, &c);
                check_counts(&c, sizes[s], 1);
                if (grains[g] > 0) CHECK(c.parts <= sizes[s] / grains[g] || c.parts <= 1);
            }
    }
    ds_set_threads(1);
}

static void a_limit_is_kept(void **state)
{
    (void)state;
    ds_set_threads(4);
    for (int limit = 1; limit <= 5; limit++) {
        CHECK_INT(dsi_limit_threads(limit), 0);
        for (int i = 0; i < 50; i++) {
            count c = {0};
            dsi_parallel(ITEMS, 1, count_items, &c);
            check_counts(&c, ITEMS, 1);
            CHECK(c.parts <= limit);
        }
        CHECK_INT(dsi_limit_threads(0), limit);
    }
    ds_set_threads(1);
}

static void negative_sizes_do_nothing(void **state)
{
    (void)state;
    count c = {0};
    dsi_parallel(-5, 1, count_items, &c);
    CHECK_INT(c.parts, 0);
}

/* Plain memory: what one job wrote on one thread the next must see on another. */
static void add_one(void *arg, int64_t begin, int64_t end)
{
    int64_t *x = arg;
    for (int64_t i = begin; i < end; i++) x[i]++;
}

static void jobs_see_what_jobs_before_wrote(void **state)
{
    (void)state;
    static int64_t x[ITEMS];
    memset(x, 0, sizeof x);
    ds_set_threads(3);
    for (int i = 0; i < 20000; i++) {
        dsi_parallel(i % ITEMS, 1, add_one, x); /* cut elsewhere each time */
        if (i % 5000 == 0) usleep(1000);        /* long enough for helpers to fall asleep */
    }
    for (int i = 0; i < ITEMS; i++) CHECK_INT(x[i], 20000 / ITEMS * (ITEMS - 1 - i));
    ds_set_threads(1);
}

static void nested(void *arg, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) dsi_parallel(10, 1, count_items, arg);
}

static void nested_calls_run_inline(void **state)
{
    (void)state;
    count c = {0};
    ds_set_threads(3);
    dsi_parallel(50, 1, nested, &c);
    check_counts(&c, 10, 50);
    CHECK_INT(c.parts, 50);
    ds_set_threads(1);
}

static void set_inside(void *arg, int64_t begin, int64_t end)
{
    (void)begin, (void)end;
    if (ds_set_threads(2) != DS_ESTATE) atomic_fetch_add((_Atomic int *)arg, 1);
}

static void wrong_numbers_are_refused(void **state)
{
    (void)state;
    ds_set_threads(2);
    CHECK_INT(ds_set_threads(0), DS_EINVAL);
    CHECK_ERROR("set_threads: 0 threads");
    CHECK_INT(ds_set_threads(-3), DS_EINVAL);
    CHECK_ERROR("set_threads: -3 threads");
    CHECK_INT(ds_threads(), 2);
    _Atomic int wrong = 0;
    dsi_parallel(8, 1, set_inside, &wrong);
    CHECK_INT(wrong, 0);
    CHECK_ERROR("inside of a parallel kernel");
    ds_set_threads(1);
}

/* Four ranks with helpers each: more threads than a small machine has
 * processors. */
static void *rank(void *arg)
{
    count *c = arg;
    ds_set_threads(3);
    for (int i = 0; i < 300; i++) dsi_parallel(ITEMS, 1, count_items, c);
    return NULL; /* its helpers end with it */
}

static void ranks_have_their_own_helpers(void **state)
{
    (void)state;
    enum { RANKS = 4 };
    static count c[RANKS];
    pthread_t thread[RANKS];
    for (int r = 0; r < RANKS; r++) pthread_create(&thread[r], NULL, rank, &c[r]);
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < RANKS; r++) check_counts(&c[r], ITEMS, 300);
    CHECK_INT(ds_threads(), 1); /* theirs are not ours */
}

static void a_forked_child_works_on(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__) /* it does not follow threads into a child */
    skip();
#endif
    ds_set_threads(3);
    count c = {0};
    dsi_parallel(ITEMS, 1, count_items, &c);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (!child) {
            count d = {0};
            dsi_parallel(ITEMS, 1, count_items, &d);
            int wrong = 0;
            for (int k = 0; k < ITEMS; k++) wrong += d.times[k] != 1;
            ds_set_threads(1);
            _exit(wrong != 0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK_INT(status, 0);
        dsi_parallel(ITEMS, 1, count_items, &c);
    }
    check_counts(&c, ITEMS, 21);
    ds_set_threads(1);
}

/* Of 400,000 elements 1e-39 x 0.5, computed by kernels, how many are 0. Bits
 * are compared: arithmetic here is in the thread's mode too. */
static int64_t zeros_of_tiny(void)
{
    static const uint32_t zero;
    int64_t zeros = 0;
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = ds_scale(ds_full(DS_F32, ds_shape(400000), 1e-39), 0.5);
    const float *p = ds_data(y);
    for (int64_t i = 0; i < ds_numel(y); i++) zeros += !memcmp(&p[i], &zero, sizeof zero);
    ds_scope_close(scope);
    return zeros;
}

static void subnormal_numbers_are_zero_on_demand(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        CHECK_INT(ds_set_threads(threads), DS_OK);
        CHECK_INT(zeros_of_tiny(), 0);
        if (!ds_set_flush_denormal(true)) continue;
        CHECK_INT(zeros_of_tiny(), 400000);
        CHECK(ds_set_flush_denormal(false));
        CHECK_INT(zeros_of_tiny(), 0);
    }
    ds_set_threads(1);
}

/* Signals for the program do not go to helpers; those that a helper's own
 * instructions cause do. */
static void *blocked_signals(void *set)
{
    pthread_sigmask(SIG_BLOCK, NULL, set);
    return NULL;
}

static void helpers_have_the_signals_of_their_mistakes(void **state)
{
    (void)state;
    pthread_t thread;
    sigset_t set;
    CHECK_INT(dsi_thread_create(&thread, blocked_signals, &set), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK(sigismember(&set, SIGTERM) && sigismember(&set, SIGCHLD) && sigismember(&set, SIGALRM));
    CHECK(!sigismember(&set, SIGSEGV) && !sigismember(&set, SIGBUS) && !sigismember(&set, SIGILL));
}

TEST_MAIN(cmocka_unit_test(every_item_is_done_once), cmocka_unit_test(a_limit_is_kept),
          cmocka_unit_test(negative_sizes_do_nothing),
          cmocka_unit_test(jobs_see_what_jobs_before_wrote),
          cmocka_unit_test(nested_calls_run_inline), cmocka_unit_test(wrong_numbers_are_refused),
          cmocka_unit_test(ranks_have_their_own_helpers), cmocka_unit_test(a_forked_child_works_on),
          cmocka_unit_test(subnormal_numbers_are_zero_on_demand),
          cmocka_unit_test(helpers_have_the_signals_of_their_mistakes))
