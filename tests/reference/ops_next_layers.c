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

static ds_tensor *instance_norm(OpRun *run)
{
    bool own = op_bool(run, "use_input_stats", true);
    ds_batch_norm_opts o = {.weight = op_input(run, "weight"),
                            .bias = op_input(run, "bias"),
                            .running_mean = op_input(run, "running_mean"),
                            .running_var = op_input(run, "running_var"),
                            .training = own,
                            .momentum = op_number(run, "momentum", 0.1),
                            .eps = op_number(run, "eps", 1e-5)};
    ds_tensor *y = ds_instance_norm_with(op_input(run, "input"), o);
    op_output(run, "running_mean_after", o.running_mean);
    op_output(run, "running_var_after", o.running_var);
    return y;
}

static ds_tensor *group_norm(OpRun *run)
{
    return ds_group_norm(op_input(run, "input"), op_int(run, "num_groups", 0),
                         op_input(run, "weight"), op_input(run, "bias"), op_number(run, "eps", 0));
}

/* ---- convolutions and resizing ----------------------------------------------------------------------- */

static ds_tensor *conv1d(OpRun *run)
{
    bool same = !strcmp(reference_text(run->attrs, "padding", ""), "same");
    ds_conv1d_opts o = {.bias = op_input(run, "bias"),
                        .stride = (int)op_int(run, "stride", 1),
                        .padding = same ? 0 : (int)op_int(run, "padding", 0),
                        .dilation = (int)op_int(run, "dilation", 1),
                        .groups = (int)op_int(run, "groups", 1),
                        .same = same};
    if (!o.stride) o.stride = -1; /* 0 is the default here */
    return ds_conv1d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *conv_transpose2d(OpRun *run)
{
    ds_conv_transpose2d_opts o = {.bias = op_input(run, "bias"),
                                  .groups = (int)op_int(run, "groups", 1)};
    op_pair(run, "stride", &o.stride, &o.stride_w);
    op_pair(run, "padding", &o.padding, &o.padding_w);
    op_pair(run, "output_padding", &o.output_padding, &o.output_padding_w);
    op_pair(run, "dilation", &o.dilation, &o.dilation_w);
    return ds_conv_transpose2d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *interpolate(OpRun *run)
{
    static const char *const modes[] = {"nearest", "linear", "bilinear", "area"};
    ds_interpolate_opts o = {
        .size = reference_dims(run->attrs, "size"),
        .align_corners = op_bool(run, "align_corners", false),
        .recompute_scale_factor = op_bool(run, "recompute_scale_factor", false)};
    const json_t *factor = json_object_get(run->attrs, "scale_factor");
    o.scale_factor = reference_number(json_is_array(factor) ? json_array_get(factor, 0) : factor,
                                      0);
    if (json_is_array(factor)) o.scale_factor_w = reference_number(json_array_get(factor, 1), 0);
    for (int i = 0; i < 4; i++)
        if (!strcmp(reference_text(run->attrs, "mode", "nearest"), modes[i]))
            o.mode = (ds_interpolate_mode)i;
    return ds_interpolate_with(op_input(run, "input"), o);
}

static const OpRow rows[] = {
    {"batch_norm", batch_norm, "training momentum eps"},
    {"instance_norm", instance_norm, "use_input_stats momentum eps"},
    {"group_norm", group_norm, "num_groups eps"},
    {"conv1d", conv1d, "stride padding dilation groups"},
    {"conv_transpose2d", conv_transpose2d, "stride padding output_padding dilation groups"},
    {"interpolate", interpolate, "size scale_factor mode align_corners recompute_scale_factor"},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("layers", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
