/* tests/reference/ops_next_pointwise.c: element by element, of family ops-next;
 * and the table of promoted dtypes.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

#define UNARY(f) \
    static ds_tensor *call_##f(OpRun *run) { return ds_##f(op_input(run, "input")); }
#define BINARY(f) \
    static ds_tensor *call_##f(OpRun *run) { return ds_##f(op_input(run, "input"), other(run)); }

/* A number as Python's are: true, 2 or 2.5, which promotes as a tensor of shape
 * [] of bool, int64 or float does. */
static ds_tensor *number(const json_t *value, ds_dtype beside)
{
    if (json_is_boolean(value)) return ds_scalar(DS_BOOL, json_is_true(value));
    if (json_is_integer(value)) return ds_scalar(DS_I64, (double)json_integer_value(value));
    return ds_scalar(beside == DS_F64 ? DS_F64 : DS_F32, reference_number(value, 0));
}

/* The input, or the number, "other". */
static ds_tensor *other(OpRun *run)
{
    const json_t *value = json_object_get(run->attrs, "other");
    return value ? number(value, ds_dtype_of(op_input(run, "input"))) : op_input(run, "other");
}

UNARY(sigmoid)
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
    bool bools = a && b && (ds_dtype_of(a) == DS_BOOL || ds_dtype_of(b) == DS_BOOL);
    return alpha == 1 || bools ? ds_sub(a, b) : ds_add_scaled(a, b, -alpha);
}

/* With decimals it is a composition, in float32 for 16 bits. */
static ds_tensor *call_round(OpRun *run)
{
    double decimals = op_number(run, "decimals", 0);
    ds_tensor *x = op_input(run, "input"), *ten = ds_scalar(DS_F64, pow(10, fabs(decimals)));
    ds_dtype dtype = ds_dtype_of(x);
    if (decimals == 0) return ds_round(x);
    if (dtype == DS_F16 || dtype == DS_BF16) x = ds_cast(x, DS_F32);
    x = decimals < 0 ? ds_mul(ds_round(ds_div(x, ten)), ten)
                     : ds_div(ds_round(ds_mul(x, ten)), ten);
    return ds_cast(x, dtype);
}

static ds_tensor *call_leaky_relu(OpRun *run)
{
    return ds_leaky_relu(op_input(run, "input"), op_option(run, "negative_slope"));
}

static ds_tensor *call_elu(OpRun *run)
{
    return ds_elu(op_input(run, "input"), op_option(run, "alpha"));
}

static ds_tensor *call_celu(OpRun *run)
{
    return ds_celu(op_input(run, "input"), op_option(run, "alpha"));
}

static ds_tensor *call_softplus(OpRun *run)
{
    return ds_softplus(op_input(run, "input"), op_option(run, "beta"), op_option(run, "threshold"));
}

static ds_tensor *call_clamp(OpRun *run)
{
    ds_tensor *x = op_input(run, "input");
    if (!op_has(run, "min") && !op_has(run, "max"))
        return ds_clamp_tensors(x, op_input(run, "min"), op_input(run, "max"));
    bool real = json_is_real(json_object_get(run->attrs, "min")) ||
                json_is_real(json_object_get(run->attrs, "max"));
    if (real && ds_dtype_of(x) >= DS_I64) x = ds_cast(x, DS_F32); /* as Python's 1.0 does */
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
    static const struct {
        const char *name;
        ds_tensor *(*call)(ds_tensor *a, ds_tensor *b);
    } calls[] = {{"add", ds_add},
                 {"sub", ds_sub},
                 {"mul", ds_mul},
                 {"div", ds_div},
                 {"maximum", ds_maximum},
                 {"minimum", ds_minimum},
                 {"floor_divide", ds_floor_divide},
                 {"remainder", ds_remainder},
                 {"eq", ds_eq},
                 {"ne", ds_ne},
                 {"lt", ds_lt},
                 {"le", ds_le},
                 {"gt", ds_gt},
                 {"ge", ds_ge},
                 {"logical_and", ds_logical_and},
                 {"logical_or", ds_logical_or},
                 {"logical_xor", ds_logical_xor},
                 {"matmul", ds_matmul}};
    if (!strcmp(op, "cat")) return ds_cat((ds_tensor *[]){a, b}, 2, 0);
    if (!strcmp(op, "stack")) return ds_stack((ds_tensor *[]){a, b}, 2, 0);
    if (!strcmp(op, "where")) {
        const uint8_t condition[] = {true, false};
        return ds_where(ds_from_data(DS_BOOL, ds_shape(2), condition), a, b);
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(op, calls[i].name)) return calls[i].call(a, b);
    return NULL;
}

static void promotion_compare(OpRun *run, const char *what, ds_tensor *y, const json_t *want)
{
    const char *got = y ? ds_dtype_name(ds_dtype_of(y)) : "raises";
    if (strcmp(got, json_string_value(want)) != 0)
        reference_fail(run->r, "%s: got %s (%s), want %s", what, got,
                       ds_error() ? ds_error() : "no message", json_string_value(want));
    ds_error_clear();
}

/* One row of the table: the dtypes of op(row, column) for all columns, which
 * are dtypes or the numbers True, 2, 2.5. */
static void promotion_row(OpRun *run, const char *op, const char *kind, const char *row,
                          const json_t *results)
{
    size_t i;
    json_t *want;
    bool numbers = !strncmp(kind, "scalar", strlen("scalar"));
    const json_t *columns = json_object_get(run->r->json, numbers ? "scalars" : "columns");
    json_array_foreach(results, i, want)
    {
        const char *column = json_string_value(json_array_get(columns, i));
        char what[100];
        snprintf(what, sizeof what, "%s %s of %s and %s", op, kind, row, column);
        bool left = !strcmp(kind, "scalar_left");
        ds_tensor *a = ones(row, !strcmp(kind, "zero_dim_left")), *b;
        if (numbers)
            b = ds_scalar(!strcmp(column, "bool")  ? DS_BOOL
                          : !strcmp(column, "int") ? DS_I64
                                                   : DS_F32,
                          column[0] == 'f' ? 2.5 : 2);
        else
            b = ones(column, !strcmp(kind, "zero_dim"));
        promotion_compare(run, what, left ? promoting_call(op, b, a) : promoting_call(op, a, b),
                          want);
    }
}

static ds_tensor *unary_call(const char *op, ds_tensor *x)
{
    static const struct {
        const char *name;
        ds_tensor *(*call)(ds_tensor *x);
    } calls[] = {{"sum", ds_sum},
                 {"prod", ds_prod},
                 {"mean", ds_mean},
                 {"max", ds_amax},
                 {"std", ds_std},
                 {"sin", ds_sin},
                 {"rsqrt", ds_rsqrt},
                 {"floor", ds_floor},
                 {"sign", ds_sign},
                 {"neg", ds_neg},
                 {"logical_not", ds_logical_not}};
    if (!strcmp(op, "argmax")) return ds_argmax(x, 0);
    if (!strcmp(op, "cumsum")) return ds_cumsum(x, 0);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(op, calls[i].name)) return calls[i].call(x);
    return NULL;
}

/* matmul refuses integers, of which PyTorch makes products, and so it is left
 * out. */
static ds_tensor *call_promotion(OpRun *run)
{
    const char *op, *kind, *row;
    json_t *kinds, *rows, *results;
    json_object_foreach(json_object_get(run->r->json, "table"), op, kinds)
        json_object_foreach(kinds, kind, rows)
    {
        if (!strcmp(op, "matmul")) continue;
        json_object_foreach(rows, row, results) promotion_row(run, op, kind, row, results);
    }
    json_object_foreach(json_object_get(run->r->json, "unary"), op, rows)
        json_object_foreach(rows, row, results)
    {
        char what[100];
        snprintf(what, sizeof what, "%s of %s", op, row);
        promotion_compare(run, what, unary_call(op, ones(row, false)), results);
    }
    return NULL;
}

static const OpRow rows[] = {
    {"sigmoid", call_sigmoid, ""},
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
    {"logical_and", call_logical_and, "other"},
    {"logical_or", call_logical_or, "other"},
    {"logical_xor", call_logical_xor, "other"},
    {"logical_not", call_logical_not, ""},
    {"maximum", call_maximum, "other"},
    {"minimum", call_minimum, "other"},
    {"clamp", call_clamp, "min max"},
    {"masked_fill", call_masked_fill, "value"},
    {"add", call_add, "alpha other"},
    {"sub", call_sub, "alpha other"},
    {"mul", call_mul, "other"},
    {"floor_divide", call_floor_divide, "other"},
    {"remainder", call_remainder, "other"},
    {"promotion", call_promotion, ""},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("pointwise", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
