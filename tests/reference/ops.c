/* tests/reference/ops.c: every op beside PyTorch's values: results, gradients,
 * refusals.
 *
 * One row an op: how to call it from a case's tensors and attributes, and which
 * attributes it knows; a case with another attribute, or of another op, is a
 * failure.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

typedef struct Run {
    Reference *r;
    const json_t *attrs;
    ds_tensor *indices; /* of max_pool2d */
} Run;

/* ---- what a case gives ------------------------------------------------------------------------------- */

static ds_tensor *input(Run *run, const char *name) { return reference_tensor(run->r, name); }

static int64_t integer(Run *run, const char *key, int64_t absent)
{
    return reference_int(run->attrs, key, absent);
}

static double number(Run *run, const char *key, double absent)
{
    return reference_double(run->attrs, key, absent);
}

static bool boolean(Run *run, const char *key, bool absent)
{
    return reference_bool(run->attrs, key, absent);
}

/* 3 or [2, 3] as an option's two members, where 0 for the second means "the
 * same" and -1 "none". */
static void pair(Run *run, const char *key, int *vertical, int *horizontal)
{
    ds_dims d = reference_dims(run->attrs, key);
    if (d.n > 0) *vertical = (int)d.d[0];
    if (d.n > 1) *horizontal = d.d[1] ? (int)d.d[1] : -1;
}

/* ---- the ops ----------------------------------------------------------------------------------------- */

static ds_tensor *conv2d(Run *run)
{
    ds_conv2d_opts o = {.bias = input(run, "bias"), .groups = (int)integer(run, "groups", 1)};
    pair(run, "stride", &o.stride, &o.stride_w);
    pair(run, "padding", &o.padding, &o.padding_w);
    pair(run, "dilation", &o.dilation, &o.dilation_w);
    return ds_conv2d_with(input(run, "input"), input(run, "weight"), o);
}

static ds_tensor *linear(Run *run)
{
    return ds_linear(input(run, "input"), input(run, "weight"), input(run, "bias"));
}

static ds_pool2d_opts pool_opts(Run *run)
{
    ds_pool2d_opts o = {.ceil_mode = boolean(run, "ceil_mode", false),
                        .exclude_pad = !boolean(run, "count_include_pad", true),
                        .divisor = (int)integer(run, "divisor_override", 0)};
    pair(run, "kernel", &o.kernel, &o.kernel_w);
    pair(run, "stride", &o.stride, &o.stride_w);
    pair(run, "padding", &o.padding, &o.padding_w);
    pair(run, "dilation", &o.dilation, &o.dilation_w);
    return o;
}

static ds_tensor *max_pool2d(Run *run)
{
    ds_pool2d_opts o = pool_opts(run);
    o.indices = &run->indices;
    return ds_max_pool2d_with(input(run, "input"), o);
}

static ds_tensor *avg_pool2d(Run *run)
{
    return ds_avg_pool2d_with(input(run, "input"), pool_opts(run));
}

static ds_tensor *adaptive_avg_pool2d(Run *run)
{
    ds_dims d = reference_dims(run->attrs, "output_size");
    return ds_adaptive_avg_pool2d(input(run, "input"), d.d[0], d.d[d.n > 1]);
}

static ds_tensor *relu(Run *run) { return ds_relu(input(run, "input")); }
static ds_tensor *sigmoid(Run *run) { return ds_sigmoid(input(run, "input")); }
static ds_tensor *hyperbolic(Run *run) { return ds_tanh(input(run, "input")); }

static ds_tensor *gelu(Run *run)
{
    bool by_tanh = !strcmp(reference_text(run->attrs, "approximate", "none"), "tanh");
    return by_tanh ? ds_gelu_tanh(input(run, "input")) : ds_gelu(input(run, "input"));
}

static ds_tensor *softmax(Run *run)
{
    return ds_softmax(input(run, "input"), (int)integer(run, "dim", -1));
}

static ds_tensor *log_softmax(Run *run)
{
    return ds_log_softmax(input(run, "input"), (int)integer(run, "dim", -1));
}

static ds_reduction reduction(Run *run)
{
    const char *name = reference_text(run->attrs, "reduction", "mean");
    return !strcmp(name, "sum") ? DS_SUM : !strcmp(name, "none") ? DS_NONE : DS_MEAN;
}

static ds_tensor *cross_entropy(Run *run)
{
    ds_cross_entropy_opts o = {.weight = input(run, "weight"),
                               .label_smoothing = number(run, "label_smoothing", 0),
                               .ignore_index = integer(run, "ignore_index", -100),
                               .ignore = true,
                               .reduction = reduction(run)};
    return ds_cross_entropy_with(input(run, "input"), input(run, "target"), o);
}

static ds_tensor *mse_loss(Run *run)
{
    return ds_mse_loss_with(input(run, "input"), input(run, "target"), reduction(run));
}

static ds_tensor *batch_norm(Run *run)
{
    ds_batch_norm_opts o = {.weight = input(run, "weight"),
                            .bias = input(run, "bias"),
                            .running_mean = input(run, "running_mean"),
                            .running_var = input(run, "running_var"),
                            .training = boolean(run, "training", false),
                            .momentum = number(run, "momentum", 0.1),
                            .eps = number(run, "eps", 1e-5)};
    return ds_batch_norm_with(input(run, "input"), o);
}

static ds_tensor *layer_norm(Run *run)
{
    int dims = reference_dims(run->attrs, "normalized_shape").n;
    return ds_layer_norm(input(run, "input"), dims, input(run, "weight"), input(run, "bias"),
                         number(run, "eps", 1e-5));
}

static ds_tensor *rms_norm(Run *run)
{
    int dims = reference_dims(run->attrs, "normalized_shape").n;
    return ds_rms_norm(input(run, "input"), dims, input(run, "weight"), number(run, "eps", 0));
}

static ds_tensor *silu(Run *run) { return ds_silu(input(run, "input")); }

/* cos(position base^(-2 i / dim) + shift), [positions, dim / 2] */
static ds_tensor *rotary_table(Run *run, int64_t dim, double shift)
{
    ds_tensor *at = input(run, "positions");
    int64_t n = ds_size(at, 0);
    const int64_t *position = ds_data(at);
    ds_tensor *t = ds_zeros(DS_F32, ds_shape(n, dim / 2));
    float *p = ds_data_mut(t);
    for (int64_t i = 0; position && p && i < ds_numel(t); i++)
        p[i] = (float)cos(
            (double)position[i / (dim / 2)] *
                pow(number(run, "base", 10000), -2 * (double)(i % (dim / 2)) / (double)dim) +
            shift);
    return t;
}

static ds_tensor *rotary_embedding(Run *run)
{
    ds_tensor *x = input(run, "input");
    int64_t dim = integer(run, "rotary_dim", ds_size(x, -1));
    return ds_rotary_embedding(x, rotary_table(run, dim, 0),
                               rotary_table(run, dim, -1.57079632679489661923),
                               boolean(run, "interleaved", false));
}

static ds_tensor *embedding(Run *run)
{
    ds_tensor *weight = input(run, "weight");
    int64_t padding = integer(run, "padding_idx", -1);
    if (padding < 0 && json_object_get(run->attrs, "padding_idx")) padding += ds_size(weight, 0);
    return ds_embedding(weight, input(run, "indices"), padding);
}

static ds_tensor *sdpa(Run *run)
{
    ds_attention_opts o = {.mask = input(run, "attn_mask"),
                           .causal = boolean(run, "is_causal", false),
                           .scale = number(run, "scale", 0),
                           .enable_gqa = boolean(run, "enable_gqa", false)};
    return ds_attention_with(input(run, "query"), input(run, "key"), input(run, "value"), o);
}

static ds_tensor *flatten(Run *run)
{
    return ds_flatten_range(input(run, "input"), (int)integer(run, "start_dim", 0),
                            (int)integer(run, "end_dim", -1));
}

static ds_tensor *reshape(Run *run)
{
    return ds_reshape(input(run, "input"), reference_dims(run->attrs, "shape"));
}

static ds_tensor *permute(Run *run)
{
    return ds_permute(input(run, "input"), reference_dims(run->attrs, "dims"));
}

static ds_tensor *transpose(Run *run)
{
    return ds_transpose(input(run, "input"), (int)integer(run, "dim0", 0),
                        (int)integer(run, "dim1", 0));
}

static ds_tensor *cat(Run *run)
{
    ds_tensor *in[100];
    int n = 0;
    char name[16] = "input0";
    while (n < 100 && (in[n] = input(run, name))) snprintf(name, sizeof name, "input%d", ++n);
    return ds_cat(in, n, (int)integer(run, "dim", 0));
}

static ds_tensor *add(Run *run)
{
    double alpha = number(run, "alpha", 1);
    ds_tensor *a = input(run, "input"), *b = input(run, "other");
    return alpha == 1 ? ds_add(a, b) : ds_add_scaled(a, b, alpha);
}

static ds_tensor *sub(Run *run) { return ds_sub(input(run, "input"), input(run, "other")); }
static ds_tensor *mul(Run *run) { return ds_mul(input(run, "input"), input(run, "other")); }
static ds_tensor *divide(Run *run) { return ds_div(input(run, "input"), input(run, "other")); }
static ds_tensor *matmul(Run *run) { return ds_matmul(input(run, "input"), input(run, "other")); }

static ds_reduce_opts reduce_opts(Run *run)
{
    return (ds_reduce_opts){.dims = reference_dims(run->attrs, "dim"),
                            .keepdim = boolean(run, "keepdim", false)};
}

static ds_tensor *sum(Run *run) { return ds_sum_with(input(run, "input"), reduce_opts(run)); }
static ds_tensor *mean(Run *run) { return ds_mean_with(input(run, "input"), reduce_opts(run)); }
static ds_tensor *cast(Run *run) { return input(run, "input"); } /* see result */

static const struct {
    const char *op;
    ds_tensor *(*call)(Run *run);
    const char *attrs;
} rows[] = {
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
    {"scaled_dot_product_attention", sdpa, "is_causal scale enable_gqa dropout_p"},
    {"rms_norm", rms_norm, "normalized_shape eps"},
    {"rotary_embedding", rotary_embedding, "interleaved rotary_dim base"},
    {"silu", silu, ""},
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

/* ---- one case ---------------------------------------------------------------------------------------- */

/* name is one of the words */
static bool among(const char *name, const char *words)
{
    size_t n = strlen(name);
    for (const char *p = words; (p = strstr(p, name)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0')) return true;
    return false;
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

/* The output of that name; NULL, with a failure, if the driver knows of none. */
static ds_tensor *result(Run *run, const char *name, ds_tensor *y)
{
    if (!strcmp(name, "output")) return y;
    if (!strcmp(name, "indices")) return run->indices;
    if (!strcmp(name, "running_mean_after")) return input(run, "running_mean");
    if (!strcmp(name, "running_var_after")) return input(run, "running_var");
    if (!strcmp(name, "bfloat16")) return ds_cast(y, DS_BF16);
    if (!strcmp(name, "float16")) return ds_cast(y, DS_F16);
    if (!strcmp(name, "int64")) return ds_cast(clamped(y), DS_I64);
    reference_fail(run->r, "the driver knows no output %s", name);
    return NULL;
}

static void check_values(Run *run, ds_tensor *y)
{
    size_t i;
    json_t *name, *outputs = json_object_get(run->r->json, "outputs");
    if (!json_array_size(outputs))
        reference_fail(run->r, "neither outputs nor a refusal to compare");
    json_array_foreach(outputs, i, name)
    {
        const char *n = json_string_value(name);
        reference_close(run->r, n, result(run, n, y));
    }
    json_t *gradients = json_object_get(run->r->json, "gradients");
    if (!json_array_size(gradients)) return;
    if (ds_backward_from(y, reference_tensor(run->r, "grad_output")) != DS_OK) {
        reference_fail(run->r, "backward: %s", ds_error());
        return;
    }
    json_array_foreach(gradients, i, name)
    {
        const char *n = json_string_value(name); /* "grad.weight" */
        reference_close(run->r, n, ds_grad(input(run, n + strlen("grad."))));
    }
}

static void require_gradients(Run *run)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(run->r->json, "gradients"), i, name)
        ds_require_grad(input(run, json_string_value(name) + strlen("grad.")), true);
}

/* The message begins with the op's name. */
static bool refused_by(const char *op, const char *message)
{
    if (!strncmp(op, "scaled_dot", strlen("scaled_dot")) || !strcmp(op, "sdpa")) op = "attention";
    return !strncmp(message, op, strcspn(op, "2"));
}

static void one(Reference *r)
{
    Run run = {.r = r, .attrs = json_object_get(r->json, "attrs")};
    const char *op = reference_text(r->json, "op", "");
    size_t k = 0, n = sizeof rows / sizeof *rows;
    while (k < n && strcmp(rows[k].op, op) != 0) k++;
    if (k == n) {
        reference_fail(r, "the driver knows no op %s", op);
        return;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)run.attrs, key, value) if (!among(key, rows[k].attrs))
        reference_fail(r, "the driver knows no attribute %s of %s", key, op);
    require_gradients(&run);

    ds_error_clear();
    ds_tensor *y = rows[k].call(&run);
    if (!json_object_get(r->json, "raises"))
        check_values(&run, y);
    else if (y)
        reference_fail(r, "no refusal, where PyTorch raises");
    else if (!ds_error() || !refused_by(op, ds_error()))
        reference_fail(r, "the refusal's message is \"%s\": expected one of %s", ds_error(), op);
}

static void ops(void **state)
{
    (void)state;
    CHECK_INT(reference_each("ops", one), 0);
}

/* Of ops-next, which has many more: the ops of language models. */
static void next(Reference *r)
{
    const char *op = reference_text(r->json, "op", "");
    bool shaped = json_object_get(json_object_get(r->json, "inputs"), "weight") ||
                  !json_object_get(r->json, "raises");
    if (!among(op, "silu rms_norm rotary_embedding scaled_dot_product_attention"))
        reference_skip(r, "not of language models");
    else if (!shaped && !strcmp(op, "rms_norm"))
        reference_skip(r, "ds_rms_norm takes no shape without a weight");
    else
        one(r);
}

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_each("ops-next", next), 0);
}

TEST_MAIN(cmocka_unit_test(ops), cmocka_unit_test(ops_next))
