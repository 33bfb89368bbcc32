/* ops/sync_norm.c: batch norm over the samples of several ranks,
 * torch.nn.SyncBatchNorm.
 *
 *     mean = sum over ranks of sum x / n,  n = sum over ranks of values per channel
 *     var = sum over ranks of sum (x - mean)^2 / n
 *     y = (x - mean) / sqrt(var + eps) weight + bias
 * Two collectives in the forward and, by the sums' gradients, two in the
 * backward. 16 bits are computed in float32, and the result is rounded once.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"

#include <math.h>

/* v [C] as [1,C,1,...], which broadcasts to x. */
static ds_tensor *beside_x(ds_tensor *v, const ds_tensor *x)
{
    ds_dims shape = {.n = x->shape.n};
    for (int i = 0; i < shape.n; i++) shape.d[i] = i == 1 ? x->shape.d[1] : 1;
    return v ? ds_reshape(v, shape) : NULL;
}

/* The sum over all dimensions but the channels: [C] */
static ds_tensor *channel_sums(ds_tensor *x)
{
    if (!x) return NULL;
    ds_reduce_opts o = {.dims = ds_shape(0)};
    for (int i = 2; i < x->shape.n; i++) o.dims.d[o.dims.n++] = i;
    return ds_sum_with(x, o);
}

/* n is [1]; the running variance is the unbiased one. */
static bool update_running(ds_batch_norm_opts o, ds_tensor *mean, ds_tensor *var, ds_tensor *n)
{
    bool recording = ds_set_grad(false);
    ds_tensor *free_ones = ds_clamp(ds_shift(n, -1), 1, INFINITY);
    ds_tensor *unbiased = ds_mul(var, ds_div(n, free_ones));
    bool done = mean && unbiased && dsi_batch_norm_update_running(o, mean, unbiased, 1);
    ds_set_grad(recording);
    return done;
}

static bool sync_check(const char *op, const ds_tensor *x, ds_batch_norm_opts o)
{
    if (!dsi_want_float(op, x)) return false;
    if (x->shape.n < 2)
        return dsi_invalid("%s: x is %s: expected [N,C,...]", op, dsi_shape_text(x->shape));
    return dsi_batch_norm_operands(op, x, o);
}

ds_tensor *ds_sync_batch_norm_with(ds_tensor *x, ds_batch_norm_opts o, ds_comm *c)
{
    const char *op = "sync_batch_norm";
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    if (!c) c = ds_world();
    if (!o.training || ds_comm_size(c) == 1) return ds_batch_norm_with(x, o);
    if (!sync_check(op, x, o)) return NULL;
    int64_t channels = x->shape.d[1];
    ds_dtype dtype = x->dtype;
    if (!channels) return x;
    o.momentum = dsi_option(o.momentum, 0.1);
    ds_tensor *wide = dsi_upcast(x), *sum = channel_sums(wide);
    if (!sum) return NULL;
    double values = (double)(dsi_numel(x->shape) / channels);
    ds_tensor *own = ds_cat((ds_tensor *[]){sum, dsi_fill(dsi_new(sum, ds_shape(1)), values)}, 2,
                            0);
    ds_tensor *all = ds_all_reduce_sum(own, c);
    ds_tensor *n = ds_detach(ds_slice(all, 0, channels, channels + 1));
    ds_tensor *mean = ds_div(ds_slice(all, 0, 0, channels), n);
    ds_tensor *centred = ds_sub(wide, beside_x(mean, x));
    ds_tensor *var = ds_div(ds_all_reduce_sum(channel_sums(ds_mul(centred, centred)), c), n);
    if (!var || !update_running(o, mean, var, n)) return NULL;
    ds_tensor *factor = ds_rsqrt(ds_shift(var, dsi_option(o.eps, 1e-5)));
    if (o.weight) factor = ds_mul(factor, dsi_upcast(o.weight));
    ds_tensor *y = ds_mul(centred, beside_x(factor, x));
    if (o.bias) y = ds_add(y, beside_x(dsi_upcast(o.bias), x));
    return ds_cast(y, dtype);
}
