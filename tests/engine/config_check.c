/* tests/engine/config_check.c: a configuration looked at without an engine.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static void check_without_an_engine(void **state)
{
    (void)state;
    char *resolved, *warnings;
    CHECK_INT(
        ds_config_check("{\"train_batch_size\": 8, \"dump_state\": true}", 2, &resolved, &warnings),
        DS_OK);
    CHECK(strstr(resolved, "\"train_micro_batch_size_per_gpu\": 4"));
    CHECK(strstr(warnings, "dump_state\n"));
    free(resolved);
    free(warnings);
    CHECK_INT(ds_config_check("{\"train_batch_size\": 8}", 2, NULL, NULL), DS_OK);
    CHECK_INT(ds_config_check("{\"train_batch_size\": 7}", 2, &resolved, &warnings), DS_EINVAL);
    CHECK(!resolved && !warnings);
    CHECK_INT(ds_config_check(NULL, 2, &resolved, &warnings), DS_EINVAL);
    ds_error_clear();
    const char *lrr =
        "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lrr\": 1}}}";
    CHECK_INT(ds_config_check(lrr, 1, &resolved, &warnings), DS_EINVAL);
    CHECK_ERROR("line 1: optimizer.params.lrr: did you mean \"lr\"?");
    const char *alone =
        "{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"WarmupLRR\", \"params\": {}}}";
    CHECK_INT(ds_config_check(alone, 1, &resolved, &warnings), DS_EINVAL);
    CHECK_ERROR("did you mean \"WarmupLR\"?");
    ds_error_clear();
}

/* A program that checks its configuration first has to train as one that does
 * not. */
static void leaves_the_generator(void **state)
{
    (void)state;
    const char *config = "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\"},"
                         " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {}}}";
    ds_scope *scope = ds_scope_open();
    ds_seed(7);
    ds_randn(DS_F32, ds_shape(3)); /* the fourth value waits in the generator */
    ds_tensor *before = ds_rng_state();
    CHECK_INT(ds_config_check(config, 2, NULL, NULL), DS_OK);
    CHECK_INT(memcmp(ds_data(before), ds_data(ds_rng_state()), (size_t)ds_numel(before)), 0);
    CHECK_INT(ds_config_check("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adamm\"}}", 2,
                              NULL, NULL),
              DS_EINVAL);
    CHECK_ERROR("did you mean \"Adam\"?");
    CHECK_INT(memcmp(ds_data(before), ds_data(ds_rng_state()), (size_t)ds_numel(before)), 0);
    ds_scope_close(scope);
}

/* Each one is made for a model without elements. */
static void every_optimizer(void **state)
{
    static const char *const names[] = {"Adam",    "AdamW",    "Adagrad", "Lamb",  "Lion", "SGD",
                                        "RMSprop", "Adadelta", "Adamax",  "NAdam", "RAdam"};
    char config[100];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(config, sizeof config,
                 "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"%s\"}}", names[i]);
        CHECK_INT(ds_config_check(config, 2, NULL, NULL), DS_OK);
    }
}

TEST_MAIN(cmocka_unit_test(every_optimizer), cmocka_unit_test(check_without_an_engine),
          cmocka_unit_test(leaves_the_generator))
