/* tests/ops/recompute.c: every op inside of a checkpoint: the values and
 * gradients that it has outside, bit for
 * bit.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "ops/cases.h"

static ds_tensor *call(void *arg, ds_tensor **in, int n)
{
    const Case *c = arg;
    (void)n;
    return c->call(in);
}

static ds_tensor *run(const Case *c, ds_dtype dtype, bool checkpoint, ds_tensor **grad)
{
    ds_tensor *in[MAX_IN] = {NULL};
    int n = case_inputs(c->in);
    ds_seed(1);
    for (int k = 0; k < n; k++) in[k] = case_input(c->in, k, dtype);
    ds_tensor *y = checkpoint ? ds_checkpoint(call, (void *)c, in, n) : c->call(in);
    ds_tensor *values = y ? ds_clone(ds_detach(y)) : NULL,
              *dy = values ? ds_like(values, 0.5) : NULL;
    if (!values || (ds_requires_grad(y) && ds_backward_from(y, dy) != DS_OK))
        fail_msg("%s (%s): %s", c->op, c->name, ds_error());
    for (int k = 0; k < n; k++) grad[k] = ds_grad(in[k]);
    return values;
}

static bool same(ds_tensor *a, ds_tensor *b)
{
    if (!a || !b) return !a && !b;
    return ds_numel(a) == ds_numel(b) &&
           !memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(ds_dtype_of(a)));
}

static void every_case(void **state)
{
    (void)state;
    static const ds_dtype dtypes[] = {DS_F32, DS_F64, DS_F16, DS_BF16};
    for (int i = 0; i < 4 * OP_CASES; i++) {
        const Case *c = &op_cases[i / 4];
        ds_scope *s = ds_scope_open();
        ds_tensor *grad[2][MAX_IN] = {{NULL}};
        ds_tensor *want = run(c, dtypes[i % 4], false, grad[0]);
        ds_tensor *got = run(c, dtypes[i % 4], true, grad[1]);
        if (!same(want, got)) fail_msg("%s (%s): other values", c->op, c->name);
        for (int k = 0; k < MAX_IN; k++)
            if (!same(grad[0][k], grad[1][k]))
                fail_msg("%s (%s): another gradient of input %d", c->op, c->name, k);
        ds_scope_close(s);
    }
}

TEST_MAIN(cmocka_unit_test(every_case))
