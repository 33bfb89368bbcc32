/* tests/config/auto.c: "auto" filled as transformers' Trainer fills it:
 * tests/golden/auto/trainer.json has what its HfTrainerDeepSpeedConfig made of
 * configurations and arguments. Values that are missing, wrong or contradict
 * the file are named.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "check.h"
#include "config/reader.h"

#include <deepspeed/config.h>

static json_t *golden_cases(void)
{
    json_t *all = json_load_file(DS_GOLDEN "/auto/trainer.json", 0, NULL);
    assert_non_null(all);
    return all;
}

static ds_auto_values values_of(const json_t *given)
{
    ds_auto_values v = {0};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)given, name, value)
    {
        char text[100], *number = json_dumps(value, JSON_ENCODE_ANY);
        snprintf(text, sizeof text, "%s=%s", name, number);
        assert_int_equal(ds_auto_values_set(&v, text), DS_OK);
        free(number);
    }
    return v;
}

/* The configuration with "auto" filled resolves to what the Trainer's does. */
static void as_the_trainer(void **state)
{
    (void)state;
    json_t *all = golden_cases(), *one, *path;
    size_t i, k;
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        char *text = json_dumps(json_object_get(one, "config"), 0);
        int world = (int)json_integer_value(json_object_get(one, "world_size"));
        ds_auto_values v = values_of(json_object_get(one, "values"));
        ds_error_clear();
        dsi_config *ours = dsi_config_read_auto(text, &v, world);
        json_t *filled = json_object_get(one, "filled");
        if (!json_is_object(filled)) {
            assert_null(ours);
            json_array_foreach(json_object_get(one, "mismatches"), k, path)
                assert_non_null(strstr(ds_error(), json_string_value(path)));
        } else {
            if (!ours) fail_msg("case %zu: %s", i, ds_error());
            char *want = json_dumps(filled, 0), *json = dsi_config_json(ours);
            dsi_config *theirs = dsi_config_read(want, world);
            if (!theirs) fail_msg("case %zu: %s", i, ds_error());
            char *other = dsi_config_json(theirs);
            assert_string_equal(json, other);
            dsi_config_free(theirs);
            dsi_free(json);
            dsi_free(other);
            free(want);
        }
        dsi_config_free(ours);
        free(text);
    }
    json_decref(all);
}

/* All "auto" keys without a value are named in one message. */
static void unfilled(void **state)
{
    (void)state;
    static const char text[] =
        "{\"train_micro_batch_size_per_gpu\": \"auto\","
        " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\","
        " \"warmup_num_steps\": \"auto\", \"warmup_type\": \"auto\"}}}";
    ds_auto_values v = {.warmup_ratio = 0.1};
    ds_error_clear();
    assert_null(dsi_config_read_auto(text, &v, 1));
    assert_non_null(strstr(ds_error(), "total_num_steps\": \"auto\" needs the max_steps"));
    assert_non_null(strstr(ds_error(), "warmup_num_steps\": \"auto\" needs the warmup_steps"));
    CHECK_ERROR("\"scheduler.params.warmup_type\": \"auto\" is for trainers");
    ds_error_clear();
    assert_null(dsi_config_read("{\"train_batch_size\": 4, \"gradient_clipping\": \"auto\"}", 1));
    CHECK_ERROR("no trainer did");
}

/* A batch size that the file has decides the others. */
static void batch(void **state)
{
    (void)state;
    ds_auto_values none = {0}, four = {.per_device_train_batch_size = 4};
    const char *text = "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": \"auto\","
                       " \"gradient_accumulation_steps\": \"auto\"}";
    dsi_config *c = dsi_config_read_auto(text, &none, 2);
    assert_non_null(c);
    assert_int_equal(c->train_micro_batch_size_per_gpu, 32);
    dsi_config_free(c);
    c = dsi_config_read_auto(text, &four, 2);
    assert_non_null(c);
    assert_int_equal(c->gradient_accumulation_steps, 8);
    dsi_config_free(c);
    c = dsi_config_read_auto("{\"train_batch_size\": \"auto\"}", &four, 2);
    assert_non_null(c);
    assert_int_equal(c->train_batch_size, 8);
    dsi_config_free(c);
}

static void texts(void **state)
{
    (void)state;
    ds_auto_values v = {0};
    static const char *const wrong[][2] = {
        {"learning_rate", "expected NAME=VALUE"},
        {"learnin_rate=1", "did you mean \"learning_rate\""},
        {"optimizer=Adam", "there is no such name"},
        {"learning_rate=fast", "a number of at least 0"},
        {"learning_rate=-1", "a number of at least 0"},
        {"learning_rate=", "a number of at least 0"},
        {"max_steps=1.5", "a whole number"},
        {"max_steps=1e300", "a whole number"},
        {"max_grad_norm=nan", "a number of at least 0"},
        {"bf16=yes", "true or false"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_error_clear();
        assert_int_equal(ds_auto_values_set(&v, wrong[i][0]), DS_EINVAL);
        CHECK_ERROR(wrong[i][1]);
    }
    ds_error_clear();
    assert_int_equal(ds_auto_values_set(&v, "weight_decay=0"), DS_OK);
    assert_true(v.weight_decay == DS_ZERO);
    assert_int_equal(ds_auto_values_set(&v, "max_steps=1e4"), DS_OK);
    assert_int_equal(v.max_steps, 10000);
    assert_int_equal(ds_auto_values_set(&v, "bf16=true"), DS_OK);
    assert_true(v.bf16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_trainer), cmocka_unit_test(unfilled),
                                       cmocka_unit_test(batch), cmocka_unit_test(texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
