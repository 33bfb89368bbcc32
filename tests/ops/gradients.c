/* tests/ops/gradients.c: backward of every op against central differences, in
 * float64.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "ops/cases.h"
#include "ops/table.h"

static ds_tensor *call(void *arg, ds_tensor **in, int n)
{
    const Case *c = arg;
    (void)n;
    return c->call(in);
}

static void every_case(void **state)
{
    (void)state;
    int failed = 0;
    for (int i = 0; i < OP_CASES; i++) {
        const Case *c = &op_cases[i];
        ds_scope *scope = ds_scope_open();
        ds_tensor *in[MAX_IN] = {NULL};
        int n = case_inputs(c->in);
        for (int k = 0; k < n; k++) in[k] = case_input(c->in, k, DS_F64);
        ds_gradcheck_opts opts = {.eps = c->eps};
        if (ds_gradcheck(call, (void *)c, in, n, opts) != DS_OK) {
            fprintf(stderr, "%s (%s): %s\n", c->op, c->name, ds_error());
            failed++;
        }
        ds_error_clear();
        ds_scope_close(scope);
    }
    CHECK_INT(failed, 0);
}

/* Every op that the graph knows has a row. */
static void complete(void **state)
{
    (void)state;
    for (int k = 0; dsi_ops[k]; k++) {
        bool found = false;
        for (int i = 0; i < OP_CASES && !found; i++)
            found = !strcmp(op_cases[i].op, dsi_ops[k]->name);
        if (!found) fail_msg("no case for op %s", dsi_ops[k]->name);
    }
}

TEST_MAIN(cmocka_unit_test(every_case), cmocka_unit_test(complete))
