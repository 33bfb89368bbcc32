/* tests/reference/ops.c: every op beside PyTorch's values: results, gradients,
 * refusals.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

/* ---- the ops ----------------------------------------------------------------------------------------- */

static ds_tensor *conv2d(OpRun *run)
{
    ds_conv2d_opts o = {.bias = op_input(run, "bias"), .groups = (int)op_int(run, "groups", 1)};
    op_pair(run, "stride", &o.stride, &o.stride_w);
    op_pair(run, "padding", &o.padding, &o.padding_w);
    op_pair(run, "dilation", &o.dilation, &o.dilation_w);
    return ds_conv2d_with(op_input(run, "input"), op_input(run, "weight"), o);
}

static ds_tensor *linear(OpRun *run)
{
    return ds_linear(op_input(run, "input"), op_input(run, "weight"), op_input(run, "bias"));
}

static ds_pool2d_opts pool_opts(OpRun *run)
{
    ds_pool2d_opts o = {.ceil_mode = op_bool(run, "ceil_mode", false),
                        .exclude_pad = !op_bool(run, "count_include_pad", true),
                        .divisor = (int)op_int(run, "divisor_override", 0)};
    op_pair(run, "kernel", &o.kernel, &o.kernel_w);
    op_pair(run, "stride", &o.stride, &o.stride_w);
    op_pair(run, "padding", &o.padding, &o.padding_w);
    op_pair(run, "dilation", &o.dilation, &o.dilation_w);
    return o;
}

static ds_tensor *max_pool2d(OpRun *run)
{
    ds_pool2d_opts o = pool_opts(run);
    ds_tensor *indices = NULL;
    o.indices = &indices;
    ds_tensor *y = ds_max_pool2d_with(op_input(run, "input"), o);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *avg_pool2d(OpRun *run)
{
    return ds_avg_pool2d_with(op_input(run, "input"), pool_opts(run));
}

static ds_tensor *adaptive_avg_pool2d(OpRun *run)
{
    ds_dims d = reference_dims(run->attrs, "output_size");
    return ds_adaptive_avg_pool2d(op_input(run, "input"), d.d[0], d.d[d.n > 1]);
}

static ds_tensor *relu(OpRun *run) { return ds_relu(op_input(run, "input")); }
static ds_tensor *sigmoid(OpRun *run) { return ds_sigmoid(op_input(run, "input")); }
static ds_tensor *hyperbolic(OpRun *run) { return ds_tanh(op_input(run, "input")); }

static ds_tensor *gelu(OpRun *run)
{
    bool by_tanh = !strcmp(reference_text(run->attrs, "approximate", "none"), "tanh");
    return by_tanh ? ds_gelu_tanh(op_input(run, "input")) : ds_gelu(op_input(run, "input"));
}

static ds_tensor *softmax(OpRun *run)
{
    return ds_softmax(op_input(run, "input"), (int)op_int(run, "dim", -1));
}

static ds_tensor *log_softmax(OpRun *run)
{
    return ds_log_softmax(op_input(run, "input"), (int)op_int(run, "dim", -1));
}

static ds_tensor *cross_entropy(OpRun *run)
{
    ds_cross_entropy_opts o = {.weight = op_input(run, "weight"),
                               .label_smoothing = op_number(run, "label_smoothing", 0),
                               .ignore_index = op_int(run, "ignore_index", -100),
                               .ignore = true,
                               .reduction = op_reduction(run)};
    return ds_cross_entropy_with(op_input(run, "input"), op_input(run, "target"), o);
}

static ds_tensor *mse_loss(OpRun *run)
{
    return ds_mse_loss_with(op_input(run, "input"), op_input(run, "target"), op_reduction(run));
}

static ds_tensor *batch_norm(OpRun *run)
{
    ds_batch_norm_opts o = {.weight = op_input(run, "weight"),
                            .bias = op_input(run, "bias"),
                            .running_mean = op_input(run, "running_mean"),
                            .running_var = op_input(run, "running_var"),
                            .training = op_bool(run, "training", false),
                            .momentum = op_number(run, "momentum", 0.1),
                            .eps = op_number(run, "eps", 1e-5)};
    ds_tensor *y = ds_batch_norm_with(op_input(run, "input"), o);
    op_output(run, "running_mean_after", o.running_mean);
    op_output(run, "running_var_after", o.running_var);
    return y;
}

static ds_tensor *layer_norm(OpRun *run)
{
    int dims = reference_dims(run->attrs, "normalized_shape").n;
    return ds_layer_norm(op_input(run, "input"), dims, op_input(run, "weight"),
                         op_input(run, "bias"), op_number(run, "eps", 1e-5));
}

static ds_tensor *embedding(OpRun *run)
{
    ds_tensor *weight = op_input(run, "weight");
    int64_t padding = op_int(run, "padding_idx", -1);
    if (padding < 0 && json_object_get(run->attrs, "padding_idx")) padding += ds_size(weight, 0);
    return ds_embedding(weight, op_input(run, "indices"), padding);
}

static ds_tensor *sdpa(OpRun *run)
{
    ds_attention_opts o = {.mask = op_input(run, "attn_mask"),
                           .causal = op_bool(run, "is_causal", false),
                           .scale = op_number(run, "scale", 0)};
    return ds_attention_with(op_input(run, "query"), op_input(run, "key"), op_input(run, "value"),
                             o);
}

static ds_tensor *flatten(OpRun *run)
{
    return ds_flatten_range(op_input(run, "input"), (int)op_int(run, "start_dim", 0),
                            (int)op_int(run, "end_dim", -1));
}

static ds_tensor *reshape(OpRun *run)
{
    return ds_reshape(op_input(run, "input"), reference_dims(run->attrs, "shape"));
}

static ds_tensor *permute(OpRun *run)
{
    return ds_permute(op_input(run, "input"), reference_dims(run->attrs, "dims"));
}

static ds_tensor *transpose(OpRun *run)
{
    return ds_transpose(op_input(run, "input"), (int)op_int(run, "dim0", 0),
                        (int)op_int(run, "dim1", 0));
}

static ds_tensor *cat(OpRun *run)
{
    ds_tensor *in[100];
    int n = 0;
    char name[16] = "input0";
    while (n < 100 && (in[n] = op_input(run, name))) snprintf(name, sizeof name, "input%d", ++n);
    return ds_cat(in, n, (int)op_int(run, "dim", 0));
}

static ds_tensor *add(OpRun *run)
{
    double alpha = op_number(run, "alpha", 1);
    ds_tensor *a = op_input(run, "input"), *b = op_input(run, "other");
    return alpha == 1 ? ds_add(a, b) : ds_add_scaled(a, b, alpha);
}

static ds_tensor *sub(OpRun *run) { return ds_sub(op_input(run, "input"), op_input(run, "other")); }
static ds_tensor *mul(OpRun *run) { return ds_mul(op_input(run, "input"), op_input(run, "other")); }
static ds_tensor *divide(OpRun *run)
{
    return ds_div(op_input(run, "input"), op_input(run, "other"));
}
static ds_tensor *matmul(OpRun *run)
{
    return ds_matmul(op_input(run, "input"), op_input(run, "other"));
}

static ds_reduce_opts reduce_opts(OpRun *run)
{
    return (ds_reduce_opts){.dims = reference_dims(run->attrs, "dim"),
                            .keepdim = op_bool(run, "keepdim", false)};
}

static ds_tensor *sum(OpRun *run) { return ds_sum_with(op_input(run, "input"), reduce_opts(run)); }
static ds_tensor *mean(OpRun *run)
{
    return ds_mean_with(op_input(run, "input"), reduce_opts(run));
}
/* 0 for what is not finite, else within 1e9: what the generator does before its
 * cast to integers. */
static ds_tensor *clamped(ds_tensor *x)
{
    ds_tensor *y = ds_clone(x);
    float *p = ds_data_mut(y);
    for (int64_t i = 0; p && i < ds_numel(y); i++)
        p[i] = isfinite(p[i]) ? fminf(fmaxf(p[i], -1e9f), 1e9f) : 0;
    return y;
}

static ds_tensor *cast(OpRun *run)
{
    ds_tensor *x = op_input(run, "input");
    op_output(run, "bfloat16", ds_cast(x, DS_BF16));
    op_output(run, "float16", ds_cast(x, DS_F16));
    op_output(run, "int64", ds_cast(clamped(x), DS_I64));
    return x;
}

static const OpRow rows[] = {
    {"conv2d", conv2d, "stride padding dilation groups"},
    {"linear", linear, ""},
    {"max_pool2d", max_pool2d, "kernel stride padding dilation ceil_mode"},
    {"avg_pool2d", avg_pool2d,
     "kernel stride padding ceil_mode count_include_pad divisor_override"},
    {"adaptive_avg_pool2d", adaptive_avg_pool2d, "output_size"},
    {"relu", relu, ""},
    {"gelu", gelu, "approximate"},
    {"sigmoid", sigmoid, ""},
    {"tanh", hyperbolic, ""},
    {"softmax", softmax, "dim"},
    {"log_softmax", log_softmax, "dim"},
    {"cross_entropy", cross_entropy, "reduction ignore_index label_smoothing"},
    {"mse_loss", mse_loss, "reduction"},
    {"batch_norm2d", batch_norm, "training momentum eps"},
    {"layer_norm", layer_norm, "normalized_shape eps"},
    {"embedding", embedding, "padding_idx"},
    {"sdpa", sdpa, "is_causal scale"},
    {"flatten", flatten, "start_dim end_dim"},
    {"reshape", reshape, "shape"},
    {"permute", permute, "dims"},
    {"transpose", transpose, "dim0 dim1"},
    {"cat", cat, "dim"},
    {"add", add, "alpha"},
    {"sub", sub, ""},
    {"mul", mul, ""},
    {"div", divide, ""},
    {"matmul", matmul, ""},
    {"mean", mean, "dim keepdim"},
    {"sum", sum, "dim keepdim"},
    {"cast", cast, ""},
};

static void one(Reference *r) { reference_op(r, rows, sizeof rows / sizeof *rows); }

static void ops(void **state)
{
    (void)state;
    CHECK_INT(reference_each("ops", one), 0);
}

TEST_MAIN(cmocka_unit_test(ops))
