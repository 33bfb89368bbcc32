/* tests/ops/lazy.c: every op on operands that have been released (ZeRO-3's
 * parameters): materialized for the forward and for the backward, or refused
 * with the message of the failed materialization.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "ops/cases.h"
#include "tensor/tensor.h"

#include <deepspeed/nn.h>

typedef struct Away {
    ds_tensor *values;
    int fetched;
    bool refuse;
} Away;

static ds_status fetch(void *arg, ds_tensor *x)
{
    Away *a = arg;
    a->fetched++;
    if (a->refuse) return ds_fail(DS_ESTATE, "parameter is partitioned: use ds_gathered");
    dsi_tensor_set_data(x, a->values);
    return DS_OK;
}

static void release(ds_tensor *x, Away *a)
{
    if (!a->values) { /* a part of a larger one, as gathered parameters are */
        /* on a GPU aligned: others are read by other kernels, which may add up
         * in another order */
        int64_t at = ds_device_of(x).kind == DS_CPU ? 7 : 8;
        ds_tensor *flat = dsi_new(x, ds_shape(at + ds_numel(x))),
                  *part = ds_slice(flat, 0, at, at + ds_numel(x));
        a->values = ds_reshape(part, ds_shape_of(x));
        CHECK_INT(ds_copy(a->values, ds_detach(x)), DS_OK);
    }
    dsi_set_materialize_hook(x, fetch, a);
    dsi_release_storage(x);
}

/* Inputs like those of every other test of this case. */
static int inputs(const Case *c, ds_dtype dtype, ds_tensor **in)
{
    int n = case_inputs(c->in);
    for (int k = 0; k < n; k++) in[k] = case_input(c->in, k, dtype);
    return n;
}

static void refuses(const Case *c, ds_dtype dtype, int k)
{
    ds_scope *s = ds_scope_open();
    ds_tensor *in[MAX_IN] = {NULL};
    Away away = {.refuse = true};
    inputs(c, dtype, in);
    release(in[k], &away);
    ds_tensor *y = c->call(in);
    if (y != in[k]) { /* a cast to its own dtype gives x itself */
        if (y) fail_msg("%s (%s): input %d is lazy, but there is a result", c->op, c->name, k);
        CHECK(away.fetched);
        CHECK_ERROR("parameter is partitioned: use ds_gathered");
    }
    ds_error_clear();
    ds_scope_close(s);
}

static void every_op_refuses(void **state)
{
    (void)state;
    for (int i = 0; i < OP_CASES; i++)
        for (int k = 0; k < case_inputs(op_cases[i].in); k++) refuses(&op_cases[i], DS_F32, k);
}

static bool same(ds_tensor *a, ds_tensor *b)
{
    if (!a || !b) return !a && !b;
    return ds_numel(a) == ds_numel(b) &&
           !memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(ds_dtype_of(a)));
}

/* The gradients of the inputs; with `away` they are released before the
 * forward, and again after it. */
static ds_tensor *run(const Case *c, ds_dtype dtype, ds_tensor **grad, Away *away)
{
    ds_tensor *in[MAX_IN] = {NULL};
    int n = inputs(c, dtype, in);
    for (int k = 0; away && k < n; k++) release(in[k], &away[k]);
    ds_tensor *y = c->call(in), *values = y ? ds_clone(ds_detach(y)) : NULL;
    for (int k = 0; away && k < n; k++) release(in[k], &away[k]);
    ds_tensor *dy = values ? ds_like(values, 0.5) : NULL;
    if (!values || (ds_requires_grad(y) && ds_backward_from(y, dy) != DS_OK))
        fail_msg("%s (%s): %s", c->op, c->name, ds_error());
    for (int k = 0; k < n; k++) grad[k] = ds_grad(in[k]);
    return values;
}

static void every_op_fetches(void **state)
{
    (void)state;
    for (int i = 0; i < OP_CASES; i++) {
        const Case *c = &op_cases[i];
        ds_scope *s = ds_scope_open();
        ds_tensor *grad[2][MAX_IN] = {{NULL}};
        Away away[MAX_IN] = {{NULL, 0, false}};
        ds_tensor *want = run(c, DS_F32, grad[0], NULL), *got = run(c, DS_F32, grad[1], away);
        if (!same(want, got)) fail_msg("%s (%s): other values", c->op, c->name);
        for (int k = 0; k < MAX_IN; k++)
            if (!same(grad[0][k], grad[1][k]))
                fail_msg("%s (%s): another gradient of input %d", c->op, c->name, k);
        ds_scope_close(s);
    }
}

/* ---- nothing but the parameter's handle holds its storage ---------------------------------------------- */

static void layers_let_go(void **state)
{
    (void)state;
    static const ds_dtype dtypes[] = {DS_F32, DS_BF16};
    for (int t = 0; t < 2; t++) {
        ds_scope *s = ds_scope_open();
        ds_module *m = ds_nn_sequential(NULL, "m");
        ds_nn_embedding(m, "0", 7, 8, -1);
        ds_nn_linear(m, "1", 8, 8);
        ds_nn_layer_norm(m, "2", ds_shape(8));
        CHECK_INT(ds_module_to(m, dtypes[t]), DS_OK);
        ds_module *c = ds_nn_sequential(NULL, "c");
        ds_nn_conv2d(c, "0", 2, 8, 3);
        ds_nn_batch_norm2d(c, "1", 8);
        CHECK_INT(ds_module_to(c, dtypes[t]), DS_OK);
        ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(2, 2, 5, 5)), dtypes[t]);
        ds_tensor *y = ds_call(m, ds_randint(DS_I64, 0, 7, ds_shape(3, 4))), *z = ds_call(c, x);
        CHECK(y && z);
        ds_module *both[] = {m, c};
        for (int b = 0; b < 2; b++)
            for (int i = 0; i < ds_module_params(both[b]); i++) {
                const char *path;
                ds_tensor *p = ds_module_param_at(both[b], i, &path);
                if (p->storage->refs != 1)
                    fail_msg("%s %s: %d handles on its storage", ds_module_name(both[b]), path,
                             p->storage->refs);
            }
        ds_module_free(m);
        ds_module_free(c);
        ds_scope_close(s);
    }
}

static void others_say_so(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_ones(DS_F32, ds_shape(3)), true);
    size_t bytes = ds_memory_allocated(ds_current_device());
    dsi_release_storage(x);
    CHECK(ds_memory_allocated(ds_current_device()) < bytes);
    CHECK_INT(ds_numel(x), 3);
    CHECK(!ds_data(x) && !ds_data_mut(x) && !ds_clone(x) && !ds_init_constant(x, 1) &&
          !ds_init_uniform(x, 0, 1) && !ds_init_trunc_normal(x, 0, 1, -2, 2) && !ds_relu(x) &&
          ds_copy(x, ds_ones(DS_F32, ds_shape(3))) != DS_OK);
    CHECK_ERROR("tensor: float32 [3] has been released");
    CHECK(isnan(ds_item(x)));
    ds_error_clear();

    Away away = {.values = ds_full(DS_F32, ds_shape(1), 5)};
    ds_tensor *one = ds_zeros(DS_F32, ds_shape(1));
    release(one, &away);
    CHECK_CLOSE(ds_item(one), 5, 0);
    release(one, &away);
    CHECK_CLOSE(*(const float *)ds_data(one), 5, 0);
    CHECK_INT(away.fetched, 2);
    dsi_set_materialize_hook(one, NULL, NULL);
    dsi_release_storage(one);
    CHECK(!ds_data(one));
    ds_error_clear();
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(every_op_refuses), cmocka_unit_test(every_op_fetches),
          cmocka_unit_test(layers_let_go), cmocka_unit_test(others_say_so))
