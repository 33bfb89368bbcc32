/* tests/engine/check.c: a configuration looked at without an engine.
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
    CHECK_ERROR("optimizer.params.lrr: did you mean \"lr\"?");
    const char *alone =
        "{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"WarmupLRR\", \"params\": {}}}";
    CHECK_INT(ds_config_check(alone, 1, &resolved, &warnings), DS_EINVAL);
    CHECK_ERROR("did you mean \"WarmupLR\"?");
    ds_error_clear();
}

TEST_MAIN(cmocka_unit_test(check_without_an_engine))
