/* nn/norm.c: BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm,
 * InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, GroupNorm, LayerNorm,
 * RMSNorm.
 *
 * Batch and instance norm share a struct and a constructor; they differ in
 * their forward. Formulas are those of the ops (ops/norm.c); here are the
 * parameters, their first values, and which statistics are used.
 *
 * Invariants: the tensors in `opts` are the module's own and borrowed from the
 * tree; a NULL says that the option is off, so describe reads the options from
 * them. Running statistics are changed by the op, in place, and `batches`
 * here.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/option.h"
#include "tensor/tensor.h"
#include "tree.h"

#include <deepspeed/autograd.h>
#include <deepspeed/nn.h>

/* ---- BatchNorm, InstanceNorm ------------------------------------------------------------------------- */

typedef struct BatchNorm {
    int64_t channels;
    int least, most; /* dimensions of x */
    ds_batch_norm_opts opts;
    /* int64 []: num_batches_tracked, on the CPU, which counts; NULL without
     * running statistics */
    ds_tensor *batches;
    ds_comm *ranks; /* of SyncBatchNorm; borrowed; NULL: the world */
} BatchNorm;

/* False with the message, as torch's _check_input_dim. */
static bool batch_norm_takes(const BatchNorm *b, const ds_tensor *x)
{
    if (ds_ndim(x) >= b->least && ds_ndim(x) <= b->most) return true;
    const char *name = ds_module_type_of(ds_module_of((void *)b))->name;
    if (b->least == b->most)
        return dsi_refuse("%s: x has %d dimensions: expected %d", name, ds_ndim(x), b->most);
    return dsi_refuse("%s: x has %d dimensions: expected %d or %d", name, ds_ndim(x), b->least,
                      b->most);
}

/* *batches += 1. On a GPU by kernels, whose arithmetic is that of floats. The
 * count is exact in float64 up to 2^53. */
static ds_status count_batch(ds_tensor *batches)
{
    if (ds_device_of(batches).kind != DS_CPU)
        return ds_copy(batches, ds_shift(ds_cast(batches, DS_F64), 1));
    int64_t *n = ds_data_mut(batches);
    if (n) ++*n;
    return n ? DS_OK : ds_error_status();
}

/* Running statistics are used in evaluation, and updated in training; a
 * recomputed forward does not count as a batch. Without running statistics
 * those of the batch are used in evaluation too. */
static ds_tensor *batch_norm_call(BatchNorm *b, ds_tensor *x, bool sync)
{
    if (!batch_norm_takes(b, x)) return NULL;
    bool training = ds_module_training(ds_module_of(b));
    ds_batch_norm_opts o = b->opts;
    o.training = training || !o.running_mean;
    ds_tensor *y = sync && training ? ds_sync_batch_norm_with(x, o, b->ranks)
                                    : ds_batch_norm_with(x, o);
    if (y && training && b->batches && !ds_recomputing() && count_batch(b->batches) != DS_OK)
        return NULL;
    return y;
}

static ds_tensor *batch_norm_forward(void *self, ds_tensor *x)
{
    return batch_norm_call(self, x, false);
}

static ds_tensor *sync_batch_norm_forward(void *self, ds_tensor *x)
{
    return batch_norm_call(self, x, true);
}

/* x without the batch's dimension is one sample. torch does not count batches
 * here. */
static ds_tensor *instance_norm_forward(void *self, ds_tensor *x)
{
    BatchNorm *b = self;
    if (!batch_norm_takes(b, x)) return NULL;
    ds_batch_norm_opts o = b->opts;
    o.training = ds_module_training(ds_module_of(self)) || !o.running_mean;
    if (ds_ndim(x) == b->most) return ds_instance_norm_with(x, o);
    return ds_squeeze(ds_instance_norm_with(ds_unsqueeze(x, 0), o), 0);
}

static void batch_norm_describe(void *self, FILE *to)
{
    BatchNorm *b = self;
    const ds_batch_norm_opts *o = &b->opts;
    fprintf(to, "%lld, eps=%g, momentum=%g, affine=%s, bias=%s, track_running_stats=%s",
            (long long)b->channels, dsi_option(o->eps, 1e-5), dsi_option(o->momentum, 0.1),
            dsi_python_bool(o->weight), dsi_python_bool(o->bias), dsi_python_bool(o->running_mean));
}

/* weight 1, bias 0, running_mean 0, running_var 1, [channels] each. Buffers are
 * saved in state dicts and not trained. */
static ds_module *batch_norm_new(ds_module *parent, const char *name, const ds_module_type *type,
                                 BatchNorm shape, ds_nn_norm_opts o)
{
    ds_module *m = ds_module_new(parent, name, type);
    BatchNorm *b = ds_self(m);
    ds_dims c = ds_shape(shape.channels);
    *b = shape;
    b->opts = (ds_batch_norm_opts){.momentum = o.momentum, .eps = o.eps};
    if (!o.no_affine) {
        b->opts.weight = ds_module_param(m, "weight", ds_ones(DS_F32, c));
        if (!o.no_bias) b->opts.bias = ds_module_param(m, "bias", ds_zeros(DS_F32, c));
    }
    if (!o.no_running_stats) {
        b->opts.running_mean = ds_module_buffer(m, "running_mean", ds_zeros(DS_F32, c));
        b->opts.running_var = ds_module_buffer(m, "running_var", ds_ones(DS_F32, c));
        b->batches = ds_module_buffer(m, "num_batches_tracked",
                                      dsi_fill(dsi_new_host(DS_I64, (ds_dims){0}), 0));
    }
    return m;
}

ds_module *ds_nn_sync_batch_norm(ds_module *parent, const char *name, int64_t channels,
                                 ds_comm *ranks, ds_nn_norm_opts o)
{
    static const ds_module_type type = {"SyncBatchNorm", sizeof(BatchNorm),
                                        .forward = sync_batch_norm_forward,
                                        .describe = batch_norm_describe};
    BatchNorm shape = {channels, .least = 2, .most = DS_MAX_DIMS, .ranks = ranks};
    return batch_norm_new(parent, name, &type, shape, o);
}

int ds_convert_sync_batchnorm(ds_module *m, ds_comm *ranks)
{
    if (!m) return dsi_refuse("convert_sync_batchnorm: the module is NULL"), 0;
    int n = 0;
    if (m->type.forward == batch_norm_forward) {
        ((BatchNorm *)ds_self(m))->ranks = ranks;
        m->type.name = "SyncBatchNorm", m->type.forward = sync_batch_norm_forward, n = 1;
    }
    for (int i = 0; i < ds_module_children(m); i++)
        n += ds_convert_sync_batchnorm(ds_module_child(m, i), ranks);
    return n;
}

ds_module *ds_nn_batch_norm1d_with(ds_module *parent, const char *name, int64_t channels,
                                   ds_nn_norm_opts o)
{
    static const ds_module_type type = {"BatchNorm1d", sizeof(BatchNorm),
                                        .forward = batch_norm_forward,
                                        .describe = batch_norm_describe};
    return batch_norm_new(parent, name, &type, (BatchNorm){channels, .least = 2, .most = 3}, o);
}

ds_module *ds_nn_batch_norm1d(ds_module *parent, const char *name, int64_t channels)
{
    return ds_nn_batch_norm1d_with(parent, name, channels, (ds_nn_norm_opts){0});
}

ds_module *ds_nn_batch_norm2d_with(ds_module *parent, const char *name, int64_t channels,
                                   ds_nn_norm_opts o)
{
    static const ds_module_type type = {"BatchNorm2d", sizeof(BatchNorm),
                                        .forward = batch_norm_forward,
                                        .describe = batch_norm_describe};
    return batch_norm_new(parent, name, &type, (BatchNorm){channels, .least = 4, .most = 4}, o);
}

ds_module *ds_nn_batch_norm2d(ds_module *parent, const char *name, int64_t channels)
{
    return ds_nn_batch_norm2d_with(parent, name, channels, (ds_nn_norm_opts){0});
}

ds_module *ds_nn_batch_norm3d_with(ds_module *parent, const char *name, int64_t channels,
                                   ds_nn_norm_opts o)
{
    static const ds_module_type type = {"BatchNorm3d", sizeof(BatchNorm),
                                        .forward = batch_norm_forward,
                                        .describe = batch_norm_describe};
    return batch_norm_new(parent, name, &type, (BatchNorm){channels, .least = 5, .most = 5}, o);
}

ds_module *ds_nn_batch_norm3d(ds_module *parent, const char *name, int64_t channels)
{
    return ds_nn_batch_norm3d_with(parent, name, channels, (ds_nn_norm_opts){0});
}

/* most: dimensions of a batch; one less is one sample */
static ds_module *instance_norm_new(ds_module *parent, const char *name, const ds_module_type *type,
                                    int64_t channels, int most, ds_nn_instance_norm_opts o)
{
    ds_nn_norm_opts opts = {.eps = o.eps,
                            .momentum = o.momentum,
                            .no_affine = !o.affine,
                            .no_running_stats = !o.track_running_stats};
    BatchNorm shape = {channels, .least = most - 1, .most = most};
    return batch_norm_new(parent, name, type, shape, opts);
}

ds_module *ds_nn_instance_norm1d_with(ds_module *parent, const char *name, int64_t channels,
                                      ds_nn_instance_norm_opts opts)
{
    static const ds_module_type type = {"InstanceNorm1d", sizeof(BatchNorm),
                                        .forward = instance_norm_forward,
                                        .describe = batch_norm_describe};
    return instance_norm_new(parent, name, &type, channels, 3, opts);
}

ds_module *ds_nn_instance_norm2d_with(ds_module *parent, const char *name, int64_t channels,
                                      ds_nn_instance_norm_opts opts)
{
    static const ds_module_type type = {"InstanceNorm2d", sizeof(BatchNorm),
                                        .forward = instance_norm_forward,
                                        .describe = batch_norm_describe};
    return instance_norm_new(parent, name, &type, channels, 4, opts);
}

ds_module *ds_nn_instance_norm3d_with(ds_module *parent, const char *name, int64_t channels,
                                      ds_nn_instance_norm_opts opts)
{
    static const ds_module_type type = {"InstanceNorm3d", sizeof(BatchNorm),
                                        .forward = instance_norm_forward,
                                        .describe = batch_norm_describe};
    return instance_norm_new(parent, name, &type, channels, 5, opts);
}

/* ---- GroupNorm --------------------------------------------------------------------------------------- */

typedef struct GroupNorm {
    int64_t groups, channels;
    double eps;
    ds_tensor *weight, *bias; /* [channels], or NULL */
} GroupNorm;

/* x [N,C,...]. The number of channels is checked here too, since without
 * weight and bias the op could not see another one. */
static ds_tensor *group_norm_forward(void *self, ds_tensor *x)
{
    GroupNorm *g = self;
    if (ds_size(x, 1) != g->channels)
        return dsi_refuse("group_norm: x has %lld channels: expected %lld",
                          (long long)ds_size(x, 1), (long long)g->channels);
    return ds_group_norm(x, g->groups, g->weight, g->bias, g->eps);
}

static void group_norm_describe(void *self, FILE *to)
{
    GroupNorm *g = self;
    fprintf(to, "%lld, %lld, eps=%g, affine=%s, bias=%s", (long long)g->groups,
            (long long)g->channels, dsi_option(g->eps, 1e-5), dsi_python_bool(g->weight),
            dsi_python_bool(g->bias));
}

ds_module *ds_nn_group_norm_with(ds_module *parent, const char *name, int64_t groups,
                                 int64_t channels, ds_nn_norm_opts o)
{
    static const ds_module_type type = {"GroupNorm", sizeof(GroupNorm),
                                        .forward = group_norm_forward,
                                        .describe = group_norm_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    GroupNorm *g = ds_self(m);
    if (groups < 1 || channels < 1 || channels % groups) {
        dsi_fail(DS_EINVAL,
                 "GroupNorm %s: groups = %lld, channels = %lld: expected groups that "
                 "divide channels",
                 ds_module_name(m), (long long)groups, (long long)channels);
        return m;
    }
    *g = (GroupNorm){groups, channels, o.eps, NULL, NULL};
    if (o.no_affine) return m;
    g->weight = ds_module_param(m, "weight", ds_ones(DS_F32, ds_shape(channels)));
    if (!o.no_bias) g->bias = ds_module_param(m, "bias", ds_zeros(DS_F32, ds_shape(channels)));
    return m;
}

ds_module *ds_nn_group_norm(ds_module *parent, const char *name, int64_t groups, int64_t channels)
{
    return ds_nn_group_norm_with(parent, name, groups, channels, (ds_nn_norm_opts){0});
}

/* ---- LayerNorm, RMSNorm ------------------------------------------------------------------------------ */

typedef struct LayerNorm {
    ds_dims shape; /* that is normalised */
    double eps;
    ds_tensor *weight, *bias; /* of the normalised shape, or NULL */
} LayerNorm;

static ds_tensor *layer_norm_forward(void *self, ds_tensor *x)
{
    LayerNorm *l = self;
    return ds_layer_norm(x, l->shape.n, l->weight, l->bias, l->eps);
}

/* As a Python tuple: (10,). */
static void norm_describe_shape(FILE *to, ds_dims shape)
{
    fputc('(', to);
    for (int i = 0; i < shape.n; i++) fprintf(to, "%s%lld", i ? ", " : "", (long long)shape.d[i]);
    fputs(shape.n == 1 ? ",)" : ")", to);
}

static void layer_norm_describe(void *self, FILE *to)
{
    LayerNorm *l = self;
    norm_describe_shape(to, l->shape);
    fprintf(to, ", eps=%g, elementwise_affine=%s, bias=%s", dsi_option(l->eps, 1e-5),
            dsi_python_bool(l->weight), dsi_python_bool(l->bias));
}

/* weight 1 and bias 0 of the normalised shape, the last dimensions of x. */
ds_module *ds_nn_layer_norm_with(ds_module *parent, const char *name, ds_dims shape,
                                 ds_nn_norm_opts o)
{
    static const ds_module_type type = {"LayerNorm", sizeof(LayerNorm),
                                        .forward = layer_norm_forward,
                                        .describe = layer_norm_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    LayerNorm *l = ds_self(m);
    l->shape = shape;
    l->eps = o.eps;
    if (o.no_affine) return m;
    l->weight = ds_module_param(m, "weight", ds_ones(DS_F32, shape));
    if (!o.no_bias) l->bias = ds_module_param(m, "bias", ds_zeros(DS_F32, shape));
    return m;
}

ds_module *ds_nn_layer_norm(ds_module *parent, const char *name, ds_dims shape)
{
    return ds_nn_layer_norm_with(parent, name, shape, (ds_nn_norm_opts){0});
}

static ds_tensor *rms_norm_forward(void *self, ds_tensor *x)
{
    LayerNorm *l = self;
    return ds_rms_norm(x, l->shape.n, l->weight, l->eps);
}

/* torch prints eps=None for its default, the epsilon of x's dtype. */
static void rms_norm_describe(void *self, FILE *to)
{
    LayerNorm *l = self;
    norm_describe_shape(to, l->shape);
    if (l->eps != 0)
        fprintf(to, ", eps=%g", dsi_option(l->eps, 0));
    else
        fputs(", eps=None", to);
    fprintf(to, ", elementwise_affine=%s", dsi_python_bool(l->weight));
}

/* weight 1 of the normalised shape. */
ds_module *ds_nn_rms_norm_with(ds_module *parent, const char *name, ds_dims shape,
                               ds_nn_norm_opts o)
{
    static const ds_module_type type = {"RMSNorm", sizeof(LayerNorm), .forward = rms_norm_forward,
                                        .describe = rms_norm_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    LayerNorm *l = ds_self(m);
    *l = (LayerNorm){shape, o.eps, NULL, NULL};
    if (!o.no_affine) l->weight = ds_module_param(m, "weight", ds_ones(DS_F32, shape));
    return m;
}

ds_module *ds_nn_rms_norm(ds_module *parent, const char *name, ds_dims shape)
{
    return ds_nn_rms_norm_with(parent, name, shape, (ds_nn_norm_opts){0});
}
