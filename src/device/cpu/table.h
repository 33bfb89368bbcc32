/* device/cpu/table.h: which kernels the CPU has, family by family: the index of this folder.
 *
 * A name here is a member of dsi_kernels and a function KERNEL(name) in the family's file; its
 * declaration is made from the member's type, so that the compiler checks one against the other.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_TABLE_H
#define DSI_DEVICE_CPU_TABLE_H

#include "device/cpu/simd/isa.h"

/* clang-format off */
#define COPY_KERNELS(X)      X(copy) X(fill) /* copy.c */
#define POINTWISE_KERNELS(X) /* pointwise.c */                                                     \
    X(add) X(mul) X(div) X(affine) X(pow) X(eq) X(lt) X(where) X(abs) X(exp) X(log) X(sqrt)        \
    X(relu) X(gelu) X(gelu_tanh) X(sigmoid) X(tanh) X(relu_dx) X(sigmoid_dx) X(tanh_dx)            \
    X(gelu_dx) X(gelu_tanh_dx) X(abs_dx) X(mask_scale)
#define MATMUL_KERNELS(X) X(matmul) /* gemm.c */
#define CONV_KERNELS(X) /* conv*.c */                                                              \
    X(conv2d) X(conv2d_dx) X(conv2d_dw)                                                            \
    X(conv2d_dx_pooled) X(conv2d_dw_pooled) X(sum_channels)
#define POOL_KERNELS(X) /* pool.c */                                                               \
    X(max_pool2d) X(max_pool2d_dx) X(pooled_to_dense) X(avg_pool2d) X(avg_pool2d_dx)               \
    X(adaptive_avg_pool2d) X(adaptive_avg_pool2d_dx)
#define SOFTMAX_KERNELS(X) /* softmax.c */                                                         \
    X(softmax) X(log_softmax) X(softmax_dx) X(log_softmax_dx) X(cross_entropy) X(cross_entropy_dx)
#define NORM_KERNELS(X) /* norm.c */                                                               \
    X(batch_stats) X(batch_norm) X(batch_norm_dx) X(layer_norm) X(layer_norm_dx)
#define REDUCE_KERNELS(X)    X(sum) X(max) X(norm) /* reduce.c */
#define RANKS_KERNELS(X)     X(sum_ranks) /* ranks.c */
#define INDEX_KERNELS(X)     X(gather_rows) X(scatter_rows) X(scatter_max) X(gather) X(scatter_add) /* index.c */
#define MOE_KERNELS(X)       X(dispatch) X(combine) X(combine_dw) /* moe.c */
#define ATTENTION_KERNELS(X) X(attention) X(attention_dx) /* attention.c */
#define OPTIM_KERNELS(X) X(sgd) X(adam) X(adagrad) X(rmsprop) X(adadelta) X(lion) X(lamb) /* optim.c */

#define CPU_KERNELS(X)                                                                             \
    COPY_KERNELS(X)                                                                                \
    POINTWISE_KERNELS(X)                                                                           \
    MATMUL_KERNELS(X)                                                                              \
    CONV_KERNELS(X)                                                                                \
    POOL_KERNELS(X)                                                                                \
    SOFTMAX_KERNELS(X)                                                                             \
    NORM_KERNELS(X)                                                                                \
    REDUCE_KERNELS(X)                                                                              \
    RANKS_KERNELS(X)                                                                               \
    INDEX_KERNELS(X)                                                                               \
    MOE_KERNELS(X)                                                                                 \
    ATTENTION_KERNELS(X)                                                                           \
    OPTIM_KERNELS(X)

/* clang-format on */
#define DECLARE(name) extern __typeof__(*((dsi_kernels *)0)->name) KERNEL(name);
CPU_KERNELS(DECLARE)
#undef DECLARE

#endif
