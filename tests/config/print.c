/* tests/config/print.c: DeepSpeed's lines about a configuration, and when they
 * are printed.
 * SPDX-License-Identifier: MIT */
#include "base/log.h"
#include "caught.h"
#include "check.h"
#include "config/config.h"

static const char *const text =
    "{\"train_batch_size\": 16, \"steps_per_print\": 2000, \"gradient_clipping\": 1.0,"
    " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001, \"betas\": [0.8, 0.999],"
    " \"eps\": 1e-8}}, \"fp16\": {\"enabled\": true}, \"communication_data_type\": \"FP16\","
    " \"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}, \"dump_state\": true}";

static int rank;

static void print(void)
{
    dsi_config *c = dsi_config_read(text, 2);
    dsi_log_set_rank(rank);
    if (c) dsi_config_print(c);
    dsi_config_free(c);
}

/* The line "  name .... value" is there, to its end. */
static void has(const char *printed, const char *name, const char *value)
{
    char line[400];
    int dots = 29 - (int)strlen(name);
    snprintf(line, sizeof line, "]   %s %.*s %s\n", name, dots > 0 ? dots : 0,
             ".............................", value);
    if (!strstr(printed, line)) fail_msg("no line \"%s\"", line);
}

static void block(void **state)
{
    (void)state;
    rank = 0;
    const char *s = caught_of("info", print);
    CHECK(strstr(s, "[INFO] [print.c:"));
    CHECK(strstr(s, "] DeepSpeedEngine configuration:\n"));
    has(s, "bfloat16_config",
        "enabled=False immediate_grad_update=False check_grad_overflow=True "
        "bf16_master_weights_and_grads=False bf16_optimizer_states=False");
    has(s, "communication_data_type", "torch.float16");
    has(s, "dump_state", "True");
    has(s, "gradient_clipping", "1");
    has(s, "gradient_predivide_factor", "1.0");
    has(s, "optimizer_name", "adam");
    has(s, "optimizer_params", "{'lr': 0.001, 'betas': [0.8, 0.999], 'eps': 1e-08}");
    has(s, "scheduler_name", "None");
    has(s, "steps_per_print", "2000");
    has(s, "train_micro_batch_size_per_gpu", "8");
    has(s, "world_size", "2");
    has(s, "zero_enabled", "True");
    has(s, "checkpoint_tag_validation_enabled", "True");
    CHECK(strstr(
        s, "offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig(device='cpu', nvme_path=None"));
    CHECK(strstr(
        s,
        "  json = {\n    \"train_batch_size\": 16, \n    \"steps_per_print\": 2.000000e+03, \n"));
    CHECK(strstr(s, "\"betas\": [0.8, 0.999], \n            \"eps\": 1e-08\n        }\n    }, \n"));
}

static void warnings(void **state)
{
    (void)state;
    rank = 0;
    const char *s = caught_of(NULL, print);
    CHECK(strstr(s, "[WARNING]") &&
          strstr(s, "\"zero_optimization.cpu_offload\" is a deprecated name"));
    CHECK(strstr(s, "without effect here (docs/config.md says why): dump_state\n"));
    CHECK(!strstr(s, "DeepSpeedEngine"));
    rank = 1;
    assert_string_equal(caught_of("info", print), "");
}

TEST_MAIN(cmocka_unit_test(block), cmocka_unit_test(warnings))
