/* ops/norm.c: normalisation over a batch, or the last dimensions; group_norm.c
 * has that over groups of channels.
 *
 * batch_norm  x [N,C,I] (I: all further dimensions), per channel c over N and I:
 *             y = (x - mean) / sqrt(var + eps) weight + bias; Ioffe and Szegedy, arXiv:1502.03167
 * layer_norm  x [M,D], the same per row; Ba, Kiros, Hinton, arXiv:1607.06450
 * instance_norm  the same per sample and channel: batch_norm of x [1,NC,I];
 *             Ulyanov, Vedaldi, Lempitsky, arXiv:1607.08022
 * rms_norm    x [M,D], the same with mean 0 and no bias; Zhang and Sennrich, arXiv:1910.07467
 *
 * Invariants: mean and rstd are saved in float32 for a 16-bit x. Statistics of
 * a batch divide by n; the running variance is of the unbiased kind, as in
 * torch. Views of x here are [N,C,I] or [M,D], and with_channels or
 * ds_contiguous makes x such first.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

#include <float.h>

/* ---- batch_norm -------------------------------------------------------------------------------------- */

dsi_view dsi_v_channels(const ds_tensor *x)
{
    dsi_view v = dsi_v(x);
    int64_t size = 1, stride;
    for (int i = 2; i < x->shape.n; i++) size *= x->shape.d[i];
    dsi_merged(x, 2, x->shape.n, &stride);
    v.n = 3;
    v.d[2] = size;
    v.s[2] = stride;
    return v;
}

/* x, or a row-major copy if dsi_v_channels(x) would need more than one stride
 * for the further dimensions. */
static ds_tensor *with_channels(ds_tensor *x)
{
    int64_t stride;
    return dsi_merged(x, 2, x->shape.n, &stride) ? x : ds_contiguous(x);
}

/* True if each of dx, dw and db that is needed was allocated. */
static bool allocated(const dsi_node *n, const ds_tensor *dx, const ds_tensor *dw,
                      const ds_tensor *db)
{
    return (dx || !dsi_needs_input_grad(n, 0)) && (dw || !dsi_needs_input_grad(n, 1)) &&
           (db || !dsi_needs_input_grad(n, 2));
}

typedef struct BatchNorm {
    bool batch;            /* mean and rstd are those of x */
    dsi_node *norm;        /* y is the ReLU (norm_relu.c) of its result; counted; or NULL */
    ds_dtype weight, bias; /* which may be float32 beside a 16-bit x */
} BatchNorm;

/* Saved: x, mean [C], rstd [C], weight; with relu factor and term in place of
 * weight. One kernel computes dx, dw and db, because they share the sums over
 * dy and dy (x - mean). If the batch norm of a ReLU has a gradient of other
 * readers too, the ReLU adds to it. */
static void batch_norm_backward(dsi_node *n, ds_tensor *dy)
{
    const BatchNorm *o = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *mean = dsi_saved_tensor(n, 1),
              *rstd = dsi_saved_tensor(n, 2);
    if (o->norm && dsi_node_waits(o->norm)) {
        dsi_norm_values v = {mean, rstd, dsi_saved_tensor(n, 3), dsi_saved_tensor(n, 4)};
        dsi_accumulate_in_other(n, o->norm, dsi_relu_of_norm_dx(dy, x, &v));
        return;
    }
    ds_tensor *weight = dsi_saved_tensor(n, 3), *term = dsi_saved_tensor(n, 4);
    ds_tensor *g = with_channels(dy);
    ds_tensor *dx = dsi_needs_input_grad(n, 0) ? dsi_new_like(x) : NULL;
    ds_tensor *dw = dsi_needs_input_grad(n, 1) ? dsi_new_dtype(mean, o->weight, mean->shape) : NULL;
    ds_tensor *db = dsi_needs_input_grad(n, 2) ? dsi_new_dtype(mean, o->bias, mean->shape) : NULL;
    bool done = g && allocated(n, dx, dw, db);
    dsi_view to = dx ? dsi_v_channels(dx) : dsi_v(NULL);
    if (done && o->norm)
        done = dsi_run_fusion(x, batch_norm_relu_dx, dsi_v_channels(g), dsi_v_channels(x),
                              dsi_v(mean), dsi_v(rstd), dsi_v(weight), dsi_v(term), to, dsi_v(dw),
                              dsi_v(db));
    else if (done)
        done = dsi_run(x, batch_norm_dx, o->batch, dsi_v_channels(g), dsi_v_channels(x),
                       dsi_v(mean), dsi_v(rstd), dsi_v(weight), to, dsi_v(dw), dsi_v(db));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    dsi_accumulate_grad(n, 1, dsi_result_if(done, dw));
    dsi_accumulate_grad(n, 2, dsi_result_if(done, db));
}

const dsi_op dsi_op_batch_norm = {.name = "batch_norm", .backward = batch_norm_backward};

bool dsi_per_channel(const char *op, const ds_tensor *x, const ds_tensor *t, const char *name)
{
    if (!t) return true;
    bool mixed = dsi_is_16bit(x) && t->dtype == DS_F32 && t->device == x->device;
    if (!mixed && !dsi_same_kind(op, x, t)) return false;
    if (t->shape.n == 1 && t->shape.d[0] == x->shape.d[1]) return true;
    return dsi_refuse("%s: %s is %s, x is %s: expected [%lld]", op, name, dsi_shape_text(t->shape),
                      dsi_shape_text(x->shape), (long long)x->shape.d[1]);
}

bool dsi_batch_norm_operands(const char *op, const ds_tensor *x, ds_batch_norm_opts o)
{
    if (!o.running_mean != !o.running_var)
        return dsi_refuse("%s: running_mean and running_var come together", op);
    return dsi_per_channel(op, x, o.weight, "weight") && dsi_per_channel(op, x, o.bias, "bias") &&
           dsi_per_channel(op, x, o.running_mean, "running_mean") &&
           dsi_per_channel(op, x, o.running_var, "running_var");
}

/* batch: this call normalises with the statistics of x. */
static bool batch_norm_check(const ds_tensor *x, ds_batch_norm_opts o, bool batch)
{
    if (x->shape.n < 2)
        return dsi_refuse("batch_norm: x is %s: expected [N,C,...]", dsi_shape_text(x->shape));
    /* a channel of one value has no variance to divide by */
    if (batch && x->shape.d[1] && dsi_numel(x->shape) == x->shape.d[1])
        return dsi_refuse("batch_norm: x is %s: 1 value per channel, expected more to train on",
                          dsi_shape_text(x->shape));
    return dsi_batch_norm_operands("batch_norm", x, o);
}

/* running = (1 - momentum) running + momentum factor batch; 16 bits in float32,
 * rounded once */
static bool running_moves(ds_tensor *running, double momentum, ds_tensor *batch, double factor)
{
    ds_tensor *wide = dsi_upcast(running);
    if (!wide || !dsi_acquire(wide, batch)) return false;
    dsi_view v = dsi_v(wide);
    return dsi_run(wide, affine, 1 - momentum, 0.0, v, v) &&
           dsi_run_op(wide, binary, DSI_ADD, momentum * factor, v, dsi_v(batch), v) &&
           (wide == running || dsi_copy(running, wide) == DS_OK);
}

bool dsi_batch_norm_update_running(ds_batch_norm_opts o, ds_tensor *mean, ds_tensor *var,
                                   double unbiased)
{
    if (!o.running_mean || ds_recomputing()) return true;
    return running_moves(o.running_mean, o.momentum, mean, 1) &&
           running_moves(o.running_var, o.momentum, var, unbiased);
}

/* Of the batch, by one kernel. */
static bool batch_norm_fused(ds_tensor *x, ds_batch_norm_opts o, dsi_norm_values *v)
{
    bool update = o.running_mean && !ds_recomputing();
    return dsi_run_fusion(v->rstd, batch_norm_stats, o.eps, o.momentum, dsi_v_channels(x),
                          dsi_v(v->mean), dsi_v(v->rstd), dsi_v(update ? o.running_mean : NULL),
                          dsi_v(update ? o.running_var : NULL), dsi_v(o.weight), dsi_v(o.bias),
                          dsi_v(v->factor), dsi_v(v->term));
}

/* factor = rstd weight, term = bias */
static bool batch_norm_copies(ds_batch_norm_opts o, const dsi_norm_values *v)
{
    ds_tensor *f = v->factor;
    bool done = o.weight ? dsi_copy(f, o.weight) == DS_OK : dsi_fill(f, 1) != NULL;
    done = done && (o.bias ? dsi_copy(v->term, o.bias) == DS_OK : dsi_fill(v->term, 0) != NULL);
    return done && dsi_run_op(f, binary, DSI_MUL, 0.0, dsi_v(v->rstd), dsi_v(f), dsi_v(f));
}

/* Sets v->mean and v->rstd = 1 / sqrt(var + eps) to those that this call
 * normalises with: of the batch, which also update the running ones, or the
 * running ones. v->factor is NULL if y is not to be deferred. *moves: the
 * batch's variance, if the running ones are not updated yet. */
static bool batch_norm_statistics(ds_tensor *x, ds_batch_norm_opts o, bool batch,
                                  dsi_norm_values *v, ds_tensor **moves)
{
    ds_dims c = ds_shape(x->shape.d[1]);
    *v = (dsi_norm_values){.mean = batch ? dsi_new_upcast(x, c) : o.running_mean,
                           .rstd = dsi_new_upcast(x, c)};
    if (!v->mean || !v->rstd) return false;
    if (batch && dsi_may_defer_norm(x, o.weight, o.bias)) {
        v->factor = dsi_new(v->rstd, c), v->term = dsi_new(v->factor, c);
        if (!v->term) return false;
    }
    if (batch && dsi_fusion(x->device, batch_norm_stats)) return batch_norm_fused(x, o, v);
    ds_tensor *var = batch ? dsi_new_upcast(x, c) : o.running_var, *shifted = dsi_new_upcast(x, c);
    if (batch && !dsi_run(var, batch_stats, dsi_v_channels(x), dsi_v(v->mean), dsi_v(var)))
        return false;
    *moves = batch ? var : NULL;
    return dsi_run(shifted, affine, 1.0, o.eps, dsi_v(var), dsi_v(shifted)) &&
           dsi_run_op(v->rstd, unary, DSI_POW, -0.5, dsi_v(shifted), dsi_v(v->rstd)) &&
           (!v->factor || batch_norm_copies(o, v));
}

static void batch_norm_end(dsi_node *n) { dsi_node_unref(((const BatchNorm *)dsi_attr(n))->norm); }

/* Without batch, mean is the running one itself: later training moves it, as it
 * does in PyTorch. */
dsi_node *dsi_record_batch_norm(ds_tensor *y, ds_tensor *x, const dsi_norm_values *v,
                                ds_tensor *weight, ds_tensor *bias, bool batch, dsi_node *norm)
{
    dsi_node *n = dsi_record(&dsi_op_batch_norm, y, x, weight, bias);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, v->mean);
    dsi_save_for_backward(n, v->rstd), dsi_save_for_backward(n, norm ? v->factor : weight);
    if (norm) dsi_save_for_backward(n, v->term), dsi_set_free_attr(n, batch_norm_end);
    ds_dtype dw = weight ? weight->dtype : x->dtype, db = bias ? bias->dtype : x->dtype;
    dsi_set_attr(n, &(BatchNorm){batch, n ? dsi_node_ref(norm) : NULL, dw, db}, sizeof(BatchNorm));
    return n;
}

/* x [N,C,...]; statistics over all dimensions but C. In training the running
 * ones are updated once, also if the part runs again for its gradients. */
ds_tensor *ds_batch_norm_with(ds_tensor *x, ds_batch_norm_opts o)
{
    bool batch = o.training;
    if (!dsi_live(x, "batch_norm")) return dsi_null_operand("batch_norm");
    if (!dsi_want_float("batch_norm", x)) return NULL;
    if (!batch && !o.running_mean)
        return dsi_refuse("batch_norm: neither .training nor .running_mean: expected one of them");
    if (!batch_norm_check(x, o, batch)) return NULL;
    if (batch && !dsi_numel(x->shape)) { /* no values: the running ones stay */
        ds_tensor *ones = dsi_fill(dsi_new_upcast(x, ds_shape(x->shape.d[1])), 1);
        o.training = batch = false;
        if (!o.running_mean) o.running_mean = o.running_var = ones;
    }
    if (!batch) {
        o.running_mean = dsi_upcast(o.running_mean), o.running_var = dsi_upcast(o.running_var);
        if (!o.running_mean || !o.running_var) return NULL;
    }
    o.momentum = dsi_option(o.momentum, 0.1);
    o.eps = dsi_option(o.eps, 1e-5);
    if (!(x = with_channels(x))) return NULL;
    if (!dsi_acquire(x, o.weight, o.bias, o.running_mean, o.running_var)) return NULL;

    dsi_norm_values v;
    ds_tensor *y = dsi_new_like(x), *moves = NULL;

    if (!y || !batch_norm_statistics(x, o, batch, &v, &moves)) return NULL;
    dsi_cost_elements(x, (batch ? 4 : 1) + (o.weight != NULL));
    dsi_node *n = dsi_record_batch_norm(y, x, &v, o.weight, o.bias, batch, NULL);
    bool done = (n && v.factor && dsi_defer_norm(y, x, &v, o.weight, o.bias)) ||
                dsi_run(y, batch_norm, dsi_v_channels(x), dsi_v(v.mean), dsi_v(v.rstd),
                        dsi_v(o.weight), dsi_v(o.bias), dsi_v_channels(y));
    double values = (double)dsi_numel(x->shape) / (double)x->shape.d[1];
    if (done && moves)
        done = dsi_batch_norm_update_running(o, v.mean, moves, values / (values - 1));
    return dsi_result_if(done, y);
}

/* ---- layer_norm -------------------------------------------------------------------------------------- */

/* contiguous x as [M,D], D elements of its last n_dims dimensions */
static ds_dims row_shape(const ds_tensor *x, int n_dims)
{
    int64_t d = 1;
    for (int i = x->shape.n - n_dims; i < x->shape.n; i++) d *= x->shape.d[i];
    return ds_shape(d ? dsi_numel(x->shape) / d : 0, d);
}

/* contiguous weight or bias as [D]; nothing for NULL */
static dsi_view layer_norm_row(const ds_tensor *w, int64_t d)
{
    return w ? dsi_v_shape(w, ds_shape(d)) : dsi_v(NULL);
}

/* stats holds rstd of each row, which rms_norm has alone [1,M], or before it
 * the mean [2,M]; they are always saved and freed together. */
static dsi_view layer_norm_stat(const ds_tensor *stats, int64_t which)
{
    dsi_view v = dsi_v_shape(stats, ds_shape(stats->shape.d[1]));
    v.p = (char *)v.p + (size_t)(which * v.d[0]) * ds_dtype_size(stats->dtype);
    return v;
}

static dsi_view layer_norm_mean(const ds_tensor *stats)
{
    return stats->shape.d[0] == 2 ? layer_norm_stat(stats, 0) : dsi_v(NULL);
}

static dsi_view layer_norm_rstd(const ds_tensor *stats)
{
    return layer_norm_stat(stats, stats->shape.d[0] - 1);
}

/* Saved: x, stats, weight. x is seen as [M,D]; dw and db are sums over M. */
static void layer_norm_backward(dsi_node *n, ds_tensor *dy)
{
    int n_dims = *(const int *)dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *stats = dsi_saved_tensor(n, 1),
              *weight = dsi_saved_tensor(n, 2);
    ds_dims md = row_shape(x, n_dims), w_shape = {.n = n_dims};
    for (int i = 0; i < n_dims; i++) w_shape.d[i] = x->shape.d[x->shape.n - n_dims + i];

    ds_tensor *g = ds_contiguous(dy),
              *dx = dsi_needs_input_grad(n, 0) ? dsi_new(x, x->shape) : NULL;
    ds_tensor *dw = dsi_needs_input_grad(n, 1) ? dsi_new(x, w_shape) : NULL;
    ds_tensor *db = dsi_needs_input_grad(n, 2) ? dsi_new(x, w_shape) : NULL;
    bool done = g && allocated(n, dx, dw, db) &&
                dsi_run(x, layer_norm_dx, dsi_v_shape(g, md), dsi_v_shape(x, md),
                        layer_norm_row(weight, md.d[1]), layer_norm_mean(stats),
                        layer_norm_rstd(stats), dx ? dsi_v_shape(dx, md) : dsi_v(NULL),
                        layer_norm_row(dw, md.d[1]), layer_norm_row(db, md.d[1]));
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    dsi_accumulate_grad(n, 1, dsi_result_if(done, dw));
    dsi_accumulate_grad(n, 2, dsi_result_if(done, db));
}

const dsi_op dsi_op_layer_norm = {.name = "layer_norm", .backward = layer_norm_backward};
const dsi_op dsi_op_rms_norm = {.name = "rms_norm", .backward = layer_norm_backward};

/* True if w is NULL or has the shape of x's last n_dims dimensions. */
static bool layer_norm_fits(const char *op, const ds_tensor *x, int n_dims, const ds_tensor *w,
                            const char *name)
{
    if (!w) return true;
    if (!dsi_same_kind(op, x, w)) return false;
    bool fits = w->shape.n == n_dims;
    for (int i = 0; fits && i < n_dims; i++)
        fits = w->shape.d[i] == x->shape.d[x->shape.n - n_dims + i];
    return fits || dsi_refuse("%s: %s is %s, x is %s: expected its last %d dimensions", op, name,
                              dsi_shape_text(w->shape), dsi_shape_text(x->shape), n_dims);
}

/* op is layer_norm's or rms_norm's. */
static ds_tensor *rows_norm(const dsi_op *op, ds_tensor *x, int n_dims, ds_tensor *weight,
                            ds_tensor *bias, double eps)
{
    bool rms = op == &dsi_op_rms_norm;
    if (!dsi_live(x, op->name)) return dsi_null_operand(op->name);
    if (!dsi_want_float(op->name, x)) return NULL;
    if (n_dims < 1 || n_dims > x->shape.n)
        return dsi_refuse("%s: over %d dimensions of x %s", op->name, n_dims,
                          dsi_shape_text(x->shape));
    if (!layer_norm_fits(op->name, x, n_dims, weight, "weight") ||
        !layer_norm_fits(op->name, x, n_dims, bias, "bias"))
        return NULL;
    x = ds_contiguous(x);
    if (weight) weight = ds_contiguous(weight);
    if (bias) bias = ds_contiguous(bias);
    if (!x || !dsi_acquire(x, weight, bias)) return NULL;

    ds_dims md = row_shape(x, n_dims);
    ds_tensor *y = dsi_new(x, x->shape);
    ds_tensor *stats = dsi_new_upcast(y, ds_shape(rms ? 1 : 2, md.d[0]));

    if (!stats) return NULL;
    if (!dsi_run(y, layer_norm, eps, dsi_v_shape(x, md), layer_norm_row(weight, md.d[1]),
                 layer_norm_row(bias, md.d[1]), dsi_v_shape(y, md), layer_norm_mean(stats),
                 layer_norm_rstd(stats)))
        return NULL;

    if (!rms) dsi_cost_elements(x, weight ? 5 : 4);

    dsi_node *n = dsi_record(op, y, x, weight, bias);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, stats), dsi_save_for_backward(n, weight);
    dsi_set_attr(n, &n_dims, sizeof n_dims);
    return y;
}

ds_tensor *ds_layer_norm(ds_tensor *x, int n_dims, ds_tensor *weight, ds_tensor *bias, double eps)
{
    dsi_autocast_wide(&x, &weight, &bias);
    return rows_norm(&dsi_op_layer_norm, x, n_dims, weight, bias, dsi_option(eps, 1e-5));
}

static double rms_norm_eps(const ds_tensor *x, double eps)
{
    return dsi_option(eps, x && x->dtype == DS_F64 ? DBL_EPSILON : FLT_EPSILON);
}

ds_tensor *ds_rms_norm(ds_tensor *x, int n_dims, ds_tensor *weight, double eps)
{
    dsi_autocast_wide(&x, &weight);
    return rows_norm(&dsi_op_rms_norm, x, n_dims, weight, NULL, rms_norm_eps(x, eps));
}

/* One kernel, where a device has it and no gradient is wanted. */
ds_tensor *dsi_rms_norm_shifted(ds_tensor *x, ds_tensor *weight, double term, double eps)
{
    if (!dsi_live(x, "rms_norm") || !dsi_live(weight, "rms_norm"))
        return dsi_null_operand("rms_norm");
    bool fits = x->shape.n && weight->shape.n == 1 && x->dtype == weight->dtype &&
                weight->shape.d[0] == x->shape.d[x->shape.n - 1];
    if (!fits || dsi_wants_grad((ds_tensor *[]){x, weight}, 2) ||
        !dsi_fusion(x->device, rms_norm_shifted)) {
        ds_tensor *y = ds_rms_norm(dsi_upcast(x), 1, ds_shift(dsi_upcast(weight), term), eps);
        return y ? ds_cast(y, ds_dtype_of(x)) : NULL;
    }
    x = ds_contiguous(x), weight = ds_contiguous(weight);
    if (!x || !weight || !dsi_acquire(x, weight)) return NULL;
    ds_dims md = row_shape(x, 1);
    ds_tensor *y = dsi_new(x, x->shape);
    return dsi_result_if(y && dsi_run_fusion(y, rms_norm_shifted, rms_norm_eps(x, eps), term,
                                             dsi_v_shape(x, md), dsi_v(weight), dsi_v_shape(y, md)),
                         y);
}

/* ---- instance_norm ----------------------------------------------------------------------------------- */

/* *per [C] becomes n copies of it in memory, [n C], in float32 if it has 16
 * bits; NULL stays. */
static bool instance_norm_repeat(ds_tensor **per, int64_t n)
{
    if (!*per) return true;
    ds_tensor *copies = ds_expand(dsi_upcast(*per), ds_shape(n, ds_numel(*per)));
    return (*per = ds_reshape(ds_contiguous(copies), ds_shape(-1)));
}

/* running [C] = the mean over samples of what batch_norm made of its copies. */
static bool instance_norm_update(ds_tensor *running, ds_tensor *copies, int64_t n)
{
    if (!running || ds_recomputing()) return true;
    bool was = ds_set_grad(false);
    ds_tensor *each = ds_reshape(copies, ds_shape(n, ds_numel(running)));
    ds_tensor *mean = ds_mean_with(each, (ds_reduce_opts){.dims = ds_shape(0)});
    ds_set_grad(was);
    return mean && dsi_copy(running, mean) == DS_OK;
}

/* batch: this call normalises with the statistics of x. */
static bool instance_norm_check(const ds_tensor *x, ds_batch_norm_opts o, bool batch)
{
    if (!dsi_want_float("instance_norm", x)) return false;
    if (x->shape.n < 3)
        return dsi_refuse("instance_norm: x is %s: expected [N,C,...]", dsi_shape_text(x->shape));
    int64_t rows = x->shape.d[0] * x->shape.d[1], size = rows ? dsi_numel(x->shape) / rows : 2;
    if (batch && size < 2)
        return dsi_refuse("instance_norm: x is %s: %lld values for a channel of a sample, expected "
                          "more",
                          dsi_shape_text(x->shape), (long long)size);
    return dsi_batch_norm_operands("instance_norm", x, o);
}

/* Statistics of the input make each channel of each sample a channel of one
 * sample. */
ds_tensor *ds_instance_norm_with(ds_tensor *x, ds_batch_norm_opts o)
{
    if (!dsi_live(x, "instance_norm")) return dsi_null_operand("instance_norm");
    bool batch = o.training || !o.running_mean;
    if (!instance_norm_check(x, o, batch)) return NULL;
    if (!batch) return ds_batch_norm_with(x, o);
    if (!x->shape.d[0]) return ds_group_norm(x, x->shape.d[1], o.weight, o.bias, o.eps);
    ds_tensor *mean = o.running_mean, *var = o.running_var;
    int64_t n = x->shape.d[0];
    o.training = true;
    if (!instance_norm_repeat(&o.weight, n) || !instance_norm_repeat(&o.bias, n) ||
        !instance_norm_repeat(&o.running_mean, n) || !instance_norm_repeat(&o.running_var, n))
        return NULL;
    ds_tensor *y = ds_batch_norm_with(ds_reshape(x, ds_shape(1, n * x->shape.d[1], -1)), o);
    if (!y || !instance_norm_update(mean, o.running_mean, n) ||
        !instance_norm_update(var, o.running_var, n))
        return NULL;
    return ds_reshape(y, x->shape);
}
