/* tests/ops/core.c: a device that has the core kernels alone
 * (tests/core_device.h) trains the tutorial's network; its faults are reported
 * when the host waits for it, and nothing is updated after one.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "core_device.h"

#include "base/philox.h"
#include "classify.h"

enum { STEPS = 12, BATCH = 4 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

static int64_t label_at(int step, int i) { return (step * 7 + i * 3) % 10; }

/* The loss of one step before its backward pass; bad: one label is no class. */
static ds_tensor *step_loss(ds_module *net, int step, bool bad)
{
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = label_at(step, i);
    if (bad) labels[2] = 10;
    ds_tensor *x = ds_randn(DS_F32, ds_shape(BATCH, 3, 32, 32));
    return ds_cross_entropy(ds_call(net, x), ds_to(ds_from_data(DS_I64, ds_shape(BATCH), labels),
                                                   ds_current_device(), DS_I64));
}

/* STEPS steps of the tutorial's training on `device`, from the same numbers. */
static void train(ds_device device, double *losses)
{
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_seed(11);
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.01, .momentum = 0.9);
    for (int step = 0; step < STEPS; step++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = step_loss(net, step, false);
        CHECK_INT(ds_backward(loss), DS_OK);
        CHECK_INT(ds_optim_step(sgd), DS_OK);
        ds_module_zero_grad(net);
        losses[step] = ds_item(loss);
        ds_scope_close(scope);
    }
    ds_optim_free(sgd);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void trains_the_tutorial_network(void **state)
{
    (void)state;
    double fused[STEPS], plain[STEPS], core[STEPS];
    train(cpu, fused);
    dsi_device_set_fusions(DSI_FUSIONS_OFF);
    train(cpu, plain);
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    train(gpu, core);
    for (int i = 0; i < STEPS; i++) {
        CHECK(plain[i] == core[i]);
        CHECK_CLOSE(fused[i], core[i], 1e-5 * fabs(fused[i]));
    }
    CHECK(core[0] != core[STEPS - 1]);
}

/* Parameters as bytes, which the caller frees. */
static float *values_of(ds_module *net, int64_t *n)
{
    int count = ds_module_params(net);
    int64_t at = 0;
    *n = 0;
    for (int i = 0; i < count; i++) *n += ds_numel(ds_module_param_at(net, i, NULL));
    float *all = malloc((size_t)*n * sizeof *all);
    for (int i = 0; i < count; i++) {
        ds_tensor *p = ds_module_param_at(net, i, NULL);
        memcpy(all + at, ds_data(p), (size_t)ds_numel(p) * sizeof *all);
        at += ds_numel(p);
    }
    return all;
}

static void nothing_is_updated_after_a_fault(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(11);
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.01, .momentum = 0.9);
    int64_t n;
    float *before = values_of(net, &n);
    int checks = core_device_checks();

    ds_tensor *loss = step_loss(net, 0, true);
    CHECK(loss && !ds_error()); /* queued: no call has waited */
    CHECK_INT(ds_backward(loss), DS_OK);
    CHECK_INT(core_device_checks(), checks);
    CHECK_INT(ds_optim_step(sgd), DS_EINVAL);
    CHECK_ERROR("cross_entropy: label 10 at index 2 is outside 0..9");
    ds_module_zero_grad(net);

    float *after = values_of(net, &n);
    CHECK(!memcmp(before, after, (size_t)n * sizeof *after));
    CHECK_INT(ds_backward(step_loss(net, 1, false)), DS_OK);
    CHECK_INT(ds_optim_step(sgd), DS_OK);
    free(before), free(after);
    ds_optim_free(sgd);
    ds_module_free(net);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* The kernel itself keeps back, so that a recorded step needs no host. */
static void the_optimizer_looks_at_the_flag(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    dsi_device *d = dsi_device_current();
    float p[2] = {1, 2}, g[2] = {1, 1};
    const dsi_span x = {
        .dtype = DS_F32, .p = p, .g = g, .n = 2, .step = 1, .g_dtype = DS_F32, .g_scale = 1};
    const dsi_optimizer c = {.rule = DSI_SGD, .sgd.lr = 0.5};
    d->fault = (dsi_fault){DSI_FAULT_ROW, 9, {4, -1}, 7};
    CHECK_INT(d->kernels->optimizer(&d->stream, &c, 1, &x), DS_OK);
    CHECK(p[0] == 1 && p[1] == 2);
    CHECK_INT(dsi_device_check(d), DS_EINVAL);
    CHECK_ERROR("embedding: index 9 at position 4 is outside 0..6");
    CHECK_INT(d->kernels->optimizer(&d->stream, &c, 1, &x), DS_OK);
    CHECK(p[0] == 0.5f && p[1] == 1.5f);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* Each way in which the host waits: a number, values, a norm. */
static void whoever_waits_is_told(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    const int64_t at[] = {0, 5, 1, -2};
    ds_tensor *index = ds_to(ds_from_data(DS_I64, ds_shape(4), at), gpu, DS_I64);
    ds_tensor *w = ds_randn(DS_F32, ds_shape(5, 3)), *x = ds_randn(DS_F32, ds_shape(1, 4));
    ds_tensor *y = ds_embedding(w, index, -1);
    CHECK(y && !ds_data(y));
    CHECK_ERROR("embedding: index 5 at position 1 is outside 0..4");
    y = ds_sum(ds_gather(x, 1, ds_reshape(index, ds_shape(1, 4))));
    CHECK(y && isnan(ds_item(y)));
    CHECK_ERROR("gather: index 5 at [0, 1] is outside 0..3");
    ds_error_clear();
    ds_module *m = ds_nn_linear(NULL, "fc", 3, 2);
    y = ds_embedding(w, index, -1);
    CHECK_INT(ds_backward(ds_sum(ds_call(m, y))), DS_OK);
    CHECK(isnan(ds_grad_norm(m)));
    CHECK_ERROR("embedding: index 5 at position 1 is outside 0..4");
    ds_module_free(m);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* Masks are the device's, by counter; the host's seed decides them. */
static void dropout_by_counter(void **state)
{
    (void)state;
    enum { N = 4000 };
    ds_scope *scope = ds_scope_open();
    dsi_device *d = dsi_device_get(gpu);
    d->fusions = &core_device_dropout;
    ds_tensor *x = ds_require_grad(ds_to(ds_ones(DS_F32, ds_shape(N)), gpu, DS_F32), true);
    ds_seed(5);
    ds_tensor *y = ds_dropout(x, 0.25, true), *other = ds_dropout(x, 0.25, true);
    ds_seed(5);
    ds_tensor *same = ds_dropout(x, 0.25, true);
    const float *a = ds_data(y);
    int kept = 0;
    CHECK(!memcmp(a, ds_data(same), N * sizeof *a) && memcmp(a, ds_data(other), N * sizeof *a));
    for (int i = 0; i < N; i++) kept += a[i] != 0;
    CHECK_CLOSE(kept, 0.75 * N, 5 * sqrt(0.1875 * N));
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK); /* without mask_scale: affine and where */
    CHECK(!memcmp(a, ds_data(ds_grad(x)), N * sizeof *a));

    uint64_t fresh = 9; /* a replayed step takes its seed from the device's memory */
    const dsi_philox first = {.seed = 9, .offset = 3},
                     moved = {.seed = 4, .offset = 3, .fresh_seed = &fresh};
    float one[N], out[N];
    uint8_t keep[2][N];
    for (int i = 0; i < N; i++) one[i] = 1;
    dsi_view vx = {one, DS_F32, 1, {N}, {1}}, vy = {out, DS_F32, 1, {N}, {1}};
    d->fusions->dropout(&d->stream, &first, 0.5, 2, vx, vy,
                        (dsi_view){keep[0], DS_BOOL, 1, {N}, {1}});
    d->fusions->dropout(&d->stream, &moved, 0.5, 2, vx, vy,
                        (dsi_view){keep[1], DS_BOOL, 1, {N}, {1}});
    CHECK(!memcmp(keep[0], keep[1], N));
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    ds_scope_close(scope);
}

static int use_core_device(void **state)
{
    (void)state;
    core_device(NULL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trains_the_tutorial_network),
        cmocka_unit_test(nothing_is_updated_after_a_fault),
        cmocka_unit_test(the_optimizer_looks_at_the_flag),
        cmocka_unit_test(whoever_waits_is_told),
        cmocka_unit_test(dropout_by_counter),
    };
    return cmocka_run_group_tests(tests, use_core_device, NULL);
}
