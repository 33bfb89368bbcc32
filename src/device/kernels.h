/* device/kernels.h: the contract for devices: typed tables of kernels, and the
 * formula, shapes and dtypes of each.
 *
 * dsi_kernels is the core: a device that fills it trains everything.
 * dsi_fusions is optional: each of its entries equals a composition of core
 * kernels, which its comment names, and which ops use where a device has no
 * such entry.
 *
 * Kernels know pointers, shapes, strides and dtypes; no tensors, no autograd.
 *
 * Invariants:
 * - Results stay on the device. No kernel hands a number to the host: a norm is
 *   a device scalar, and a bad label or index sets the device's fault flag
 *   (dsi_fault), which dsi_device_check reports at the next synchronisation.
 * - A kernel may return before its work is done. Work of one stream is done in
 *   the order of the calls. The callee copies option structs, views and arrays
 *   of spans before it returns: the caller may free them at once. Operands must
 *   live until the work is done, which dsi_cache_free takes care of.
 * - The status tells whether the work could be started: DS_OK, or a failure
 *   with its message (dsi_fail): DS_EINVAL for a dtype, DS_EDEVICE for an
 *   operation, that the kernel does not have.
 * - Outputs never overlap inputs, except where the entry says so.
 * - A NULL entry: ops that need it fail with a message that names them.
 *
 * Dtypes: operands have the same dtype unless the entry says otherwise. Kernels
 * that compute take all floating dtypes; they compute float16 and bfloat16 in
 * float32 and round once. Beside a 16-bit x, what a backward gets from its
 * forward (mean, rstd, lse, divisor, batch statistics) is float32, and an
 * optional weight or bias is float32 or 16-bit. Views marked "optional" have
 * p == NULL when they are absent.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "operations.h"
#include "optimizer.h"

#include <deepspeed/types.h>

typedef struct dsi_device dsi_device;

typedef struct dsi_stream {
    dsi_device *device;
    void *handle; /* the CPU has none: its stream is the calling thread */
} dsi_stream;

/* n dimensions of d[i] elements, s[i] elements apart; s[i] = 0 repeats
 * (broadcast inputs only), below 0 runs backwards (copy's input only). */
typedef struct dsi_view {
    void *p;
    ds_dtype dtype;
    int n;
    int64_t d[DS_MAX_DIMS], s[DS_MAX_DIMS];
} dsi_view;

/* The fault flag of a device, in its memory: the first bad label or index that
 * its kernels met since dsi_device_check cleared it. A kernel that meets one
 * sets the flag unless it is set already, touches no memory outside of its
 * operands, and may write anything to its outputs. */
typedef struct dsi_fault {
    int64_t op;       /* dsi_fault_op */
    int64_t value;    /* the label or index */
    int64_t place[2]; /* where it is in its operand; place[1] is -1: one number */
    int64_t classes;  /* valid ones are 0 .. classes - 1 */
} dsi_fault;

/* ---- options --------------------------------------------------------------- */

/* Index pairs are [vertical, horizontal]. */
typedef struct dsi_conv2d {
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups;
} dsi_conv2d;

typedef struct dsi_pool2d {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool exclude_pad;
    int64_t divisor; /* 0: the number of elements of the window */
    bool adaptive;   /* averages: windows i H / P to (i + 1) H / P rounded up; no
                        other field counts */
} dsi_pool2d;

/* How products of q and k become scores. */
typedef struct dsi_attention {
    double scale;
    double softcap; /* a score x becomes softcap tanh(x / softcap); 0: it stays */
    bool causal;    /* of query l the keys s <= l alone count */
    int64_t window; /* and of these, if > 0, the last `window`; only with causal */
} dsi_attention;

/* A gradient in pooled form: of a plane [N,C,H,W] only the maxima of its
 * windows have one.
 *   dense[n,c,index[n,c,p,q]] = value[n,c,p,q], 0 elsewhere;
 *   max[n,c,p,q] is the maximum itself.
 * Only for windows that do not overlap, so that no index occurs twice. */
typedef struct dsi_pooled {
    dsi_view value, max; /* [N,C,P,Q] */
    dsi_view index;      /* int32 [N,C,P,Q]: h W + w */
    int64_t h, w;        /* of the dense plane */
    bool relu;           /* values count only where max is positive */
} dsi_pooled;

typedef struct dsi_cross_entropy {
    int64_t ignore_index;
    double smoothing;
    int reduction; /* ds_reduction: 0 mean, 1 sum, 2 none */
} dsi_cross_entropy;

enum { DSI_BATCH_FIELDS = 8 }; /* of gather_batch, at most */

/* Random numbers by counter: Philox4x32-10 (Salmon et al., Parallel random
 * numbers: as easy as 1, 2, 3, SC 2011), as torch.cuda's generator.
 * base/philox.h has it in C. */
typedef struct dsi_philox {
    uint64_t seed, offset;
    const uint64_t *fresh_seed; /* optional, device memory: in place of seed, so that
                                   a replayed step draws new numbers */
} dsi_philox;

/* Attention of one new position. */
typedef struct dsi_attention_step {
    double scale, cap; /* of scores; cap tanh(score / cap), 0: none */
    int64_t window;    /* keys that are seen, the new one among them; 0: all */
} dsi_attention_step;

enum { DSI_STEP_DEPTH = 256 }; /* elements of a head, at most */

/* How attention_step divides a cache of that many rows, with `heads` heads of
 * all batches: two caches of one division give the same bits. */
enum {
    DSI_STEP_FEW = 512,    /* rows: fewer have few warps a head */
    DSI_STEP_LONG = 1024,  /* several blocks a head from here on */
    DSI_STEP_SPLIT = 256,  /* rows of each of them, at least */
    DSI_STEP_BLOCKS = 256, /* about, of all heads: two for each processor of an H100 */
};
/* Blocks of each head; 0: one, of few warps. */
static inline int dsi_step_division(int64_t rows, int64_t heads)
{
    if (rows < DSI_STEP_FEW) return 0;
    if (rows < DSI_STEP_LONG || heads < 1) return 1;
    int64_t fill = (DSI_STEP_BLOCKS + heads - 1) / heads, most = rows / DSI_STEP_SPLIT;
    return (int)(most < fill ? most : fill);
}

/* Which tokens a full expert does without: the last ones; those of the least
 * score, of equal ones the last; random ones. */
typedef enum dsi_drop { DSI_DROP_LAST, DSI_DROP_LEAST, DSI_DROP_RANDOM } dsi_drop;

enum { DSI_ROUTE_EXPERTS = 2048, DSI_TOPK_ROW = 2048 }; /* of route, and topk, at most */

typedef struct dsi_route {
    int64_t capacity; /* tokens that an expert takes, at most */
    int64_t rows;     /* of each expert: slot = expert rows + place */
    dsi_drop drop;
    bool by_choice;           /* all first choices have their places before any second one;
                                 only with DSI_DROP_LAST */
    const dsi_philox *random; /* of DSI_DROP_RANDOM; else NULL */
} dsi_route;

/* ---- the core ---------------------------------------------------------------
 * Pointwise kernels take views of equal shape (broadcast inputs have stride 0)
 * and any strides. */
typedef struct dsi_kernels {
    /* ---- memory: any dtypes, any strides ---- */

    /* y = x converted: to integers truncating, to bool != 0, to 16-bit floats
     * to nearest even */
    ds_status (*copy)(dsi_stream *s, dsi_view x, dsi_view y);
    ds_status (*fill)(dsi_stream *s, double value, dsi_view y);

    /* ---- pointwise ---- */

    /* y = op(x); p: the parameter of those that have one */
    ds_status (*unary)(dsi_stream *s, dsi_unary_op op, double p, dsi_view x, dsi_view y);
    /* dx from dy and from `saved`, which is x or y as DSI_UNARY_OPS says; dx
     * may be dy. Not for those whose dx is "none". */
    ds_status (*unary_dx)(dsi_stream *s, dsi_unary_op op, double p, dsi_view dy, dsi_view saved,
                          dsi_view dx);
    /* y = op(a, b), floats or int64; alpha: ADD's; y may be a or b */
    ds_status (*binary)(dsi_stream *s, dsi_binary_op op, double alpha, dsi_view a, dsi_view b,
                        dsi_view y);
    /* y: bool; a, b any dtype */
    ds_status (*compare)(dsi_stream *s, dsi_compare_op op, dsi_view a, dsi_view b, dsi_view y);
    /* y = factor x + term; y may be x */
    ds_status (*affine)(dsi_stream *s, double factor, double term, dsi_view x, dsi_view y);
    /* y = c ? a : b; c: bool; a, b, y any dtype, the same; y may be a or b */
    ds_status (*where)(dsi_stream *s, dsi_view c, dsi_view a, dsi_view b, dsi_view y);

    /* ---- products: any strides ---- */

    /* y [B,M,N] = a [B,M,K] b [B,K,N] + bias [N] (optional); y of 16-bit a and
     * b may be float32 */
    ds_status (*matmul)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y);

    /* ---- convolution: x [N,C,H,W], w [K,C/groups,R,S], y [N,K,P,Q]; any strides ---- */

    /* y[n,k,p,q] = b[k] + sum over c,r,s of
     *              x[n,c, p stride + r dilation - padding, q ...] w[k,c,r,s] */
    ds_status (*conv2d)(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                        dsi_view y);
    ds_status (*conv2d_dx)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                           dsi_view dx);
    ds_status (*conv2d_dw)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                           dsi_view dw);

    /* ---- pooling: x [N,C,H,W] -> y [N,C,P,Q] ---- */

    /* the maximum of each window, the first of equals; index int32 of y's shape
     * and strides: its h W + w */
    ds_status (*max_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                            dsi_view index);
    /* dx[index] += dy, else 0 */
    ds_status (*max_pool2d_dx)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx);
    ds_status (*avg_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y);
    ds_status (*avg_pool2d_dx)(dsi_stream *s, const dsi_pool2d *c, dsi_view dy, dsi_view dx);

    /* ---- softmax over dimension 1 of [outer,C,inner] ---- */

    /* y = e^x / sum e^x, or its logarithm */
    ds_status (*softmax)(dsi_stream *s, bool log, dsi_view x, dsi_view y);
    /* dx = y (dy - sum(dy y)); of the logarithm dy - e^y sum(dy) */
    ds_status (*softmax_dx)(dsi_stream *s, bool log, dsi_view dy, dsi_view y, dsi_view dx);
    /* x [N,C,I], label int64 [N,I], weight [C] optional -> loss [] or [N,I],
     * lse [N,I] = log sum e^x, divisor [] = what the mean divides by (the sum
     * of the weights of the labels that are used; 1 for sum and none). A label
     * outside of 0..C-1 that is not ignored is a fault: DSI_FAULT_LABEL, place
     * n I + i. */
    ds_status (*cross_entropy)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view x,
                               dsi_view label, dsi_view weight, dsi_view loss, dsi_view lse,
                               dsi_view divisor);
    ds_status (*cross_entropy_dx)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view dloss,
                                  dsi_view x, dsi_view label, dsi_view weight, dsi_view lse,
                                  dsi_view divisor, dsi_view dx);
    /* Some classes' part of the gradient, where lse is known: x [N,M] the
     * logits of classes first .. first + M - 1, label int64 [N], lse and scale
     * [N] of x's dtype, float32 or float64; dx [N,M] of that dtype, or of 16
     * bits beside float32; it may be x.
     *   dx[i,j] = (e^(x[i,j] - lse[i]) - (label[i] == first + j)) scale[i]
     * Unit stride along M. */
    ds_status (*cross_entropy_part_dx)(dsi_stream *s, int64_t first, dsi_view x, dsi_view label,
                                       dsi_view lse, dsi_view scale, dsi_view dx);

    /* ---- normalisation ---- */

    /* x [N,C,I] -> mean and biased variance [C] */
    ds_status (*batch_stats)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view var);
    /* y = (x - mean) rstd weight + bias; all [C] but x, y [N,C,I]; weight, bias
     * optional */
    ds_status (*batch_norm)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view rstd,
                            dsi_view weight, dsi_view bias, dsi_view y);
    /* batch: mean and rstd are those of x itself, so that dx contains their
     * derivatives. dx, dw, db optional. */
    ds_status (*batch_norm_dx)(dsi_stream *s, bool batch, dsi_view dy, dsi_view x, dsi_view mean,
                               dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                               dsi_view db);
    /* x, y [M,D], contiguous; weight, bias [D] optional; mean, rstd [M].
     * Without mean (optional) it is RMS norm: the mean is 0 there, rstd is 1 /
     * sqrt(mean of x^2 + eps). */
    ds_status (*layer_norm)(dsi_stream *s, double eps, dsi_view x, dsi_view weight, dsi_view bias,
                            dsi_view y, dsi_view mean, dsi_view rstd);
    ds_status (*layer_norm_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view weight,
                               dsi_view mean, dsi_view rstd, dsi_view dx, dsi_view dw, dsi_view db);

    /* ---- reductions ---- */

    /* SUM: y = factor sum x; x and y have the same number of dimensions, y has
     * size 1 where it is summed; y of a 16-bit x may be float32; no index.
     * MAX: x [outer,C,inner], y (optional) and index (int64) [outer,1,inner];
     * C > 0; factor is 1. Both also take int64, with factor 1. */
    ds_status (*reduce)(dsi_stream *s, dsi_reduce_op op, double factor, dsi_view x, dsi_view y,
                        dsi_view index);
    /* norm [] (float64) = the p-norm of all elements of x[0..n-1]: p = 1, 2,
     * INFINITY. Views of different dtypes; sums in float64. */
    ds_status (*norm)(dsi_stream *s, double p, int n, const dsi_view *x, dsi_view norm);

    /* ---- by index: int64. One outside of its range is a fault ---- */

    /* y[i,:] = w[index[i],:], any dtype; DSI_FAULT_ROW, place i */
    ds_status (*gather_rows)(dsi_stream *s, dsi_view w, dsi_view index, dsi_view y);
    /* dw = 0, then dw[index[i],:] += dy[i,:] in the order of i; rows whose
     * index is `skip` are left out; DSI_FAULT_ROW */
    ds_status (*scatter_rows)(dsi_stream *s, dsi_view dy, dsi_view index, int64_t skip,
                              dsi_view dw);
    /* y[o,k,i] = x[o,index[o,k,i],i], x [outer,C,inner], y [outer,K,inner], any
     * dtype; DSI_FAULT_ELEMENT, place [o, k inner + i] */
    ds_status (*gather)(dsi_stream *s, dsi_view x, dsi_view index, dsi_view y);
    /* dx = 0, then dx[o,index[o,k,i],i] += dy[o,k,i] in the order of k;
     * DSI_FAULT_ELEMENT */
    ds_status (*scatter_add)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx);

    /* ---- mixture of experts: slot int64 [S,k] names rows of the larger operand,
     * each at most once; < 0: none. Unit stride along D. w [S,k] is float32
     * beside 16-bit rows ---- */

    /* y [N,D] = 0, but y[slot[s,k],:] = w[s,k] x[s,:]; w optional: 1 */
    ds_status (*dispatch)(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y);
    /* y[s,:] = sum over k of w[s,k] x[slot[s,k],:]; w optional: 1 */
    ds_status (*combine)(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y);
    /* dw[s,k] = sum over d of dy[s,d] x[slot[s,k],d]; 0 where there is no slot */
    ds_status (*combine_dw)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view slot, dsi_view dw);

    /* ---- rows of groups, as of experts that drop no token: those of group g are rows
     * begin[g] .. begin[g + 1] - 1; begin int64 [G+1], contiguous; matrices w[0..G-1] of
     * one shape, dtype and strides ---- */

    /* id int64 [S,k] -> begin, and row int64 [S,k]: the row of each, those of a
     * group in the order of S k; contiguous. DSI_FAULT_GROUP, place i, row[i] =
     * -1 */
    ds_status (*group_rows)(dsi_stream *s, dsi_view id, dsi_view begin, dsi_view row);
    /* y [R,N]: y[r,:] = x[r,:] w[g] of r's group; x [R,K], w[g] [K,N]; any
     * strides */
    ds_status (*group_matmul)(dsi_stream *s, dsi_view x, dsi_view begin, const dsi_view *w,
                              dsi_view y);
    /* w[g] [M,N] = sum over g's rows r of a[r,:]^T b[r,:], 0 without rows; a
     * [R,M], b [R,N]; any strides; a group whose w[g].p is NULL is left out */
    ds_status (*group_matmul_dw)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view begin,
                                 const dsi_view *w);

    /* ---- attention: q [B,L,D], k [K,S,D], v [K,S,E], y [B,L,E]; mask [B,L,S]
     * optional, bool or, of scores without a cap, q's dtype; unit stride along D
     * and E. K divides B: batch b of q attends to batch b / (B / K) of k and v,
     * whose gradients are sums over the B / K. All may have one more dimension in
     * front, of one size, over which the same is done for each index ---- */

    /* y = softmax(capped(scale q k^T) + mask) v, of the keys that count. lse
     * [B,L] = log of the sum of e^score of a row. A row whose scores are all
     * -inf, or of which no key counts, gives 0. */
    ds_status (*attention)(dsi_stream *s, const dsi_attention *c, dsi_view q, dsi_view k,
                           dsi_view v, dsi_view mask, dsi_view y, dsi_view lse);
    ds_status (*attention_dx)(dsi_stream *s, const dsi_attention *c, dsi_view dy, dsi_view q,
                              dsi_view k, dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                              dsi_view dq, dsi_view dk, dsi_view dv);

    /* ---- optimizers ---- */

    /* One step of the rule on each of n spans, whose g counts g_scale times. It
     * writes nothing while the device's fault flag is set. */
    ds_status (*optimizer)(dsi_stream *s, const dsi_optimizer *c, int n, const dsi_span *x);
    /* Decides on the device what the step does: unscale [] float64, 1 / loss
     * scale; loss [] of any floating dtype and norm [] float64, of the scaled
     * gradients, are optional -> result float64 [5], a dsi_step_result:
     *   norm = unscale norm, g_factor = unscale min(1, max_norm / (norm + 1e-6)),
     *   skip = the fault flag is set, or what must be finite is not */
    ds_status (*step_result)(dsi_stream *s, const dsi_step_limits *c, dsi_view unscale,
                             dsi_view loss, dsi_view norm, dsi_view result);
    /* An update of x float64 [5], a dsi_loss_scale: if it has skips the scale
     * times backoff, else after `interval` updates times growth; rounded to
     * float32, above 0, finite. While the fault flag is set only skips is
     * written: 0. */
    ds_status (*loss_scale)(dsi_stream *s, const dsi_scale_rule *c, dsi_view x);
    /* Halves of float32 (base/half.h); x float32, p bfloat16, rest int16, each
     * contiguous, of as many elements.
     * x = p and rest joined */
    ds_status (*halves_join)(dsi_stream *s, dsi_view p, dsi_view rest, dsi_view x);
    /* x is untied in place, and split into p and rest; both or none */
    ds_status (*halves_split)(dsi_stream *s, dsi_view x, dsi_view p, dsi_view rest);
} dsi_kernels;

/* ---- fusions: optional. "=" names the composition that ops use without ------- */
typedef struct dsi_fusions {
    /* max_pool2d of the ReLU of x; index where the maximum is negative: any of
     * the window.
     * = unary RELU (x, t); max_pool2d (t, y, index) */
    ds_status (*relu_max_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                                 dsi_view index);
    /* dx [N,C,H,W] = 0, but dy [N,C,P,Q] at index where max is positive; no
     * index occurs twice. A device that has it needs no conv2d_dx_pooled. =
     * unary_dx RELU (dy, max, t); max_pool2d_dx (t, index, dx) */
    ds_status (*relu_max_pool2d_dx)(dsi_stream *s, dsi_view dy, dsi_view max, dsi_view index,
                                    dsi_view dx);
    /* Both, or neither: with both, max-pooling without overlaps hands its
     * gradient down in pooled form.
     * = max_pool2d_dx (value, index, t); conv2d_dx or conv2d_dw of t */
    ds_status (*conv2d_dx_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                  dsi_view w, dsi_view dx);
    ds_status (*conv2d_dw_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                  dsi_view x, dsi_view dw);
    /* dx, dw, and db beside dw, of a gradient in pooled form; each may be
     * absent. Beside relu_max_pool2d_dx. *done false: nothing was computed,
     * since for these sizes it would not pay. Without outputs it only says
     * whether it would. = relu_max_pool2d_dx (value, max, index, t), without
     * relu max_pool2d_dx; conv2d_dx and conv2d_dw_db of t */
    ds_status (*conv2d_back_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                    dsi_view x, dsi_view w, dsi_view dx, dsi_view dw, dsi_view db,
                                    bool *done);
    /* dx + b[c]: a transposed convolution with its bias, rounded once
     * = in float32: conv2d_dx (dy, w, t); binary ADD (t, b seen as
     * [1,C,1,1]) */
    ds_status (*conv2d_dx_bias)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                                dsi_view b, dsi_view dx);
    /* db[k] = sum over n,p,q of dy[n,k,p,q] beside dw
     * = conv2d_dw; reduce SUM (dy, db seen as [1,K,1,1]) */
    ds_status (*conv2d_dw_db)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                              dsi_view dw, dsi_view db);
    /* y [1,M,N] = a [1,M,K] b [1,K,N], and sums[m] = sum over k of a[0,m,k]
     * = matmul; reduce SUM (a, sums seen as [1,M,1]) */
    ds_status (*matmul_sums)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y, dsi_view sums);
    /* y[c] = sum over n,h,w of x[n,c,h,w]
     * = reduce SUM (x, y seen as [1,C,1,1]) */
    ds_status (*sum_channels)(dsi_stream *s, dsi_view x, dsi_view y);
    /* mean and rstd = (var + eps)^-1/2 [C] of x [N,C,I], var the biased
     * variance. The running ones, both or none, move by momentum to the mean
     * and to the variance without bias; 16-bit ones are rounded once. factor
     * and term [C], both or none: rstd weight and bias, of which each is
     * optional. = batch_stats (x, mean, var); affine ((1 - momentum)
     * running_mean); binary ADD (running_mean, mean, momentum); the same of
     * running_var and var, with momentum N I / (N I - 1); affine (var + eps,
     * t); unary POW (t, rstd, -0.5); binary MUL (rstd, weight, factor); copy
     * (bias, term) */
    ds_status (*batch_norm_stats)(dsi_stream *s, double eps, double momentum, dsi_view x,
                                  dsi_view mean, dsi_view rstd, dsi_view running_mean,
                                  dsi_view running_var, dsi_view weight, dsi_view bias,
                                  dsi_view factor, dsi_view term);
    /* Both, or neither. y = ReLU of (x - mean) factor + term + add, add
     * (optional), x and y [N,C,I], in the bits of = batch_norm (x, mean, factor
     * as rstd, term as bias, y); binary ADD (y, add, y); unary RELU (y, y) */
    ds_status (*batch_norm_relu)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view factor,
                                 dsi_view term, dsi_view add, dsi_view y);
    /* Gradients of it without add, for mean and rstd of x itself, rstd weight =
     * factor; dx, dw, db optional.
     * = batch_norm_relu (x, t); unary_dx RELU (dy, t, t); batch_norm_dx of t */
    ds_status (*batch_norm_relu_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view mean,
                                    dsi_view rstd, dsi_view factor, dsi_view term, dsi_view dx,
                                    dsi_view dw, dsi_view db);
    /* group_norm's gradients: dy, x, dx [N,C,I], contiguous; mean, rstd [N,G];
     * weight [C] optional; dx, dw, db optional, the last two [N,C] before they
     * are summed over N. = dx: batch_norm_dx with batch of dy weight, seen as
     * [1,N G,C/G I]; dw, db: batch_norm_dx of dy, seen as [1,N C,I], with mean
     * and rstd of each channel's group */
    ds_status (*group_norm_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view mean, dsi_view rstd,
                               dsi_view weight, dsi_view dx, dsi_view dw, dsi_view db);
    /* The gradient of y = ReLU, of which dy = a + b; dx may be a.
     * = binary ADD (a, b, t); unary_dx RELU (t, y, dx) */
    ds_status (*relu_dx_of_sum)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y, dsi_view dx);
    /* y = a b + alpha c d; y may be none of them; beside 16-bit a and c, b and
     * d may be float32.
     * = binary MUL (a, b, y); MUL (c, d, t); ADD (y, t, alpha) */
    ds_status (*mul_add)(dsi_stream *s, double alpha, dsi_view a, dsi_view b, dsi_view c,
                         dsi_view d, dsi_view y);
    /* y = min(max(x, low), high); NaN stays
     * = binary MAXIMUM (x, low, t); MINIMUM (t, high, y) */
    ds_status (*clamp)(dsi_stream *s, double low, double high, dsi_view x, dsi_view y);
    /* y = min(max(x, low), high) of three views; NaN stays
     * = binary MAXIMUM (x, low, t); MINIMUM (t, high, y) */
    ds_status (*clamp_tensors)(dsi_stream *s, dsi_view x, dsi_view low, dsi_view high, dsi_view y);
    /* y = x > 0 ? x : w x
     * = compare LT (0, x, c); binary MUL (w, x, t); where (c, x, t, y) */
    ds_status (*prelu)(dsi_stream *s, dsi_view w, dsi_view x, dsi_view y);
    /* y[o,k,i] = sum over j <= k of x[o,j,i], or over j >= k if reverse; x, y
     * [outer,C,inner], floats or int64.
     * = copy (x, y); for n = 1, 2, 4, ... below C: t = y; binary ADD of y from
     * element n on and t up to C - n, to y */
    ds_status (*cumsum)(dsi_stream *s, bool reverse, dsi_view x, dsi_view y);
    /* y = max of x over the dimensions in which y has size 1, floats; NaN where
     * one
     * is.
     * = copy (x, with those dimensions last, t [outer,C,1]); reduce MAX (t,
     * y) */
    ds_status (*amax)(dsi_stream *s, dsi_view x, dsi_view y);
    /* y[m] = sum over k of a[m,k] b[m,k]; a, b [M,K], float32 or float64,
     * contiguous; b may be a; y [M]. = binary MUL (a, b, t); reduce SUM (t, y
     * seen as [M,1]) */
    ds_status (*vecdot)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y);
    /* sum[m] = sum over k of (x[m,k] - mean of x[m])^2, 0 if they are equal; x
     * [M,K], float32 or float64, contiguous; sum [M], float64; mean + rest [M]
     * of x's dtype: the means, and what is lost by their rounding. = reduce SUM
     * (1/K, x, mean); binary ADD (-1, x, mean, d); reduce SUM (1/K, d, rest);
     * binary ADD (-1, d, rest, d); copy (d, e); binary MUL (e, e, e); reduce
     * SUM (e, sum) */
    ds_status (*deviations)(dsi_stream *s, dsi_view x, dsi_view sum, dsi_view mean, dsi_view rest);
    /* y = x, y[o,index[o,k,i],i] = src[o,k,i] in the order of k; x, y
     * [outer,C,inner], src and index [outer,K,inner], any dtype, contiguous;
     * DSI_FAULT_ELEMENT, place [o, k inner + i]. = from, taken: the last k of
     * each place and whether there is one, found on the host; gather (src,
     * from, t); where (taken, t, x, y) */
    ds_status (*scatter)(dsi_stream *s, dsi_view x, dsi_view index, dsi_view src, dsi_view y);
    /* dx = dy, but 0 at the places that the index names; dsrc [outer,K,inner]:
     * dy of the place where k is its last, else 0 = where (taken, 0, dy, dx);
     * scatter_add (where (taken, dy, 0), from, dsrc) */
    ds_status (*scatter_dx)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx, dsi_view dsrc);
    /* y = x + alpha t, t[o,c,i] = sum over the k with index[o,k,i] = c, in
     * their order, of src[o,k,i]; floats, of 16 bits rounded once; shapes and
     * faults as of scatter, but the index as gather takes it. = scatter_add
     * (src, index, t); binary ADD (x, t, alpha, y) */
    ds_status (*scatter_sum)(dsi_stream *s, double alpha, dsi_view x, dsi_view index, dsi_view src,
                             dsi_view y);
    /* x [N,C,I], label int64 [N,I], weight [C] optional -> loss [] or [N,I],
     * divisor []: -weight[label] x[label], 0 where the label is ignored;
     * c->smoothing does not count; DSI_FAULT_ELEMENT, place [n, i] = gather (x,
     * label as [N,1,I]); gather_rows (weight, label); binary MUL, reduce
     * SUM */
    ds_status (*nll_loss)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view x, dsi_view label,
                          dsi_view weight, dsi_view loss, dsi_view divisor);
    ds_status (*nll_loss_dx)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view dloss,
                             dsi_view label, dsi_view weight, dsi_view divisor, dsi_view dx);
    /* y[o,k,i] = sum over e = begin[k] .. begin[k + 1] - 1 of weight[e]
     * x[o,index[e],i]; x [outer,C,inner], y [outer,K,inner], float32 or
     * float64, contiguous; begin int64 [K+1]; index int64, inside of C, and
     * weight of x's dtype [E]. = gather (x, index, t [outer,E,inner]); binary
     * MUL (t, weight, t); scatter_add (t, k of each e, y) */
    ds_status (*resample)(dsi_stream *s, dsi_view x, dsi_view begin, dsi_view index,
                          dsi_view weight, dsi_view y);
    /* y = keep ? factor x : 0; keep: bool, contiguous
     * = affine (factor x, y); where (keep, y, 0, y) */
    ds_status (*mask_scale)(dsi_stream *s, double factor, dsi_view x, dsi_view keep, dsi_view y);
    /* keep[i] = (word i mod 4 of Philox(seed, offset + i / 4)) < (1 - p) 2^32,
     * i counting row-major; y = keep ? factor x : 0; keep: bool, contiguous. =
     * keep drawn on the host by PyTorch's CPU generator (the same distribution,
     * other numbers), copied; mask_scale */
    ds_status (*dropout)(dsi_stream *s, const dsi_philox *random, double p, double factor,
                         dsi_view x, dsi_view y, dsi_view keep);
    /* Both, or neither: attention and attention_dx of the core with dropout of
     * the weights, whose mask is drawn again in each direction:
     *   y = w v, w = softmax(scores + mask) keep / (1 - p), p = 1: w = 0
     *   keep[b,i,j] = (word 2 (i / 8 mod 2) + j / 8 mod 2 of Philox(seed, {key,
     *   query, offset + b})) < (1 - p) 2^32, query = i / 16 * 8 + i mod 8, key the
     *   same of j; b counts the batches of q, those of a dimension in front too.
     * lse is that without dropout. A row whose scores are all -inf gives 0. =
     * matmul (q, k^T, t); affine (scale t, t); unary TANH between two affine of
     * the cap; binary ADD (t, mask, t); softmax (t), 0 in such rows; dropout of
     * it by other numbers; matmul (t, v, y); and their gradients */
    ds_status (*attention_dropout)(dsi_stream *s, const dsi_philox *random, double p,
                                   const dsi_attention *c, dsi_view q, dsi_view k, dsi_view v,
                                   dsi_view mask, dsi_view y, dsi_view lse);
    ds_status (*attention_dropout_dx)(dsi_stream *s, const dsi_philox *random, double p,
                                      const dsi_attention *c, dsi_view dy, dsi_view q, dsi_view k,
                                      dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                                      dsi_view dq, dsi_view dk, dsi_view dv);
    /* A batch of a data set: index int64 [B], n fields, all contiguous, less
     * than 2^31 elements a row: x [N,C,I], y [B,C,I]. Field 0: y[b,c,i] =
     * table[c, x[index[b],c,i]], rounded to y's dtype; x uint8, table float32
     * [C,256]. Others: y[b] = x[index[b]], of x's dtype. A field whose y.p is
     * NULL is left out. An index outside of 0 .. N - 1:
     * DSI_FAULT_ROW.
     * = the host's loop over the bytes (data/transform.c), copied */
    ds_status (*gather_batch)(dsi_stream *s, dsi_view index, dsi_view table, int n,
                              const dsi_view *x, const dsi_view *y);
    /* Tokens to experts (nn/gate.h): score, second [S,E] float32, second
     * optional: score; used int64 [S] optional -> expert, place, slot
     * (optional) int64 [S,k], counts int64 [3,E]; all without gaps.
     *   expert[s,j]: of the experts that are not expert[s,0..j-1] the first largest by
     *   score[s], for j > 0 by second[s]; NaN is not larger than a number, nor a
     *   number larger than NaN, in a loop from the lowest expert on
     *   counts[0]: tokens whose used is not 0 and that chose the expert; counts[1]: by
     *   choice 0 alone if by_choice, else the same; counts[2]: min(counts[0], capacity)
     *   place[s,j]: 0, 1, ... of the tokens that the expert takes, in the order of the
     *   tokens; by_choice: of the choices, then the tokens; -1: dropped, or not used
     * RANDOM keeps those of the lowest word s mod 4 of Philox(seed, offset + s
     * / 4), of equal ones the first; LEAST: NaN is a score of -1. = the same on
     * the host (nn/gate.c), where random tokens are drawn by PyTorch's CPU
     * generator (the same distribution, others) */
    ds_status (*route)(dsi_stream *s, const dsi_route *c, dsi_view score, dsi_view second,
                       dsi_view used, dsi_view expert, dsi_view place, dsi_view slot,
                       dsi_view counts);
    /* index[m,j], int64 [M,k]: where the j-th largest of row m of x [M,N] is,
     * of equal ones the first; NaN is larger than numbers, -0 equals 0;
     * contiguous, not of float64,
     * N <= DSI_TOPK_ROW
     * = the host's places (ops/sort.c), copied */
    ds_status (*topk)(dsi_stream *s, dsi_view x, dsi_view index);
    /* u[i] = low + (high - low) (word i mod 4 of Philox(seed, offset + i / 4)
     * without its last 8 bits) 2^-32; y = u or, of Gumbel's distribution,
     * -log(-log u); y float32, contiguous
     * = the host's draws, copied; unary */
    ds_status (*noise)(dsi_stream *s, const dsi_philox *random, bool gumbel, double low,
                       double high, dsi_view y);
    /* y[i] = begin + i step, computed in float64; y [n] of any dtype
     * = the host's values, copied */
    ds_status (*arange)(dsi_stream *s, double begin, double step, dsi_view y);
    /* Attention of a new position of each row, behind those in a cache: q, y
     * [B,H,D], k, v [B,G,D], rows of D contiguous; cache_k, cache_v [B,G,T,D];
     * at, pads int64 [B], contiguous, pads optional (zeros); cos, sin [T or
     * more,R] float32, both or none. Not of float64. q and k turn by position
     * at - pads; k and v go into row at of the caches; y is attention to rows
     * pads .. at, the last `window` of them. Positions are read from memory: a
     * graph may repeat it for the next one. A row outside of the cache:
     * DSI_FAULT_PLACE, place [b, -1]. = binary MUL, ADD of the halves of q and
     * k (ops/rotary.c); copy (k, its row), copy (v, its row); attention (q,
     * cache_k, cache_v, mask of those rows); with a cap matmul, affine, unary
     * TANH, softmax, matmul in its place */
    ds_status (*attention_step)(dsi_stream *s, const dsi_attention_step *o, dsi_view q, dsi_view k,
                                dsi_view v, dsi_view cache_k, dsi_view cache_v, dsi_view at,
                                dsi_view pads, dsi_view cos, dsi_view sin, dsi_view y);
    /* token[b] = the index of the largest element of row b of x [B,V], the
     * first of equals; then counters += 1. token int64 [B], counters int64 [N]
     * contiguous, optional. Rows of x are contiguous, not of float64. A NaN is
     * smaller than all, but as the first element the largest. = reduce MAX (x,
     * t, token), except for NaNs; binary ADD (counters, 1) */
    ds_status (*choose_token)(dsi_stream *s, dsi_view x, dsi_view token, dsi_view counters);
    /* y = x rstd (weight + term), rstd = (mean of x^2 over D + eps)^-1/2, of x
     * [M,D]; contiguous, of one dtype; 16 bits are rounded once = in float32 at
     * least: affine (weight + term, t); layer_norm (x, t, y) without mean */
    ds_status (*rms_norm_shifted)(dsi_stream *s, double eps, double term, dsi_view x,
                                  dsi_view weight, dsi_view y);
} dsi_fusions;

/* The names that messages use: "relu", "adam". */
const char *dsi_unary_name(dsi_unary_op op);
const char *dsi_unary_dx_name(dsi_unary_op op); /* "relu_dx" */
const char *dsi_binary_name(dsi_binary_op op);
const char *dsi_compare_name(dsi_compare_op op);
const char *dsi_reduce_name(dsi_reduce_op op);
const char *dsi_rule_name(dsi_rule rule);
