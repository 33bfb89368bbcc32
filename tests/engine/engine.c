/* tests/engine/engine.c: the four calls: the order of a step, accumulation,
 * overflow, what is refused, who frees what. The model is y = x w + b of one
 * weight and bias, so that updates can be told by hand.
 * SPDX-License-Identifier: MIT */
#include "ranks.h"

typedef struct Line {
    ds_tensor *w, *b; /* [1] */
} Line;

static ds_tensor *line_forward(void *self, ds_tensor *x)
{
    Line *l = self;
    return ds_add(ds_mul(x, l->w), l->b);
}

static ds_module *line_new(double w)
{
    static const ds_module_type type = {"Line", sizeof(Line), .forward = line_forward};
    ds_module *m = ds_module_new(NULL, "line", &type);
    Line *l = ds_self(m);
    l->w = ds_module_param(m, "w", ds_full(DS_F32, ds_shape(1), w));
    l->b = ds_module_param(m, "b", ds_zeros(DS_F32, ds_shape(1)));
    return m;
}

#define SGD "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.5}}"
#define OFF "\"gradient_clipping\": 0.0"

static ds_engine *engine_of(const char *config)
{
    return ds_initialize(.model = line_new(1), .config = config);
}

static double weight(ds_engine *e)
{
    ds_state *s = ds_engine_state(e, true);
    double w = ds_item(ds_state_get(s, "w"));
    ds_state_free(s);
    return w;
}

static ds_tensor *input_of(ds_engine *e, double x)
{
    return ds_full(ds_engine_dtype(e), ds_shape(1), x);
}

/* One micro step with the loss x w + b: d loss / d w = x. */
static ds_status turn(ds_engine *e, double x)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *loss = ds_sum(ds_engine_forward(e, input_of(e, x)));
    ds_status status = ds_engine_backward(e, loss);
    if (status == DS_OK) status = ds_engine_step(e);
    ds_scope_close(scope);
    return status;
}

/* ---- the step ------------------------------------------------------------------------------------------ */

static void forward_backward_step(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD "}");
    CHECK(e);
    CHECK(turn(e, 3) == DS_OK);
    CHECK_CLOSE(weight(e), 1 - 0.5 * 3, 1e-7);
    CHECK(ds_engine_was_step_applied(e));
    CHECK(turn(e, 1) == DS_OK); /* the first gradient is forgotten */
    CHECK_CLOSE(weight(e), -1, 1e-7);
    CHECK_INT(ds_engine_global_steps(e), 2);
    CHECK_INT(ds_engine_micro_steps(e), 2);
    CHECK_INT(ds_engine_global_samples(e), 2);
    CHECK_INT(ds_engine_skipped_steps(e), 0);
    CHECK_CLOSE(ds_engine_lr(e), 0.5, 0);
    CHECK_CLOSE(ds_engine_loss_scale(e), 1, 0);
    ds_engine_set_lr(e, 0.25);
    CHECK(turn(e, 4) == DS_OK);
    CHECK_CLOSE(weight(e), -2, 1e-7);
    ds_engine_free(e);
}

/* The update is that of the mean over the micro steps. */
static void accumulation(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 4, " OFF
                             ", " SGD "}");
    const double x[] = {1, 2, 3, 6};
    CHECK(e);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(ds_engine_is_gradient_accumulation_boundary(e), i == 3);
        CHECK(turn(e, x[i]) == DS_OK);
        CHECK_INT(ds_engine_was_step_applied(e), i == 3);
        CHECK_CLOSE(weight(e), i == 3 ? 1 - 0.5 * 3 : 1, 1e-7);
    }
    CHECK_INT(ds_engine_global_steps(e), 1);
    CHECK_INT(ds_engine_micro_steps(e), 4);
    CHECK_INT(ds_engine_global_samples(e), 4);
    ds_engine_free(e);
}

/* Gradient (3, 1): norm sqrt(10); clipped to 1.0, which is the default. */
static void clipping(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " SGD "}");
    CHECK(e && turn(e, 3) == DS_OK);
    CHECK_CLOSE(ds_engine_global_grad_norm(e), sqrt(10), 1e-6);
    CHECK_CLOSE(weight(e), 1 - 0.5 * 3 / sqrt(10), 1e-6);
    ds_engine_free(e);
}

static void warm_up_uses_the_minimum_twice(void **state)
{
    (void)state;
    ds_engine *e = engine_of(
        "{\"train_batch_size\": 1, " OFF ", " SGD ", \"scheduler\": {\"type\": \"WarmupLR\", "
        "\"params\": {\"warmup_max_lr\": 0.5, \"warmup_num_steps\": 4, \"warmup_type\": "
        "\"linear\"}}}");
    const double lr[] = {0, 0, 0.125, 0.25, 0.375, 0.5, 0.5};
    CHECK(e);
    for (int i = 0; i < 7; i++) {
        CHECK_CLOSE(ds_engine_lr(e), lr[i], 1e-15);
        CHECK(turn(e, 1) == DS_OK);
    }
    ds_engine_free(e);
}

/* A program that does not call ds_init_distributed must not train alone on each
 * rank. */
static void the_world_is_the_launchers(void **state)
{
    (void)state;
    const char *config = "{\"train_batch_size\": 4, " SGD "}";
    ds_engine *a = engine_of(config), *b = engine_of(config);
    CHECK(a && b && ds_is_distributed());
    ds_engine_free(a);
    CHECK(ds_is_distributed());
    CHECK(turn(b, 1) == DS_OK);
    ds_engine_free(b);
    CHECK(!ds_is_distributed());
    setenv("WORLD_SIZE", "4", 1);
    a = engine_of(config);
    unsetenv("WORLD_SIZE");
    CHECK(!a);
    CHECK_ERROR("WORLD_SIZE is 4, but this process was not started by an MPI launcher");
}

/* The log that "comms_logger" requests. */
static void the_log_of_collectives(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " SGD "}");
    CHECK(ds_comm_log_summary(ds_engine_comm(e), false) == DS_ESTATE);
    CHECK_ERROR("configure comms_logger");
    ds_engine_free(e);
    e = engine_of("{\"train_batch_size\": 1, " SGD
                  ", \"comms_logger\": {\"enabled\": true, \"prof_all\": false, "
                  "\"prof_ops\": [\"all_reduce\", \"broadcast\"]}}");
    CHECK(e && turn(e, 1) == DS_OK);
    CHECK(ds_comm_log_summary(ds_engine_comm(e), false) == DS_OK);
    ds_engine_free(e);
}

/* ---- 16 bit -------------------------------------------------------------------------------------------- */

#define FP16 \
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 4, \"loss_scale_window\": 2, " \
    "\"hysteresis\": 1}"

/* The gradient of x = 60000 under a scale of 16 is no float16: the step is
 * skipped, the scale halved. */
static void overflow_skips_the_step(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD ", " FP16 "}");
    CHECK(e);
    CHECK(ds_engine_fp16_enabled(e) && ds_engine_dtype(e) == DS_F16);
    CHECK(turn(e, 60000) == DS_OK);
    CHECK(!ds_engine_was_step_applied(e));
    CHECK(!isfinite(ds_engine_global_grad_norm(e)));
    CHECK_INT(ds_engine_skipped_steps(e), 1);
    CHECK_INT(ds_engine_global_steps(e), 1);
    CHECK_CLOSE(weight(e), 1, 0);
    CHECK_CLOSE(ds_engine_loss_scale(e), 8, 0);
    CHECK(turn(e, 0.25) == DS_OK);
    CHECK(ds_engine_was_step_applied(e));
    CHECK_CLOSE(weight(e), 0.875, 1e-7);
    ds_engine_free(e);
}

/* A step at which the scale grows is the update of float32 (DeepSpeed halves
 * it). */
static void growth_changes_no_update(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD ", " FP16 "}");
    CHECK(e);
    double scale = ds_engine_loss_scale(e);
    int grown = 0;
    for (int i = 0; i < 8; i++) {
        double before = weight(e);
        CHECK(turn(e, 0.25) == DS_OK);
        CHECK_CLOSE(before - weight(e), 0.125, 1e-6);
        grown += ds_engine_loss_scale(e) > scale;
        scale = ds_engine_loss_scale(e);
    }
    CHECK(grown >= 2);
    ds_engine_free(e);
}

/* Masters keep what bfloat16 cannot: 100 updates of 1/1000 add up. */
static void masters_are_float32(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF
                             ", \"bf16\": {\"enabled\": true}, \"optimizer\": "
                             "{\"type\": \"SGD\", \"params\": {\"lr\": 0.001}}}");
    CHECK(e && ds_engine_bf16_enabled(e));
    for (int i = 0; i < 100; i++) CHECK(turn(e, 1) == DS_OK);
    CHECK_CLOSE(weight(e), 0.9, 1e-5);
    ds_engine_free(e);
}

/* ---- what is refused ------------------------------------------------------------------------------------ */

static void calls_out_of_order(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD "}");
    ds_scope *scope = ds_scope_open();
    CHECK(ds_engine_step(e) == DS_ESTATE);
    CHECK_ERROR("call ds_engine_backward(engine, loss) first");
    ds_tensor *loss = ds_sum(ds_engine_forward(e, input_of(e, 1)));
    CHECK(ds_engine_backward(e, loss) == DS_OK);
    CHECK(ds_engine_backward(e, loss) == DS_ESTATE);
    CHECK_ERROR("called twice");
    CHECK(ds_engine_step(e) == DS_OK);
    CHECK(ds_engine_backward(e, loss) == DS_ESTATE); /* the same loss again */
    CHECK_ERROR("compute the loss again");
    ds_scope_close(scope);
    CHECK(turn(e, 1) == DS_OK); /* and continues */
    ds_engine_free(e);
}

static void losses_that_are_none(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD "}");
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = ds_engine_forward(e, ds_ones(DS_F32, ds_shape(3)));
    CHECK(ds_engine_backward(e, y) == DS_EINVAL);
    CHECK_ERROR("the loss is [3]");
    CHECK(ds_engine_backward(e, ds_scalar(DS_F32, 1)) == DS_ESTATE);
    CHECK_ERROR("has no graph");
    CHECK(ds_engine_backward(e, NULL) != DS_OK);
    ds_error_clear();
    CHECK(turn(e, NAN) == DS_ESTATE);
    CHECK_ERROR("the loss is nan");
    CHECK_CLOSE(weight(e), 1, 0);
    ds_scope_close(scope);
    ds_engine_free(e);
    e = engine_of("{\"train_batch_size\": 1, \"on_nan\": \"continue\", " OFF ", " SGD "}");
    CHECK(turn(e, NAN) == DS_OK);
    CHECK(isnan(weight(e)));
    ds_engine_free(e);
    for (int stage = 1; stage <= 3; stage++) { /* as in DeepSpeed */
        char config[400];
        snprintf(config, sizeof config,
                 "{\"train_batch_size\": 1, \"on_nan\": \"continue\", \"zero_optimization\": "
                 "{\"stage\": %d}, \"zero_allow_untested_optimizer\": true, " OFF ", " SGD "}",
                 stage);
        e = engine_of(config);
        CHECK(turn(e, NAN) == DS_OK);
        CHECK_CLOSE(weight(e), 1, 0);
        CHECK_INT(ds_engine_skipped_steps(e), 1);
        CHECK(!ds_engine_was_step_applied(e) && isinf(ds_engine_global_grad_norm(e)));
        CHECK(turn(e, 1) == DS_OK && ds_engine_was_step_applied(e));
        ds_engine_free(e);
    }
}

static void inputs_of_another_dtype(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD
                             ", \"bf16\": {\"enabled\": true}}");
    CHECK(!ds_engine_forward(e, ds_ones(DS_F32, ds_shape(1))));
    CHECK_ERROR("is float32, but the model is bfloat16");
    ds_engine_free(e);
    e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD
                  ", \"fp16\": {\"enabled\": true, \"auto_cast\": true}}");
    CHECK(ds_dtype_of(ds_engine_forward(e, ds_ones(DS_F32, ds_shape(1)))) == DS_F16);
    ds_engine_free(e);
    ds_scope_close(scope);
}

static ds_dataset *ones_new(void)
{
    ds_scope *scope = ds_scope_open();
    ds_dataset *d = ds_tensor_dataset((ds_tensor *[]){ds_ones(DS_F32, ds_shape(8, 1))}, 1);
    ds_scope_close(scope);
    return d;
}

/* Objects that the engine was given are freed (ASan looks), nothing is half
 * made, and all calls pass. */
static ds_optim *no_optimizer(ds_module *model, void *arg)
{
    (void)model;
    (void)arg;
    return NULL;
}

static void initialize_refuses(void **state)
{
    (void)state;
    const char *bad[][2] = {
        {"{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Sgdd\"}}", "Sgdd"},
        {"{\"train_batch_size\": 1, \"optimiser\": {}}", "optimizer"},
        {"{\"train_batch_size\": 1, " SGD ", \"scheduler\": {\"type\": \"WarmUpLR\"}}", "WarmupLR"},
        {"{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 1}}",
         "partitions an optimizer"},
        {"{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 1}, " SGD "}",
         "zero_allow_untested_optimizer"},
        {"/nonexistent/ds_config.json", "ds_config.json"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ds_engine *e = ds_initialize(.model = line_new(1), .training_data = ones_new(),
                                     .config = bad[i][0]);
        ds_batch b;
        CHECK(!e);
        CHECK_ERROR(bad[i][1]);
        CHECK(!ds_loader_next(ds_engine_loader(e), &b));
        ds_error_clear();
    }
    CHECK(!ds_initialize(.model = line_new(1)));
    CHECK_ERROR("no configuration");
    ds_arguments args = {.deepspeed_config = "a.json", .local_rank = -1};
    CHECK(!ds_initialize(.model = line_new(1), .config = "b.json", .args = &args));
    CHECK_ERROR("given twice");
    CHECK(!ds_initialize(.config = "{\"train_batch_size\": 1}"));
    ds_error_clear();

    ds_module *other = line_new(1);
    CHECK(!ds_initialize(.model = line_new(1), .config = "{\"train_batch_size\": 1}",
                         .optimizer = ds_optim_sgd(other, 0.1)));
    CHECK_ERROR("the optimizer sgd was made of another module than the model");
    ds_module_free(other);
    CHECK(!ds_initialize(.model = line_new(1), .config = "{\"train_batch_size\": 1}",
                         .make_optimizer = no_optimizer));
    CHECK_ERROR(".make_optimizer returned NULL");
}

static void without_an_optimizer(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_engine *e = engine_of("{\"train_batch_size\": 1}");
    CHECK(e);
    ds_tensor *loss = ds_sum(ds_engine_forward(e, input_of(e, 2)));
    CHECK_CLOSE(ds_item(loss), 2, 0);
    CHECK(ds_engine_backward(e, loss) == DS_ESTATE);
    CHECK_ERROR("there is no optimizer");
    ds_engine_free(e);
    ds_scope_close(scope);
}

/* ---- parts of the program's own ------------------------------------------------------------------------- */

static ds_optim *make_sgd(ds_module *model, void *arg)
{
    return ds_optim_sgd(model, *(double *)arg);
}

static void apply_tenth(void *self, ds_optim *o, int64_t it)
{
    (void)self;
    ds_optim_set_lr(o, pow(0.1, (double)it + 1));
}

static ds_schedule *make_tenth(ds_optim *o, void *arg)
{
    static const ds_schedule_type type = {.name = "Tenth", .apply = apply_tenth};
    (void)arg;
    return ds_schedule_new(o, &type);
}

static void optimizer_and_schedule_of_ones_own(void **state)
{
    (void)state;
    double lr = 1;
    ds_engine *e = ds_initialize(.model = line_new(1),
                                 .config = "{\"train_batch_size\": 1, " OFF "}",
                                 .make_optimizer = make_sgd, .make_lr_scheduler = make_tenth,
                                 .arg = &lr);
    CHECK(e);
    CHECK(turn(e, 1) == DS_OK);
    CHECK_CLOSE(weight(e), 0, 1e-7);
    CHECK_CLOSE(ds_engine_lr(e), 0.1, 1e-15);
    CHECK(turn(e, 1) == DS_OK);
    CHECK_CLOSE(weight(e), -0.1, 1e-7);
    ds_engine_free(e);
    ds_module *m = line_new(1);
    e = ds_initialize(.model = m, .config = "{\"train_batch_size\": 1, " OFF "}",
                      .optimizer = ds_optim_sgd(m, 2));
    CHECK(e && turn(e, 1) == DS_OK);
    CHECK_CLOSE(weight(e), -1, 1e-7);
    ds_engine_free(e);
}

/* Batches have the engine's dtype and its micro batch size; each epoch holds
 * every sample once. */
static void the_loader(void **state)
{
    (void)state;
    ds_engine *e = ds_initialize(
            .model = line_new(1), .training_data = ones_new(),
            .config = "{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 2, " OFF ", " SGD
                      ", \"bf16\": {\"enabled\": true}}");
    ds_loader *l = ds_engine_loader(e);
    ds_batch b;
    int64_t batches = 0;
    CHECK(l);
    while (ds_loader_next(l, &b)) {
        CHECK_INT(b.size, 2);
        CHECK(ds_dtype_of(b.x) == DS_BF16);
        ds_engine_backward(e, ds_mean(ds_engine_forward(e, b.x)));
        ds_engine_step(e);
        batches++;
    }
    CHECK(!ds_error());
    CHECK_INT(batches, 4);
    CHECK_INT(ds_engine_global_steps(e), 2);
    ds_engine_free(e);
}

static void averages(void **state)
{
    (void)state;
    ds_engine *e = engine_of("{\"train_batch_size\": 1, " OFF ", " SGD "}");
    CHECK(ds_engine_use_ema(e, 0.5) == DS_OK);
    CHECK(turn(e, 2) == DS_OK); /* w 0, b -1/2: the averages begin with them */
    CHECK(turn(e, 2) == DS_OK); /* w -1, b -1: averages -1/2, -3/4 */
    CHECK(ds_engine_swap_ema(e) == DS_OK);
    ds_scope *scope = ds_scope_open();
    bool was = ds_set_grad(false);
    double y = ds_item(
        ds_engine_forward(e, input_of(e, 1))); /* w + b; b: -1/2 after one, -1 after two */
    ds_set_grad(was);
    CHECK_CLOSE(y, -0.5 - 0.75, 1e-6);
    CHECK(ds_engine_backward(e, ds_sum(ds_engine_forward(e, input_of(e, 1)))) == DS_ESTATE);
    CHECK_ERROR("averaged");
    ds_scope_close(scope);
    CHECK(ds_engine_swap_ema(e) == DS_OK);
    CHECK_CLOSE(weight(e), -1, 1e-7);
    ds_engine_free(e);
}

/* A sink on one rank only: the message says what is wrong, not only which
 * collectives met. */
static ds_status swallow(void *self, const char *tag, double value, int64_t step)
{
    (void)self, (void)tag, (void)value, (void)step;
    return DS_OK;
}

static ds_status sink_of_one(void *arg)
{
    static const ds_sink_type type = {.name = "mine", .write = swallow};
    ds_engine *e = engine_of("{\"train_batch_size\": 2, " OFF ", " SGD "}");
    bool all = *(bool *)arg;
    if (e && (all || ds_comm_rank(ds_world()) == 0)) ds_monitor_add(ds_engine_monitor(e), &type);
    ds_status status = e ? DS_OK : ds_error_status();
    for (int i = 0; i < 3 && status == DS_OK; i++) status = turn(e, 1);
    ds_engine_free(e);
    return status;
}

static void sinks_are_added_on_all_ranks(void **state)
{
    bool all = true;
    (void)state;
    CHECK_INT(run_ranks(2, sink_of_one, &all), DS_OK);
    all = false;
    CHECK(run_ranks(2, sink_of_one, &all) != DS_OK);
    CHECK_ERROR("sinks, unlike others: add sinks on all ranks alike, before the first update");
}

/* A caller frees parts that the engine owns, before the engine and while it
 * trains. */
static void parts_stay_the_engines(void **state)
{
    (void)state;
    ds_tensor *x[] = {ds_ones(DS_F32, ds_shape(2, 1))};
    ds_engine *e = ds_initialize(.model = line_new(1), .training_data = ds_tensor_dataset(x, 1),
                                 .config = "{\"train_batch_size\": 1, " SGD
                                           ", \"scheduler\": {\"type\": \"WarmupLR\"}}");
    ds_schedule_free(ds_engine_lr_scheduler(e));
    CHECK_ERROR("schedule_free: WarmupLR belongs to an engine, which frees it");
    ds_loader_free(ds_engine_loader(e));
    CHECK_ERROR("loader_free: the loader belongs to an engine, which frees it");
    ds_optim_free(ds_engine_optimizer(e));
    CHECK_ERROR("optim_free: sgd belongs to an engine, which frees it");
    CHECK_INT(ds_optim_step(ds_engine_optimizer(e)), DS_ESTATE);
    CHECK_ERROR("optim_step: sgd belongs to an engine: call ds_engine_step");
    ds_schedule_step(ds_engine_lr_scheduler(e));
    CHECK_ERROR("schedule_step: WarmupLR belongs to an engine, whose ds_engine_step does that");
    CHECK_INT(ds_schedule_last(ds_engine_lr_scheduler(e)), -1);
    ds_module_free(ds_engine_module(e));
    CHECK_ERROR("module_free: line belongs to an engine, which frees it");
    CHECK(!ds_initialize(.model = ds_engine_module(e), .config = "{\"train_batch_size\": 1}"));
    CHECK_ERROR("initialize: the model belongs to another engine: each engine needs its own");
    CHECK(!ds_initialize(.model = line_new(1), .optimizer = ds_engine_optimizer(e),
                         .config = "{\"train_batch_size\": 1}"));
    CHECK_ERROR("initialize: the optimizer belongs to another engine");
    CHECK(!ds_initialize(.config = "{\"train_batch_size\": 1}"));
    CHECK_ERROR("initialize: .model is NULL");
    CHECK_INT(turn(e, 1), DS_OK);
    ds_engine_free(e);
}

TEST_MAIN(cmocka_unit_test(parts_stay_the_engines), cmocka_unit_test(forward_backward_step),
          cmocka_unit_test(sinks_are_added_on_all_ranks), cmocka_unit_test(accumulation),
          cmocka_unit_test(clipping), cmocka_unit_test(warm_up_uses_the_minimum_twice),
          cmocka_unit_test(the_log_of_collectives), cmocka_unit_test(the_world_is_the_launchers),
          cmocka_unit_test(overflow_skips_the_step), cmocka_unit_test(growth_changes_no_update),
          cmocka_unit_test(masters_are_float32), cmocka_unit_test(calls_out_of_order),
          cmocka_unit_test(losses_that_are_none), cmocka_unit_test(inputs_of_another_dtype),
          cmocka_unit_test(initialize_refuses), cmocka_unit_test(without_an_optimizer),
          cmocka_unit_test(optimizer_and_schedule_of_ones_own), cmocka_unit_test(the_loader),
          cmocka_unit_test(averages))
