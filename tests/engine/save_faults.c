/* tests/engine/save_faults.c: the k-th call of the file system fails while a
 * checkpoint is written, one k after the other: no space, a failing disk, half
 * a write. After any failure, the folder loads as the checkpoint from before
 * or, whole, the new one; and the next save succeeds.
 *
 * The calls are found here in place of libc's: what the program itself defines
 * comes first.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "run.h"

#include "base/mem.h"
#include "engine/checkpoint/folder.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- calls that fail ----------------------------------------------------------------------------------- */

static atomic_int count, fails_at; /* calls so far; which one fails, 0: none */
static int with;                   /* errno; 0: a short write, then ENOSPC */

static bool fails(void)
{
    if (!atomic_load(&fails_at) || atomic_fetch_add(&count, 1) + 1 != atomic_load(&fails_at))
        return false;
    errno = with ? with : ENOSPC;
    return true;
}

#define REAL(name, type) \
    static type real; \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t n)
{
    typedef ssize_t (*write_fn)(int, const void *, size_t);
    REAL("write", write_fn);
    if (fd <= 2 || !fails()) return real(fd, data, n);
    return !with && n > 1 ? real(fd, data, n / 2) : -1;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off_t);
    REAL("pwrite", pwrite_fn);
    if (!fails()) return real(fd, data, n, at);
    return !with && n > 1 ? real(fd, data, n / 2, at) : -1;
}

/* Where a disk is slow, once: a part of the path; NULL: nowhere. And in which
 * call. */
static _Atomic(const char *) slow;
static _Atomic enum slow_call { SYNC, MKDIR, READ } slow_call;

static void wait_where_slow(enum slow_call call, const char *path)
{
    const char *where = slow;
    if (where && call == slow_call && strstr(path, where) && atomic_exchange(&slow, NULL))
        usleep(600000);
}

/* Not done: a test does not wait for the disk. */
static int sync_file(int fd)
{
    char link[64], path[600] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0) wait_where_slow(SYNC, path);
    return fails() ? -1 : 0;
}

int fsync(int fd) { return sync_file(fd); }

int fdatasync(int fd) { return sync_file(fd); }

int rename(const char *from, const char *to)
{
    typedef int (*rename_fn)(const char *, const char *);
    REAL("rename", rename_fn);
    return fails() ? -1 : real(from, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned int flags)
{
    typedef int (*renameat2_fn)(int, const char *, int, const char *, unsigned int);
    REAL("renameat2", renameat2_fn);
    return fails() ? -1 : real(a, from, b, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    typedef int (*mkdir_fn)(const char *, mode_t);
    REAL("mkdir", mkdir_fn);
    wait_where_slow(MKDIR, path);
    return fails() ? -1 : real(path, mode);
}

int open(const char *path, int flags, ...)
{
    typedef int (*open_fn)(const char *, int, ...);
    REAL("open", open_fn);
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (!(flags & O_CREAT)) wait_where_slow(READ, path);
    return fails() ? -1 : real(path, flags, mode);
}

/* The open of two arguments in programs that are built with _FORTIFY_SOURCE, as
 * Ubuntu's compiler does. */
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) { return open(path, flags, 0); }

/* ---- the test ------------------------------------------------------------------------------------------ */

static ds_engine *engine_of(const RunPlan *p)
{
    ds_engine *e = run_engine(p);
    CHECK(e);
    return e;
}

/* The state of a new engine that loads the folder's latest. */
static void what_loads(const RunPlan *p, RunResult *r)
{
    RunPlan fresh = *p;
    fresh.seed = 55;
    ds_engine *e = engine_of(&fresh);
    CHECK(ds_engine_load(e, p->dir) == DS_OK);
    CHECK(run_end(e, r) == DS_OK);
    r->n--; /* the next random number: this thread's, for both engines */
    ds_engine_free(e);
}

static bool same(const RunResult *a, const RunResult *b)
{
    return a->n == b->n && !memcmp(a->x, b->x, (size_t)a->n * sizeof *a->x);
}

/* Saves after one step and after two, the second time with call k failing (0:
 * none). Returns whether there were k calls. */
static bool save_twice(const RunPlan *p, const char *before, const char *tag, int k,
                       ds_status *second)
{
    RunResult r;
    ds_engine *e = engine_of(p);
    CHECK(run_steps(e, 1, &r) == DS_OK);
    CHECK(ds_engine_save(e, p->dir, .tag = before) == DS_OK && ds_engine_save_wait(e) == DS_OK);
    CHECK(run_steps(e, 2, &r) == DS_OK);
    atomic_store(&count, 0), atomic_store(&fails_at, k);
    *second = ds_engine_save(e, p->dir, .tag = tag);
    if (*second == DS_OK) *second = ds_engine_save_wait(e);
    bool made = atomic_load(&count) >= k;
    atomic_store(&fails_at, 0);
    if (*second != DS_OK) CHECK_ERROR("engine_save: ");
    ds_engine_free(e);
    return made;
}

/* Where each run takes long, fewer calls are tried. */
static bool is_slow(void) { return DSI_SANITIZED || quick_gpu(); }

/* The first save has the tag `before`, the second one, which fails, `tag`. */
static void fail_one_after_the_other(const char *before, const char *tag, int error,
                                     const char *more)
{
    static RunResult old, new, r;
    RunPlan p = {.stage = 1, .accumulate = 1, .dtype = "bf16", .seed = 1, .more = more};
    ds_status status = DS_OK;
    with = error;
    p.dir = folder_make();
    save_twice(&p, before, "b", 0, &status);
    what_loads(&p, &new);
    folder_remove();
    bool made = true;
    for (int k = 1; made; k += is_slow() ? 3 : 1) {
        CHECK(k < 1000);
        p.dir = folder_make();
        made = save_twice(&p, before, tag, k, &status);
        what_loads(&p, &r);
        if (k == 1) old = r; /* nothing was done */
        if (!same(&r, &new) && (status == DS_OK || !same(&r, &old)))
            fail_msg("call %d fails: what loads is neither old nor new", k);
        /* the files that it left are no problem */
        if (k % 8 == 1) save_twice(&p, before, tag, 0, &status), what_loads(&p, &r);
        CHECK(k % 8 != 1 || (status == DS_OK && same(&r, &new)));
        folder_remove();
    }
    CHECK(!same(&old, &new));
}

static void no_space(void **state)
{
    (void)state, fail_one_after_the_other("a", "b", ENOSPC, NULL);
}
static void bad_disk(void **state) { (void)state, fail_one_after_the_other("a", "b", EIO, NULL); }
static void short_writes(void **state) { (void)state, fail_one_after_the_other("a", "b", 0, NULL); }
static void same_tag(void **state) { (void)state, fail_one_after_the_other("a", "a", EIO, NULL); }

/* A file system that cannot exchange two names says EINVAL there. */
static void no_exchange(void **state)
{
    (void)state, fail_one_after_the_other("a", "a", EINVAL, NULL);
}

static void behind(void **state)
{
    (void)state;
    fail_one_after_the_other("a", "b", ENOSPC,
                             "\"checkpoint\": {\"async\": true, \"keep_last\": 1},");
}

/* Two names change places there by three renames, some of which were done. */
static void no_exchange_again(void **state)
{
    (void)state;
    static const char *const made[][2] = {
        {"a", ".old-a"}, {".exchanging-a", ".old-a"}, {".exchanging-a", "a"}};
    char version[40];
    for (int done = 0; done < 3; done++) {
        const char *dir = folder_make();
        for (int i = 0; i < 2; i++) {
            snprintf(version, sizeof version, "%s/%s", made[done][i], i ? "older" : "new");
            CHECK(mkdir(folder_path(made[done][i]), 0777) == 0);
            CHECK(mkdir(folder_path(version), 0777) == 0);
        }
        with = EINVAL;
        atomic_store(&count, 0), atomic_store(&fails_at, !done);
        ds_status status = done ? dsi_folder_finish_exchanges(dir)
                                : dsi_folder_restore_old(dir, "a");
        atomic_store(&fails_at, 0);
        if (status != DS_OK) fail_msg("%s", ds_error());
        CHECK(access(folder_path("a/older"), F_OK) == 0 &&
              access(folder_path(".old-a/new"), F_OK) == 0);
        CHECK(access(folder_path(".exchanging-a"), F_OK) != 0);
        folder_remove();
    }
}

/* A job that saves holds a lock on the folder: another one would remove its
 * files. */
static void another_job_saves_there(void **state)
{
    (void)state;
    RunPlan p = {.stage = 1, .accumulate = 1, .dtype = "fp32", .seed = 1, .dir = folder_make()};
    RunResult r;
    ds_engine *e = engine_of(&p);
    CHECK(run_steps(e, 1, &r) == DS_OK && ds_engine_save(e, p.dir) == DS_OK);
    int other = open(p.dir, O_RDONLY | O_DIRECTORY);
    CHECK(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == 0);
    CHECK(mkdirat(other, ".saving-theirs", 0777) == 0);
    int theirs = openat(other, ".saving-theirs", O_RDONLY | O_DIRECTORY);
    CHECK(theirs >= 0 && flock(theirs, LOCK_EX | LOCK_NB) == 0);
    CHECK(ds_engine_save(e, p.dir, .tag = "mine") == DS_ESTATE);
    CHECK_ERROR("another job is saving to");
    close(theirs);
    close(other);
    CHECK(ds_engine_save(e, p.dir, .tag = "mine") == DS_OK);
    ds_engine_free(e);
    folder_remove();
}

/* A child that was forked meanwhile has the same files open. */
static void lock_ends_beside_a_child(void **state)
{
    (void)state;
    dsi_folder_locks locks;
    const char *dir = folder_make();
    CHECK(dsi_folder_begin(dir, "a", false, &locks) == DS_OK);
    pid_t child = fork();
    if (!child) alarm(5), pause(); /* the alarm ends it */
    dsi_folder_unlock(&locks);
    int other = open(dir, O_RDONLY | O_DIRECTORY);
    CHECK(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == 0);
    CHECK(!dsi_folder_is_saved_to(dir));
    close(other);
    CHECK(child > 0 && kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    folder_remove();
}

/* Without a descriptor for its folder, a save counts as alive. */
static void save_is_alive_if_it_cannot_be_opened(void **state)
{
    (void)state;
    const char *dir = folder_make();
    struct rlimit all, few;
    CHECK(mkdir(folder_path(".saving-theirs"), 0777) == 0 && !dsi_folder_is_saved_to(dir));
    int next = open("/dev/null", O_RDONLY);
    CHECK(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &all) == 0);
    few = all;
    few.rlim_cur = (rlim_t)next + 1; /* one for the folder around it */
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    bool alive = dsi_folder_is_saved_to(dir);
    CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0 && alive);
    folder_remove();
}

/* ---- several ranks ------------------------------------------------------------------------------------- */

enum { MOST_RANKS = 4 };

typedef struct Ranks {
    RunPlan plan;
    bool hosts; /* each rank has a folder of its own */
    bool left;  /* its asynchronous save is, to ds_engine_free */
    int k;
    ds_status saved[MOST_RANKS];
    int64_t loaded[MOST_RANKS]; /* global steps of what loads afterwards */
} Ranks;

static const char *rank_dir(const Ranks *r, char *own, size_t bytes)
{
    snprintf(own, bytes, "%s/host%d", r->plan.dir, r->hosts ? ds_comm_rank(ds_world()) : 0);
    return own;
}

static ds_status save_on_ranks(void *arg)
{
    Ranks *r = arg;
    RunResult result;
    char own[300];
    int rank = ds_comm_rank(ds_world());
    const char *dir = rank_dir(r, own, sizeof own);
    ds_engine *e = run_engine(&r->plan), *fresh = NULL;
    RANK_CHECK(e && run_steps(e, 1, &result) == DS_OK && ds_engine_save(e, dir) == DS_OK);
    RANK_CHECK(ds_engine_save_wait(e) == DS_OK && run_steps(e, 2, &result) == DS_OK);
    if (rank == 0) atomic_store(&count, 0), atomic_store(&fails_at, r->k);
    RANK_CHECK(ds_barrier(ds_world()) == DS_OK);
    r->saved[rank] = ds_engine_save(e, dir);
    if (r->saved[rank] == DS_OK) r->saved[rank] = ds_engine_save_wait(e);
    RANK_CHECK(ds_barrier(ds_world()) == DS_OK);
    if (rank == 0) atomic_store(&fails_at, 0);
    if (r->saved[rank] != DS_OK) RANK_CHECK(ds_error() && strstr(ds_error(), "engine_save: "));
    ds_error_clear();
    fresh = run_engine(&r->plan);
    RANK_CHECK(fresh && ds_engine_load(fresh, dir) == DS_OK);
    r->loaded[rank] = ds_engine_global_steps(fresh);
    ds_engine_free(fresh);
    ds_engine_free(e);
    return DS_OK;
}

/* Which call fails on which rank is a matter of chance: all ranks hear of it,
 * and none waits for ever. */
static void on_ranks(const char *more, bool hosts)
{
    bool made = true;
    with = EIO;
    for (int k = 1; made; k += is_slow() ? 17 : 7) {
        Ranks r = {.plan = {.stage = 2, .accumulate = 1, .dtype = "fp32", .seed = 1, .more = more},
                   .hosts = hosts,
                   .k = k};
        r.plan.dir = folder_make();
        if (run_ranks(some_ranks(), save_on_ranks, &r) != DS_OK)
            fail_msg("call %d: %s", k, ds_error());
        for (int i = 0; i < some_ranks(); i++) {
            CHECK_INT(r.saved[i], r.saved[0]);
            CHECK_INT(r.loaded[i], r.loaded[0]);
        }
        CHECK(r.loaded[0] == 2 || (r.loaded[0] == 1 && r.saved[0] != DS_OK));
        made = atomic_load(&count) >= k;
        folder_remove();
    }
}

static void several_ranks(void **state) { (void)state, on_ranks(NULL, false); }

static void several_ranks_behind(void **state)
{
    (void)state, on_ranks("\"checkpoint\": {\"async\": true},", false);
}

#define LOCAL "\"use_node_local_storage\": true"

static void several_hosts(void **state)
{
    (void)state, on_ranks("\"checkpoint\": {" LOCAL "},", true);
}

static void several_hosts_behind(void **state)
{
    (void)state, on_ranks("\"checkpoint\": {\"async\": true, " LOCAL "},", true);
}

static ds_status save_alone(void *arg)
{
    Ranks *r = arg;
    RunResult result;
    char own[300];
    ds_engine *e = run_engine(&r->plan);
    RANK_CHECK(e && run_steps(e, 1, &result) == DS_OK);
    ds_status status = ds_engine_save(e, rank_dir(r, own, sizeof own));
    if (status == DS_OK && !r->left) status = ds_engine_save_wait(e);
    ds_engine_free(e);
    return status == DS_OK ? ds_error_status() : status;
}

static ds_status load_alone(void *arg)
{
    Ranks *r = arg;
    char own[300];
    ds_engine *e = run_engine(&r->plan);
    RANK_CHECK(e && ds_engine_load(e, rank_dir(r, own, sizeof own)) == DS_OK);
    r->loaded[ds_comm_rank(ds_world())] = ds_engine_global_steps(e);
    ds_engine_free(e);
    return DS_OK;
}

/* Not waited for: ds_engine_free does, with the time limit of saves. */
static void left_to_free(Ranks r, const char *where)
{
    r.left = true;
    slow = where;
    if (run_ranks(3, save_alone, &r) != DS_OK) fail_msg("left to ds_engine_free: %s", ds_error());
    CHECK(!slow);
    if (run_ranks(3, load_alone, &r) != DS_OK) fail_msg("left to ds_engine_free: %s", ds_error());
    CHECK_INT(r.loaded[0], 1);
    setenv("DS_SAVE_TIMEOUT", "0.2", 1);
    slow = where;
    CHECK(run_ranks(3, save_alone, &r) != DS_OK);
    CHECK_ERROR("(DS_SAVE_TIMEOUT)");
    slow = NULL;
    unsetenv("DS_SAVE_TIMEOUT");
}

/* One rank's disk takes longer than DS_TIMEOUT, which is for ranks that hang. */
static void slow_disk(void **state)
{
    (void)state;
    static const struct {
        const char *more, *slow;
        bool hosts;
        enum slow_call call;
    } cases[] = {{"\"checkpoint\": {" LOCAL "},", "host2/", true, SYNC},
                 {"\"checkpoint\": {\"async\": true, " LOCAL "},", "host2/", true, SYNC},
                 {NULL, "zero_pp_rank_2", false, SYNC},
                 {"\"checkpoint\": {\"async\": true},", "zero_pp_rank_2", false, SYNC},
                 {NULL, "/.saving-global", false, MKDIR},
                 {NULL, "/latest", false, READ},
                 {NULL, "rank_2_states.pt", false, READ}};
    if (quick_gpu()) return; /* where a step may take that long */
    setenv("DS_TIMEOUT", "0.3", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Ranks r = {.plan = {.stage = 2, .accumulate = 1, .dtype = "fp32", .seed = 1}};
        r.plan.more = cases[i].more, r.hosts = cases[i].hosts;
        r.plan.dir = folder_make();
        slow_call = cases[i].call;
        slow = cases[i].slow;
        if (run_ranks(3, save_on_ranks, &r) != DS_OK) fail_msg("case %zu: %s", i, ds_error());
        CHECK_INT(r.loaded[0], 2);
        CHECK(!slow);
        if (cases[i].call != READ) slow = cases[i].slow;
        setenv("DS_SAVE_TIMEOUT", "0.2", 1);
        CHECK((run_ranks(3, save_alone, &r) != DS_OK) == (cases[i].call != READ));
        slow = NULL;
        if (cases[i].call == SYNC)
            CHECK(ds_error() && strstr(ds_error(), "2 ") && strstr(ds_error(), "/.saving-global"));
        if (cases[i].call != READ) CHECK_ERROR("(DS_SAVE_TIMEOUT)");
        unsetenv("DS_SAVE_TIMEOUT");
        if (cases[i].more && strstr(cases[i].more, "async")) left_to_free(r, cases[i].slow);
        folder_remove();
    }
    unsetenv("DS_TIMEOUT");
}

/* Host 1 comes back empty, and its files are sent to it: call k fails. */
static ds_status load_on_hosts(void *arg)
{
    Ranks *r = arg;
    RunResult result;
    char own[300];
    int rank = ds_comm_rank(ds_world());
    ds_engine *e = run_engine(&r->plan), *fresh = run_engine(&r->plan);
    RANK_CHECK(e && fresh && run_steps(e, 1, &result) == DS_OK);
    RANK_CHECK(ds_engine_save(e, rank_dir(r, own, sizeof own)) == DS_OK);
    ds_engine_free(e);
    if (rank == 1) snprintf(own + strlen(own), 10, "empty");
    if (rank == 0) atomic_store(&count, 0), atomic_store(&fails_at, r->k);
    RANK_CHECK(ds_barrier(ds_world()) == DS_OK);
    r->saved[rank] = ds_engine_load(fresh, own);
    RANK_CHECK(ds_barrier(ds_world()) == DS_OK);
    if (rank == 0) atomic_store(&fails_at, 0);
    ds_error_clear();
    RANK_CHECK(ds_engine_load(fresh, own) == DS_OK);
    r->loaded[rank] = ds_engine_global_steps(fresh);
    ds_engine_free(fresh);
    return DS_OK;
}

static void load_several_hosts(void **state)
{
    (void)state;
    bool made = true;
    with = EIO;
    for (int k = 1; made; k += is_slow() ? 7 : 3) {
        Ranks r = {.plan = {.stage = 2, .accumulate = 1, .dtype = "fp32", .seed = 1}, .k = k};
        r.plan.more = "\"checkpoint\": {" LOCAL "},";
        r.plan.dir = folder_make();
        r.hosts = true;
        if (run_ranks(some_ranks(), load_on_hosts, &r) != DS_OK)
            fail_msg("call %d: %s", k, ds_error());
        for (int i = 0; i < some_ranks(); i++) {
            CHECK_INT(r.saved[i], r.saved[0]);
            CHECK_INT(r.loaded[i], 1);
        }
        made = atomic_load(&count) >= k;
        folder_remove();
    }
}

int main(void)
{
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_space),
                                       cmocka_unit_test(bad_disk),
                                       cmocka_unit_test(short_writes),
                                       cmocka_unit_test(same_tag),
                                       cmocka_unit_test(no_exchange),
                                       cmocka_unit_test(no_exchange_again),
                                       cmocka_unit_test(behind),
                                       cmocka_unit_test(another_job_saves_there),
                                       cmocka_unit_test(lock_ends_beside_a_child),
                                       cmocka_unit_test(save_is_alive_if_it_cannot_be_opened),
                                       cmocka_unit_test(several_ranks),
                                       cmocka_unit_test(several_ranks_behind),
                                       cmocka_unit_test(several_hosts),
                                       cmocka_unit_test(several_hosts_behind),
                                       cmocka_unit_test(load_several_hosts),
                                       cmocka_unit_test(slow_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
