/* tests/ops/cases_math.h: cases of the list of cases.h: functions of ops_math.h
 * of two tensors, inverse functions, running ones, by index, and of matrices.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "calls.h"

#include <deepspeed/ops_math.h>

CALL(fmod, ds_fmod(in[0], in[1]))
CALL(pow_tensors, ds_pow_tensors(in[0], in[1]))
CALL(exp2, ds_exp2(in[0]))
CALL(atan2, ds_atan2(in[0], in[1]))
CALL(hypot, ds_hypot(in[0], in[1]))
CALL(xlogy, ds_xlogy(in[0], in[1]))
CALL(atan, ds_atan(in[0]))
CALL(asin, ds_asin(in[0]))
CALL(acos, ds_acos(in[0]))
CALL(asinh, ds_asinh(in[0]))
CALL(acosh, ds_acosh(in[0]))
CALL(atanh, ds_atanh(in[0]))
CALL(erfinv, ds_erfinv(in[0]))
CALL(logit, ds_logit(in[0], 0.125))
CALL(frac, ds_frac(in[0]))
CALL(cummax, ds_cummax(in[0], 1, NULL))
CALL(cummin, ds_cummin(in[0], -1, NULL))
CALL(logcumsumexp, ds_logcumsumexp(in[0], 1))
CALL(mode, ds_mode(in[0], 1, false, NULL))
CALL(diff, ds_diff(in[0], 2, -1))
CALL(trapezoid, ds_trapezoid(in[0], in[1], 1, 1))
CALL(scatter_sum, ds_scatter_reduce(in[0], 1, in[1], in[2], DS_SCATTER_SUM, true))
CALL(scatter_prod, ds_scatter_reduce(in[0], 1, in[1], in[2], DS_SCATTER_PROD, false))
CALL(scatter_mean, ds_scatter_reduce(in[0], 1, in[1], in[2], DS_SCATTER_MEAN, true))
CALL(scatter_amax, ds_scatter_reduce(in[0], 1, in[1], in[2], DS_SCATTER_AMAX, false))
CALL(scatter_amin, ds_scatter_reduce(in[0], 1, in[1], in[2], DS_SCATTER_AMIN, true))
CALL(index_copy, ds_index_copy(in[0], 1, in[1], in[2]))
CALL(index_fill, ds_index_fill(in[0], 1, in[1], 0.25))
CALL(index, ds_index(in[0], &in[1], 2))
CALL(index_put, ds_index_put(in[0], &in[1], 2, in[3], true))
CALL(take, ds_take(in[0], in[1]))
CALL(take_along_dim, ds_take_along_dim(in[0], in[1], 1))
CALL(masked_scatter, ds_masked_scatter(in[1], in[0], in[2]))
CALL(kron, ds_kron(in[0], in[1]))
CALL(tensordot, ds_tensordot(in[0], in[1], ds_shape(1, 2), ds_shape(0, -1)))
CALL(vander, ds_vander(in[0], 4, false))
CALL(cdist, ds_cdist(in[0], in[1], 0))
CALL(cdist_product, ds_cdist(in[0], in[1], 2))
CALL(cdist_3, ds_cdist(in[0], in[1], 3))
CALL(cov, ds_cov(in[0], 0))
CALL(rot90, ds_rot90(in[0], 3, 0, 2))

/* clang-format off */
#define CASES_MATH \
    {"fmod", "", call_fmod, .in = {X(3, 2, 3, 4), RANGE(0.3, 0.5, 2, 3, 1)}}, \
    {"pow_tensors", "", call_pow_tensors, .in = {RANGE(0.5, 2, 3, 2, 3, 4), X(2, 3, 1)}, .bench = {RANGE(0.5, 2, 1, 1 << 20), X(1, 1 << 20)}, \
     .torch = "x[0] ** x[1]"}, \
    {"pow_tensors", "exp2", call_exp2, .in = {X(2, 3, 4)}}, \
    {"atan2", "", call_atan2, .in = {X(3, 2, 3, 4), RANGE(0.5, 2, 2, 3, 1)}, .bench = {X(1, 1 << 20), X(1, 1 << 20)}, \
     .torch = "torch.atan2(x[0], x[1])"}, \
    {"hypot", "", call_hypot, .in = {X(3, 2, 3, 4), RANGE(0.5, 2, 2, 3, 1)}}, \
    {"xlogy", "", call_xlogy, .in = {X(3, 2, 3, 4), RANGE(0.5, 2, 2, 3, 1)}}, \
    {"atan", "", call_atan, .in = {RANGE(-3, 3, 2, 3, 4)}}, \
    {"asin", "", call_asin, .in = {RANGE(-0.9, 0.9, 2, 3, 4)}}, \
    {"acos", "", call_acos, .in = {RANGE(-0.9, 0.9, 2, 3, 4)}}, \
    {"asinh", "", call_asinh, .in = {RANGE(-3, 3, 2, 3, 4)}}, \
    {"acosh", "", call_acosh, .in = {RANGE(1.2, 3, 2, 3, 4)}}, \
    {"atanh", "", call_atanh, .in = {RANGE(-0.9, 0.9, 2, 3, 4)}}, \
    {"erfinv", "", call_erfinv, .in = {RANGE(-0.9, 0.9, 2, 3, 4)}}, \
    {"logit", "", call_logit, .in = {RANGE(0.2, 0.8, 2, 3, 4)}}, \
    {"add", "frac", call_frac, .in = {RANGE(0.1, 0.9, 2, 3, 4)}}, \
    {"gather", "cummax", call_cummax, .in = {X(3, 2, 5, 4)}}, \
    {"gather", "cummin", call_cummin, .in = {X(3, 2, 3, 7)}}, \
    {"log1p", "logcumsumexp", call_logcumsumexp, .in = {X(3, 2, 5, 2)}}, \
    {"gather", "mode", call_mode, .in = {X(3, 2, 5, 2)}}, \
    {"add", "diff", call_diff, .in = {X(2, 3, 5)}}, \
    {"sum", "trapezoid", call_trapezoid, .in = {X(2, 3, 5), X(1, 5)}}, \
    {"scatter_add", "scatter_reduce, sum", call_scatter_sum, .in = {X(2, 3, 4), LABEL(4, 2, 3, 6), X(2, 3, 6)}}, \
    {"mul", "scatter_reduce, prod", call_scatter_prod, .in = {X(2, 3, 4), LABEL(4, 2, 3, 6), X(2, 3, 6)}}, \
    {"div", "scatter_reduce, mean", call_scatter_mean, .in = {X(2, 3, 4), LABEL(4, 2, 3, 6), X(2, 3, 6)}}, \
    {"scatter_amax", "", call_scatter_amax, .in = {X(2, 3, 4), LABEL(4, 2, 3, 6), X(2, 3, 6)}}, \
    {"scatter_amax", "amin", call_scatter_amin, .in = {X(2, 3, 4), LABEL(4, 2, 3, 6), X(2, 3, 6)}}, \
    {"scatter", "index_copy", call_index_copy, .in = {X(2, 3, 4), LABEL(4, 1, 1), X(2, 3, 1)}}, \
    {"where", "index_fill", call_index_fill, .in = {X(2, 3, 4), LABEL(4, 1, 2)}}, \
    {"embedding", "index", call_index, .in = {X(3, 3, 4, 2), LABEL(3, 2, 2, 1), LABEL(4, 1, 5)}}, \
    {"index_add", "index_put", call_index_put, .in = {X(3, 3, 4, 2), LABEL(3, 2, 2, 1), LABEL(4, 1, 5), X(2, 5, 2)}}, \
    {"embedding", "take", call_take, .in = {X(2, 3, 4), LABEL(12, 2, 2, 5)}}, \
    {"gather", "take_along_dim", call_take_along_dim, .in = {X(2, 3, 4), LABEL(4, 2, 1, 5)}}, \
    {"where", "masked_scatter", call_masked_scatter, .in = {MASK(2, 3, 4), X(2, 3, 4), X(1, 12)}}, \
    {"mul", "kron", call_kron, .in = {X(2, 2, 3), X(3, 2, 1, 2)}}, \
    {"matmul", "tensordot", call_tensordot, .in = {X(3, 2, 3, 4), X(3, 3, 2, 4)}}, \
    {"cat", "vander", call_vander, .in = {X(1, 5)}}, \
    {"root", "cdist", call_cdist, .in = {X(3, 2, 3, 4), X(2, 5, 4)}}, \
    {"sqrt", "cdist by a product", call_cdist_product, .in = {X(2, 30, 3), RANGE(2, 4, 2, 2, 3)}}, \
    {"pow", "cdist, p = 3", call_cdist_3, .in = {X(2, 3, 4), RANGE(2, 4, 2, 2, 4)}}, \
    {"matmul", "cov", call_cov, .in = {X(2, 3, 6)}}, \
    {"flip", "rot90", call_rot90, .in = {X(3, 2, 3, 4)}},
/* clang-format on */
