/* tests/gpu/scaler_graph.c: steps with a gradient scaler, clipping and autocast
 * as CUDA graphs beside the same steps kernel by kernel, equal to the bit:
 * losses, norms, scales, skipped steps, state dicts; calls between steps; what
 * a step costs.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "nets.h"

#include <deepspeed/optim.h>

enum { BATCH = 4, STEPS = 16 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* A run of STEPS steps. */
typedef struct Training {
    int rule;
    double scale;       /* initial; the growth interval is 3 */
    double max_norm;    /* gradients are unscaled, then clipped; 0: neither */
    int overflow_at;    /* the step whose inputs are too large for float16; 0: none */
    bool two;           /* another network and optimizer, whose gradients overflow apart */
    bool update_behind; /* the scaler is updated after the step */
    int short_at;       /* the step with another batch size; 0: none */
    int set_at;         /* the step before which the scale is set; 0: none */
    int fail_at;        /* the step whose launch fails at first, as a graph; 0: none */
    bool reads;         /* the scale and step counts are read after each step */
    bool asks;          /* the step's function reads the scale */
    ds_module *net[2];
    ds_optim *optim[2];
    ds_grad_scaler *scaler;
    ds_step_graph *graph;
    double loss[STEPS], scales[STEPS], counts[STEPS];
    float *values;
    size_t bytes;
} Training;

static ds_tensor *loss_of(Training *t, int k, ds_tensor *x, ds_tensor *label)
{
    ds_dtype was = ds_set_autocast(DS_F16);
    ds_tensor *loss = ds_cross_entropy(ds_call(t->net[k], x), label);
    ds_set_autocast(was);
    return loss;
}

static ds_tensor *training_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    int both = 1 + t->two;
    ds_tensor *loss = NULL;
    CHECK_INT(n, 3);
    for (int k = 0; k < both; k++) {
        ds_optim_zero_grad(t->optim[k]);
        loss = loss_of(t, k, in[k], in[2]);
        if (ds_backward(ds_grad_scaler_scale(t->scaler, loss)) != DS_OK) return NULL;
        if (t->max_norm > 0 && (ds_grad_scaler_unscale(t->scaler, t->optim[k]) != DS_OK ||
                                !ds_clip_grad_norm(t->net[k], t->max_norm, 2)))
            return NULL;
    }
    if (t->asks) (void)ds_grad_scaler_get_scale(t->scaler);
    for (int k = 0; k < both; k++)
        if (ds_grad_scaler_step(t->scaler, t->optim[k]) != DS_OK) return NULL;
    if (!t->update_behind && ds_grad_scaler_update(t->scaler) != DS_OK) return NULL;
    return loss;
}

/* The steps of all parameters in the state dict. */
static double steps_of(ds_optim *o)
{
    ds_state *state = ds_optim_state(o);
    double sum = 0;
    for (int i = 0; i < ds_state_len(state); i++)
        if (!strncmp(ds_state_name(state, i), "step.", 5)) sum += ds_item(ds_state_at(state, i));
    ds_state_free(state);
    return sum;
}

static void training_run(Training *t, int step)
{
    ds_scope *scope = ds_scope_open();
    int64_t labels[BATCH], batch = step && step == t->short_at ? BATCH - 1 : BATCH;
    for (int i = 0; i < batch; i++) labels[i] = (step * 7 + i * 3) % 10;
    ds_dims shape = ds_shape(batch, WIDTH);
    double factor = step && step == t->overflow_at ? 1e4 : 1;
    ds_tensor *in[] = {ds_randn(DS_F32, shape), ds_scale(ds_randn(DS_F32, shape), factor),
                       ds_from_data(DS_I64, ds_shape(batch), labels)};
    if (!t->two) in[0] = in[1];
    if (step && step == t->set_at) CHECK_INT(ds_grad_scaler_set_scale(t->scaler, 512), DS_OK);
    ds_optim_set_lr(t->optim[0], 0.01 / (1 + step));
    if (t->graph && step && step == t->fail_at) {
        setenv("FAKE_CUDA_FAIL", "cuGraphLaunch=2", 1);
        CHECK(!ds_step_graph_run(t->graph, in, 3) && ds_error());
        unsetenv("FAKE_CUDA_FAIL");
        ds_error_clear();
    }
    ds_tensor *loss = t->graph ? ds_step_graph_run(t->graph, in, 3) : training_step(t, in, 3);
    CHECK(loss);
    if (t->update_behind) CHECK_INT(ds_grad_scaler_update(t->scaler), DS_OK);
    t->loss[step] = ds_item(loss);
    if (t->reads || step == STEPS - 1) {
        t->scales[step] = ds_grad_scaler_get_scale(t->scaler);
        t->counts[step] = steps_of(t->optim[0]);
    }
    CHECK(!ds_error());
    ds_scope_close(scope);
}

static void train(Training *t, bool with_graph)
{
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int k = 0; k < 1 + t->two; k++) {
        ds_seed(5 + (uint64_t)k);
        t->net[k] = ds_nn_sequential(NULL, "net");
        ds_nn_linear(t->net[k], "a", WIDTH, WIDTH);
        ds_nn_relu(t->net[k], "b");
        ds_nn_linear(t->net[k], "c", WIDTH, 10);
        t->optim[k] = optimizer_new(t->rule + k, t->net[k]);
    }
    t->scaler = ds_grad_scaler_new(t->scale, .growth_interval = 3);
    t->graph = with_graph ? ds_step_graph_new(training_step, t) : NULL;
    for (int step = 0; step < STEPS; step++) training_run(t, step);
    for (int k = 0; k < 1 + t->two; k++) values_add(t->net[k], &t->values, &t->bytes);
}

/* The graph outlives what it was recorded from. */
static void training_end(Training *t)
{
    ds_grad_scaler_free(t->scaler);
    for (int k = 0; k < 1 + t->two; k++) ds_optim_free(t->optim[k]), ds_module_free(t->net[k]);
    ds_step_graph_free(t->graph);
    free(t->values);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void compare(Training plan)
{
    Training plain = plan, graph = plan;
    train(&plain, false), train(&graph, true);
    if (ds_step_graph_why_not(graph.graph)) fail_msg("%s", ds_step_graph_why_not(graph.graph));
    CHECK(ds_step_graph_replays(graph.graph));
    for (int i = 0; i < STEPS; i++)
        if (!same(plain.loss[i], graph.loss[i]) || plain.scales[i] != graph.scales[i] ||
            plain.counts[i] != graph.counts[i])
            fail_msg("rule %d, step %d: loss %.9g, scale %g, steps %g; without a graph %.9g, %g, "
                     "%g",
                     plan.rule, i, graph.loss[i], graph.scales[i], graph.counts[i], plain.loss[i],
                     plain.scales[i], plain.counts[i]);
    CHECK(plain.bytes == graph.bytes && !memcmp(plain.values, graph.values, plain.bytes));
    if (plan.overflow_at && !plan.two) CHECK(plain.counts[STEPS - 1] < STEPS * 4);
    training_end(&plain), training_end(&graph);
}

static void every_rule(void **state)
{
    (void)state;
    for (int rule = 0; rule < RULES; rule++)
        compare((Training){.rule = rule, .scale = 1024, .overflow_at = 8});
}

static void skipped_first_steps(void **state)
{
    (void)state;
    for (int rule = 0; rule < 3; rule++) compare((Training){.rule = rule, .scale = 0x1p30});
}

static void clipping(void **state)
{
    (void)state;
    compare((Training){.rule = 1, .scale = 1024, .max_norm = 0.1, .overflow_at = 9});
    compare((Training){.rule = 1, .scale = 0x1p26, .max_norm = 1e9, .reads = true});
}

static void two_optimizers(void **state)
{
    (void)state;
    compare((Training){.rule = 1, .scale = 1024, .two = true, .overflow_at = 7});
    compare((Training){.rule = 0, .scale = 0x1p28, .two = true, .max_norm = 0.5, .reads = true});
}

static void calls_between_steps(void **state)
{
    (void)state;
    Training t = {.rule = 1, .scale = 1024, .overflow_at = 6, .short_at = 8, .set_at = 11};
    compare(t);
    t.reads = true;
    compare(t);
    t.update_behind = true, t.max_norm = 0.5;
    compare(t);
}

/* That of the capture, that of a replay. */
static void launches_that_fail(void **state)
{
    (void)state;
    for (int at = 2; at < 7 && emulated(); at++) {
        Training t = {.rule = 1, .scale = 0x1p24, .fail_at = at, .two = at % 2};
        compare(t);
        t.update_behind = true, t.max_norm = 0.5;
        compare(t);
    }
}

static void what_reads_the_scale_is_no_graph(void **state)
{
    (void)state;
    Training t = {.rule = 1, .scale = 1024, .asks = true};
    train(&t, true);
    CHECK(strstr(ds_step_graph_why_not(t.graph), "it reads a value on the host"));
    training_end(&t);
}

/* A scaler's options are part of the work. */
static void options_are_recorded_anew(void **state)
{
    (void)state;
    Training t = {.rule = 1, .scale = 1024};
    train(&t, true);
    ds_grad_scaler *other = ds_grad_scaler_new(64, .growth_interval = 5);
    ds_value *v = ds_grad_scaler_state_dict(other);
    CHECK_INT(ds_grad_scaler_load_state_dict(t.scaler, v), DS_OK);
    for (int step = 0; step < 5; step++) {
        training_run(&t, step);
        CHECK_INT(ds_step_graph_replays(t.graph), step == 0 || step >= 3);
        CHECK_CLOSE(ds_grad_scaler_get_scale(t.scaler), step == 4 ? 128 : 64, 0);
    }
    ds_value_free(v);
    ds_grad_scaler_free(other);
    training_end(&t);
}

static void what_a_step_costs(void **state)
{
    (void)state;
    Training t = {.rule = 1, .scale = 1024, .max_norm = 0.5};
    train(&t, true);
    ds_scope *scope = ds_scope_open();
    int64_t labels[BATCH] = {1, 2, 3, 4};
    ds_tensor *x = ds_randn(DS_F32, ds_shape(BATCH, WIDTH)),
              *in[] = {x, x, ds_from_data(DS_I64, ds_shape(BATCH), labels)};
    long launches = emulator_count("fake_cuda_launches"),
         graphs = emulator_count("fake_cuda_graph_launches"),
         syncs = emulator_count("fake_cuda_syncs");
    for (int i = 0; i < 3; i++) CHECK(ds_step_graph_run(t.graph, in, 3));
    CHECK(!ds_error());
    if (emulated()) {
        CHECK_INT(emulator_count("fake_cuda_graph_launches") - graphs, 3);
        CHECK_INT(emulator_count("fake_cuda_launches") - launches, 0);
        CHECK_INT(emulator_count("fake_cuda_syncs") - syncs, 0);
    }
    ds_scope_close(scope);
    training_end(&t);
}

static void memory_comes_back(void **state)
{
    (void)state;
    size_t before = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    ds_scope *scope = ds_scope_open();
    Training t = {.rule = 1, .scale = 1024, .max_norm = 0.5, .two = true};
    train(&t, true);
    training_end(&t);
    ds_scope_close(scope);
    CHECK_INT(ds_memory_allocated(gpu), before);
    CHECK_INT(ds_live_tensors(), tensors);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule),
        cmocka_unit_test(skipped_first_steps),
        cmocka_unit_test(clipping),
        cmocka_unit_test(two_optimizers),
        cmocka_unit_test(calls_between_steps),
        cmocka_unit_test(launches_that_fail),
        cmocka_unit_test(what_reads_the_scale_is_no_graph),
        cmocka_unit_test(options_are_recorded_anew),
        cmocka_unit_test(what_a_step_costs),
        cmocka_unit_test(memory_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
