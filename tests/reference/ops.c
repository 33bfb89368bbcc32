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

static ds_tensor *max_pool2d(OpRun *run)
{
    ds_pool2d_opts o = op_pool2d(run);
    ds_tensor *indices = NULL;
    o.indices = &indices;
    ds_tensor *y = ds_max_pool2d_with(op_input(run, "input"), o);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *avg_pool2d(OpRun *run)
{
    return ds_avg_pool2d_with(op_input(run, "input"), op_pool2d(run));
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
    return ds_cross_entropy_with(op_input(run, "input"), op_input(run, "target"), op_classes(run));
}

static ds_tensor *mse_loss(OpRun *run)
{
    return ds_mse_loss_with(op_input(run, "input"), op_input(run, "target"), op_reduction(run));
}

static ds_tensor *batch_norm(OpRun *run)
{
    return op_batch_norm(run, op_bool(run, "training", false), ds_batch_norm_with);
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
    return ds_cat(in, op_inputs(run, in, 100), (int)op_int(run, "dim", 0));
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

static ds_tensor *sum(OpRun *run) { return ds_sum_with(op_input(run, "input"), op_reduce(run)); }
static ds_tensor *mean(OpRun *run) { return ds_mean_with(op_input(run, "input"), op_reduce(run)); }
/* 0 for what is not finite, else within 1e9: what the generator does before its
 * cast to integers. */
static ds_tensor *clamped(ds_tensor *x)
{
    ds_tensor *y = ds_to(x, (ds_device){DS_CPU, 0}, DS_F32);
    float *p = ds_data_mut(y = ds_clone(y));
    for (int64_t i = 0; p && i < ds_numel(y); i++)
        p[i] = isfinite(p[i]) ? fminf(fmaxf(p[i], -1e9f), 1e9f) : 0;
    return ds_to(y, ds_device_of(x), DS_F32);
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
