/* ops/group_norm.c: normalisation per sample and group of channels, by
 * batch_norm's kernels; Wu and He, arXiv:1803.08494.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"
#include "op.h"
#include <float.h>

/* x [N,C,...] has N G groups of C/G channels each; its statistics are those of
 * batch_norm of x [1,N G,...], and weight and bias those of x [1,N C,...]. */
typedef struct GroupNorm {
    ds_dtype weight, bias; /* which may be float32 beside a 16-bit x */
} GroupNorm;

/* contiguous x [N,C,...] as [1,n,the rest]; nothing for NULL */
static dsi_view group_norm_rows(const ds_tensor *x, int64_t n)
{
    return x ? dsi_v_shape(x, ds_shape(1, n, n ? dsi_numel(x->shape) / n : 0)) : dsi_v(NULL);
}

/* per [C] for x [N,C,...], so that it broadcasts: [C,1,...] */
static ds_tensor *group_norm_channels(const ds_tensor *x, ds_tensor *per)
{
    ds_dims shape = {.n = x->shape.n - 1, .d = {x->shape.d[1]}};
    for (int i = 1; i < shape.n; i++) shape.d[i] = 1;
    return ds_reshape(per, shape);
}

/* per [N G] for each channel, or per [C] for each sample: [N C] */
static ds_tensor *group_norm_spread(const ds_tensor *x, ds_tensor *per, bool of_groups)
{
    int64_t n = x->shape.d[0], c = x->shape.d[1];
    if (!of_groups) return ds_reshape(ds_expand(per, ds_shape(n, c)), ds_shape(n * c));
    int64_t groups = per ? per->shape.d[0] : 1;
    per = ds_expand(ds_reshape(per, ds_shape(groups, 1)),
                    ds_shape(groups, groups ? n * c / groups : 1));
    return ds_reshape(per, ds_shape(n * c));
}

/* dw or db [C] in its dtype, from the sums of each sample's channels [N C]. */
static ds_tensor *group_norm_sum(const ds_tensor *x, ds_tensor *sums, ds_dtype dtype)
{
    sums = ds_reshape(sums, ds_shape(x->shape.d[0], x->shape.d[1]));
    return ds_cast(ds_sum_with(sums, (ds_reduce_opts){.dims = ds_shape(0)}), dtype);
}

/* dx, in float32 beside a 16-bit x and a weight, whose product with dy is
 * float32. */
static ds_tensor *group_norm_dx(ds_tensor *g, ds_tensor *x, ds_tensor *mean, ds_tensor *rstd,
                                ds_tensor *weight)
{
    int64_t rows = mean->shape.d[0];
    ds_tensor *gw = g, *from = weight ? dsi_upcast(x) : x;
    if (weight) gw = ds_mul(g, group_norm_channels(x, dsi_upcast(weight)));
    ds_tensor *dx = gw && from ? dsi_new(from, x->shape) : NULL;
    bool done = dx && dsi_run(x, batch_norm_dx, true, group_norm_rows(gw, rows),
                              group_norm_rows(from, rows), dsi_v(mean), dsi_v(rstd), dsi_v(NULL),
                              group_norm_rows(dx, rows), dsi_v(NULL), dsi_v(NULL));
    return done ? ds_cast(dx, x->dtype) : NULL;
}

/* dw and db [N C] of each sample's channels; false if it fails. */
static bool group_norm_sums(ds_tensor *g, ds_tensor *x, ds_tensor *mean, ds_tensor *rstd,
                            ds_tensor *dw, ds_tensor *db)
{
    int64_t channels = x->shape.d[0] * x->shape.d[1];
    ds_tensor *m = group_norm_spread(x, mean, true), *r = group_norm_spread(x, rstd, true);
    return m && r &&
           dsi_run(x, batch_norm_dx, false, group_norm_rows(g, channels),
                   group_norm_rows(x, channels), dsi_v(m), dsi_v(r), dsi_v(NULL), dsi_v(NULL),
                   dsi_v(dw), dsi_v(db));
}

/* t [N C], or contiguous [N,C,...], as [N,C,I] */
static dsi_view group_norm_planes(const ds_tensor *x, const ds_tensor *t)
{
    int64_t n = x->shape.d[0], c = x->shape.d[1];
    bool empty = !dsi_numel(x->shape);
    return t ? dsi_v_shape(t, ds_shape(n, c, empty ? 0 : dsi_numel(t->shape) / (n * c)))
             : dsi_v(NULL);
}

/* [N n] as [N,n] */
static dsi_view group_norm_samples(const ds_tensor *x, const ds_tensor *t)
{
    int64_t n = x->shape.d[0];
    return t ? dsi_v_shape(t, ds_shape(n, n ? dsi_numel(t->shape) / n : 0)) : dsi_v(NULL);
}

#define GROUP_NORM_PLANE 16 /* from this size of a channel on, lines of a channel are long enough */

/* Saved: x, mean [N G], rstd [N G], weight. */
static void group_norm_backward(dsi_node *n, ds_tensor *dy)
{
    const GroupNorm *o = dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *mean = dsi_saved_tensor(n, 1),
              *rstd = dsi_saved_tensor(n, 2), *weight = dsi_saved_tensor(n, 3);
    ds_tensor *g = ds_contiguous(dy), *dx = NULL, *dw = NULL, *db = NULL;
    bool needs[3], done = g;
    for (int i = 0; i < 3; i++) needs[i] = dsi_needs_input_grad(n, i);
    int64_t channels = x->shape.d[0] * x->shape.d[1];
    bool fused = dsi_fusion(x->device, group_norm_dx) &&
                 dsi_numel(x->shape) >= GROUP_NORM_PLANE * channels;
    if (needs[1] || needs[2]) {
        dw = dsi_new(mean, ds_shape(channels)), db = dsi_new(mean, ds_shape(channels));
        done = done && dw && db && (fused || group_norm_sums(g, x, mean, rstd, dw, db));
    }
    if (needs[0] && done)
        dx = fused ? dsi_new(x, x->shape) : group_norm_dx(g, x, mean, rstd, weight);
    done = done && (!needs[0] || dx);
    if (done && fused)
        done = dsi_run_fusion(x, group_norm_dx, group_norm_planes(x, g), group_norm_planes(x, x),
                              group_norm_samples(x, mean), group_norm_samples(x, rstd),
                              dsi_v(weight), group_norm_planes(x, dx), group_norm_samples(x, dw),
                              group_norm_samples(x, db));
    if (needs[0]) dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    if (needs[1]) dsi_accumulate_grad(n, 1, done ? group_norm_sum(x, dw, o->weight) : NULL);
    if (needs[2]) dsi_accumulate_grad(n, 2, done ? group_norm_sum(x, db, o->bias) : NULL);
}

const dsi_op dsi_op_group_norm = {.name = "group_norm", .backward = group_norm_backward};

static bool group_norm_check(const ds_tensor *x, int64_t groups, const ds_tensor *weight,
                             const ds_tensor *bias)
{
    if (!dsi_want_float("group_norm", x)) return false;
    if (x->shape.n < 2)
        return dsi_refuse("group_norm: x is %s: expected [N,C,...]", dsi_shape_text(x->shape));
    int64_t n = x->shape.d[0], c = x->shape.d[1];
    if (groups < 1 || c % groups)
        return dsi_refuse("group_norm: x is %s: %lld groups do not divide its %lld channels",
                          dsi_shape_text(x->shape), (long long)groups, (long long)c);
    /* one value in all is 0 whatever it is; torch takes groups of one beside
     * others */
    if (n && (!dsi_numel(x->shape) || (dsi_numel(x->shape) == groups && n == 1)))
        return dsi_refuse("group_norm: x is %s: %lld values in each of %lld groups, expected more",
                          dsi_shape_text(x->shape), (long long)(dsi_numel(x->shape) / n / groups),
                          (long long)groups);
    return dsi_per_channel("group_norm", x, weight, "weight") &&
           dsi_per_channel("group_norm", x, bias, "bias");
}

/* Sets *mean and *rstd, both [N G]. */
static bool group_norm_statistics(const ds_tensor *x, int64_t rows, double eps, ds_tensor **mean,
                                  ds_tensor **rstd)
{
    *mean = dsi_new_upcast(x, ds_shape(rows)), *rstd = dsi_new_upcast(x, ds_shape(rows));
    ds_tensor *var = dsi_new_upcast(x, ds_shape(rows));
    return *mean && *rstd && var &&
           dsi_run(var, batch_stats, group_norm_rows(x, rows), dsi_v(*mean), dsi_v(var)) &&
           dsi_run(var, affine, 1.0, eps, dsi_v(var), dsi_v(var)) &&
           dsi_run_op(*rstd, unary, DSI_POW, -0.5, dsi_v(var), dsi_v(*rstd));
}

ds_tensor *ds_group_norm(ds_tensor *x, int64_t groups, ds_tensor *weight, ds_tensor *bias,
                         double eps)
{
    dsi_autocast_wide(&x, &weight, &bias);
    if (!dsi_live(x, "group_norm")) return dsi_null_operand("group_norm");
    if (!group_norm_check(x, groups, weight, bias)) return NULL;
    if (!(x = ds_contiguous(x)) || !dsi_acquire(x, weight, bias)) return NULL;

    int64_t rows = x->shape.d[0] * groups, channels = x->shape.d[0] * x->shape.d[1];
    ds_tensor *mean, *rstd, *y = dsi_new(x, x->shape);

    if (!y || !group_norm_statistics(x, rows, dsi_option(eps, 1e-5), &mean, &rstd)) return NULL;
    bool was = ds_set_grad(false);
    ds_tensor *m = group_norm_spread(x, mean, true), *r = group_norm_spread(x, rstd, true);
    ds_tensor *w = weight ? group_norm_spread(x, weight, false) : NULL;
    ds_tensor *b = bias ? group_norm_spread(x, bias, false) : NULL;
    ds_set_grad(was);
    if (!m || !r || (weight && !w) || (bias && !b)) return NULL;
    if (!dsi_run(y, batch_norm, group_norm_rows(x, channels), dsi_v(m), dsi_v(r), dsi_v(w),
                 dsi_v(b), group_norm_rows(y, channels)))
        return NULL;

    dsi_cost_elements(x, weight ? 5 : 4);

    dsi_node *n = dsi_record(&dsi_op_group_norm, y, x, weight, bias);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, mean), dsi_save_for_backward(n, rstd),
        dsi_save_for_backward(n, weight);
    ds_dtype dw = weight ? weight->dtype : x->dtype, db = bias ? bias->dtype : x->dtype;
    dsi_set_attr(n, &(GroupNorm){dw, db}, sizeof(GroupNorm));
    return y;
}
