/* tests/engine/resume.c: a run that was saved, freed and loaded continues as
 * one that was not, bit for bit: every stage and dtype, with accumulation, on
 * one rank and on three.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "run.h"

#include "engine/checkpoint/universal.h"

#include <unistd.h>

typedef struct Cut {
    RunPlan plan;
    int at;                     /* step; an epoch has 4 */
    bool universal;             /* loads a universal checkpoint that was made of it */
    RunResult whole[4], cut[4]; /* of each rank */
} Cut;

static ds_status one_run(RunPlan plan, int64_t steps, RunResult *r)
{
    ds_scope *scope = ds_scope_open();
    ds_engine *e = run_engine(&plan);
    ds_status status = e ? DS_OK : ds_error_status();
    if (status == DS_OK && plan.load) status = ds_engine_load(e, plan.dir);
    if (status == DS_OK) status = run_steps(e, steps, r);
    if (status == DS_OK && plan.save) status = ds_engine_save(e, plan.dir);
    if (status == DS_OK && !plan.save) status = run_end(e, r);
    ds_engine_free(e);
    ds_scope_close(scope);
    return status;
}

static ds_status whole_and_first(void *arg)
{
    Cut *c = arg;
    int rank = ds_comm_rank(ds_world());
    RunPlan first = c->plan;
    first.save = true;
    ds_status status = one_run(c->plan, 7, &c->whole[rank]);
    return status == DS_OK ? one_run(first, c->at, &c->cut[rank]) : status;
}

static ds_status rest(void *arg)
{
    Cut *c = arg;
    RunPlan second = c->plan;
    second.load = true;
    second.seed = 99; /* other weights, other numbers: nothing of it may stay */
    if (c->universal) second.more = "\"checkpoint\": {\"load_universal\": true},";
    return one_run(second, 7, &c->cut[ds_comm_rank(ds_world())]);
}

static ds_status make_universal(const Cut *c)
{
    char in[500], out[500];
    snprintf(in, sizeof in, "%s/global_step%d", c->plan.dir, c->at);
    snprintf(out, sizeof out, "%s/universal", c->plan.dir);
    const dsi_universal_opts o = {.in = in, .out = out, .verifiers = 1, .writers = 3};
    return dsi_universal_convert(&o);
}

static void check_equal(const Cut *c, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        const RunResult *a = &c->whole[r], *b = &c->cut[r];
        for (int i = 0; i < 7; i++)
            if (a->loss[i] != b->loss[i])
                fail_msg("stage %d, %s, %d ranks: step %d: %.17g, cut %.17g", c->plan.stage,
                         c->plan.dtype, ranks, i, a->loss[i], b->loss[i]);
        CHECK_INT(a->n, b->n);
        for (int i = 0; i < a->n; i++)
            if (memcmp(&a->x[i], &b->x[i], sizeof a->x[i]) != 0)
                fail_msg("stage %d, %s, %d ranks, rank %d: number %d of %d is %.17g, cut %.17g",
                         c->plan.stage, c->plan.dtype, ranks, r, i, a->n, a->x[i], b->x[i]);
    }
}

static void resume_from(int ranks, int at, RunPlan plan, bool universal)
{
    static Cut c;
    memset(&c, 0, sizeof c);
    c.plan = plan;
    c.at = at;
    c.plan.seed = 1;
    c.plan.dir = folder_make();
    c.universal = universal;
    CHECK_INT(run_ranks(ranks, whole_and_first, &c), DS_OK);
    if (universal) CHECK_INT(make_universal(&c), DS_OK);
    CHECK_INT(run_ranks(ranks, rest, &c), DS_OK);
    check_equal(&c, ranks);
    folder_remove();
}

static void resume(int ranks, int at, RunPlan plan) { resume_from(ranks, at, plan, false); }

/* Averages, loss scale, loader and random numbers go through it too. */
static void universal(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"fp32", "bf16", "fp16", "fp16"};
    for (int stage = 0; stage <= 3; stage++)
        resume_from(stage == 2 ? 1 : 3, 3,
                    (RunPlan){.stage = stage, .accumulate = 1, .dtype = dtypes[stage]}, true);
}

static void one_dtype(const char *dtype)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 1; ranks <= 3; ranks += 2)
            resume(ranks, 3 + stage % 3,
                   (RunPlan){.stage = stage, .accumulate = stage % 2 + 1, .dtype = dtype});
}

static void float32(void **state) { (void)state, one_dtype("fp32"); }
static void float16(void **state) { (void)state, one_dtype("fp16"); }
static void bfloat16(void **state) { (void)state, one_dtype("bf16"); }

static void other_optimizers(void **state)
{
    (void)state;
    static const char *const names[] = {"SGD",   "Adagrad", "Lion", "Lamb",
                                        "NAdam", "RMSprop", "Muon"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        resume(1, 3,
               (RunPlan){.stage = (int)i % 2,
                         .accumulate = 1,
                         .dtype = i % 3 ? "bf16" : "fp32",
                         .optim = names[i]});
    resume(2, 3, (RunPlan){.accumulate = 1, .dtype = "fp32", .optim = "NAdam"});
    resume(2, 3,
           (RunPlan){
               .accumulate = 1, .dtype = "fp32", .optim = "SGD", .options = "\"momentum\": 0.9,"});
    for (int stage = 1; stage <= 3; stage++) /* whole parameters */
        resume(2, 3, (RunPlan){.stage = stage, .accumulate = 1, .dtype = "bf16", .optim = "Muon"});
}

static void behind(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        resume(2, 4,
               (RunPlan){.stage = stage,
                         .accumulate = 1,
                         .dtype = "bf16",
                         .more = "\"checkpoint\": {\"async\": true},"});
}

/* Stage 0 works as stage 1 there. */
static void deterministic(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage += 3)
        resume(2, 3,
               (RunPlan){.stage = stage,
                         .accumulate = 2,
                         .dtype = "bf16",
                         .zero = "\"deterministic\": true,"});
}

/* Experts that ranks share, in stages that have them. */
static void experts(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 2; stage++)
        for (int ep = 1; ep <= 2; ep++)
            resume(stage == 1 ? 4 : 2, 4,
                   (RunPlan){.stage = stage,
                             .accumulate = 1,
                             .dtype = ep == 1 ? "bf16" : "fp32",
                             .ep_size = ep});
}

/* Masters and moments, and parameters, in files. */
static void offloaded(void **state)
{
    (void)state;
    char zero[1024];
    for (int stage = 1; stage <= 3; stage++) {
        snprintf(zero, sizeof zero,
                 "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, %s",
                 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
                 stage == 3 ? "\"offload_param\": {\"device\": \"cpu\"}," : "");
        resume(2, 3,
               (RunPlan){.stage = stage,
                         .accumulate = 1,
                         .dtype = "bf16",
                         .zero = zero,
                         .more = stage == 2 ? "\"checkpoint\": {\"async\": true}," : NULL});
    }
}

/* ---- a parameter without elements ------------------------------------------------------------------------ */

static ds_engine *engine_with_none(int stage, const char *dtype)
{
    char text[400];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 12, \"bf16\": {\"enabled\": %s}, \"optimizer\": {\"type\": "
             "\"Adam\"}, "
             "\"zero_optimization\": {\"stage\": %d, \"stage3_param_persistence_threshold\": 0}}",
             strcmp(dtype, "bf16") ? "false" : "true", stage);
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 5, 7);
    ds_module_param(ds_nn_relu(m, "1"), "none", ds_zeros(DS_F32, ds_shape(0, 3)));
    ds_nn_linear(m, "2", 7, 3);
    return ds_initialize(.model = m, .config = text);
}

static ds_status none_comes_back(void *arg)
{
    for (int i = 0; i < 8; i++) {
        ds_engine *e = engine_with_none(i / 2, i % 2 ? "bf16" : "fp32");
        RANK_CHECK(e);
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_ones(ds_engine_dtype(e), ds_shape(2, 5));
        RANK_CHECK(ds_engine_backward(e, ds_mean(ds_engine_forward(e, x))) == DS_OK);
        RANK_CHECK(ds_engine_step(e) == DS_OK);
        ds_state *state = ds_engine_state(e, true);
        RANK_CHECK(ds_numel(ds_state_get(state, "1.none")) == 0 && ds_state_len(state) == 5);
        RANK_CHECK(ds_engine_save(e, *(const char **)arg) == DS_OK);
        RANK_CHECK(ds_engine_load(e, *(const char **)arg) == DS_OK);
        ds_state_free(state);
        ds_scope_close(scope);
        ds_engine_free(e);
    }
    return DS_OK;
}

static void no_elements(void **state)
{
    (void)state;
    const char *dir = folder_make();
    for (int ranks = 1; ranks <= 3; ranks++)
        CHECK_INT(run_ranks(ranks, none_comes_back, &dir), DS_OK);
    folder_remove();
}

int main(void)
{
    if (!access("/dev/shm", W_OK))
        setenv("TMPDIR", "/dev/shm", 0); /* it does not wait for a disk */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(universal),        cmocka_unit_test(float32),
        cmocka_unit_test(float16),          cmocka_unit_test(bfloat16),
        cmocka_unit_test(other_optimizers), cmocka_unit_test(behind),
        cmocka_unit_test(experts),          cmocka_unit_test(offloaded),
        cmocka_unit_test(deterministic),    cmocka_unit_test(no_elements)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
