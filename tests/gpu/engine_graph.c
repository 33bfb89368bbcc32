/* tests/gpu/engine_graph.c: steps of an engine as CUDA graphs beside the same
 * steps kernel by kernel, equal to the bit: dtypes, overflow, clipping,
 * accumulation, schedules, averages; what a step costs, and what cannot be
 * recorded.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "folder.h"
#include "nets.h"

enum { BATCH = 4, MANY = 64, MOST_ROWS = 512, MOST = 48 }; /* MANY rows: more than 4 KiB */

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

typedef struct Plan {
    const char *config; /* keys behind the batch sizes */
    int accumulate;     /* micro steps of an update; 0: 1 */
    int rows;           /* of a batch; 0: BATCH */
    bool ema;
    int keep_at; /* the call of the step's function that keeps a tensor, from 1 on; 0: none */
    int overflow_at, save_at, eval_at; /* micro steps; 0: none */
} Plan;

/* Of a micro step. */
typedef struct Seen {
    double loss, norm, lr, scale;
    int64_t steps, skipped;
    bool applied;
} Seen;

typedef struct Run {
    Plan plan;
    ds_engine *e;
    ds_step_graph *graph;
    Seen seen[MOST];
    float *values; /* of parameters, then of averages */
    size_t bytes;
    int calls;
    ds_tensor *kept;
    double kept_sum; /* when it was kept */
    double last;     /* loss of the last call */
} Run;

static ds_tensor *engine_step(void *self, ds_tensor *const *in, int n)
{
    Run *r = self;
    CHECK_INT(n, 2);
    ds_tensor *y = ds_cast(ds_engine_forward(r->e, in[0]), DS_F32);
    ds_tensor *loss = ds_cross_entropy(y, in[1]);
    if (r->plan.keep_at && ++r->calls == r->plan.keep_at) r->kept = ds_keep(ds_scale(in[0], 2));
    if (ds_engine_backward(r->e, loss) != DS_OK || ds_engine_step(r->e) != DS_OK) return NULL;
    return loss;
}

static ds_module *classifier(void)
{
    ds_seed(5);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, WIDTH);
    ds_nn_relu(net, "b");
    ds_nn_dropout(net, "d", 0.25);
    ds_nn_linear(net, "c", WIDTH, 10);
    return net;
}

static int rows_of(const Run *r) { return r->plan.rows ? r->plan.rows : BATCH; }

static void run_begin(Run *r, bool graph)
{
    char config[1200];
    int accumulate = r->plan.accumulate ? r->plan.accumulate : 1;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d%s%s}",
             rows_of(r), accumulate, *r->plan.config ? ", " : "", r->plan.config);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    r->e = ds_initialize(.model = classifier(), .config = config);
    CHECK(r->e);
    if (r->plan.ema) CHECK_INT(ds_engine_use_ema(r->e, 0.9), DS_OK);
    r->kept_sum = NAN;
    r->graph = graph ? ds_engine_step_graph_new(r->e, engine_step, r) : NULL;
}

static ds_tensor *run_step(Run *r, int step, double factor)
{
    int64_t labels[MOST_ROWS];
    int rows = rows_of(r);
    for (int i = 0; i < rows; i++) labels[i] = (step * 7 + i * 3) % 10;
    ds_seed((uint64_t)step);
    ds_tensor *x = ds_scale(ds_randn(DS_F32, ds_shape(rows, WIDTH)), factor);
    ds_tensor *in[] = {ds_cast(x, ds_engine_dtype(r->e)),
                       ds_from_data(DS_I64, ds_shape(rows), labels)};
    return r->graph ? ds_step_graph_run(r->graph, in, 2) : engine_step(r, in, 2);
}

static void run_micro_step(Run *r, int step, const char *folder)
{
    ds_scope *scope = ds_scope_open();
    if (step && step == r->plan.save_at) {
        CHECK_INT(ds_engine_save(r->e, folder), DS_OK);
        CHECK_INT(ds_engine_load(r->e, folder), DS_OK);
    }
    bool eval = step && step == r->plan.eval_at;
    if (eval && r->plan.ema) { /* the averages, and back */
        CHECK_INT(ds_engine_swap_ema(r->e), DS_OK);
        CHECK_INT(ds_engine_swap_ema(r->e), DS_OK);
    }
    ds_tensor *loss = run_step(r, step, step && step == r->plan.overflow_at ? 6e4 : 1);
    CHECK(loss);
    if (r->kept && isnan(r->kept_sum)) r->kept_sum = ds_item(ds_sum(r->kept));
    Seen *s = &r->seen[step];
    s->loss = ds_item(loss);
    s->norm = ds_engine_global_grad_norm(r->e);
    s->lr = ds_engine_lr(r->e);
    s->scale = ds_engine_loss_scale(r->e);
    s->steps = ds_engine_global_steps(r->e);
    s->skipped = ds_engine_skipped_steps(r->e);
    s->applied = ds_engine_was_step_applied(r->e);
    ds_scope_close(scope);
}

static void run_end(Run *r)
{
    ds_step_graph_free(r->graph);
    ds_engine_free(r->e);
    ds_drop(r->kept);
    free(r->values);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void run_all(Run *r, bool graph, int steps)
{
    const char *folder = r->plan.save_at ? folder_make() : NULL;
    run_begin(r, graph);
    for (int i = 0; i < steps; i++) run_micro_step(r, i, folder);
    if (graph) {
        if (ds_step_graph_why_not(r->graph)) fail_msg("%s", ds_step_graph_why_not(r->graph));
        CHECK(ds_step_graph_replays(r->graph));
    }
    if (r->kept) CHECK(ds_item(ds_sum(r->kept)) == r->kept_sum);
    values_add(ds_engine_module(r->e), &r->values, &r->bytes);
    if (r->plan.ema) {
        CHECK_INT(ds_engine_swap_ema(r->e), DS_OK);
        values_add(ds_engine_module(r->e), &r->values, &r->bytes);
    }
    if (folder) folder_remove();
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

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

#define ADAM "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}"
#define WARMUP \
    ", \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.02, " \
    "\"warmup_num_steps\": 9}}"
#define FP16 \
    ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 10, \"loss_scale_window\": 3, " \
    "\"hysteresis\": 1}"
#define BF16    ", \"bf16\": {\"enabled\": true}"
#define CLIP(x) ", \"gradient_clipping\": " #x

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
                          {.config = ADAM FP16, .save_at = 6, .overflow_at = 11}};
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
    CHECK(10 * three < 19 * one); /* without a common pool: 2.2 times one, or more */
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

static void what_cannot_be_recorded(void **state)
{
    (void)state;
    static const struct {
        const char *config, *why;
        int steps;
    } rows[] = {{ADAM ", \"wall_clock_breakdown\": true",
                 "parts of it are timed (wall_clock_breakdown)", 2},
                {ADAM BF16 ", \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
                           "{\"device\": \"cpu\"}}",
                 "its state is in host memory", 2},
                {ADAM BF16
                 ", \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": "
                 "\"cpu\"}, \"stage3_param_persistence_threshold\": 0}",
                 "its state is in host memory", 2},
                {ADAM BF16 ", \"zero_optimization\": {\"stage\": 2, \"deterministic\": true}",
                 "gradients are added up in a fixed order", 2},
                {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.01}}",
                 "its optimizer is made of ops", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Run r = {.plan = {.config = rows[i].config}};
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
