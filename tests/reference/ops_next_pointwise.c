/* tests/reference/ops_next_pointwise.c: element by element, of family ops-next;
 * and the table of promoted dtypes.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

#define UNARY(f) \
    static ds_tensor *call_##f(OpRun *run) { return ds_##f(op_input(run, "input")); }
#define BINARY(f) \
    static ds_tensor *call_##f(OpRun *run) { return ds_##f(op_input(run, "input"), other(run)); }

/* The input, or the number, "other". */
static ds_tensor *other(OpRun *run)
{
    ds_tensor *b = op_input(run, "other");
    return op_has(run, "other") ? ds_scalar(DS_F32, op_number(run, "other", 0)) : b;
}

UNARY(silu)
UNARY(sin)
UNARY(cos)
UNARY(erf)
UNARY(expm1)
UNARY(log1p)
UNARY(rsqrt)
UNARY(floor)
UNARY(ceil)
UNARY(sign)
UNARY(hardswish)
UNARY(hardsigmoid)
UNARY(mish)
UNARY(selu)
UNARY(logsigmoid)
UNARY(logical_not)
BINARY(eq)
BINARY(ne)
BINARY(lt)
BINARY(le)
BINARY(gt)
BINARY(ge)
BINARY(logical_and)
BINARY(logical_or)
BINARY(logical_xor)
BINARY(maximum)
BINARY(minimum)
BINARY(mul)
BINARY(floor_divide)
BINARY(remainder)

static ds_tensor *call_add(OpRun *run)
{
    double alpha = op_number(run, "alpha", 1);
    ds_tensor *a = op_input(run, "input"), *b = other(run);
    return alpha == 1 ? ds_add(a, b) : ds_add_scaled(a, b, alpha);
}

static ds_tensor *call_sub(OpRun *run)
{
    double alpha = op_number(run, "alpha", 1);
    ds_tensor *a = op_input(run, "input"), *b = other(run);
    return alpha == 1 ? ds_sub(a, b) : ds_add_scaled(a, b, -alpha);
}

/* With decimals it is a composition. */
static ds_tensor *call_round(OpRun *run)
{
    double ten = pow(10, op_number(run, "decimals", 0));
    ds_tensor *x = op_input(run, "input");
    if (ten == 1) return ds_round(x);
    if (ten < 1) return ds_scale(ds_round(ds_div(x, ds_scalar(DS_F32, 1 / ten))), 1 / ten);
    return ds_div(ds_round(ds_scale(x, ten)), ds_scalar(DS_F32, ten));
}

static ds_tensor *call_leaky_relu(OpRun *run)
{
    return ds_leaky_relu(op_input(run, "input"), op_number(run, "negative_slope", 0));
}

static ds_tensor *call_elu(OpRun *run)
{
    return ds_elu(op_input(run, "input"), op_number(run, "alpha", 0));
}

static ds_tensor *call_celu(OpRun *run)
{
    return ds_celu(op_input(run, "input"), op_number(run, "alpha", 0));
}

static ds_tensor *call_softplus(OpRun *run)
{
    return ds_softplus(op_input(run, "input"), op_number(run, "beta", 0),
                       op_number(run, "threshold", 0));
}

static ds_tensor *call_clamp(OpRun *run)
{
    ds_tensor *x = op_input(run, "input");
    if (!op_has(run, "min") && !op_has(run, "max"))
        return ds_clamp_tensors(x, op_input(run, "min"), op_input(run, "max"));
    return ds_clamp(x, op_number(run, "min", -INFINITY), op_number(run, "max", INFINITY));
}

static ds_tensor *call_masked_fill(OpRun *run)
{
    return ds_masked_fill(op_input(run, "input"), op_input(run, "mask"),
                          op_number(run, "value", 0));
}

/* ---- promotion --------------------------------------------------------------------------------------- */

static ds_dtype dtype_named(const char *name)
{
    for (int d = 0; d < 10; d++)
        if (!strcmp(ds_dtype_name((ds_dtype)d), name)) return (ds_dtype)d;
    return DS_F64;
}

static ds_tensor *ones(const char *dtype, bool scalar)
{
    return ds_ones(dtype_named(dtype), scalar ? (ds_dims){0} : ds_shape(2));
}

static ds_tensor *promoting_call(const char *op, ds_tensor *a, ds_tensor *b)
{
    if (!strcmp(op, "add")) return ds_add(a, b);
    if (!strcmp(op, "mul")) return ds_mul(a, b);
    if (!strcmp(op, "div")) return ds_div(a, b);
    if (!strcmp(op, "cat")) return ds_cat((ds_tensor *[]){a, b}, 2, 0);
    if (!strcmp(op, "where")) {
        const uint8_t condition[] = {true, false};
        return ds_where(ds_from_data(DS_BOOL, ds_shape(2), condition), a, b);
    }
    return NULL;
}

/* One row of the table: the dtypes of op(row, column) for all columns. */
static void promotion_row(OpRun *run, const char *op, const char *kind, const char *row,
                          const json_t *results)
{
    size_t i;
    json_t *want;
    const json_t *columns = json_object_get(run->r->json, "columns");
    json_array_foreach(results, i, want)
    {
        const char *column = json_string_value(json_array_get(columns, i));
        ds_tensor *a = ones(row, !strcmp(kind, "zero_dim_left")),
                  *b = ones(column, !strcmp(kind, "zero_dim"));
        ds_tensor *y = promoting_call(op, a, b);
        const char *got = y ? ds_dtype_name(ds_dtype_of(y)) : ds_error();
        if (strcmp(got, json_string_value(want)) != 0)
            reference_fail(run->r, "%s %s of %s and %s: got %s, want %s", op, kind, row, column,
                           got, json_string_value(want));
    }
}

/* Of tensors. Numbers are arguments of other functions here (ds_scale), and
 * matmul refuses what PyTorch refuses, and integers. */
static ds_tensor *call_promotion(OpRun *run)
{
    const char *op, *kind, *row;
    json_t *kinds, *rows, *results;
    json_object_foreach(json_object_get(run->r->json, "table"), op, kinds)
        json_object_foreach(kinds, kind, rows)
    {
        if (!strcmp(op, "matmul") || !strncmp(kind, "scalar", strlen("scalar"))) continue;
        json_object_foreach(rows, row, results) promotion_row(run, op, kind, row, results);
    }
    return NULL;
}

static const OpRow rows[] = {
    {"silu", call_silu, ""},
    {"sin", call_sin, ""},
    {"cos", call_cos, ""},
    {"erf", call_erf, ""},
    {"expm1", call_expm1, ""},
    {"log1p", call_log1p, ""},
    {"rsqrt", call_rsqrt, ""},
    {"floor", call_floor, ""},
    {"ceil", call_ceil, ""},
    {"round", call_round, "decimals"},
    {"sign", call_sign, ""},
    {"leaky_relu", call_leaky_relu, "negative_slope"},
    {"elu", call_elu, "alpha"},
    {"celu", call_celu, "alpha"},
    {"selu", call_selu, ""},
    {"softplus", call_softplus, "beta threshold"},
    {"logsigmoid", call_logsigmoid, ""},
    {"hardswish", call_hardswish, ""},
    {"hardsigmoid", call_hardsigmoid, ""},
    {"mish", call_mish, ""},
    {"eq", call_eq, "other"},
    {"ne", call_ne, "other"},
    {"lt", call_lt, "other"},
    {"le", call_le, "other"},
    {"gt", call_gt, "other"},
    {"ge", call_ge, "other"},
    {"logical_and", call_logical_and, ""},
    {"logical_or", call_logical_or, ""},
    {"logical_xor", call_logical_xor, ""},
    {"logical_not", call_logical_not, ""},
    {"maximum", call_maximum, ""},
    {"minimum", call_minimum, ""},
    {"clamp", call_clamp, "min max"},
    {"masked_fill", call_masked_fill, "value"},
    {"add", call_add, "alpha"},
    {"sub", call_sub, "alpha"},
    {"mul", call_mul, ""},
    {"floor_divide", call_floor_divide, ""},
    {"remainder", call_remainder, ""},
    {"promotion", call_promotion, ""},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("pointwise", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
