/* ops/pairs.c: functions of two tensors, element by element, and of one that
 * are made of them: angles, powers, remainders, bits. 16-bit operands are
 * computed in float32, and the result is rounded once.
 *
 *     atan2   da = dy b / (a^2 + b^2), db = -dy a / (a^2 + b^2)
 *     pow     da = dy b a^(b-1), db = dy y log a; 0 where b is 0, and where a
 *             is 0 and b is not below it
 *     hypot   da = dy a / y, db = dy b / y
 *     xlogy   da = dy log b, db = dy a / b; da is 0 where a is 0 and b not above it
 *     fmod    da = dy, db = -dy trunc(a / b)
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <deepspeed/ops_math.h>

#include <math.h>

static ds_tensor *zero_beside(ds_tensor *x) { return x ? dsi_number_beside(x, 0) : NULL; }

/* Integers in float32. */
static ds_tensor *as_float(ds_tensor *x) { return dsi_is_float(x) ? x : ds_cast(x, DS_F32); }

/* Both in the dtype that they promote to, of integers float32; false with the
 * message. */
static bool pair_prepare(const char *op, ds_tensor **a, ds_tensor **b)
{
    ds_dims shape;
    if (!dsi_live_all(op, *a, *b)) return dsi_null_operand(op);
    if (dsi_promoted(*a, *b) > DS_BF16) *a = as_float(*a), *b = as_float(*b);
    return *a && *b && dsi_promote(op, a, b, dsi_promoted(*a, *b)) &&
           dsi_broadcast(op, (*a)->shape, (*b)->shape, &shape);
}

/* The gradients of operands that the node saved: dy in float32 if it is 16-bit,
 * and each result, summed to its operand's shape, rounded to that. */
typedef struct Pair {
    ds_tensor *a, *b, *dy;
} Pair;

static Pair pair_saved(dsi_node *n, ds_tensor *dy)
{
    return (Pair){dsi_upcast(dsi_saved_tensor(n, 0)), dsi_upcast(dsi_saved_tensor(n, 1)),
                  dsi_upcast(dy)};
}

static void pair_gradient(dsi_node *n, int i, const ds_tensor *dy, ds_tensor *g)
{
    ds_tensor *to = dsi_saved_tensor(n, i);
    dsi_accumulate_grad(n, i, g ? ds_cast(dsi_sum_to(g, to->shape), dy->dtype) : NULL);
}

/* y with the graph of op, which saves a, b, and if wanted y. */
static ds_tensor *pair_record(const dsi_op *op, ds_tensor *y, ds_tensor *a, ds_tensor *b,
                              bool result)
{
    dsi_node *n = dsi_record(op, y, a, b);
    dsi_save_for_backward(n, a), dsi_save_for_backward(n, b);
    if (result) dsi_save_for_backward(n, y);
    return y;
}

/* ---- powers ------------------------------------------------------------------------------------------ */

static void pow_tensors_backward(dsi_node *n, ds_tensor *dy)
{
    Pair p = pair_saved(n, dy);
    ds_tensor *none = zero_beside(p.a), *y = dsi_upcast(dsi_saved_tensor(n, 2));
    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *power = ds_pow_tensors(p.a, ds_shift(p.b, -1));
        ds_tensor *g = ds_mul(p.dy, ds_mul(p.b, power));
        pair_gradient(n, 0, dy, ds_where(ds_eq(p.b, none), none, g));
    }
    if (!dsi_needs_input_grad(n, 1)) return;
    ds_tensor *flat = ds_logical_and(ds_eq(p.a, none), ds_ge(p.b, none));
    pair_gradient(n, 1, dy, ds_mul(p.dy, ds_where(flat, none, ds_mul(y, ds_log(p.a)))));
}

const dsi_op dsi_op_pow_tensors = {"pow_tensors", pow_tensors_backward, .acquires = true};

ds_tensor *ds_pow_tensors(ds_tensor *x, ds_tensor *exponent)
{
    dsi_autocast_wide(&x, &exponent);
    if (!dsi_live_all("pow", x, exponent)) return dsi_null_operand("pow");
    if (dsi_promoted(x, exponent) == DS_BOOL)
        return dsi_refuse("pow: both operands are bool: expected numbers (ds_cast them)");
    ds_tensor *y = dsi_binary(DSI_POWER, &x, &exponent);
    return y && dsi_is_float(y) ? pair_record(&dsi_op_pow_tensors, y, x, exponent, true) : y;
}

ds_tensor *ds_exp2(ds_tensor *x)
{
    if (!dsi_live(x, "exp2")) return dsi_null_operand("exp2");
    x = as_float(x);
    return x ? ds_pow_tensors(dsi_number_beside(x, 2), x) : NULL;
}

/* ---- angles ------------------------------------------------------------------------------------------ */

static void atan2_backward(dsi_node *n, ds_tensor *dy)
{
    Pair p = pair_saved(n, dy);
    ds_tensor *by = ds_reciprocal(ds_add(ds_mul(p.a, p.a), ds_mul(p.b, p.b)));
    if (dsi_needs_input_grad(n, 0)) pair_gradient(n, 0, dy, ds_mul(p.dy, ds_mul(p.b, by)));
    if (dsi_needs_input_grad(n, 1)) pair_gradient(n, 1, dy, ds_mul(p.dy, ds_mul(ds_neg(p.a), by)));
}

const dsi_op dsi_op_atan2 = {"atan2", atan2_backward, .acquires = true};

ds_tensor *ds_atan2(ds_tensor *a, ds_tensor *b)
{
    if (!pair_prepare("atan2", &a, &b)) return NULL;
    ds_tensor *y = dsi_binary(DSI_ATAN2, &a, &b);
    return pair_record(&dsi_op_atan2, y, a, b, false);
}

static void hypot_backward(dsi_node *n, ds_tensor *dy)
{
    Pair p = pair_saved(n, dy);
    ds_tensor *y = dsi_upcast(dsi_saved_tensor(n, 2));
    if (dsi_needs_input_grad(n, 0)) pair_gradient(n, 0, dy, ds_mul(p.dy, ds_div(p.a, y)));
    if (dsi_needs_input_grad(n, 1)) pair_gradient(n, 1, dy, ds_mul(p.dy, ds_div(p.b, y)));
}

const dsi_op dsi_op_hypot = {"hypot", hypot_backward, .acquires = true};

/* The larger side times a root between 1 and sqrt 2: no square overflows. */
static ds_tensor *hypotenuse(ds_tensor *a, ds_tensor *b)
{
    a = ds_abs(a), b = ds_abs(b);
    ds_tensor *large = ds_maximum(a, b), *zero = zero_beside(large);
    ds_tensor *ratio = ds_div(ds_minimum(a, b), large);
    ds_tensor *y = ds_mul(large, ds_sqrt(ds_shift(ds_mul(ratio, ratio), 1)));
    y = ds_where(ds_eq(large, zero), zero, y);
    ds_tensor *endless = zero ? dsi_number_beside(zero, INFINITY) : NULL;
    return ds_where(ds_logical_or(ds_eq(a, endless), ds_eq(b, endless)), endless, y);
}

ds_tensor *ds_hypot(ds_tensor *a, ds_tensor *b)
{
    if (!dsi_live_all("hypot", a, b)) return dsi_null_operand("hypot");
    if (dsi_promoted(a, b) > DS_BF16)
        return dsi_refuse("hypot: operands are %s and %s: expected a floating-point one",
                          ds_dtype_name(a->dtype), ds_dtype_name(b->dtype));
    if (!pair_prepare("hypot", &a, &b)) return NULL;
    bool recording = ds_set_grad(false);
    ds_tensor *y = ds_cast(hypotenuse(dsi_upcast(a), dsi_upcast(b)), a->dtype);
    ds_set_grad(recording);
    return pair_record(&dsi_op_hypot, y, a, b, true);
}

/* ---- x log y ----------------------------------------------------------------------------------------- */

/* a log b, of one dtype, which is 0 where a is 0 and b no NaN */
static ds_tensor *times_log(ds_tensor *a, ds_tensor *b)
{
    ds_tensor *zero = zero_beside(a), *y = ds_mul(a, ds_log(b));
    return ds_where(ds_logical_and(ds_eq(a, zero), ds_eq(b, b)), zero, y);
}

static void xlogy_backward(dsi_node *n, ds_tensor *dy)
{
    Pair p = pair_saved(n, dy);
    ds_tensor *zero = zero_beside(p.a);
    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *flat = ds_logical_and(ds_eq(p.a, zero), ds_le(p.b, zero));
        pair_gradient(n, 0, dy, ds_where(flat, zero, times_log(p.dy, p.b)));
    }
    if (dsi_needs_input_grad(n, 1)) pair_gradient(n, 1, dy, ds_div(ds_mul(p.dy, p.a), p.b));
}

const dsi_op dsi_op_xlogy = {"xlogy", xlogy_backward, .acquires = true};

ds_tensor *ds_xlogy(ds_tensor *a, ds_tensor *b)
{
    if (!pair_prepare("xlogy", &a, &b)) return NULL;
    bool recording = ds_set_grad(false);
    ds_tensor *y = ds_cast(times_log(dsi_upcast(a), dsi_upcast(b)), a->dtype);
    ds_set_grad(recording);
    return pair_record(&dsi_op_xlogy, y, a, b, false);
}

/* ---- remainders -------------------------------------------------------------------------------------- */

static void fmod_backward(dsi_node *n, ds_tensor *dy)
{
    Pair p = pair_saved(n, dy);
    if (dsi_needs_input_grad(n, 0)) pair_gradient(n, 0, dy, p.dy);
    if (!dsi_needs_input_grad(n, 1)) return;
    pair_gradient(n, 1, dy, ds_mul(ds_neg(p.dy), ds_trunc(ds_div(p.a, p.b))));
}

const dsi_op dsi_op_fmod = {"fmod", fmod_backward, .acquires = true};

/* Of integers the remainder is of b's sign, and is moved to a's. */
static ds_tensor *fmod_of_integers(ds_tensor *a, ds_tensor *b)
{
    ds_dtype dtype = dsi_promoted(a, b);
    if (!(a = ds_cast(a, dtype)) || !(b = ds_cast(b, dtype))) return NULL;
    ds_tensor *rest = ds_remainder(a, b);
    if (!rest) return dsi_fail_in("fmod", ds_error_status()), NULL;
    ds_tensor *zero = zero_beside(rest);
    ds_tensor *other = ds_ne(ds_lt(a, zero_beside(a)), ds_lt(b, zero_beside(b)));
    ds_tensor *moves = ds_logical_and(ds_ne(rest, zero), other);
    return ds_where(moves, ds_sub(rest, b), rest);
}

ds_tensor *ds_fmod(ds_tensor *a, ds_tensor *b)
{
    if (!dsi_live_all("fmod", a, b)) return dsi_null_operand("fmod");
    if (dsi_promoted(a, b) > DS_BF16) return fmod_of_integers(a, b);
    if (!pair_prepare("fmod", &a, &b)) return NULL;
    bool recording = ds_set_grad(false);
    ds_tensor *rest = ds_remainder(ds_abs(a), ds_abs(b));
    ds_tensor *y = ds_where(ds_lt(a, zero_beside(a)), ds_neg(rest), rest);
    ds_set_grad(recording);
    return pair_record(&dsi_op_fmod, y, a, b, false);
}

ds_tensor *ds_frac(ds_tensor *x)
{
    if (!dsi_live(x, "frac")) return dsi_null_operand("frac");
    return dsi_want_float("frac", x) ? ds_sub(x, ds_trunc(x)) : NULL;
}

/* ---- bits -------------------------------------------------------------------------------------------- */

static bool bits_check(const char *op, ds_tensor *a, ds_tensor *b, bool bools)
{
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    ds_dtype dtype = dsi_promoted(a, b);
    if (dtype > DS_BF16 && (bools || dtype != DS_BOOL)) return true;
    return dsi_refuse("%s: operands are %s and %s: expected integers%s", op,
                      ds_dtype_name(a->dtype), ds_dtype_name(b->dtype), bools ? " or bools" : "");
}

ds_tensor *ds_bitwise_and(ds_tensor *a, ds_tensor *b)
{
    return bits_check("bitwise_and", a, b, true) ? dsi_binary(DSI_BITS_AND, &a, &b) : NULL;
}

/* a + b less what both have, once or twice: modulo 2^n of the dtype */
static ds_tensor *bits_sum(const char *op, ds_tensor *a, ds_tensor *b, double both)
{
    if (!bits_check(op, a, b, true)) return NULL;
    if (dsi_promoted(a, b) == DS_BOOL)
        return both == 1 ? ds_logical_or(a, b) : ds_logical_xor(a, b);
    ds_tensor *common = dsi_binary(DSI_BITS_AND, &a, &b);
    ds_tensor *y = common ? ds_add_scaled(ds_add(a, b), common, -both) : NULL;
    return y ? ds_cast(y, common->dtype) : NULL;
}

ds_tensor *ds_bitwise_or(ds_tensor *a, ds_tensor *b) { return bits_sum("bitwise_or", a, b, 1); }
ds_tensor *ds_bitwise_xor(ds_tensor *a, ds_tensor *b) { return bits_sum("bitwise_xor", a, b, 2); }

ds_tensor *ds_bitwise_not(ds_tensor *x)
{
    return bits_check("bitwise_not", x, x, true) ? dsi_turned(x) : NULL;
}

/* 2^places; of int64. */
static ds_tensor *power_of_two(ds_tensor *places)
{
    ds_tensor *two = places ? dsi_number_beside(places, 2) : NULL;
    return two ? dsi_binary(DSI_POWER, &two, &places) : NULL;
}

/* 2^b is 0 for a b below 0, and from 64 on. */
ds_tensor *ds_bitwise_left_shift(ds_tensor *a, ds_tensor *b)
{
    if (!bits_check("bitwise_left_shift", a, b, false)) return NULL;
    ds_dtype dtype = dsi_promoted(a, b);
    return ds_cast(ds_mul(ds_cast(ds_cast(a, dtype), DS_I64), power_of_two(ds_cast(b, DS_I64))),
                   dtype);
}

/* By two divisions, because 2^63 is no int64. By less than 0 it is as by 63. */
ds_tensor *ds_bitwise_right_shift(ds_tensor *a, ds_tensor *b)
{
    if (!bits_check("bitwise_right_shift", a, b, false)) return NULL;
    ds_dtype dtype = dsi_promoted(a, b);
    ds_tensor *x = ds_cast(ds_cast(a, dtype), DS_I64), *by = ds_cast(ds_cast(b, dtype), DS_I64);
    by = by ? ds_where(ds_lt(by, dsi_number_beside(by, 0)), dsi_number_beside(by, 63), by) : NULL;
    by = ds_clamp(by, 0, 63);
    ds_tensor *half = by ? dsi_number_beside(by, 2) : NULL;
    half = half ? dsi_binary(DSI_FLOOR_DIVIDE, &by, &half) : NULL;
    ds_tensor *first = power_of_two(half), *second = power_of_two(ds_sub(by, half));
    x = first ? dsi_binary(DSI_FLOOR_DIVIDE, &x, &first) : NULL;
    x = x && second ? dsi_binary(DSI_FLOOR_DIVIDE, &x, &second) : NULL;
    return x ? ds_cast(x, dtype) : NULL;
}
