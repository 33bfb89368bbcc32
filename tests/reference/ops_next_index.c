/* tests/reference/ops_next_index.c: by index, in order, over dimensions, in other
 * shapes; of family ops-next.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

static ds_tensor *gather(OpRun *run)
{
    return ds_gather(op_input(run, "input"), (int)op_int(run, "dim", 0), op_input(run, "index"));
}

static const OpRow rows[] = {
    {"gather", gather, "dim"},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("index", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
