/* tests/ops/refusals.c: what ops refuse, and that a refusal or a failed
 * allocation leaves nothing behind.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "device/device.h"
#include "ops/cases.h"

#include <pthread.h>

/* The call makes nothing, and its message holds both parts. */
#define REFUSES(call, part1, part2) \
    do { \
        if (call) fail_msg("%s:%d: no refusal of %s", __FILE__, __LINE__, #call); \
        if (ds_error() && !strstr(ds_error(), part2)) CHECK_ERROR(part2); \
        CHECK_ERROR(part1); \
    } while (0)

static ds_tensor *x(ds_dims shape) { return ds_ones(DS_F32, shape); }
static ds_tensor *labels(ds_dims shape) { return ds_zeros(DS_I64, shape); }

/* Every test in a scope of its own. */
static int open_scope(void **state)
{
    *state = ds_scope_open();
    return 0;
}

static int close_scope(void **state)
{
    ds_set_grad(true);
    ds_error_clear();
    ds_scope_close(*state);
    return 0;
}

static void pointwise(void **state)
{
    (void)state;
    ds_tensor *a = x(ds_shape(3, 4)), *b = x(ds_shape(5)), *n = labels(ds_shape(2)),
              *mask = ds_ones(DS_BOOL, ds_shape(2));
    REFUSES(ds_add(a, b), "add: ", "[3, 4] and [5]");
    REFUSES(ds_div(a, b), "div: ", "4 beside 5");
    REFUSES(ds_add_scaled(n, n, 0.5), "add_scaled: alpha is 0.5 beside int64", "integer");
    REFUSES(ds_sub(mask, mask), "sub: operands are bool and bool", "ds_logical_xor");
    REFUSES(ds_remainder(mask, mask), "remainder: ", "both operands are bool");
    REFUSES(ds_neg(mask), "neg: x is bool", "ds_logical_not");
    REFUSES(ds_ceil(mask), "ceil: x is bool", "numbers");
    REFUSES(ds_floor_divide(n, n), "floor_divide: an element of b [2] is 0", "divisors");
    REFUSES(ds_eq(a, b), "eq: ", "[5]");
    REFUSES(ds_logical_and(a, b), "logical_and: ", "[5]");
    REFUSES(ds_where(a, a, a), "where: ", "float32: expected bool");
    REFUSES(ds_masked_fill(a, a, 0), "masked_fill: the mask is float32", "bool");
    REFUSES(ds_masked_fill(n, mask, INFINITY), "masked_fill: x is int64", "can hold");
    REFUSES(ds_masked_fill(ds_cast(a, DS_F16), ds_gt(a, a), -1e9),
            "masked_fill: x is float16, the value -1e+09", "such as -INFINITY");
    REFUSES(ds_maximum(a, b), "maximum: ", "[5]");
    REFUSES(ds_clamp_tensors(a, NULL, NULL), "clamp: ", "both bounds");
    REFUSES(ds_clamp_tensors(a, b, NULL), "clamp: ", "[5]");
    REFUSES(ds_silu(n), "silu: ", "int64");
    REFUSES(ds_celu(a, DS_ZERO), "celu: ", "alpha is 0");
    REFUSES(ds_softplus(a, DS_ZERO, 0), "softplus: ", "beta is 0");
    REFUSES(ds_relu(labels(ds_shape(2))), "relu: ", "int64");
    REFUSES(ds_scale(n, 0.5), "scale: x is int64, the number 0.5", "integer");
    REFUSES(ds_shift(n, INFINITY), "shift: x is int64, the number inf", "integer");
    REFUSES(ds_pow(labels(ds_shape(2)), 2), "pow: ", "int64");
}

static void products(void **state)
{
    (void)state;
    REFUSES(ds_matmul(x(ds_shape(2, 3)), x(ds_shape(4, 5))), "matmul: ", "3 columns beside 4 rows");
    REFUSES(ds_matmul(x((ds_dims){0}), x(ds_shape(4, 5))), "matmul: ", "a is []");
    REFUSES(ds_matmul(x(ds_shape(2, 3, 4)), x(ds_shape(3, 4, 5))), "matmul: ", "[2] and [3]");
    REFUSES(ds_linear(x(ds_shape(16, 400)), x(ds_shape(120, 401)), NULL), "linear: x is [16, 400]",
            "[120, 401] takes 401 features");
    REFUSES(ds_addmm(x(ds_shape(5, 3, 4)), x(ds_shape(3, 2)), x(ds_shape(2, 4))),
            "addmm: input is ", "[5, 3, 4]");
    REFUSES(ds_linear(x(ds_shape(2, 3)), x(ds_shape(4, 3)), x(ds_shape(3))), "linear: bias is [3]",
            "expected [4]");
    REFUSES(ds_linear(x(ds_shape(2, 3)), x(ds_shape(3)), NULL), "linear: ", "[out, in]");
}

static void convolution(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(2, 4, 6, 6)), *w = x(ds_shape(5, 3, 3, 3));
    REFUSES(ds_conv2d(in, w, NULL), "conv2d: x [2, 4, 6, 6] has 4 channels", "takes 3");
    REFUSES(ds_conv2d(in, x(ds_shape(5, 4, 7, 7)), NULL), "conv2d: ", "7 of 6 rows");
    REFUSES(ds_conv2d(x(ds_shape(6, 6)), w, NULL), "conv2d: ", "expected [N,C,H,W]");
    REFUSES(ds_conv2d(in, w, NULL, 2, .same = true), "conv2d: same with stride 2", "expected 1");
    REFUSES(ds_conv2d(in, x(ds_shape(5, 2, 3, 3)), NULL, .groups = 2), "conv2d: ", "groups = 2");
    REFUSES(ds_conv2d(in, x(ds_shape(5, 4, 3, 3)), x(ds_shape(4))), "conv2d: bias is [4]", "[5]");
    REFUSES(ds_conv2d(in, x(ds_shape(5, 4, 3, 3)), NULL, .stride = -1), "conv2d: ", "stride -1");
    REFUSES(ds_conv2d(in, x(ds_shape(5, 4, 3, 3)), NULL, .stride_w = -1), "conv2d: ", "stride 0");
    REFUSES(ds_conv2d(in, ds_ones(DS_F64, ds_shape(5, 4, 3, 3)), NULL), "conv2d: ", "float64");
}

static void other_convolutions(void **state)
{
    (void)state;
    ds_tensor *line = x(ds_shape(1, 2, 8)), *w = x(ds_shape(4, 2, 3));
    REFUSES(ds_conv1d(x(ds_shape(8)), w, NULL), "conv1d: x is [8]", "[N,C,L] or [C,L]");
    REFUSES(ds_conv1d(line, w, NULL, .stride = -1), "conv1d: stride -1", "at least 1");
    REFUSES(ds_conv1d(line, w, NULL, .groups = 2), "conv1d: ", "2 channels");
    REFUSES(ds_conv1d(line, w, NULL, .same = true, .stride = 2), "conv1d: same", "stride 2");
    REFUSES(ds_conv1d(line, x(ds_shape(4, 2, 9)), NULL), "conv1d: ", "9 of 8 columns");
    ds_tensor *image = x(ds_shape(1, 2, 4, 4)), *k = x(ds_shape(2, 3, 3, 3));
    REFUSES(ds_conv_transpose2d(line, w, NULL), "conv_transpose2d: x is", "[C,K/groups,R,S]");
    REFUSES(ds_conv_transpose2d(image, x(ds_shape(3, 2, 3, 3)), NULL),
            "conv_transpose2d: ", "2 channels");
    REFUSES(ds_conv_transpose2d(image, k, NULL, .output_padding = 1),
            "conv_transpose2d: ", "output_padding 1");
    REFUSES(ds_conv_transpose2d(image, k, NULL, .padding = 3), "conv_transpose2d: ", "0 rows");
    REFUSES(ds_conv_transpose2d(image, k, x(ds_shape(2))), "conv_transpose2d: bias is [2]", "[3]");
    ds_tensor *filter = x(ds_shape(2, 3, 3)), *volume = x(ds_shape(1, 2, 2, 3, 3));
    ds_tensor *box = x(ds_shape(2, 3, 2, 2, 2));
    REFUSES(ds_conv_transpose1d(image, filter, NULL), "conv_transpose1d: x is", "[C,K/groups,R]");
    REFUSES(ds_conv_transpose1d(line, filter, NULL, .stride = -1), "conv_transpose1d: stride -1",
            "at least 1");
    REFUSES(ds_conv_transpose1d(line, filter, NULL, .padding = 5),
            "conv_transpose1d: ", "0 columns");
    REFUSES(ds_conv_transpose1d(line, x(ds_shape(3, 2, 3)), NULL),
            "conv_transpose1d: ", "2 channels");
    REFUSES(ds_conv_transpose3d(line, box, NULL), "conv_transpose3d: x is", "[C,K/groups,T,R,S]");
    REFUSES(ds_conv_transpose3d(volume, box, NULL, .padding = ds_shape(2, 0, 0)),
            "conv_transpose3d: ", "-1 planes");
    REFUSES(ds_conv_transpose3d(volume, box, NULL, .padding = ds_shape(0, 2, 0)),
            "conv_transpose3d: ", "0 rows");
    REFUSES(ds_conv_transpose3d(volume, box, NULL, .output_padding = ds_shape(1, 0, 0)),
            "conv_transpose3d: ", "output_padding 1");
    REFUSES(ds_conv_transpose3d(volume, box, NULL, .stride = ds_shape(1, 2)),
            "conv_transpose3d: stride is [1, 2]", "1 or 3 numbers");
    REFUSES(ds_conv_transpose3d(volume, box, x(ds_shape(2))), "conv_transpose3d: bias is [2]",
            "[3]");
    REFUSES(ds_conv_transpose3d(volume, x(ds_shape(3, 2, 2, 2, 2)), NULL),
            "conv_transpose3d: ", "2 channels");
    REFUSES(ds_max_pool1d(image, 2), "max_pool1d: x is [1, 2, 4, 4]", "[N,C,L]");
    REFUSES(ds_max_pool1d(line, 2, .padding = -1), "max_pool1d: ", "padding -1");
    REFUSES(ds_max_pool1d(line, 2, .padding = 2), "max_pool1d: padding 2", "half the kernel");
    REFUSES(ds_avg_pool1d(line, 9), "avg_pool1d: ", "9 columns");
    REFUSES(ds_avg_pool1d(line, 0), "avg_pool1d: kernel 0", "at least 1");
    REFUSES(ds_interpolate(image, 0), "interpolate: ", "neither");
    REFUSES(ds_interpolate(image, .size = ds_shape(2), .scale_factor = 2), "interpolate: ", "both");
    REFUSES(ds_interpolate(image, .size = ds_shape(2, 2, 2)), "interpolate: ", "expected 2");
    REFUSES(ds_interpolate(image, .scale_factor = -1), "interpolate: scale_factor", "above 0");
    REFUSES(ds_interpolate(image, .scale_factor = 0.1), "interpolate: dimension", "0 long");
    REFUSES(ds_interpolate(line, .scale_factor = 2, .mode = DS_BILINEAR), "interpolate: x is",
            "[N,C,H,W]");
    REFUSES(ds_interpolate(image, .scale_factor = 2, .align_corners = true),
            "interpolate: ", "a linear one");
    REFUSES(ds_interpolate(image, .scale_factor = 2, .antialias = true), "interpolate: antialias",
            "expected bilinear or bicubic");
}

static void pooling(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(2, 4, 6, 6)), *indices = in;
    REFUSES(ds_max_pool2d(in, 7), "max_pool2d: ", "7 rows, but x has 6");
    REFUSES(ds_max_pool2d(in, 2, .padding = 2), "max_pool2d: padding 2", "half the kernel");
    REFUSES(ds_max_pool2d(in, 0), "max_pool2d: kernel 0", "at least");
    REFUSES(ds_max_pool2d(x(ds_shape(6, 6)), 2, .indices = &indices), "max_pool2d: ", "[6, 6]");
    CHECK(!indices);
    REFUSES(ds_avg_pool2d(in, 2, .dilation = 2), "avg_pool2d: ", "dilation");
    REFUSES(ds_avg_pool2d(in, 2, .stride = -2), "avg_pool2d: ", "stride -2");
    REFUSES(ds_adaptive_avg_pool2d(in, -1, 2), "adaptive_avg_pool2d: ", "[-1, 2]");
}

static void softmax_and_losses(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(3, 4)), *y = labels(ds_shape(3));
    REFUSES(ds_softmax(in, 2), "softmax: dimension 2", "expected -2 to 1");
    REFUSES(ds_log_softmax(in, -3), "log_softmax: dimension -3", "[3, 4]");
    REFUSES(ds_cross_entropy(in, labels(ds_shape(4))), "cross_entropy: ", "labels int64 [4]");
    REFUSES(ds_cross_entropy(in, labels(ds_shape(3, 1))), "labels int64 [3, 1]",
            "(a data set's field of labels has the shape {0})");
    REFUSES(ds_cross_entropy(in, x(ds_shape(3))), "cross_entropy: ", "labels are float32");
    ((int64_t *)ds_data_mut(y))[1] = 4;
    REFUSES(ds_cross_entropy(in, y), "cross_entropy: ", "4");
    ((int64_t *)ds_data_mut(y))[1] = -1;
    REFUSES(ds_cross_entropy(in, y), "cross_entropy: ", "-1");
    ds_cross_entropy_opts smooth = {.label_smoothing = 1.5}, weighted = {.weight = x(ds_shape(3))};
    REFUSES(ds_cross_entropy_with(in, labels(ds_shape(3)), smooth), "cross_entropy: ", "1.5");
    REFUSES(ds_cross_entropy_with(in, labels(ds_shape(3)), weighted), "cross_entropy: weight",
            "[4]");
    weighted.weight = ds_require_grad(x(ds_shape(4)), true);
    REFUSES(ds_cross_entropy_with(in, labels(ds_shape(3)), weighted), "cross_entropy: weight",
            "ds_detach");
    REFUSES(ds_mse_loss(in, x(ds_shape(4))), "mse_loss: ", "y is [4]");
}

static void normalisation(void **state)
{
    (void)state;
    ds_tensor *one = x(ds_shape(1, 5, 1, 1)), *in = x(ds_shape(2, 5));
    ds_batch_norm_opts o = {.training = true};
    REFUSES(ds_batch_norm_with(one, o), "batch_norm: ", "1 value per channel");
    o.weight = x(ds_shape(4));
    REFUSES(ds_batch_norm_with(in, o), "batch_norm: weight is [4]", "[5]");
    o.weight = NULL, o.running_mean = x(ds_shape(5));
    REFUSES(ds_batch_norm_with(in, o), "batch_norm: ", "together");
    REFUSES(ds_batch_norm_with(x(ds_shape(5)), o), "batch_norm: x is [5]", "[N,C,...]");
    ds_batch_norm_opts running = {.running_mean = x(ds_shape(3)), .running_var = x(ds_shape(3))};
    REFUSES(ds_instance_norm_with(x(ds_shape(1, 2, 8)), running),
            "instance_norm: running_mean is [3]", "[2]");
    ds_cross_entropy_opts weighted = {.weight = x(ds_shape(1))};
    REFUSES(ds_cross_entropy_with(x(ds_shape(2, 3)), x(ds_shape(2, 3)), weighted),
            "cross_entropy: weight is [1]", "[3]");
    REFUSES(ds_instance_norm_with(one, (ds_batch_norm_opts){0}), "instance_norm: ", "1 values");
    REFUSES(ds_instance_norm_with(in, (ds_batch_norm_opts){0}), "instance_norm: ", "[N,C,...]");
    REFUSES(ds_group_norm(in, 2, NULL, NULL, 0), "group_norm: x is [2, 5]", "2 groups");
    REFUSES(ds_group_norm(x(ds_shape(1, 5)), 5, NULL, NULL, 0), "group_norm: x is [1, 5]",
            "1 values in each");
    REFUSES(ds_group_norm(in, 1, x(ds_shape(2)), NULL, 0), "group_norm: weight is [2]", "[5]");
    REFUSES(ds_layer_norm(in, 3, NULL, NULL, 0), "layer_norm: over 3", "[2, 5]");
    REFUSES(ds_layer_norm(in, 1, x(ds_shape(2)), NULL, 0), "layer_norm: weight is [2]", "[2, 5]");
}

static void reductions_and_indices(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(3, 4)), *w = x(ds_shape(7, 2)), *i = labels(ds_shape(2));
    REFUSES(ds_sum_with(in, (ds_reduce_opts){.dims = ds_shape(2)}), "sum: dimension 2", "[3, 4]");
    REFUSES(ds_mean_with(in, (ds_reduce_opts){.dims = ds_shape(1, -1)}),
            "mean: dimension 1 occurs twice", "[1, -1]");
    REFUSES(ds_max(in, 5, false), "max: dimension 5", "[3, 4]");
    REFUSES(ds_max(x(ds_shape(2, 0)), 1, false), "max: ", "empty");
    REFUSES(ds_embedding(w, x(ds_shape(2)), -1), "embedding: indices are float32", "int64");
    REFUSES(ds_embedding(x(ds_shape(7)), i, -1), "embedding: weight is [7]", "[V,D]");
    REFUSES(ds_embedding(w, i, 7), "embedding: padding_idx is 7", "7 rows");
    ((int64_t *)ds_data_mut(i))[1] = 7;
    REFUSES(ds_embedding(w, i, -1), "7", "");
    REFUSES(ds_one_hot(i, 7), "one_hot: label 1 is 7", "0 to 6");
    REFUSES(ds_one_hot(i, 0), "one_hot: ", "classes 0");
    REFUSES(ds_dropout(in, 1.5, true), "dropout: p is 1.5", "0 to 1");
}

static void shapes(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(3, 4)), *odd[] = {in, x(ds_shape(3, 5))}, *none[] = {in, NULL};
    ds_dims many = ds_shape(1, 1, 1, 1, 1, 1, 1, 1);
    REFUSES(ds_reshape(in, ds_shape(5, -1)), "reshape: x is [3, 4]: its 12", "[5, -1]");
    REFUSES(ds_reshape(in, ds_shape(-1, -1)), "reshape: ", "at most one -1");
    REFUSES(ds_reshape(in, ds_shape(12, 0)), "reshape: ", "[12, 0]");
    REFUSES(ds_reshape(in, ds_shape(INT64_MAX, 4)), "reshape: ", "memory");
    REFUSES(ds_flatten(in, 2), "flatten: dimension 2", "[3, 4]");
    REFUSES(ds_flatten_range(in, 1, 0), "flatten: ", "1 to 0");
    REFUSES(ds_permute(in, ds_shape(0, 0)), "permute: ", "[0, 0]");
    REFUSES(ds_permute(in, ds_shape(0)), "permute: ", "[0]");
    REFUSES(ds_transpose(in, 0, 2), "transpose: dimension 2", "[3, 4]");
    REFUSES(ds_slice(in, 2, 0, 1), "slice: dimension 2", "[3, 4]");
    REFUSES(ds_select(in, 0, 3), "select: index 3", "-3 to 2");
    REFUSES(ds_expand(in, ds_shape(3, 5)), "expand: x is [3, 4]", "[3, 5]");
    REFUSES(ds_unsqueeze(in, 3), "unsqueeze: dimension 3", "-3 to 2");
    REFUSES(ds_unsqueeze(x(many), 0), "unsqueeze: ", "8 dimensions");
    REFUSES(ds_squeeze(in, 2), "squeeze: dimension 2", "[3, 4]");
    REFUSES(ds_cat(odd, 2, 0), "cat: operand 0 is [3, 4], operand 1 is [3, 5]", "dimension 0");
    REFUSES(ds_cat(odd, 0, 0), "cat: ", "0 operands");
    REFUSES(ds_stack(odd, 2, 0), "stack: operand 0 is [3, 4]", "[3, 5]");
    CHECK(!ds_cat(none, 2, 0) && !ds_stack(none, 2, 0));
}

static void arrangements(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(3, 4)), *part[2];
    const int64_t sizes[] = {1, 1}, below[] = {3, -1};
    REFUSES(ds_split_size(in, 1, 0, part, 2), "split: x [3, 4] makes 3 parts", "at most 2");
    REFUSES(ds_split_size(in, 0, 0, part, 2), "split: size is 0", "at least 1");
    REFUSES(ds_split_sizes(in, 2, sizes, 0, part), "split: the 2 sizes are 2", "expected 3");
    REFUSES(ds_split_sizes(in, 2, below, 0, part), "split: size 1 is -1", "0 to 3");
    REFUSES(ds_chunk(in, 0, 0, part), "chunk: 0 chunks", "at least 1");
    REFUSES(ds_flip(in, ds_shape(1, -1)), "flip: dimension 1 occurs twice", "[1, -1]");
    REFUSES(ds_roll(in, ds_shape(1, 2), ds_shape(0)), "roll: shifts are [1, 2]", "dims [0]");
    REFUSES(ds_repeat(in, ds_shape(2)), "repeat: x is [3, 4]", "[2]");
    REFUSES(ds_repeat_interleave(in, -1, 0), "repeat_interleave: -1 repeats", "0 or more");
    REFUSES(ds_pad(in, ds_shape(1)), "pad: x is [3, 4], pad [1]", "a pair");
    REFUSES(ds_pad(in, ds_shape(-3, -2)), "pad: by -3 and -2", "less than nothing");
    REFUSES(ds_pad_with(in, ds_shape(4, 0), (ds_pad_opts){.mode = DS_PAD_REFLECT}), "pad: by 4",
            "at most 3");
    REFUSES(ds_tril(x(ds_shape(4)), 0), "tril: x is [4]", "[...,M,N]");
}

static void order_and_places(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(3, 4)), *i = labels(ds_shape(2)), *none = in;
    REFUSES(ds_sort(in, 2, false, &none), "sort: dimension 2", "[3, 4]");
    CHECK(!none);
    REFUSES(ds_topk(in, 5, 1, false, NULL), "topk: k is 5", "4 elements");
    REFUSES(ds_multinomial(x(ds_shape(3)), 4, false), "multinomial: 4 draws from 3", "no more");
    REFUSES(ds_multinomial(ds_neg(in), 1, true), "multinomial: weight 0 of row 0 is -1", "finite");
    REFUSES(ds_multinomial(ds_scale(in, 0), 1, true), "multinomial: row 0 has 0 weights", "1");
    REFUSES(ds_cumsum(in, 2), "cumsum: dimension 2", "[3, 4]");
    REFUSES(ds_amax(x(ds_shape(2, 0))), "amax: x is [2, 0]", "elements");
    REFUSES(ds_cumprod(in, 2), "cumprod: dimension 2", "[3, 4]");
    REFUSES(ds_prelu(in, x(ds_shape(3))), "prelu: x is [3, 4], weight is [3]", "[4]");
    REFUSES(ds_bilinear(in, in, in, NULL), "bilinear: ", "[O,I,J]");
    REFUSES(ds_adaptive_max_pool2d(in, 1, 1, NULL), "adaptive_max_pool2d: x is [3, 4]", "[C,H,W]");
    REFUSES(ds_conv3d(x(ds_shape(2, 1, 2, 2)), x(ds_shape(1, 2, 2, 1, 1)), NULL), "conv3d: x is ",
            "larger than the padded input in dimension 2");
    REFUSES(ds_conv3d(x(ds_shape(2, 1, 2, 2)), x(ds_shape(1, 2, 1, 1, 1)), NULL,
                      .stride = ds_shape(1, 0, 1)),
            "conv3d: stride is 0", "1 to 2147483647");
    REFUSES(ds_embedding_bag(in, ds_zeros(DS_I64, ds_shape(2)), -1, NULL),
            "embedding_bag: weight is [3, 4], indices are int64 [2]", "[B,L]");
    REFUSES(ds_embedding_bag(in, ds_zeros(DS_I64, ds_shape(2)), -1, ds_ones(DS_I64, ds_shape(1))),
            "embedding_bag: offsets[0] is 1", "0 as the first");
    REFUSES(ds_embedding_bag(in, ds_zeros(DS_I64, ds_shape(2, 1)), 3, NULL),
            "embedding_bag: padding_idx is 3", "3 rows");
    REFUSES(ds_repeat_interleave_tensor(in, ds_zeros(DS_I64, ds_shape(2)), 0),
            "repeat_interleave: repeats are int64 [2]", "int64 [3]");
    REFUSES(ds_batch_norm_with(in, (ds_batch_norm_opts){0}), "batch_norm: neither", ".training");
    REFUSES(ds_var(i), "var: x is int64", "ds_cast");
    REFUSES(ds_norm_with(in, (ds_norm_opts){.dims = ds_shape(1, 1)}), "norm: dimension 1 occurs",
            "[1, 1]");
    REFUSES(ds_index_select(in, 0, x(ds_shape(2))), "index_select: the index is float32", "int64");
    REFUSES(ds_index_add(in, 0, i, x(ds_shape(3, 4)), 1), "index_add: x is [3, 4]", "[2, 4]");
    REFUSES(ds_scatter(in, 0, labels(ds_shape(4, 5)), in), "scatter: x is [3, 4]", "[4, 5]");
    REFUSES(ds_scatter_add(in, 0, in, in), "scatter_add: ", "float32 [3, 4]");
    ((int64_t *)ds_data_mut(i))[1] = 3;
    REFUSES(ds_index_select(in, 0, i), "index_select: ", "outside 0..2");
    REFUSES(ds_scatter(x(ds_shape(3)), 0, i, x(ds_shape(2))),
            "scatter: ", "index 3 at [0, 1] is outside 0..2");
    REFUSES(ds_embedding_bag(x(ds_shape(3, 4)), labels(ds_shape(2, 2)), -1, NULL,
                             .mode = DS_BAG_MAX, .scale_grad_by_freq = true),
            "embedding_bag: .scale_grad_by_freq", "mean or sum");
    REFUSES(ds_scatter_multiply(x(ds_shape(3)), 0, i, x(ds_shape(2))), "scatter_multiply: index 3",
            "0..2");
}

static void einsums(void **state)
{
    (void)state;
    ds_tensor *in[] = {x(ds_shape(2, 3)), x(ds_shape(4, 5))};
    REFUSES(ds_einsum("ij,jk->ik", in, 2), "einsum: \"ij,jk->ik\": operand 1", "size 4");
    REFUSES(ds_einsum("ij->ik", in, 1), "einsum: \"ij->ik\": letter 1", "operands'");
    REFUSES(ds_einsum("ijk", in, 1), "einsum: \"ijk\": 3 letters", "2 dimensions");
    REFUSES(ds_einsum("i?", in, 1), "einsum: ", "unexpected '?'");
    REFUSES(ds_einsum("ij", in, 2), "einsum: ", "expected 2 operands");
    REFUSES(ds_einsum("ij,kl", in, 1), "einsum: ", "more than 1");
    REFUSES(ds_einsum("ii", in, 1), "einsum: ", "size 3");
    REFUSES(ds_einsum("", in, 0), "einsum: 0 operands", "1 to 8");
}

static void more_losses(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(3, 4)), *y = labels(ds_shape(3)), *t = x(ds_shape(4));
    ds_binary_cross_entropy_opts positive = {.pos_weight = t};
    ds_cross_entropy_opts ignore = {.ignore = true, .ignore_index = 1},
                          smooth = {.label_smoothing = 0.1};
    REFUSES(ds_nll_loss(in, labels(ds_shape(4))), "nll_loss: x is [3, 4]", "[4]");
    REFUSES(ds_nll_loss_with(in, y, smooth), "nll_loss: ", "label_smoothing");
    REFUSES(ds_huber_loss(in, in, DS_ZERO, DS_MEAN), "huber_loss: delta is 0", "more than 0");
    REFUSES(ds_smooth_l1_loss(in, in, -1, DS_MEAN), "smooth_l1_loss: beta is -1", "0 or more");
    REFUSES(ds_l1_loss_with(in, in, (ds_reduction)7), "l1_loss: ", "number 7");
    REFUSES(ds_binary_cross_entropy(ds_scale(in, 2), in), "binary_cross_entropy: ", "sigmoid");
    REFUSES(ds_binary_cross_entropy(in, t), "binary_cross_entropy: x is [3, 4]", "[4]");
    REFUSES(ds_binary_cross_entropy_with(in, in, positive), "binary_cross_entropy: ", "logits");
    positive.pos_weight = ds_require_grad(t, true);
    REFUSES(ds_binary_cross_entropy_with_logits(in, in, positive), "binary_cross_entropy_with",
            "ds_detach");
    REFUSES(ds_cross_entropy_with(in, in, ignore), "cross_entropy: ignore_index is 1", "labels");
    REFUSES(ds_cosine_similarity(in, x(ds_shape(3, 5)), 1, 0), "cosine_similarity: ", "[3, 5]");
    ((int64_t *)ds_data_mut(y))[1] = 4;
    REFUSES(ds_nll_loss(in, y), "nll_loss: ", "4");
}

static void margins(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(3, 4)), *y = labels(ds_shape(3)), *row = x(ds_shape(3)),
              *lengths = ds_full(DS_I64, ds_shape(4), 2);
    REFUSES(ds_hinge_embedding_loss(in, row, 0, DS_MEAN), "hinge_embedding_loss: ", "[3]");
    REFUSES(ds_margin_ranking_loss(in, in, in, 0, (ds_reduction)5), "margin_ranking_loss: ", "5");
    REFUSES(ds_cosine_embedding_loss(in, in, in, 0, DS_MEAN), "cosine_embedding_loss: ", "[N]");
    REFUSES(ds_soft_margin_loss(in, row, DS_MEAN), "soft_margin_loss: x is [3, 4]", "the same");
    REFUSES(ds_triplet_margin_loss(in, in, in, (ds_triplet_margin_loss_opts){.margin = -1}),
            "triplet_margin_loss: margin is -1", "above 0");
    REFUSES(ds_multi_margin_loss(in, y, (ds_multi_margin_loss_opts){.p = 3}),
            "multi_margin_loss: p is 3", "1 or 2");
    REFUSES(ds_multi_margin_loss(in, y, (ds_multi_margin_loss_opts){.weight = row}),
            "multi_margin_loss: weight is [3]", "[4]");
    REFUSES(ds_multi_margin_loss(in, row, (ds_multi_margin_loss_opts){0}),
            "multi_margin_loss: labels are float32", "int64");
    REFUSES(ds_multilabel_margin_loss(in, y, DS_MEAN), "multilabel_margin_loss: ", "[N,C]");
    REFUSES(ds_gaussian_nll_loss(in, in, ds_neg(in), (ds_gaussian_nll_loss_opts){0}),
            "gaussian_nll_loss: an element of var", "below 0");
    REFUSES(ds_poisson_nll_loss(in, row, (ds_poisson_nll_loss_opts){0}),
            "poisson_nll_loss: ", "[3]");
    REFUSES(ds_pairwise_distance(in, row, 0, 0, false), "pairwise_distance: ", "[3]");
    ds_tensor *p = x(ds_shape(5, 4, 6)), *words = ds_full(DS_I64, ds_shape(4, 2), 6);
    REFUSES(ds_ctc_loss(p, words, lengths, lengths, (ds_ctc_loss_opts){.blank = 6}),
            "ctc_loss: ", "blank is 6");
    REFUSES(ds_ctc_loss(p, words, y, lengths, (ds_ctc_loss_opts){0}),
            "ctc_loss: input_lengths are int64 [3]", "int64 [4]");
    REFUSES(ds_ctc_loss(p, words, x(ds_shape(4)), lengths, (ds_ctc_loss_opts){0}),
            "ctc_loss: input_lengths are float32", "int64 [4]");
    REFUSES(ds_ctc_loss(p, words, ds_full(DS_I64, ds_shape(4), 6), lengths, (ds_ctc_loss_opts){0}),
            "ctc_loss: sample 0 has an input of 6", "0 to 5");
    REFUSES(ds_ctc_loss(p, words, lengths, lengths, (ds_ctc_loss_opts){0}),
            "ctc_loss: label 0 of sample 0 is 6", "0 to 5");
    REFUSES(ds_ctc_loss(p, y, lengths, lengths, (ds_ctc_loss_opts){0}), "ctc_loss: targets are",
            "[8]");
}

static void places_of_images(void **state)
{
    (void)state;
    ds_tensor *in = x(ds_shape(2, 4, 6, 6)), *volume = x(ds_shape(1, 2, 3, 4, 4));
    REFUSES(ds_glu(x(ds_shape(3, 5)), 1), "glu: x is [3, 5]", "even");
    REFUSES(ds_softshrink(in, -1), "softshrink: lambda is -1", "0 or more");
    REFUSES(ds_normalize(in, 2, 4, 0), "normalize: dimension 4", "[2, 4, 6, 6]");
    REFUSES(ds_local_response_norm(in, 0), "local_response_norm: ", "at least 1");
    REFUSES(ds_alpha_dropout(in, 2, true), "alpha_dropout: p is 2", "0 to 1");
    REFUSES(ds_unflatten(in, 1, ds_shape(3, 2)), "unflatten: ", "reshape");
    REFUSES(ds_pixel_shuffle(in, 3), "pixel_shuffle: ", "factor 3");
    REFUSES(ds_pixel_unshuffle(in, 4), "pixel_unshuffle: ", "factor 4");
    REFUSES(ds_channel_shuffle(in, 3), "channel_shuffle: ", "groups 3");
    REFUSES(ds_unfold(in, 7), "unfold: a window reaches over 7 rows", "6");
    REFUSES(ds_unfold(in, 0), "unfold: kernel 0", "at least 1");
    REFUSES(ds_fold(x(ds_shape(1, 8, 3)), 3, 4, 2), "fold: x is [1, 8, 3]", "[N,C 4,6]");
    REFUSES(ds_grid_sample(in, in), "grid_sample: ", "[N,P,Q,2]");
    REFUSES(ds_affine_grid(in, 2, 2, false), "affine_grid: ", "[N,2,3]");
    REFUSES(ds_affine_grid(x(ds_shape(1, 2, 3)), (int64_t)1 << 33, (int64_t)1 << 31, false),
            "affine_grid: the output's size is [8589934592, 2147483648]", "2^31 places");
    REFUSES(ds_max_pool3d(in, ds_shape(5)), "max_pool3d: ", "over 5 of dimension 2");
    REFUSES(ds_max_pool3d(volume, ds_shape(2), .padding = ds_shape(2)), "max_pool3d: padding 2",
            "half the kernel");
    REFUSES(ds_max_pool3d(volume, {0}), "max_pool3d: kernel is 0", "1 to 2147483647");
    REFUSES(ds_avg_pool3d(volume, ds_shape(2), .dilation = ds_shape(2)), "avg_pool3d: dilation",
            "max_pool3d");
    REFUSES(ds_adaptive_avg_pool3d(volume, -1, 1, 1), "adaptive_avg_pool3d: ", "at least 0");
    REFUSES(ds_adaptive_max_pool1d(in, 2, NULL), "adaptive_max_pool1d: x is", "[C,L]");
    REFUSES(ds_adaptive_avg_pool1d(x(ds_shape(2, 3)), -1), "adaptive_avg_pool1d: ", "at least 0");
    REFUSES(ds_max_unpool(in, in, ds_shape(9, 9)), "max_unpool: indices are float32", "int64");
    REFUSES(ds_max_unpool(in, labels(ds_shape(2, 4, 6, 6)), ds_shape(9)), "max_unpool: ", "sizes");
}

static void mixture_of_experts(void **state)
{
    (void)state;
    const int64_t slot[] = {0, 2, 2, 3}, far[] = {0, 1, -1, 4}, rows[] = {3};
    ds_tensor *i = ds_from_data(DS_I64, ds_shape(2, 2), slot),
              *j = ds_from_data(DS_I64, ds_shape(2, 2), far);
    ds_tensor *a = x(ds_shape(2, 5)), *b = x(ds_shape(4, 5)), *w = x(ds_shape(2, 1));
    REFUSES(ds_gather(a, 1, x(ds_shape(2, 1))), "gather: ", "float32 [2, 1]: expected int64");
    REFUSES(ds_gather(a, 0, labels(ds_shape(1, 6))), "gather: x is [2, 5]", "[1, 6]");
    REFUSES(ds_argmax(ds_ones(DS_BOOL, ds_shape(3)), 0), "argmax: x is bool", "ds_cast");
    REFUSES(ds_gather(a, 2, labels(ds_shape(2, 1))), "gather: dimension 2", "-2 to 1");
    REFUSES(ds_gather(a, 1, j), "gather: index -1 at [1, 0]", "outside 0..4");
    REFUSES(ds_dispatch(a, i, 4), "dispatch: slot 2 of token 1", "given twice");
    REFUSES(ds_dispatch(a, j, 4), "dispatch: slot 4 of token 1", "outside of the rows");
    REFUSES(ds_dispatch(b, j, 4), "dispatch: x is [4, 5]", "slots are [2, 2]");
    REFUSES(ds_combine(a, a, NULL), "combine: ", "slots are float32");
    REFUSES(ds_combine(b, j, w), "combine: weights are float32 [2, 1]", "[2, 2] as the slots");
    REFUSES(ds_combine(a, j, NULL), "combine: slot 4", "outside of the rows");
    ds_tensor *alike[] = {b, b, b}, *other[] = {b, a, b};
    REFUSES(dsi_grouped_linear(a, i, alike, 3), "grouped_linear: begin is int64 [2, 2]", "[4]");
    i = ds_from_data(DS_I64, ds_shape(4), slot);
    REFUSES(dsi_grouped_linear(a, i, other, 3), "weight 1 is [2, 5]", "of one shape");
    REFUSES(dsi_grouped_linear(w, i, alike, 3), "grouped_linear: x is [2, 1]", "[rows, in]");
    REFUSES(dsi_grouped_linear(i, i, alike, 3), "grouped_linear: ", "int64");
    REFUSES(dsi_grouped_linear(a, i, alike, 0), "grouped_linear: 0 groups", "at least 1");
    REFUSES(ds_exchange_rows(ds_scalar(DS_F32, 1), NULL, rows, rows), "exchange_rows: ", "no rows");
    REFUSES(ds_exchange_rows(a, NULL, rows, rows), "all_to_all_rows: in is [2, 5]", "3 in all");
}

static void attention(void **state)
{
    (void)state;
    ds_tensor *q = x(ds_shape(2, 3, 4)), *mask = ds_ones(DS_BOOL, ds_shape(3, 3));
    REFUSES(ds_attention(q, x(ds_shape(2, 3, 5)), q), "attention: ", "k [2, 3, 5]");
    REFUSES(ds_attention(q, q, x(ds_shape(2, 4, 4))), "attention: ", "v [2, 4, 4]");
    REFUSES(ds_attention(x(ds_shape(4)), q, q), "attention: q is [4]", "[...,L,D]");
    REFUSES(ds_attention_qkvpacked(x(ds_shape(2, 3, 9)), 2, (ds_attention_opts){0}),
            "attention_qkvpacked: qkv is [2, 3, 9], of 2 heads", "[...,L,3E]");
    ds_attention_opts both = {.mask = mask, .causal = true},
                      wrong = {.mask = labels(ds_shape(3, 3))};
    REFUSES(ds_attention_with(q, q, q, both), "attention: ", "exclude");
    REFUSES(ds_attention_with(q, q, q, wrong), "attention: the mask is int64", "bool");
    both = (ds_attention_opts){.mask = ds_ones(DS_BOOL, ds_shape(2, 2))};
    REFUSES(ds_attention_with(q, q, q, both), "[2, 2]", "[2, 3, 3]");
}

/* NULL in, NULL out: the first operand of every row, with a message, and
 * without changing the one that there is. */
static void null_passes(void **state)
{
    (void)state;
    for (int i = 0; i < OP_CASES; i++) {
        ds_tensor *in[MAX_IN] = {NULL};
        ds_error_clear();
        if (op_cases[i].call(in)) fail_msg("%s (%s) of NULL", op_cases[i].op, op_cases[i].name);
        CHECK(ds_error());
        ds_error_clear();
        ds_fail(DS_EINVAL, "the first failure");
        CHECK(!op_cases[i].call(in));
        CHECK_ERROR("the first failure");
    }
}

/* Forward and backward with the n-th allocation failing, for every n until none
 * is left to fail: each ends as a failure with DS_ENOMEM, and leaves no
 * tensor. */
static bool survives(const Case *c, ds_dtype dtype, int64_t n)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *in[MAX_IN] = {NULL};
    for (int k = 0; k < case_inputs(c->in); k++) in[k] = case_input(c->in, k, dtype);
    dsi_cache_fail(n, false);
    ds_tensor *y = c->call(in);
    ds_status status = y ? DS_OK : ds_error_status();
    if (y && ds_requires_grad(y)) {
        ds_tensor *dy = ds_like(y, 1);
        status = dy ? ds_backward_from(y, dy) : ds_error_status();
    }
    bool reached = dsi_cache_fail(0, false) >= n;
    if (reached && status != DS_ENOMEM)
        fail_msg("%s (%s): allocation %lld failed, the status is %d: %s", c->op, c->name,
                 (long long)n, (int)status, ds_error() ? ds_error() : "no message");
    ds_error_clear();
    ds_scope_close(scope);
    return reached;
}

static void failing_allocations(void **state)
{
    (void)state;
    int64_t tensors = ds_live_tensors(), total = 0;
    for (int i = 0; i < OP_CASES; i++) {
        for (ds_dtype dtype = DS_F32; dtype <= DS_BF16; dtype++) {
            int64_t n = 1;
            while (survives(&op_cases[i], dtype, n)) n++;
            total += n - 1;
            CHECK_INT(ds_live_tensors(), tensors);
        }
    }
    CHECK(total > 12 * OP_CASES);
}

/* in: [3,4], of the test's thread. Returns the message of both failures. */
static void *thread_uses(void *in)
{
    static char message[256];
    ds_linear(x(ds_shape(2, 4)), in, NULL);
    snprintf(message, sizeof message, "%s", ds_error() ? ds_error() : "no failure");
    ds_error_clear();
    ds_cross_entropy(in, labels(ds_shape(3)));
    if (!ds_error() || !strstr(ds_error(), "cross_entropy: operands were made by two threads"))
        snprintf(message, sizeof message, "labels: %s", ds_error() ? ds_error() : "no failure");
    return message;
}

static void another_thread(void **state)
{
    (void)state;
    pthread_t thread;
    void *message;
    CHECK_INT(pthread_create(&thread, NULL, thread_uses, x(ds_shape(3, 4))), 0);
    CHECK_INT(pthread_join(thread, &message), 0);
    CHECK(!strcmp(message, "linear: operands were made by two threads: a tensor, or a module with "
                           "its parameters, is used by the thread that made it"));
}

#define IN_SCOPE(test) cmocka_unit_test_setup_teardown(test, open_scope, close_scope)

TEST_MAIN(IN_SCOPE(pointwise), IN_SCOPE(products), IN_SCOPE(convolution),
          IN_SCOPE(other_convolutions), IN_SCOPE(pooling), IN_SCOPE(softmax_and_losses),
          IN_SCOPE(normalisation), IN_SCOPE(reductions_and_indices), IN_SCOPE(shapes),
          IN_SCOPE(arrangements), IN_SCOPE(order_and_places), IN_SCOPE(einsums),
          IN_SCOPE(more_losses), IN_SCOPE(margins), IN_SCOPE(places_of_images),
          IN_SCOPE(mixture_of_experts), IN_SCOPE(attention), IN_SCOPE(null_passes),
          IN_SCOPE(another_thread), IN_SCOPE(failing_allocations))
