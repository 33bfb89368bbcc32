/* tests/reference_ops.c: see reference_ops.h.
 * SPDX-License-Identifier: MIT */
#include "reference_ops.h"

#include "tensor/tensor.h"

#include <deepspeed/autograd.h>

#include <stdio.h>
#include <string.h>

/* Which program of tests/reference has which ops of ops-next; each op once. */
static const struct {
    const char *program, *ops;
} programs[] = {
    {"pointwise", "add ceil celu clamp cos elu eq erf expm1 floor floor_divide ge gt hardsigmoid "
                  "hardswish le leaky_relu log1p logical_and logical_not logical_or logical_xor "
                  "logsigmoid lt masked_fill maximum minimum mish mul ne promotion remainder round "
                  "rsqrt selu sigmoid sign silu sin softplus sub"},
    {"index", "argmax chunk cumprod cumsum einsum embedding_bag flip gather index_add "
              "index_select logsumexp max norm pad prod repeat repeat_interleave roll scatter "
              "scatter_add sort split std sum topk tril triu var"},
    {"loss", "binary_cross_entropy binary_cross_entropy_with_logits cosine_similarity "
             "cross_entropy huber_loss kl_div l1_loss nll_loss rms_norm rotary_embedding "
             "scaled_dot_product_attention smooth_l1_loss"},
    {"layers",
     "Bilinear EmbeddingBag GRU GRUCell LSTM LSTMCell MultiheadAttention RNN RNNCell "
     "Transformer TransformerDecoderLayer TransformerEncoderLayer adaptive_max_pool2d "
     "avg_pool1d batch_norm clip_grad_value_ conv1d conv3d conv_transpose1d conv_transpose2d "
     "conv_transpose3d default_init group_norm instance_norm interpolate kaiming_normal_ "
     "max_pool1d "
     "orthogonal_ trunc_normal_ xavier_normal_ xavier_uniform_"},
};

bool op_among(const char *name, const char *words)
{
    size_t n = strlen(name);
    for (const char *p = words; (p = strstr(p, name)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0')) return true;
    return false;
}

/* ---- what a case gives ------------------------------------------------------------------------------- */

ds_tensor *op_input(OpRun *run, const char *name) { return reference_tensor(run->r, name); }

ds_tensor *op_output(OpRun *run, const char *name, ds_tensor *x)
{
    if (x) ds_state_set(run->outputs, name, x);
    return x;
}

bool op_has(OpRun *run, const char *key)
{
    const json_t *v = json_object_get(run->attrs, key);
    return v && !json_is_null(v);
}

int64_t op_int(OpRun *run, const char *key, int64_t absent)
{
    return reference_int(run->attrs, key, absent);
}

double op_number(OpRun *run, const char *key, double absent)
{
    return reference_double(run->attrs, key, absent);
}

double op_option(OpRun *run, const char *key)
{
    double x = op_number(run, key, 0);
    return op_has(run, key) && x == 0 ? DS_ZERO : x;
}

bool op_bool(OpRun *run, const char *key, bool absent)
{
    return reference_bool(run->attrs, key, absent);
}

void op_pair(OpRun *run, const char *key, int *vertical, int *horizontal)
{
    ds_dims d = reference_dims(run->attrs, key);
    bool zero = strstr(key, "padding"); /* 0 is a value, not the default */
    if (d.n > 0) *vertical = d.d[0] || zero ? (int)d.d[0] : -1;
    if (d.n > 1) *horizontal = d.d[1] ? (int)d.d[1] : -1;
}

ds_reduce_opts op_reduce(OpRun *run)
{
    return (ds_reduce_opts){.dims = reference_dims(run->attrs, "dim"),
                            .keepdim = op_bool(run, "keepdim", false)};
}

ds_pool2d_opts op_pool2d(OpRun *run)
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

ds_pool1d_opts op_pool1d(OpRun *run)
{
    ds_pool2d_opts o = op_pool2d(run);
    return (ds_pool1d_opts){.kernel = o.kernel,
                            .stride = o.stride,
                            .padding = o.padding,
                            .dilation = o.dilation,
                            .ceil_mode = o.ceil_mode,
                            .exclude_pad = o.exclude_pad};
}

ds_cross_entropy_opts op_classes(OpRun *run)
{
    return (ds_cross_entropy_opts){.weight = op_input(run, "weight"),
                                   .label_smoothing = op_number(run, "label_smoothing", 0),
                                   .ignore_index = op_int(run, "ignore_index", -100),
                                   .ignore = true,
                                   .reduction = op_reduction(run)};
}

ds_tensor *op_batch_norm(OpRun *run, bool training,
                         ds_tensor *(*norm)(ds_tensor *x, ds_batch_norm_opts o))
{
    ds_batch_norm_opts o = {.weight = op_input(run, "weight"),
                            .bias = op_input(run, "bias"),
                            .running_mean = op_input(run, "running_mean"),
                            .running_var = op_input(run, "running_var"),
                            .training = training,
                            .momentum = op_option(run, "momentum"),
                            .eps = op_option(run, "eps")};
    ds_tensor *y = norm(op_input(run, "input"), o);
    op_output(run, "running_mean_after", o.running_mean);
    op_output(run, "running_var_after", o.running_var);
    return y;
}

int op_inputs(OpRun *run, ds_tensor **x, int most)
{
    char name[16] = "input0";
    int n = 0;
    while (n < most && (x[n] = op_input(run, name))) snprintf(name, sizeof name, "input%d", ++n);
    return n;
}

ds_reduction op_reduction(OpRun *run)
{
    const char *name = reference_text(run->attrs, "reduction", "mean");
    if (!strcmp(name, "sum")) return DS_SUM;
    if (!strcmp(name, "none")) return DS_NONE;
    return !strcmp(name, "mean") ? DS_MEAN : (ds_reduction)99; /* 99 is refused */
}

/* x's values in memory with other strides, which leaves gaps where they do. */
static ds_tensor *laid_out(ds_tensor *x, ds_dims strides)
{
    int64_t extent = 1;
    for (int i = 0; i < strides.n; i++) extent += (ds_size(x, i) - 1) * strides.d[i];
    ds_tensor *memory = ds_zeros(ds_dtype_of(x), ds_shape(extent > 0 ? extent : 0));
    ds_tensor *y = dsi_view_of(memory, ds_shape_of(x), strides.d, 0);
    return ds_copy(y, x) == DS_OK ? y : NULL;
}

/* Puts the inputs that PyTorch saw with strides into such memory. */
static void apply_strides(Reference *r)
{
    const char *name;
    json_t *input;
    json_object_foreach(json_object_get(r->json, "inputs"), name, input)
    {
        ds_dims strides = reference_dims(input, "strides");
        ds_tensor *x = reference_tensor(r, name);
        if (strides.n && x) ds_state_set(r->tensors, name, laid_out(x, strides));
    }
}

/* ---- one case ---------------------------------------------------------------------------------------- */

static void require_gradients(Reference *r)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(r->json, "gradients"), i, name)
    {
        const char *input = json_string_value(name) + strlen("grad.");
        if (!ds_require_grad(reference_tensor(r, input), true))
            reference_fail(r, "no input %s to differentiate", input);
    }
}

/* sum over outputs o that have an upstream gradient of sum(o * grad_o); or
 * NULL */
static ds_tensor *weighted_sum(OpRun *run)
{
    ds_tensor *total = NULL;
    for (int i = 0; i < ds_state_len(run->outputs); i++) {
        char name[80];
        snprintf(name, sizeof name, "grad_%s", ds_state_name(run->outputs, i));
        ds_tensor *o = ds_state_at(run->outputs, i), *grad = reference_tensor(run->r, name);
        if (!grad) continue;
        ds_tensor *sum = ds_sum(ds_mul(o, grad));
        total = total ? ds_add(total, sum) : sum;
    }
    return total;
}

static bool backward(OpRun *run)
{
    /* the sum is of the outputs that have an upstream gradient; one alone needs none */
    ds_tensor *y = ds_state_get(run->outputs, "output"),
              *dy = reference_tensor(run->r, "grad_output");
    bool single = y && dy && ds_state_len(run->outputs) == 1;
    ds_status status = single ? ds_backward_from(y, dy) : ds_backward(weighted_sum(run));
    if (status == DS_OK) return true;
    reference_fail(run->r, "backward: %s", ds_error() ? ds_error() : "no output has a gradient");
    return false;
}

static void check_values(OpRun *run)
{
    size_t i;
    json_t *name, *outputs = json_object_get(run->r->json, "outputs");
    if (!json_array_size(outputs))
        reference_fail(run->r, "neither outputs nor a refusal to compare");
    json_array_foreach(outputs, i, name)
    {
        const char *n = json_string_value(name);
        reference_close(run->r, n, ds_state_get(run->outputs, n));
    }
    json_t *gradients = json_object_get(run->r->json, "gradients");
    if (!json_array_size(gradients) || run->r->failures || !backward(run)) return;
    json_array_foreach(gradients, i, name)
    {
        const char *n = json_string_value(name); /* "grad.weight" */
        ds_tensor *grad = ds_grad(reference_tensor(run->r, n + strlen("grad.")));
        reference_close(run->r, n, grad);
    }
}

/* The message begins with the op's name up to a "2", or with the name that it
 * has here; of a bad index on a GPU with that of the kernel. */
static bool refused_by(const char *op, const char *message)
{
    static const char *const other[][2] = {{"scaled_dot_product_attention", "attention"},
                                           {"sdpa", "attention"},
                                           {"embedding_bag", "embedding"},
                                           {"index_select", "embedding"},
                                           {"index_add", "embedding"},
                                           {"nll_loss", "gather"},
                                           {"max", "amax"},
                                           {"add", "add_scaled"},
                                           {"sub", "add_scaled"},
                                           {"orthogonal_", "init_orthogonal"},
                                           {"kaiming_normal_", "init_kaiming_normal"},
                                           {"xavier_normal_", "init_xavier_normal"},
                                           {"xavier_uniform_", "init_xavier_uniform"}};
    if (!message) return false;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (!strcmp(op, other[i][0]) && !strncmp(message, other[i][1], strlen(other[i][1])))
            return true;
    return !strncmp(message, op, strcspn(op, "2"));
}

void reference_op(Reference *r, const OpRow *rows, int n)
{
    OpRun run = {.r = r, .attrs = json_object_get(r->json, "attrs")};
    const char *op = reference_text(r->json, "op", "");
    int k = 0;
    while (k < n && strcmp(rows[k].op, op) != 0) k++;
    if (k == n) {
        reference_fail(r, "the driver knows no op %s", op);
        return;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)run.attrs, key, value) if (!op_among(key, rows[k].attrs))
        reference_fail(r, "the driver knows no attribute %s of %s", key, op);
    apply_strides(r);
    require_gradients(r);

    ds_error_clear();
    run.outputs = ds_state_new();
    ds_tensor *y = op_output(&run, "output", rows[k].call(&run));
    if (r->skipped || json_object_get(r->json, "table"))
        ds_error_clear(); /* a table is compared by the call */
    else if (!json_object_get(r->json, "raises"))
        check_values(&run);
    else if (y && ds_data(y)) /* a GPU finds a bad index when the host waits for it */
        reference_fail(r, "no refusal, where PyTorch raises");
    else if (!refused_by(op, ds_error()))
        reference_fail(r, "the refusal's message is \"%s\": expected one of %s",
                       ds_error() ? ds_error() : "", op);
    ds_state_free(run.outputs);
}

/* ---- ops-next ---------------------------------------------------------------------------------------- */

static _Thread_local struct {
    const char *program;
    const OpRow *rows;
    int n;
} now; /* the table of the running program */

static const char *program_of(const char *op)
{
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (op_among(op, programs[i].ops)) return programs[i].program;
    return NULL;
}

static void next_case(Reference *r)
{
    const char *op = reference_text(r->json, "op", ""), *program = program_of(op);
    if (!program)
        reference_fail(r, "no program has op %s: add it to the list of reference_ops.c", op);
    else if (strcmp(program, now.program) != 0)
        r->elsewhere = true;
    else {
        for (int i = 0; i < now.n; i++)
            if (!strcmp(now.rows[i].op, op)) {
                reference_op(r, now.rows, now.n);
                return;
            }
        reference_skip(r, "there is no %s here", op);
    }
}

int reference_ops_next(const char *program, const OpRow *rows, int n)
{
    now.program = program, now.rows = rows, now.n = n;
    return reference_each("ops-next", next_case);
}
