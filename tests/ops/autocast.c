/* tests/ops/autocast.c: which dtype each op computes in under ds_set_autocast
 * (PyTorch's list for CUDA, ATen/autocast_mode.h), and that it is the op of
 * cast operands, forward and backward, also in an activation checkpoint.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <deepspeed/ops_math.h>

typedef ds_tensor *Call(ds_tensor **in);

typedef struct Row {
    const char *op;
    Call *call;
    enum { LOW, WIDE, KEEPS } kind;
    ds_dims shape[4];
} Row;

#define CALL(name, ...) \
    static ds_tensor *name(ds_tensor **in) { return __VA_ARGS__; }

CALL(matmul, ds_matmul(in[0], in[1]))
CALL(linear, ds_linear(in[0], in[1], in[2]))
CALL(addmm, ds_addmm(in[2], in[0], in[1]))
CALL(einsum, ds_einsum("ij,jk->ik", in, 2))
CALL(bilinear, ds_bilinear(in[0], in[1], in[2], NULL))
CALL(conv1d, ds_conv1d(in[0], in[1], in[2]))
CALL(conv2d, ds_conv2d(in[0], in[1], in[2], .padding = 1))
CALL(conv3d, ds_conv3d(in[0], in[1], in[2]))
CALL(transpose1d, ds_conv_transpose1d(in[0], in[1], in[2]))
CALL(transpose2d, ds_conv_transpose2d(in[0], in[1], in[2]))
CALL(transpose3d, ds_conv_transpose3d(in[0], in[1], in[2]))
CALL(attention, ds_attention(in[0], in[1], in[2]))
CALL(learned_mask, ds_attention_with(in[0], in[1], in[2], (ds_attention_opts){.mask = in[3]}))
CALL(packed, ds_attention_qkvpacked(in[0], 2, (ds_attention_opts){.causal = true}))
CALL(prelu, ds_prelu(in[0], in[1]))
CALL(softmax, ds_softmax(in[0], -1))
CALL(log_softmax, ds_log_softmax(in[0], 0))
CALL(layer_norm, ds_layer_norm(in[0], 1, in[1], in[2], 0))
CALL(rms_norm, ds_rms_norm(in[0], 1, in[1], 0))
CALL(group_norm, ds_group_norm(in[0], 2, in[1], in[2], 0))
CALL(mse, ds_mse_loss(in[0], in[1]))
CALL(l1, ds_l1_loss(in[0], in[1]))
CALL(huber, ds_huber_loss(in[0], in[1], 0, DS_SUM))
CALL(smooth, ds_smooth_l1_loss(in[0], in[1], 0, DS_MEAN))
CALL(kl, ds_kl_div(in[0], in[1], (ds_kl_div_opts){.log_target = true}))
CALL(logits, ds_binary_cross_entropy_with_logits(in[0], in[1], (ds_binary_cross_entropy_opts){0}))
CALL(entropy, ds_cross_entropy(in[0], ds_zeros(DS_I64, ds_shape(4))))
CALL(soft_entropy, ds_cross_entropy(in[0], in[1]))
CALL(nll, ds_nll_loss(in[0], ds_zeros(DS_I64, ds_shape(4))))
CALL(cosine, ds_cosine_similarity(in[0], in[1], 1, 0))
CALL(triplet, ds_triplet_margin_loss(in[0], in[1], in[2], (ds_triplet_margin_loss_opts){0}))
CALL(soft_margin, ds_soft_margin_loss(in[0], ds_ones(DS_I64, ds_shape(4, 6)), DS_MEAN))
CALL(sum, ds_sum_with(in[0], (ds_reduce_opts){.dims = ds_shape(0)}))
CALL(prod, ds_prod_with(in[0], (ds_reduce_opts){.dims = ds_shape(0)}))
CALL(cumsum, ds_cumsum(in[0], 0))
CALL(norm, ds_norm(in[0]))
CALL(logsumexp, ds_logsumexp(in[0], (ds_reduce_opts){.dims = ds_shape(1)}))
CALL(exponential, ds_exp(in[0]))
CALL(expm1_, ds_expm1(in[0]))
CALL(power, ds_pow(in[0], 2))
CALL(softplus, ds_softplus(in[0], 0, 0))
CALL(interpolate, ds_interpolate(in[0], .scale_factor = 2))
CALL(area, ds_interpolate(in[0], .size = ds_shape(2), .mode = DS_AREA))
CALL(normalize, ds_normalize(in[0], 0, 1, 0))
CALL(softmin, ds_softmin(in[0], 1))
CALL(distance, ds_pairwise_distance(in[0], in[1], 0, 0, false))
CALL(response, ds_local_response_norm(in[0], 2))
CALL(soft_labels, ds_multilabel_soft_margin_loss(in[0], in[1], NULL, DS_MEAN))
CALL(grid, ds_grid_sample(in[0], in[1]))
CALL(reciprocal, ds_reciprocal(in[0]))
CALL(powers, ds_pow_tensors(ds_abs(in[0]), in[1]))
CALL(asin_, ds_asin(in[0]))
CALL(atan_, ds_atan(in[0]))
CALL(cdist, ds_cdist(in[0], in[1], 2))
CALL(tangent, ds_tan(in[0]))
CALL(sinh_, ds_sinh(in[0]))
CALL(cosh_, ds_cosh(in[0]))
CALL(log2_, ds_log2(in[0]))
CALL(dot, ds_dot(in[0], in[1]))
CALL(trace, ds_trace(in[0]))
CALL(logaddexp, ds_logaddexp(in[0], in[1]))
CALL(relu, ds_relu(in[0]))
CALL(gelu, ds_gelu(in[0]))
CALL(tanh_, ds_tanh(in[0]))
CALL(add, ds_add(in[0], in[1]))
CALL(mean, ds_mean(in[0]))
CALL(max_pool, ds_max_pool2d(in[0], 2))
CALL(batch_norm, ds_batch_norm_with(in[0], (ds_batch_norm_opts){.training = true}))

#define M \
    { \
        2, { 4, 6 } \
    }
#define IMG \
    { \
        4, { 2, 3, 4, 4 } \
    }
static const Row rows[] = {
    {"matmul", matmul, LOW, {{2, {4, 6}}, {2, {6, 3}}}},
    {"linear", linear, LOW, {{2, {4, 6}}, {2, {3, 6}}, {1, {3}}}},
    {"addmm", addmm, LOW, {{2, {4, 6}}, {2, {6, 3}}, {1, {3}}}},
    {"einsum", einsum, LOW, {{2, {4, 6}}, {2, {6, 3}}}},
    {"bilinear", bilinear, WIDE, {{2, {4, 6}}, {2, {4, 2}}, {3, {3, 6, 2}}}},
    {"conv1d", conv1d, LOW, {{3, {2, 3, 5}}, {3, {4, 3, 2}}, {1, {4}}}},
    {"conv2d", conv2d, LOW, {IMG, {4, {5, 3, 3, 3}}, {1, {5}}}},
    {"conv3d", conv3d, LOW, {{5, {1, 2, 3, 3, 3}}, {5, {2, 2, 2, 2, 2}}, {1, {2}}}},
    {"conv_transpose1d", transpose1d, LOW, {{3, {2, 3, 5}}, {3, {3, 4, 2}}, {1, {4}}}},
    {"conv_transpose2d", transpose2d, LOW, {IMG, {4, {3, 2, 2, 2}}, {1, {2}}}},
    {"conv_transpose3d", transpose3d, LOW, {{5, {1, 2, 2, 3, 3}}, {5, {2, 3, 2, 1, 2}}, {1, {3}}}},
    {"attention", attention, LOW, {{3, {2, 4, 8}}, {3, {2, 5, 8}}, {3, {2, 5, 8}}}},
    {"attention, learned mask",
     learned_mask,
     LOW,
     {{3, {2, 4, 8}}, {3, {2, 4, 8}}, {3, {2, 4, 8}}, {2, {4, 4}}}},
    {"attention_qkvpacked", packed, LOW, {{3, {2, 4, 24}}}},
    {"prelu", prelu, LOW, {M, {1, {6}}}},
    {"softmax", softmax, WIDE, {M}},
    {"log_softmax", log_softmax, WIDE, {M}},
    {"layer_norm", layer_norm, WIDE, {M, {1, {6}}, {1, {6}}}},
    {"rms_norm", rms_norm, WIDE, {M, {1, {6}}}},
    {"group_norm", group_norm, WIDE, {M, {1, {6}}, {1, {6}}}},
    {"mse_loss", mse, WIDE, {M, M}},
    {"l1_loss", l1, WIDE, {M, M}},
    {"huber_loss", huber, WIDE, {M, M}},
    {"smooth_l1_loss", smooth, WIDE, {M, M}},
    {"kl_div", kl, WIDE, {M, M}},
    {"binary_cross_entropy_with_logits", logits, WIDE, {M, M}},
    {"cross_entropy", entropy, WIDE, {M}},
    {"cross_entropy, soft", soft_entropy, WIDE, {M, M}},
    {"nll_loss", nll, WIDE, {M}},
    {"cosine_similarity", cosine, WIDE, {M, M}},
    {"triplet_margin_loss", triplet, WIDE, {M, M, M}},
    {"soft_margin_loss", soft_margin, WIDE, {M}},
    {"sum", sum, WIDE, {M}},
    {"prod", prod, WIDE, {M}},
    {"cumsum", cumsum, WIDE, {M}},
    {"norm", norm, WIDE, {M}},
    {"logsumexp", logsumexp, WIDE, {M}},
    {"exp", exponential, WIDE, {M}},
    {"expm1", expm1_, WIDE, {M}},
    {"pow", power, WIDE, {M}},
    {"softplus", softplus, WIDE, {M}},
    {"interpolate", interpolate, WIDE, {IMG}},
    {"interpolate, area", area, KEEPS, {IMG}},
    {"normalize", normalize, WIDE, {M}},
    {"softmin", softmin, WIDE, {M}},
    {"pairwise_distance", distance, WIDE, {M, M}},
    {"local_response_norm", response, WIDE, {IMG}},
    {"multilabel_soft_margin_loss", soft_labels, WIDE, {M, M}},
    {"grid_sample", grid, KEEPS, {IMG, {4, {2, 3, 3, 2}}}},
    {"reciprocal", reciprocal, WIDE, {M}},
    {"pow_tensors", powers, WIDE, {M, M}},
    {"asin", asin_, WIDE, {M}},
    {"atan", atan_, KEEPS, {M}},
    {"cdist", cdist, WIDE, {M, M}},
    {"tan", tangent, WIDE, {M}},
    {"sinh", sinh_, WIDE, {M}},
    {"cosh", cosh_, WIDE, {M}},
    {"log2", log2_, WIDE, {M}},
    {"dot", dot, KEEPS, {{1, {6}}, {1, {6}}}},
    {"trace", trace, KEEPS, {M}},
    {"logaddexp", logaddexp, KEEPS, {M, M}},
    {"relu", relu, KEEPS, {M}},
    {"gelu", gelu, KEEPS, {M}},
    {"tanh", tanh_, KEEPS, {M}},
    {"add", add, KEEPS, {M, M}},
    {"mean", mean, KEEPS, {M}},
    {"max_pool2d", max_pool, KEEPS, {IMG}},
    {"batch_norm", batch_norm, KEEPS, {M}},
};
#define ROWS ((int)(sizeof rows / sizeof *rows))

static bool same_bits(ds_tensor *a, ds_tensor *b)
{
    return a && b && ds_dtype_of(a) == ds_dtype_of(b) && ds_numel(a) == ds_numel(b) &&
           !memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(ds_dtype_of(a)));
}

/* The op under autocast of operands of `given`, and the op without it of
 * operands that were cast before: the same bits of the result and of all
 * gradients. */
static void check_row(const Row *row, ds_dtype given, ds_dtype low)
{
    ds_dtype computes = row->kind == LOW ? low : row->kind == WIDE ? DS_F32 : given;
    ds_tensor *leaf[2][4] = {{NULL}}, *y[2];
    for (int with = 0; with < 2; with++) {
        ds_tensor *in[4] = {NULL};
        ds_seed(5);
        for (int i = 0; i < 4 && row->shape[i].n; i++) {
            leaf[with][i] = ds_require_grad(ds_cast(ds_randn(DS_F32, row->shape[i]), given), true);
            in[i] = with ? leaf[with][i] : ds_cast(leaf[with][i], computes);
        }
        ds_set_autocast(with ? low : DS_F32);
        y[with] = row->call(in);
        /* y is differentiated under autocast too */
        ds_tensor *dy = y[with]
                            ? ds_cast(ds_ones(DS_F32, ds_shape_of(y[with])), ds_dtype_of(y[with]))
                            : NULL;
        CHECK_INT(ds_backward_from(y[with], dy), DS_OK);
        ds_set_autocast(DS_F32);
    }
    if (!same_bits(y[1], y[0]) || ds_dtype_of(y[1]) != computes)
        fail_msg("%s of %s is %s: expected that of %s", row->op, ds_dtype_name(given),
                 y[1] ? ds_dtype_name(ds_dtype_of(y[1])) : ds_error(), ds_dtype_name(computes));
    for (int i = 0; i < 4 && leaf[0][i]; i++)
        if (!same_bits(ds_grad(leaf[1][i]), ds_grad(leaf[0][i])))
            fail_msg("%s of %s: gradient %d differs", row->op, ds_dtype_name(given), i);
}

static void each_op(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        ds_scope *scope = ds_scope_open();
        check_row(&rows[i], DS_F32, DS_BF16);
        check_row(&rows[i], DS_F32, DS_F16);
        check_row(&rows[i], DS_BF16, DS_BF16);
        ds_scope_close(scope);
    }
}

/* float64 and integers stay; a wrong dtype is refused, and changes nothing. */
static void others_stay(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_autocast(DS_BF16), DS_F32);
    ds_tensor *x = ds_ones(DS_F64, ds_shape(2, 2));
    CHECK_INT(ds_dtype_of(ds_matmul(x, x)), DS_F64);
    CHECK_INT(ds_dtype_of(ds_softmax(x, 0)), DS_F64);
    CHECK_INT(ds_dtype_of(ds_sum(ds_ones(DS_I32, ds_shape(2)))), DS_I64);
    /* of operands of two dtypes the wider one */
    ds_tensor *image = ds_ones(DS_F32, ds_shape(1, 1, 2, 2)),
              *grid = ds_zeros(DS_BF16, ds_shape(1, 1, 1, 2));
    CHECK_INT(ds_dtype_of(ds_grid_sample(image, grid)), DS_F32);
    CHECK_INT(ds_set_autocast(DS_I64), DS_BF16);
    CHECK_ERROR("autocast: int64");
    CHECK_INT(ds_set_autocast(DS_F32), DS_BF16);
    ds_scope_close(scope);
}

/* ---- a model ----------------------------------------------------------------------------------------- */

static ds_tensor *block(void *arg, ds_tensor **in, int n)
{
    ds_tensor **w = arg;
    (void)n;
    ds_tensor *h = ds_gelu(ds_linear(ds_layer_norm(in[0], 1, NULL, NULL, 0), w[0], NULL));
    return ds_add(in[0], ds_linear(h, w[1], NULL));
}

/* Residuals are float32, and so are gradients; a part that is computed again
 * has the same bits, though backward runs without autocast. */
static void checkpoints(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *grad[2][2];
    for (int again = 0; again < 2; again++) {
        ds_seed(9);
        ds_tensor *x = ds_randn(DS_F32, ds_shape(4, 8)), *w[2];
        for (int i = 0; i < 2; i++) w[i] = ds_require_grad(ds_randn(DS_F32, ds_shape(8, 8)), true);
        ds_set_autocast(DS_BF16);
        ds_tensor *y = again ? ds_checkpoint(block, w, &x, 1) : block(w, &x, 1);
        ds_tensor *loss = ds_mse_loss(y, x);
        ds_set_autocast(DS_F32);
        CHECK_INT(ds_dtype_of(y), DS_F32);
        CHECK_INT(ds_dtype_of(loss), DS_F32);
        CHECK_INT(ds_backward(loss), DS_OK);
        for (int i = 0; i < 2; i++) grad[again][i] = ds_grad(w[i]);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_INT(ds_dtype_of(grad[0][i]), DS_F32);
        CHECK(same_bits(grad[0][i], grad[1][i]));
    }
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(each_op), cmocka_unit_test(others_stay), cmocka_unit_test(checkpoints))
