/* tests/reference/ops_next_pointwise.c: element by element, of family ops-next.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

#define UNARY(f) \
    static ds_tensor *call_##f(OpRun *run) { return ds_##f(op_input(run, "input")); }

UNARY(silu)

static const OpRow rows[] = {
    {"silu", call_silu, ""},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("pointwise", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
