/* tests/engine/node_local_kill.c: with checkpoint.use_node_local_storage,
 * processes that save or load are killed, and a host is lost besides. The next
 * load takes the newest save that has returned, or a newer one, with its values
 * to the bit.
 *
 * Calls of rename are found here in place of libc's: what the program itself
 * defines comes first.
 * SPDX-License-Identifier: MIT */
#include "local_hosts.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Memory that the processes share. */
typedef struct Shared {
    int committed;  /* steps of the newest save that has returned */
    double sum[40]; /* of the state after each step */
    int loaded;     /* steps of what was loaded */
    double loaded_sum;
    bool same_tag, no_exchange; /* of two names by the file system */
} Shared;

static Shared *common;

/* ---- calls that kill ----------------------------------------------------------------------------------------- */

static atomic_int count, killed_at; /* calls so far; the one that kills, 0: none */

static void call_rename(void)
{
    if (atomic_load(&killed_at) && atomic_fetch_add(&count, 1) + 1 == atomic_load(&killed_at))
        kill(getpid(), SIGKILL);
}

int rename(const char *from, const char *to)
{
    typedef int (*rename_fn)(const char *, const char *);
    static rename_fn real;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "rename");
    call_rename();
    return real(from, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned int flags)
{
    typedef int (*renameat2_fn)(int, const char *, int, const char *, unsigned int);
    static renameat2_fn real;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "renameat2");
    call_rename();
    if (!common->no_exchange) return real(a, from, b, to, flags);
    errno = EINVAL;
    return -1;
}

/* ---- runs ---------------------------------------------------------------------------------------------------- */

static double state_sum(const RunResult *r)
{
    double sum = 0;
    for (int i = 0; i < r->n - 1; i++) sum += r->x[i] * (1 + i % 17);
    return sum;
}

/* Loads what there is, and saves after each step. */
static ds_status train_and_save_each(void *arg)
{
    Job *j = arg;
    RunResult *r = malloc(sizeof *r);
    ds_engine *e = run_engine(&j->plan);
    RANK_CHECK(e && ds_engine_load(e, own_dir(j), .if_any = true) == DS_OK);
    bool first = ds_comm_rank(ds_world()) == 0;
    for (int64_t step = ds_engine_global_steps(e) + 1; step <= j->steps; step++) {
        RANK_CHECK(run_steps(e, step, r) == DS_OK);
        RANK_CHECK(run_end(e, r) == DS_OK);
        if (first) common->sum[step] = state_sum(r);
        RANK_CHECK(ds_engine_save(e, own_dir(j), .tag = common->same_tag ? "a" : NULL) == DS_OK);
        RANK_CHECK(ds_engine_save_wait(e) == DS_OK);
        if (first) common->committed = (int)step;
    }
    ds_engine_free(e);
    free(r);
    return DS_OK;
}

static ds_status load_and_tell(void *arg)
{
    Job *j = arg;
    RunResult *r = malloc(sizeof *r);
    ds_engine *e = other_engine(j);
    RANK_CHECK(e && ds_engine_load(e, own_dir(j), .if_any = true) == DS_OK);
    RANK_CHECK(run_end(e, r) == DS_OK);
    if (ds_comm_rank(ds_world()) == 0) {
        common->loaded = (int)ds_engine_global_steps(e);
        common->loaded_sum = state_sum(r);
    }
    ds_engine_free(e);
    free(r);
    return DS_OK;
}

/* In a process of its own, which is killed after `after` microseconds, or at
 * its `call`-th call of rename; 0: it is not. True: it was killed. */
static bool in_process(ds_status (*body)(void *), Job *j, long after, int call)
{
    int how;
    pid_t child = fork();
    if (!child) {
        atomic_store(&killed_at, call);
        ds_status status = run_ranks(3, body, j);
        if (status != DS_OK) fprintf(stderr, "# %s\n", ds_error());
        _exit(status != DS_OK);
    }
    CHECK(child > 0);
    if (after) usleep((useconds_t)after), kill(child, SIGKILL);
    CHECK(waitpid(child, &how, 0) == child);
    if (!WIFSIGNALED(how)) CHECK_INT(WEXITSTATUS(how), 0);
    return WIFSIGNALED(how);
}

static void check_loaded(int lost, int at_least)
{
    if (common->loaded < at_least)
        fail_msg("host %d lost: step %d was saved, %d is loaded", lost, at_least, common->loaded);
    if (common->loaded && common->loaded_sum != common->sum[common->loaded])
        fail_msg("host %d lost: step %d has other values", lost, common->loaded);
}

/* ---- at random moments --------------------------------------------------------------------------------------- */

static void kill_round(Job *j, unsigned *seed)
{
    in_process(train_and_save_each, j, 5000 + rand_r(seed) % 150000, 0);
    int lost = rand_r(seed) % 4; /* 3: none */
    if (lost < 3) host_lose(lost);
    int committed = common->committed;
    in_process(load_and_tell, j, 0, 0);
    check_loaded(lost, committed);
    if (common->loaded < 25 && rand_r(seed) % 8) return;
    for (int h = 0; h < 3; h++) host_lose(h); /* from the beginning */
    common->committed = 0;
}

static Job one_rank_a_host(const char *more, int steps)
{
    static const int host[] = {0, 1, 2};
    Job j = local_job(2, more);
    memcpy(j.host, host, sizeof host);
    j.steps = steps;
    hosts_make();
    memset(common, 0, sizeof *common);
    return j;
}

static void killed(const char *more, bool same_tag)
{
    unsigned seed = 7;
    Job j = one_rank_a_host(more, 29);
    common->same_tag = same_tag;
    for (int k = 0; k < (quick() ? 4 : 25); k++) kill_round(&j, &seed);
    folder_remove();
}

static void kill_9(void **state)
{
    (void)state;
    killed("\"checkpoint\": {\"keep_last\": 1, " LOCAL "},", false);
}

static void kill_9_same_tag(void **state)
{
    (void)state;
    killed("\"checkpoint\": {" LOCAL "},", true);
}

static void kill_9_async(void **state)
{
    (void)state;
    killed("\"checkpoint\": {\"keep_last\": 1, \"async\": true, " LOCAL "},", false);
}

/* A job is killed while hosts rename its first checkpoint, and a host is lost:
 * the rest of it does not keep the job from its beginning. */
static void part_of_a_first_save(void **state)
{
    (void)state;
    Job j = one_rank_a_host("\"checkpoint\": {" LOCAL "},", 1);
    common->same_tag = true;
    in_process(train_and_save_each, &j, 0, 0);
    copy_folder(host_path(2, "a"), folder_path("part"));
    for (int h = 0; h < 3; h++) host_lose(h);
    CHECK(mkdir(host_dir[2], 0777) == 0);
    copy_folder(folder_path("part"), host_path(2, "a"));
    common->loaded = -1;
    in_process(load_and_tell, &j, 0, 0);
    CHECK_INT(common->loaded, 0);
    folder_remove();
}

/* ---- two faults ---------------------------------------------------------------------------------------------- */

/* The folder of host h's checkpoint, beside those of hosts. */
static const char *kept(const char *name, int h)
{
    char with[40];
    snprintf(with, sizeof with, "%s%d", name, h);
    return folder_path(with);
}

static bool same_manifest(const char *a, const char *b)
{
    char command[1800];
    snprintf(command, sizeof command, "cmp -s %s/manifest %s/manifest", a, b);
    return system(command) == 0;
}

/* Steps 1 and 2 are saved under one tag, and kept. */
static void versions_keep(Job *j)
{
    static const char *const names[] = {"older", "newer"};
    for (j->steps = 1; j->steps <= 2; j->steps++) {
        in_process(train_and_save_each, j, 0, 0);
        for (int h = 0; h < 3; h++) copy_folder(host_path(h, "a"), kept(names[j->steps - 1], h));
    }
    copy_folder(host_path(0, "latest"), folder_path("latest"));
}

/* The first fault: hosts 0 and 1 have renamed their newer checkpoint, host 2
 * has not. */
static void hosts_stop_between_renames(void)
{
    for (int h = 0; h < 3; h++) {
        host_lose(h);
        CHECK(mkdir(host_dir[h], 0777) == 0);
        copy_folder(folder_path("latest"), host_path(h, "latest"));
        copy_folder(kept(h < 2 ? "newer" : "older", h), host_path(h, "a"));
        if (h < 2) copy_folder(kept("older", h), host_path(h, ".old-a"));
    }
}

/* The second one: at any moment of the load that follows, a host is lost. */
static void lost_in_a_load(void **state)
{
    (void)state;
    Job j = one_rank_a_host("\"checkpoint\": {" LOCAL "},", 0);
    common->same_tag = true;
    versions_keep(&j);
    int step = quick() ? 3 : 1, calls = 0;
    for (int lost = 0; lost < 3; lost++) {
        bool killed = true;
        for (int call = 1; killed; call += step) {
            hosts_stop_between_renames();
            killed = in_process(load_and_tell, &j, 0, call);
            calls += killed;
            host_lose(lost);
            in_process(load_and_tell, &j, 0, 0);
            check_loaded(lost, 1);
        }
    }
    CHECK(calls >= 3);
    folder_remove();
}

/* Of the newer checkpoint the hosts that are here have a part, which stays:
 * hosts that are away may have the rest. A load is killed while it changes
 * names. */
static void kept_without_exchange(void **state)
{
    (void)state;
    Job j = one_rank_a_host("\"checkpoint\": {" LOCAL "},", 0);
    common->same_tag = true;
    versions_keep(&j);
    common->no_exchange = true;
    bool killed = true;
    int calls = 0;
    for (int call = 1; killed; call++) {
        hosts_stop_between_renames();
        host_lose(1);
        killed = in_process(load_and_tell, &j, 0, call);
        calls += killed;
        in_process(load_and_tell, &j, 0, 0);
        check_loaded(1, 1);
        CHECK(same_manifest(host_path(0, ".old-a"), kept("newer", 0)));
    }
    CHECK(calls >= 3);
    folder_remove();
}

int main(void)
{
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0);
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_9),         cmocka_unit_test(kill_9_same_tag),
        cmocka_unit_test(kill_9_async),   cmocka_unit_test(part_of_a_first_save),
        cmocka_unit_test(lost_in_a_load), cmocka_unit_test(kept_without_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
