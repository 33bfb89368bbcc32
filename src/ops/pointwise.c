/* ops/pointwise.c: element by element, with broadcasting as in numpy. A result
 * has the strides of an operand of its own shape, so that a sequence of
 * pointwise ops on a channels_last tensor stays channels_last and reads
 * contiguous memory. The gradient of a broadcast operand is summed over the
 * repeated dimensions (dsi_sum_to); 16-bit products are summed in float32 and
 * rounded once.
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* ---- two operands ------------------------------------------------------------------------------------ */

typedef struct Binary {
    double alpha;
    ds_dims a, b; /* shapes of the operands */
} Binary;

/* True if a and b are floats of one dtype and device, and broadcast to *shape. */
static bool binary_check(const char *op, const ds_tensor *a, const ds_tensor *b, ds_dims *shape)
{
    return dsi_want_float(op, a) && dsi_same_kind(op, a, b) &&
           dsi_broadcast(op, a->shape, b->shape, shape);
}

/* A tensor of `shape` with the strides of an operand that has that shape. */
static ds_tensor *new_binary(const ds_tensor *a, const ds_tensor *b, ds_dims shape)
{
    if (dsi_same_shape(a->shape, shape)) return dsi_new_like(a);
    if (dsi_same_shape(b->shape, shape)) return dsi_new_like(b);
    return dsi_new(a, shape);
}

/* factor x */
static ds_tensor *scaled(const ds_tensor *x, double factor)
{
    if (!dsi_acquire(x)) return NULL;
    ds_tensor *y = dsi_new_like(x);
    return dsi_result_if(dsi_run(y, affine, factor, 0.0, dsi_v(x), dsi_v(y)), y);
}

/* da = dy, db = alpha dy, each summed to the operand's shape. Nothing is saved. */
static void add_backward(dsi_node *n, ds_tensor *dy)
{
    const Binary *o = dsi_attr(n);
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, dsi_sum_to(dy, o->a));
    if (!dsi_needs_input_grad(n, 1)) return;
    ds_tensor *g = o->alpha == 1 ? dy : ds_scale(dsi_upcast(dy), o->alpha);
    dsi_accumulate_grad(n, 1, ds_cast(dsi_sum_to(g, o->b), dy->dtype));
}

const dsi_op dsi_op_add = {.name = "add", .backward = add_backward};

/* a + alpha b, for sub and add_scaled too; op: the name that messages begin
 * with. */
static ds_tensor *pointwise_add(const char *op, ds_tensor *a, ds_tensor *b, double alpha)
{
    Binary o = {.alpha = alpha};
    ds_dims shape;
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    if (!binary_check(op, a, b, &shape) || !dsi_acquire(a, b)) return NULL;

    ds_tensor *y = new_binary(a, b, shape);

    if (!dsi_run_op(y, binary, DSI_ADD, alpha, dsi_v_expand(a, shape), dsi_v_expand(b, shape),
                    dsi_v(y)))
        return NULL;

    dsi_node *n = dsi_record(&dsi_op_add, y, a, b);
    if (n) o.a = a->shape, o.b = b->shape, dsi_set_attr(n, &o, sizeof o);
    return y;
}

ds_tensor *ds_add(ds_tensor *a, ds_tensor *b) { return pointwise_add("add", a, b, 1); }
ds_tensor *ds_sub(ds_tensor *a, ds_tensor *b) { return pointwise_add("sub", a, b, -1); }
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
    if (!binary_check("mul", a, b, &shape) || !dsi_acquire(a, b)) return NULL;

    ds_tensor *y = new_binary(a, b, shape);

    if (!dsi_run_op(y, binary, DSI_MUL, 1.0, dsi_v_expand(a, shape), dsi_v_expand(b, shape),
                    dsi_v(y)))
        return NULL;

    dsi_node *n = dsi_record(&dsi_op_mul, y, a, b);
    dsi_save_for_backward(n, a), dsi_save_for_backward(n, b);
    return y;
}

/* da = dy / b, db = -dy a / b^2 = -da y */
static void div_backward(dsi_node *n, ds_tensor *dy)
{
    const ds_dims *a_shape = dsi_attr(n);
    ds_tensor *b = dsi_upcast(dsi_saved_tensor(n, 0)), *y = dsi_upcast(dsi_saved_tensor(n, 1));
    ds_tensor *da = ds_div(dsi_upcast(dy), b);
    if (!da) return;
    if (dsi_needs_input_grad(n, 0))
        dsi_accumulate_grad(n, 0, ds_cast(dsi_sum_to(da, *a_shape), dy->dtype));
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, ds_cast(dsi_sum_to(ds_neg(ds_mul(da, y)), b->shape), dy->dtype));
}

const dsi_op dsi_op_div = {.name = "div", .backward = div_backward};

/* da = dy / b, db = -dy a / b^2. */
ds_tensor *ds_div(ds_tensor *a, ds_tensor *b)
{
    ds_dims shape;
    if (!dsi_live_all("div", a, b)) return dsi_null_operand("div");
    if (!binary_check("div", a, b, &shape) || !dsi_acquire(a, b)) return NULL;

    ds_tensor *y = new_binary(a, b, shape);

    if (!dsi_run_op(y, binary, DSI_DIV, 1.0, dsi_v_expand(a, shape), dsi_v_expand(b, shape),
                    dsi_v(y)))
        return NULL;

    dsi_node *n = dsi_record(&dsi_op_div, y, a, b);
    dsi_save_for_backward(n, b), dsi_save_for_backward(n, y);
    dsi_set_attr(n, &a->shape, sizeof a->shape);
    return y;
}

/* Any dtype, because labels are compared too. Not recorded: the gradient of a
 * comparison is 0. */
static ds_tensor *pointwise_compare(dsi_compare_op how, ds_tensor *a, ds_tensor *b)
{
    const char *op = dsi_compare_name(how);
    ds_dims shape;
    if (!dsi_live_all(op, a, b)) return dsi_null_operand(op);
    if (!dsi_same_kind(op, a, b) || !dsi_broadcast(op, a->shape, b->shape, &shape)) return NULL;
    if (!dsi_acquire(a, b)) return NULL;

    ds_tensor *y = dsi_new_dtype(a, DS_BOOL, shape);

    return dsi_result_if(
        dsi_run_op(y, compare, how, dsi_v_expand(a, shape), dsi_v_expand(b, shape), dsi_v(y)), y);
}

ds_tensor *ds_eq(ds_tensor *a, ds_tensor *b) { return pointwise_compare(DSI_EQ, a, b); }
ds_tensor *ds_lt(ds_tensor *a, ds_tensor *b) { return pointwise_compare(DSI_LT, a, b); }

/* ---- where ------------------------------------------------------------------------------------------- */

/* da = c ? dy : 0, db = c ? 0 : dy */
static void where_backward(dsi_node *n, ds_tensor *dy)
{
    const Binary *o = dsi_attr(n);
    ds_tensor *c = dsi_saved_tensor(n, 0), *zero = dsi_fill(dsi_new(dy, (ds_dims){0}), 0);
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, dsi_sum_to(ds_where(c, dy, zero), o->a));
    if (dsi_needs_input_grad(n, 2))
        dsi_accumulate_grad(n, 2, dsi_sum_to(ds_where(c, zero, dy), o->b));
}

const dsi_op dsi_op_where = {.name = "where", .backward = where_backward};

/* c bool: dy is split between a and b by it. */
ds_tensor *ds_where(ds_tensor *c, ds_tensor *a, ds_tensor *b)
{
    ds_dims ab, shape;
    if (!dsi_live_all("where", c, a, b)) return dsi_null_operand("where");
    if (c->dtype != DS_BOOL)
        return dsi_refuse("where: the condition is %s: expected bool", ds_dtype_name(c->dtype));
    if (!dsi_same_device("where", c, a) || !binary_check("where", a, b, &ab) ||
        !dsi_broadcast("where", c->shape, ab, &shape) || !dsi_acquire(c, a, b))
        return NULL;

    ds_tensor *y = new_binary(a, b, shape);

    if (!dsi_run(y, where, dsi_v_expand(c, shape), dsi_v_expand(a, shape), dsi_v_expand(b, shape),
                 dsi_v(y)))
        return NULL;

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

/* factor x + term */
static ds_tensor *affine(const char *op, ds_tensor *x, double factor, double term)
{
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if (!dsi_want_float(op, x) || !dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new_like(x);

    if (!dsi_run(y, affine, factor, term, dsi_v(x), dsi_v(y))) return NULL;

    dsi_set_attr(dsi_record(&dsi_op_affine, y, x), &factor, sizeof factor);
    return y;
}

ds_tensor *ds_scale(ds_tensor *x, double factor) { return affine("scale", x, factor, 0); }
ds_tensor *ds_shift(ds_tensor *x, double term) { return affine("shift", x, 1, term); }
ds_tensor *ds_neg(ds_tensor *x) { return affine("neg", x, -1, 0); }

/* dx = dy e x^(e-1); 0 for e = 0, also where x^-1 is infinite */
static void pow_backward(dsi_node *n, ds_tensor *dy)
{
    double e = *(const double *)dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0);
    if (e == 0) {
        dsi_accumulate_grad(n, 0, ds_like(x, 0));
        return;
    }
    ds_tensor *slope = scaled(ds_pow(dsi_upcast(x), e - 1), e);
    dsi_accumulate_grad(n, 0, ds_cast(ds_mul(dsi_upcast(dy), slope), dy->dtype));
}

const dsi_op dsi_op_pow = {.name = "pow", .backward = pow_backward};

/* The exponent is a number: its gradient is not defined here. 2, 3, 1/2 and -1
 * have loops of their own. */
ds_tensor *ds_pow(ds_tensor *x, double exponent)
{
    if (!dsi_live(x, "pow")) return dsi_null_operand("pow");
    if (!dsi_want_float("pow", x) || !dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new_like(x);

    if (!dsi_run_op(y, unary, DSI_POW, exponent, dsi_v(x), dsi_v(y))) return NULL;

    dsi_node *n = dsi_record(&dsi_op_pow, y, x);
    dsi_save_for_backward(n, x), dsi_set_attr(n, &exponent, sizeof exponent);
    return y;
}

/* ---- one operand ------------------------------------------------------------------------------------- */

/* dx of y = op(x), from dy and what the node saved, which is x or y. */
static void unary_backward(dsi_node *n, ds_tensor *dy, dsi_unary_op op)
{
    ds_tensor *saved = dsi_saved_tensor(n, 0), *dx = dsi_new_like(saved);
    bool done = dsi_run_op(dx, unary_dx, op, dsi_v(dy), dsi_v(saved), dsi_v(dx));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

/* Backward, what the graph points to, and the function of y = f(x). saved, x or
 * y, is what backward needs (DSI_UNARY_OPS). */
#define UNARY(OP, f, saved) \
    static void f##_backward(dsi_node *n, ds_tensor *dy) { unary_backward(n, dy, DSI_##OP); } \
\
    const dsi_op dsi_op_##f = {.name = #f, .backward = f##_backward}; \
\
    ds_tensor *ds_##f(ds_tensor *x) \
    { \
        if (!dsi_live(x, #f)) return dsi_null_operand(#f); \
        if (!dsi_want_float(#f, x) || !dsi_acquire(x)) return NULL; \
\
        ds_tensor *y = dsi_new_like(x); \
\
        if (!dsi_run_op(y, unary, DSI_##OP, 0.0, dsi_v(x), dsi_v(y))) return NULL; \
\
        dsi_save_for_backward(dsi_record(&dsi_op_##f, y, x), saved); \
        return y; \
    }

UNARY(ABS, abs, x)
UNARY(EXP, exp, y)
UNARY(LOG, log, x)
UNARY(SQRT, sqrt, y)
UNARY(GELU, gelu, x)
UNARY(GELU_TANH, gelu_tanh, x)
UNARY(SILU, silu, x)
UNARY(SIGMOID, sigmoid, y)
UNARY(TANH, tanh, y)

/* Of a gradient in pooled form (Note [Pooled gradients]) only the maxima have
 * one; there relu's output is the maximum itself. */
static ds_tensor *relu_dx_pooled(ds_tensor *dy)
{
    ds_tensor *value = dy->pooled[0], *max = dy->pooled[1];
    ds_tensor *dx = dsi_new_like(max);
    if (!dx) return NULL;
    if (!dsi_same_layout(value, max)) { /* a flatten came between: reordering is the copy's trade */
        if (dsi_copy(dx, value) != DS_OK) return NULL;
        value = dx;
    }
    if (!dsi_run_op(dx, unary_dx, DSI_RELU, dsi_v(value), dsi_v(max), dsi_v(dx))) return NULL;
    return dsi_new_pooled(dx, max, dy->pooled[2], dy->shape);
}

/* Saved: y. If dy is in pooled form, so is dx. */
static void relu_backward(dsi_node *n, ds_tensor *dy)
{
    if (dy->pooled[0])
        dsi_accumulate_grad(n, 0, relu_dx_pooled(dy));
    else if (dsi_acquire(dsi_saved_tensor(n, 0)))
        unary_backward(n, dy, DSI_RELU);
    else
        dsi_accumulate_grad(n, 0, NULL);
}

const dsi_op dsi_op_relu = {"relu", relu_backward, .takes_pooled = true, .acquires = true};

/* May be deferred: max-pooling computes it with the maxima
 * (tensor/deferred.c). */
ds_tensor *ds_relu(ds_tensor *x)
{
    if (!dsi_live(x, "relu")) return dsi_null_operand("relu");
    if (!dsi_want_float("relu", x) || !dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new_like(x);

    if (!y) return NULL;
    if (!dsi_defer_relu(y, x) && !dsi_run_op(y, unary, DSI_RELU, 0.0, dsi_v(x), dsi_v(y)))
        return NULL;

    dsi_save_for_backward(dsi_record(&dsi_op_relu, y, x), y);
    return y;
}
