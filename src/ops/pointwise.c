/* ops/pointwise.c: element by element, with broadcasting as in numpy. A result
 * has the strides of an operand of its own shape, so that a sequence of
 * pointwise ops on a channels_last tensor stays channels_last and reads
 * contiguous memory. The gradient of a broadcast operand is summed over the
 * repeated dimensions (dsi_sum_to); 16-bit products are summed in float32 and
 * rounded once.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <math.h>

/* ---- two operands ------------------------------------------------------------------------------------ */

typedef struct Binary {
    double alpha;
    ds_dims a, b;   /* shapes of the operands */
    ds_dtype dtype; /* add: of the operands */
} Binary;

/* Brings a and b to one device and to the dtype that they promote to, and
 * finds the shape they broadcast to; false with the message. *a and *b become
 * the converted operands, whose graph leads to the given ones. dsi_acquire is
 * last, since conversions make the tensors that are read. */
static bool binary_prepare(const char *op, ds_tensor **a, ds_tensor **b, ds_dims *shape)
{
    return dsi_promote(op, a, b, dsi_promoted(*a, *b)) &&
           dsi_broadcast(op, (*a)->shape, (*b)->shape, shape) && dsi_acquire(*a, *b);
}

/* A tensor of `shape` with the strides of an operand that has that shape. The
 * first operand decides if both have it; row-major if neither has. */
static ds_tensor *new_binary(const ds_tensor *a, const ds_tensor *b, ds_dims shape)
{
    if (dsi_same_shape(a->shape, shape)) return dsi_new_like(a);
    if (dsi_same_shape(b->shape, shape)) return dsi_new_like(b);
    return dsi_new(a, shape);
}

/* y = how(a, b) of operands that were prepared. An operand is expanded by
 * strides of 0, so nothing is copied. alpha is the factor of b where the op
 * has one. */
static ds_tensor *binary_run(dsi_binary_op how, double alpha, const ds_tensor *a,
                             const ds_tensor *b, ds_dims shape)
{
    ds_tensor *y = new_binary(a, b, shape);
    return dsi_result_if(
        dsi_run_op(y, binary, how, alpha, dsi_v_expand(a, shape), dsi_v_expand(b, shape), dsi_v(y)),
        y);
}

/* Of integers and bools, in int64, rounded to the dtype they promote to: so
 * each wraps around, and a bool is whether the result is not 0. A number, which
 * may be of a wider dtype, wraps around before. */
static ds_tensor *binary_of_integers(const char *op, dsi_binary_op how, double alpha, ds_tensor *a,
                                     ds_tensor *b)
{
    ds_dims shape;
    ds_dtype dtype = dsi_promoted(a, b);
    if (a && !a->shape.n) a = ds_cast(a, dtype);
    if (b && !b->shape.n) b = ds_cast(b, dtype);
    if (!a || !b || !dsi_promote(op, &a, &b, DS_I64) ||
        !dsi_broadcast(op, a->shape, b->shape, &shape) || !dsi_acquire(a, b))
        return NULL;
    return ds_cast(binary_run(how, alpha, a, b, shape), dtype);
}

ds_tensor *dsi_binary(dsi_binary_op how, ds_tensor **a, ds_tensor **b)
{
    const char *op = dsi_binary_name(how);
    ds_dims shape;
    if (!dsi_live_all(op, *a, *b)) return dsi_null_operand(op);
    if (dsi_promoted(*a, *b) > DS_BF16) return binary_of_integers(op, how, 1, *a, *b);
    return binary_prepare(op, a, b, &shape) ? binary_run(how, 1, *a, *b, shape) : NULL;
}

/* da = dy, db = alpha dy, each summed to the operand's shape. Nothing is saved. */
static void add_backward(dsi_node *n, ds_tensor *dy)
{
    const Binary *o = dsi_attr(n);
    if (dsi_needs_input_grad(n, 0))
        dsi_accumulate_grad(n, 0, ds_cast(dsi_sum_to(dy, o->a), o->dtype));
    if (!dsi_needs_input_grad(n, 1)) return;
    ds_tensor *g = o->alpha == 1 ? dy : ds_scale(dsi_upcast(dy), o->alpha);
    dsi_accumulate_grad(n, 1, ds_cast(dsi_sum_to(g, o->b), o->dtype));
}

const dsi_op dsi_op_add = {.name = "add", .backward = add_backward};

void dsi_record_add(ds_tensor *y, ds_tensor *a, ds_tensor *b, double alpha)
{
    dsi_node *n = dsi_record(&dsi_op_add, y, a, b);
    if (n) dsi_set_attr(n, &(Binary){alpha, a->shape, b->shape, a->dtype}, sizeof(Binary));
}

/* PyTorch refuses both too: a fraction has no place in an integer result, and
 * bools cannot be subtracted. */
static bool add_check_integers(const char *op, const ds_tensor *a, const ds_tensor *b, double alpha)
{
    if (alpha != (double)(int64_t)alpha)
        return dsi_refuse(
            "%s: alpha is %g beside %s: expected an integer (or ds_cast the operands)", op, alpha,
            ds_dtype_name(dsi_promoted(a, b)));
    if (alpha < 0 && a->dtype == DS_BOOL && b->dtype == DS_BOOL)
        return dsi_refuse("%s: both operands are bool: expected numbers (ds_logical_xor says where "
                          "they differ)",
                          op);
    return true;
}

/* a + alpha b, for sub and add_scaled too; op: the name that messages begin
 * with. */
static ds_tensor *pointwise_add(const char *op, ds_tensor *a, ds_tensor *b, double alpha)
{
    ds_dims shape;
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    if (dsi_promoted(a, b) > DS_BF16)
        return add_check_integers(op, a, b, alpha) ? binary_of_integers(op, DSI_ADD, alpha, a, b)
                                                   : NULL;
    ds_tensor *y;
    if (alpha != 1 || !dsi_defer_sum(a, b, &y)) { /* norm_relu.c */
        if (!binary_prepare(op, &a, &b, &shape)) return NULL;
        y = binary_run(DSI_ADD, alpha, a, b, shape);
    }
    dsi_record_add(y, a, b, alpha);
    return y;
}

ds_tensor *ds_add(ds_tensor *a, ds_tensor *b) { return pointwise_add("add", a, b, 1); }
ds_tensor *ds_sub(ds_tensor *a, ds_tensor *b)
{
    if (a && b && (a->dtype == DS_BOOL || b->dtype == DS_BOOL))
        return dsi_refuse("sub: operands are %s and %s: expected no bools (ds_cast them, or "
                          "ds_logical_xor says where they differ)",
                          ds_dtype_name(a->dtype), ds_dtype_name(b->dtype));
    return pointwise_add("sub", a, b, -1);
}

ds_tensor *ds_add_scaled(ds_tensor *a, ds_tensor *b, double alpha)
{
    return pointwise_add("add_scaled", a, b, alpha);
}

/* dy x summed to `shape`; where there is a sum, products are not rounded before
 * it */
static ds_tensor *product_to(ds_tensor *dy, ds_tensor *x, ds_dims shape)
{
    if (dsi_same_shape(dy->shape, shape)) return ds_mul(dy, x);
    return ds_cast(dsi_sum_to(ds_mul(dsi_upcast(dy), dsi_upcast(x)), shape), dy->dtype);
}

/* Saved: a, b. da = dy b, db = dy a. */
static void mul_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *a = dsi_saved_tensor(n, 0), *b = dsi_saved_tensor(n, 1);
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, product_to(dy, b, a->shape));
    if (dsi_needs_input_grad(n, 1)) dsi_accumulate_grad(n, 1, product_to(dy, a, b->shape));
}

const dsi_op dsi_op_mul = {"mul", mul_backward, .acquires = true};

/* Operands broadcast; da = dy b, db = dy a. */
ds_tensor *ds_mul(ds_tensor *a, ds_tensor *b)
{
    ds_dims shape;
    if (!dsi_live_all("mul", a, b)) return dsi_null_operand("mul");
    if (dsi_promoted(a, b) > DS_BF16) return binary_of_integers("mul", DSI_MUL, 1, a, b);
    if (!binary_prepare("mul", &a, &b, &shape)) return NULL;

    ds_tensor *y = binary_run(DSI_MUL, 1, a, b, shape);

    dsi_node *n = dsi_record(&dsi_op_mul, y, a, b);
    dsi_save_for_backward(n, a), dsi_save_for_backward(n, b);
    return y;
}

/* da = dy / b, db = -dy a / b^2 = -da y. Where there is a sum, nothing is
 * rounded to 16 bits before it; nor is float16's da, which may be out of range
 * where db is not. */
static void div_backward(dsi_node *n, ds_tensor *dy)
{
    const ds_dims *a_shape = dsi_attr(n);
    ds_tensor *b = dsi_saved_tensor(n, 0), *y = dsi_saved_tensor(n, 1), *up = dy;
    if (dy->dtype == DS_F16 || !dsi_same_shape(dy->shape, *a_shape) ||
        !dsi_same_shape(dy->shape, b->shape))
        up = dsi_upcast(dy), b = dsi_upcast(b), y = dsi_upcast(y);
    ds_tensor *da = ds_div(up, b);
    if (!da) return;
    if (dsi_needs_input_grad(n, 0))
        dsi_accumulate_grad(n, 0, ds_cast(dsi_sum_to(da, *a_shape), dy->dtype));
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, ds_cast(dsi_sum_to(ds_neg(ds_mul(da, y)), b->shape), dy->dtype));
}

const dsi_op dsi_op_div = {.name = "div", .backward = div_backward};

/* da = dy / b, db = -dy a / b^2. Integers are divided in float32. */
ds_tensor *ds_div(ds_tensor *a, ds_tensor *b)
{
    ds_dims shape;
    if (!dsi_live_all("div", a, b)) return dsi_null_operand("div");
    if (dsi_promoted(a, b) > DS_BF16) a = ds_cast(a, DS_F32), b = ds_cast(b, DS_F32);
    if (!a || !b || !binary_prepare("div", &a, &b, &shape)) return NULL;

    ds_tensor *y = binary_run(DSI_DIV, 1, a, b, shape);

    dsi_node *n = dsi_record(&dsi_op_div, y, a, b);
    dsi_save_for_backward(n, b), dsi_save_for_backward(n, y);
    dsi_set_attr(n, &a->shape, sizeof a->shape);
    return y;
}

/* Saved: a, b. The rounding of a / b has the gradient 0. */
static void remainder_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *a = dsi_saved_tensor(n, 0), *b = dsi_saved_tensor(n, 1);
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, dsi_sum_to(dy, a->shape));
    if (!dsi_needs_input_grad(n, 1)) return;
    ds_tensor *down = ds_neg(dy), *times = ds_floor_divide(a, b);
    dsi_accumulate_grad(n, 1, down && times ? product_to(down, times, b->shape) : NULL);
}

const dsi_op dsi_op_remainder = {"remainder", remainder_backward, .acquires = true};

/* floor(a / b), or a - b floor(a / b), of which the second one has a gradient. */
static ds_tensor *pointwise_divide(dsi_binary_op how, ds_tensor *a, ds_tensor *b)
{
    const char *op = dsi_binary_name(how);
    ds_dims shape;
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    ds_dtype dtype = dsi_promoted(a, b);
    if (dtype == DS_BOOL)
        return dsi_refuse("%s: both operands are bool: expected numbers (ds_cast them)", op);
    if (dtype <= DS_BF16) {
        if (!binary_prepare(op, &a, &b, &shape)) return NULL;
        ds_tensor *y = binary_run(how, 1, a, b, shape);
        dsi_node *n = how == DSI_REMAINDER ? dsi_record(&dsi_op_remainder, y, a, b) : NULL;
        if (n) dsi_save_for_backward(n, a), dsi_save_for_backward(n, b);
        return y;
    }
    /* the kernel has no way to refuse a zero, so the host looks for one first */
    ds_tensor *zeros = ds_sum(ds_eq(b, dsi_fill(dsi_new_dtype(b, DS_I64, (ds_dims){0}), 0)));
    if (!zeros || ds_item(zeros) != 0)
        return zeros ? dsi_refuse("%s: an element of b %s is 0: expected divisors of integers that "
                                  "are not",
                                  op, dsi_shape_text(b->shape))
                     : NULL;
    return binary_of_integers(op, how, 1, a, b);
}

ds_tensor *ds_floor_divide(ds_tensor *a, ds_tensor *b)
{
    return pointwise_divide(DSI_FLOOR_DIVIDE, a, b);
}
ds_tensor *ds_remainder(ds_tensor *a, ds_tensor *b)
{
    return pointwise_divide(DSI_REMAINDER, a, b);
}

/* ---- the larger, the smaller ------------------------------------------------------------------------- */

/* dy where `x` is taken, half of it where the operands are equal; a NaN on
 * either side takes dy to both, as in PyTorch. lesser, greater: x is not taken
 * where lesser < greater. */
static ds_tensor *extremum_dx(ds_tensor *dy, ds_tensor *half, ds_tensor *lesser, ds_tensor *greater,
                              ds_dims shape)
{
    ds_tensor *zero = dsi_number_beside(dy, 0);
    return dsi_sum_to(ds_where(ds_lt(lesser, greater), zero, half), shape);
}

/* Saved: a, b. */
static void extremum_backward(dsi_node *n, ds_tensor *dy, bool max)
{
    ds_tensor *a = dsi_saved_tensor(n, 0), *b = dsi_saved_tensor(n, 1);
    ds_tensor *half = ds_where(ds_eq(a, b), ds_scale(dy, 0.5), dy);
    if (dsi_needs_input_grad(n, 0))
        dsi_accumulate_grad(n, 0, extremum_dx(dy, half, max ? a : b, max ? b : a, a->shape));
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, extremum_dx(dy, half, max ? b : a, max ? a : b, b->shape));
}

static void maximum_backward(dsi_node *n, ds_tensor *dy) { extremum_backward(n, dy, true); }
static void minimum_backward(dsi_node *n, ds_tensor *dy) { extremum_backward(n, dy, false); }

const dsi_op dsi_op_maximum = {"maximum", maximum_backward, .acquires = true};
const dsi_op dsi_op_minimum = {"minimum", minimum_backward, .acquires = true};

static ds_tensor *pointwise_extremum(const dsi_op *op, dsi_binary_op how, ds_tensor *a,
                                     ds_tensor *b)
{
    ds_tensor *y = dsi_binary(how, &a, &b);
    if (!y || !dsi_is_float(y)) return y;

    dsi_node *n = dsi_record(op, y, a, b);
    dsi_save_for_backward(n, a), dsi_save_for_backward(n, b);
    return y;
}

ds_tensor *ds_maximum(ds_tensor *a, ds_tensor *b)
{
    return pointwise_extremum(&dsi_op_maximum, DSI_MAXIMUM, a, b);
}
ds_tensor *ds_minimum(ds_tensor *a, ds_tensor *b)
{
    return pointwise_extremum(&dsi_op_minimum, DSI_MINIMUM, a, b);
}

typedef struct Bounds {
    double low, high;
} Bounds;

/* Saved: x. dx = low < x < high ? dy : 0; an infinite bound is none. */
static void clamp_backward(dsi_node *n, ds_tensor *dy)
{
    const Bounds *o = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *dx = dsi_alias(dy), *zero = dsi_number_beside(dy, 0);
    if (o->low != -INFINITY) dx = ds_where(ds_lt(dsi_number_beside(x, o->low), x), dx, zero);
    if (o->high != INFINITY) dx = ds_where(ds_lt(x, dsi_number_beside(x, o->high)), dx, zero);
    dsi_accumulate_grad(n, 0, dx);
}

const dsi_op dsi_op_clamp = {"clamp", clamp_backward, .acquires = true};

static ds_tensor *clamp_to(ds_tensor *x, double low, double high)
{
    Bounds o = {low, high};
    if (!x || !dsi_acquire(x)) return NULL;

    if (low == -INFINITY && high == INFINITY) return x;
    ds_tensor *y;
    if (dsi_is_float(x) && dsi_fusion(x->device, clamp)) {
        y = dsi_new_like(x);
        if (!dsi_run_fusion(y, clamp, low, high, dsi_v(x), dsi_v(y))) return NULL;
    } else {
        bool recording = ds_set_grad(false);
        y = low != -INFINITY ? ds_maximum(x, dsi_number_beside(x, low)) : x;
        y = high != INFINITY ? ds_minimum(y, dsi_number_beside(x, high)) : y;
        ds_set_grad(recording);
    }
    if (!y) return NULL;

    dsi_node *n = dsi_record(&dsi_op_clamp, y, x);
    dsi_save_for_backward(n, x), dsi_set_attr(n, &o, sizeof o);
    return y;
}

/* As in PyTorch, integers beside a bound that is no integer are compared in
 * float32, and a bool beside an integer is an int64. */
ds_tensor *ds_clamp(ds_tensor *x, double low, double high)
{
    if (!dsi_live(x, "clamp")) return dsi_null_operand("clamp");
    if (!dsi_is_float(x)) {
        bool whole = (isinf(low) || low == floor(low)) && (isinf(high) || high == floor(high));
        ds_dtype dtype = !whole ? DS_F32 : x->dtype == DS_BOOL ? DS_I64 : x->dtype;
        if (low < -0x1p63) low = -INFINITY;
        if (high >= 0x1p63) high = INFINITY;
        return ds_cast(clamp_to(ds_cast(x, whole ? DS_I64 : DS_F32), low, high), dtype);
    }
    return clamp_to(x, low, high);
}

/* Where y is low's value, and where x is equal to low; high, which may be NULL,
 * decides too. */
static void clamp_low_is(ds_tensor *x, ds_tensor *low, ds_tensor *high, ds_tensor **taken,
                         ds_tensor **tie)
{
    *tie = ds_eq(x, low);
    if (high) *tie = ds_logical_and(*tie, ds_lt(low, high));
    *taken = high ? ds_logical_and(ds_lt(x, low), ds_le(low, high))
                  : ds_logical_not(ds_ge(x, low)); /* of a NaN too */
}

static void clamp_high_is(ds_tensor *x, ds_tensor *low, ds_tensor *high, ds_tensor **taken,
                          ds_tensor **tie)
{
    *tie = ds_eq(x, high);
    if (low) *tie = ds_logical_and(*tie, ds_lt(low, high));
    *taken = low ? ds_logical_or(ds_logical_and(ds_gt(x, high), ds_le(low, high)), ds_lt(high, low))
                 : ds_logical_not(ds_le(x, high));
}

/* Saved: x, low, high, of which a bound may be NULL. As in PyTorch x and a
 * bound that it is equal to get half of dy each, x all of it where the bounds
 * are equal too; the only bound gets dy beside a NaN, one of two does not. */
static void clamp_tensors_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *x = dsi_saved_tensor(n, 0),
              *bound[] = {dsi_saved_tensor(n, 1), dsi_saved_tensor(n, 2)};
    ds_tensor *dx = dsi_alias(dy), *zero = dsi_number_beside(dy, 0), *half = ds_scale(dy, 0.5);
    for (int i = 0; i < 2; i++) {
        ds_tensor *taken, *tie;
        if (!bound[i]) continue;
        (i ? clamp_high_is : clamp_low_is)(x, bound[0], bound[1], &taken, &tie);
        dx = ds_where(tie, half, dx);
        if (dsi_needs_input_grad(n, 1 + i)) {
            ds_tensor *dbound = ds_where(taken, dy, ds_where(tie, half, zero));
            dsi_accumulate_grad(n, 1 + i, dsi_sum_to(dbound, bound[i]->shape));
        }
    }
    if (bound[0]) dx = ds_where(ds_lt(x, bound[0]), zero, dx);
    if (bound[1]) dx = ds_where(ds_gt(x, bound[1]), zero, dx);
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, dsi_sum_to(dx, x->shape));
}

const dsi_op dsi_op_clamp_tensors = {"clamp_tensors", clamp_tensors_backward, .acquires = true};

/* Brings *bound, which may be NULL, to x's dtype, and widens *shape by it. */
static bool clamp_bound(ds_tensor **x, ds_tensor **bound, ds_dims *shape)
{
    return !*bound || (dsi_promote("clamp", x, bound, dsi_promoted(*x, *bound)) &&
                       dsi_broadcast("clamp", *shape, (*bound)->shape, shape));
}

/* y = min(max(x, low), high) of that shape, without a graph; one dtype. */
static ds_tensor *clamp_between(ds_tensor *x, ds_tensor *low, ds_tensor *high, ds_dims shape)
{
    if (low && high && dsi_is_float(x) && dsi_fusion(x->device, clamp_tensors)) {
        if (!dsi_acquire(x, low, high)) return NULL;
        ds_tensor *y = new_binary(x, low, shape);
        return dsi_result_if(dsi_run_fusion(y, clamp_tensors, dsi_v_expand(x, shape),
                                            dsi_v_expand(low, shape), dsi_v_expand(high, shape),
                                            dsi_v(y)),
                             y);
    }
    bool recording = ds_set_grad(false);
    ds_tensor *y = low ? ds_maximum(x, low) : x;
    y = high ? ds_minimum(y, high) : y;
    ds_set_grad(recording);
    return y;
}

ds_tensor *ds_clamp_tensors(ds_tensor *x, ds_tensor *low, ds_tensor *high)
{
    if (!dsi_live(x, "clamp")) return dsi_null_operand("clamp");
    if (!low && !high) return dsi_refuse("clamp: both bounds are NULL: expected one");
    ds_dims shape = x->shape;
    if (!clamp_bound(&x, &low, &shape) || !clamp_bound(&x, &high, &shape) ||
        (low && !(low = ds_cast(low, x->dtype))))
        return NULL;

    ds_tensor *y = clamp_between(x, low, high, shape);
    if (!y || !dsi_is_float(y)) return y;

    dsi_node *n = dsi_record(&dsi_op_clamp_tensors, y, x, low, high);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, low), dsi_save_for_backward(n, high);
    return y;
}

/* ---- where ------------------------------------------------------------------------------------------- */

/* da = c ? dy : 0, db = c ? 0 : dy */
static void where_backward(dsi_node *n, ds_tensor *dy)
{
    const Binary *o = dsi_attr(n);
    ds_tensor *c = dsi_saved_tensor(n, 0), *zero = dsi_number_beside(dy, 0);
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, dsi_sum_to(ds_where(c, dy, zero), o->a));
    if (dsi_needs_input_grad(n, 2))
        dsi_accumulate_grad(n, 2, dsi_sum_to(ds_where(c, zero, dy), o->b));
}

const dsi_op dsi_op_where = {.name = "where", .backward = where_backward};

/* c bool: dy is split between a and b by it. a and b: any dtype. */
ds_tensor *ds_where(ds_tensor *c, ds_tensor *a, ds_tensor *b)
{
    ds_dims ab, shape;
    if (!dsi_live_all("where", c, a, b)) return dsi_null_operand("where");
    if (c->dtype != DS_BOOL)
        return dsi_refuse("where: the condition is %s: expected bool", ds_dtype_name(c->dtype));
    if (!dsi_promote("where", &a, &b, dsi_promoted(a, b)) || !dsi_same_device("where", c, a) ||
        !dsi_broadcast("where", a->shape, b->shape, &ab) ||
        !dsi_broadcast("where", c->shape, ab, &shape) || !dsi_acquire(c, a, b))
        return NULL;

    ds_tensor *y = new_binary(a, b, shape);

    if (!dsi_run(y, where, dsi_v_expand(c, shape), dsi_v_expand(a, shape), dsi_v_expand(b, shape),
                 dsi_v(y)))
        return NULL;
    if (!dsi_is_float(y)) return y;

    dsi_node *n = dsi_record(&dsi_op_where, y, NULL, a, b);
    dsi_save_for_backward(n, c);
    dsi_set_attr(n, &(Binary){.a = a->shape, .b = b->shape}, sizeof(Binary));
    return y;
}

/* ---- one operand and a number ------------------------------------------------------------------------ */

static void affine_backward(dsi_node *n, ds_tensor *dy)
{
    double factor = *(const double *)dsi_attr(n);
    dsi_accumulate_grad(n, 0, factor == 1 ? dsi_alias(dy) : ds_scale(dy, factor));
}

const dsi_op dsi_op_affine = {.name = "affine", .backward = affine_backward};

/* factor x + term; a term of -0.0 leaves the sign of 0 */
static ds_tensor *affine(ds_tensor *x, double factor, double term)
{
    if (!dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new_like(x);

    if (!dsi_run(y, affine, factor, term, dsi_v(x), dsi_v(y))) return NULL;

    dsi_set_attr(dsi_record(&dsi_op_affine, y, x), &factor, sizeof factor);
    return y;
}

ds_tensor *ds_scale(ds_tensor *x, double factor)
{
    if (!dsi_live(x, "scale")) return dsi_null_operand("scale");
    if (dsi_is_float(x)) return affine(x, factor, -0.0);
    return ds_mul(x, dsi_integer_beside("scale", x, factor));
}

ds_tensor *ds_shift(ds_tensor *x, double term)
{
    if (!dsi_live(x, "shift")) return dsi_null_operand("shift");
    if (dsi_is_float(x)) return affine(x, 1, term);
    return ds_add(x, dsi_integer_beside("shift", x, term));
}

ds_tensor *ds_neg(ds_tensor *x)
{
    if (!dsi_live(x, "neg")) return dsi_null_operand("neg");
    if (dsi_is_float(x)) return affine(x, -1, 0);
    if (x->dtype == DS_BOOL)
        return dsi_refuse("neg: x is bool: expected numbers (ds_logical_not turns it around)");
    ds_tensor *zero = dsi_number_beside(x, 0);
    return zero ? ds_sub(zero, x) : NULL;
}

/* ---- prelu ------------------------------------------------------------------------------------------- */

static ds_tensor *above_zero(ds_tensor *x) { return ds_gt(x, dsi_number_beside(x, 0)); }

/* Saved: x, weight of a shape that broadcasts. dx = x > 0 ? dy : w dy, dw = the
 * sum of dy x where x is not above 0; there is no inf * 0 elsewhere. */
static void prelu_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *x = dsi_saved_tensor(n, 0), *w = dsi_saved_tensor(n, 1), *above = above_zero(x);
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, ds_where(above, dy, ds_mul(w, dy)));
    if (!dsi_needs_input_grad(n, 1)) return;
    ds_tensor *zero = dsi_number_beside(x, 0), *g = ds_where(above, zero, dy);
    if (g) g = product_to(g, ds_where(above, zero, x), w->shape);
    dsi_accumulate_grad(n, 1, g);
}

const dsi_op dsi_op_prelu = {"prelu", prelu_backward, .acquires = true};

static ds_tensor *prelu(ds_tensor *x, ds_tensor *w)
{
    if (!x || !w || !dsi_acquire(x, w)) return NULL;
    dsi_cost_elements(x, 1);
    if (!dsi_fusion(x->device, prelu)) return ds_where(above_zero(x), x, ds_mul(w, x));

    ds_tensor *y = dsi_new_like(x);

    if (!dsi_run_fusion(y, prelu, dsi_v_expand(w, x->shape), dsi_v(x), dsi_v(y))) return NULL;

    dsi_node *n = dsi_record(&dsi_op_prelu, y, x, w);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, w);
    return y;
}

ds_tensor *ds_prelu(ds_tensor *x, ds_tensor *weight)
{
    dsi_autocast_low(&x, &weight);
    if (!dsi_live_all("prelu", x, weight)) return dsi_null_operand("prelu");
    if (!dsi_want_float("prelu", x) || !dsi_same_kind("prelu", x, weight)) return NULL;
    int64_t channels = x->shape.n > 1 ? x->shape.d[1] : 1;
    ds_dims shape = {.n = x->shape.n > 1 ? x->shape.n - 1 : 1, .d = {dsi_numel(weight->shape)}};
    if (weight->shape.n > 1 || (shape.d[0] != 1 && shape.d[0] != channels))
        return dsi_refuse("prelu: x is %s, weight is %s: expected [1] or [%lld]",
                          dsi_shape_text(x->shape), dsi_shape_text(weight->shape),
                          (long long)channels);
    for (int i = 1; i < shape.n; i++) shape.d[i] = 1;
    return prelu(x, ds_reshape(weight, x->shape.n ? shape : (ds_dims){0}));
}
