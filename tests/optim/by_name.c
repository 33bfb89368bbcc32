/* tests/optim/by_name.c: the "optimizer" block of a configuration: types,
 * parameters, messages. tests/reference/optim.c compares such blocks with
 * DeepSpeed.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

/* w[0], which was 1, after a step by the named optimizer with gradient 4. */
static double by_name(const char *type, const char *params)
{
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    ds_optim *o = ds_optim_by_name(m, type, params);
    CHECK(o != NULL);
    given_grad(given_w(m), 4);
    CHECK(ds_optim_step(o) == DS_OK);
    double w = given_at(given_w(m), 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
    return w;
}

static void names(void **state)
{
    (void)state;
    static const struct {
        const char *type, *name;
    } rows[] = {{"Adam", "adamw"},      {"adam", "adamw"},  {"ADAMW", "adamw"},
                {"Adagrad", "adagrad"}, {"lamb", "lamb"},   {"LION", "lion"},
                {"RMSprop", "rmsprop"}, {"SGD", "sgd"},     {"Adadelta", "adadelta"},
                {"NAdam", "nadam"},     {"RAdam", "radam"}, {"Adamax", "adamax"}};
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ds_optim *o = ds_optim_by_name(m, rows[i].type, NULL);
        CHECK(o && !strcmp(ds_optim_name(o), rows[i].name));
        ds_optim_free(o);
    }
    ds_module_free(m);
    ds_scope_close(scope);
}

static void defaults_and_values(void **state)
{
    (void)state;
    const double rest = 1e-8;
    CHECK_CLOSE(by_name("Adam", NULL), 1 - 1e-3, rest);
    CHECK_CLOSE(by_name("Adam", "{\"lr\": 0.1, \"weight_decay\": 2}"), 0.8 - 0.1, rest);
    CHECK_CLOSE(by_name("Adam", "{\"lr\": 1e-1, \"weight_decay\": 2, \"adam_w_mode\": false}"), 0.9,
                rest);
    CHECK_CLOSE(by_name("AdamW", "{\"lr\": 0.1, \"weight_decay\": 2, \"adam_w_mode\": false}"), 0.7,
                rest);
    CHECK_CLOSE(by_name("Adam", "{\"lr\": 1, \"torch_adam\": true, \"fused\": null}"), 0.99 - 1,
                rest);
    CHECK_CLOSE(
        by_name("Adam",
                "{\"lr\": 1, \"torch_adam\": true, \"adam_w_mode\": false, \"amsgrad\": true}"),
        0, rest);
    CHECK_CLOSE(
        by_name("Adam",
                "{\"bias_correction\": false, \"betas\": [0, 0.75], \"lr\": 1, \"eps\": 0}"),
        1 - 4 / 2.0, rest);
    CHECK_CLOSE(by_name("Adagrad", "{\"initial_accumulator_value\": 9}"), 1 - 0.01 * 4 / 5, rest);
    CHECK_CLOSE(by_name("Lamb", "{\"max_coeff\": 0.5, \"lr\": 0.1}"), 0.95, 1e-7);
    CHECK_CLOSE(by_name("Lion", "{\"weight_decay\": 1}"), 0.999 - 0.001, rest);
    CHECK_CLOSE(by_name("SGD", "{\"momentum\": 0.9, \"nesterov\": true}"), 1 - 1e-3 * 7.6, rest);
    CHECK_CLOSE(by_name("RMSprop", "{\"alpha\": 0.75, \"centered\": true}"), 1 - 0.01 * 4 / sqrt(3),
                rest);
    CHECK_CLOSE(by_name("Adamax", NULL), 1 - 2e-3, 1e-8);
    CHECK_CLOSE(by_name("RAdam", "{\"maximize\": true}"), 1 + 1e-3 * 4, 1e-8);
    CHECK_CLOSE(by_name("NAdam", "{\"weight_decay\": 1, \"decoupled_weight_decay\": true, "
                                 "\"betas\": [0, 0.9], \"momentum_decay\": 1}"),
                1 - 2e-3 - 2e-3, 1e-8);
    CHECK_CLOSE(by_name("Adadelta", "{\"rho\": 0.5, \"eps\": 1}"), 1 - 4 / 3.0, rest);
}

static void refused(ds_module *m, const char *type, const char *params, const char *message)
{
    CHECK(!ds_optim_by_name(m, type, params));
    CHECK_ERROR(message);
}

static void refused_types(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    refused(m, "sgd", NULL,
            "optimizer.type \"sgd\": there is no such optimizer; did you mean \"SGD\"?");
    refused(m, "Adma", NULL, "did you mean \"Adam\"?");
    refused(m, "FusedAdam", NULL, "did you mean \"Adam\"?");
    refused(m, "DeepSpeedCPULion", NULL, "did you mean \"Lion\"?");
    refused(m, "torch.optim.SGD", NULL, "did you mean \"SGD\"?");
    refused(m, "CPUMuon", NULL, "there is no such optimizer");
    refused(m, "NoSuchOptimizer", NULL, "expected one of Adam, AdamW");
    refused(m, "onebitadam", NULL, "optimizer.type \"onebitadam\": it compresses");
    refused(m, "ZeroOneAdam", NULL, "one bit");
    refused(m, "MuAdamW", NULL, "mup");
    refused(m, "ASGD", NULL, "expected one of Adam");
    refused(NULL, "Adam", NULL, "optim_by_name");
    refused(m, NULL, NULL, "optim_by_name");
    ds_module_free(m);
    ds_scope_close(scope);
}

static void refused_params(void **state)
{
    (void)state;
    static const struct {
        const char *type, *params, *message;
    } rows[] = {
        {"Adam", "{\"lrr\": 1}",
         "optimizer.params.lrr: did you mean \"lr\"? Adam takes lr, betas, eps"},
        {"Adam", "{\"bogus_thing\": 1}", "optimizer.params.bogus_thing: Adam takes lr, betas, eps"},
        {"Adam", "{\"momentum\": 1}", "optimizer.params.momentum: Adam takes"},
        {"Adam", "{\"max_grad_norm\": 1}",
         "optimizer.params.max_grad_norm: DeepSpeed has \"gradient_clipping\""},
        {"Adam", "{\"freeze_step\": 1}", "optimizer.params.freeze_step is of the 1-bit optimizers"},
        {"Adam", "{\"lr\": \"1e-3\"}", "optimizer.params.lr is \"1e-3\": expected a number"},
        {"Adam", "{\"lr\": \"auto\"}", "\"auto\" is filled in by the program"},
        {"Adam", "{\"lr\": true}", "optimizer.params.lr is true: expected a number"},
        {"Adam", "{\"lr\": -1}", "optimizer.params.lr is -1: expected a number, 0 or more"},
        {"Adam", "{\"eps\": -1}", "optimizer.params.eps is -1: expected a number, 0 or more"},
        {"Adam", "{\"betas\": 0.9}", "optimizer.params.betas is 0.9: expected two numbers"},
        {"Adam", "{\"betas\": [0.9]}", "optimizer.params.betas is [0.9]: expected two numbers"},
        {"Adam", "{\"betas\": [0.9, 1]}",
         "optimizer.params.betas is [0.9,1]: expected two numbers, 0 or more, and less"},
        {"Adam", "{\"betas\": [\"x\", 1]}",
         "optimizer.params.betas is [\"x\",1]: expected two numbers"},
        {"Adam", "{\"adam_w_mode\": 1}",
         "optimizer.params.adam_w_mode is 1: expected true or false"},
        {"Adam", "{\"amsgrad\": true}",
         "optimizer.params.amsgrad: DeepSpeed's class does not have it; torch's"},
        {"Adam", "{\"foreach\": true}", "optimizer.params.foreach: Adam takes"},
        {"Adam", "{\"torch_adam\": true, \"bias_correction\": true}",
         "optimizer.params.bias_correction"},
        {"AdamW", "{\"fp32_optimizer_states\": false}", "moments are float32 here"},
        {"Lamb", "{\"amsgrad\": true}",
         "optimizer.params.amsgrad: DeepSpeed's class does not have it"},
        {"Lamb", "{\"min_coeff\": 20}", "optimizer.params.min_coeff is 20, which is more than"},
        {"SGD", "{\"nesterov\": true}", "optimizer.params.nesterov needs a momentum"},
        {"SGD", "{\"betas\": [0.9, 0.99]}", "optimizer.params.betas: SGD takes"},
        {"Adadelta", "{\"rho\": 2}", "optimizer.params.rho is 2: expected a number, 0 to 1"},
        {"SGD", "[1]", "optimizer.params is not an object"},
        {"SGD", "{\"lr\": }", "optimizer.params: line 1, column"},
        {"SGD", "{\"lr\": 1, \"lr\": 2}", "optimizer.params: line 1, column"},
        {"SGD", "", "optimizer.params: line 1, column"},
        {"SGD", "{\"\": 1}", "optimizer.params.: SGD takes"},
        {"SGD", "{\"lr momentum\": 1}", "SGD takes"},
    };
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(m, rows[i].type, rows[i].params, rows[i].message);
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(names), cmocka_unit_test(defaults_and_values),
          cmocka_unit_test(refused_types), cmocka_unit_test(refused_params))
