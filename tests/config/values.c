/* tests/config/values.c: values of ds_config.json: types, ranges, names, batch
 * arithmetic, rules between keys; every error has a case.
 * tests/reference/config.c compares whole files with DeepSpeed.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "check.h"
#include "config/reader.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Text with ' for ", which C strings can do without. */
static dsi_config *read_quoted(const char *text, int world)
{
    char *s = dsi_strdup(text);
    for (char *at = s; *at; at++)
        if (*at == '\'') *at = '"';
    ds_error_clear();
    dsi_config *c = dsi_config_read(s, world);
    dsi_free(s);
    return c;
}

static dsi_config *must_read(const char *text)
{
    dsi_config *c = read_quoted(text, 1);
    if (!c) fail_msg("%s: %s", text, ds_error());
    return c;
}

/* ---- every error --------------------------------------------------------------------------------- */

typedef struct wrong {
    const char *text, *part; /* of the message */
} wrong;

static void refuses(const wrong *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dsi_config *c = read_quoted(cases[i].text, 1);
        if (c) fail_msg("%s is accepted; want \"%s\"", cases[i].text, cases[i].part);
        CHECK_ERROR(cases[i].part);
    }
}

#define B "'train_batch_size': 4, "

static void types_and_ranges(void **state)
{
    (void)state;
    static const wrong cases[] = {
        {"{'train_batch_size': '16'}",
         "line 1: \"train_batch_size\": expected an integer of at least "
         "1 or null, found the string \"16\""},
        {"{'train_batch_size': 16.5}", "found 16.5"},
        {"{'train_batch_size': true}", "found true"},
        {"{'train_batch_size': 0}", "of at least 1 or null, found 0"},
        {"{'train_batch_size': -4}", "found -4"},
        {"{'train_batch_size': [4]}", "found a list"},
        {"{'train_batch_size': 1e30}", "found 1e+30"},
        {"{'train_batch_size': 123456789012345678901234567890}", "found 1.2345678901234568e+29"},
        {"{" B "'steps_per_print': {}}", "found an object"},
        {"{" B "'steps_per_print': -1}", "of at least 0 or null, found -1"},
        {"{" B "'wall_clock_breakdown': 'false'}", "expected true or false, found the string"},
        {"{" B "'wall_clock_breakdown': 2}", "expected true or false, found 2"},
        {"{" B "'fp16': {'enabled': null}}", "found null"},
        {"{" B "'gradient_clipping': null}", "expected a number of at least 0, found null"},
        {"{" B "'gradient_clipping': '1.0'}", "found the string \"1.0\""},
        {"{" B "'gradient_clipping': -1.5}", "found -1.5"},
        {"{" B "'gradient_predivide_factor': 0}", "a number above 0, found 0"},
        {"{" B "'communication_data_type': 'fp64'}",
         "expected one of fp16, bf16, fp32 or null, found the string \"fp64\""},
        {"{" B "'communication_data_type': 16}", "found 16"},
        {"{" B "'gradient_allreduce_op': 'max'}", "expected one of mean, sum, found"},
        {"{" B "'on_nan': 'ignore'}", "expected one of error, continue"},
        {"{" B "'data_types': {'grad_accum_dtype': 'FP32'}}", "expected one of fp32, float32"},
        {"{" B "'flops_profiler': {'profile_step': -1}}", "of at least 0, found -1"},
        {"{" B "'flops_profiler': {'module_depth': -2}}", "of at least -1, found -2"},
        {"{" B "'flops_profiler': {'top_modules': 1.5}}", "of at least 0, found 1.5"},
        {"{" B "'flops_profiler': {'detailed': 'no'}}", "expected true or false, found the string"},
        {"{" B "'flops_profiler': {'output_file': 3}}", "found 3"},
        {"{" B "'flops_profiler': {'recompute_fwd_factor': -0.5}}", "of at least 0, found -0.5"},
        {"{" B "'zero_optimization': {'stage': 4}}", "expected an integer from 0 to 3, found 4"},
        {"{" B "'zero_optimization': {'stage': true}}", "found true"},
        {"{" B "'zero_optimization': {'reduce_bucket_size': 0}}", "of at least 1, found 0"},
        {"{" B "'zero_optimization': {'offload_optimizer': {'ratio': 1.5}}}",
         "a number from 0 to 1, found 1.5"},
        {"{" B "'zero_optimization': {'offload_optimizer': {'device': 'gpu'}}}",
         "\"zero_optimization.offload_optimizer.device\": expected one of none, cpu, nvme"},
        {"{" B "'zero_optimization': {'offload_optimizer': 'cpu'}}",
         "expected an object or null, found the string"},
        {"{" B "'zero_optimization': 2}", "expected an object, found 2"},
        {"{" B "'zero_optimization': null}", "expected an object, found null"},
        {"{" B "'fp16': null}", "expected an object, found null"},
        {"{" B "'fp16': {'initial_scale_power': 200}}", "from 0 to 126, found 200"},
        {"{" B "'optimizer': 'Adam'}", "\"optimizer\": expected an object, found the string"},
        {"{" B "'optimizer': {'type': 5}}", "\"optimizer.type\": expected a string or null"},
        {"{" B "'optimizer': {'type': 'Adam', 'params': [1]}}", "expected an object or null"},
        {"{" B "'comms_logger': {'prof_ops': 'all_reduce'}}", "expected a list of strings"},
        {"{" B "'comms_logger': {'prof_ops': [1]}}", "expected a list of strings, found a list"},
        {"{" B "'comms_logger': {'prof_ops': ['send', 'alreduce']}}",
         "\"comms_logger.prof_ops\": there is no operation \"alreduce\" (did you mean "
         "\"all_reduce\"?)"},
        {"{" B "'sequence_parallel_size': 2}", "there is no sequence parallelism"},
    };
    refuses(cases, COUNT(cases));
}

/* Keys whose values must fit an int. */
static void counts(void **state)
{
    (void)state;
    static const wrong cases[] = {
        {"{" B "'zero_optimization': {'offload_param': {'buffer_count': 2147483648}}}",
         "\"zero_optimization.offload_param.buffer_count\": expected an integer from 0 to "
         "2147483647, "
         "found 2147483648"},
        {"{" B "'zero_optimization': {'offload_optimizer': {'buffer_count': 1e18}}}",
         "\"zero_optimization.offload_optimizer.buffer_count\": expected an integer from 0 to"},
        {"{" B "'aio': {'queue_depth': 4294967304}}",
         "\"aio.queue_depth\": expected an integer from 1"},
        {"{" B "'aio': {'intra_op_parallelism': 4294967297}}",
         "\"aio.intra_op_parallelism\": expected"},
    };
    refuses(cases, COUNT(cases));
}

static void names(void **state)
{
    (void)state;
    static const wrong cases[] = {
        {"{" B "'zero_optimization': {'reduce_bukcet_size': 5}}",
         "\"zero_optimization.reduce_bukcet_size\": did you mean \"reduce_bucket_size\"?"},
        {"{'Train_Batch_Size': 4}", "did you mean \"train_batch_size\"?"},
        {"{" B "'stage': 2}", "did you mean \"zero_optimization.stage\"?"},
        {"{" B "'offload_optimizer': {'device': 'cpu'}}",
         "did you mean \"zero_optimization.offload_optimizer\"?"},
        {"{" B "'timers': {'enabled': true}}", "did you mean \"timers.throughput.enabled\"?"},
        {"{" B "'optimizer': {'betas': [0.8, 0.9]}}", "options go into \"optimizer.params\""},
        {"{" B "'zero_optimisation': {}}", "did you mean \"zero_optimization\"?"},
        {"{" B "'wall-clock-breakdown': true}", "did you mean \"wall_clock_breakdown\"?"},
        {"{" B "'zero_optimization': {'offload_optimizer': {'devise': 'cpu'}}}",
         "\"zero_optimization.offload_optimizer.devise\": did you mean \"device\"?"},
        {"{" B "'zero_optimization': {'completely_unheard_of': 1}}", "there is no such key"},
        {"{" B "'timers': {'_comment': 1}}", "\"timers._comment\": there is no such key"},
        {"{" B "'pipeline': {'stages': 2}}", "there is no pipeline parallelism"},
        {"{" B "'autotuning': {'enabled': true}}", "there is no search"},
        {"{" B "'wandb': {'enabled': true}}", "a service on the network"},
        {"{" B "'comet': {'enabled': true}}", "a service on the network"},
        {"{" B "'fp16.enabled': true}", "\"fp16.enabled\": keys do not nest by dots"},
        {"{" B "'timers': {'throughput': {'enable': true}}}", "did you mean \"enabled\"?"},
        {"{" B "'amp': {'enabled': false}}",
         "\"amp\": was removed from DeepSpeed and is not supported here (NVIDIA's apex"},
        {"{" B "'elasticity': {}}", "set the batch keys themselves"},
        {"{" B "'sparse_gradients': false}", "\"sparse_gradients\": was removed"},
        {"{" B "'zero_optimization': {'mics_shard_size': 2}}", "was removed from DeepSpeed"},
        {"{" B "'hybrid_engine': {'enabled': true}}",
         "is not supported (ds_generate needs no engine of its own)"},
        {"{" B "'fp16': {'fp16_master_weights_and_grads': true}}", "is not supported"},
        {"{" B "'weight_quantization': {}}", "is not supported"},
        {"{" B "'zero_optimization': {'cpu_offload': {'device': 'cpu'}}}",
         "\"zero_optimization.cpu_offload\": expected true or false, found an object"},
        {"{" B "'zero_optimization': {'cpu_offload_param': 'yes'}}",
         "expected true or false, found the string \"yes\""},
        {"{" B "'zero_optimization': {'offload_optimizer': true}}",
         "expected an object or null, found true"},
        {"{" B "'bf16': {}, 'bfloat16': {}}", "the same as \"bf16\", which is there too"},
        {"{" B "'zero_optimization': {'cpu_offload': false, 'offload_optimizer': {}}}",
         "the same as \"offload_optimizer\""},
        {"{" B
         "'zero_optimization': {'prefetch_bucket_size': 1, 'stage3_prefetch_bucket_size': 1}}",
         "the same as \"prefetch_bucket_size\""},
        {"{" B "'zero_optimization': {'stage3_prefetch_bucket_size': '1'}}",
         "\"zero_optimization.stage3_prefetch_bucket_size\": expected an integer"},
    };
    refuses(cases, COUNT(cases));
}

static void notes(void **state)
{
    (void)state;
    dsi_config *c = must_read("{" B "'_comment': 'two of them', '//': {'stage': 3}}");
    CHECK_INT(c->zero.stage, 0);
    dsi_config_free(c);
}

static void automatic(void **state)
{
    (void)state;
    static const wrong cases[] = {
        {"{'train_batch_size': 'auto'}",
         "\"train_batch_size\": \"auto\" cannot be worked out: train_batch_size or"},
        {"{" B "'gradient_clipping': 'auto'}", "\"gradient_clipping\": \"auto\" is for trainers"},
        {"{" B "'prescale_gradients': 'auto'}", "\"auto\" is for trainers"},
        {"{" B "'optimizer': {'type': 'Adam', 'params': {'lr': 'auto'}}}",
         "\"optimizer.params.lr\": \"auto\""},
        {"{" B "'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 'auto'}}}",
         "\"scheduler.params.warmup_num_steps\": \"auto\""},
        {"{" B "'fp16': 'auto'}", "expected an object, found the string \"auto\""},
    };
    refuses(cases, COUNT(cases));

    dsi_config *c = must_read("{'train_batch_size': 8, 'train_micro_batch_size_per_gpu': 'auto',"
                              "'gradient_accumulation_steps': 'auto', 'fp16': {'enabled': 'auto'},"
                              "'zero_optimization': {'stage': 3, 'reduce_bucket_size': 'auto',"
                              "'overlap_comm': 'auto', 'offload_param': 'auto'}}");
    CHECK_INT(c->train_micro_batch_size_per_gpu, 8);
    CHECK_INT(c->zero.reduce_bucket_size, 500000000);
    CHECK(c->zero.overlap_comm && !c->fp16.enabled);
    dsi_config_free(c);
}

static void rules(void **state)
{
    (void)state;
    static const wrong cases[] = {
        {"{" B "'fp16': {'enabled': true}, 'bf16': {'enabled': true}}", "cannot both be enabled"},
        {"{" B "'managed_gradient_accumulation': false, "
         "'zero_optimization': {'stage': 2, 'deterministic': true}}",
         "\"managed_gradient_accumulation\": false needs another number of backwards"},
        {"{" B "'bf16': {'enabled': true}, 'data_types': {'grad_accum_dtype': 'half'}}",
         "\"data_types.grad_accum_dtype\": expected float32 or the model's type for a model in "
         "bfloat16, found float16"},
        {"{" B "'data_types': {'grad_accum_dtype': 'bf16'}}",
         "expected float32 for a model in float32, found bfloat16"},
        {"{" B "'fp16': {'enabled': true, 'loss_scale_window': 0}}",
         "\"fp16.loss_scale_window\": expected an integer of at least 1 with a dynamic scale"},
        {"{" B "'fp16': {'enabled': true, 'min_loss_scale': 0}}", "\"fp16.min_loss_scale\""},
        {"{" B "'gradient_allreduce_op': 'SUM', 'zero_optimization': {'stage': 3}}",
         "sum is not possible with ZeRO stage 3"},
        {"{" B "'checkpoint': {'overhead_limit': 0.03}}", "needs \"async\": true beside it"},
        {"{" B "'checkpoint': {'use_node_local_storage': true, 'load_universal': true}}",
         "leave \"load_universal\" out"},
        {"{" B "'zero_optimization': {'stage': 2, 'offload_optimizer': {'ratio': 0.5}}}",
         "below 1 needs ZeRO stage 3"},
        {"{" B "'zero_optimization': {'stage': 3, 'compute_grad_norm': false}}",
         "needs ZeRO stage 1 or 2"},
        {"{" B "'optimizer': {'type': 'Adam', 'params': {'max_grad_norm': 1}}}",
         "use \"gradient_clipping\""},
    };
    refuses(cases, COUNT(cases));
    dsi_config_free(must_read("{" B "'fp16': {'loss_scale_window': 0, 'min_loss_scale': 0}}"));
    dsi_config_free(
        must_read("{" B "'fp16': {'enabled': true, 'loss_scale': 8, 'min_loss_scale': 0}}"));
}

static void several_at_once(void **state)
{
    (void)state;
    CHECK(!read_quoted("{'train_batch_size': 0,\n'fp16': {'enabled': 3},\n'zero_optimisation': 1}",
                       1));
    CHECK(strstr(ds_error(), "line 1: \"train_batch_size\""));
    CHECK(strstr(ds_error(), "line 2: \"fp16.enabled\""));
    CHECK(strstr(ds_error(), "line 3: \"zero_optimisation\""));

    char text[4000] = "{'timers': {";
    for (int i = 0; i < 100; i++) sprintf(text + strlen(text), "'unheard_of_%d': 1,", i);
    strcat(text, "}, 'train_batch_size': 4}");
    CHECK(!read_quoted(text, 1));
    CHECK(strstr(ds_error(), " more") && strlen(ds_error()) < 1000);
    ds_error_clear();
}

/* ---- batch arithmetic ---------------------------------------------------------------------------- */

static void batch_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int world, train, micro, steps;
    } cases[] = {
        {"{'train_batch_size': 16}", 4, 16, 4, 1},
        {"{'train_micro_batch_size_per_gpu': 4}", 2, 8, 4, 1},
        {"{'train_batch_size': 16, 'train_micro_batch_size_per_gpu': 2}", 2, 16, 2, 4},
        {"{'train_batch_size': 16, 'gradient_accumulation_steps': 2}", 4, 16, 2, 2},
        {"{'train_micro_batch_size_per_gpu': 3, 'gradient_accumulation_steps': 5}", 4, 60, 3, 5},
        {"{'train_batch_size': 1e1, 'gradient_accumulation_steps': null}", 2, 10, 5, 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        dsi_config *c = read_quoted(cases[i].text, cases[i].world);
        CHECK(c != NULL);
        CHECK_INT(c->train_batch_size, cases[i].train);
        CHECK_INT(c->train_micro_batch_size_per_gpu, cases[i].micro);
        CHECK_INT(c->gradient_accumulation_steps, cases[i].steps);
        dsi_config_free(c);
    }
}

/* A job of 4 ranks of which some are left: the total stays. */
static void batch_of_fewer_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int world, train, micro, steps;
    } cases[] = {
        {"{'train_batch_size': 16}", 4, 16, 4, 1},
        {"{'train_batch_size': 16}", 2, 16, 4, 2},
        {"{'train_batch_size': 16}", 1, 16, 4, 4},
        {"{'train_batch_size': 24}", 3, 24, 4, 2}, /* 6 does not divide 8 */
        {"{'train_micro_batch_size_per_gpu': 3, 'gradient_accumulation_steps': 2}", 1, 24, 3, 8},
        {"{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 4,"
         "'gradient_accumulation_steps': 2}",
         2, 32, 4, 4},
        {"{'train_batch_size': 6}", 2, 6, 3, 1}, /* is not meant for 4 */
    };
    setenv("DS_FULL_WORLD_SIZE", "4", 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char world[20];
        snprintf(world, sizeof world, "%d", cases[i].world);
        setenv("WORLD_SIZE", world, 1);
        dsi_config *c = read_quoted(cases[i].text, cases[i].world);
        CHECK(c != NULL);
        CHECK_INT(c->train_batch_size, cases[i].train);
        CHECK_INT(c->train_micro_batch_size_per_gpu, cases[i].micro);
        CHECK_INT(c->gradient_accumulation_steps, cases[i].steps);
        dsi_config_free(c);
    }
    setenv("WORLD_SIZE", "3", 1);
    CHECK(!read_quoted("{'train_batch_size': 16}", 3));
    CHECK_ERROR("16 cannot be divided evenly among the 3 ranks that are left of 4: give deepspeed "
                "--min_ranks, or a size that fits");
    dsi_config *c = read_quoted("{'train_batch_size': 16}", 2); /* an engine of some of them */
    CHECK_INT(c->train_micro_batch_size_per_gpu, 8);
    dsi_config_free(c);
    unsetenv("WORLD_SIZE");
    unsetenv("DS_FULL_WORLD_SIZE");
}

static void batch_mismatches(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int world;
        const char *part;
    } cases[] = {
        {"{'gradient_accumulation_steps': 2}", 1,
         "train_batch_size or train_micro_batch_size_per_gpu must be given"},
        {"{'train_batch_size': 16, 'train_micro_batch_size_per_gpu': 4,"
         "'gradient_accumulation_steps': 2}",
         1,
         "16 is not 4 (train_micro_batch_size_per_gpu) * 2 (gradient_accumulation_steps) * 1 "
         "(ranks) "
         "= 8; gradient_accumulation_steps 4 or train_batch_size 8 fits"},
        {"{'train_batch_size': 12, 'train_micro_batch_size_per_gpu': 5,"
         "'gradient_accumulation_steps': 2}",
         2, "train_micro_batch_size_per_gpu 3 or train_batch_size 20 fits"},
        {"{'train_batch_size': 6, 'train_micro_batch_size_per_gpu': 4}", 1,
         "train_batch_size 4 or 8 fits"},
        {"{'train_batch_size': 2, 'gradient_accumulation_steps': 3}", 1,
         "2 is not 0 (train_micro_batch_size_per_gpu, derived) * 3"},
        {"{'train_batch_size': 3}", 4, "train_batch_size 4 fits"},
        {"{'train_micro_batch_size_per_gpu': 5e18, 'gradient_accumulation_steps': 5}", 1,
         "beyond 64 bits"},
        {"{'train_batch_size': 9e18}", 1, "beyond 64 bits"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (read_quoted(cases[i].text, cases[i].world)) fail_msg("%s", cases[i].text);
        CHECK_ERROR(cases[i].part);
    }
    CHECK(!dsi_config_read("{}", 0));
    CHECK_ERROR("for 0 ranks");
}

/* ---- values -------------------------------------------------------------------------------------- */

static void values(void **state)
{
    (void)state;
    dsi_config *c = must_read(
        "{'train_batch_size': 4, 'gradient_clipping': 0, 'gradient_allreduce_op': 'Sum',"
        "'communication_data_type': 'BF16', 'on_nan': 'continue', 'steps_per_print': 1e1,"
        "'fp16': {'enabled': 1, 'loss_scale': 128}, 'data_types': {'grad_accum_dtype': 'float'},"
        "'zero_optimization': {'stage': 2.0, 'stage3_max_live_parameters': 1e12,"
        "  'offload_optimizer': {'device': 'nvme', 'nvme_path': '/n', 'ratio': 1}},"
        "'optimizer': {'type': 'Adam', 'params': {'lr': 0.1, 'betas': [0.8, 0.999]}},"
        "'scheduler': {'type': 'WarmupLR'}, 'bf16': null,"
        "'csv_monitor': {'enabled': true, 'output_path': 'out', 'job_name': 'j'}}");
    CHECK_CLOSE(c->gradient_clipping, 0, 0);
    CHECK(c->gradient_sum && c->communication_data_type == DS_BF16 &&
          c->on_nan == DSI_NAN_CONTINUE);
    CHECK(c->fp16.enabled && c->fp16.loss_scale == 128 && c->fp16.loss_scale_window == 1000);
    CHECK_INT(c->steps_per_print, 10);
    CHECK_INT(c->data_types.grad_accum_dtype, DS_F32);
    CHECK_INT(c->zero.stage, 2);
    CHECK_INT(c->zero.max_live_parameters, 1000000000000);
    CHECK_INT(c->zero.offload_optimizer.device, DSI_OFFLOAD_NVME);
    assert_string_equal(c->zero.offload_optimizer.nvme_path, "/n");
    assert_string_equal(c->optimizer.type, "Adam");
    json_t *params = json_loads(c->optimizer.params, 0, NULL);
    CHECK_CLOSE(json_number_value(json_object_get(params, "lr")), 0.1, 0);
    json_decref(params);
    CHECK(c->scheduler.type && !c->scheduler.params);
    CHECK(c->csv_monitor.enabled && !c->tensorboard.enabled);
    assert_string_equal(c->csv_monitor.job_name, "j");
    dsi_config_free(c);
}

static void defaults(void **state)
{
    (void)state;
    dsi_config *c = must_read("{'train_batch_size': 4}");
    CHECK_CLOSE(c->gradient_clipping, 1, 0); /* DeepSpeed 0.19's, not the 0.0 of older ones */
    CHECK_INT(c->communication_data_type, DSI_CONFIG_NO_DTYPE);
    CHECK_INT(c->steps_per_print, 0);
    CHECK(!c->optimizer.type && !c->scheduler.type && !c->zero.overlap_comm);
    CHECK(c->zero.model_persistence_threshold == INT64_MAX);
    CHECK_INT(c->zero.offload_optimizer.device, DSI_OFFLOAD_NONE); /* of a group that is null */
    CHECK_INT(c->trees->warnings.n, 0);
    dsi_config_free(c);
}

/* A resolved configuration is a configuration itself, which resolves to the
 * same. */
static void resolved_again(void **state)
{
    (void)state;
    dsi_config *c = read_quoted("{'train_batch_size': 24, 'gradient_accumulation_steps': 3,"
                                "'zero_optimization': {'stage': 3, 'cpu_offload': true},"
                                "'optimizer': {'type': 'Adam', 'params': {'eps': 1e-08}},"
                                "'tensor_parallel': {'tp': {'tp_grain_size': 2}},"
                                "'checkpoint': {'tag_validation': 'fail', 'writer': {}}}",
                                4);
    char *once = dsi_config_json(c);
    CHECK(strstr(once, "\"eps\": 1e-08") && strstr(once, "\"train_micro_batch_size_per_gpu\": 2"));
    dsi_config *again = dsi_config_read(once, 4);
    CHECK(again != NULL);
    char *twice = dsi_config_json(again);
    assert_string_equal(once, twice);
    dsi_config_free(c);
    dsi_config_free(again);
    dsi_free(once);
    dsi_free(twice);
}

/* ---- deprecated names, warnings ------------------------------------------------------------------------- */

static void deprecated_names(void **state)
{
    (void)state;
    dsi_config *c = must_read("{" B
                              "'bfloat16': {'enabled': true}, 'zero_optimization': {'stage': 3,"
                              "'cpu_offload': true, 'cpu_offload_param': false,"
                              "'stage3_gather_fp16_weights_on_model_save': true}}");
    CHECK(c->bf16.enabled);
    CHECK_INT(c->zero.offload_optimizer.device, DSI_OFFLOAD_CPU);
    CHECK_INT(c->trees->warnings.n, 4); /* four names */
    dsi_config_free(c);
    c = must_read("{" B "'zero_optimization': true, 'allgather_size': 100}");
    CHECK_INT(c->zero.stage, 1);
    CHECK_INT(c->zero.allgather_bucket_size, 100);
    CHECK_INT(c->trees->warnings.n, 2); /* the old form; allgather_size by itself */
    dsi_config_free(c);
    c = must_read("{" B "'zero_optimization': false}");
    CHECK_INT(c->zero.stage, 0);
    dsi_config_free(c);
    c = must_read("{" B
                  "'zero_optimization': {'stage': 3, 'cpu_offload': 1, 'cpu_offload_param': 0}}");
    CHECK_INT(c->zero.offload_optimizer.device, DSI_OFFLOAD_CPU);
    CHECK_INT(c->zero.offload_param.device, DSI_OFFLOAD_NONE);
    dsi_config_free(c);
}

static void has_warning(const dsi_config *c, const char *part)
{
    CHECK_INT(c->trees->warnings.n, 1);
    if (!strstr(c->trees->warnings.at[0], part)) fail_msg("%s", c->trees->warnings.at[0]);
}

static void without_effect(void **state)
{
    (void)state;
    dsi_config *c = must_read("{" B "'dump_state': true, 'log_level': null, 'vocabulary_size': 10,"
                              "'wandb': {'enabled': false, 'project': 'deepspeed'},"
                              "'flops_profiler': {'recompute_fwd_factor': 0}}");
    has_warning(c, "without effect here (docs/config.md says why): dump_state, "
                   "vocabulary_size");
    dsi_config_free(c);
    c = must_read("{" B "'scheduler': {'params': {'warmup_num_steps': 5}}}");
    has_warning(c, "\"scheduler.params\" has no effect without \"scheduler.type\"");
    CHECK(!c->scheduler.params);
    dsi_config_free(c);
    c = must_read("{" B "'zero_optimization': {'stage': 2, 'offload_param': {'device': 'cpu'}}}");
    has_warning(c, "\"zero_optimization.offload_param\" is for ZeRO stage 3: it has no effect in "
                   "stage 2");
    dsi_config_free(c);
    c = must_read("{" B "'zero_optimization': {'stage': 2, 'offload_param': {'device': 'none'}}}");
    CHECK_INT(c->trees->warnings.n, 0);
    dsi_config_free(c);
    c = must_read("{" B "'flops_profiler': {'enabled': true}}");
    CHECK(c->wall_clock_breakdown);
    dsi_config_free(c);
}

static void unknown_keys_softened(void **state)
{
    (void)state;
    dsi_config *c = must_read("{" B "'nonsense': null, 'fp16': {'vendor': {}, '//': 'a note'}}");
    has_warning(c, "unknown keys are left out: \"nonsense\", \"fp16.vendor\"");
    dsi_config_free(c);
    c = must_read("{" B "'log': {'steps_per_print': 50}, 'comms_config': {'verbose': false}}");
    has_warning(c, "unknown keys are left out: \"log\", \"comms_config\""); /* near as words only */
    dsi_config_free(c);
    c = must_read("{" B "'foo': 3, 'fp8': {'enabled': false}}"); /* as short as "aio" and "fp16" */
    has_warning(c, "unknown keys are left out: \"foo\", \"fp8\"");
    dsi_config_free(c);
    c = must_read("{" B "'zero_optimization': false}");
    has_warning(c, "use {\"stage\": 0}");
    dsi_config_free(c);
    c = must_read("{" B "'torch_autocast': {'enabled': false, 'dtype': 'bfloat16',"
                  " 'lower_precision_safe_modules': ['torch.nn.Linear']}}");
    dsi_config_free(c);
    c = must_read("{" B "'hybrid_engine': {'enabled': false, 'max_out_tokens': 9}}");
    dsi_config_free(c);
    CHECK(!read_quoted("{" B "'hybrid_engine': {'enabled': true}}", 1));
    CHECK_ERROR("\"hybrid_engine.enabled\": is not supported");
    CHECK(!read_quoted("{" B "'zero_optimisation': {'stage': 1}}", 1));
    CHECK_ERROR("\"zero_optimisation\": did you mean \"zero_optimization\"?");
    CHECK(!read_quoted("{" B "'offload_optimizer': {'device': 'none'}}", 1));
    CHECK_ERROR("did you mean \"zero_optimization.offload_optimizer\"?");
    c = must_read("{" B "'prescale_gradients': null}");
    has_warning(c, "\"prescale_gradients\": null counts as false");
    dsi_config_free(c);
    setenv("DS_CONFIG_UNKNOWN", "error", 1);
    CHECK(!read_quoted("{" B "'nonsense': 1}", 1));
    CHECK_ERROR("\"nonsense\": there is no such key");
    setenv("DS_CONFIG_UNKNOWN", "warn", 1);
    c = must_read("{" B "'nonsense': 1, 'fp16': {'enable': true}}");
    has_warning(c, "unknown keys are left out: \"nonsense\", \"fp16.enable\"");
    dsi_config_free(c);
    setenv("DS_CONFIG_UNKNOWN", "ignore", 1);
    CHECK(!dsi_config_read("{\"train_batch_size\": 1}", 1));
    CHECK_ERROR("DS_CONFIG_UNKNOWN=ignore: expected error or warn");
    unsetenv("DS_CONFIG_UNKNOWN");
}

/* Groups without a counterpart here take any keys, except those that would
 * change training. */
static void ignored_groups(void **state)
{
    (void)state;
#define SAMPLING "{" B "'data_efficiency': {'data_sampling': {"
    dsi_config *c = must_read(SAMPLING "'num_epochs': 3, 'curriculum_learning': {'a': {'b': 8}}},"
                                       "'seed': 5}, 'wandb': {'enabled': false, 'team': 't'},"
                                       "'checkpoint': {'writer': {'type': 'FAST'}},"
                                       "'tensor_parallel': {'tp': {'tp_size': 1}, 'dtype': null,"
                                       "'autotp_size': 1},"
                                       "'autotuning': {'fast': true}}");
    has_warning(c, "says why): checkpoint.writer, tensor_parallel");
    json_t *kept = dsi_config_tree_get(c->trees->resolved,
                                       "data_efficiency.data_sampling.curriculum_learning.a.b");
    CHECK_INT(json_integer_value(kept), 8);
    dsi_config_free(c);
    static const wrong cases[] = {
        {SAMPLING "'curriculum_learning': {'enabled': true}}}}", "learning.enabled\": is not supp"},
        {SAMPLING "'dynamic_batching': {'enabled': 1}}}}", "batching.enabled\": is not supported"},
        {SAMPLING "'curriculum_learning': 8}}}", "learning\": expected an object, found 8"},
        {"{" B "'tensor_parallel': {'tp': {'tp_size': 2}}}", "tp.tp_size\": is not supported"},
        {"{" B "'tensor_parallel': {'autotp_size': 4}}", "\"tensor_parallel.autotp_size\": is not"},
        {"{" B "'tensor_parallel': {'autotp_size': -1}}", "tensor_parallel.autotp_size\": is not"},
        {"{" B "'tensor_parallel': {'autotp_size': '1'}}", "tensor_parallel.autotp_size\": is not"},
    };
    refuses(cases, COUNT(cases));
}

TEST_MAIN(cmocka_unit_test(types_and_ranges), cmocka_unit_test(counts), cmocka_unit_test(names),
          cmocka_unit_test(notes), cmocka_unit_test(automatic), cmocka_unit_test(rules),
          cmocka_unit_test(several_at_once), cmocka_unit_test(batch_sizes),
          cmocka_unit_test(batch_of_fewer_ranks), cmocka_unit_test(batch_mismatches),
          cmocka_unit_test(values), cmocka_unit_test(defaults), cmocka_unit_test(resolved_again),
          cmocka_unit_test(deprecated_names), cmocka_unit_test(without_effect),
          cmocka_unit_test(unknown_keys_softened), cmocka_unit_test(ignored_groups))
