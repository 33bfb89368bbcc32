/* tests/engine/elastic.c: what 1 to 4 ranks saved in one stage and dtype, 1 to
 * 4 ranks load in another: equal weights and moments to the bit, the same place
 * in the data, the same next loss. A fourth of the loads are from the same
 * checkpoint as a universal one.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "run.h"

#include "base/mem.h"
#include "engine/checkpoint/universal.h"
#include "engine/engine.h"
#include "optim/optim.h"

#include <unistd.h>

#define RANKS 4

/* The float32 weights, and moments, of all elements, put together by the ranks
 * that have them. */
typedef struct State {
    float weights[RUN_ROOM], moment[2][RUN_ROOM];
    int64_t step[16], sample; /* of each parameter; of the first sample of the next batch */
    double loss;              /* of the next step */
} State;

typedef struct Job {
    RunPlan plan;
    State *state;
} Job;

static const char *const dtypes[] = {"fp32", "bf16", "fp16"};

static void note_part(const dsi_optim_param *x, const dsi_flat_param *p, int64_t at, State *s)
{
    size_t bytes = (size_t)(p->end - p->begin) * sizeof(float);
    if (!bytes) return;
    memcpy(s->weights + at + p->begin, ds_data(x->p), bytes);
    for (int i = 0; i < 2 && x->moment[i]; i++)
        memcpy(s->moment[i] + at + p->begin, ds_data(x->moment[i]), bytes);
    s->step[p->index] = x->step;
}

static void note_state(const ds_engine *e, State *s)
{
    const dsi_flat *f = dsi_zero_flat(e->zero);
    int64_t at = 0;
    for (int k = f->n - 1; k >= 0; k--) { /* in the model's order: a layout has another one */
        note_part(&e->optim->params[f->param[k].index], &f->param[k], at, s);
        at += f->param[k].n;
    }
}

static ds_status run(void *arg)
{
    const Job *j = arg;
    RunResult r = {0};
    ds_batch b;
    ds_scope *scope = ds_scope_open();
    ds_engine *e = run_engine(&j->plan);
    ds_status status = e ? DS_OK : ds_error_status();
    if (status == DS_OK && j->plan.load) status = ds_engine_load(e, j->plan.dir);
    if (status == DS_OK) status = run_steps(e, 3, &r);
    if (status == DS_OK) note_state(e, j->state);
    if (status == DS_OK && j->plan.save) status = ds_engine_save(e, j->plan.dir);
    if (status == DS_OK) status = run_steps(e, 4, &r);
    if (ds_comm_rank(ds_world()) == 0) j->state->loss = r.loss[3];
    if (status == DS_OK && ds_loader_next(ds_engine_loader(e), &b) && ds_comm_rank(ds_world()) == 0)
        j->state->sample = b.index[0];
    ds_engine_free(e);
    ds_scope_close(scope);
    return status;
}

static void run_on(int ranks, RunPlan plan, State *s)
{
    Job j = {plan, s};
    memset(s, 0, sizeof *s);
    if (run_ranks(ranks, run, &j) != DS_OK)
        fail_msg("stage %d, %s, %d ranks: %s", plan.stage, plan.dtype, ranks, ds_error());
}

static void check_same(const State *saved, const State *loaded, double tol, const char *what)
{
    bool same = !memcmp(saved->weights, loaded->weights, sizeof saved->weights) &&
                !memcmp(saved->moment, loaded->moment, sizeof saved->moment) &&
                !memcmp(saved->step, loaded->step, sizeof saved->step);
    if (!same) fail_msg("%s: weights, moments or steps differ", what);
    if (saved->sample != loaded->sample)
        fail_msg("%s: the next sample is %lld, %lld when saved", what, (long long)loaded->sample,
                 (long long)saved->sample);
    if (!(fabs(saved->loss - loaded->loss) <= tol))
        fail_msg("%s: the next loss is %.9g, %.9g when saved", what, loaded->loss, saved->loss);
}

/* The folder as a universal checkpoint too. */
static void make_universal(const char *dir)
{
    char in[500], out[500];
    snprintf(in, sizeof in, "%s/global_step3", dir);
    snprintf(out, sizeof out, "%s/universal", dir);
    const dsi_universal_opts o = {.in = in, .out = out, .verifiers = 2, .writers = 2};
    if (dsi_universal_convert(&o) != DS_OK) fail_msg("%s: %s", out, ds_error());
}

/* From `ranks` and stage to all others. */
static void from(int ranks, int stage)
{
    static State saved, loaded;
    char what[100];
    RunPlan p = {.stage = stage,
                 .accumulate = 1,
                 .dtype = dtypes[(ranks + stage) % 3],
                 .plain = true,
                 .seed = 1};
    p.dir = folder_make();
    p.save = true;
    run_on(ranks, p, &saved);
    make_universal(p.dir);
    for (int to = 0; to < 16; to++) {
        if ((DSI_SANITIZED || quick_gpu()) && (to + stage) % 4)
            continue; /* each takes long there */
        RunPlan q = p;
        int on = to / 4 + 1;
        q.stage = to % 4;
        q.dtype = dtypes[(on + q.stage) % 3];
        bool universal = (to + to / 4 + ranks + stage) % 4 == 0; /* each stage and number once */
        q.save = false, q.load = true, q.seed = 77;
        if (universal) q.more = "\"checkpoint\": {\"load_universal\": true},";
        snprintf(what, sizeof what, "%d ranks, stage %d, %s to %d ranks, stage %d, %s%s", ranks,
                 stage, p.dtype, on, q.stage, q.dtype, universal ? ", universal" : "");
        run_on(on, q, &loaded);
        check_same(&saved, &loaded, strcmp(p.dtype, q.dtype) ? 0.02 : 2e-6, what);
    }
    folder_remove();
}

static void on(int ranks)
{
    for (int stage = 0; stage <= 3; stage++) from(ranks, stage);
}

/* 71 samples are 3 batches on two ranks, which repeat one, and 2 on one: there
 * the epoch is over. */
static void shorter_epoch(void **state)
{
    (void)state;
    static State s;
    RunPlan p = {.accumulate = 1,
                 .dtype = "fp32",
                 .plain = true,
                 .seed = 1,
                 .samples = 71,
                 .more = "\"dataloader_drop_last\": true,",
                 .dir = folder_make(),
                 .save = true};
    run_on(2, p, &s);
    p.save = false, p.load = true;
    run_on(1, p, &s);
    folder_remove();
}

/* ---- experts ------------------------------------------------------------------------------------------- */

typedef struct Shared {
    RunPlan plan;
    RunResult r; /* rank 0's */
    int n;       /* numbers of the state when it was saved, or loaded */
    double state[RUN_ROOM], next[2];
} Shared;

static ds_status run_shared(void *arg)
{
    Shared *s = arg;
    RunResult r = {0};
    ds_engine *e = run_engine(&s->plan);
    ds_status status = e ? DS_OK : ds_error_status();
    if (status == DS_OK && s->plan.load) status = ds_engine_load(e, s->plan.dir);
    if (status == DS_OK) status = run_steps(e, 3, &r);
    ds_state *state = status == DS_OK ? ds_engine_state(e, true) : NULL;
    if (state) status = run_note(&r, state);
    if (state && ds_comm_rank(ds_world()) == 0) {
        s->n = r.n;
        memcpy(s->state, r.x, sizeof s->state);
    }
    ds_state_free(state);
    if (status == DS_OK && s->plan.save) status = ds_engine_save(e, s->plan.dir);
    if (status == DS_OK) status = run_steps(e, 5, &r);
    if (ds_comm_rank(ds_world()) == 0) memcpy(s->next, r.loss + 3, sizeof s->next);
    ds_engine_free(e);
    return status;
}

static void share(int ranks, Shared *s)
{
    if (run_ranks(ranks, run_shared, s) != DS_OK)
        fail_msg("stage %d, %d of %d ranks share experts: %s", s->plan.stage, s->plan.ep_size,
                 ranks, ds_error());
}

/* Saved by 2 ranks that share experts, or 4 of which each two do; loaded by
 * others. */
static void experts(void **state)
{
    (void)state;
    static Shared saved, loaded;
    static const int to[][3] = {
        {1, 1, 0}, {2, 2, 1}, {4, 2, 2}, {4, 4, 0}, {2, 1, 1}}; /* ranks, sharing, stage */
    for (int stage = 0; stage <= 2; stage++) {
        saved = (Shared){.plan = {.stage = stage,
                                  .accumulate = 1,
                                  .dtype = "fp32",
                                  .plain = true,
                                  .seed = 1,
                                  .ep_size = 2,
                                  .dir = folder_make(),
                                  .save = true}};
        share(stage == 1 ? 4 : 2, &saved);
        make_universal(saved.plan.dir);
        for (int i = 0; i < 5; i++) {
            loaded = saved;
            loaded.plan.save = false, loaded.plan.load = true, loaded.plan.seed = 50;
            if (i % 2) loaded.plan.more = "\"checkpoint\": {\"load_universal\": true},";
            loaded.plan.ep_size = to[i][1], loaded.plan.stage = to[i][2];
            share(to[i][0], &loaded);
            CHECK_INT(loaded.n, saved.n);
            CHECK(!memcmp(loaded.state, saved.state, (size_t)saved.n * sizeof(double)));
            for (int k = 0; k < 2; k++) CHECK_CLOSE(loaded.next[k], saved.next[k], 2e-5);
        }
        folder_remove();
    }
}

static void from_1(void **state) { (void)state, on(1); }
static void from_2(void **state) { (void)state, on(2); }
static void from_3(void **state) { (void)state, on(3); }
static void from_4(void **state) { (void)state, on(4); }

int main(void)
{
    if (!access("/dev/shm", W_OK))
        setenv("TMPDIR", "/dev/shm", 0); /* it does not wait for a disk */
    const struct CMUnitTest tests[] = {cmocka_unit_test(from_1),        cmocka_unit_test(from_2),
                                       cmocka_unit_test(from_3),        cmocka_unit_test(from_4),
                                       cmocka_unit_test(shorter_epoch), cmocka_unit_test(experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
