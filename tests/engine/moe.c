/* tests/engine/moe.c: training with experts that ranks share: the parameters of
 * a single process, whatever the stage, ep_size, k; their norm, clipping,
 * groups; what is refused. Under mpirun the ranks are its processes, and only
 * the first plan runs.
 * SPDX-License-Identifier: MIT */
#include "nn/moe.h"
#include "folder.h"
#include "optim/optim.h"
#include "ranks.h"

#include <unistd.h>

#define MICRO   12   /* tokens of a rank in a step */
#define BATCHES 4    /* micro batches of a step, on all ranks together */
#define ROOM    4000 /* parameters */
#define HIDDEN  8

/* ---- the network: linear, experts, linear --------------------------------------------------------------- */

typedef struct Plan {
    int stage, ep_size, k, experts, steps;
    bool residual, keep_all, norm, adam;
    bool divided; /* parameters are divided as they are made */
    double clip;
    const char *dtype;
    const char *save,
        *load; /* a folder: saved after half of the steps; loaded before the second half */
} Plan;

typedef struct Net {
    ds_module *in, *moe, *out;
} Net;

static ds_tensor *net_forward(void *self, ds_tensor *x)
{
    Net *net = self;
    x = ds_relu(ds_call(net->in, x));
    return ds_call(net->out, ds_add(x, ds_call(net->moe, x)));
}

/* With a buffer and several layers of its own. */
static ds_module *expert(ds_module *parent, const char *name, void *arg)
{
    const Plan *p = arg;
    ds_module *m = ds_nn_sequential(parent, name);
    ds_nn_linear(m, "0", HIDDEN, 2 * HIDDEN);
    if (p->norm)
        ds_nn_layer_norm(m, "1", ds_shape(2 * HIDDEN));
    else
        ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", 2 * HIDDEN, HIDDEN);
    return m;
}

/* Experts begin with values of their own: by their number, so that it is the
 * same on any ranks. */
static void set_experts_apart(ds_module *net)
{
    for (int i = 0; i < ds_module_params(net); i++) {
        ds_tensor *p = ds_module_param_at(net, i, NULL);
        dsi_expert e = dsi_module_expert_of(net, p);
        if (e.of) ds_copy(ds_detach(p), ds_scale(ds_detach(p), 1 + 0.1 * e.number));
    }
}

static ds_module *net_new(const Plan *p)
{
    static const ds_module_type type = {"Net", sizeof(Net), .forward = net_forward};
    ds_seed(3);
    ds_module *m = ds_module_new(NULL, "net", &type);
    Net *net = ds_self(m);
    net->in = ds_nn_linear(m, "in", 6, HIDDEN);
    net->moe = ds_nn_moe(m, "moe", HIDDEN, expert, .arg = (void *)p, .num_experts = p->experts,
                         .ep_size = p->ep_size, .k = p->k, .use_residual = p->residual,
                         .min_capacity = -1, .no_drop_tokens = p->keep_all, .no_rts = true,
                         .no_top2_2nd_expert_sampling = true);
    net->out = ds_nn_linear(m, "out", HIDDEN, 5);
    if (!ds_error()) set_experts_apart(m);
    return m;
}

/* ---- a run ------------------------------------------------------------------------------------------------ */

typedef struct Run {
    Plan plan;
    float x[BATCHES][ROOM]; /* every rank's whole parameters after the last step */
    double norm[BATCHES];
    int n, groups;
} Run;

static double value_of(int64_t i) { return sin(0.37 * (double)i * (double)(i % 13 + 1)); }

/* Micro batch b of a step. */
static void batch_of(int step, int b, ds_dtype dtype, ds_tensor **in, ds_tensor **labels)
{
    float x[MICRO * 6];
    int64_t y[MICRO], from = ((int64_t)step * BATCHES + b) * MICRO;
    for (int64_t i = 0; i < MICRO * 6; i++) x[i] = (float)(value_of(from * 6 + i) + 0.3 * b);
    for (int64_t i = 0; i < MICRO; i++) y[i] = (from + i * i) % 5;
    *in = ds_cast(ds_from_data(DS_F32, ds_shape(MICRO, 6), x), dtype);
    *labels = ds_from_data(DS_I64, ds_shape(MICRO), y);
}

static ds_tensor *loss_of(ds_engine *e, int step, int b)
{
    ds_tensor *in, *labels;
    batch_of(step, b, ds_engine_dtype(e), &in, &labels);
    ds_tensor *loss = ds_cross_entropy(ds_engine_forward(e, in), labels);
    ds_tensor *aux = ds_moe_aux_loss(ds_engine_module(e));
    return ds_add(ds_cast(loss, DS_F32), ds_scale(aux, 0.1));
}

static ds_engine *engine_of(const Plan *p)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"train_batch_size\": %d, "
             "\"steps_per_print\": 0, \"gradient_clipping\": %g, "
             "\"zero_allow_untested_optimizer\": true, \"optimizer\": {\"type\": \"%s\", "
             "\"params\": {\"lr\": %g}}, \"bf16\": {\"enabled\": %s}, \"zero_optimization\": "
             "{\"stage\": %d, \"reduce_bucket_size\": 300, \"overlap_comm\": true, "
             "\"stage3_param_persistence_threshold\": 20, \"compute_grad_norm\": true}}",
             MICRO, MICRO * BATCHES, p->clip, p->adam ? "Adam" : "SGD", p->adam ? 1e-3 : 0.2,
             p->dtype && !strcmp(p->dtype, "bf16") ? "true" : "false", p->stage);
    if (p->divided) ds_zero_init();
    ds_module *net = net_new(p);
    if (p->divided) ds_zero_init_end();
    return ds_initialize(.model = net, .config = config);
}

static ds_status one_step(ds_engine *e, int step)
{
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world());
    ds_status status = DS_OK;
    for (int m = 0; status == DS_OK && m < BATCHES / ranks; m++) {
        ds_scope *scope = ds_scope_open();
        status = ds_engine_backward(e, loss_of(e, step, m * ranks + rank));
        if (status == DS_OK) status = ds_engine_step(e);
        ds_scope_close(scope);
    }
    return status;
}

static int keep_values(ds_engine *e, float *x)
{
    int at = 0;
    ds_state *state = ds_engine_state(e, true);
    for (int i = 0; i < ds_state_len(state); i++) {
        ds_tensor *t = ds_state_at(state, i);
        int64_t n = ds_numel(t);
        if (at + n > ROOM) break;
        memcpy(x + at, ds_data(ds_cast(t, DS_F32)), (size_t)n * sizeof *x);
        at += (int)n;
    }
    ds_state_free(state);
    return at;
}

static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world());
    ds_engine *e = engine_of(&run->plan);
    ds_status status = e ? DS_OK : ds_error_status();
    int steps = run->plan.steps, from = run->plan.load ? steps / 2 : 0;
    if (status == DS_OK && run->plan.load) status = ds_engine_load(e, run->plan.load);
    if (status == DS_OK && ds_engine_global_steps(e) != from)
        status = ds_fail(DS_ESTATE, "%lld steps", (long long)ds_engine_global_steps(e));
    for (int i = from; status == DS_OK && i < steps; i++) {
        status = one_step(e, i);
        if (status == DS_OK && run->plan.save && i + 1 == steps / 2)
            status = ds_engine_save(e, run->plan.save);
    }
    if (status == DS_OK) {
        run->norm[rank] = ds_engine_global_grad_norm(e);
        int n = keep_values(e, run->x[rank]), groups = ds_optim_groups(ds_engine_optimizer(e));
        if (!rank || under_mpirun()) run->n = n, run->groups = groups;
        if (ds_error()) status = ds_error_status();
    }
    ds_engine_free(e);
    return status;
}

/* As threads; under mpirun all processes run it, and this one looks at what it
 * has itself. */
static void run_on(int ranks, Run *run)
{
    ds_status status = ranks > 1 && under_mpirun() ? train(run) : run_ranks(ranks, train, run);
    if (status != DS_OK)
        fail_msg("%d ranks, ep_size %d, stage %d: %s", ranks, run->plan.ep_size, run->plan.stage,
                 ds_error());
    CHECK(run->n > 500 && run->n < ROOM);
    for (int r = 1; r < ranks && !under_mpirun(); r++) {
        CHECK_CLOSE(run->norm[r], run->norm[0], 0);
        assert_memory_equal(run->x[r], run->x[0], (size_t)run->n * sizeof(float));
    }
}

static void compare(const Run *want, const Run *got, int ranks, double tolerance)
{
    int me = under_mpirun() && ranks > 1 ? ds_comm_rank(ds_world()) : 0;
    double most = 0;
    CHECK_INT(got->n, want->n);
    for (int i = 0; i < want->n; i++)
        most = fmax(most, fabs((double)got->x[me][i] - want->x[0][i]));
    if (!(most <= tolerance))
        fail_msg("%d ranks, ep_size %d, stage %d, k %d: a parameter is off by %g", ranks,
                 got->plan.ep_size, got->plan.stage, got->plan.k, most);
    CHECK_CLOSE(got->norm[me], want->norm[0], fmax(1e-5 * want->norm[0], tolerance));
}

static bool runs_on(int ranks) { return !under_mpirun() || ds_comm_size(ds_world()) == ranks; }

/* Ways to share the experts, at every stage, beside one process that adds up
 * the same micro batches. */
static void check_plan(Plan plan, double tolerance)
{
    static const int ranks[] = {2, 2, 4, 4, 4}, ep_size[] = {1, 2, 1, 2, 4};
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    plan.ep_size = 1;
    want->plan = plan;
    run_on(1, want);
    for (int i = plan.k == 1 && !plan.dtype ? 0 : 3; i < 5; i++)
        for (int stage = 0; stage <= 3 && runs_on(ranks[i]); stage++) {
            if (quick_gpu() && stage != i % 4) continue;
            got->plan = plan;
            got->plan.stage = stage;
            got->plan.ep_size = ep_size[i];
            run_on(ranks[i], got);
            compare(want, got, ranks[i], tolerance);
            CHECK_INT(got->groups, 2);
        }
    free(want), free(got);
}

static const Plan plain = {.k = 1, .experts = 4, .steps = 4};

static void as_one_process(void **state)
{
    (void)state;
    check_plan(plain, 2e-6);
    if (under_mpirun()) return;
    Plan p = plain;
    p.k = 2, p.residual = true;
    check_plan(p, 2e-6);
    p.k = 3, p.keep_all = true, p.norm = true, p.divided = true;
    check_plan(p, 4e-6);
}

static void clipped(void **state)
{
    (void)state;
    Plan p = plain;
    p.clip = 0.05;
    check_plan(p, 2e-6);
    p.adam = true, p.steps = 3;
    check_plan(p, 2e-5);
}

/* Each rounding of a parameter to 16 bits may fall the other way; masters are
 * compared. */
static void in_16_bits(void **state)
{
    (void)state;
    Plan p = plain;
    p.dtype = "bf16", p.steps = 2;
    check_plan(p, 2e-2);
}

/* ---- without the engine ------------------------------------------------------------------------------------ */

static ds_tensor *plain_loss(ds_ddp *ddp, int step, int b)
{
    ds_tensor *x, *y;
    batch_of(step, b, DS_F32, &x, &y);
    ds_tensor *loss = ds_cross_entropy(ds_ddp_call(ddp, x), y);
    return ds_add(loss, ds_scale(ds_moe_aux_loss(ds_ddp_module(ddp)), 0.1));
}

/* Where the parameter of that name begins among the whole parameters; -1:
 * nowhere. */
static int64_t place_of(const ds_state *whole, const char *name)
{
    int64_t at = 0;
    for (int i = 0; i < ds_state_len(whole); at += ds_numel(ds_state_at(whole, i++)))
        if (!strcmp(ds_state_name(whole, i), name)) return at;
    return -1;
}

static ds_status train_ddp(void *arg)
{
    const Run *want = arg;
    Plan all = want->plan, mine = want->plan;
    mine.ep_size = 2;
    ds_module *net = net_new(&mine), *like = net_new(&all);
    ds_ddp *ddp = ds_ddp_new(net);
    ds_optim *sgd = ds_optim_sgd(net, 0.2);
    for (int i = 0; i < mine.steps && !ds_error(); i++) {
        ds_scope *scope = ds_scope_open();
        ds_optim_zero_grad(sgd);
        ds_ddp_backward(ddp, plain_loss(ddp, i, ds_comm_rank(ds_world())));
        ds_optim_step(sgd);
        ds_scope_close(scope);
    }
    ds_state *whole = ds_module_state(like);
    for (int i = 0; i < ds_module_params(net); i++) {
        const char *path;
        ds_tensor *p = ds_module_param_at(net, i, &path);
        const float *x = ds_data(p), *w = want->x[0] + place_of(whole, path);
        for (int64_t k = 0; k < ds_numel(p); k++) RANK_CHECK(fabs((double)x[k] - w[k]) < 2e-6);
    }
    ds_state_free(whole);
    ds_optim_free(sgd);
    ds_ddp_free(ddp);
    ds_module_free(net);
    ds_module_free(like);
    return ds_error_status();
}

static void under_ddp(void **state)
{
    (void)state;
    Run *want = calloc(1, sizeof *want);
    want->plan = (Plan){.k = 1, .experts = 4, .steps = 4, .ep_size = 1};
    run_on(1, want);
    if (run_ranks(BATCHES, train_ddp, want) != DS_OK) fail_msg("%s", ds_error());
    free(want);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------ */

static bool is_there(const char *folder, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/global_step2/%s", folder, file);
    return access(path, R_OK) == 0;
}

/* Saved by one sharing at one stage, gone on with by another. */
static void resume(Plan plan, int from_ranks, int from_ep, int from_stage, int ranks, int ep,
                   int stage)
{
    const char *folder = folder_make();
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    want->plan = got->plan = plan;
    want->plan.save = got->plan.load = folder;
    want->plan.ep_size = from_ep, want->plan.stage = from_stage;
    got->plan.ep_size = ep, got->plan.stage = stage;
    run_on(from_ranks, want);
    CHECK(from_stage == 3 || (is_there(folder, "layer_0_expert_0_mp_rank_00_model_states.pt") &&
                              is_there(folder, "layer_0_expert_3_mp_rank_00_model_states.pt")));
    CHECK(!is_there(folder, "layer_0_expert_4_mp_rank_00_model_states.pt"));
    bool shards = from_stage || plan.dtype;
    CHECK(is_there(folder, "expp_rank_0_mp_rank_00_optim_states.pt") == !shards);
    if (from_ep > 1) CHECK(is_there(folder, "expp_rank_1_mp_rank_00_optim_states.pt") == !shards);
    run_on(ranks, got);
    compare(want, got, ranks, plan.dtype ? 2e-2 : 2e-5);
    folder_remove();
    free(want), free(got);
}

static void checkpoints_fit_other_ranks(void **state)
{
    (void)state;
    static const struct {
        int ranks, ep, stage;
    } at[] = {{1, 1, 0}, {2, 2, 0}, {4, 2, 1}, {4, 4, 2}, {4, 2, 3}, {2, 1, 1}};
    Plan p = {.k = 1, .experts = 4, .steps = 4, .adam = true, .norm = true, .clip = 0.5};
    for (int i = 0; i < 6; i++) {
        int j = (i + 1) % 6, k = (i + 3) % 6;
        resume(p, at[i].ranks, at[i].ep, at[i].stage, at[j].ranks, at[j].ep, at[j].stage);
        resume(p, at[i].ranks, at[i].ep, at[i].stage, at[k].ranks, at[k].ep, at[k].stage);
    }
    p.dtype = "bf16";
    resume(p, 2, 2, 0, 4, 4, 2);
    resume(p, 4, 2, 2, 2, 1, 0);
}

/* ---- groups of parameters ------------------------------------------------------------------------------------ */

static void experts_have_groups(void **state)
{
    (void)state;
    ds_module *net = net_new(&(Plan){.ep_size = 1, .k = 1, .experts = 3});
    ds_optim *o = ds_optim_sgd(net, 0.1);
    ds_tensor *biases[] = {ds_module_param_at(net, 1, NULL), ds_module_param_at(net, 4, NULL)};
    CHECK(dsi_module_expert_of(net, biases[1]).of);
    CHECK_INT(ds_optim_add_group_of(o, biases, 2), 1);
    ds_optim_set_group_lr(o, 1, 0.5);
    CHECK_INT(ds_optim_split_experts(o, net), 2);
    CHECK_INT(ds_optim_groups(o), 4);
    CHECK_CLOSE(ds_optim_group_lr(o, 2), 0.1, 0);
    CHECK_CLOSE(ds_optim_group_lr(o, 3), 0.5, 0);
    for (int i = 0; i < o->n; i++)
        CHECK_INT(o->params[i].group >= 2,
                  dsi_module_expert_of(net, ds_module_param_at(net, i, NULL)).of != NULL);
    CHECK_INT(ds_optim_split_experts(o, net), 0); /* they are apart already */
    ds_optim_free(o);
    ds_module_free(net);
}

/* ---- what is refused ------------------------------------------------------------------------------------------ */

static ds_status refused(void *arg)
{
    const Plan *p = arg;
    ds_module *net = net_new(p);
    ds_status status = ds_error_status();
    ds_module_free(net);
    return status;
}

static void bad_sharing(void **state)
{
    (void)state;
    CHECK_INT(run_ranks(3, refused, &(Plan){.ep_size = 2, .k = 1, .experts = 4}), DS_EINVAL);
    CHECK_ERROR("MoE moe: ep_size is 2, but the number of ranks is 3: expected a divisor");
    refused(&(Plan){.ep_size = 2, .k = 1, .experts = 4});
    CHECK_ERROR("the number of ranks is 1: expected a divisor of that (ds_init_distributed()");
    refused(&(Plan){.ep_size = 2, .k = 1, .experts = 3});
    CHECK_ERROR("MoE moe: num_experts is 3: expected a multiple of ep_size, which is 2");
    refused(&(Plan){.ep_size = 1, .k = 4, .experts = 3});
    CHECK_ERROR("MoE moe: k is 4: expected 1 to num_experts, which is 3");
}

/* ---- trouble ------------------------------------------------------------------------------------------------- */

/* The last rank gives its experts what they do not take: the others, which wait
 * for its tokens, hear of it. */
static ds_status troubled(void *arg)
{
    int last = ds_comm_rank(ds_world()) == ds_comm_size(ds_world()) - 1;
    ds_engine *e = engine_of(arg);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(MICRO, last ? 5 : 6));
    ds_tensor *loss = ds_sum(ds_engine_forward(e, x));
    ds_status status = ds_engine_backward(e, loss);
    if (ds_error_status() != DS_OK) status = ds_error_status();
    ds_scope_close(scope);
    ds_engine_free(e);
    return status;
}

static void a_rank_fails(void **state)
{
    (void)state;
    CHECK(run_ranks(4, troubled, &(Plan){.ep_size = 2, .k = 1, .experts = 4}) != DS_OK);
    CHECK_ERROR("rank 3: net.in: linear: x is [12, 5]");
}

int main(void)
{
    const struct CMUnitTest processes[] = {cmocka_unit_test(as_one_process)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_one_process), cmocka_unit_test(clipped),
        cmocka_unit_test(in_16_bits),     cmocka_unit_test(checkpoints_fit_other_ranks),
        cmocka_unit_test(under_ddp),      cmocka_unit_test(experts_have_groups),
        cmocka_unit_test(bad_sharing),    cmocka_unit_test(a_rank_fails)};
    if (!under_mpirun()) return cmocka_run_group_tests(tests, NULL, NULL);
    if (ds_init_distributed() != DS_OK) return 1;
    int failures = cmocka_run_group_tests(processes, NULL, NULL);
    ds_destroy_process_group();
    return failures;
}
