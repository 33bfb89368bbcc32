/* tests/launcher/verdict.c: which of all that went wrong was the cause.
 * SPDX-License-Identifier: MIT */
#include "verdict.h"

#include "check.h"

#include <errno.h>

enum { RANKS = 3 };

typedef struct happening {
    int rank;
    ending how;
} happening;

typedef struct case_ {
    const char *name;
    happening seen[RANKS + 1]; /* in this order; the first without process ends them */
    facts f;
    bool hydra;
    int status;
    const char *line; /* part of it; NULL: none */
} case_;

static const case_ cases[] = {
    {"all well", {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}}, .status = 0},
    {"one exits, the others are ended",
     {{1, {.code = 3, .process = 2}},
      {0, {.signal = 15, .asked = true, .process = 1}},
      {2, {.signal = 9, .asked = true, .process = 3}}},
     .f = {.engine_status = 1},
     .status = 3,
     .line = "rank 1 on b (process 2) train exits with return code = 3"},
    {"killed after others had been told to end by an engine that aborts",
     {{0, {.signal = 15, .asked = true, .process = 1}},
      {2, {.code = 7, .asked = true, .process = 3}}},
     .f = {.engine_status = 7},
     .status = 7,
     .line = "rank 2 on c (process 3) train exits with return code = 7"},
    {"killed for want of memory",
     {{0, {.signal = 9, .no_memory = true, .process = 1}}},
     .status = 137,
     .line =
         "was killed by signal 9 (SIGKILL) for want of memory; train exits with return code = 137"},
    {"not executable",
     {{0, {.error = EACCES, .process = 1}}},
     .status = 126,
     .line = "train: Permission denied"},
    {"said already", {{0, {.code = 2, .told = true, .process = 1}}}, .status = 2},
    {"the engine ends all of them and says why",
     {{0, {.signal = 9, .asked = true, .process = 1}}},
     .f = {.engine_status = 7},
     .status = 7,
     .line = "mpirun has ended the ranks and exits with return code = 7"},
    {"the engine ends all of them and says 0",
     {{0, {.signal = 9, .asked = true, .process = 1}}},
     .status = 137,
     .line = "rank 0 on a"},
    {"the engine starts none", .f = {.engine_status = 213}, .status = 213,
     .line = "mpirun exits with"},
    {"the engine ends with 0 and no rank has said anything", .status = 1,
     .line = "mpirun has ended, but 3 of 3 ranks have not said how they did"},
    {"one without MPI_Finalize",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .f = {.engine_status = 1},
     .status = 1,
     .line = "although each rank ended with 0"},
    {"hydra dies of SIGPIPE after all",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .f = {.engine_status = 141},
     .hydra = true,
     .status = 0},
    {"the engine hangs in the end",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .f = {.engine_status = 137, .engine_hung = true},
     .status = 0,
     .line = "did not end after its ranks"},
    {"a full disk",
     {{0, {.process = 1}}, {1, {.process = 2}}, {2, {.process = 3}}},
     .f = {.unwritten = ENOSPC},
     .status = 1,
     .line = "could not be written: No space left on device"},
    {"a reader that has left",
     {{0, {.signal = 15, .asked = true, .process = 1}}},
     .f = {.unwritten = EPIPE, .engine_status = 1},
     .status = 141,
     .line = "Broken pipe; all ranks are ended"},
    {"a rank that fails beside that",
     {{0, {.code = 3, .process = 1}}},
     .f = {.unwritten = EPIPE},
     .status = 3,
     .line = "rank 0"},
    {"Ctrl-C",
     {{1, {.signal = 2, .process = 2}}},
     .f = {.signal = 2},
     .status = 130,
     .line = "signal 2 (SIGINT)"},
    {"a rank that does not know which it is", .f = {.rank_lost = true, .engine_status = 1},
     .status = 1},
    {"a node is lost",
     {{1, {.signal = 9, .process = 2}}},
     .f = {.node_lost = true, .engine_status = 205},
     .status = 1}};

static void causes(void **state)
{
    (void)state;
    const char *const host[] = {"a", "b", "c"};
    char *argv[] = {(char *)"/usr/bin/mpirun", NULL}, **commands[] = {argv};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const case_ *c = &cases[i];
        rank_state rank[RANKS] = {0};
        dsi_text line = {0};
        facts f = c->f;
        const job j = {.commands = commands,
                       .n_commands = 1,
                       .size = RANKS,
                       .host = host,
                       .program = "train",
                       .hydra = c->hydra};
        f.rank = rank;
        f.first = -1;
        for (const happening *h = c->seen; h->how.process; h++) facts_note(&f, h->rank, &h->how);
        int status = verdict(&f, &j, &line);
        bool same = c->line ? line.s && strstr(line.s, c->line) : !line.n;
        if (status != c->status || !same)
            fail_msg("%s: status %d, want %d; line: %s", c->name, status, c->status,
                     line.s ? line.s : "none");
        dsi_text_free(&line);
    }
}

TEST_MAIN(cmocka_unit_test(causes))
