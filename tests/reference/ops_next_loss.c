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
    return ds_rms_norm(x, rows.n, weight, op_number(run, "eps", 0));
}

/* cos(position base^(-2 i / dim) + shift), [positions, dim / 2] */
static ds_tensor *rotary_table(OpRun *run, int64_t dim, double shift)
{
    ds_tensor *at = op_input(run, "positions");
    int64_t n = ds_size(at, 0);
    const int64_t *position = ds_data(at);
    ds_tensor *t = ds_zeros(DS_F32, ds_shape(n, dim / 2));
    float *p = ds_data_mut(t);
    for (int64_t i = 0; position && p && i < ds_numel(t); i++)
        p[i] = (float)cos(
            (double)position[i / (dim / 2)] *
                pow(op_number(run, "base", 10000), -2 * (double)(i % (dim / 2)) / (double)dim) +
            shift);
    return t;
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
                           .scale = op_number(run, "scale", 0),
                           .enable_gqa = op_bool(run, "enable_gqa", false)};
    return ds_attention_with(op_input(run, "query"), op_input(run, "key"), op_input(run, "value"),
                             o);
}

static const OpRow rows[] = {
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
