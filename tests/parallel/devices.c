/* tests/parallel/devices.c: models, optimizers, files, collectives, replicas
 * and ZeRO on a device that has memory and no kernels: values go there and
 * back, all that computes is refused in one line (tests/pretend.h ends a
 * program that reads them on the host).
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "model.h"
#include "pretend.h"

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* A net of net.h whose parameters lie there. */
static ds_module *net_there(void)
{
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = net_new();
    CHECK_INT(ds_set_device(cpu), DS_OK);
    CHECK(!ds_error() && ds_device_of(ds_module_param_at(net, 0, NULL)).kind == DS_CUDA);
    return net;
}

static ds_module *another(void *arg)
{
    (void)arg;
    return net_new();
}

static ds_tensor *samples_here(void)
{
    ds_tensor *labels;
    return ds_to(samples(DS_F32, 0, 4, &labels), cpu, DS_F32);
}

static ds_tensor *samples_there(void) { return ds_to(samples_here(), gpu, DS_F32); }

/* One line that names the device. */
static void refused(void)
{
    CHECK(ds_error() && !strchr(ds_error(), '\n'));
    CHECK_ERROR("cuda");
}

static void a_model(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_there(), *same = net_new();
    ds_tensor *labels, *x = samples(DS_F32, 0, 4, &labels);
    CHECK(!ds_call(net, x));
    CHECK_ERROR(
        "net.conv: conv2d: operands are on cpu and cuda:0: expected the same device (ds_to)");
    CHECK(!ds_call(net, samples_there()));
    CHECK_ERROR("net.conv: conv2d: no cuda kernel for float32");
    for (int i = 0; i < 4; i++) {
        ds_tensor *p = ds_module_param_at(net, i, NULL), *q = ds_module_param_at(same, i, NULL);
        size_t bytes = (size_t)ds_numel(p) * sizeof(float);
        CHECK(!memcmp(ds_data(p), ds_data(q), bytes)); /* a seed means the same there */
    }
    CHECK(ds_module_to(net, DS_F16) != DS_OK);
    refused();
    ds_module_free(net);
    ds_module_free(same);
    ds_scope_close(scope);
}

static void files(void **state)
{
    (void)state;
    const char *formats[] = {"x.pth", "x.safetensors"};
    folder_make();
    for (int i = 0; i < 2; i++) {
        ds_module *net = net_there();
        ds_state *all = ds_module_state(net);
        CHECK_INT(ds_save(all, folder_path(formats[i])), DS_OK);
        ds_state_free(all);
        all = ds_load(folder_path(formats[i]));
        CHECK(all);
        CHECK_INT(ds_module_load(net, all), DS_OK);
        ds_state_free(all);
        CHECK(ds_device_of(ds_module_param_at(net, 0, NULL)).kind == DS_CUDA);
        ds_module_free(net);
    }
    folder_remove();
}

static void optimizers(void **state)
{
    (void)state;
    static const char *const names[] = {"SGD",     "Adam",     "AdamW",  "Adagrad",
                                        "RMSprop", "Adadelta", "Adamax", "NAdam",
                                        "RAdam",   "Lion",     "Lamb"};
    ds_scope *scope = ds_scope_open();
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        ds_module *net = net_there();
        ds_tensor *p;
        for (int i = 0; (p = ds_module_param_at(net, i, NULL)); i++)
            CHECK_INT(ds_set_grad_of(p, ds_clone(ds_detach(p))), DS_OK);
        ds_optim *o = ds_optim_by_name(net, names[k], "{}");
        CHECK(o || ds_error());
        if (o) CHECK(ds_optim_step(o) != DS_OK);
        refused();
        ds_clip_grad_norm(net, 1, 2);
        refused();
        ds_optim_free(o);
        ds_module_free(net);
    }
    ds_scope_close(scope);
}

static void collectives(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = samples_there(), *y = ds_clone(x);
    int64_t rows = ds_size(x, 0);
    /* need no kernel: the host computes */
    CHECK_INT(ds_all_reduce(ds_world(), x, DS_REDUCE_SUM), DS_OK);
    CHECK_INT(ds_broadcast(ds_world(), x, 0), DS_OK);
    CHECK_INT(ds_all_gather(ds_world(), y, x), DS_OK);
    CHECK_INT(ds_reduce_scatter(ds_world(), y, x, DS_REDUCE_SUM), DS_OK);
    CHECK_INT(ds_all_to_all(ds_world(), y, x), DS_OK);
    CHECK_INT(ds_all_to_all_rows(ds_world(), y, &rows, x, &rows), DS_OK);
    CHECK(!memcmp(ds_data(y), ds_data(x), (size_t)ds_numel(x) * sizeof(float)));
    CHECK(ds_send(ds_world(), x, 0) != DS_OK && ds_error());
    ds_error_clear();
    ds_scope_close(scope);
}

static void replicas(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_there(), *here = net_new();
    CHECK(!ds_data_parallel_new(net, 64, another, NULL));
    CHECK_ERROR("data_parallel: 64 replicas: expected at most one for each GPU, and there ");
    ds_data_parallel *dp = ds_data_parallel_new(here, 2, another, NULL);
    CHECK(dp && !ds_data_parallel_call(dp, samples_there()));
    CHECK_ERROR("data_parallel: the input is on cuda:0: expected cpu, where");
    ds_data_parallel_free(dp);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    dp = ds_data_parallel_new(here, 2, another, NULL); /* replicas are where the module is */
    CHECK(dp && ds_data_parallel_call(dp, samples_here()));
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_data_parallel_free(dp);
    ds_module_free(here);
    ds_ddp *ddp = ds_ddp_new(net);
    if (ddp) CHECK(!ds_ddp_call(ddp, samples_there()));
    refused();
    ds_ddp_free(ddp);
    ds_module_free(net);
    ds_scope_close(scope);
}

/* A layer whose parameters begin as a constant has none there. */
static void constants(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = ds_nn_batch_norm2d(NULL, "norm", 8);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    CHECK_ERROR("fill: no cuda kernel for ");
    ds_module_free(net);
}

static void zero(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        ds_scope *scope = ds_scope_open();
        dsi_zero_opts o = {.stage = stage};
        Model m = {.net = net_there()};
        m.optim = ds_optim_adamw(m.net, 1e-2);
        m.z = dsi_zero_new(m.net, m.optim, ds_world(), &o);
        if (m.z) CHECK(!ds_call(m.net, samples_there()));
        refused();
        model_free(&m);
        ds_scope_close(scope);
    }
}

static int pretend(void **state)
{
    (void)state;
    pretend_cuda();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model),     cmocka_unit_test(files),    cmocka_unit_test(optimizers),
        cmocka_unit_test(collectives), cmocka_unit_test(replicas), cmocka_unit_test(constants),
        cmocka_unit_test(zero),
    };
    return cmocka_run_group_tests(tests, pretend, NULL);
}
