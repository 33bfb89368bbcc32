/* tests/gpu/engine_graph.c: steps of an engine as CUDA graphs beside the same
 * steps kernel by kernel, equal to the bit: dtypes, overflow, clipping,
 * accumulation, schedules, averages; what a step costs, and what cannot be
 * recorded.
 * SPDX-License-Identifier: MIT */
#include "engine_run.h"

static void compare(Plan plan, int steps)
{
    Run plain = {.plan = plan}, graph = {.plan = plan};
    run_all(&plain, false, steps);
    run_all(&graph, true, steps);
    for (int i = 0; i < steps; i++) {
        const Seen *a = &plain.seen[i], *b = &graph.seen[i];
        if (!same(a->loss, b->loss) || !same(a->norm, b->norm) || a->lr != b->lr ||
            a->scale != b->scale || a->steps != b->steps || a->skipped != b->skipped ||
            a->applied != b->applied)
            fail_msg("{%s}: micro step %d: loss %.9g, norm %.9g, lr %g, scale %g, steps %lld, "
                     "skipped %lld; without a graph %.9g, %.9g, %g, %g, %lld, %lld",
                     plan.config, i, b->loss, b->norm, b->lr, b->scale, (long long)b->steps,
                     (long long)b->skipped, a->loss, a->norm, a->lr, a->scale, (long long)a->steps,
                     (long long)a->skipped);
    }
    if (plan.overflow_at) CHECK(plain.seen[steps - 1].skipped > 0);
    CHECK(plain.bytes == graph.bytes);
    if (memcmp(plain.values, graph.values, plain.bytes) != 0)
        fail_msg("{%s}: the values differ", plan.config);
    run_end(&plain), run_end(&graph);
}

/* Most first steps are skipped: the moments are made in a later one. */
#define FP16_FROM(power) \
    ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": " power ", \"hysteresis\": 1}"

static void dtypes_and_clipping(void **state)
{
    (void)state;
    const Plan plans[] = {{.config = ADAM CLIP(0.5)},
                          {.config = ADAM CLIP(0)},
                          {.config = ADAM WARMUP CLIP(0.1), .ema = true, .eval_at = 7},
                          {.config = ADAM BF16 CLIP(0.5), .ema = true},
                          {.config = ADAM BF16 CLIP(0)},
                          {.config = ADAM FP16 CLIP(0.5), .overflow_at = 8},
                          {.config = ADAM FP16 CLIP(0) WARMUP, .overflow_at = 9, .ema = true},
                          {.config = ADAM CLIP(0.5) ", \"on_nan\": \"continue\""},
                          {.config = ADAM CLIP(0.5), .save_at = 6},
                          {.config = ADAM FP16, .save_at = 6, .overflow_at = 11},
                          {.config = ADAM FP16_FROM("24"), .overflow_at = 11}};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        if (quick() && i % 3) continue;
        compare(plans[i], 14);
    }
}

static void every_rule(void **state)
{
    (void)state;
    static const char *const rules[] = {"SGD", "Adam", "Adagrad", "Lion", "Lamb"};
    for (int i = 0; i < (quick() ? 1 : 5); i++) {
        char config[300];
        snprintf(config, sizeof config,
                 "\"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01}}" FP16, rules[i]);
        compare((Plan){.config = config, .overflow_at = 7}, 10);
    }
}

static void momentum_schedules(void **state)
{
    (void)state;
    static const char *const rules[] = {"AdamW", "Lion", "Lamb"};
    for (int i = 0; i < (quick() ? 1 : 3); i++) {
        char config[500];
        snprintf(config, sizeof config,
                 "\"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01}}, \"scheduler\": "
                 "{\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0.001, "
                 "\"cycle_max_lr\": 0.01, \"cycle_first_step_size\": 5}}" FP16,
                 rules[i]);
        compare((Plan){.config = config, .overflow_at = 7}, 12);
    }
}

static void accumulation(void **state)
{
    (void)state;
    const Plan plans[] = {{.config = ADAM CLIP(0.5), .accumulate = 2},
                          {.config = ADAM FP16 CLIP(0.5), .accumulate = 3, .overflow_at = 16},
                          {.config = ADAM BF16 WARMUP, .accumulate = 4, .ema = true, .eval_at = 24},
                          {.config = ADAM CLIP(0.5), .accumulate = 2, .save_at = 10}};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        if (quick() && i != 1) continue;
        compare(plans[i], 8 * plans[i].accumulate);
    }
}

static void stages_of_one_rank(void **state)
{
    (void)state;
    for (int stage = 1; stage < (quick() ? 2 : 4); stage++) {
        char config[300];
        snprintf(config, sizeof config, ADAM BF16 ", \"zero_optimization\": {\"stage\": %d}",
                 stage);
        compare((Plan){.config = config}, 8);
    }
}

/* ---- what a step costs ------------------------------------------------------------------------------- */

static void a_step_is_one_launch_and_one_wait(void **state)
{
    (void)state;
    enum { MICRO = 6 };
    Run r = {.plan = {.config = ADAM FP16 CLIP(0.5) WARMUP, .accumulate = 3, .ema = true}};
    run_all(&r, true, 24);
    CHECK_INT(ds_engine_swap_ema(r.e), DS_OK); /* back */
    ds_scope *scope = ds_scope_open();
    int64_t labels[BATCH] = {1, 2, 3, 4};
    ds_tensor *in[] = {ds_randn(DS_F16, ds_shape(BATCH, WIDTH)),
                       ds_from_data(DS_I64, ds_shape(BATCH), labels)};
    long launches = emulator_count("fake_cuda_launches"),
         graphs = emulator_count("fake_cuda_graph_launches"),
         syncs = emulator_count("fake_cuda_syncs");
    for (int i = 0; i < MICRO; i++) CHECK(ds_item(ds_step_graph_run(r.graph, in, 2)) > 0);
    CHECK(!ds_error());
    if (emulated()) {
        CHECK_INT(emulator_count("fake_cuda_graph_launches") - graphs, MICRO);
        CHECK_INT(emulator_count("fake_cuda_launches") - launches,
                  0); /* inputs are copied as bytes */
        CHECK_INT(emulator_count("fake_cuda_syncs") - syncs, MICRO);
    }
    ds_scope_close(scope);
    run_end(&r);
}

/* Bytes of the GPU that are taken when each kind of micro step is recorded. */
static long bytes_of(int accumulate)
{
    Run r = {.plan = {.config = ADAM, .accumulate = accumulate, .rows = MOST_ROWS}};
    run_all(&r, true, 4 * accumulate);
    long used = emulator_count("fake_cuda_used");
    run_end(&r);
    return used;
}

/* Activations are most of what a step takes; gradients are there once. */
static void kinds_share_memory(void **state)
{
    (void)state;
    if (!emulated()) skip();
    long one = bytes_of(1), three = bytes_of(3);
    printf("# %ld bytes with one kind of micro step, %ld with three\n", one, three);
    CHECK(10 * three < 19 * one); /* without a transient pool: 2.2 times one, or more */
    compare((Plan){.config = ADAM FP16 CLIP(0.5), .accumulate = 3, .rows = MANY, .overflow_at = 13},
            18);
}

/* A tensor that only a capture leaves behind is written by no other kind. */
static void captures_part(void **state)
{
    (void)state;
    for (int at = 7; at < (quick() ? 8 : 10); at++) { /* the third update's */
        Plan plan = {.config = ADAM CLIP(0.5), .accumulate = 3, .rows = MANY, .keep_at = at};
        compare(plan, 24);
    }
}

static void memory_comes_back(void **state)
{
    (void)state;
    size_t before = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    ds_scope *scope = ds_scope_open();
    Run r = {.plan = {.config = ADAM BF16, .accumulate = 2, .ema = true}};
    run_all(&r, true, 12);
    run_end(&r);
    ds_scope_close(scope);
    CHECK_INT(ds_memory_allocated(gpu), before);
    CHECK_INT(ds_live_tensors(), tensors);
}

/* ---- failures --------------------------------------------------------------------------------------- */

static void step_refused(Run *r, int64_t label, double factor, const char *message)
{
    float *before = r->values;
    int64_t steps = ds_engine_global_steps(r->e), labels[BATCH] = {1, label, 3, 4};
    ds_scope *scope = ds_scope_open();
    ds_tensor *in[] = {ds_full(DS_F32, ds_shape(BATCH, WIDTH), factor),
                       ds_from_data(DS_I64, ds_shape(BATCH), labels)};
    CHECK(!(r->graph ? ds_step_graph_run(r->graph, in, 2) : engine_step(r, in, 2)));
    CHECK_ERROR(message);
    CHECK_INT(ds_engine_global_steps(r->e), steps);
    r->values = NULL, r->bytes = 0;
    values_add(ds_engine_module(r->e), &r->values, &r->bytes);
    CHECK(before && r->values && !memcmp(before, r->values, r->bytes));
    free(before);
    ds_scope_close(scope);
}

static void nothing_is_updated(void **state)
{
    (void)state;
    for (int graph = 0; graph < 2; graph++) {
        Run r = {.plan = {.config = ADAM CLIP(0.5)}};
        run_all(&r, graph, 8);
        step_refused(&r, 10, 1, "cross_entropy: label 10 at index 1 is outside 0..9");
        step_refused(&r, 1, NAN, "the loss is nan: training stops here");
        ds_scope *scope = ds_scope_open();
        CHECK(run_step(&r, 9, 1)); /* the next one is good */
        ds_scope_close(scope);
        run_end(&r);
    }
}

static void set_rate(ds_engine *e) { ds_engine_set_lr(e, 0.01); }
static void set_boundary(ds_engine *e) { ds_engine_set_gradient_accumulation_boundary(e, true); }
static void set_batch(ds_engine *e) { CHECK_INT(ds_engine_set_train_batch_size(e, BATCH), DS_OK); }

static void what_cannot_be_recorded(void **state)
{
    (void)state;
    static const struct {
        const char *config, *why;
        int steps;
        void (*set)(ds_engine *e);
    } rows[] = {{ADAM ", \"wall_clock_breakdown\": true",
                 "parts of it are timed (wall_clock_breakdown)", 2, NULL},
                {ADAM BF16 ", \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
                           "{\"device\": \"cpu\"}}",
                 "its state is in host memory", 2, NULL},
                {ADAM BF16
                 ", \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": "
                 "\"cpu\"}, \"stage3_param_persistence_threshold\": 0}",
                 "its state is in host memory", 2, NULL},
                {ADAM BF16 ", \"zero_optimization\": {\"stage\": 2, \"deterministic\": true}",
                 "gradients are added up in a fixed order", 2, NULL},
                {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.01}}",
                 "its optimizer is made of ops", 2, NULL},
                {ADAM, "it calls ds_engine_set_lr, which", 2, set_rate},
                {ADAM, "it calls ds_engine_set_gradient_accumulation_boundary", 2, set_boundary},
                {ADAM, "it calls ds_engine_set_train_batch_size", 2, set_batch}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Run r = {.plan = {.config = rows[i].config, .set = rows[i].set}};
        run_begin(&r, true);
        for (int k = 0; k < rows[i].steps; k++) run_micro_step(&r, k, NULL);
        const char *why = ds_step_graph_why_not(r.graph);
        if (!why || strncmp(why, rows[i].why, strlen(rows[i].why)) != 0)
            fail_msg("{%s}: %s", rows[i].config, why ? why : "it is recorded");
        run_end(&r);
    }
    CHECK(!ds_engine_step_graph_new(NULL, engine_step, NULL));
    ds_error_clear();
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_and_clipping),
        cmocka_unit_test(every_rule),
        cmocka_unit_test(momentum_schedules),
        cmocka_unit_test(accumulation),
        cmocka_unit_test(stages_of_one_rank),
        cmocka_unit_test(a_step_is_one_launch_and_one_wait),
        cmocka_unit_test(kinds_share_memory),
        cmocka_unit_test(captures_part),
        cmocka_unit_test(memory_comes_back),
        cmocka_unit_test(nothing_is_updated),
        cmocka_unit_test(what_cannot_be_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
