/* tests/engine/checkpoint_models.c: a checkpoint that another model or another
 * optimizer loads, and parameters that are not trained.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "run.h"

#include "tensor/tensor.h"

#include <unistd.h>

/* ---- another model, another optimizer ------------------------------------------------------------------ */

static ds_module *mlp(const char *second, int64_t hidden)
{
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 4, hidden);
    ds_nn_linear(m, second, hidden, 2);
    return m;
}

static ds_engine *mlp_engine(const char *second, int64_t hidden, const char *optim)
{
    char text[300];
    snprintf(
        text, sizeof text,
        "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.1}}}",
        optim);
    ds_engine *e = ds_initialize(.model = mlp(second, hidden), .config = text);
    CHECK(e);
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2, 4));
    CHECK(ds_engine_backward(e, ds_mean(ds_engine_forward(e, x))) == DS_OK &&
          ds_engine_step(e) == DS_OK);
    return e;
}

static void load_into(const char *second, int64_t hidden, const char *optim, ds_load_opts o,
                      const char *why)
{
    ds_engine *e = mlp_engine(second, hidden, optim);
    o.dir = folder_path("");
    ds_status status = ds_engine_load_with(e, o);
    if (why) {
        CHECK(status != DS_OK);
        CHECK_ERROR(why);
        CHECK_INT(ds_engine_global_steps(e), 1); /* nothing has changed */
    } else {
        CHECK(status == DS_OK);
    }
    ds_engine_free(e);
}

static void other_models(void **state)
{
    (void)state;
    folder_make();
    ds_engine *e = mlp_engine("1", 3, "Adam");
    CHECK(ds_engine_save(e, folder_path("")) == DS_OK);
    load_into("1", 3, "Adam", (ds_load_opts){0}, NULL);
    load_into("1", 5, "Adam", (ds_load_opts){0}, "0.weight is [3, 4], but [5, 4] in the model");
    load_into("1", 5, "Adam", (ds_load_opts){.not_strict = true}, "0.weight is [3, 4]");
    load_into("2", 3, "Adam", (ds_load_opts){0}, "has no 2.weight, 2.bias, which the model has");
    load_into("2", 3, "Adam", (ds_load_opts){.not_strict = true}, NULL);
    load_into("1", 3, "SGD", (ds_load_opts){0}, NULL); /* it needs no moments */
    load_into("1", 3, "Adagrad", (ds_load_opts){0}, "has no sum of");
    load_into("1", 3, "Adagrad", (ds_load_opts){.no_optimizer = true}, NULL);
    load_into("1", 3, "Adagrad", (ds_load_opts){.module_only = true}, NULL);
    ds_engine_free(e);
    folder_remove();
}

/* ---- parameters that are not trained ----------------------------------------------------------------------- */

/* A parameter that is not trained is saved beside the others, or left out. */
static ds_engine *frozen_engine(int stage, double bias)
{
    ds_module *m = run_net(true, 0, 1);
    for (int i = 0; i < ds_module_params(m); i++) {
        const char *path;
        ds_tensor *x = ds_module_param_at(m, i, &path);
        if (strcmp(path, "fc1.bias") != 0) continue;
        ds_init_constant(x, bias);
        x->requires_grad = false;
    }
    char text[300];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"Adam\"}, "
             "\"zero_optimization\": {\"stage\": %d}}",
             stage);
    ds_engine *e = ds_initialize(.model = m, .config = text);
    CHECK(e);
    return e;
}

static double frozen_value(ds_engine *e)
{
    ds_state *s = ds_engine_state(e, false);
    double x = ds_item(ds_sum(ds_state_get(s, "fc1.bias"))) / 19;
    ds_state_free(s);
    return x;
}

static void frozen(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        folder_make();
        ds_engine *e = frozen_engine(stage, 0.5), *other = frozen_engine(3 - stage, 0.25);
        CHECK(ds_engine_save(e, folder_path("")) == DS_OK);
        CHECK(ds_engine_save(e, folder_path(""), .tag = "without", .exclude_frozen = true) ==
              DS_OK);
        CHECK(ds_engine_load(other, folder_path(""), .tag = "without") == DS_EINVAL);
        CHECK_ERROR("has no fc1.bias, which the model has");
        CHECK(ds_engine_load(other, folder_path(""), .tag = "without", .not_strict = true) ==
              DS_OK);
        CHECK_CLOSE(frozen_value(other), 0.25, 1e-6);
        CHECK(ds_engine_load(other, folder_path(""), .tag = "global_step0") == DS_OK);
        CHECK_CLOSE(frozen_value(other), 0.5, 1e-6);
        ds_engine_free(e);
        ds_engine_free(other);
        folder_remove();
    }
}

int main(void)
{
    if (!access("/dev/shm", W_OK))
        setenv("TMPDIR", "/dev/shm", 0); /* it does not wait for a disk */
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_models), cmocka_unit_test(frozen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
