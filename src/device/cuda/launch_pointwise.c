/* device/cuda/launch_pointwise.c: the pointwise entries of kernels.h.
 *
 * An element of the output is one thread's; operands are broadcast by strides
 * of 0, and joined dimensions save divisions (operands.h). Formulas are in
 * kernels.h. One kernel has all ops of a kind and takes the op as a number,
 * which is the same for all threads: a branch, but no divergence.
 *
 * Floats are computed in float32, in float64 if the dtype is float64; integers
 * and bool, where an op has them, in 64 bits.
 * SPDX-License-Identifier: MIT */
#include "held.h"
#include "launch.h"
#include "operands.h"

#define DENSE        65536 /* elements from which on vectors are faster */
#define DENSE_BLOCKS 65536

/* The instance that computes in float or in double. */
static ds_status pointwise_launch(dsi_stream *s, const char *kernel, ds_dtype dtype,
                                  const dsi_cuda_pointwise *a)
{
    return dsi_cuda_launch(s, DSI_CUDA_pointwise, kernel, dsi_cuda_suffix(dtype),
                           dsi_cuda_grid_of(a->e.count), a);
}

/* The ops that kernels of dense operands have. */
static bool is_common(int op)
{
    return op == K_RELU || op == K_GELU || op == K_GELU_TANH || op == K_SILU;
}

/* Whether all of `views` operands are of one dtype of at most 32 bits, without
 * gaps, and aligned to 16 bytes. */
static bool is_dense(const dsi_cuda_elements *e, int views)
{
    bool dense = e->n == 1 && e->dtype[0] <= K_BF16 && e->dtype[0] != K_F64;
    for (int v = 0; v < views && dense; v++)
        dense = e->s[v][0] == 1 && e->dtype[v] == e->dtype[0] && (uintptr_t)e->p[v] % 16 == 0;
    return dense;
}

/* As pointwise_launch, by kernel_dense, if it has the op, for dense operands; where
 * there are few elements, vectors would leave most of a GPU idle. */
static ds_status dense_launch(dsi_stream *s, const char *kernel, const char *kernel_dense,
                              bool has_op, int views, ds_dtype dtype, const dsi_cuda_pointwise *a)
{
    if (!has_op || a->e.count < DENSE || !is_dense(&a->e, views))
        return pointwise_launch(s, kernel, dtype, a);
    int64_t blocks = (a->e.count * (int64_t)ds_dtype_size(dtype) / 16 + 255) / 256;
    return dsi_cuda_launch(s, DSI_CUDA_pointwise, kernel_dense, dsi_cuda_dtype_suffix(dtype),
                           dsi_cuda_blocks(blocks < DENSE_BLOCKS ? blocks : DENSE_BLOCKS, 256), a);
}

/* The common exponents without pow(): x x is rounded once, where powf may be
 * off in the last place, and it is faster. */
static int pow_op(double exponent)
{
    if (exponent == 2) return K_SQUARE;
    if (exponent == 3) return K_CUBE;
    if (exponent == 0.5) return K_SQRT;
    return exponent == -1 ? K_INVERSE : K_POW;
}

ds_status dsi_cuda_unary(dsi_stream *s, dsi_unary_op op, double p, dsi_view x, dsi_view y)
{
    if (dsi_cuda_held_unary(s, op, &x, &y)) return DS_OK;
    dsi_cuda_pointwise a = {
        .e = DSI_CUDA_ELEMENTS(&x, &y), .op = op == DSI_POW ? pow_op(p) : (int)op, .a = p};
    ds_status status = dsi_cuda_floating(dsi_unary_name(op), x.dtype);
    return status == DS_OK
               ? dense_launch(s, "unary", "unary_dense", is_common(a.op), 2, x.dtype, &a)
               : status;
}

ds_status dsi_cuda_unary_dx(dsi_stream *s, dsi_unary_op op, double p, dsi_view dy, dsi_view saved,
                            dsi_view dx)
{
    if (op == DSI_RELU && dsi_cuda_held_relu_dx(s, &dy, &saved, &dx)) return DS_OK;
    dsi_cuda_pointwise a = {.e = DSI_CUDA_ELEMENTS(&dy, &saved, &dx), .op = (int)op, .a = p};
    ds_status status = dsi_cuda_floating(dsi_unary_dx_name(op), dy.dtype);
    return status == DS_OK
               ? dense_launch(s, "unary_dx", "unary_dx_dense", is_common(a.op), 3, dy.dtype, &a)
               : status;
}

ds_status dsi_cuda_sum_launch(dsi_stream *s, const dsi_cuda_pointwise *p)
{
    return dense_launch(s, "binary", "binary_dense", true, 3, (ds_dtype)p->e.dtype[2], p);
}

ds_status dsi_cuda_binary(dsi_stream *s, dsi_binary_op op, double alpha, dsi_view a, dsi_view b,
                          dsi_view y)
{
    dsi_cuda_pointwise p = {.e = DSI_CUDA_ELEMENTS(&a, &b, &y), .op = (int)op, .a = alpha};
    if (y.dtype == DS_I64 && op != DSI_DIV)
        return dsi_cuda_launch(s, DSI_CUDA_pointwise, "binary", "_i64", dsi_cuda_grid_of(p.e.count),
                               &p);
    ds_status status = dsi_cuda_floating(dsi_binary_name(op), y.dtype);
    if (status != DS_OK) return status;
    if (op == DSI_MUL && dsi_cuda_held_times(s, &a, &b, &y)) return DS_OK;
    if (op == DSI_ADD && alpha == 1 && p.e.count && is_dense(&p.e, 3))
        return dsi_cuda_hold_sum(s, &p);
    return dense_launch(s, "binary", "binary_dense", p.op == K_ADD || p.op == K_MUL, 3, y.dtype,
                        &p);
}

/* The dtype of a, not of y, which is bool, selects the instance. Dtypes above
 * DS_BF16 are integers and bool. */
ds_status dsi_cuda_compare(dsi_stream *s, dsi_compare_op op, dsi_view a, dsi_view b, dsi_view y)
{
    dsi_cuda_pointwise p = {.e = DSI_CUDA_ELEMENTS(&a, &b, &y), .op = (int)op};
    const char *suffix = a.dtype > DS_BF16 ? "_i64" : dsi_cuda_suffix(a.dtype);
    return dsi_cuda_launch(s, DSI_CUDA_pointwise, "compare", suffix, dsi_cuda_grid_of(p.e.count),
                           &p);
}

ds_status dsi_cuda_affine(dsi_stream *s, double factor, double term, dsi_view x, dsi_view y)
{
    dsi_cuda_pointwise a = {.e = DSI_CUDA_ELEMENTS(&x, &y), .a = factor, .b = term};
    ds_status status = dsi_cuda_floating("affine", x.dtype);
    return status == DS_OK ? dense_launch(s, "affine", "affine_dense", true, 2, x.dtype, &a)
                           : status;
}

ds_status dsi_cuda_where(dsi_stream *s, dsi_view c, dsi_view a, dsi_view b, dsi_view y)
{
    dsi_cuda_elements e = DSI_CUDA_ELEMENTS(&c, &a, &b, &y);
    return dsi_cuda_launch(s, DSI_CUDA_pointwise, "where", "", dsi_cuda_grid_of(e.count), &e);
}

ds_status dsi_cuda_mask_scale(dsi_stream *s, double factor, dsi_view x, dsi_view keep, dsi_view y)
{
    dsi_cuda_pointwise a = {.e = DSI_CUDA_ELEMENTS(&x, &keep, &y), .a = factor};
    ds_status status = dsi_cuda_floating("mask_scale", x.dtype);
    if (status != DS_OK) return status;
    bool quads = a.e.n == 1 && a.e.count % 4 == 0 && x.dtype != DS_F64 && x.dtype == y.dtype;
    for (int v = 0; v < 3; v++) quads = quads && a.e.s[v][0] == 1 && (uintptr_t)a.e.p[v] % 16 == 0;
    a.op = quads;
    return dsi_cuda_launch(s, DSI_CUDA_pointwise, "mask_scale", dsi_cuda_suffix(x.dtype),
                           dsi_cuda_grid_of(quads ? a.e.count / 4 : a.e.count), &a);
}

ds_status dsi_cuda_relu_dx_of_sum(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y, dsi_view dx)
{
    dsi_cuda_pointwise p = {.e = DSI_CUDA_ELEMENTS(&a, &b, &y, &dx)};
    ds_status status = dsi_cuda_floating("relu_dx_of_sum", dx.dtype);
    return status == DS_OK
               ? dense_launch(s, "relu_dx_of_sum", "relu_dx_of_sum_dense", true, 4, dx.dtype, &p)
               : status;
}

ds_status dsi_cuda_mul_add(dsi_stream *s, double alpha, dsi_view a, dsi_view b, dsi_view c,
                           dsi_view d, dsi_view y)
{
    dsi_cuda_pointwise p = {.e = DSI_CUDA_ELEMENTS(&a, &b, &c, &d, &y), .a = alpha};
    ds_status status = dsi_cuda_floating("mul_add", y.dtype);
    return status == DS_OK ? pointwise_launch(s, "mul_add", y.dtype, &p) : status;
}
