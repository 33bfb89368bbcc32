/* tests/engine/gradient_accumulation.c: updates that the program ends, and
 * batch sizes that change, a parameter that is not used, in each stage. The
 * model is y = sum(w x) of four weights with SGD of rate 1, so that an update
 * is minus the mean gradient.
 * SPDX-License-Identifier: MIT */
#include "ranks.h"

typedef struct Dot {
    ds_tensor *w; /* [4] */
} Dot;

static ds_tensor *dot_forward(void *self, ds_tensor *x)
{
    Dot *d = self;
    return ds_mul(x, d->w);
}

/* Micro batches of one sample; `accumulate` of them are an update. */
static ds_engine *engine_of(int stage, int accumulate, const char *more)
{
    static const ds_module_type type = {"Dot", sizeof(Dot), .forward = dot_forward};
    char config[400];
    ds_module *m = ds_module_new(NULL, "dot", &type);
    ((Dot *)ds_self(m))->w = ds_module_param(m, "w", ds_zeros(DS_F32, ds_shape(4)));
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": 0, \"zero_allow_untested_optimizer\": true, "
             "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1}}, "
             "\"zero_optimization\": {\"stage\": %d%s}}",
             accumulate, stage, more);
    return ds_initialize(.model = m, .config = config);
}

static ds_status back(ds_engine *e, double x)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *in = ds_full(ds_engine_dtype(e), ds_shape(4), x);
    ds_status status = ds_engine_backward(e, ds_sum(ds_engine_forward(e, in)));
    ds_scope_close(scope);
    return status;
}

static ds_status turn(ds_engine *e, double x)
{
    ds_status status = back(e, x);
    return status == DS_OK ? ds_engine_step(e) : status;
}

static ds_tensor *same(void *self, ds_tensor *x)
{
    (void)self;
    return x;
}

static double weight(ds_engine *e)
{
    ds_state *s = ds_engine_state(e, true);
    const float *w = ds_data(ds_state_get(s, "w"));
    double last = w ? w[3] : NAN;
    ds_state_free(s);
    return last;
}

/* A parameter that no loss depends on decays, on one rank as on more; in
 * DeepSpeed, too. */
static ds_status an_unused_parameter(void *arg)
{
    int stage = *(int *)arg;
    char config[300];
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "used", 4, 1, .no_bias = true);
    ds_module *unused = ds_module_make(m, "unused", "Unused", .forward = same);
    ds_module_param(unused, "w", ds_ones(DS_F32, ds_shape(4)));
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_allow_untested_optimizer\": true, "
             "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1, \"weight_decay\": 0.25}}, "
             "\"zero_optimization\": {\"stage\": %d}}",
             stage);
    ds_engine *e = ds_initialize(.model = m, .config = config);
    RANK_CHECK(e && turn(e, 1) == DS_OK && turn(e, 1) == DS_OK);
    ds_tensor *w = ds_engine_get_full(e, ds_parameter(m, "unused.w"), "fp32");
    RANK_CHECK(w && ((const float *)ds_data(w))[3] == 0.5625f);
    ds_engine_free(e);
    return DS_OK;
}

/* ---- updates that the program ends ---------------------------------------------------------------------- */

/* Seven micro batches in groups of three: the rest of one becomes an update, of
 * its sum by three. */
static ds_status a_short_last_group(void *arg)
{
    int stage = *(int *)arg;
    ds_engine *e = engine_of(stage, 3, "");
    RANK_CHECK(e);
    for (int epoch = 1; epoch <= 2; epoch++) {
        for (int i = 0; i < 7; i++) {
            bool ends = i % 3 == 2 || i == 6;
            ds_engine_set_gradient_accumulation_boundary(e, ends);
            RANK_CHECK(ds_engine_is_gradient_accumulation_boundary(e) == ends);
            RANK_CHECK(turn(e, 3 + ds_engine_global_rank(e)) == DS_OK);
            RANK_CHECK(ds_engine_was_step_applied(e) == ends);
        }
        double x = 3 + (ds_engine_world_size(e) - 1) / 2.0;
        RANK_CHECK(fabs(weight(e) + epoch * x * 7 / 3) < 1e-5);
        RANK_CHECK(ds_engine_global_steps(e) == 3 * epoch);
        RANK_CHECK(ds_engine_micro_steps(e) == 7 * epoch);
    }
    ds_engine_free(e);
    return DS_OK;
}

/* managed_gradient_accumulation: false. 1 to 4 backwards, then a step, which
 * reduces; gradients are divided by gradient_accumulation_steps all the
 * same. */
static ds_status a_step_that_is_the_boundary(void *arg)
{
    static const char *const more[] = {
        "}, \"managed_gradient_accumulation\": false, \"bf16\": {\"enabled\": false",
        "}, \"managed_gradient_accumulation\": false, \"bf16\": {\"enabled\": true"};
    for (int k = 0; k < 2; k++) {
        ds_engine *e = engine_of(*(int *)arg, 2, more[k]);
        RANK_CHECK(e);
        double x = 4 + (ds_engine_world_size(e) - 1) / 2.0, near = k ? 2e-2 : 1e-6, moved = 0;
        for (int n = 1, passes = 0; n <= 4; n++) {
            for (int i = 0; i < n; i++) {
                RANK_CHECK(!ds_engine_is_gradient_accumulation_boundary(e));
                RANK_CHECK(back(e, 4 + ds_engine_global_rank(e)) == DS_OK);
            }
            RANK_CHECK(ds_engine_step(e) == DS_OK && ds_engine_was_step_applied(e));
            passes += n;
            moved += n * x / 2;
            RANK_CHECK(fabs(weight(e) / moved + 1) < near);
            RANK_CHECK(fabs(ds_engine_global_grad_norm(e) / (n * x) - 1) < near);
            RANK_CHECK(ds_engine_global_samples(e) == passes * ds_engine_world_size(e));
            RANK_CHECK(ds_engine_global_steps(e) == n && ds_engine_micro_steps(e) == n);
        }
        ds_engine_set_gradient_accumulation_boundary(e, true);
        RANK_CHECK(strstr(ds_error(), "ds_engine_step is the boundary: leave the call out"));
        ds_error_clear();
        ds_engine_free(e);
    }
    return DS_OK;
}

/* DeepSpeed's documented manner: backward and backward, then one step. */
static ds_status one_step_for_all(void *arg)
{
    int stage = *(int *)arg;
    ds_engine *e = engine_of(stage, 3, "");
    RANK_CHECK(e);
    for (int update = 1; update <= 2; update++) {
        ds_engine_set_gradient_accumulation_boundary(e, false);
        RANK_CHECK(back(e, 1) == DS_OK && back(e, 2) == DS_OK);
        ds_engine_set_gradient_accumulation_boundary(e, true);
        RANK_CHECK(back(e, 3) == DS_OK && ds_engine_step(e) == DS_OK);
        RANK_CHECK(fabs(weight(e) + 2 * update) < 1e-6);
        RANK_CHECK(ds_engine_global_steps(e) == update);
    }
    ds_engine_free(e);
    return DS_OK;
}

/* A batch that the program drops: the next one takes its place. */
static ds_status a_dropped_batch(void *arg)
{
    int stage = *(int *)arg;
    ds_engine *e = engine_of(stage, 1, "");
    RANK_CHECK(e && back(e, 100) == DS_OK);
    ds_engine_zero_grad(e);
    RANK_CHECK(turn(e, 3) == DS_OK && fabs(weight(e) + 3) < 1e-6);
    RANK_CHECK(ds_engine_global_steps(e) == 1 && ds_engine_micro_steps(e) == 1);
    ds_engine_free(e);
    return DS_OK;
}

static void the_program_says_where(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        TEST_RANKS(a_short_last_group, &stage);
        TEST_RANKS(one_step_for_all, &stage);
        TEST_RANKS(a_step_that_is_the_boundary, &stage);
        TEST_RANKS(a_dropped_batch, &stage);
        TEST_RANKS(an_unused_parameter, &stage);
    }
}

static void dropped_and_none_after_it(void **state)
{
    (void)state;
    ds_engine *e = engine_of(2, 1, "");
    CHECK(back(e, 1) == DS_OK);
    ds_engine_zero_grad(e);
    CHECK_INT(ds_engine_step(e), DS_ESTATE);
    CHECK_ERROR("there is no gradient");
    ds_engine_free(e);
}

static void said_too_late(void **state)
{
    (void)state;
    ds_engine *e = engine_of(0, 2, "");
    ds_engine_set_gradient_accumulation_boundary(e, false);
    CHECK(back(e, 1) == DS_OK);
    ds_engine_set_gradient_accumulation_boundary(e, true);
    CHECK(ds_engine_step(e) == DS_ESTATE);
    CHECK_ERROR("(engine, true) came after the backward");
    CHECK(back(e, 1) == DS_OK);
    CHECK(back(e, 1) == DS_ESTATE); /* the last one was */
    CHECK_ERROR("called twice");
    CHECK(ds_engine_step(e) == DS_OK);
    CHECK_CLOSE(weight(e), -1, 1e-7);
    ds_engine_free(e);
    ds_engine_set_gradient_accumulation_boundary(NULL, true);
    CHECK(!ds_engine_is_gradient_accumulation_boundary(NULL));
}

/* ---- the type of the sum ---- */

/* Two gradients, 128 and 0.25, whose sum bfloat16 rounds to 128. The default is
 * the model's type in every stage. */
static ds_status the_sum_rounds(void *arg)
{
    const char *const kinds[] = {"", ", \"data_types\": {\"grad_accum_dtype\": \"bf16\"}",
                                 ", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}"};
    for (int k = 0; k < 3; k++) {
        char more[200];
        snprintf(more, sizeof more,
                 "}%s, \"communication_data_type\": \"fp32\", \"bf16\": {\"enabled\": true",
                 kinds[k]);
        ds_engine *e = engine_of(*(int *)arg, 2, more);
        RANK_CHECK(e);
        RANK_CHECK(turn(e, 256) == DS_OK && turn(e, 0.5) == DS_OK);
        RANK_CHECK(weight(e) == (k == 2 ? -128.25 : -128));
        ds_engine_free(e);
    }
    return DS_OK;
}

static void a_sum_in_bfloat16(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) TEST_RANKS(the_sum_rounds, &stage);
}

/* ---- batch sizes that change ---------------------------------------------------------------------------- */

/* Groups of two, then of three, then of one: each whole. */
static ds_status other_groups(void *arg)
{
    int stage = *(int *)arg;
    const int sizes[] = {2, 3, 1};
    ds_engine *e = engine_of(stage, 2, "");
    RANK_CHECK(e);
    int ranks = ds_engine_world_size(e);
    for (int k = 0; k < 3; k++) {
        RANK_CHECK(ds_engine_set_train_batch_size(e, (int64_t)sizes[k] * ranks) == DS_OK);
        RANK_CHECK(ds_engine_gradient_accumulation_steps(e) == sizes[k]);
        RANK_CHECK(ds_engine_train_micro_batch_size_per_gpu(e) == 1);
        int64_t samples = ds_engine_global_samples(e);
        for (int i = 0; i < sizes[k]; i++) RANK_CHECK(turn(e, 1) == DS_OK);
        RANK_CHECK(ds_engine_was_step_applied(e));
        RANK_CHECK(fabs(weight(e) + k + 1) < 1e-6);
        RANK_CHECK(ds_engine_global_samples(e) == samples + (int64_t)sizes[k] * ranks);
    }
    ds_engine_free(e);
    return DS_OK;
}

static void groups_of_another_size(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) TEST_RANKS(other_groups, &stage);
}

static void sizes_that_cannot_be(void **state)
{
    (void)state;
    ds_engine *e = engine_of(0, 2, "");
    CHECK(ds_engine_set_train_micro_batch_size(e, 4) == DS_OK);
    CHECK_INT(ds_engine_train_batch_size(e), 8);
    CHECK_INT(ds_engine_gradient_accumulation_steps(e), 2);
    CHECK(ds_engine_set_train_batch_size(e, 6) == DS_EINVAL);
    CHECK_ERROR("6 is no multiple of 4 (train_micro_batch_size_per_gpu) * 1 (ranks)");
    CHECK(ds_engine_set_train_batch_size(e, 0) == DS_EINVAL);
    CHECK_ERROR("0 is no multiple");
    CHECK(ds_engine_set_train_micro_batch_size(e, 0) == DS_EINVAL);
    CHECK_ERROR("expected 1 to");
    CHECK(turn(e, 1) == DS_OK);
    CHECK(ds_engine_set_train_batch_size(e, 4) == DS_ESTATE);
    CHECK_ERROR("1 of 2 micro steps of an update are done");
    CHECK_INT(ds_engine_train_batch_size(e), 8);
    ds_engine_free(e);
    e = engine_of(2, 2, ", \"deterministic\": true");
    CHECK(ds_engine_set_train_batch_size(e, 4) == DS_ESTATE);
    CHECK_ERROR("deterministic");
    ds_engine_free(e);
    CHECK(ds_engine_set_train_batch_size(NULL, 4) == DS_EINVAL);
    ds_error_clear();
}

TEST_MAIN(cmocka_unit_test(the_program_says_where), cmocka_unit_test(a_sum_in_bfloat16),
          cmocka_unit_test(said_too_late), cmocka_unit_test(dropped_and_none_after_it),
          cmocka_unit_test(groups_of_another_size), cmocka_unit_test(sizes_that_cannot_be))
