/* tests/engine/layers.c: layers that use slices of their parameters, many steps,
 * and tied weights train alike in each ZeRO stage, and resume from a checkpoint.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "ranks.h"

enum { WORDS = 11, WIDTH = 8, STEPS = 3 };

/* ids [N,T] -> logits [N,T,WORDS] */
static ds_tensor *model_forward(void *self, ds_tensor *ids)
{
    ds_tensor *x = ds_call_child(self, "tok", ids);
    ds_tensor *memory = ds_call_child(self, "lstm", x);
    x = ds_add(x, ds_call_child(self, "attn", x, memory)); /* query; key and value */
    return ds_call_child(self, "head", ds_call_child(self, "layers", x));
}

static ds_module *model_new(void)
{
    ds_seed(11);
    ds_module_type type = {"Model", .forward = model_forward};
    ds_module *m = ds_module_new(NULL, "model", &type);
    ds_nn_embedding(m, "tok", WORDS, WIDTH, -1);
    ds_nn_lstm(m, "lstm", WIDTH, WIDTH / 2, .bidirectional = true, .batch_first = true);
    ds_nn_multihead_attention(m, "attn", WIDTH, 2, .batch_first = true);
    ds_module *layers = ds_nn_sequential(m, "layers");
    for (int i = 0; i < 2; i++)
        ds_nn_transformer_encoder_layer(layers, NULL, WIDTH, 2, .dim_feedforward = 12,
                                        .dropout = DS_ZERO, .batch_first = true);
    ds_nn_linear(m, "head", WIDTH, WORDS, .tied = ds_parameter(m, "tok.weight"));
    return m;
}

static ds_engine *engine_new(int stage)
{
    char config[300];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 4, \"optimizer\": {\"type\": \"Adam\", "
             "\"params\": {\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": %d, "
             "\"stage3_param_persistence_threshold\": 0, \"stage3_max_live_parameters\": 100}}",
             stage);
    return ds_initialize(.model = model_new(), .config = config);
}

/* The loss of a step: to say the last word of each row everywhere. */
static double model_step(ds_engine *e, int step)
{
    ds_scope *scope = ds_scope_open();
    int64_t ids[4 * 5], labels[4 * 5];
    for (int i = 0; i < 20; i++) {
        ids[i] = (i * 7 + step) % WORDS;
        labels[i] = (i / 5 * 5 + 4) * 7 % WORDS;
    }
    ds_tensor *x = ds_from_data(DS_I64, ds_shape(4, 5), ids);
    ds_tensor *y = ds_from_data(DS_I64, ds_shape(20), labels);
    ds_tensor *logits = ds_reshape(ds_engine_forward(e, x), ds_shape(20, WORDS));
    ds_tensor *loss = ds_cross_entropy(logits, y);
    double value = loss ? ds_item(loss) : NAN;
    if (ds_engine_backward(e, loss) != DS_OK || ds_engine_step(e) != DS_OK) value = NAN;
    ds_scope_close(scope);
    return value;
}

typedef struct Plan {
    int stage;
    const double *want; /* [STEPS + 1]: the losses without an engine's stage */
    double *got;        /* where rank 0 puts them; or NULL */
} Plan;

/* STEPS steps, a save, one step more; then that step from the checkpoint. */
static ds_status train(void *arg)
{
    const Plan *p = arg;
    ds_engine *e = engine_new(p->stage);
    for (int i = 0; i <= STEPS; i++) {
        if (i == STEPS) RANK_CHECK(ds_engine_save(e, folder_path("")) == DS_OK);
        double loss = model_step(e, i);
        RANK_CHECK(isfinite(loss));
        if (p->got && ds_comm_rank(NULL) == 0) p->got[i] = loss;
        if (p->want) RANK_CHECK(fabs(loss - p->want[i]) < 2e-5);
    }
    ds_state *state = ds_engine_state(e, true);
    ds_tensor *tok = ds_state_get(state, "tok.weight"), *head = ds_state_get(state, "head.weight");
    RANK_CHECK(tok && head && ds_item(ds_sum(ds_abs(ds_sub(tok, head)))) == 0);
    ds_engine_free(e);

    ds_engine *again = engine_new(p->stage);
    RANK_CHECK(ds_engine_load(again, folder_path("")) == DS_OK);
    double loss = model_step(again, STEPS);
    RANK_CHECK(!p->want || fabs(loss - p->want[STEPS]) < 2e-5);
    RANK_CHECK(ds_engine_load_state(again, state) == DS_OK);
    ds_state_free(state);
    ds_engine_free(again);
    return DS_OK;
}

static void stages_train_alike(void **state)
{
    (void)state;
    double want[STEPS + 1];
    folder_make();
    CHECK_INT(run_ranks(1, train, &(Plan){.stage = 0, .got = want}), DS_OK);
    CHECK(want[STEPS] < want[0]);
    for (int stage = 0; stage <= 3; stage++)
        CHECK_INT(run_ranks(2, train, &(Plan){.stage = stage, .want = want}), DS_OK);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(stages_train_alike))
