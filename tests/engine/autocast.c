/* tests/engine/autocast.c: "torch_autocast" of the configuration: forwards are
 * those of ds_set_autocast, weights and gradients are float32, in each stage.
 * SPDX-License-Identifier: MIT */
#include "ranks.h"

typedef struct Net {
    ds_module *in, *norm, *out;
} Net;

static ds_tensor *net_forward(void *self, ds_tensor *x)
{
    Net *n = self;
    return ds_call(n->out, ds_relu(ds_call(n->norm, ds_call(n->in, x))));
}

static ds_module *net_new(void)
{
    ds_seed(11);
    ds_module *m = ds_module_make(NULL, "net", "Net", sizeof(Net), .forward = net_forward);
    Net *n = ds_self(m);
    n->in = ds_nn_linear(m, "in", 6, 16);
    n->norm = ds_nn_layer_norm(m, "norm", ds_shape(16));
    n->out = ds_nn_linear(m, "out", 16, 3);
    return m;
}

static const int64_t labels[] = {0, 1, 2, 1};

static ds_tensor *loss_of(ds_tensor *y)
{
    return ds_cross_entropy(ds_cast(y, DS_F32), ds_from_data(DS_I64, ds_shape(4), labels));
}

/* The losses of five steps of SGD by hand. */
static ds_status by_hand(double *losses, ds_dtype autocast)
{
    ds_module *m = net_new();
    ds_optim *o = ds_optim_sgd(m, 0.5);
    ds_seed(12);
    for (int i = 0; i < 5; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_randn(DS_F32, ds_shape(4, 6));
        ds_dtype was = ds_set_autocast(autocast);
        ds_tensor *y = ds_call(m, x);
        ds_set_autocast(was);
        RANK_CHECK(y && ds_dtype_of(y) == autocast);
        ds_tensor *loss = loss_of(y);
        losses[i] = ds_item(loss);
        RANK_CHECK(ds_backward(loss) == DS_OK && ds_optim_step(o) == DS_OK);
        ds_optim_zero_grad(o);
        ds_scope_close(scope);
    }
    ds_optim_free(o);
    ds_module_free(m);
    return DS_OK;
}

/* All ranks have the same samples, so the mean gradient is that of one. */
static ds_status by_engine(double *losses, int stage)
{
    char config[400];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_clipping\": 0, "
             "\"zero_allow_untested_optimizer\": true, "
             "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.5}}, "
             "\"torch_autocast\": {\"enabled\": true, \"dtype\": \"bfloat16\"}, "
             "\"zero_optimization\": {\"stage\": %d}}",
             stage);
    ds_engine *e = ds_initialize(.model = net_new(), .config = config);
    RANK_CHECK(e && ds_engine_dtype(e) == DS_F32);
    ds_seed(12);
    for (int i = 0; i < 5; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *y = ds_engine_forward(e, ds_randn(DS_F32, ds_shape(4, 6)));
        RANK_CHECK(y && ds_dtype_of(y) == DS_BF16 && ds_autocast() == DS_F32);
        ds_tensor *loss = loss_of(y);
        losses[i] = ds_item(loss);
        RANK_CHECK(ds_engine_backward(e, loss) == DS_OK && ds_engine_step(e) == DS_OK);
        ds_scope_close(scope);
    }
    ds_engine_free(e);
    return DS_OK;
}

static ds_status same_losses(void *arg)
{
    double hand[5], engine[5], exact[5];
    RANK_CHECK(by_hand(hand, DS_BF16) == DS_OK && by_hand(exact, DS_F32) == DS_OK);
    RANK_CHECK(by_engine(engine, *(int *)arg) == DS_OK);
    for (int i = 0; i < 5; i++) {
        RANK_CHECK(fabs(engine[i] - hand[i]) < 1e-6);
        RANK_CHECK(fabs(hand[i] - exact[i]) < 0.05);
    }
    RANK_CHECK(hand[4] != exact[4]);
    return DS_OK;
}

static void each_stage(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage++) TEST_RANKS(same_losses, &stage);
}

static void refuses(const char *group, const char *message)
{
    char config[300];
    snprintf(config, sizeof config, "{\"train_batch_size\": 4, %s}", group);
    CHECK(!ds_initialize(.model = net_new(), .config = config));
    CHECK_ERROR(message);
}

static void refusals(void **state)
{
    (void)state;
    refuses("\"torch_autocast\": {\"enabled\": true, \"dtype\": \"fp16\"}", "a scaled loss");
    refuses("\"torch_autocast\": {\"enabled\": true, \"dtype\": \"int8\"}", "bfloat16 or float16");
}

TEST_MAIN(cmocka_unit_test(each_stage), cmocka_unit_test(refusals))
