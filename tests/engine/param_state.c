/* tests/engine/param_state.c: ds_engine_get_full, set_full, get_local, set_local in all
 * stages, dtypes and places of the optimizer's state, on several ranks; when they are
 * refused. Values are compared with DeepSpeed's in tests/reference/param_state.c.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "ranks.h"

#include <deepspeed/engine.h>
#include <deepspeed/ops.h>

#include <math.h>
#include <stdlib.h>

#define IN  40
#define OUT 9

typedef struct Case {
    const char *name, *more; /* of the configuration */
    double near;             /* of a gradient, beside float32's */
    bool file;               /* moments are in a file */
} Case;

static char in_file[900], in_files[1800];

static const Case cases[] = {
    {"stage 0", "\"zero_optimization\": {\"stage\": 0}", 1e-6, false},
    {"stage 1", "\"zero_optimization\": {\"stage\": 1}", 1e-6, false},
    {"stage 2, bf16", "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}", 2e-2,
     false},
    {"stage 3", "\"zero_optimization\": {\"stage\": 3}", 1e-6, false},
    {"stage 1, fp16",
     "\"fp16\": {\"enabled\": true, \"loss_scale\": 128}, \"zero_optimization\": {\"stage\": 1}",
     2e-2, false},
    {"stage 3, fp16, divided",
     "\"fp16\": {\"enabled\": true, \"loss_scale\": 128}, \"zero_optimization\": {\"stage\": 3, "
     "\"stage3_param_persistence_threshold\": 0}",
     2e-2, false},
    {"stage 2, host",
     "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}", 1e-6,
     false},
    {"stage 2, one order", "\"zero_optimization\": {\"stage\": 2, \"deterministic\": true}", 1e-6,
     false},
    {"stage 3, file", in_file, 1e-6, true},
    {"stage 3, files", in_files, 1e-6, true},
};

static ds_module *net_new(void)
{
    ds_seed(3);
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", IN, OUT);
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", OUT, 3);
    return m;
}

static ds_tensor *batch(ds_dtype dtype)
{
    float x[4 * IN];
    for (int i = 0; i < 4 * IN; i++) x[i] = (float)sin(i);
    return ds_to(ds_from_data(DS_F32, ds_shape(4, IN), x), ds_current_device(), dtype);
}

static ds_tensor *loss_of(ds_tensor *y) { return ds_mean(ds_mul(y, y)); }

static double norm_of(ds_tensor *x) { return sqrt(ds_item(ds_sum(ds_mul(x, x)))); }
static double distance(ds_tensor *a, ds_tensor *b) { return norm_of(ds_sub(a, b)); }

static double sum_over_ranks(double x)
{
    ds_tensor *t = ds_to(ds_full(DS_F32, ds_shape(1), x), ds_current_device(), DS_F32);
    return ds_all_reduce(NULL, t, DS_REDUCE_SUM) == DS_OK ? ds_item(t) : NAN;
}

static ds_tensor *param(ds_engine *e, int i)
{
    return ds_module_param_at(ds_engine_module(e), i, NULL);
}

/* The same micro batch on each rank: the mean is its gradient. */
static ds_status micro_step(ds_engine *e)
{
    return ds_engine_backward(e, loss_of(ds_engine_forward(e, batch(ds_engine_dtype(e)))));
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

static ds_status gradients_check(ds_engine *e, const Case *c)
{
    ds_module *plain = net_new();
    double scale = ds_engine_loss_scale(e), squares = 0;
    RANK_CHECK(ds_backward(loss_of(ds_call(plain, batch(DS_F32)))) == DS_OK);
    for (int i = 0; i < 4; i++) {
        ds_tensor *want = ds_grad(ds_module_param_at(plain, i, NULL));
        ds_tensor *got = ds_scale(ds_engine_get_full(e, param(e, i), "grad"), 1 / scale);
        RANK_CHECK(got && distance(got, want) <= c->near * norm_of(want));
        ds_tensor *own = ds_engine_get_local(e, param(e, i), "grad");
        double n = (double)ds_numel(own), all = sum_over_ranks(n);
        RANK_CHECK(n == (double)ds_numel(want) || all == (double)ds_numel(want));
        if (i == 1) { /* this rank's elements times 3 */
            RANK_CHECK(ds_engine_set_local(e, param(e, i), "grad", ds_scale(own, 3)) == DS_OK);
            got = ds_scale(ds_engine_get_full(e, param(e, i), "grad"), 1 / (3 * scale));
            RANK_CHECK(distance(got, want) <= c->near * norm_of(want));
        }
        if (i == 2)
            RANK_CHECK(ds_engine_set_full(e, param(e, i), "grad", ds_like(want, 0)) == DS_OK);
        double part = i == 2 ? 0 : i == 1 ? 3 * norm_of(want) : norm_of(want);
        squares += part * part;
    }
    ds_module_free(plain);
    RANK_CHECK(ds_engine_step(e) == DS_OK);
    RANK_CHECK(ds_engine_was_step_applied(e));
    RANK_CHECK(fabs(ds_engine_global_grad_norm(e) / sqrt(squares) - 1) <= c->near);
    /* the moment of what was set: beta1 is 0.9, and the norm is clipped to 1 */
    RANK_CHECK(norm_of(ds_engine_get_full(e, param(e, 2), "exp_avg")) == 0);
    RANK_CHECK(norm_of(ds_engine_get_full(e, param(e, 1), "exp_avg")) > 0);
    return DS_OK;
}

/* ---- values and moments ---------------------------------------------------------------------------------- */

static ds_status states_check(ds_engine *e)
{
    for (int i = 0; i < 4; i++) {
        static const char *const states[] = {"fp32", "exp_avg", "exp_avg_sq"};
        for (int k = 0; k < 3; k++) {
            ds_tensor *p = param(e, i), *was = ds_engine_get_full(e, p, states[k]);
            ds_tensor *value = ds_shift(ds_scale(was, 2), 0.25), *twice;
            /* a master half-way between two bfloat16 is moved by a unit (base/half.h) */
            double near = ds_engine_bf16_enabled(e) ? 1e-6 * norm_of(value) : 0;
            RANK_CHECK(ds_engine_set_full(e, p, states[k], value) == DS_OK);
            RANK_CHECK(distance(ds_engine_get_full(e, p, states[k]), value) <= near);
            ds_tensor *own = ds_scale(ds_engine_get_local(e, p, states[k]), 0.5);
            RANK_CHECK(ds_engine_set_local(e, p, states[k], own) == DS_OK);
            twice = ds_scale(ds_engine_get_full(e, p, states[k]), 2);
            RANK_CHECK(distance(twice, value) <= 2 * near);
        }
    }
    /* the model computes with what was set */
    ds_tensor *p = param(e, 0), *fp32 = ds_engine_get_full(e, p, "fp32");
    ds_gathered(&p, 1);
    double off = distance(ds_to(p, ds_device_of(p), DS_F32), fp32) / norm_of(fp32);
    ds_gathered_end(&p, 1, -1);
    RANK_CHECK(off < 4e-3);
    return DS_OK;
}

static ds_status case_run(void *arg)
{
    const Case *c = arg;
    char config[2400];
    ds_scope *scope = ds_scope_open();
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 4, \"optimizer\": {\"type\": \"AdamW\"}, %s}",
             c->more);
    ds_engine *e = ds_initialize(.model = net_new(), .config = config);
    RANK_CHECK(e);
    RANK_CHECK(norm_of(ds_engine_get_full(e, param(e, 0), "exp_avg")) == 0); /* none yet */
    RANK_CHECK(micro_step(e) == DS_OK);
    RANK_CHECK(gradients_check(e, c) == DS_OK);
    RANK_CHECK(states_check(e) == DS_OK);
    RANK_CHECK(micro_step(e) == DS_OK);
    if (c->file) {
        RANK_CHECK(!ds_engine_get_full(e, param(e, 0), "exp_avg"));
        RANK_CHECK(strstr(ds_error(), "engine_get_full: the update reads the optimizer's file"));
        ds_error_clear();
    } else {
        RANK_CHECK(ds_engine_get_full(e, param(e, 0), "exp_avg"));
    }
    RANK_CHECK(ds_engine_step(e) == DS_OK);
    ds_engine_free(e);
    ds_scope_close(scope);
    return DS_OK;
}

static void all_places(void **state)
{
    (void)state;
    folder_make();
    snprintf(in_file, sizeof in_file,
             "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
             "\"nvme_path\": \"%s\"}}",
             folder_path("."));
    snprintf(in_files, sizeof in_files,
             "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0, "
             "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
             "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}",
             folder_path("."), folder_path("."));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const int sizes[] = {1, 2, 3};
        for (int k = 0; k < 3; k++) {
            if (sizes[k] == 3 && (strstr(cases[i].more, "deterministic") || quick_gpu())) continue;
            if (run_ranks(sizes[k], case_run, (void *)&cases[i]) != DS_OK)
                fail_msg("%s on %d ranks: %s", cases[i].name, sizes[k], ds_error());
        }
    }
    folder_remove();
}

/* ---- refusals ---------------------------------------------------------------------------------------------- */

#define REFUSED(call, part) \
    do { \
        RANK_CHECK(!(call)); \
        RANK_CHECK(ds_error() && strstr(ds_error(), part)); \
        ds_error_clear(); \
    } while (0)

static ds_status refusals_body(void *arg)
{
    (void)arg;
    ds_scope *scope = ds_scope_open();
    ds_module *m = net_new();
    ds_require_grad(ds_module_param_at(m, 3, NULL), false);
    ds_engine *e = ds_initialize(
            .model = m, .config = "{\"train_micro_batch_size_per_gpu\": 4, "
                                  "\"gradient_accumulation_steps\": 2, \"optimizer\": {\"type\": "
                                  "\"AdamW\"}, \"zero_optimization\": {\"stage\": 2}}");
    RANK_CHECK(e);
    ds_tensor *p = param(e, 0),
              *other = ds_to(ds_ones(DS_F32, ds_shape(2)), ds_current_device(), DS_F32);
    REFUSED(ds_engine_get_full(e, p, "grad"), "engine_get_full: there is no complete gradient: ");
    RANK_CHECK(micro_step(e) == DS_OK);
    REFUSED(ds_engine_get_full(e, p, "grad"), "between the ds_engine_backward that ends an update");
    RANK_CHECK(ds_engine_step(e) == DS_OK && micro_step(e) == DS_OK);
    REFUSED(ds_engine_get_full(e, p, "speed"),
            "adamw has no \"speed\": expected one of grad, fp32, exp_avg, exp_avg_sq");
    REFUSED(ds_engine_get_local(e, other, "grad"),
            "engine_get_local: a tensor [2] that is no parameter of the engine's model");
    REFUSED(ds_engine_get_full(e, param(e, 3), "grad"), "2.bias is not trained");
    REFUSED(ds_engine_set_full(e, p, "grad", other) == DS_OK,
            "engine_set_full: the value is float32 [2]: expected floating-point numbers, [9, 40]");
    REFUSED(ds_engine_set_local(e, p, "exp_avg", ds_ones(DS_I64, ds_shape(2))) == DS_OK,
            "engine_set_local: the value is int64 [2]: expected floating-point numbers, [");
    REFUSED(ds_engine_get_full(e, NULL, "grad"), "engine_get_full");
    REFUSED(ds_engine_get_full(e, p, NULL), "engine_get_full");
    REFUSED(ds_engine_get_full(NULL, p, "grad"), "engine_get_full");
    /* rank 0 alone is wrong: all are told, and none waits */
    ds_tensor *mine = ds_comm_rank(NULL) || ds_comm_size(NULL) == 1 ? p : other;
    if (ds_comm_size(NULL) > 1) REFUSED(ds_engine_get_full(e, mine, "grad"), "no parameter of the");
    RANK_CHECK(ds_engine_step(e) == DS_OK && ds_engine_global_steps(e) == 1);
    ds_engine_free(e);
    e = ds_initialize(.model = net_new(), .config = "{\"train_micro_batch_size_per_gpu\": 4}");
    RANK_CHECK(e);
    REFUSED(ds_engine_get_full(e, param(e, 0), "fp32"), "engine_get_full: there is no optimizer");
    ds_engine_free(e);
    ds_scope_close(scope);
    return DS_OK;
}

static void wrong_moments_are_refused(void **state)
{
    (void)state;
    TEST_RANKS(refusals_body, NULL);
}

TEST_MAIN(cmocka_unit_test(all_places), cmocka_unit_test(wrong_moments_are_refused))
