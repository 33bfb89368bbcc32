/* ops/table.h: every op that the graph knows, one a line.
 *
 * Each name is a `const dsi_op dsi_op_<name>` in the file of its family. Ops
 * that are composed of others (mse_loss, stack, flatten) are not here: their
 * parts record themselves. Tests go through this list, so an op without a test
 * is found.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "autograd/node.h"

#define DSI_OPS(X) \
    X(add) \
    X(mul) \
    X(div) \
    X(affine) \
    X(pow) \
    X(where) \
    X(maximum) \
    X(minimum) \
    X(remainder) \
    X(fmod) \
    X(pow_tensors) \
    X(atan2) \
    X(hypot) \
    X(xlogy) \
    X(atan) \
    X(asin) \
    X(acos) \
    X(asinh) \
    X(acosh) \
    X(atanh) \
    X(erfinv) \
    X(logit) \
    X(clamp) \
    X(clamp_tensors) \
    X(abs) \
    X(exp) \
    X(log) \
    X(sqrt) \
    X(relu) \
    X(gelu) \
    X(gelu_tanh) \
    X(silu) \
    X(sigmoid) \
    X(tanh) \
    X(sin) \
    X(cos) \
    X(erf) \
    X(expm1) \
    X(log1p) \
    X(leaky_relu) \
    X(elu) \
    X(softplus) \
    X(hardswish) \
    X(mish) \
    X(hardsigmoid) \
    X(logsigmoid) \
    X(selu) \
    X(celu) \
    X(huber) \
    X(rsqrt) \
    X(floor) \
    X(ceil) \
    X(round) \
    X(sign) \
    X(matmul) \
    X(linear) \
    X(addmm) \
    X(conv2d) \
    X(conv_transpose2d) \
    X(max_pool2d) \
    X(avg_pool2d) \
    X(adaptive_avg_pool2d) \
    X(softmax) \
    X(log_softmax) \
    X(cross_entropy) \
    X(linear_cross_entropy) \
    X(nll_loss) \
    X(binary_cross_entropy) \
    X(batch_norm) \
    X(group_norm) \
    X(layer_norm) \
    X(rms_norm) \
    X(sum) \
    X(max) \
    X(amax) \
    X(logsumexp) \
    X(vecdot) \
    X(deviations) \
    X(root) \
    X(cumsum) \
    X(reshape) \
    X(permute) \
    X(slice) \
    X(expand) \
    X(cat) \
    X(embedding) \
    X(embedding_bag) \
    X(gather) \
    X(resample) \
    X(index_add) \
    X(scatter) \
    X(scatter_add) \
    X(scatter_amax) \
    X(pad) \
    X(flip) \
    X(roll) \
    X(prelu) \
    X(dispatch) \
    X(combine) \
    X(exchange_rows) \
    X(all_reduce_sum) \
    X(grouped_linear) \
    X(dropout) \
    X(attention) X(attention_qkvpacked) X(rotary_embedding) X(cast) X(clone)

#define DSI_DECLARE_OP(name) extern const dsi_op dsi_op_##name;
DSI_OPS(DSI_DECLARE_OP)
#undef DSI_DECLARE_OP

extern const dsi_op *const dsi_ops[]; /* ends with NULL */
