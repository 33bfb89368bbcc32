/* tests/engine/deterministic.c: with zero_optimization.deterministic a run has
 * the same bits on 1, 2, 4 and 8 ranks: its batches, gradients, norm and
 * parameters, whatever the stage and dtype.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "ranks.h"

enum { WIDTH = 24, SAMPLES = 50, MICRO = 2, GLOBAL = 16, ROOM = 2000 };

typedef struct Run {
    char config[1000];
    float x[ROOM]; /* parameters */
    double norm;
    int n;
} Run;

static ds_dataset *samples(void)
{
    ds_seed(3);
    ds_tensor *x[] = {ds_randn(DS_F32, ds_shape(SAMPLES, WIDTH)),
                      ds_randint(DS_I64, 0, 5, ds_shape(SAMPLES))};
    return ds_tensor_dataset(x, 2);
}

static ds_module *net_new(void)
{
    ds_seed(7);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, 32);
    ds_nn_relu(net, "b");
    ds_nn_linear(net, "c", 32, 5);
    return net;
}

static ds_status train(void *arg)
{
    Run *run = arg;
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_new();
    ds_engine *e = ds_initialize(.model = net, .training_data = samples(), .config = run->config);
    ds_loader *loader = e ? ds_engine_loader(e) : NULL;
    ds_batch batch;
    for (int epoch = 0; loader && epoch < 2; epoch++)
        while (ds_loader_next(loader, &batch)) {
            ds_tensor *y = ds_cast(ds_engine_forward(e, batch.x), DS_F32);
            if (ds_engine_backward(e, ds_cross_entropy(y, batch.y)) == DS_OK) ds_engine_step(e);
        }
    ds_state *state = e ? ds_engine_state(e, true) : NULL;
    if (state && ds_comm_rank(ds_world()) == 0) {
        run->norm = ds_engine_global_grad_norm(e);
        run->n = 0;
        for (int i = 0; i < ds_state_len(state); i++) {
            ds_tensor *p = ds_cast(ds_state_at(state, i), DS_F32);
            memcpy(run->x + run->n, ds_data(p), (size_t)ds_numel(p) * sizeof(float));
            run->n += (int)ds_numel(p);
        }
    }
    ds_state_free(state);
    ds_status status = ds_error() ? ds_error_status() : DS_OK;
    ds_engine_free(e);
    ds_scope_close(scope);
    return status;
}

static void run_on(int ranks, Run *run, int stage, const char *precision)
{
    snprintf(run->config, sizeof run->config,
             "{\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": %d, \"optimizer\": "
             "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"gradient_clipping\": 0.3, %s"
             "\"zero_optimization\": {\"stage\": %d, \"deterministic\": true, "
             "\"stage3_param_persistence_threshold\": 10, \"reduce_bucket_size\": 500}}",
             GLOBAL, MICRO, precision, stage);
    if (run_ranks(ranks, train, run) != DS_OK) fail_msg("%s", ds_error());
    CHECK_INT(run->n, WIDTH * 32 + 32 + 32 * 5 + 5);
}

static void any_number_of_ranks(void **state)
{
    static const char *const precisions[] = {"", "\"bf16\": {\"enabled\": true}, ",
                                             "\"fp16\": {\"enabled\": true}, "};
    Run *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    (void)state;
    for (int p = 0; p < 3; p++) {
        run_on(1, want, 0, precisions[p]);
        for (int ranks = 2; ranks <= 8; ranks *= 2)
            for (int stage = 0; stage <= 3; stage++) {
                run_on(ranks, got, stage, precisions[p]);
                if (memcmp(want->x, got->x, (size_t)want->n * sizeof(float)))
                    fail_msg("%d ranks, stage %d, %s: other bits", ranks, stage, precisions[p]);
                CHECK_CLOSE(got->norm, want->norm, 1e-12 * want->norm);
            }
    }
    free(want), free(got);
}

TEST_MAIN(cmocka_unit_test(any_number_of_ranks))
