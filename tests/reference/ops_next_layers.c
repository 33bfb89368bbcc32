/* tests/reference/ops_next_layers.c: layers, norms, convolutions, resizing and
 * initial values, of family ops-next.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

static ds_tensor *batch_norm(OpRun *run)
{
    ds_batch_norm_opts o = {.weight = op_input(run, "weight"),
                            .bias = op_input(run, "bias"),
                            .running_mean = op_input(run, "running_mean"),
                            .running_var = op_input(run, "running_var"),
                            .training = op_bool(run, "training", false),
                            .momentum = op_number(run, "momentum", 0.1),
                            .eps = op_number(run, "eps", 1e-5)};
    if (o.momentum == 0) o.momentum = DS_ZERO;
    if (!o.training && !o.running_mean)
        reference_skip(run->r, "without running statistics batch_norm takes the batch's own");
    ds_tensor *y = ds_batch_norm_with(op_input(run, "input"), o);
    op_output(run, "running_mean_after", o.running_mean);
    op_output(run, "running_var_after", o.running_var);
    return y;
}

static const OpRow rows[] = {
    {"batch_norm", batch_norm, "training momentum eps"},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("layers", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
