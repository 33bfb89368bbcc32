/* tests/engine/local_saves.h: jobs that save to their hosts' folders and load
 * from them; what a load must give.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "local_hosts.h"

#define SHARD_2 "/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"

static RunResult saved, loaded; /* rank 0 at the last save, after the last load */

static inline Job job(int stage, const char *more)
{
    Job j = local_job(stage, more);
    j.result = &saved;
    return j;
}

/* Trains, saves; the state is noted. */
static inline ds_status train_and_save(void *arg)
{
    Job *j = arg;
    RunResult *r = malloc(sizeof *r);
    ds_engine *e = run_engine(&j->plan);
    RANK_CHECK(e && run_steps(e, j->steps, r) == DS_OK);
    ds_status status = ds_engine_save(e, own_dir(j), .tag = j->tag);
    if (status == DS_OK) status = ds_engine_save_wait(e);
    if (status == DS_OK) status = run_end(e, r);
    if (status == DS_OK && ds_comm_rank(ds_world()) == 0) *j->result = *r;
    ds_engine_free(e);
    free(r);
    return status;
}

static inline ds_status load(void *arg)
{
    Job *j = arg;
    RunResult *r = malloc(sizeof *r);
    ds_engine *e = other_engine(j);
    RANK_CHECK(e);
    ds_status status = ds_engine_load(e, own_dir(j), .tag = j->tag);
    if (status == DS_OK) status = run_end(e, r);
    if (status == DS_OK && ds_comm_rank(ds_world()) == 0) *j->result = *r;
    ds_engine_free(e);
    free(r);
    return status;
}

static inline bool same(const RunResult *a, const RunResult *b)
{
    /* the last number is random: each rank's own generator, here after other
     * calls */
    return a->n == b->n && !memcmp(a->x, b->x, (size_t)(a->n - 1) * sizeof *a->x);
}

static inline void run_job(int ranks, ds_status (*body)(void *), Job *j)
{
    if (run_ranks(ranks, body, j) != DS_OK) fail_msg("%s", ds_error());
}

static inline void check_load(int ranks, Job *j, const char *what)
{
    j->result = &loaded;
    run_job(ranks, load, j);
    if (!same(&saved, &loaded)) fail_msg("%s: other values were loaded", what);
}
