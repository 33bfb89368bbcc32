/* tests/engine/load_deepspeed_sgd.c: folders of DeepSpeed 0.19.8 whose
 * optimizer counts no steps, torch's SGD, loaded on 1 and 2 ranks in every
 * stage: the momentum continues.
 *
 * tests/golden/deepspeed_sgd/sSTAGE_w1_sgd: Linear(7, 11), GELU, LayerNorm(11),
 * Linear(11, 5) after four steps; expected.pth has its weights and momentum.
 * s0_w1_frozen: the same with Adagrad, made without the parameter 0.bias;
 * s0_w1_one: this folder with the state of 0.weight alone. s0_w1_tied:
 * Linear(3, 3), another one with its weight, Linear(3, 2), without biases.
 * s3_w2_frozen: saved on two ranks in stage 3; 0.bias and 3.weight are not
 * trained, and each rank's file has a half of them.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "part.h"
#include "ranks.h"

#include "engine/engine.h"
#include "optim/optim.h"

typedef struct Job {
    const char *name, *optimizer;
    int stage;
    bool frozen;
} Job;

static const char *const untrained[2] = {"0.bias", "3.weight"};

static ds_engine *engine_of(const Job *j)
{
    char text[400];
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 7, 11);
    ds_nn_gelu(m, "1");
    ds_nn_layer_norm(m, "2", ds_shape(11));
    ds_nn_linear(m, "3", 11, 5);
    ds_state *state = ds_module_state(m);
    for (int i = 0; i < 2 && j->frozen; i++)
        ds_require_grad(ds_state_get(state, untrained[i]), false);
    ds_state_free(state);
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 6, \"zero_allow_untested_optimizer\": true, "
             "\"optimizer\": %s, \"zero_optimization\": {\"stage\": %d, "
             "\"stage3_param_persistence_threshold\": 10}}",
             j->optimizer, j->stage);
    return ds_initialize(.model = m, .config = text);
}

static ds_status check_param(const ds_engine *e, const ds_state *want, int k)
{
    const dsi_flat *f = dsi_zero_flat(e->zero);
    const dsi_flat_param *p = &f->param[k];
    const dsi_optim_param *x = &e->optim->params[p->index];
    const char *name = dsi_flat_path(f, e->model, k);
    char momentum[100];
    if (p->begin == p->end) return DS_OK;
    snprintf(momentum, sizeof momentum, "%s.momentum_buffer", name);
    RANK_CHECK(is_part(want, name, p, x->p) && is_part(want, momentum, p, x->moment[0]));
    RANK_CHECK(x->step == 4);
    return DS_OK;
}

static ds_status load(void *arg)
{
    const Job *j = arg;
    char path[600];
    snprintf(path, sizeof path, DS_GOLDEN "/deepspeed_sgd/%s", j->name);
    ds_engine *e = engine_of(j);
    RANK_CHECK(e && ds_engine_load(e, path) == DS_OK);
    snprintf(path, sizeof path, DS_GOLDEN "/deepspeed_sgd/%s/expected.pth", j->name);
    ds_state *want = ds_load(path);
    ds_status status = want ? DS_OK : ds_error_status();
    for (int k = 0; status == DS_OK && k < dsi_zero_flat(e->zero)->n; k++)
        status = check_param(e, want, k);
    ds_state *now = ds_module_state(e->model);
    for (int i = 0; status == DS_OK && i < 2 && j->frozen; i++) {
        ds_tensor *x = ds_state_get(now, untrained[i]), *w = ds_state_get(want, untrained[i]);
        RANK_CHECK(!memcmp(ds_data(x), ds_data(w), (size_t)ds_numel(w) * sizeof(float)));
    }
    ds_state_free(now);
    ds_state_free(want);
    ds_engine_free(e);
    return status;
}

static void momentum(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int saved = 0; saved <= 1; saved++) {
                Job j = {saved ? "s1_w1_sgd" : "s0_w1_sgd",
                         "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9}}",
                         stage, false};
                if (run_ranks(ranks, load, &j) != DS_OK)
                    fail_msg("%s in stage %d on %d ranks: %s", j.name, stage, ranks, ds_error());
            }
}

static void divided_frozen(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            Job j = {"s3_w2_frozen",
                     "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9}}", stage,
                     true};
            if (run_ranks(ranks, load, &j) != DS_OK)
                fail_msg("in stage %d on %d ranks: %s", stage, ranks, ds_error());
        }
}

/* Its numbers of parameters are not those of the module. */
static void frozen_refused(const char *folder, const char *message)
{
    Job j = {folder, "{\"type\": \"Adagrad\", \"params\": {\"lr\": 0.05}}", 0, false};
    char path[600];
    snprintf(path, sizeof path, DS_GOLDEN "/deepspeed_sgd/%s", folder);
    ds_engine *e = engine_of(&j);
    CHECK(e && ds_engine_load(e, path) != DS_OK);
    CHECK(strstr(ds_error(), message));
    ds_error_clear();
    CHECK_INT(ds_engine_load(e, path, .no_optimizer = true), DS_OK);
    ds_engine_free(e);
}

static void frozen(void **state)
{
    (void)state;
    frozen_refused("s0_w1_frozen", "its optimizer has 5 parameters, its module 6");
    frozen_refused("s0_w1_one", "its optimizer has 1 parameter, its module 6");
}

/* The optimizer counts the weight once, the module has it under two names. */
static ds_status load_tied(void *arg)
{
    static const float weight[] = {-0x1.1d23fcp-1f, -0x1.bd8ed6p-2f, -0x1.db4bdcp-3f,
                                   -0x1.0ca76cp-1f, -0x1.63b522p-7f, -0x1.0691cep-1f,
                                   0x1.45d4d6p-2f,  0x1.28e91ep-2f,  0x1.0035p-3f},
                       momentum_of_last[] = {0x1.0017b4p-2f, 0x1.4a3084p-4f, -0x1.38502p-3f,
                                             0x1.a808p-4f,   0x1.150944p-5f, -0x1.026d66p-4f};
    const int *stage = arg;
    char text[300];
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 3, 3, .no_bias = true);
    ds_nn_linear(m, "1", 3, 3, .no_bias = true, .tied = ds_parameter(m, "0.weight"));
    ds_nn_linear(m, "2", 3, 2, .no_bias = true);
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 2, \"zero_allow_untested_optimizer\": true, \"optimizer\": "
             "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9}}, "
             "\"zero_optimization\": {\"stage\": %d}}",
             *stage);
    ds_engine *e = ds_initialize(.model = m, .config = text);
    RANK_CHECK(e && ds_engine_load(e, DS_GOLDEN "/deepspeed_sgd/s0_w1_tied") == DS_OK);
    ds_tensor *w = ds_engine_get_full(e, ds_parameter(m, "0.weight"), "fp32"),
              *v = ds_engine_get_full(e, ds_parameter(m, "2.weight"), "momentum_buffer");
    RANK_CHECK(w && v && !memcmp(ds_data(w), weight, sizeof weight));
    RANK_CHECK(!memcmp(ds_data(v), momentum_of_last, sizeof momentum_of_last));
    ds_engine_free(e);
    return DS_OK;
}

static void tied(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage += 3)
        if (run_ranks(1 + stage % 2, load_tied, &stage) != DS_OK)
            fail_msg("in stage %d: %s", stage, ds_error());
}

/* 15 elements on one rank: DeepSpeed's moments have one more, which it
 * restores. */
static void an_odd_number_of_elements(void **state)
{
    (void)state;
    int64_t padding = 0;
    ds_tensor *masters = NULL, *moments = NULL;
    folder_make();
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 3, 5, .no_bias = true);
    ds_engine *e = ds_initialize(
            .model = m, .config = "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"Adam\"}, "
                                  "\"zero_optimization\": {\"stage\": 1}}");
    CHECK(ds_engine_backward(e, ds_mean(ds_engine_forward(e, ds_ones(DS_F32, ds_shape(2, 3))))) ==
          DS_OK);
    CHECK(ds_engine_step(e) == DS_OK && ds_engine_save(e, folder_path(""), .tag = "tag") == DS_OK);
    ds_value *v = ds_value_load(folder_path("tag/zero_pp_rank_0_mp_rank_00_optim_states.pt"));
    const ds_value *of = ds_value_get(v, "optimizer_state_dict");
    CHECK(ds_value_read_tensor(of, "single_partition_of_fp32_groups/0", &masters) == DS_OK);
    CHECK(ds_value_read_tensor(of, "base_optimizer_state/state/0/exp_avg", &moments) == DS_OK);
    CHECK(ds_value_read_int(of, "group_paddings/0", &padding) == DS_OK && padding == 1);
    CHECK(ds_numel(masters) == 15 && ds_numel(moments) == 16);
    ds_value_free(v);
    ds_engine_free(e);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(an_odd_number_of_elements), cmocka_unit_test(momentum),
          cmocka_unit_test(tied), cmocka_unit_test(divided_frozen), cmocka_unit_test(frozen))
