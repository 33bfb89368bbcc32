/* tests/launcher/job_result.c: which of several failures was the cause.
 * SPDX-License-Identifier: MIT */
#include "job_result.h"

#include "check.h"

#include <errno.h>

enum { RANKS = 3 };

typedef struct event {
    int rank;
    rank_exit exit;
} event;

typedef struct case_ {
    const char *name;
    event seen[RANKS + 1]; /* in this order; the first without process ends them */
    job_result r;
    bool status_ignored;
    int status;
    const char *line; /* part of it; NULL: none */
} case_;

static const case_ cases[] = {
    {"all well", {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}}, .status = 0},
    {"one exits, the others are ended",
     {{1, {.code = 3, .process = 2}},
      {0, {.signal = 15, .requested = true, .process = 1}},
      {2, {.signal = 9, .requested = true, .process = 3}}},
     .r = {.runner_status = 1},
     .status = 3,
     .line = "rank 1 on b (process 2) train exits with return code = 3"},
    {"killed after others had been told to end by a runner that aborts",
     {{0, {.signal = 15, .requested = true, .process = 1}},
      {2, {.code = 7, .requested = true, .process = 3}}},
     .r = {.runner_status = 7},
     .status = 7,
     .line = "rank 2 on c (process 3) train exits with return code = 7"},
    {"killed for want of memory",
     {{0, {.signal = 9, .out_of_memory = true, .process = 1}}},
     .status = 137,
     .line =
         "was killed by signal 9 (SIGKILL) for want of memory; train exits with return code = 137"},
    {"not executable",
     {{0, {.error = EACCES, .process = 1}}},
     .status = 126,
     .line = "train: Permission denied"},
    {"said already", {{0, {.code = 2, .reported = true, .process = 1}}}, .status = 2},
    {"the runner ends all of them and says why",
     {{0, {.signal = 9, .requested = true, .process = 1}}},
     .r = {.runner_status = 7},
     .status = 7,
     .line = "mpirun has ended the ranks and exits with return code = 7"},
    {"the runner ends all of them and says 0",
     {{0, {.signal = 9, .requested = true, .process = 1}}},
     .status = 137,
     .line = "rank 0 on a"},
    {"the runner starts none", .r = {.runner_status = 213}, .status = 213,
     .line = "mpirun exits with"},
    {"the runner ends with 0 and no rank has said anything", .status = 1,
     .line = "mpirun has ended, but 3 of 3 ranks have not reported how they ended"},
    {"one without MPI_Finalize",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .r = {.runner_status = 1},
     .status = 1,
     .line = "although each rank ended with 0"},
    {"hydra dies of SIGPIPE after all",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .r = {.runner_status = 141},
     .status_ignored = true,
     .status = 0},
    {"the runner hangs in the end",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .r = {.runner_status = 137, .runner_hung = true},
     .status = 0,
     .line = "did not end after its ranks"},
    {"a full disk",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .r = {.output_error = ENOSPC},
     .status = 1,
     .line = "could not be written: No space left on device"},
    {"a reader that has left",
     {{0, {.signal = 15, .requested = true, .process = 1}}},
     .r = {.output_error = EPIPE, .runner_status = 1},
     .status = 141,
     .line = "Broken pipe; all ranks are ended"},
    {"a rank that fails beside that",
     {{0, {.code = 3, .process = 1}}},
     .r = {.output_error = EPIPE},
     .status = 3,
     .line = "rank 0"},
    {"Ctrl-C",
     {{1, {.signal = 2, .process = 2}}},
     .r = {.signal = 2},
     .status = 130,
     .line = "signal 2 (SIGINT)"},
    {"a rank that does not know which it is",
     .r = {.unknown_rank_failed = true, .runner_status = 1}, .status = 1},
    {"a node is lost",
     {{1, {.signal = 9, .process = 2}}},
     .r = {.node_lost = true, .runner_status = 205},
     .status = 1},
    {"the runner is killed, and a rank dies of it first",
     {{1, {.signal = 13, .process = 2}}},
     .r = {.runner_signal = 9, .runner_process = 70, .runner_status = 137},
     .status = 137,
     .line = "deepspeed: mpirun (process 70) on "},
    {"the runner is killed for want of memory",
     .r = {.runner_signal = 9, .runner_status = 137, .out_of_memory = true}, .status = 137,
     .line = "was killed by signal 9 (SIGKILL) for want of memory; all ranks are ended"},
    {"a runner that crashes because a rank has failed",
     {{2, {.code = 3, .process = 3}}},
     .r = {.runner_signal = 11, .runner_status = 139},
     .status = 3,
     .line = "rank 2 on c"},
    {"a runner that crashes", .r = {.runner_signal = 11, .runner_status = 139}, .status = 139,
     .line = "killed by signal 11 (SIGSEGV)"},
    {"hydra's SIGPIPE at a good end",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .r = {.runner_signal = 13, .runner_status = 141},
     .status_ignored = true,
     .status = 0},
    {"the launcher's first process is killed", .r = {.signal = 15, .launcher_killed = 71},
     .status = 137, .line = "deepspeed: the launcher (process 71) on "},
    {"no rank starts", .r = {.start_timeout = 60}, .status = 1,
     .line = "within 60 s (--start_timeout) from a (rank 0), b (rank 1), c (rank 2): every TCP "
             "port"}};

static void causes(void **state)
{
    (void)state;
    const char *const host[] = {"a", "b", "c"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const case_ *c = &cases[i];
        rank_state rank[RANKS] = {0};
        dsi_text line = {0};
        job_result r = c->r;
        r.size = RANKS;
        r.host = host;
        r.program = "train";
        r.runner = "mpirun";
        r.status_ignored = c->status_ignored;
        r.rank = rank;
        r.first = -1;
        for (const event *e = c->seen; e->exit.process; e++)
            job_result_add_exit(&r, e->rank, &e->exit);
        int status = job_result_status(&r, &line);
        bool same = c->line ? line.s && strstr(line.s, c->line) : !line.n;
        if (status != c->status || !same)
            fail_msg("%s: status %d, want %d; line: %s", c->name, status, c->status,
                     line.s ? line.s : "none");
        dsi_text_free(&line);
    }
}

/* Reports of hosts, and lines of mpirun about one. */
static void hosts(void **state)
{
    (void)state;
    static const char up[] = "0 1 70 0 b ", connected[] = "4 1 70 0 b 10.0.0.1, port 99",
                      cut[] = "1 2 70 0 elsewhere 10.0.0.1, port 99\n",
                      killed[] = "3 2 71 9 c orted",
                      text[] = "ORTE has lost communication\n  HNP daemon   : [[1,0],0] on node a\n"
                               "  Remote daemon: [[1,0],1] on node b\n";
    const char *const host[] = {"nohost-a.invalid", "b", "c"};
    rank_state rank[RANKS] = {0};
    node_event e;
    dsi_text line = {0};
    job_result r = {.size = RANKS, .host = host, .runner = "mpirun", .rank = rank, .first = -1};
    CHECK(!node_event_read(&e, "", 0) && !node_event_read(&e, "9 1 2 3 b", 9));
    CHECK(node_event_read(&e, up, sizeof up - 1) && e.kind == NODE_UP);
    job_result_add_node(&r, &e);
    CHECK(rank[1].node_up && !rank[0].node_up && !rank[2].node_up);
    r.start_timeout = 5;
    CHECK_INT(job_result_status(&r, &line), 1); /* b was heard */
    CHECK(strstr(line.s, "from nohost-a.invalid (rank 0), c (rank 2): every TCP port"));
    dsi_text_free(&line);
    CHECK(node_event_read(&e, connected, sizeof connected - 1) && e.kind == NODE_CONNECTED);
    rank[0].process = 5;
    job_result_add_node(&r, &e);
    CHECK_INT(job_result_status(&r, &line), 1); /* what c has is not known */
    CHECK(strstr(line.s, "from c (rank 2): every TCP port"));
    dsi_text_free(&line);
    rank[2].node_up = rank[2].node_connected = true;
    CHECK_INT(job_result_status(&r, &line), 1);
    CHECK(strstr(line.s, "from b (rank 1), c (rank 2): mpirun is connected to the hosts, but"));
    dsi_text_free(&line);
    rank[0].process = 0;
    CHECK(node_event_read(&r.node, cut, sizeof cut - 1));
    CHECK_INT(job_result_status(&r, &line), 1); /* by its number in the order of hosts */
    CHECK(strstr(line.s, "deepspeed: c cannot connect to 10.0.0.1, port 99, where mpirun waits"));
    dsi_text_free(&line);
    CHECK(node_event_read(&r.node, killed, sizeof killed - 1));
    CHECK_INT(job_result_status(&r, &line), 137);
    CHECK(strstr(line.s, "deepspeed: orted (process 71) on c was killed by signal 9 (SIGKILL)"));
    dsi_text_free(&line);
    r.node = (node_event){0};
    r.runner_status = 205;
    CHECK(!job_result_read_loss(&r, text, 20));
    CHECK(job_result_read_loss(&r, text, sizeof text - 1));
    CHECK_INT(job_result_status(&r, &line), 205);
    CHECK(strstr(line.s, "deepspeed: mpirun has lost b: "));
    dsi_text_free(&line);
}

TEST_MAIN(cmocka_unit_test(causes), cmocka_unit_test(hosts))
