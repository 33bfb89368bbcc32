/* tests/engine/flops_profiler.c: when the report is printed, by whom, and of what; what
 * is refused; ds_model_profile. Its lines are compared with DeepSpeed's in
 * tests/reference/flops.c.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "caught.h"
#include "folder.h"
#include "ranks.h"

#include <deepspeed/engine.h>
#include <deepspeed/profile.h>

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define ROWS  4 /* of a micro batch */
#define WIDTH 16

/* ---- runs --------------------------------------------------------------------------------------------- */

typedef struct Plan {
    const char *profiler; /* of flops_profiler, beside "enabled" */
    const char *more;     /* of the configuration */
    int steps;            /* micro steps */
    bool experts;
    bool recompute;
    ds_status status; /* of the run */
} Plan;

typedef struct Net {
    ds_module *fc1, *moe, *fc2;
    bool recompute;
} Net;

static ds_module *expert_new(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, WIDTH, WIDTH);
}

static ds_tensor *net_forward(void *self, ds_tensor *x)
{
    Net *s = self;
    x = s->recompute ? ds_checkpoint_call(s->fc1, x) : ds_call(s->fc1, x);
    if (s->moe) x = ds_call(s->moe, x);
    return ds_call(s->fc2, x);
}

static ds_module *net_new(const Plan *p)
{
    static const ds_module_type type = {"Net", sizeof(Net), .forward = net_forward};
    ds_module *m = ds_module_new(NULL, "net", &type);
    Net *s = ds_self(m);
    s->recompute = p->recompute;
    s->fc1 = ds_nn_linear(m, "fc1", WIDTH, WIDTH);
    if (p->experts) s->moe = ds_nn_moe(m, "moe", WIDTH, expert_new, .num_experts = 4, .ep_size = 2);
    s->fc2 = ds_nn_linear(m, "fc2", WIDTH, 2);
    return m;
}

static ds_status plan_run(void *arg)
{
    Plan *p = arg;
    char config[1200];
    ds_scope *scope = ds_scope_open();
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, %s \"optimizer\": {\"type\": \"Adam\"}, "
             "\"flops_profiler\": {\"enabled\": true%s%s}}",
             ROWS, p->more ? p->more : "", p->profiler ? ", " : "", p->profiler ? p->profiler : "");
    ds_engine *e = ds_initialize(.model = net_new(p), .config = config);
    for (int i = 0; i < p->steps && e; i++) {
        ds_scope *step = ds_scope_open();
        ds_tensor *x = ds_to(ds_ones(DS_F32, ds_shape(ROWS, WIDTH)), ds_engine_device(e), DS_F32);
        ds_engine_backward(e, ds_mean(ds_engine_forward(e, x)));
        ds_engine_step(e);
        ds_scope_close(step);
    }
    ds_engine_free(e);
    ds_scope_close(scope);
    return p->status = ds_error() ? ds_error_status() : DS_OK;
}

static Plan plan; /* of those that are caught */
static void (*caught_body)(void);
static ds_device device; /* of the test's thread */

static void caught_on_device(void)
{
    ds_set_device(device);
    caught_body();
}

static const char *caught(void (*body)(void))
{
    device = ds_current_device();
    caught_body = body;
    return caught_of("warning", caught_on_device);
}

static void caught_run(void) { plan_run(&plan); }

static const char *run_and_catch(Plan p)
{
    plan = p;
    const char *s = caught(caught_run);
    CHECK_INT(plan.status, DS_OK);
    return s;
}

static int count(const char *s, const char *part)
{
    int n = 0;
    for (; (s = strstr(s, part)); s++) n++;
    return n;
}

/* Whether the report has a line with that label and value. */
static bool has_line(const char *s, const char *label, const char *value)
{
    char line[200];
    snprintf(line, sizeof line, "\n%-70s  %-8s\n", label, value);
    return strstr(s, line);
}

static char *file_text(const char *path)
{
    static char text[20000];
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f) fclose(f);
    return text;
}

/* ---- which step --------------------------------------------------------------------------------------- */

static void one_step_is_reported(void **state)
{
    (void)state;
    const char *s = run_and_catch((Plan){.steps = 5});
    CHECK_INT(count(s, "Profile Summary at step 2:"), 1);
    CHECK_INT(count(s, "Profile Summary"), 1);
    CHECK(has_line(s, "params per GPU: ", "306") &&
          has_line(s, "fwd MACs per GPU: ", "1.15 KMACs"));
    CHECK(strstr(s, "\nNet(\n  306 = 100% Params, 1.15 KMACs = 100% MACs, "));
    CHECK(strstr(s, "  (fc2): Linear(34 = 11.11% Params, 128 MACs = 11.11% MACs, "));
    CHECK(!strstr(s, "0 us = ") && !strstr(s, "inf") && !strstr(s, "nan"));
    s = run_and_catch((Plan){.profiler = "\"profile_step\": 0, \"detailed\": false", .steps = 1});
    CHECK_INT(count(s, "Profile Summary at step 1:"), 1);
    CHECK(!strstr(s, "Detailed Profile"));
}

/* One report: of the last micro step, whose numbers it has. */
static void accumulation_is_reported_once(void **state)
{
    (void)state;
    const char *s = run_and_catch(
        (Plan){.more = "\"gradient_accumulation_steps\": 3,", .steps = 9});
    CHECK_INT(count(s, "Profile Summary at step 2:"), 1);
    CHECK_INT(count(s, "Profile Summary"), 1);
    CHECK(has_line(s, "batch size per GPU: ", "4") &&
          has_line(s, "fwd MACs per GPU: ", "1.15 KMACs"));
}

static void options_count(void **state)
{
    (void)state;
    const char *s = run_and_catch(
        (Plan){.profiler = "\"module_depth\": 0, \"recompute_fwd_factor\": 1", .steps = 2});
    CHECK(strstr(s, "fwd+bwd FLOPS per GPU = 4 * fwd flops per GPU / (fwd+bwd latency): "));
    CHECK(!strstr(s, "depth 0:"));
    s = run_and_catch((Plan){.profiler = "\"module_depth\": 9, \"top_modules\": 5", .steps = 2});
    CHECK(strstr(s, "Top 5 modules in terms of"));
    CHECK(strstr(s, "depth 1:\n    params      - {'Linear': '306'}\n"));
    CHECK(!strstr(s, "depth 2:"));
}

static void a_forward_that_is_computed_twice_counts_once(void **state)
{
    (void)state;
    const char *s = run_and_catch((Plan){.steps = 2, .recompute = true});
    CHECK(has_line(s, "fwd MACs per GPU: ", "1.15 KMACs"));
}

static void no_report_is_told(void **state)
{
    (void)state;
    const char *s = run_and_catch((Plan){.profiler = "\"profile_step\": 7", .steps = 2});
    CHECK(strstr(s, "flops_profiler: no report: there were 2 steps, and profile_step is 7"));
}

static void caught_profiled(void)
{
    ds_profile_begin();
    plan_run(&plan);
    ds_profile_end();
}

static void a_profile_of_the_program_stays(void **state)
{
    (void)state;
    plan = (Plan){.steps = 3};
    const char *s = caught(caught_profiled);
    CHECK_INT(plan.status, DS_OK);
    CHECK(strstr(s, "flops_profiler: no report: this thread profiles already"));
    CHECK_INT(count(s, "Profile Summary"), 0);
}

/* ---- ranks -------------------------------------------------------------------------------------------- */

/* Each stage: rank 0 writes the file, with the parameters of the whole model. */
static ds_status ranks_body(void *arg)
{
    char more[200], profiler[700], value[20];
    const char *path = folder_path("ranks/report.txt");
    snprintf(more, sizeof more, "\"zero_optimization\": {\"stage\": %d},", *(int *)arg);
    snprintf(profiler, sizeof profiler, "\"output_file\": \"%s\"", path);
    Plan p = {.profiler = profiler, .more = more, .steps = 2};
    RANK_CHECK(plan_run(&p) == DS_OK);
    ds_barrier(NULL);
    if (ds_comm_rank(NULL)) return DS_OK;
    const char *s = file_text(path);
    snprintf(value, sizeof value, "%d", ds_comm_size(NULL));
    RANK_CHECK(count(s, "Profile Summary at step 2:") == 1);
    RANK_CHECK(has_line(s, "world size: ", value) && has_line(s, "params per GPU: ", "306"));
    RANK_CHECK(has_line(s, "fwd MACs per GPU: ", "1.15 KMACs"));
    return DS_OK;
}

static void rank_0_reports(void **state)
{
    (void)state;
    folder_make();
    for (int stage = 0; stage <= 3; stage += quick() ? 3 : 1) TEST_RANKS(ranks_body, &stage);
    folder_remove();
}

/* 2 ranks have 4 experts: 2 of 272 parameters each. */
static ds_status experts_body(void *arg)
{
    Plan *p = arg;
    return plan_run(p);
}

static void experts_of_all_ranks_count(void **state)
{
    (void)state;
    char profiler[700];
    folder_make();
    const char *path = folder_path("moe.txt");
    snprintf(profiler, sizeof profiler, "\"output_file\": \"%s\"", path);
    Plan p = {.profiler = profiler, .steps = 2, .experts = true};
    CHECK_INT(run_ranks(2, experts_body, &p), DS_OK);
    const char *s = file_text(path);
    CHECK(has_line(s, "expert tensor parallelism enabled: ", "0"));
    CHECK(has_line(s, "params per GPU: ", "914")); /* 306 + 64 of the gate + 2 272 */
    CHECK(has_line(s, "params of model: ", "1.46 K"));
    CHECK(has_line(s, "   non-expert params of model: ", "370"));
    CHECK(has_line(s, "   expert params of model: ", "1.09 K"));
    folder_remove();
}

/* ---- a file that cannot be written --------------------------------------------------------------------- */

static void a_bad_file_is_refused(void **state)
{
    (void)state;
    Plan p = {.profiler = "\"output_file\": \"/proc/none/report.txt\"", .steps = 2};
    CHECK(plan_run(&p) != DS_OK);
    CHECK_ERROR("initialize: flops_profiler.output_file: mkdir /proc/none: ");
    p.profiler = "\"output_file\": \"/\"";
    CHECK(plan_run(&p) != DS_OK);
    CHECK_ERROR("initialize: flops_profiler.output_file: ");
}

static void caught_lost(void)
{
    char profiler[700], config[1200];
    snprintf(profiler, sizeof profiler, "\"output_file\": \"%s\"", folder_path("gone/report.txt"));
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Adam\"}, \"flops_profiler\": "
             "{\"enabled\": true, %s}}",
             profiler);
    ds_scope *scope = ds_scope_open();
    ds_engine *e = ds_initialize(.model = net_new(&(Plan){0}), .config = config);
    rmdir(folder_path("gone"));
    for (int i = 0; i < 3; i++) {
        ds_tensor *x = ds_to(ds_ones(DS_F32, ds_shape(4, WIDTH)), ds_engine_device(e), DS_F32);
        ds_engine_backward(e, ds_mean(ds_engine_forward(e, x)));
        ds_engine_step(e);
    }
    plan.steps = (int)ds_engine_global_steps(e);
    plan.status = ds_error() ? ds_error_status() : DS_OK;
    CHECK(ds_engine_timer_ms(e, "fwd") > 0 && isnan(ds_engine_timer_ms(e, "speed")));
    CHECK(ds_engine_samples_per_sec(e) > 0);
    ds_engine_free(e);
    ds_scope_close(scope);
}

static void a_lost_folder_does_not_end_training(void **state)
{
    (void)state;
    folder_make();
    const char *s = caught(caught_lost);
    CHECK_INT(plan.status, DS_OK);
    CHECK_INT(plan.steps, 3);
    CHECK_INT(count(s, "flops_profiler: "), 1);
    CHECK(strstr(s, "report.txt") && strstr(s, "[ERROR]"));
    folder_remove();
}

/* ---- a step graph --------------------------------------------------------------------------------------- */

static ds_tensor *graph_step(void *engine, ds_tensor *const *in, int n)
{
    (void)n;
    ds_engine *e = engine;
    ds_tensor *loss = ds_mean(ds_engine_forward(e, in[0]));
    if (ds_engine_backward(e, loss) != DS_OK || ds_engine_step(e) != DS_OK) return NULL;
    return loss;
}

static void caught_graph(void)
{
    ds_scope *scope = ds_scope_open();
    ds_engine *e = ds_initialize(.model = net_new(&(Plan){0}),
                                 .config = "{\"train_batch_size\": 4, \"optimizer\": {\"type\": "
                                           "\"Adam\"}, \"flops_profiler\": {\"enabled\": true}}");
    ds_tensor *x = ds_to(ds_ones(DS_F32, ds_shape(4, WIDTH)), ds_engine_device(e), DS_F32);
    ds_step_graph *g = ds_engine_step_graph_new(e, graph_step, e);
    for (int i = 0; i < 5; i++) ds_step_graph_run(g, &x, 1);
    plan.steps = (int)ds_engine_global_steps(e);
    plan.status = ds_error() ? ds_error_status() : DS_OK;
    ds_step_graph_free(g);
    ds_engine_free(e);
    ds_scope_close(scope);
}

static void a_step_graph_runs_the_function(void **state)
{
    (void)state;
    const char *s = caught(caught_graph);
    CHECK_INT(plan.status, DS_OK);
    CHECK_INT(plan.steps, 5);
    CHECK_INT(count(s, "Profile Summary at step 2:"), 1);
    CHECK(has_line(s, "fwd MACs per GPU: ", "1.15 KMACs"));
    if (on_gpu()) CHECK(strstr(s, "flops_profiler, which turns wall_clock_breakdown on"));
}

/* ---- without an engine ----------------------------------------------------------------------------------- */

static ds_tensor *failing_forward(void *self, ds_tensor *x)
{
    (void)self;
    return ds_reshape(x, ds_shape(7));
}

static void a_model_is_profiled_alone(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 8, 4);
    ds_nn_dropout(m, "1", 0.5);
    ds_nn_batch_norm1d(m, "2", 4);
    ds_module_train(ds_module_child(m, 1), false); /* modes come back one by one */
    ds_state *state_dict = ds_module_state(m);
    ds_tensor *x = ds_to(ds_ones(DS_F32, ds_shape(2, 8)), ds_current_device(), DS_F32),
              *mean = ds_state_get(state_dict, "2.running_mean");
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    ds_model_costs c = ds_model_profile(m, x, to, .brief = true, .module_depth = 1);
    fclose(to);
    CHECK(!ds_error());
    CHECK_INT(c.params, 36 + 8);
    CHECK_CLOSE(c.macs, 64, 0);
    CHECK_CLOSE(c.flops, 128 + 2 * 8, 0);
    CHECK(c.seconds > 0);
    CHECK(ds_module_training(m) && !ds_module_training(ds_module_child(m, 1)));
    CHECK_CLOSE(ds_item(ds_sum(mean)), 0, 0);
    CHECK(ds_grad_enabled());
    CHECK(has_line(text, "params of model = params per GPU * mp_size: ", "44"));
    CHECK(strstr(text, "depth 0:\n    params      - {'Sequential': '44'}\n"));
    CHECK(!strstr(text, "world size") && !strstr(text, "Detailed"));
    free(text);
    ds_state_free(state_dict);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Two forwards, one with a gradient: the backward counts nothing. */
static void a_profile_has_the_costs(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 8, 4);
    ds_nn_relu(m, "1");
    ds_tensor *x = ds_to(ds_ones(DS_F32, ds_shape(2, 8)), ds_current_device(), DS_F32);
    ds_profile_begin();
    ds_call(m, x);
    ds_backward(ds_mean(ds_call(m, x)));
    ds_profile_model(m, NULL);
    CHECK_ERROR("profile_model: a profile of this thread runs");
    ds_profile_end();
    ds_model_costs c = ds_profile_model(m, NULL);
    CHECK_CLOSE(c.macs, 2 * 64, 0);
    CHECK_CLOSE(c.flops, 2 * (128 + 8), 0);
    CHECK(c.seconds > 0 && c.seconds <= ds_profile_seconds());
    ds_profile_model(m, NULL, .top_modules = -1);
    CHECK_ERROR("profile_model: .module_depth is 0, .top_modules -1");
    ds_profile_model(NULL, NULL);
    CHECK_ERROR("profile_model");
    ds_module_free(m);
    ds_scope_close(scope);
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    static const ds_module_type type = {"Failing", 1, .forward = failing_forward};
    ds_module *m = ds_module_new(NULL, "net", &type);
    ds_tensor *x = ds_to(ds_ones(DS_F32, ds_shape(2, 8)), ds_current_device(), DS_F32);
    CHECK_CLOSE(ds_model_profile(m, x, NULL).flops, 0, 0);
    CHECK_ERROR("net: reshape");
    CHECK(ds_module_training(m));
    CHECK_INT(ds_profile_begin(), DS_OK); /* nothing of the failed call runs on */
    ds_model_profile(m, x, NULL);
    CHECK_ERROR("model_profile: a profile of this thread runs: end it first (ds_profile_end)");
    CHECK_INT(ds_profile_end(), DS_OK);
    ds_model_profile(m, x, NULL, .module_depth = -2);
    CHECK_ERROR("model_profile: .module_depth is -2, .top_modules 0: expected 0 or more");
    ds_model_profile(NULL, x, NULL);
    CHECK_ERROR("model_profile");
    ds_tensor *none = NULL;
    ds_model_profile(m, none, NULL);
    CHECK_ERROR("model_profile");
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(one_step_is_reported), cmocka_unit_test(accumulation_is_reported_once),
          cmocka_unit_test(options_count),
          cmocka_unit_test(a_forward_that_is_computed_twice_counts_once),
          cmocka_unit_test(no_report_is_told), cmocka_unit_test(a_profile_of_the_program_stays),
          cmocka_unit_test(rank_0_reports), cmocka_unit_test(experts_of_all_ranks_count),
          cmocka_unit_test(a_bad_file_is_refused),
          cmocka_unit_test(a_lost_folder_does_not_end_training),
          cmocka_unit_test(a_step_graph_runs_the_function),
          cmocka_unit_test(a_model_is_profiled_alone), cmocka_unit_test(a_profile_has_the_costs),
          cmocka_unit_test(bad_calls_are_refused))
