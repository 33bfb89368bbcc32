/* device/cpu/table.h: which kernels the CPU has, family by family: the index of
 * this folder.
 *
 * A name here is a member of dsi_kernels or dsi_fusions and a function
 * KERNEL(name) in the family's file; its declaration is made from the member's
 * type, so that the compiler checks one against the other.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/cpu.h"
#include "device/cpu/simd/isa.h"

/* clang-format off */
#define CPU_KERNELS(X)                                                         \
    X(copy) X(fill)                                  /* pointwise/copy.c */    \
    X(unary) X(unary_dx) X(binary) X(affine)         /* pointwise/pointwise.c */ \
    X(compare) X(where)                              /* pointwise/compare.c */ \
    X(matmul)                                        /* gemm/gemm.c */         \
    X(conv2d) X(conv2d_dx) X(conv2d_dw)              /* conv/conv.c */         \
    X(max_pool2d) X(max_pool2d_dx)                   /* pool/pool.c */         \
    X(avg_pool2d) X(avg_pool2d_dx)                                             \
    X(softmax) X(softmax_dx)                         /* reduce/softmax.c */    \
    X(cross_entropy) X(cross_entropy_dx) X(cross_entropy_part_dx)              \
    X(batch_stats) X(batch_norm) X(batch_norm_dx)    /* reduce/norm.c */       \
    X(layer_norm) X(layer_norm_dx)                                             \
    X(reduce) X(norm)                                /* reduce/reduce.c */     \
    X(gather_rows) X(scatter_rows)                   /* index/index.c */       \
    X(scatter_add)                                                             \
    X(gather)                                        /* index/gather.c */      \
    X(dispatch) X(combine) X(combine_dw)             /* index/moe.c */         \
    X(group_rows) X(group_matmul) X(group_matmul_dw) /* gemm/groups.c */       \
    X(attention) X(attention_dx)                     /* attention/attention.c */ \
    X(optimizer) X(step_result) X(loss_scale)        /* optim/optim.c */       \
    X(halves_join) X(halves_split)                   /* optim/halves.c */

/* Not dropout: on the CPU its masks are PyTorch's, drawn in order. */
#define CPU_FUSIONS(X)                                                         \
    X(relu_max_pool2d)                               /* pool/pool.c */         \
    X(conv2d_dx_pooled) X(conv2d_dw_pooled)          /* conv/conv.c */         \
    X(conv2d_dx_bias) X(sum_channels)                                          \
    X(clamp) X(clamp_tensors) X(prelu)               /* pointwise/pointwise.c */ \
    X(mask_scale) X(mul_add)                                                   \
    X(cumsum)                                        /* reduce/cumsum.c */     \
    X(group_norm_dx)                                 /* reduce/norm.c */       \
    X(batch_norm_relu) X(batch_norm_relu_dx)                                   \
    X(amax)                                          /* reduce/reduce.c */     \
    X(vecdot)                                        /* reduce/vecdot.c */     \
    X(deviations)                                    /* reduce/deviations.c */ \
    X(nll_loss) X(nll_loss_dx)                       /* reduce/softmax.c */    \
    X(scatter) X(scatter_dx) X(scatter_sum)          /* index/index.c */       \
    X(resample)                                      /* index/resample.c */
/* clang-format on */

#define DECLARE_KERNEL(name) extern __typeof__(*((dsi_kernels *)0)->name) KERNEL(name);
#define DECLARE_FUSION(name) extern __typeof__(*((dsi_fusions *)0)->name) KERNEL(name);
CPU_KERNELS(DECLARE_KERNEL)
CPU_FUSIONS(DECLARE_FUSION)
#undef DECLARE_KERNEL
#undef DECLARE_FUSION
extern dsi_cpu_sum_ranks KERNEL(sum_ranks); /* reduce/sum_ranks.c */
