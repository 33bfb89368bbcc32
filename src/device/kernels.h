/* device/kernels.h: THE kernel table: one typed pointer a kernel, its formula above it.
 *
 * Kernels know pointers, shapes, strides and dtypes; no tensors, no autograd. Operands have the same
 * dtype unless said. A kernel returns DS_OK, or sets the message by dsi_fail: DS_EINVAL for a dtype
 * that it has not. A kernel takes all floating dtypes for what computes (optimizers: see dsi_span);
 * float16 and bfloat16 ones are computed in float32 and rounded once. Beside a 16-bit x, what a backward
 * gets from its forward (mean, rstd, lse, divisor, batch statistics) is float32, and an optional weight or
 * bias either; where said, a sum may be float32 too. norm takes views of different dtypes.
 * A NULL pointer in the table: this device cannot do it. Views marked "optional" have p == NULL when absent.
 * Outputs never overlap inputs, except where said.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_KERNELS_H
#define DSI_DEVICE_KERNELS_H

#include <deepspeed/types.h>

typedef struct dsi_device dsi_device;

typedef struct dsi_stream {
    dsi_device *device;
    void *handle; /* the CPU has none: its stream is the calling thread */
} dsi_stream;

/* n dimensions of d[i] elements, s[i] elements apart; s[i] = 0 repeats (broadcast inputs only). */
typedef struct dsi_view {
    void *p;
    ds_dtype dtype;
    int n;
    int64_t d[DS_MAX_DIMS], s[DS_MAX_DIMS];
} dsi_view;

/* Index pairs are [vertical, horizontal]. */
typedef struct dsi_conv2d {
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups;
} dsi_conv2d;

typedef struct dsi_pool2d {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool exclude_pad;
    int64_t divisor; /* 0: the window's own */
    bool relu; /* max: of the ReLU of x; index where the maximum is negative: any of the window */
} dsi_pool2d;

/* A gradient in pooled form: of a plane [N,C,H,W] only the maxima of its windows have one.
 *   dense[n,c,index[n,c,p,q]] = value[n,c,p,q], 0 elsewhere; max[n,c,p,q] is the maximum itself.
 * Only for windows that do not overlap, so that no index occurs twice. */
typedef struct dsi_pooled {
    dsi_view value, max; /* [N,C,P,Q] */
    dsi_view index;      /* int32 [N,C,P,Q]: h W + w */
    int64_t h, w;        /* of the dense plane */
} dsi_pooled;

typedef struct dsi_cross_entropy {
    int64_t ignore_index;
    double smoothing;
    int reduction; /* ds_reduction: 0 mean, 1 sum, 2 none */
} dsi_cross_entropy;

/* One parameter's memory, n contiguous elements: what an optimizer kernel walks over. p is floating, g of
 * its dtype, or of 16 bits beside a float32 p (a master); moments have p's dtype, but float32 for the
 * 16-bit ones. Unused moments are NULL. */
typedef struct dsi_span {
    ds_dtype dtype;
    void *p;
    const void *g;
    void *m, *v, *vmax;
    int64_t n;
    int64_t step; /* 1 at the first update of this parameter */
    ds_dtype g_dtype;
    double g_scale; /* g counts this many times: unscaling and clipping need no pass of their own */
    void *low;      /* optional, beside a float32 p: a 16-bit copy of p, written after the update */
    ds_dtype low_dtype;
} dsi_span;

typedef struct dsi_sgd {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
} dsi_sgd;

typedef struct dsi_adam {
    double lr, beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW */
    bool amsgrad, maximize, bias_correction;
} dsi_adam;

typedef struct dsi_adagrad {
    double lr, lr_decay, weight_decay, eps;
    bool maximize;
} dsi_adagrad;

typedef struct dsi_rmsprop {
    double lr, alpha, eps, weight_decay, momentum;
    bool centered, maximize;
} dsi_rmsprop;

typedef struct dsi_adadelta {
    double lr, rho, eps, weight_decay;
    bool maximize;
} dsi_adadelta;

typedef struct dsi_lion {
    double lr, beta1, beta2, weight_decay;
} dsi_lion;

typedef struct dsi_lamb {
    double lr, beta1, beta2, eps, weight_decay, max_coeff, min_coeff;
    bool bias_correction, eps_inside_sqrt;
} dsi_lamb;

typedef ds_status dsi_unary(dsi_stream *s, dsi_view x, dsi_view y);
typedef ds_status dsi_binary(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y);

/* Pointwise kernels take views of equal shape (broadcast inputs have stride 0) and any strides; those
 * that are dense in the same order run as one line. */
typedef struct dsi_kernels {
    /* ---- memory: any dtypes, any strides -------------------------------------------------------- */
    /* y = x converted: to integers truncating, to bool != 0, 16-bit floats to nearest even */
    dsi_unary *copy;
    ds_status (*fill)(dsi_stream *s, double value, dsi_view y);

    /* ---- pointwise ------------------------------------------------------------------------------ */
    /* a + alpha b; y may be a */
    ds_status (*add)(dsi_stream *s, double alpha, dsi_view a, dsi_view b, dsi_view y);
    dsi_binary *mul, *div; /* y may be a or b */
    /* factor x + term; y may be x */
    ds_status (*affine)(dsi_stream *s, double factor, double term, dsi_view x, dsi_view y);
    ds_status (*pow)(dsi_stream *s, double exponent, dsi_view x, dsi_view y);
    dsi_binary *eq, *lt; /* y: bool; a, b any dtype */
    ds_status (*where)(dsi_stream *s, dsi_view c, dsi_view a, dsi_view b, dsi_view y); /* c: bool */
    dsi_unary *abs, *exp, *log, *sqrt;
    dsi_unary *relu, *gelu, *gelu_tanh, *sigmoid, *tanh;
    dsi_binary *relu_dx;    /* (dy, y, dx): y <= 0 ? 0 : dy (NaN passes); dx may be dy */
    dsi_binary *sigmoid_dx; /* (dy, y, dx): dy y (1 - y) */
    dsi_binary *tanh_dx;    /* (dy, y, dx): dy (1 - y^2) */
    dsi_binary *gelu_dx, *gelu_tanh_dx; /* (dy, x, dx) */
    dsi_binary *abs_dx;                 /* (dy, x, dx): dy sign(x) */
    /* y = keep[i] ? x / (1 - p) : 0; keep: bool, contiguous, drawn by the caller */
    ds_status (*mask_scale)(dsi_stream *s, double factor, dsi_view x, dsi_view keep, dsi_view y);

    /* ---- products: y [B,M,N] = a [B,M,K] b [B,K,N] + bias [N] (optional), any strides -------------
     * y of 16-bit a and b may be float32. */
    ds_status (*matmul)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y);

    /* ---- convolution: x [N,C,H,W], w [K,C/groups,R,S], y [N,K,P,Q]; any strides -------------------
     * y[n,k,p,q] = b[k] + sum over c,r,s of x[n,c, p stride + r dilation - padding, q ...] w[k,c,r,s] */
    ds_status (*conv2d)(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                        dsi_view y);
    ds_status (*conv2d_dx)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w,
                           dsi_view dx);
    ds_status (*conv2d_dw)(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x,
                           dsi_view dw);
    /* the same two for a gradient in pooled form */
    ds_status (*conv2d_dx_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                  dsi_view w, dsi_view dx);
    ds_status (*conv2d_dw_pooled)(dsi_stream *s, const dsi_conv2d *c, const dsi_pooled *dy,
                                  dsi_view x, dsi_view dw);
    /* y[c] = sum over n,h,w of x[n,c,h,w] */
    ds_status (*sum_channels)(dsi_stream *s, dsi_view x, dsi_view y);

    /* ---- pooling: x [N,C,H,W] -> y [N,C,P,Q]; index int32 of y's shape and strides ---------------- */
    ds_status (*max_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y,
                            dsi_view index);
    /* dx[index] += dy, else 0 */
    ds_status (*max_pool2d_dx)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx);
    ds_status (*pooled_to_dense)(dsi_stream *s, const dsi_pooled *x, dsi_view y);
    ds_status (*avg_pool2d)(dsi_stream *s, const dsi_pool2d *c, dsi_view x, dsi_view y);
    ds_status (*avg_pool2d_dx)(dsi_stream *s, const dsi_pool2d *c, dsi_view dy, dsi_view dx);
    dsi_unary *adaptive_avg_pool2d;    /* (x, y): the shapes say the windows */
    dsi_unary *adaptive_avg_pool2d_dx; /* (dy, dx) */

    /* ---- softmax over dimension 1 of [outer, C, inner] --------------------------------------------- */
    dsi_unary *softmax, *log_softmax;
    dsi_binary *softmax_dx;     /* (dy, y, dx): y (dy - sum(dy y)) */
    dsi_binary *log_softmax_dx; /* (dy, y, dx): dy - exp(y) sum(dy) */
    /* x [N,C,I], label int64 [N,I], weight [C] optional -> loss [] or [N,I], lse [N,I] = log sum exp x,
     * divisor [] = what the mean divides by (the weights of the labels used; 1 for sum and none).
     * A label outside 0..C-1 that is not ignored: DS_EINVAL naming it and its place. */
    ds_status (*cross_entropy)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view x,
                               dsi_view label, dsi_view weight, dsi_view loss, dsi_view lse,
                               dsi_view divisor);
    ds_status (*cross_entropy_dx)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view dloss,
                                  dsi_view x, dsi_view label, dsi_view weight, dsi_view lse,
                                  dsi_view divisor, dsi_view dx);

    /* ---- normalisation ------------------------------------------------------------------------------ */
    /* x, y [N,C,I]; weight, bias, mean, rstd [C]; weight and bias optional */
    /* biased variance */
    ds_status (*batch_stats)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view var);
    /* y = (x - mean) rstd weight + bias; rstd is given */
    ds_status (*batch_norm)(dsi_stream *s, dsi_view x, dsi_view mean, dsi_view rstd,
                            dsi_view weight, dsi_view bias, dsi_view y);
    /* batch: mean and rstd are those of x itself, so that dx has their part. dx, dw, db optional. */
    ds_status (*batch_norm_dx)(dsi_stream *s, bool batch, dsi_view dy, dsi_view x, dsi_view mean,
                               dsi_view rstd, dsi_view weight, dsi_view dx, dsi_view dw,
                               dsi_view db);
    /* x, y [M,D], contiguous; weight, bias [D] optional; mean, rstd [M] */
    ds_status (*layer_norm)(dsi_stream *s, double eps, dsi_view x, dsi_view weight, dsi_view bias,
                            dsi_view y, dsi_view mean, dsi_view rstd);
    ds_status (*layer_norm_dx)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view weight,
                               dsi_view mean, dsi_view rstd, dsi_view dx, dsi_view dw, dsi_view db);

    /* ---- reductions: x and y have the same number of dimensions; y is 1 where it is summed ---------- */
    /* y = factor sum x; y of a 16-bit x may be float32 */
    ds_status (*sum)(dsi_stream *s, double factor, dsi_view x, dsi_view y);
    /* over dimension 1 of [outer,C,inner]: the first maximum and its index (int64) [outer,inner]; NaN wins;
     * y optional */
    ds_status (*max)(dsi_stream *s, dsi_view x, dsi_view y, dsi_view index);
    /* p-norm of all elements of x[0..n-1]: p = 1, 2, INFINITY */
    ds_status (*norm)(dsi_stream *s, double p, int n, const dsi_view *x, double *out);
    /* float32 y[k][i] = x[0][i] + .. + x[ranks-1][i] in that order, for k < outs, 1 or more, and i < n; average:
     * divided by ranks. Host memory; y[k] may be an x. *squares, if not NULL, grows by the squares of the result,
     * in double. */
    ds_status (*sum_ranks)(dsi_stream *s, bool average, int ranks, const void *const *x, int64_t n,
                           int outs, void *const *y, double *squares);

    /* ---- by index -------------------------------------------------------------------------------------- */
    /* y[i,:] = w[index[i],:] */
    ds_status (*gather_rows)(dsi_stream *s, dsi_view w, dsi_view index, dsi_view y);
    ds_status (*scatter_rows)(
        dsi_stream *s, dsi_view dy, dsi_view index, int64_t skip,
        dsi_view dw); /* dw[index[i],:] += dy[i,:], dw set to 0 first; rows `skip` left out */
    /* dx [outer,C,inner]: 0, but dx[o,index[o,i],i] = dy[o,i] */
    ds_status (*scatter_max)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx);
    /* y [outer,K,inner], y[o,k,i] = x[o,index[o,k,i],i], x [outer,C,inner] */
    ds_status (*gather)(dsi_stream *s, dsi_view x, dsi_view index, dsi_view y);
    /* dx [outer,C,inner]: 0, then dx[o,index[o,k,i],i] += dy[o,k,i] in the order of k */
    ds_status (*scatter_add)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx);

    /* ---- mixture of experts: slot int64 [S,k] names rows of the larger operand, each at most once; < 0: none.
     * Unit stride along D. w [S,k] is float32 beside 16-bit rows ------------------------------------------ */
    /* y [N,D]: 0, but y[slot[s,k],:] = w[s,k] x[s,:]; w optional: 1 */
    ds_status (*dispatch)(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y);
    /* y[s,:] = sum over k of w[s,k] x[slot[s,k],:]; w optional: 1 */
    ds_status (*combine)(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y);
    /* dw[s,k] = sum over d of dy[s,d] x[slot[s,k],d]; 0 where there is no slot */
    ds_status (*combine_dw)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view slot, dsi_view dw);

    /* ---- attention: q [B,L,D], k [B,S,D], v [B,S,E], y [B,L,E]; mask [B,L,S] optional, bool or q's dtype;
     * lse [B,L] = log of the sum of exp of a row's scores. Unit stride along D and E. A row whose scores
     * are all -inf gives 0. ------------------------------------------------------------------------- */
    ds_status (*attention)(dsi_stream *s, double scale, bool causal, dsi_view q, dsi_view k,
                           dsi_view v, dsi_view mask, dsi_view y, dsi_view lse);
    ds_status (*attention_dx)(dsi_stream *s, double scale, bool causal, dsi_view dy, dsi_view q,
                              dsi_view k, dsi_view v, dsi_view mask, dsi_view y, dsi_view lse,
                              dsi_view dq, dsi_view dk, dsi_view dv);

    /* ---- optimizers: one fused pass over all spans. g below is g_scale times the span's ---------------- */
    ds_status (*sgd)(dsi_stream *s, const dsi_sgd *c, int n, const dsi_span *x); /* m: momentum */
    /* m, v, vmax: amsgrad */
    ds_status (*adam)(dsi_stream *s, const dsi_adam *c, int n, const dsi_span *x);
    ds_status (*adagrad)(dsi_stream *s, const dsi_adagrad *c, int n, const dsi_span *x); /* v */
    /* v; m: momentum; vmax: mean g */
    ds_status (*rmsprop)(dsi_stream *s, const dsi_rmsprop *c, int n, const dsi_span *x);
    /* m: mean of delta^2; v */
    ds_status (*adadelta)(dsi_stream *s, const dsi_adadelta *c, int n, const dsi_span *x);
    ds_status (*lion)(dsi_stream *s, const dsi_lion *c, int n, const dsi_span *x); /* m */
    ds_status (*lamb)(dsi_stream *s, const dsi_lamb *c, int n, const dsi_span *x); /* m, v */
} dsi_kernels;

#endif
