/* ops/op.h: what an op family's file needs: checks, recording, kernels.
 *
 * An op is one function of five paragraphs: check, acquire, make, compute,
 * record (README.md). Its backward is defined above it.
 *
 * Invariants: a function that returns NULL or false has set the thread's
 * message. A new tensor belongs to the current scope. A backward that passes dy
 * itself on passes a second handle (dsi_alias, or a view): otherwise a leaf
 * might accumulate into memory that another node still reads.
 * dsi_accumulate_grad(n, i, NULL) fails the backward, so a backward need not
 * check what it passes.
 *
 * Names of shapes: N batch, C channels, H W rows and columns; for matrices
 * [...,M,K] times [...,K,N]; "..." are leading dimensions, which broadcast.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/profile.h"
#include "table.h"

#include <deepspeed/ops.h>

/* True if x is float16 or bfloat16. A kernel computes these in float32 and
 * rounds once, so an op of one kernel need not ask. An op of several kernels
 * calls dsi_upcast first and ds_cast at the end, so that it rounds once too. */
static inline bool dsi_is_16bit(const ds_tensor *x)
{
    return x && (x->dtype == DS_F16 || x->dtype == DS_BF16);
}

static inline bool dsi_is_float(const ds_tensor *x) { return x->dtype <= DS_BF16; }

/* A 16-bit x in float32, others as they are; NULL passes. */
static inline ds_tensor *dsi_upcast(ds_tensor *x)
{
    return dsi_is_16bit(x) ? ds_cast(x, DS_F32) : x;
}

/* autocast.c: float32 and 16-bit operands, given by their address, in
 * autocast's dtype, or in float32; as they are if it is off. NULL passes. The
 * op's first one is NULL, with the message, if there is no memory. */
void dsi_autocast_to(bool low, ds_tensor **const *x, int n);
#define DSI_AUTOCAST(low, ...) \
    dsi_autocast_to(low, (ds_tensor * *const[]){__VA_ARGS__}, \
                    (int)(sizeof((ds_tensor **const[]){__VA_ARGS__}) / sizeof(ds_tensor **)))
#define dsi_autocast_low(...)  DSI_AUTOCAST(true, __VA_ARGS__)
#define dsi_autocast_wide(...) DSI_AUTOCAST(false, __VA_ARGS__)

/* x - y of one dtype and device, in float32 for 16-bit ones, not rounded; they
 * broadcast (loss.c). */
ds_tensor *dsi_difference(ds_tensor *x, ds_tensor *y);

/* Records y = a + alpha b, of operands of one dtype; y may be of a wider one. */
void dsi_record_add(ds_tensor *y, ds_tensor *a, ds_tensor *b, double alpha);

/* The costs of a forward, as DeepSpeed's flops profiler counts it: a sum of
 * `terms` products for each element of y, and `more` operations; or `each`
 * operations for each element of x. Pointwise arithmetic and losses count
 * nothing. */
static inline void dsi_cost_products(const ds_tensor *y, int64_t terms, int64_t more)
{
    if (!dsi_observed) return;
    double macs = (double)dsi_numel(y->shape) * (double)terms;
    dsi_cost_add(2 * macs + (double)more, macs);
}

static inline void dsi_cost_elements(const ds_tensor *x, int each)
{
    if (dsi_observed) dsi_cost_add((double)dsi_numel(x->shape) * each, 0);
}

/* A number of x's dtype on x's device, which broadcasts. */
static inline ds_tensor *dsi_number_beside(const ds_tensor *x, double value)
{
    return dsi_fill(dsi_new(x, (ds_dims){0}), value);
}

/* For what a backward keeps beside x's elements (mean, lse): float32 for a
 * 16-bit x. */
static inline ds_tensor *dsi_new_upcast(const ds_tensor *x, ds_dims shape)
{
    return x ? dsi_new_dtype(x, dsi_is_16bit(x) ? DS_F32 : x->dtype, shape) : NULL;
}

/* x in that dtype on the device of `like`, as ds_to. */
static inline ds_tensor *dsi_beside(ds_tensor *x, const ds_tensor *like, ds_dtype dtype)
{
    return ds_to(x, dsi_device_id(like->device), dtype);
}

/* torch.result_type: the dtype that a result of both has (promote.c). */
ds_dtype dsi_promoted(const ds_tensor *a, const ds_tensor *b);
ds_dtype dsi_promoted3(const ds_tensor *a, const ds_tensor *b, const ds_tensor *c);
/* Casts both to dtype, with gradients, and moves a number (shape {}) of the CPU
 * to the other's device. False, with the message, if the devices differ. */
bool dsi_promote(const char *op, ds_tensor **a, ds_tensor **b, ds_dtype dtype);

/* An int32 index as int64; others, and NULL, as they are. */
static inline ds_tensor *dsi_wide_index(ds_tensor *index)
{
    return index && index->dtype == DS_I32 ? ds_cast(index, DS_I64) : index;
}

/* uint8 labels as int64, which torch takes too; others, and NULL, as they are. */
static inline ds_tensor *dsi_wide_labels(ds_tensor *labels)
{
    return labels && labels->dtype == DS_U8 ? ds_cast(labels, DS_I64) : labels;
}

/* True if a and b (which may be NULL) agree in dtype and device; else sets the
 * message. */
bool dsi_same_kind(const char *op, const ds_tensor *a, const ds_tensor *b);
bool dsi_want_float(const char *op, const ds_tensor *x);
/* index: int64 on x's device; what: "labels", "indices". */
bool dsi_want_int64(const char *op, const char *what, const ds_tensor *x, const ds_tensor *index);

/* dim counted from the front, for x of at least one dimension (a scalar counts
 * as [1]); -1, with the message, if x has no such dimension. */
int dsi_want_dim(const char *op, const ds_tensor *x, int dim);
/* reduce.c: the dimensions to reduce, bit i of *over for dimension i; none:
 * all. False, with the message, for one that x does not have, or twice. */
bool dsi_want_dims(const char *op, const ds_tensor *x, ds_dims dims, unsigned *over);
int dsi_max_check(const char *op, const ds_tensor *x, int dim); /* refuses an empty one, too */
/* math.c: the number as an int64 that broadcasts beside an x of integers; NULL,
 * with the message, of a fraction. */
ds_tensor *dsi_integer_beside(const char *op, ds_tensor *x, double number);

/* The shape that a and b broadcast to -> *out; else false, with the message. */
bool dsi_broadcast(const char *op, ds_dims a, ds_dims b, ds_dims *out);

/* g summed to `shape`, from which it was broadcast: the gradient of a broadcast
 * input. Never g itself. */
ds_tensor *dsi_sum_to(ds_tensor *g, ds_dims shape);

/* x, if the kernel that fills it succeeded; otherwise NULL, which
 * dsi_accumulate_grad and callers treat as a failure. */
#define dsi_result_if(ran, x) ((ran) ? (x) : NULL)

/* A new matrix of that shape, like x: contiguous, or, if its rows are long and
 * on a GPU, with rows that begin at multiples of 16 bytes, which its kernels
 * need to be fast. */
ds_tensor *dsi_new_rows(const ds_tensor *like, ds_dims shape);

/* x seen as [outer, d[dim], inner]: contiguous x, dim counted from the front. */
dsi_view dsi_v_around(const ds_tensor *x, int dim);

/* An index as [outer,K,inner]: contiguous, or the same in all dimensions but
 * dim, as after ds_expand. */
dsi_view dsi_v_index(const ds_tensor *index, int dim);

/* True if dimensions from..to-1 of x are one dimension in memory; *stride is
 * its stride. Dimensions of size 1 do not matter. */
bool dsi_merged(const ds_tensor *x, int from, int to, int64_t *stride);

/* x [...,M,N] seen as [B,M,N]. Its leading dimensions must be one in memory
 * (dsi_merged). */
dsi_view dsi_v_matrices(const ds_tensor *x);

/* x [N,C,...], whose further dimensions lie as one, seen as [N,C,I]. */
dsi_view dsi_v_channels(const ds_tensor *x);

/* True if t is NULL or has a value for each channel of x, in x's dtype; a
 * 16-bit x also accepts float32, in which mixed precision keeps these. False
 * with the message, in which t is called `name`. */
bool dsi_per_channel(const char *op, const ds_tensor *x, const ds_tensor *t, const char *name);

/* An option's [vertical, horizontal] values: the horizontal one is 0 for "the
 * same" or -1 for none. */
static inline void dsi_pair(int64_t out[2], int vertical, int horizontal, int if_zero)
{
    out[0] = vertical ? vertical : if_zero;
    out[1] = horizontal == 0 ? out[0] : horizontal == -1 ? 0 : horizontal;
}

/* The three values of an option d of volumes (depth, height, width; one number
 * for all; none: `usual`), each at least `least`; false with the message. */
bool dsi_triple(const char *op, const char *name, ds_dims d, int64_t usual, int64_t least,
                int64_t to[3]);

/* pool.c: x of n dimensions, 3 to 5, or of n - 1: one sample [C,...], which
 * gets a batch's dimension. NULL with the message. */
ds_tensor *dsi_samples(const char *op, ds_tensor *x, int n);
/* pool.c: whether these are sizes behind [N,C] of an output: at least `least`,
 * and fewer than 2^31 places; and, of an adaptive pool, where 0 is one, x
 * [N,C,...] is not empty there. Else false, with the message. */
bool dsi_want_sizes(const char *op, ds_dims size, int64_t least);
bool dsi_adaptive_fits(const char *op, const ds_tensor *x, ds_dims size);
/* pool.c: of a size of which a number is 0: no elements; with a gradient, which
 * is 0. indices: NULL, or *indices becomes as many places. */
ds_tensor *dsi_no_windows(ds_tensor *x, ds_dims size, ds_tensor **indices);

/* pointwise.c: how(a, b) without a graph, of the dtype that they promote to; of
 * floats *a and *b become the operands in that dtype. NULL with the message. */
ds_tensor *dsi_binary(dsi_binary_op how, ds_tensor **a, ds_tensor **b);

/* dropout.c: the seed of one call of a kernel that draws its own random
 * numbers, and while a step is recorded the place where each replay has a new
 * one. False with the message. */
bool dsi_seed_take(dsi_device *d, dsi_philox *random);

/* Whether these are options of a window along one dimension; else false, with
 * the
 * message. */
static inline bool dsi_check_window(const char *op, int64_t kernel, int64_t stride,
                                    int64_t dilation, int64_t padding)
{
    if (kernel >= 1 && stride >= 1 && dilation >= 1 && padding >= 0) return true;
    return dsi_invalid("%s: kernel %lld, stride %lld, dilation %lld, padding %lld: expected at "
                       "least 1, 1, 1, 0",
                       op, (long long)kernel, (long long)stride, (long long)dilation,
                       (long long)padding);
}

/* unary.c: |x| < edge ? x^2 / 2 : edge (|x| - edge / 2). */
ds_tensor *dsi_huber(ds_tensor *x, double edge);

/* arrange.c: x between before[i] and after[i] elements of value in each
 * dimension i; none is below 0. */
ds_tensor *dsi_pad(ds_tensor *x, const int64_t *before, const int64_t *after, double value);

/* conv.c: a new y [N,K,P,Q] of a convolution of x, in the order of memory that
 * the device's kernels like best. */
ds_tensor *dsi_new_images(const ds_tensor *x, ds_dims out, int64_t groups);

/* conv.c: db[k] = dy [N,K,...] summed over all but the channels; false if db is
 * NULL, or with the message. */
bool dsi_conv_db(const ds_tensor *dy, ds_tensor *db);

/* reduce.c: ds_sum_with, whose messages begin with op. */
ds_tensor *dsi_sum_as(const char *op, ds_tensor *x, ds_reduce_opts opts);

/* statistics.c: x where larger elements are smaller: -x, or of integers -1 - x,
 * which is exact for each; bools are turned around. */
ds_tensor *dsi_turned(ds_tensor *x);

/* statistics.c: the sum over dim of a b, of one shape and dtype. */
ds_tensor *dsi_vecdot(ds_tensor *a, ds_tensor *b, int dim);

/* loss_composed.c: ds_cross_entropy_with whose target are probabilities of x's
 * shape. */
ds_tensor *dsi_cross_entropy_soft(ds_tensor *x, ds_tensor *target, ds_cross_entropy_opts o);

/* Operands of batch norm's kernels, all [C]; factor = rstd weight and term =
 * bias are copies, or NULL. */
typedef struct dsi_norm_values {
    ds_tensor *mean, *rstd, *factor, *term;
} dsi_norm_values;

/* norm.c: records y = batch_norm(x); or its ReLU, which needs factor and term,
 * and the node `norm` of the batch norm itself (else NULL). batch: mean and
 * rstd are those of x. */
dsi_node *dsi_record_batch_norm(ds_tensor *y, ds_tensor *x, const dsi_norm_values *v,
                                ds_tensor *weight, ds_tensor *bias, bool batch, dsi_node *norm);

/* norm.c: whether the operands beside x fit it, of batch norm, of that over
 * ranks and of instance norm: each has [C] values; both running ones are given,
 * or neither. Else false, with the message. */
bool dsi_batch_norm_operands(const char *op, const ds_tensor *x, ds_batch_norm_opts o);

/* norm.c: moves the running statistics, if there are any, towards those of a
 * batch, var times `unbiased`; not where a forward is computed again. False
 * with the message. */
bool dsi_batch_norm_update_running(ds_batch_norm_opts o, ds_tensor *mean, ds_tensor *var,
                                   double unbiased);

/* norm.c: ds_rms_norm over the last dimension with weight + term [D] in place
 * of its weight; 16 bits are rounded once, at the end. */
ds_tensor *dsi_rms_norm_shifted(ds_tensor *x, ds_tensor *weight, double term, double eps);

/* norm_relu.c: whether batch norm of x may be deferred; tries to defer y, which
 * is new, and was recorded. */
bool dsi_may_defer_norm(ds_tensor *x, ds_tensor *weight, ds_tensor *bias);
bool dsi_defer_norm(ds_tensor *y, ds_tensor *x, const dsi_norm_values *v, ds_tensor *weight,
                    ds_tensor *bias);
/* *y = a + b, deferred, if one of them is a deferred batch norm and the other
 * is like it; NULL after a failure. False: they are not. */
bool dsi_defer_sum(ds_tensor *a, ds_tensor *b, ds_tensor **y);
/* *y = the ReLU, recorded, of a deferred batch norm or of its sum; NULL after a
 * failure. False: x is none. */
bool dsi_relu_of_norm(ds_tensor *x, ds_tensor **y);
/* The gradient of the batch norm of x behind which a ReLU has the gradient dy. */
ds_tensor *dsi_relu_of_norm_dx(ds_tensor *dy, ds_tensor *x, const dsi_norm_values *v);
