/* tests/engine/stop.c: a signal asks a training to end, and all ranks end in the
 * same step.
 * SPDX-License-Identifier: MIT */
#include "run.h"

#include <signal.h>

enum { RANKS = 3, MOST = 20 }; /* they ask in step 1, 2, 4, 8, 16 at the latest */
static int64_t stopped[RANKS];

/* Rank 1 gets the signal after its third step. */
static ds_status train_until_stopped(void *arg)
{
    (void)arg;
    RunPlan p = {.accumulate = 2, .dtype = "fp32", .plain = true, .seed = 1};
    int rank = ds_comm_rank(ds_world());
    ds_engine *e = run_engine(&p);
    ds_status status = e ? DS_OK : ds_error_status();
    RunResult r;
    for (int64_t step = 1; status == DS_OK && step <= MOST; step++) {
        if (step == 4 && rank == 1) raise(SIGUSR1);
        status = run_steps(e, step, &r);
        if (status == DS_OK && ds_engine_should_stop(e)) break;
    }
    stopped[rank] = ds_engine_global_steps(e);
    if (status == DS_OK) RANK_CHECK(ds_engine_should_stop(e)); /* from then on */
    ds_engine_free(e);
    return status;
}

static void ranks_stop_together(void **state)
{
    (void)state;
    CHECK_INT(ds_stop_on_signal(SIGUSR1), DS_OK);
    CHECK_INT(run_ranks(RANKS, train_until_stopped, NULL), DS_OK);
    for (int i = 0; i < RANKS; i++) CHECK_INT(stopped[i], stopped[0]);
    CHECK(stopped[0] >= 3 && stopped[0] < MOST);
    signal(SIGUSR1, SIG_DFL);
}

static void refused(void **state)
{
    (void)state;
    CHECK_INT(ds_stop_on_signal(1000), DS_EINVAL);
    CHECK_ERROR("stop_on_signal: signal 1000: Invalid argument");
    CHECK(!ds_engine_should_stop(NULL));
    ds_error_clear();
}

TEST_MAIN(cmocka_unit_test(ranks_stop_together), cmocka_unit_test(refused))
