/* device/cuda/kernels/args.h: what host and GPU share: arguments of kernels and
 * the numbers in them. A kernel has one argument, a struct of this file, passed
 * by value. C11 and CUDA C++; operands.c asserts that the numbers are those of
 * device/kernels.h, so that the PTX depends on this folder alone.
 * SPDX-License-Identifier: MIT */
#pragma once

enum { K_DIMS = 8, K_VIEWS = 5 };

/* ds_dtype, dsi_unary_op ..., dsi_fault_op */
enum { K_F32, K_F64, K_F16, K_BF16, K_I64, K_I32, K_I16, K_I8, K_U8, K_BOOL };
/* clang-format off */
enum {
    K_ABS, K_EXP, K_LOG, K_SQRT, K_RELU, K_GELU, K_GELU_TANH, K_SILU, K_SIGMOID, K_TANH,
    K_SIN, K_COS, K_ERF, K_EXPM1, K_LOG1P, K_LEAKY_RELU, K_ELU, K_SOFTPLUS, K_HARDSWISH, K_MISH,
    K_HARDSIGMOID, K_LOGSIGMOID, K_SELU, K_CELU, K_HUBER, K_RSQRT,
    K_FLOOR, K_CEIL, K_ROUND, K_SIGN, K_POW
};
/* clang-format on */
enum { K_SQUARE = 100, K_CUBE, K_INVERSE }; /* POW's common exponents */
enum { K_ADD, K_MUL, K_DIV, K_MAXIMUM, K_MINIMUM, K_FLOOR_DIVIDE, K_REMAINDER };
enum { K_EQ, K_NE, K_LT, K_LE };
enum { K_SUM, K_MAX };
enum { K_NO_FAULT, K_FAULT_LABEL, K_FAULT_ROW, K_FAULT_ELEMENT };

/* dsi_fault */
typedef struct dsi_cuda_fault_flag {
    long long op, value, place[2], classes;
} dsi_cuda_fault_flag;

/* One view: strides in elements; p NULL: absent. */
typedef struct dsi_cuda_view {
    void *p;
    int dtype, n;
    long long d[K_DIMS], s[K_DIMS];
} dsi_cuda_view;

/* The same `count` elements of several views, in row-major order of d, which
 * may have other and fewer dimensions than the views had; d[n-1] is
 * innermost. The last view is the output. */
typedef struct dsi_cuda_elements {
    int n, dtype[K_VIEWS];
    long long count, d[K_DIMS];
    long long s[K_VIEWS][K_DIMS]; /* elements */
    void *p[K_VIEWS];
} dsi_cuda_elements;

/* ---- copy, pointwise ---- */

typedef struct dsi_cuda_pointwise {
    dsi_cuda_elements e;
    int op;
    double a, b; /* fill: value; pow: exponent; add: alpha; affine: factor, term */
} dsi_cuda_pointwise;
