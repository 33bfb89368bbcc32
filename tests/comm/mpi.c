/* tests/comm/mpi.c: ranks as processes. Runs tests/comm/collectives and others
 * under each MPI that is here, and itself with trouble of every kind: the job
 * must end, not with status 0, and say why.
 *
 *     test_comm_mpi             the tests
 *     test_comm_mpi TROUBLE     a rank of such a job
 *
 * SPDX-License-Identifier: MIT */
#include "comm/comm.h"
#include "ranks.h"
#include "tensor/tensor.h"

#include <libgen.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a rank --------------------------------------------------------------------------------------------- */

/* n float32 of each rank */
static ds_status gather(int64_t n)
{
    ds_comm *c = ds_world();
    return ds_all_gather(c, ds_empty(DS_F32, ds_shape(ds_comm_size(c), n)),
                         ds_ones(DS_F32, ds_shape(n)));
}

/* The third collective of the last rank, where the others call all_reduce of
 * 5000 float32, or barriers. */
static int make_trouble(const char *trouble, ds_tensor *x)
{
    if (!strcmp(trouble, "killed")) raise(SIGKILL);
    if (!strcmp(trouble, "returns")) return 0;
    if (!strcmp(trouble, "fails") || !strcmp(trouble, "barriers")) {
        ds_fail(DS_EIO, "read: the disk of this rank is gone");
        ds_destroy_process_group();
        return 1;
    }
    if (!strcmp(trouble, "leaves")) ds_destroy_process_group();
    if (!strcmp(trouble, "aborts")) dsi_comm_abort(NULL, "train: the loss is NaN");
    if (!strcmp(trouble, "late")) sleep(100);
    if (!strcmp(trouble, "late size")) usleep(500000); /* the message has arrived by then */
    if (strstr(trouble, "size"))
        ds_all_reduce(NULL, ds_ones(DS_F32, ds_shape(4000)), DS_REDUCE_SUM);
    if (strstr(trouble, "gather")) gather(2);
    if (!strcmp(trouble, "collective")) ds_broadcast(NULL, x, 0);
    if (!strcmp(trouble, "no message")) setenv("DS_TIMEOUT", "1", 1); /* of this rank alone */
    if (!strcmp(trouble, "message") || !strncmp(trouble, "no ", 3)) ds_recv(NULL, x, 0);
    return 1;
}

/* A failure of one rank that all ranks know, and rank 0 takes its time. */
static int fail_together(ds_comm *c)
{
    bool fails = ds_comm_rank(c) == ds_comm_size(c) - 1;
    ds_comm_sync_status(c, fails ? ds_fail(DS_EIO, "read: the disk of this rank is gone") : DS_OK);
    if (ds_comm_rank(c) == 0) {
        ds_perror("rank 0");
        sleep(3); /* longer than a rank waits that fails alone */
    }
    ds_destroy_process_group();
    return 1;
}

/* Of all ranks, and only when the trouble begins: before it a rank may wait
 * longer than a second on a busy machine. */
static void limit_time(const char *trouble)
{
    if (!strcmp(trouble, "late") || !strcmp(trouble, "no sender")) setenv("DS_TIMEOUT", "1", 1);
}

static int run_rank(const char *trouble)
{
    if (ds_init_distributed() != DS_OK) {
        fprintf(stderr, "%s\n", ds_error());
        return 1;
    }
    ds_comm *c = ds_world();
    int last = ds_comm_size(c) - 1, rank = ds_comm_rank(c);
    ds_tensor *x = ds_ones(DS_F32, ds_shape(5000));
    for (int i = 0; i < 5; i++) {
        if (i == 3) limit_time(trouble);
        if (i == 3 && !strcmp(trouble, "together")) return fail_together(c);
        if (i == 3 && rank == last && strcmp(trouble, "none") != 0) return make_trouble(trouble, x);
        if (i == 3 && !strcmp(trouble, "barriers") &&
            (ds_barrier(c) != DS_OK || ds_barrier(c) != DS_OK))
            return 1;
        if (i == 3 && !strcmp(trouble, "far gather") && gather(131072) != DS_OK) return 1;
        if (i == 3 && !strcmp(trouble, "message") && rank == 0)
            ds_send(c, ds_ones(DS_F32, ds_shape(6000)), last);
        if (ds_all_reduce(c, x, DS_REDUCE_AVG) != DS_OK) return 1;
    }
    double item = ds_item(ds_mean(x));
    /* all_reduce 2 (p-1)/p S, five times */
    bool counted = fabs(dsi_comm_volume(c) - 5 * 2.0 * last / (last + 1) * 20000) < 1;
    ds_destroy_process_group();
    return item == 1 && counted ? 0 : 2;
}

/* ---- jobs ------------------------------------------------------------------------------------------------ */

typedef struct mpi {
    const char *name, *mpirun;
} mpi;

/* No network but loopback. Open MPI 5, which has no orterun, does not start on
 * loopback alone. */
static const mpi mpis[] = {
    {"openmpi", "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 "
                "$(if command -v orterun >/dev/null; then echo --mca plm isolated "
                "--mca btl self,vader,tcp --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo; "
                "else echo --mca btl self,sm; fi)"},
    {"mpich", "mpiexec.mpich"}};

static char folder[3000]; /* of this program and the plugins; main sets it */

static bool have(const mpi *m)
{
    char text[4096];
    snprintf(text, sizeof text, "%s/libdeepspeed_%s.so", folder, m->name);
    if (access(text, R_OK) != 0) return false;
    /* Ubuntu 24.04's MPICH waits for a PMIx server, which its mpiexec is not */
    snprintf(text, sizeof text,
             "command -v %.*s >/dev/null && { [ %s = openmpi ] || "
             "! ldd %s/libdeepspeed_mpich.so | grep -q libpmix; }",
             (int)strcspn(m->mpirun, " "), m->mpirun, m->name, folder);
    return system(text) == 0;
}

/* Each job has a temporary folder of its own, because Open MPI's jobs tidy a
 * shared one for each other. A job hangs if one collective takes a minute
 * (DS_TIMEOUT): a busy machine makes the whole job slow, and no collective that
 * slow. `timeout` ends a job that hangs outside of a collective. */
static FILE *start_job(const mpi *m, int n, const char *env, const char *program)
{
    char command[8192];
    snprintf(
        command, sizeof command,
        "own=$(mktemp -d) && env ASAN_OPTIONS=detect_leaks=0 TMPDIR=$own DS_TIMEOUT=60 %s "
        "timeout -k 5 240 %s -n %d %s/%s 2>&1 </dev/null; status=$?; rm -rf \"$own\"; exit $status",
        env, m->mpirun, n, folder, program);
    return popen(command, "r");
}

/* Exit status of the job; what it printed in `said`. 124: it hung. */
static int end_job(FILE *job, char *said, size_t room)
{
    if (!job) return -1;
    size_t have_read = fread(said, 1, room - 1, job);
    said[have_read] = 0;
    while (fgetc(job) != EOF) continue;
    int status = pclose(job);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void check_good(const mpi *m, int n, const char *env, const char *program)
{
    char said[20000];
    if (end_job(start_job(m, n, env, program), said, sizeof said) != 0)
        fail_msg("%s, %d ranks, %s: it said: %s", m->name, n, program, said);
}

typedef struct trouble {
    const char *env, *name, *part; /* of what the job must say; %d is the last rank */
} trouble;

static const trouble troubles[] = {
    {"", "killed", ""},
    {"", "returns", "ended without ds_destroy_process_group"},
    {"", "fails", "read: the disk of this rank is gone"},
    {"", "barriers", "read: the disk of this rank is gone"},
    {"", "aborts", "train: the loss is NaN"},
    {"", "late", "nothing came from rank %d"},
    {"", "size", "calls another collective or another size"},
    {"", "'late size'", "calls another collective or another size"},
    {"", "gather", "calls another collective or another size"},
    {"", "'far gather'", "calls another collective or another size"}, /* 8 bytes, not 2^19 */
    {"", "message", "recv of 5000 float32 from rank 0: rank 0 sent 24000 bytes where 20000 were"},
    {"DS_DEBUG=comm", "message",
     "recv of 5000 float32 from rank 0: ranks do not agree: rank 0 sends 6000 float32"},
    {"DS_DEBUG=comm", "collective", "rank %d calls broadcast of 5000 float32 at root 0"},
    {"", "'no sender'", " s (DS_TIMEOUT); nothing came from rank"},
    {"DS_DEBUG=comm", "'no message'", " s (DS_TIMEOUT); nothing came from rank 0\n"},
    {"WORLD_SIZE=7", "none", "WORLD_SIZE is 7, but"},
    {"", "leaves", "rank %d has left (ds_destroy_process_group) without it"}, /* takes seconds */
};

#define TROUBLES ((int)(sizeof troubles / sizeof *troubles))

/* All at the same time, since a job in trouble mostly waits. */
static void check_troubles(const mpi *m, int n, const char *env)
{
    FILE *job[TROUBLES];
    char text[256], said[20000];
    int troubled = n == 2 ? TROUBLES : TROUBLES - 1;
    for (int i = 0; i < troubled; i++) {
        char name[128], all[256];
        snprintf(name, sizeof name, "test_comm_mpi %s", troubles[i].name);
        snprintf(all, sizeof all, "%s %s", env, troubles[i].env);
        job[i] = start_job(m, n, all, name);
    }
    for (int i = 0; i < troubled; i++) {
        int status = end_job(job[i], said, sizeof said);
        const char *part = troubles[i].part, *rank = strstr(part, "%d");
        snprintf(text, sizeof text, "%s", part);
        if (rank)
            snprintf(text, sizeof text, "%.*s%d%s", (int)(rank - part), part, n - 1, rank + 2);
        if (status == 0 || status == 124 || !strstr(said, text))
            fail_msg("%s, %d ranks, %s %s: status %d, want \"%s\"; it said: %s", m->name, n, env,
                     troubles[i].name, status, text, said);
    }
}

/* The cause is said once: no rank ends the job for it. */
static void check_together(const mpi *m)
{
    char said[20000];
    int status = end_job(start_job(m, 3, "", "test_comm_mpi together"), said, sizeof said);
    if (status != 1 || strstr(said, "deepspeed: rank") ||
        !strstr(said, "rank 0: read: the disk of this rank is gone (rank 2)\n"))
        fail_msg("%s: status %d; it said: %s", m->name, status, said);
}

static void check_mpi(const mpi *m)
{
    int least = quick() ? 2 : 1, most = quick() ? 3 : 4;
    for (int n = least; n <= most; n++) {
        check_good(m, n, "", "test_comm_mpi none");
        if (n != 3) check_good(m, n, "", "test_comm_collectives");
        if (n > 1) check_good(m, n, "", "test_comm_messages");
        if (n % 2 == 0) check_good(m, n, "", "test_engine_moe");
        if (n == 2 || n == 4) check_good(m, n, "DS_COLLECTIVES=messages", "test_comm_collectives");
        if (n >= 3) check_good(m, n, "DS_COLLECTIVES=mpi", "test_comm_collectives");
    }
    /* many ranks wait for the cores most of their time; the messages do not
     * depend on the MPI */
    if (!quick() && m == mpis)
        check_good(m, 9, "DS_TEST_QUICK=1 DS_COLLECTIVES=messages", "test_comm_collectives");
    check_good(m, 2, "DS_DEBUG=comm", "test_comm_collectives");
    /* each request that ends in a trace has begun there */
    check_good(
        m, 2, "DS_TRACE=$own/t",
        "test_comm_mpi none && awk '/\"b\"/ {b++} /\"e\"/ {e++} END {exit !b || b != e}' $own/t*");
    check_good(m, 3, "DS_DEBUG=comm", "test_comm_messages");
    for (int n = 2; n <= most; n += 2) check_troubles(m, n, "");
    check_troubles(m, 2, "DS_COLLECTIVES=messages");
    check_together(m);
}

static void test_mpi(const mpi *m)
{
#if defined(__SANITIZE_THREAD__)
    skip(); /* MPI libraries are not made for it */
#endif
    if (!have(m)) {
        printf("no %s that starts ranks here, or the library was built without it\n", m->name);
        skip();
    }
    check_mpi(m);
}

static void open_mpi(void **state)
{
    (void)state;
    test_mpi(&mpis[0]);
}

static void mpich(void **state)
{
    (void)state;
    test_mpi(&mpis[1]);
}

/* Not under a launcher. */
static void alone(void **state)
{
    (void)state;
    setenv("WORLD_SIZE", "4", 1);
    CHECK_INT(ds_init_distributed(), DS_ECOMM);
    CHECK_ERROR(
        "WORLD_SIZE is 4, but this process was not started by an MPI launcher: use mpirun -n 4");
    setenv("WORLD_SIZE", "two", 1);
    CHECK_INT(ds_init_distributed(), DS_EINVAL);
    CHECK_ERROR("init_distributed: WORLD_SIZE=two: expected a number of ranks, from 1");
    setenv("WORLD_SIZE", "1", 1);
    setenv("DS_TIMEOUT", "never", 1);
    CHECK_INT(ds_init_distributed(), DS_EINVAL);
    CHECK_ERROR("init_distributed: DS_TIMEOUT=never: expected seconds, from 0.001 to 1e9");
    unsetenv("DS_TIMEOUT");
    CHECK_INT(ds_init_distributed(), DS_OK);
    CHECK_INT(ds_init_distributed(), DS_OK);
    CHECK(ds_is_distributed());
    CHECK_INT(ds_comm_size(ds_world()), 1);
    ds_destroy_process_group();
    unsetenv("WORLD_SIZE");
    CHECK(!ds_is_distributed());
}

int main(int argc, char **argv)
{
    if (argc > 1) return run_rank(argv[1]);
    char path[2000] = "";
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 1;
    snprintf(folder, sizeof folder, "%s", dirname(path));
    const struct CMUnitTest tests[] = {cmocka_unit_test(alone), cmocka_unit_test(open_mpi),
                                       cmocka_unit_test(mpich)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
