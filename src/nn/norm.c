/* nn/norm.c: BatchNorm2d, LayerNorm.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/option.h"

#include <deepspeed/autograd.h>
#include <deepspeed/nn.h>

typedef struct BatchNorm {
    int64_t channels;
    ds_batch_norm_opts opts;
    ds_tensor *batches; /* int64 []: num_batches_tracked */
} BatchNorm;

/* Running statistics are used in evaluation, and updated in training; a
 * recomputed forward does not count as a batch. */
static ds_tensor *batch_norm_forward(void *self, ds_tensor *x)
{
    BatchNorm *b = self;
    if (ds_ndim(x) != 4)
        return dsi_refuse("batch_norm2d: x has %d dimensions: expected 4", ds_ndim(x));
    bool training = ds_module_training(ds_module_of(self));
    ds_batch_norm_opts o = b->opts;
    o.training = training || !o.running_mean;
    ds_tensor *y = ds_batch_norm_with(x, o);
    if (y && training && b->batches && !ds_recomputing()) {
        int64_t *n = ds_data_mut(b->batches);
        if (n) ++*n;
    }
    return y;
}

static const char *python_bool(bool x) { return x ? "True" : "False"; }

static void batch_norm_describe(void *self, FILE *to)
{
    BatchNorm *b = self;
    const ds_batch_norm_opts *o = &b->opts;
    fprintf(to, "%lld, eps=%g, momentum=%g, affine=%s, bias=%s, track_running_stats=%s",
            (long long)b->channels, dsi_option(o->eps, 1e-5), dsi_option(o->momentum, 0.1),
            python_bool(o->weight), python_bool(o->bias), python_bool(o->running_mean));
}

/* weight 1, bias 0, running_mean 0, running_var 1, [channels] each. Buffers are
 * saved in state dicts and not trained. */
ds_module *ds_nn_batch_norm2d_with(ds_module *parent, const char *name, int64_t channels,
                                   ds_nn_norm_opts o)
{
    static const ds_module_type type = {"BatchNorm2d", sizeof(BatchNorm),
                                        .forward = batch_norm_forward,
                                        .describe = batch_norm_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    BatchNorm *b = ds_self(m);
    b->channels = channels;
    b->opts = (ds_batch_norm_opts){.momentum = o.momentum, .eps = o.eps};
    if (!o.no_affine) {
        b->opts.weight = ds_module_param(m, "weight", ds_ones(DS_F32, ds_shape(channels)));
        b->opts.bias = ds_module_param(m, "bias", ds_zeros(DS_F32, ds_shape(channels)));
    }
    if (!o.no_running_stats) {
        b->opts.running_mean = ds_module_buffer(m, "running_mean",
                                                ds_zeros(DS_F32, ds_shape(channels)));
        b->opts.running_var = ds_module_buffer(m, "running_var",
                                               ds_ones(DS_F32, ds_shape(channels)));
        b->batches = ds_module_buffer(m, "num_batches_tracked", ds_scalar(DS_I64, 0));
    }
    return m;
}

ds_module *ds_nn_batch_norm2d(ds_module *parent, const char *name, int64_t channels)
{
    return ds_nn_batch_norm2d_with(parent, name, channels, (ds_nn_norm_opts){0});
}

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

/* The normalised shape as a Python tuple: (10,). */
static void layer_norm_describe(void *self, FILE *to)
{
    LayerNorm *l = self;
    fputc('(', to);
    for (int i = 0; i < l->shape.n; i++)
        fprintf(to, "%s%lld", i ? ", " : "", (long long)l->shape.d[i]);
    fprintf(to, "%s), eps=%g, elementwise_affine=%s, bias=%s", l->shape.n == 1 ? "," : "",
            dsi_option(l->eps, 1e-5), python_bool(l->weight), python_bool(l->bias));
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
    l->bias = ds_module_param(m, "bias", ds_zeros(DS_F32, shape));
    return m;
}

ds_module *ds_nn_layer_norm(ds_module *parent, const char *name, ds_dims shape)
{
    return ds_nn_layer_norm_with(parent, name, shape, (ds_nn_norm_opts){0});
}
