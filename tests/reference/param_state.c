/* tests/reference/param_state.c: gradients, values and optimizer states of single
 * parameters beside DeepSpeed's safe_get_* and safe_set_*, and losses that are not
 * divided by the accumulation steps. make_param_state.py made the values.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include <deepspeed/engine.h>
#include <deepspeed/ops.h>

#include <math.h>
#include <stdlib.h>

static ds_tensor *wave(ds_dims shape, double start, double scale)
{
    int64_t n = 1;
    for (int i = 0; i < shape.n; i++) n *= shape.d[i];
    float *x = calloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(sin(start + (double)i) * scale);
    ds_tensor *t = ds_to(ds_from_data(DS_F32, shape, x), ds_current_device(), DS_F32);
    free(x);
    return t;
}

static ds_module *net_new(void)
{
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 6, 5);
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", 5, 3);
    ds_state *values = ds_module_state(m);
    for (int i = 0; i < ds_state_len(values); i++)
        ds_copy(ds_state_at(values, i), wave(ds_shape_of(ds_state_at(values, i)), 10 * i, 0.5));
    ds_state_free(values);
    return m;
}

static void compare(Reference *r, const char *name, ds_tensor *got)
{
    const json_t *want = json_object_get(json_object_get(r->json, "values"), name);
    int64_t n = ds_numel(got);
    got = got ? ds_to(got, (ds_device){DS_CPU, 0}, DS_F32) : NULL;
    const float *x = ds_data(got);
    if (!x || n != (int64_t)json_array_size(want)) {
        reference_fail(r, "%s: %s", name, ds_error() ? ds_error() : "another number of elements");
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (!reference_number_within(
                r, name, x[i], json_number_value(json_array_get(want, (size_t)i)), 2e-7, 2e-5))
            return;
}

static void compare_all(Reference *r, ds_engine *e, const char *when, const char *what)
{
    const char *path;
    for (int i = 0; i < ds_module_params(ds_engine_module(e)); i++) {
        char name[100];
        ds_tensor *p = ds_module_param_at(ds_engine_module(e), i, &path);
        snprintf(name, sizeof name, "%s.%s.%s", when, what, path);
        compare(r, name, ds_engine_get_full(e, p, what));
    }
}

static ds_tensor *param(ds_engine *e, int i)
{
    return ds_module_param_at(ds_engine_module(e), i, NULL);
}

/* Sets the values that the reference does before the second update. */
static void set_some(Reference *r, ds_engine *e)
{
    ds_engine_set_full(e, param(e, 0), "grad", wave(ds_shape(5, 6), 3, 0.01));
    ds_engine_set_full(e, param(e, 2), "exp_avg", wave(ds_shape(3, 5), 5, 0.02));
    ds_engine_set_full(e, param(e, 3), "fp32", wave(ds_shape(3), 9, 1));
    compare(r, "set.grad.0.weight", ds_engine_get_full(e, param(e, 0), "grad"));
}

static void run_update(Reference *r, ds_engine *e, int update)
{
    char when[20];
    snprintf(when, sizeof when, "backward%d", update);
    for (int micro = 0; micro < 2; micro++) {
        ds_tensor *y = ds_engine_forward(e, wave(ds_shape(4, 6), 100 * update + 7 * micro, 1));
        ds_tensor *loss = ds_mean(ds_mul(y, y));
        if (update)
            ds_engine_backward_with(e, ds_scale(loss, 0.25),
                                    (ds_backward_opts){.no_scale_wrt_gas = true});
        else
            ds_engine_backward(e, loss);
        if (micro) compare_all(r, e, when, "grad");
        if (micro && update) set_some(r, e);
        ds_engine_step(e);
    }
    snprintf(when, sizeof when, "step%d", update);
    compare_all(r, e, when, "fp32");
    compare_all(r, e, when, "exp_avg");
    compare_all(r, e, when, "exp_avg_sq");
}

static void run_case(Reference *r)
{
    char config[300];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2, "
             "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.1}}, "
             "\"zero_optimization\": {\"stage\": %d}}",
             (int)reference_int(r->json, "stage", 0));
    ds_engine *e = ds_initialize(.model = net_new(), .config = config);
    for (int update = 0; update < 2 && e; update++) run_update(r, e, update);
    double norm = reference_double(json_object_get(r->json, "values"), "norm", -1);
    reference_number_within(r, "norm", ds_engine_global_grad_norm(e), norm, 0, 1e-5);
    ds_engine_free(e);
    if (ds_error()) reference_fail(r, "%s", ds_error());
}

static void param_state(void **state)
{
    (void)state;
    CHECK_INT(reference_each("param_state", run_case), 0);
}

TEST_MAIN(cmocka_unit_test(param_state))
