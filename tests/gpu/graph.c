/* tests/gpu/graph.c: a step as a CUDA graph beside the same step kernel by
 * kernel, equal to the bit; what cannot be recorded, and what a step costs.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "classify.h"
#include "emulated.h"
#include "losses.h"
#include "nets.h"

#include <deepspeed/optim.h>

enum { BATCH = 4, STEPS = 7 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* A run of STEPS steps. */
typedef struct Training {
    ds_module *net;
    ds_optim *optim;
    ds_step_graph *graph;
    bool image;                             /* the tutorial's network; else dropout_net */
    bool again;                             /* it is an activation checkpoint */
    bool reads, draws, keeps, zero_outside; /* what spoils a graph, and what does not */
    bool behind;                            /* a step runs the backward pass of the one before it */
    ds_tensor *kept;                        /* the loss for that */
    enum { NOTHING, RATE, DECAY, MOMENTUM, SEED, EARLY_SCHEDULE, SCHEDULE } sets; /* in the step */
    ds_schedule *schedule;
    int bad_step;    /* its labels are no classes; -1: none */
    int other_batch; /* the step with another batch size; -1: none */
    double loss[STEPS];
    float *values; /* of all parameters, at the end */
    size_t bytes;
} Training;

static ds_module *dropout_net(void)
{
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, WIDTH);
    ds_nn_relu(net, "b");
    ds_nn_dropout(net, "d", 0.25);
    ds_nn_linear(net, "c", WIDTH, 10);
    return net;
}

/* Sets values on the host: before the update, or after it. */
static void training_set(Training *t, bool updated)
{
    double now = ds_optim_lr(t->optim);
    if (t->sets == RATE && !updated) ds_optim_set_lr(t->optim, now * 0.75);
    if (t->sets == DECAY && updated)
        ds_optim_set_group_weight_decay(t->optim, 0,
                                        ds_optim_group_weight_decay(t->optim, 0) + 0.01);
    if (t->sets == MOMENTUM && updated) CHECK(ds_optim_set_group_momentum(t->optim, 0, 0.5 + now));
    if (t->sets == SEED && !updated) ds_seed(5);
    if (updated == (t->sets == SCHEDULE)) ds_schedule_step(t->schedule);
}

static ds_tensor *training_step_behind(Training *t, ds_tensor *const *in)
{
    ds_optim_zero_grad(t->optim);
    if (t->kept && (ds_backward(t->kept) != DS_OK || ds_optim_step(t->optim) != DS_OK)) return NULL;
    ds_drop(t->kept);
    return t->kept = ds_keep(ds_cross_entropy(ds_checkpoint_call(t->net, in[0]), in[1]));
}

static ds_tensor *training_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    CHECK_INT(n, 2);
    if (t->behind) return training_step_behind(t, in);
    if (!t->keeps && !t->zero_outside) ds_optim_zero_grad(t->optim);
    ds_tensor *x = in[0];
    training_set(t, false);
    if (t->draws) x = ds_add(x, ds_randn(DS_F32, ds_shape_of(x)));
    ds_tensor *y = t->again ? ds_checkpoint_call(t->net, x) : ds_call(t->net, x);
    ds_tensor *loss = ds_cross_entropy(y, in[1]);
    if (t->reads && ds_item(loss) > 1e9) return NULL;
    if (ds_backward(loss) != DS_OK || ds_optim_step(t->optim) != DS_OK) return NULL;
    training_set(t, true);
    return loss;
}

/* Momentum, or beta1, of a rule that has one, changes at each step too. */
static void training_cycle(Training *t, int step)
{
    double m = 0, betas[2];
    ds_optim_set_lr(t->optim, 0.01 / (1 + step));
    if (ds_optim_group_momentum(t->optim, 0, &m) && m != 0)
        CHECK(ds_optim_set_group_momentum(t->optim, 0, 0.9 - 0.05 * step));
    if (!ds_optim_group_betas(t->optim, 0, betas)) return;
    betas[0] = 0.9 - 0.05 * step;
    CHECK(ds_optim_set_group_betas(t->optim, 0, betas));
}

/* Inputs on the GPU. */
static ds_tensor *training_run(Training *t, int step)
{
    int64_t labels[2 * BATCH], batch = step == t->other_batch ? BATCH - 1 : BATCH;
    for (int i = 0; i < batch; i++) labels[i] = (step * 7 + i * 3) % 10;
    if (step == t->bad_step) labels[1] = 10;
    ds_dims shape = t->image ? ds_shape(batch, 3, 32, 32) : ds_shape(batch, WIDTH);
    ds_tensor *in[] = {ds_randn(DS_F32, shape), ds_from_data(DS_I64, ds_shape(batch), labels)};
    if (!t->sets) training_cycle(t, step);
    if (t->zero_outside) ds_module_zero_grad(t->net);
    return t->graph ? ds_step_graph_run(t->graph, in, 2) : training_step(t, in, 2);
}

static void training_begin(Training *t, int rule, bool with_graph)
{
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(11);
    t->net = t->image ? net_new() : dropout_net();
    t->optim = optimizer_new(rule, t->net);
    t->graph = with_graph ? ds_step_graph_new(training_step, t) : NULL;
    if (t->sets >= EARLY_SCHEDULE)
        t->schedule = ds_schedule_by_name(t->optim, "StepLR", "{\"step_size\": 2, \"gamma\": 0.5}");
    CHECK(t->optim && (t->graph || !with_graph));
}

static void training_end(Training *t)
{
    ds_drop(t->kept);
    ds_step_graph_free(t->graph);
    ds_schedule_free(t->schedule);
    ds_optim_free(t->optim);
    ds_module_free(t->net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void train(Training *t, int rule, bool with_graph)
{
    training_begin(t, rule, with_graph);
    for (int step = 0; step < STEPS; step++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = training_run(t, step);
        CHECK(loss);
        t->loss[step] = ds_item(loss);
        ds_scope_close(scope);
    }
    if (with_graph) {
        bool recorded = !t->reads && !t->draws && !t->keeps && !t->behind &&
                        (!t->sets || t->sets == SCHEDULE);
        CHECK_INT(ds_step_graph_replays(t->graph), recorded);
        CHECK_INT(ds_step_graph_why_not(t->graph) != NULL, !recorded);
    }
    values_add(t->net, &t->values, &t->bytes);
}

/* The same with a graph and without, to the bit. */
static void compare(Training t, int rule)
{
    Training plain = t, graph = t;
    train(&plain, rule, false);
    training_end(&plain);
    train(&graph, rule, true);
    training_end(&graph);
    for (int i = 0; i < STEPS; i++) CHECK_CLOSE(graph.loss[i], plain.loss[i], 0);
    CHECK(plain.bytes == graph.bytes && !memcmp(plain.values, graph.values, plain.bytes));
    free(plain.values);
    free(graph.values);
}

#define NO_STEP .bad_step = -1, .other_batch = -1

static void the_tutorials_network(void **state)
{
    (void)state;
    compare((Training){.image = true, NO_STEP}, 0);
}

static void every_rule(void **state)
{
    (void)state;
    for (int rule = 0; rule < RULES; rule++) compare((Training){NO_STEP}, rule);
    compare((Training){NO_STEP, .zero_outside = true}, 0);
}

/* The mask of the first run, which each replay draws once. */
static void dropout_in_a_checkpoint(void **state)
{
    (void)state;
    Training plain = {NO_STEP}, again = {NO_STEP, .again = true};
    train(&plain, 0, false);
    train(&again, 0, true);
    training_end(&plain);
    training_end(&again);
    for (int i = 0; i < STEPS; i++) CHECK_CLOSE(again.loss[i], plain.loss[i], 0);
    CHECK(plain.bytes == again.bytes && !memcmp(plain.values, again.values, plain.bytes));
    free(plain.values);
    free(again.values);
}

/* Another batch size, between two launches of the graph. */
static void other_shapes_fall_back(void **state)
{
    (void)state;
    for (int rule = 0; rule < 2; rule++)
        compare((Training){.bad_step = -1, .other_batch = STEPS - 2}, rule);
}

static void what_cannot_be_recorded(void **state)
{
    (void)state;
    const Training cases[] = {
        {NO_STEP, .reads = true}, {NO_STEP, .draws = true},          {NO_STEP, .keeps = true},
        {NO_STEP, .sets = RATE},  {NO_STEP, .sets = DECAY},          {NO_STEP, .sets = MOMENTUM},
        {NO_STEP, .sets = SEED},  {NO_STEP, .sets = EARLY_SCHEDULE}, {NO_STEP, .behind = true}};
    const char *const why[] = {"it reads a value on the host",
                               "it copies from host memory",
                               "it adds to gradients of an earlier step",
                               "it calls ds_optim_set_lr, which a replay would not",
                               "it calls ds_optim_set_group_weight_decay, which",
                               "it calls ds_optim_set_group_momentum, which",
                               "it calls ds_seed, which",
                               "a schedule is stepped before its optimizer",
                               "it computes a part with random numbers again"};
    for (int k = 0; k < 9; k++) {
        Training t = cases[k];
        compare(t, 0);
        train(&t, 0, true);
        CHECK(!strncmp(ds_step_graph_why_not(t.graph), why[k], strlen(why[k])));
        training_end(&t);
        free(t.values);
    }
}

/* After its optimizer's step: a hook of the graph steps it. */
static void a_schedule_inside_of_the_step(void **state)
{
    (void)state;
    for (int rule = 0; rule < 2; rule++) compare((Training){NO_STEP, .sets = SCHEDULE}, rule);
    Training t = {NO_STEP, .sets = SCHEDULE};
    train(&t, 0, true);
    CHECK_INT(ds_schedule_last(t.schedule), STEPS - 1);
    training_end(&t);
    free(t.values);
}

/* A momentum that becomes 0, as by a state dict: recorded again. */
static void what_changes_is_recorded_anew(void **state)
{
    (void)state;
    Training t = {NO_STEP};
    train(&t, 0, true);
    CHECK(ds_optim_set_group_momentum(t.optim, 0, 0));
    for (int step = 0; step < 5; step++) { /* the first by the function: the record is kept */
        ds_scope *scope = ds_scope_open();
        CHECK(training_run(&t, step));
        CHECK_INT(ds_step_graph_replays(t.graph), step == 0 || step >= 3);
        ds_scope_close(scope);
    }
    training_end(&t);
    free(t.values);
}

static void a_bad_label_updates_nothing(void **state)
{
    (void)state;
    Training t = {.bad_step = STEPS, .other_batch = -1};
    train(&t, 0, true);
    float *before = t.values;
    ds_scope *scope = ds_scope_open();
    ds_tensor *loss = training_run(&t, STEPS);
    CHECK(loss && !ds_error());
    CHECK(isnan(ds_item(loss)));
    CHECK_ERROR("cross_entropy: label 10 at index 1 is outside 0..9");
    ds_scope_close(scope);
    t.values = NULL, t.bytes = 0;
    values_add(t.net, &t.values, &t.bytes);
    CHECK(before && t.values && !memcmp(before, t.values, t.bytes));
    free(before);
    free(t.values);
    training_end(&t);
}

/* ---- what a step costs ------------------------------------------------------------------------------- */

static void a_step_is_one_launch(void **state)
{
    (void)state;
    Training t = {.image = true, NO_STEP};
    train(&t, 0, true);
    ds_scope *scope = ds_scope_open();
    int64_t labels[BATCH] = {1, 2, 3, 4};
    ds_tensor *in[] = {ds_randn(DS_F32, ds_shape(BATCH, 3, 32, 32)),
                       ds_from_data(DS_I64, ds_shape(BATCH), labels)};
    long launches = emulator_count("fake_cuda_launches"),
         copies = emulator_count("fake_cuda_copies"),
         graphs = emulator_count("fake_cuda_graph_launches"),
         syncs = emulator_count("fake_cuda_syncs");
    for (int i = 0; i < 3; i++) CHECK(ds_step_graph_run(t.graph, in, 2));
    CHECK(!ds_error());
    if (emulated()) {
        CHECK_INT(emulator_count("fake_cuda_graph_launches") - graphs, 3);
        CHECK_INT(emulator_count("fake_cuda_launches") - launches,
                  0); /* inputs are copied as bytes */
        CHECK_INT(emulator_count("fake_cuda_copies") - copies, 3 * 2); /* not the learning rate */
        CHECK_INT(emulator_count("fake_cuda_syncs") - syncs, 0);
    }
    ds_scope_close(scope);
    free(t.values);
    training_end(&t);
}

/* A program keeps the loss of a step by one copy on the GPU. */
static void what_keeping_a_loss_costs(void **state)
{
    (void)state;
    enum { KEPT = 3 };
    Losses l;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_tensor *loss = ds_mean(ds_full(DS_F32, ds_shape(2), 2.5));
    losses_begin(&l, false);
    size_t allocated = ds_memory_allocated(gpu);
    long launches = emulator_count("fake_cuda_launches"),
         copies = emulator_count("fake_cuda_copies"), syncs = emulator_count("fake_cuda_syncs");
    ds_memory_reset_peak(gpu);
    for (int i = 0; i < KEPT; i++) losses_add(&l, loss);
    CHECK_INT(ds_memory_peak(gpu), allocated);
    if (emulated()) {
        CHECK_INT(emulator_count("fake_cuda_launches") - launches, 0);
        CHECK_INT(emulator_count("fake_cuda_copies") - copies, KEPT - 1); /* the last waits */
        CHECK_INT(emulator_count("fake_cuda_syncs") - syncs, 0);
    }
    losses_read(&l);
    CHECK_INT(l.n, KEPT);
    for (int i = 0; i < l.n; i++) CHECK_CLOSE(l.value[i], 2.5, 0);
    losses_end(&l);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void memory_comes_back(void **state)
{
    (void)state;
    size_t before = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    ds_scope *scope = ds_scope_open();
    Training t = {NO_STEP};
    train(&t, 1, true);
    training_end(&t);
    free(t.values);
    ds_scope_close(scope);
    CHECK_INT(ds_memory_allocated(gpu), before);
    CHECK_INT(ds_live_tensors(), tensors);
}

static ds_tensor *step_inside(void *self, ds_tensor *const *in, int n)
{
    ds_step_graph **g = self;
    return ds_step_graph_run(*g, in, n);
}

static ds_tensor *step_double(void *self, ds_tensor *const *in, int n)
{
    ++*(int *)self;
    return n ? ds_scale(in[0], 2) : NULL;
}

static void bad_calls(void **state)
{
    (void)state;
    ds_step_graph *g = NULL;
    ds_scope *scope = ds_scope_open();
    CHECK(!ds_step_graph_new(NULL, NULL));
    ds_error_clear();
    ds_tensor *in[20] = {ds_ones(DS_F32, ds_shape(2))};
    CHECK(!ds_step_graph_run(NULL, in, 1));
    ds_error_clear();
    g = ds_step_graph_new(step_inside, &g);
    CHECK(!ds_step_graph_run(g, in, 17));
    CHECK_ERROR("step_graph_run: 17 inputs, expected at most 16");
    CHECK(!ds_step_graph_run(g, in, 2));
    ds_error_clear();
    CHECK(!ds_step_graph_run(g, in, 1));
    CHECK_ERROR("step_graph_run: called by its own step");
    ds_step_graph_free(g);
    ds_step_graph_free(NULL);
    int calls = 0; /* on the CPU it is the function */
    g = ds_step_graph_new(step_double, &calls);
    for (int i = 0; i < 4; i++) CHECK_CLOSE(ds_item(ds_sum(ds_step_graph_run(g, in, 1))), 4, 0);
    CHECK_INT(calls, 4);
    CHECK(!strcmp(ds_step_graph_why_not(g), "this device has no graphs"));
    ds_step_graph_free(g);
    ds_scope_close(scope);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_calls),
        cmocka_unit_test(the_tutorials_network),
        cmocka_unit_test(every_rule),
        cmocka_unit_test(dropout_in_a_checkpoint),
        cmocka_unit_test(other_shapes_fall_back),
        cmocka_unit_test(what_cannot_be_recorded),
        cmocka_unit_test(a_schedule_inside_of_the_step),
        cmocka_unit_test(what_changes_is_recorded_anew),
        cmocka_unit_test(a_bad_label_updates_nothing),
        cmocka_unit_test(a_step_is_one_launch),
        cmocka_unit_test(what_keeping_a_loss_costs),
        cmocka_unit_test(memory_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
