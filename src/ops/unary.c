/* ops/unary.c: one operand element by element: functions and activations. The
 * result has x's order in memory.
 *
 * y = f(x; p) and dx = f'(saved; p) dy, formulas in DSI_UNARY_OPS of
 * device/kernels.h; saved is x or y. softplus with a beta is one of scaled x.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

/* factor x */
static ds_tensor *scaled(const ds_tensor *x, double factor)
{
    if (!dsi_acquire(x)) return NULL;
    ds_tensor *y = dsi_new_like(x);
    return dsi_result_if(dsi_run(y, affine, factor, 0.0, dsi_v(x), dsi_v(y)), y);
}

/* ---- with a parameter and a kernel for each direction ------------------------------------------------- */

typedef enum Saved { X, Y } Saved; /* what backward reads */

/* dx of y = op(x), from dy and what the node saved. */
static void unary_backward(dsi_node *n, ds_tensor *dy, dsi_unary_op op)
{
    const double *p = dsi_attr(n);
    ds_tensor *saved = dsi_saved_tensor(n, 0), *dx = dsi_new_like(saved);
    bool done = dsi_run_op(dx, unary_dx, op, p ? *p : 0, dsi_v(dy), dsi_v(saved), dsi_v(dx));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

/* Activations that DeepSpeed's flops profiler counts. */
static bool unary_costs(dsi_unary_op how)
{
    return how == DSI_GELU || how == DSI_GELU_TANH || how == DSI_SILU || how == DSI_ELU ||
           how == DSI_LEAKY_RELU;
}

static ds_tensor *unary(const dsi_op *op, dsi_unary_op how, double p, ds_tensor *x, Saved saved)
{
    if (!dsi_live(x, op->name)) return dsi_null_operand(op->name);
    if (!dsi_want_float(op->name, x) || !dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new_like(x);

    if (!dsi_run_op(y, unary, how, p, dsi_v(x), dsi_v(y))) return NULL;

    if (unary_costs(how)) dsi_cost_elements(x, 1);

    dsi_node *n = dsi_record(op, y, x);
    dsi_save_for_backward(n, saved == X ? x : y);
    if (p != 0) dsi_set_attr(n, &p, sizeof p);
    return y;
}

/* Integers in float32, as PyTorch's functions (not its activations) take them. */
static ds_tensor *as_float(ds_tensor *x) { return !x || dsi_is_float(x) ? x : ds_cast(x, DS_F32); }

/* The same, and as autocast wants it for functions that need float32. */
static ds_tensor *as_wide(ds_tensor *x)
{
    dsi_autocast_wide(&x);
    return as_float(x);
}

/* Backward, and what the graph points to. */
#define OP(CONSTANT, f) \
    static void f##_backward(dsi_node *n, ds_tensor *dy) \
    { \
        unary_backward(n, dy, DSI_##CONSTANT); \
    } \
    const dsi_op dsi_op_##f = {.name = #f, .backward = f##_backward};

/* y = f(x), of integers too. operand: as_float, or as_wide */
#define FUNCTION(CONSTANT, f, saved, operand) \
    OP(CONSTANT, f) \
    ds_tensor *ds_##f(ds_tensor *x) \
    { \
        return unary(&dsi_op_##f, DSI_##CONSTANT, 0, operand(x), saved); \
    }

/* y = f(x), of floats. */
#define ACTIVATION(CONSTANT, f, saved) \
    OP(CONSTANT, f) \
    ds_tensor *ds_##f(ds_tensor *x) { return unary(&dsi_op_##f, DSI_##CONSTANT, 0, x, saved); }

FUNCTION(EXP, exp, Y, as_wide)
FUNCTION(LOG, log, X, as_wide)
FUNCTION(SQRT, sqrt, Y, as_float)
FUNCTION(RSQRT, rsqrt, X, as_wide)
FUNCTION(SIN, sin, X, as_float)
FUNCTION(COS, cos, X, as_float)
FUNCTION(ERF, erf, X, as_float)
FUNCTION(EXPM1, expm1, Y, as_wide)
FUNCTION(LOG1P, log1p, X, as_wide)
FUNCTION(SIGMOID, sigmoid, Y, as_float)
FUNCTION(TANH, tanh, Y, as_float)
ACTIVATION(GELU, gelu, X)
ACTIVATION(GELU_TANH, gelu_tanh, X)
ACTIVATION(SILU, silu, X)
ACTIVATION(HARDSWISH, hardswish, X)
ACTIVATION(HARDSIGMOID, hardsigmoid, X)
ACTIVATION(LOGSIGMOID, logsigmoid, X)
ACTIVATION(MISH, mish, X)
/* Klambauer et al., arXiv:1706.02515: the fixed point of mean 0, variance 1 */
ACTIVATION(SELU, selu, X)

OP(ABS, abs)
OP(LEAKY_RELU, leaky_relu)
OP(ELU, elu)
OP(CELU, celu)
OP(HUBER, huber)
OP(SOFTPLUS, softplus)

ds_tensor *ds_abs(ds_tensor *x)
{
    if (x && x->dtype == DS_U8) return dsi_alias(x);
    if (x && !dsi_is_float(x)) return ds_maximum(x, ds_neg(x));
    return unary(&dsi_op_abs, DSI_ABS, 0, x, X);
}

ds_tensor *ds_leaky_relu(ds_tensor *x, double negative_slope)
{
    return unary(&dsi_op_leaky_relu, DSI_LEAKY_RELU, dsi_option(negative_slope, 0.01), x, X);
}

ds_tensor *ds_elu(ds_tensor *x, double alpha)
{
    return unary(&dsi_op_elu, DSI_ELU, dsi_option(alpha, 1), x, X);
}

ds_tensor *ds_celu(ds_tensor *x, double alpha)
{
    alpha = dsi_option(alpha, 1);
    if (alpha == 0) return dsi_refuse("celu: alpha is 0: expected another number");
    return unary(&dsi_op_celu, DSI_CELU, alpha, x, X);
}

ds_tensor *dsi_huber(ds_tensor *x, double edge)
{
    return unary(&dsi_op_huber, DSI_HUBER, edge, x, X);
}

/* softplus(beta x) / beta */
ds_tensor *ds_softplus(ds_tensor *x, double beta, double threshold)
{
    dsi_autocast_wide(&x);
    if (!dsi_live(x, "softplus")) return dsi_null_operand("softplus");
    if (!dsi_want_float("softplus", x)) return NULL;
    beta = dsi_option(beta, 1), threshold = dsi_option(threshold, 20);
    if (beta == 1) return unary(&dsi_op_softplus, DSI_SOFTPLUS, threshold, x, X);
    if (beta == 0) return dsi_refuse("softplus: beta is 0: expected another number");
    ds_tensor *z = ds_scale(dsi_upcast(x), beta);
    z = unary(&dsi_op_softplus, DSI_SOFTPLUS, threshold, z, X);
    return ds_cast(ds_scale(z, 1 / beta), x->dtype);
}

/* ---- steps: the gradient is 0 ------------------------------------------------------------------------- */

static void step_backward(dsi_node *n, ds_tensor *dy) { dsi_accumulate_grad(n, 0, ds_like(dy, 0)); }

/* Of integers it is x itself. */
#define STEP(CONSTANT, f) \
    const dsi_op dsi_op_##f = {#f, step_backward, .acquires = true}; \
    ds_tensor *ds_##f(ds_tensor *x) \
    { \
        if (!dsi_live(x, #f)) return dsi_null_operand(#f); \
        if (x->dtype == DS_BOOL) return dsi_refuse(#f ": x is bool: expected numbers"); \
        if (!dsi_is_float(x)) return x; \
        if (!dsi_acquire(x)) return NULL; \
        ds_tensor *y = dsi_new_like(x); \
        if (!dsi_run_op(y, unary, DSI_##CONSTANT, 0.0, dsi_v(x), dsi_v(y))) return NULL; \
        dsi_record(&dsi_op_##f, y, x); \
        return y; \
    }
STEP(FLOOR, floor)
STEP(CEIL, ceil)
STEP(ROUND, round)

const dsi_op dsi_op_sign = {"sign", step_backward, .acquires = true};

ds_tensor *ds_sign(ds_tensor *x)
{
    if (!dsi_live(x, "sign")) return dsi_null_operand("sign");
    if (!dsi_is_float(x)) return ds_cast(ds_clamp(x, -1, 1), x->dtype);
    if (!dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new_like(x);

    if (!dsi_run_op(y, unary, DSI_SIGN, 0.0, dsi_v(x), dsi_v(y))) return NULL;

    dsi_record(&dsi_op_sign, y, x);
    return y;
}

/* ---- powers ------------------------------------------------------------------------------------------- */

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
 * have loops of their own, and -1/2 is rsqrt, whose sign at -0 is another. */
ds_tensor *ds_pow(ds_tensor *x, double exponent)
{
    dsi_autocast_wide(&x);
    if (!dsi_live(x, "pow")) return dsi_null_operand("pow");
    if (!dsi_want_float("pow", x) || !dsi_acquire(x)) return NULL;

    ds_tensor *y = dsi_new_like(x);

    dsi_unary_op how = exponent == -0.5 ? DSI_RSQRT : DSI_POW;
    if (!dsi_run_op(y, unary, how, exponent, dsi_v(x), dsi_v(y))) return NULL;

    dsi_node *n = dsi_record(&dsi_op_pow, y, x);
    dsi_save_for_backward(n, x), dsi_set_attr(n, &exponent, sizeof exponent);
    return y;
}

/* ---- relu --------------------------------------------------------------------------------------------- */

/* Of a gradient in pooled form (Note [Pooled gradients]) only the maxima have
 * one; there relu's output is the maximum itself. */
static ds_tensor *relu_dx_pooled(ds_tensor *dy)
{
    ds_tensor *value = dy->pooled[0], *max = dy->pooled[1], *dx;
    if (dsi_fusion(dy->device, relu_max_pool2d_dx)) {
        if (!(dx = dsi_new_pooled(value, max, dy->pooled[2], dy->shape))) return NULL;
        dx->pooled_relu = true;
        return dx;
    }
    dx = dsi_new_like(max);
    if (!dx) return NULL;
    if (!dsi_same_layout(value, max)) { /* a flatten came between: reordering is the copy's trade */
        if (dsi_copy(dx, value) != DS_OK) return NULL;
        value = dx;
    }
    if (!dsi_run_op(dx, unary_dx, DSI_RELU, 0.0, dsi_v(value), dsi_v(max), dsi_v(dx))) return NULL;
    return dsi_new_pooled(dx, max, dy->pooled[2], dy->shape);
}

/* Two readers of y, as in a residual network, whose gradients are as y is. */
static bool relu_takes_two(dsi_node *n, const ds_tensor *a, const ds_tensor *b)
{
    const ds_tensor *y = dsi_saved_tensor(n, 0);
    if (!dsi_fusion(y->device, relu_dx_of_sum)) return false;
    const ds_tensor *both[] = {a, b};
    for (int i = 0; i < 2; i++)
        if (!both[i]->storage || both[i]->pooled[0] || both[i]->device != y->device ||
            both[i]->dtype != y->dtype || !dsi_same_layout(both[i], y))
            return false;
    return true;
}

/* dx takes the place of a, if that has no other holder. */
static ds_tensor *relu_dx_of_sum(ds_tensor *a, const ds_tensor *b, const ds_tensor *y)
{
    ds_tensor *dx = a->refs == 1 && a->storage->refs == 1 ? a : dsi_new_like(y);
    bool done = dsi_run_fusion(dx, relu_dx_of_sum, dsi_v(a), dsi_v(b), dsi_v(y), dsi_v(dx));
    return dsi_result_if(done, dx);
}

/* Saved: y. If dy is in pooled form, so is dx. */
static void relu_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *y = dsi_saved_tensor(n, 0), *second = dsi_second_dy(n);
    if (dy->pooled[0])
        dsi_accumulate_grad(n, 0, relu_dx_pooled(dy));
    else if (!dsi_acquire(y))
        dsi_accumulate_grad(n, 0, NULL);
    else if (second)
        dsi_accumulate_grad(n, 0, relu_dx_of_sum(dy, second, y));
    else
        unary_backward(n, dy, DSI_RELU);
}

const dsi_op dsi_op_relu = {"relu", relu_backward, .takes_pooled = true,
                            .takes_two = relu_takes_two, .acquires = true};

/* May be deferred: max-pooling computes it with the maxima
 * (tensor/deferred.c). Computes a deferred batch norm too (norm_relu.c). */
ds_tensor *ds_relu(ds_tensor *x)
{
    if (!dsi_live(x, "relu")) return dsi_null_operand("relu");
    if (!dsi_want_float("relu", x)) return NULL;
    ds_tensor *y;
    dsi_cost_elements(x, 1);
    if (dsi_relu_of_norm(x, &y)) return y;
    if (!dsi_acquire(x)) return NULL;

    y = dsi_new_like(x);

    if (!y) return NULL;
    if (!dsi_defer_relu(y, x) && !dsi_run_op(y, unary, DSI_RELU, 0.0, dsi_v(x), dsi_v(y)))
        return NULL;

    dsi_save_for_backward(dsi_record(&dsi_op_relu, y, x), y);
    return y;
}
