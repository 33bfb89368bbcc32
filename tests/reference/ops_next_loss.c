/* tests/reference/ops_next_loss.c: losses, attention and what language models
 * need, of family ops-next.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

static ds_tensor *rms_norm(OpRun *run)
{
    ds_dims rows = reference_dims(run->attrs, "normalized_shape");
    ds_tensor *x = op_input(run, "input"), *weight = op_input(run, "weight");
    /* ds_rms_norm takes the number of dimensions: their sizes are a weight's */
    if (json_object_get(run->r->json, "raises") && !weight) weight = ds_ones(ds_dtype_of(x), rows);
    double eps = op_option(run, "eps");
    if (eps == 0 && ds_dtype_of(x) == DS_BF16) eps = 0x1p-7; /* the generator's default */
    if (eps == 0 && ds_dtype_of(x) == DS_F16) eps = 0x1p-10;
    return ds_rms_norm(x, rows.n, weight, eps);
}

/* cos(position base^(-2 i / dim) + shift), [positions, dim / 2] */
static ds_tensor *rotary_table(OpRun *run, int64_t dim, double shift)
{
    ds_tensor *at = ds_cast(op_input(run, "positions"), DS_I64);
    int64_t n = ds_size(at, 0);
    const int64_t *position = ds_data(at);
    double *p = calloc((size_t)(n * dim / 2) + 1, sizeof *p);
    for (int64_t i = 0; position && i < n * (dim / 2); i++)
        p[i] = cos(
            (double)position[i / (dim / 2)] *
                pow(op_number(run, "base", 10000), -2 * (double)(i % (dim / 2)) / (double)dim) +
            shift);
    ds_tensor *t = ds_from_data(DS_F64, ds_shape(n, dim / 2), p);
    free(p);
    return ds_cast(t, ds_dtype_of(op_input(run, "input")) == DS_F64 ? DS_F64 : DS_F32);
}

static ds_tensor *rotary_embedding(OpRun *run)
{
    ds_tensor *x = op_input(run, "input");
    int64_t dim = op_int(run, "rotary_dim", ds_size(x, -1));
    return ds_rotary_embedding(x, rotary_table(run, dim, 0),
                               rotary_table(run, dim, -1.57079632679489661923),
                               op_bool(run, "interleaved", false));
}

static ds_tensor *attention(OpRun *run)
{
    ds_attention_opts o = {.mask = op_input(run, "attn_mask"),
                           .causal = op_bool(run, "is_causal", false),
                           .scale = op_option(run, "scale"),
                           .enable_gqa = op_bool(run, "enable_gqa", false)};
    return ds_attention_with(op_input(run, "query"), op_input(run, "key"), op_input(run, "value"),
                             o);
}

/* ---- losses ------------------------------------------------------------------------------------------ */

static ds_tensor *x_of(OpRun *run) { return op_input(run, "input"); }
static ds_tensor *target(OpRun *run) { return op_input(run, "target"); }

static ds_tensor *cross_entropy(OpRun *run)
{
    return ds_cross_entropy_with(x_of(run), target(run), op_classes(run));
}

static ds_tensor *nll_loss(OpRun *run)
{
    return ds_nll_loss_with(x_of(run), target(run), op_classes(run));
}

static ds_tensor *l1_loss(OpRun *run)
{
    return ds_l1_loss_with(x_of(run), target(run), op_reduction(run));
}

static ds_tensor *smooth_l1_loss(OpRun *run)
{
    return ds_smooth_l1_loss(x_of(run), target(run), op_option(run, "beta"), op_reduction(run));
}

static ds_tensor *huber_loss(OpRun *run)
{
    return ds_huber_loss(x_of(run), target(run), op_option(run, "delta"), op_reduction(run));
}

static ds_tensor *kl_div(OpRun *run)
{
    bool batchmean = !strcmp(reference_text(run->attrs, "reduction", ""), "batchmean");
    return ds_kl_div(x_of(run), target(run),
                     (ds_kl_div_opts){.reduction = batchmean ? DS_MEAN : op_reduction(run),
                                      .batchmean = batchmean,
                                      .log_target = op_bool(run, "log_target", false)});
}

static ds_binary_cross_entropy_opts binary_opts(OpRun *run)
{
    return (ds_binary_cross_entropy_opts){.weight = op_input(run, "weight"),
                                          .pos_weight = op_input(run, "pos_weight"),
                                          .reduction = op_reduction(run)};
}

static ds_tensor *binary_cross_entropy(OpRun *run)
{
    return ds_binary_cross_entropy_with(x_of(run), target(run), binary_opts(run));
}

static ds_tensor *binary_cross_entropy_with_logits(OpRun *run)
{
    return ds_binary_cross_entropy_with_logits(x_of(run), target(run), binary_opts(run));
}

static ds_tensor *cosine_similarity(OpRun *run)
{
    return ds_cosine_similarity(op_input(run, "x1"), op_input(run, "x2"),
                                (int)op_int(run, "dim", 1), op_option(run, "eps"));
}

static const OpRow rows[] = {
    {"cross_entropy", cross_entropy, "reduction ignore_index label_smoothing"},
    {"nll_loss", nll_loss, "reduction ignore_index"},
    {"l1_loss", l1_loss, "reduction"},
    {"smooth_l1_loss", smooth_l1_loss, "beta reduction"},
    {"huber_loss", huber_loss, "delta reduction"},
    {"kl_div", kl_div, "reduction log_target"},
    {"binary_cross_entropy", binary_cross_entropy, "reduction"},
    {"binary_cross_entropy_with_logits", binary_cross_entropy_with_logits, "reduction"},
    {"cosine_similarity", cosine_similarity, "dim eps"},
    {"rms_norm", rms_norm, "normalized_shape eps"},
    {"rotary_embedding", rotary_embedding, "interleaved rotary_dim base"},
    {"scaled_dot_product_attention", attention, "is_causal scale enable_gqa dropout_p"},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("loss", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
