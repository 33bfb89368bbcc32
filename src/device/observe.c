/* device/observe.c: tables of kernels that note what runs: Note [Observed
 * kernels] of observe.h.
 * SPDX-License-Identifier: MIT */
#include "observe.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/profile.h"
#include "base/trace.h"

#include <deepspeed/profile.h>

#include <math.h>

/* ---- sizes ------------------------------------------------------------------------------------------- */

/* Elements; what is repeated counts once. */
static double view_elements(const dsi_view *v)
{
    double n = 1;
    for (int i = 0; v->p && i < v->n; i++)
        if (v->s[i] || v->d[i] < 2) n *= (double)v->d[i];
    return v->p ? n : 0;
}

static double view_bytes(const dsi_view *v)
{
    return view_elements(v) * (double)ds_dtype_size(v->dtype);
}

/* Operations of a convolution whose weights and output are these, also of its
 * gradients. */
static double conv_flops(const dsi_view *w, const dsi_view *y)
{
    return 2 * view_elements(w) * view_elements(y) / (double)(w->d[0] ? w->d[0] : 1);
}

/* Of products of q and k, and of their softmax with v; causal: half of them, or
 * those of the window. */
static double attention_flops(const dsi_attention *c, const dsi_view *q, const dsi_view *v)
{
    int depth = q->n - 1;
    double queries = view_elements(q) / (double)(q->d[depth] ? q->d[depth] : 1);
    double keys = (double)v->d[depth - 1] * (c->causal ? 0.5 : 1);
    double pairs = queries * (c->window ? fmin((double)c->window, keys) : keys);
    return 2 * pairs * (double)(q->d[depth] + v->d[depth]);
}

/* ---- entries ----------------------------------------------------------------------------------------- */

static double kernel_begin(const char *name)
{
    dsi_trace_begin(name);
    return dsi_now();
}

static void kernel_end(dsi_stream *s, const char *name, double begun, double flops, double bytes)
{
    const dsi_device_type *type = s->device->type;
    if (dsi_profile_runs()) {
        if (!type->immediate && type->sync && !s->device->recording) type->sync(s);
        dsi_profile_add(name, false, dsi_now() - begun, flops, bytes);
    }
    dsi_trace_end();
}

static double bytes_of(int n, const dsi_view *const *views)
{
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += view_bytes(views[i]);
    return bytes;
}

/* An entry of a table: its parameters and arguments, its `label`, its number of
 * operations, and the views that it reads and writes. */
#define ENTRY(table, name, label, parameters, arguments, flops, ...) \
    static ds_status observed_##name parameters \
    { \
        const dsi_view *const views[] = {__VA_ARGS__}; \
        double begun = kernel_begin(label); \
        ds_status status = s->device->table->name arguments; \
        kernel_end(s, label, begun, flops, bytes_of((int)(sizeof views / sizeof *views), views)); \
        return status; \
    }
#define V dsi_view
#define S dsi_stream *s

/* clang-format off */
ENTRY(own_kernels, copy, "copy", (S, V x, V y), (s, x, y), 0, &x, &y)
ENTRY(own_kernels, fill, "fill", (S, double value, V y), (s, value, y), 0, &y)
ENTRY(own_kernels, unary, dsi_unary_name(op), (S, dsi_unary_op op, double p, V x, V y),
      (s, op, p, x, y), 0, &x, &y)
ENTRY(own_kernels, unary_dx, dsi_unary_dx_name(op), (S, dsi_unary_op op, double p, V dy, V saved, V dx),
      (s, op, p, dy, saved, dx), 0, &dy, &saved, &dx)
ENTRY(own_kernels, binary, dsi_binary_name(op), (S, dsi_binary_op op, double alpha, V a, V b, V y),
      (s, op, alpha, a, b, y), 0, &a, &b, &y)
ENTRY(own_kernels, compare, dsi_compare_name(op), (S, dsi_compare_op op, V a, V b, V y),
      (s, op, a, b, y), 0, &a, &b, &y)
ENTRY(own_kernels, affine, "affine", (S, double factor, double term, V x, V y),
      (s, factor, term, x, y), 0, &x, &y)
ENTRY(own_kernels, where, "where", (S, V c, V a, V b, V y), (s, c, a, b, y), 0, &c, &a, &b, &y)
ENTRY(own_kernels, matmul, "matmul", (S, V a, V b, V bias, V y), (s, a, b, bias, y),
      2 * view_elements(&y) * (double)a.d[2], &a, &b, &bias, &y)
ENTRY(own_kernels, conv2d, "conv2d", (S, const dsi_conv2d *c, V x, V w, V b, V y), (s, c, x, w, b, y),
      conv_flops(&w, &y), &x, &w, &b, &y)
ENTRY(own_kernels, conv2d_dx, "conv2d_dx", (S, const dsi_conv2d *c, V dy, V w, V dx),
      (s, c, dy, w, dx), conv_flops(&w, &dy), &dy, &w, &dx)
ENTRY(own_kernels, conv2d_dw, "conv2d_dw", (S, const dsi_conv2d *c, V dy, V x, V dw),
      (s, c, dy, x, dw), conv_flops(&dw, &dy), &dy, &x, &dw)
ENTRY(own_kernels, max_pool2d, "max_pool2d", (S, const dsi_pool2d *c, V x, V y, V index),
      (s, c, x, y, index), 0, &x, &y, &index)
ENTRY(own_kernels, max_pool2d_dx, "max_pool2d_dx", (S, V dy, V index, V dx), (s, dy, index, dx), 0,
      &dy, &index, &dx)
ENTRY(own_kernels, avg_pool2d, "avg_pool2d", (S, const dsi_pool2d *c, V x, V y), (s, c, x, y), 0,
      &x, &y)
ENTRY(own_kernels, avg_pool2d_dx, "avg_pool2d_dx", (S, const dsi_pool2d *c, V dy, V dx),
      (s, c, dy, dx), 0, &dy, &dx)
ENTRY(own_kernels, softmax, log ? "log_softmax" : "softmax", (S, bool log, V x, V y),
      (s, log, x, y), 0, &x, &y)
ENTRY(own_kernels, softmax_dx, log ? "log_softmax_dx" : "softmax_dx", (S, bool log, V dy, V y, V dx),
      (s, log, dy, y, dx), 0, &dy, &y, &dx)
ENTRY(own_kernels, cross_entropy, "cross_entropy",
      (S, const dsi_cross_entropy *c, V x, V label, V weight, V loss, V lse, V divisor),
      (s, c, x, label, weight, loss, lse, divisor), 0, &x, &label, &weight, &loss, &lse)
ENTRY(own_kernels, cross_entropy_dx, "cross_entropy_dx",
      (S, const dsi_cross_entropy *c, V dloss, V x, V label, V weight, V lse, V divisor, V dx),
      (s, c, dloss, x, label, weight, lse, divisor, dx), 0, &dloss, &x, &label, &weight, &lse, &dx)
ENTRY(own_kernels, cross_entropy_part_dx, "cross_entropy_part_dx",
      (S, int64_t first, V x, V label, V lse, V scale, V dx), (s, first, x, label, lse, scale, dx), 0,
      &x, &label, &lse, &scale, &dx)
ENTRY(own_kernels, batch_stats, "batch_stats", (S, V x, V mean, V var), (s, x, mean, var), 0,
      &x, &mean, &var)
ENTRY(own_kernels, batch_norm, "batch_norm", (S, V x, V mean, V rstd, V weight, V bias, V y),
      (s, x, mean, rstd, weight, bias, y), 0, &x, &mean, &rstd, &weight, &bias, &y)
ENTRY(own_kernels, batch_norm_dx, "batch_norm_dx",
      (S, bool batch, V dy, V x, V mean, V rstd, V weight, V dx, V dw, V db),
      (s, batch, dy, x, mean, rstd, weight, dx, dw, db), 0, &dy, &x, &mean, &rstd, &weight, &dx,
      &dw, &db)
ENTRY(own_kernels, layer_norm, mean.p ? "layer_norm" : "rms_norm",
      (S, double eps, V x, V weight, V bias, V y, V mean, V rstd),
      (s, eps, x, weight, bias, y, mean, rstd), 0, &x, &weight, &bias, &y, &mean, &rstd)
ENTRY(own_kernels, layer_norm_dx, mean.p ? "layer_norm_dx" : "rms_norm_dx",
      (S, V dy, V x, V weight, V mean, V rstd, V dx, V dw, V db),
      (s, dy, x, weight, mean, rstd, dx, dw, db), 0, &dy, &x, &weight, &mean, &rstd, &dx, &dw, &db)
ENTRY(own_kernels, reduce, dsi_reduce_name(op), (S, dsi_reduce_op op, double factor, V x, V y, V index),
      (s, op, factor, x, y, index), 0, &x, &y, &index)
ENTRY(own_kernels, gather_rows, "gather_rows", (S, V w, V index, V y), (s, w, index, y), 0,
      &index, &y, &y)
ENTRY(own_kernels, scatter_rows, "scatter_rows", (S, V dy, V index, int64_t skip, V dw),
      (s, dy, index, skip, dw), 0, &dy, &index, &dw)
ENTRY(own_kernels, gather, "gather", (S, V x, V index, V y), (s, x, index, y), 0, &index, &y, &y)
ENTRY(own_kernels, scatter_add, "scatter_add", (S, V dy, V index, V dx), (s, dy, index, dx), 0,
      &dy, &index, &dx)
ENTRY(own_kernels, dispatch, "dispatch", (S, V x, V slot, V w, V y), (s, x, slot, w, y), 0,
      &x, &slot, &w, &y)
ENTRY(own_kernels, combine, "combine", (S, V x, V slot, V w, V y), (s, x, slot, w, y), 0,
      &x, &slot, &w, &y)
ENTRY(own_kernels, combine_dw, "combine_dw", (S, V dy, V x, V slot, V dw), (s, dy, x, slot, dw), 0,
      &dy, &x, &slot, &dw)
ENTRY(own_kernels, group_rows, "group_rows", (S, V id, V begin, V row), (s, id, begin, row), 0,
      &id, &begin, &row)
ENTRY(own_kernels, group_matmul, "group_matmul", (S, V x, V begin, const V *w, V y),
      (s, x, begin, w, y), 2 * view_elements(&x) * (double)y.d[1],
      &x, &begin, &y) /* which matrices are read is not known here */
ENTRY(own_kernels, group_matmul_dw, "group_matmul_dw", (S, V a, V b, V begin, const V *w),
      (s, a, b, begin, w), 2 * view_elements(&a) * (double)b.d[1],
      &a, &b, &begin)
ENTRY(own_kernels, attention, "attention",
      (S, const dsi_attention *c, V q, V k, V v, V mask, V y, V lse),
      (s, c, q, k, v, mask, y, lse), attention_flops(c, &q, &v),
      &q, &k, &v, &mask, &y, &lse)
ENTRY(own_kernels, attention_dx, "attention_dx",
      (S, const dsi_attention *c, V dy, V q, V k, V v, V mask, V y, V lse, V dq, V dk, V dv),
      (s, c, dy, q, k, v, mask, y, lse, dq, dk, dv),
      2.5 * attention_flops(c, &q, &v), &dy, &q, &k, &v, &mask, &y, &lse, &dq, &dk, &dv)

ENTRY(own_kernels, step_result, "step_result",
      (S, const dsi_step_limits *c, V unscale, V loss, V norm, V result),
      (s, c, unscale, loss, norm, result), 0, &unscale, &loss, &norm, &result)
ENTRY(own_kernels, loss_scale, "loss_scale", (S, const dsi_scale_rule *c, V x), (s, c, x), 0, &x)
ENTRY(own_kernels, halves_join, "halves_join", (S, V p, V rest, V x), (s, p, rest, x), 0,
      &p, &rest, &x)
ENTRY(own_kernels, halves_split, "halves_split", (S, V x, V p, V rest), (s, x, p, rest), 0,
      &x, &p, &rest)
ENTRY(used_fusions, relu_max_pool2d, "relu_max_pool2d", (S, const dsi_pool2d *c, V x, V y, V index),
      (s, c, x, y, index), 0, &x, &y, &index)
ENTRY(used_fusions, relu_max_pool2d_dx, "relu_max_pool2d_dx", (S, V dy, V max, V index, V dx),
      (s, dy, max, index, dx), 0, &dy, &max, &index, &dx)
ENTRY(used_fusions, conv2d_dx_bias, "conv2d_dx_bias",
      (S, const dsi_conv2d *c, V dy, V w, V b, V dx), (s, c, dy, w, b, dx), conv_flops(&w, &dy),
      &dy, &w, &b, &dx)
ENTRY(used_fusions, conv2d_dw_db, "conv2d_dw_db", (S, const dsi_conv2d *c, V dy, V x, V dw, V db),
      (s, c, dy, x, dw, db), conv_flops(&dw, &dy), &dy, &x, &dw, &db)
ENTRY(used_fusions, matmul_sums, "matmul_sums", (S, V a, V b, V y, V sums), (s, a, b, y, sums),
      2 * view_elements(&y) * (double)a.d[2], &a, &b, &y, &sums)
ENTRY(used_fusions, conv2d_dx_pooled, "conv2d_dx_pooled",
      (S, const dsi_conv2d *c, const dsi_pooled *dy, V w, V dx), (s, c, dy, w, dx),
      conv_flops(&w, &dy->value), &dy->value, &dy->index, &w, &dx)
ENTRY(used_fusions, conv2d_dw_pooled, "conv2d_dw_pooled",
      (S, const dsi_conv2d *c, const dsi_pooled *dy, V x, V dw), (s, c, dy, x, dw),
      conv_flops(&dw, &dy->value), &dy->value, &dy->index, &x, &dw)
ENTRY(used_fusions, conv2d_back_pooled, "conv2d_back_pooled",
      (S, const dsi_conv2d *c, const dsi_pooled *dy, V x, V w, V dx, V dw, V db, bool *done),
      (s, c, dy, x, w, dx, dw, db, done),
      ((dx.p != NULL) + (dw.p != NULL)) * conv_flops(&w, &dy->value), &dy->value, &dy->index, &x, &w, &dx, &dw, &db)
ENTRY(used_fusions, sum_channels, "sum_channels", (S, V x, V y), (s, x, y), 0, &x, &y)
ENTRY(used_fusions, batch_norm_stats, "batch_norm_stats",
      (S, double eps, double momentum, V x, V mean, V rstd, V running_mean, V running_var,
       V weight, V bias, V factor, V term),
      (s, eps, momentum, x, mean, rstd, running_mean, running_var, weight, bias, factor, term), 0,
      &x, &mean, &rstd, &running_mean, &running_mean, &running_var, &running_var)
ENTRY(used_fusions, batch_norm_relu, "batch_norm_relu",
      (S, V x, V mean, V factor, V term, V add, V y), (s, x, mean, factor, term, add, y), 0,
      &x, &mean, &factor, &term, &add, &y)
ENTRY(used_fusions, batch_norm_relu_dx, "batch_norm_relu_dx",
      (S, V dy, V x, V mean, V rstd, V factor, V term, V dx, V dw, V db),
      (s, dy, x, mean, rstd, factor, term, dx, dw, db), 0,
      &dy, &x, &mean, &rstd, &factor, &term, &dx, &dw, &db)
ENTRY(used_fusions, cumsum, "cumsum", (S, bool reverse, V x, V y), (s, reverse, x, y), 0, &x, &y)
ENTRY(used_fusions, resample, "resample", (S, V x, V begin, V index, V weight, V y),
      (s, x, begin, index, weight, y), 0, &x, &weight, &y)
ENTRY(used_fusions, amax, "amax", (S, V x, V y), (s, x, y), 0, &x, &y)
ENTRY(used_fusions, vecdot, "vecdot", (S, V a, V b, V y), (s, a, b, y), 0, &a, &b, &y)
ENTRY(used_fusions, deviations, "deviations", (S, V x, V sum, V mean, V rest), (s, x, sum, mean, rest),
      0, &x, &sum, &mean, &rest)
ENTRY(used_fusions, scatter, "scatter", (S, V x, V index, V src, V y), (s, x, index, src, y), 0, &x, &index,
      &src, &y)
ENTRY(used_fusions, scatter_dx, "scatter_dx", (S, V dy, V index, V dx, V dsrc), (s, dy, index, dx, dsrc), 0,
      &dy, &index, &dx, &dsrc)
ENTRY(used_fusions, scatter_sum, "scatter_sum", (S, double alpha, V x, V index, V src, V y),
      (s, alpha, x, index, src, y), 0, &x, &index, &src, &y)
ENTRY(used_fusions, nll_loss, "nll_loss",
      (S, const dsi_cross_entropy *c, V x, V label, V weight, V loss, V divisor),
      (s, c, x, label, weight, loss, divisor), 0, &label, &label, &loss)
ENTRY(used_fusions, nll_loss_dx, "nll_loss_dx",
      (S, const dsi_cross_entropy *c, V dloss, V label, V weight, V divisor, V dx),
      (s, c, dloss, label, weight, divisor, dx), 0, &label, &dx)
ENTRY(used_fusions, group_norm_dx, "group_norm_dx",
      (S, V dy, V x, V mean, V rstd, V weight, V dx, V dw, V db), (s, dy, x, mean, rstd, weight, dx, dw, db), 0,
      &dy, &x, &dx)
ENTRY(used_fusions, relu_dx_of_sum, "relu_dx_of_sum", (S, V a, V b, V y, V dx), (s, a, b, y, dx), 0,
      &a, &b, &y, &dx)
ENTRY(used_fusions, mul_add, "mul_add", (S, double alpha, V a, V b, V c, V d, V y),
      (s, alpha, a, b, c, d, y), 0, &a, &b, &c, &d, &y)
ENTRY(used_fusions, clamp, "clamp", (S, double low, double high, V x, V y), (s, low, high, x, y), 0, &x, &y)
ENTRY(used_fusions, clamp_tensors, "clamp_tensors", (S, V x, V low, V high, V y), (s, x, low, high, y), 0, &x,
      &low, &high, &y)
ENTRY(used_fusions, prelu, "prelu", (S, V w, V x, V y), (s, w, x, y), 0, &w, &x, &y)
ENTRY(used_fusions, mask_scale, "mask_scale", (S, double factor, V x, V keep, V y),
      (s, factor, x, keep, y), 0, &x, &keep, &y)
ENTRY(used_fusions, dropout, "dropout", (S, const dsi_philox *random, double p, double factor, V x, V y, V keep),
      (s, random, p, factor, x, y, keep), 0, &x, &y, &keep)
ENTRY(used_fusions, attention_dropout, "attention_dropout",
      (S, const dsi_philox *random, double p, const dsi_attention *c, V q, V k, V v, V mask, V y, V lse),
      (s, random, p, c, q, k, v, mask, y, lse), attention_flops(c, &q, &v),
      &q, &k, &v, &mask, &y, &lse)
ENTRY(used_fusions, attention_dropout_dx, "attention_dropout_dx",
      (S, const dsi_philox *random, double p, const dsi_attention *c, V dy, V q, V k, V v, V mask, V y, V lse,
       V dq, V dk, V dv),
      (s, random, p, c, dy, q, k, v, mask, y, lse, dq, dk, dv),
      2.5 * attention_flops(c, &q, &v), &dy, &q, &k, &v, &mask, &y, &lse, &dq, &dk, &dv)
ENTRY(used_fusions, attention_step, "attention_step",
      (S, const dsi_attention_step *o, V q, V k, V v, V cache_k, V cache_v, V at, V pads, V cos, V sin, V y),
      (s, o, q, k, v, cache_k, cache_v, at, pads, cos, sin, y), 0, &q, &k, &v, &y)
ENTRY(used_fusions, choose_token, "choose_token", (S, V x, V token, V counters), (s, x, token, counters), 0,
      &x, &token)
ENTRY(used_fusions, rms_norm_shifted, "rms_norm", (S, double eps, double term, V x, V weight, V y),
      (s, eps, term, x, weight, y), 0, &x, &weight, &y)
ENTRY(used_fusions, route, "route",
      (S, const dsi_route *c, V score, V second, V used, V expert, V place, V slot, V counts),
      (s, c, score, second, used, expert, place, slot, counts), 0, &score, &second, &used, &expert, &place, &slot)
ENTRY(used_fusions, topk, "topk", (S, V x, V index), (s, x, index), 0, &x, &index)
ENTRY(used_fusions, noise, "noise", (S, const dsi_philox *random, bool gumbel, double low, double high, V y),
      (s, random, gumbel, low, high, y), 0, &y)
ENTRY(used_fusions, arange, "arange", (S, double begin, double step, V y), (s, begin, step, y), 0, &y)
/* clang-format on */

static ds_status observed_norm(dsi_stream *s, double p, int n, const dsi_view *x, dsi_view norm)
{
    double begun = kernel_begin("norm"), bytes = 0;
    ds_status status = s->device->own_kernels->norm(s, p, n, x, norm);
    for (int i = 0; i < n; i++) bytes += view_bytes(&x[i]);
    kernel_end(s, "norm", begun, 0, bytes);
    return status;
}

/* Field 0 is read as bytes. */
static ds_status observed_gather_batch(dsi_stream *s, dsi_view index, dsi_view table, int n,
                                       const dsi_view *x, const dsi_view *y)
{
    double begun = kernel_begin("gather_batch"), bytes = view_bytes(&index) + view_bytes(&table);
    ds_status status = s->device->used_fusions->gather_batch(s, index, table, n, x, y);
    for (int f = 0; f < n; f++)
        bytes += view_elements(&y[f]) * (double)ds_dtype_size(x[f].dtype) + view_bytes(&y[f]);
    kernel_end(s, "gather_batch", begun, 0, bytes);
    return status;
}

/* Parameter and moments are read and written, the gradient is read. */
static double span_bytes(const dsi_span *x)
{
    double moment = (double)ds_dtype_size(x->dtype == DS_F64 ? DS_F64 : DS_F32);
    double each = 2 * (double)ds_dtype_size(x->dtype) + (double)ds_dtype_size(x->g_dtype) +
                  2 * moment * ((x->m != NULL) + (x->v != NULL) + (x->vmax != NULL)) +
                  (x->low ? (double)ds_dtype_size(x->low_dtype) : 0) +
                  (x->rest ? 2 * (double)sizeof *x->rest : 0);
    return each * (double)x->n;
}

static ds_status observed_optimizer(dsi_stream *s, const dsi_optimizer *c, int n, const dsi_span *x)
{
    double begun = kernel_begin(dsi_rule_name(c->rule)), bytes = 0;
    ds_status status = s->device->own_kernels->optimizer(s, c, n, x);
    for (int i = 0; i < n; i++) bytes += span_bytes(&x[i]);
    kernel_end(s, dsi_rule_name(c->rule), begun, 0, bytes);
    return status;
}

/* ---- tables ------------------------------------------------------------------------------------------ */

/* Of one device: NULL where its own are NULL. */
struct dsi_observed_tables {
    dsi_kernels kernels;
    dsi_fusions fusions;
};

/* clang-format off */
#define KERNEL_NAMES(X) \
    X(copy) X(fill) X(unary) X(unary_dx) X(binary) X(compare) X(affine) X(where) X(matmul) \
    X(conv2d) X(conv2d_dx) X(conv2d_dw) X(max_pool2d) X(max_pool2d_dx) X(avg_pool2d) \
    X(avg_pool2d_dx) X(softmax) X(softmax_dx) X(cross_entropy) X(cross_entropy_dx) X(cross_entropy_part_dx) \
    X(batch_stats) X(batch_norm) X(batch_norm_dx) X(layer_norm) X(layer_norm_dx) X(reduce) \
    X(norm) X(gather_rows) X(scatter_rows) X(gather) X(scatter_add) X(dispatch) X(combine) \
    X(combine_dw) X(group_rows) X(group_matmul) X(group_matmul_dw) X(attention) X(attention_dx) X(optimizer) X(step_result) X(loss_scale) X(halves_join) X(halves_split)
#define FUSION_NAMES(X) \
    X(relu_max_pool2d) X(relu_max_pool2d_dx) X(conv2d_dx_bias) X(conv2d_dw_db) X(matmul_sums) X(conv2d_dx_pooled) X(conv2d_dw_pooled) X(conv2d_back_pooled) X(sum_channels) X(batch_norm_stats) X(batch_norm_relu) X(batch_norm_relu_dx) X(relu_dx_of_sum) X(mul_add) \
    X(clamp) X(prelu) X(mask_scale) X(dropout) X(cumsum) X(resample) X(gather_batch) \
    X(arange) X(clamp_tensors) X(amax) X(scatter) X(scatter_dx) X(scatter_sum) X(nll_loss) X(nll_loss_dx) \
    X(attention_dropout) X(attention_dropout_dx) X(vecdot) X(deviations) X(group_norm_dx) \
    X(attention_step) X(choose_token) X(rms_norm_shifted) X(route) X(topk) X(noise)
/* clang-format on */

#define COUNT(name) +1
_Static_assert(sizeof(dsi_kernels) == (KERNEL_NAMES(COUNT)) * sizeof(void (*)(void)), "kernels");
_Static_assert(sizeof(dsi_fusions) == (FUSION_NAMES(COUNT)) * sizeof(void (*)(void)), "fusions");

void dsi_observe_device(dsi_device *d)
{
    d->kernels = d->own_kernels;
    d->fusions = d->used_fusions;
    if (!dsi_observed) return;
    if (!d->observed) d->observed = dsi_alloc(sizeof *d->observed);
    dsi_kernels *kernels = &d->observed->kernels;
    dsi_fusions *fusions = &d->observed->fusions;
#define SET_KERNEL(name) kernels->name = d->own_kernels->name ? observed_##name : NULL;
#define SET_FUSION(name) fusions->name = d->used_fusions->name ? observed_##name : NULL;
    KERNEL_NAMES(SET_KERNEL)
    FUSION_NAMES(SET_FUSION)
    d->kernels = kernels;
    d->fusions = fusions;
}

void dsi_observe_free(dsi_device *d)
{
    dsi_free(d->observed);
    d->observed = NULL;
}

/* ---- a profile --------------------------------------------------------------------------------------- */

ds_status ds_profile_begin(void)
{
    if (dsi_profile_runs())
        return dsi_fail(DS_ESTATE, "profile_begin: a profile of this thread runs: end it first "
                                   "(ds_profile_end)");
    dsi_profile_start();
    dsi_devices_observe();
    return DS_OK;
}

ds_status ds_profile_end(void)
{
    if (!dsi_profile_runs())
        return dsi_fail(DS_ESTATE, "profile_end: no profile of this thread runs: begin one first "
                                   "(ds_profile_begin)");
    dsi_profile_stop();
    dsi_devices_observe();
    return DS_OK;
}
