/* tests/engine/handles.c: a model that ds_initialize took and freed is named
 * when the program uses it again (Note [Handle checks] in base/handle.h).
 * SPDX-License-Identifier: MIT */
#include "check.h"

static void model_after_a_refusal(void **state)
{
    (void)state;
    ds_module *net = ds_nn_linear(NULL, "net", 3, 2);
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(1, 3));
    CHECK(!ds_initialize(.model = net, .config = "{\"no_such_key\": 1}"));
    ds_error_clear();
    CHECK(!ds_call(net, x));
    CHECK_ERROR("call: this module net (Linear) has ended: freed by ds_initialize, which was "
                "refused and frees what it took");
    ds_module_free(net);
    CHECK_ERROR("module_free: this module net (Linear) has ended");
}

static void model_after_its_engine(void **state)
{
    (void)state;
    ds_module *net = ds_nn_linear(NULL, "net", 3, 2);
    ds_engine *engine = ds_initialize(.model = net, .config = "{\"train_batch_size\": 1}");
    CHECK(engine);
    ds_engine_free(engine);
    ds_module_free(net);
    CHECK_ERROR("module_free: this module net (Linear) has ended: freed by ds_engine_free");
    CHECK_INT(ds_engine_global_steps(engine), 0);
    CHECK_ERROR("engine_global_steps: this engine has ended: freed by ds_engine_free");
    ds_engine_free(engine);
    CHECK_ERROR("engine_free: this engine has ended");
}

static void optimizer_after_its_end(void **state)
{
    (void)state;
    ds_module *net = ds_nn_linear(NULL, "net", 3, 2);
    ds_optim *optim = ds_optim_sgd(net, 0.1);
    ds_schedule *schedule = ds_schedule_by_name(optim, "WarmupLR", "{}");
    ds_schedule_free(schedule);
    ds_schedule_free(schedule);
    CHECK_ERROR("schedule_free: this schedule has ended: freed by ds_schedule_free");
    ds_optim_free(optim);
    CHECK(ds_optim_step(optim) != DS_OK);
    CHECK_ERROR("has ended: freed by ds_optim_free");
    ds_optim_free(optim);
    CHECK_ERROR("optim_free: this optimizer");
    ds_module_free(net);
}

static void loader_frees_its_data(void **state)
{
    (void)state;
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(4, 2));
    ds_dataset *data = ds_tensor_dataset(&x, 1);
    ds_loader *loader = ds_loader_new(data, 2);
    CHECK(loader);
    ds_batch b;
    CHECK(ds_loader_next(loader, &b));
    ds_tensor *first = b.x, *sum = ds_add(b.x, b.x);
    CHECK(ds_loader_next(loader, &b));
    CHECK(!ds_sum(first));
    CHECK_ERROR("freed by the end of its scope; made by loader_next");
    CHECK(!ds_sum(sum));
    CHECK_ERROR("freed by the end of its scope; made by add");
    ds_loader_free(loader);
    ds_dataset_free(data);
    CHECK_ERROR("dataset_free: this data set has ended: freed by ds_loader_free");
    ds_loader_free(loader);
    CHECK_ERROR("loader_free: this loader has ended: freed by ds_loader_free");
}

int main(void)
{
    setenv("DS_CHECK_HANDLES", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_after_a_refusal),
        cmocka_unit_test(model_after_its_engine),
        cmocka_unit_test(optimizer_after_its_end),
        cmocka_unit_test(loader_frees_its_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
