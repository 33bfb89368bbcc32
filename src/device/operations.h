/* device/operations.h: the operations that one entry of kernels.h chooses
 * among.
 *
 * X(constant, name in messages, formula): the lists also make the names that
 * dsi_unary_name and its siblings return.
 * SPDX-License-Identifier: MIT */
#pragma once

/* X(constant, name, y, dx, what `saved` is); p is the parameter. NaN passes
 * through all of them but SIGN, which is 0 there. ReLU's dx is dy where y is
 * NaN, as in PyTorch. FLOOR and those behind it have no dx. */
#define DSI_UNARY_OPS(X) \
    X(ABS, abs, "|x|", "dy sign(x)", x) \
    X(EXP, exp, "e^x", "dy y", y) \
    X(LOG, log, "log x", "dy / x", x) \
    X(SQRT, sqrt, "sqrt x", "dy / (2 y)", y) \
    X(RELU, relu, "x < 0 ? 0 : x", "y <= 0 ? 0 : dy", y) \
    X(GELU, gelu, "x Phi(x)", "dy (Phi(x) + x phi(x))", x) \
    X(GELU_TANH, gelu_tanh, "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))", \
      "its derivative times dy", x) \
    X(SILU, silu, "x / (1 + e^-x)", "dy s (1 + x (1 - s)), s = 1 / (1 + e^-x)", x) \
    X(SIGMOID, sigmoid, "1 / (1 + e^-x)", "dy y (1 - y)", y) \
    X(TANH, tanh, "tanh x", "dy (1 - y^2)", y) \
    X(SIN, sin, "sin x", "dy cos x", x) \
    X(COS, cos, "cos x", "-dy sin x", x) \
    X(ERF, erf, "2/sqrt(pi) integral of e^(-t^2), 0 to x", "dy 2/sqrt(pi) e^(-x^2)", x) \
    X(EXPM1, expm1, "e^x - 1", "dy (y + 1)", y) \
    X(LOG1P, log1p, "log(1 + x)", "dy / (1 + x)", x) \
    X(LEAKY_RELU, leaky_relu, "x > 0 ? x : p x", "x > 0 ? dy : p dy", x) \
    X(ELU, elu, "x > 0 ? x : p (e^x - 1)", "x <= 0 ? p e^x dy : dy", x) \
    X(SOFTPLUS, softplus, "x > p ? x : log(1 + e^x)", "x > p ? dy : dy / (1 + e^-x)", x) \
    X(HARDSWISH, hardswish, "x min(max(x + 3, 0), 6) / 6", \
      "x <= -3 ? 0 : x < 3 ? dy (x/3 + 1/2) : dy", x) \
    X(MISH, mish, "x tanh(log(1 + e^x))", "its derivative times dy", x) \
    X(HARDSIGMOID, hardsigmoid, "min(max(x + 3, 0), 6) / 6", "-3 < x < 3 ? dy / 6 : 0", x) \
    X(LOGSIGMOID, logsigmoid, "-log(1 + e^-x)", "dy / (1 + e^x)", x) \
    X(SELU, selu, "1.0507 (x > 0 ? x : 1.6733 (e^x - 1))", "1.0507 (x <= 0 ? 1.6733 e^x dy : dy)", \
      x) \
    X(CELU, celu, "x > 0 ? x : p (e^(x/p) - 1)", "x <= 0 ? e^(x/p) dy : dy", x) \
    X(HUBER, huber, "|x| < p ? x^2 / 2 : p (|x| - p/2)", "dy min(max(x, -p), p)", x) \
    X(RSQRT, rsqrt, "1 / sqrt x", "-dy / (2 x sqrt x)", x) \
    X(FLOOR, floor, "the integer at or below x", "none: it is 0", x) \
    X(CEIL, ceil, "the integer at or above x", "none: it is 0", x) \
    X(ROUND, round, "the nearest integer, of two the even one", "none: it is 0", x) \
    X(SIGN, sign, "(x > 0) - (x < 0)", "none: it is 0", x) \
    X(POW, pow, "x^p", "none: ops compose it", x)

/* X(constant, name, formula). All but DIV and ATAN2 also take int64, which
 * wraps around; by an integer 0 the quotient, the remainder and a power below 0
 * are
 * 0. */
#define DSI_BINARY_OPS(X) \
    X(ADD, add, "a + alpha b") \
    X(MUL, mul, "a b") \
    X(DIV, div, "a / b") \
    X(MAXIMUM, maximum, "the larger; NaN if either is") \
    X(MINIMUM, minimum, "the smaller; NaN if either is") \
    X(FLOOR_DIVIDE, floor_divide, "the integer at or below a / b") \
    X(REMAINDER, remainder, "a - b floor(a / b): of b's sign, or 0") \
    X(POWER, pow, "a^b; of int64 truncated") \
    X(ATAN2, atan2, "the angle of the point (b, a), -pi to pi; no int64") \
    X(BITS_AND, bitwise_and, "the bits that both have; int64 alone")

#define DSI_COMPARE_OPS(X) \
    X(EQ, eq, "a == b") \
    X(NE, ne, "a != b") \
    X(LT, lt, "a < b") \
    X(LE, le, "a <= b")

#define DSI_REDUCE_OPS(X) \
    X(SUM, sum, "factor times the sum") \
    X(MAX, max, "the first maximum; NaN is larger than all numbers")

/* X(constant, name, moments): torch.optim's rules, DeepSpeed's Lion and LAMB;
 * include/deepspeed/optim.h has the formulas. */
#define DSI_OPTIMIZER_RULES(X) \
    X(SGD, sgd, "m: momentum") \
    X(ADAM, adam, "m, v; vmax with amsgrad") \
    X(ADAGRAD, adagrad, "v: sum of g^2") \
    X(RMSPROP, rmsprop, "v; m with momentum; vmax: mean of g, if centered") \
    X(ADADELTA, adadelta, "m: mean of delta^2; v") \
    X(LION, lion, "m") \
    X(LAMB, lamb, "m, v; uses the norms of each whole span")

/* X(constant, op that the message names, what the value is, its place's noun) */
#define DSI_FAULT_OPS(X) \
    X(LABEL, cross_entropy, "label", "index ") \
    X(ROW, embedding, "index", "position ") \
    X(ELEMENT, gather, "index", "") \
    X(GROUP, group_rows, "group", "position ") \
    X(PLACE, attention_step, "place", "sequence ")

#define DSI_OP_CONSTANT(constant, ...)    DSI_##constant,
#define DSI_FAULT_CONSTANT(constant, ...) DSI_FAULT_##constant,
typedef enum dsi_unary_op { DSI_UNARY_OPS(DSI_OP_CONSTANT) DSI_N_UNARY } dsi_unary_op;
typedef enum dsi_binary_op { DSI_BINARY_OPS(DSI_OP_CONSTANT) DSI_N_BINARY } dsi_binary_op;
typedef enum dsi_compare_op { DSI_COMPARE_OPS(DSI_OP_CONSTANT) DSI_N_COMPARE } dsi_compare_op;
typedef enum dsi_reduce_op { DSI_REDUCE_OPS(DSI_OP_CONSTANT) DSI_N_REDUCE } dsi_reduce_op;
typedef enum dsi_rule { DSI_OPTIMIZER_RULES(DSI_OP_CONSTANT) DSI_N_RULES } dsi_rule;
typedef enum dsi_fault_op {
    DSI_NO_FAULT,
    DSI_FAULT_OPS(DSI_FAULT_CONSTANT) DSI_N_FAULTS
} dsi_fault_op;
#undef DSI_OP_CONSTANT
#undef DSI_FAULT_CONSTANT
