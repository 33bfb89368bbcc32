/* nn/activation.c: modules of one op each, without parameters but for PReLU.
 *
 * An option is stored as its op takes it, 0 for the default; `describe` prints
 * torch's extra_repr, where a default is printed as its value. Modules without
 * state have no struct; an option of one number is the struct. Which op it is,
 * and its formula, is in include/deepspeed/ops.h.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"

#include "module.h"

#include <string.h>

/* A module that is one call of an op of one tensor. */
#define ACTIVATION(f, Class) \
    static ds_tensor *f##_forward(void *self, ds_tensor *x) { return (void)self, ds_##f(x); } \
\
    ds_module *ds_nn_##f(ds_module *parent, const char *name) \
    { \
        return ds_module_make(parent, name, #Class, .forward = f##_forward); \
    }

ACTIVATION(hardsigmoid, Hardsigmoid)
ACTIVATION(hardswish, Hardswish)
ACTIVATION(logsigmoid, LogSigmoid)
ACTIVATION(mish, Mish)
ACTIVATION(relu, ReLU)
ACTIVATION(selu, SELU)
ACTIVATION(sigmoid, Sigmoid)
ACTIVATION(silu, SiLU)
ACTIVATION(tanh, Tanh)

static ds_tensor *gelu_forward(void *self, ds_tensor *x) { return (void)self, ds_gelu(x); }
static void gelu_describe(void *self, FILE *to) { (void)self, fputs("approximate='none'", to); }

ds_module *ds_nn_gelu(ds_module *parent, const char *name)
{
    return ds_module_make(parent, name, "GELU", .forward = gelu_forward, .describe = gelu_describe);
}

/* x [N,...] -> [N,the rest]: the batch's dimension stays, as in torch's
 * default. */
static ds_tensor *flatten_forward(void *self, ds_tensor *x) { return (void)self, ds_flatten(x, 1); }

static void flatten_describe(void *self, FILE *to)
{
    (void)self, fputs("start_dim=1, end_dim=-1", to);
}

ds_module *ds_nn_flatten(ds_module *parent, const char *name)
{
    return ds_module_make(parent, name, "Flatten", .forward = flatten_forward,
                          .describe = flatten_describe);
}

static ds_tensor *identity_forward(void *self, ds_tensor *x) { return (void)self, x; }

ds_module *ds_nn_identity(ds_module *parent, const char *name)
{
    return ds_module_make(parent, name, "Identity", .forward = identity_forward);
}

/* ---- with options ------------------------------------------------------------------------------------ */

/* A number as Python prints a float: 1.0, 0.01. */
static void describe_float(FILE *to, const char *name, double x)
{
    bool whole = x == (double)(int64_t)x;
    fprintf(to, whole ? "%s=%.1f" : "%s=%g", name, x);
}

/* A module that is an op of a tensor and a number, whose default is `usual`. */
#define ACTIVATION_WITH(f, Class, number, usual) \
    static ds_tensor *f##_forward(void *self, ds_tensor *x) { return ds_##f(x, *(double *)self); } \
\
    static void f##_describe(void *self, FILE *to) \
    { \
        describe_float(to, #number, dsi_option(*(double *)self, usual)); \
    } \
\
    ds_module *ds_nn_##f(ds_module *parent, const char *name, double number) \
    { \
        ds_module *m = ds_module_make(parent, name, #Class, sizeof number, f##_forward, \
                                      .describe = f##_describe); \
        *(double *)ds_self(m) = number; \
        return m; \
    }

ACTIVATION_WITH(leaky_relu, LeakyReLU, negative_slope, 0.01)
ACTIVATION_WITH(elu, ELU, alpha, 1)
ACTIVATION_WITH(celu, CELU, alpha, 1)

static ds_tensor *softplus_forward(void *self, ds_tensor *x)
{
    const double *o = self;
    return ds_softplus(x, o[0], o[1]);
}

static void softplus_describe(void *self, FILE *to)
{
    const double *o = self;
    describe_float(to, "beta", dsi_option(o[0], 1));
    describe_float(to, ", threshold", dsi_option(o[1], 20));
}

ds_module *ds_nn_softplus(ds_module *parent, const char *name, double beta, double threshold)
{
    ds_module *m = ds_module_make(parent, name, "Softplus", 2 * sizeof beta, softplus_forward,
                                  .describe = softplus_describe);
    memcpy(ds_self(m), (double[]){beta, threshold}, 2 * sizeof beta);
    return m;
}

static ds_tensor *softmax_forward(void *self, ds_tensor *x) { return ds_softmax(x, *(int *)self); }
static ds_tensor *log_softmax_forward(void *self, ds_tensor *x)
{
    return ds_log_softmax(x, *(int *)self);
}

static void softmax_describe(void *self, FILE *to) { fprintf(to, "dim=%d", *(int *)self); }

ds_module *ds_nn_softmax(ds_module *parent, const char *name, int dim)
{
    ds_module *m = ds_module_make(parent, name, "Softmax", sizeof dim, softmax_forward,
                                  .describe = softmax_describe);
    *(int *)ds_self(m) = dim;
    return m;
}

ds_module *ds_nn_log_softmax(ds_module *parent, const char *name, int dim)
{
    ds_module *m = ds_module_make(parent, name, "LogSoftmax", sizeof dim, log_softmax_forward,
                                  .describe = softmax_describe);
    *(int *)ds_self(m) = dim;
    return m;
}

static ds_tensor *dropout_forward(void *self, ds_tensor *x)
{
    return ds_dropout(x, *(double *)self, ds_module_training(ds_module_of(self)));
}

static void dropout_describe(void *self, FILE *to)
{
    fprintf(to, "p=%g, inplace=False", *(double *)self);
}

/* Whole planes of [N,C,...] are dropped. */
static ds_tensor *dropout2d_forward(void *self, ds_tensor *x)
{
    return ds_dropout2d(x, *(double *)self, ds_module_training(ds_module_of(self)));
}

/* Active only while the module trains. A bad p sets the message here and fails
 * again at each call. */
static ds_module *dropout_new(ds_module *parent, const char *name, const ds_module_type *type,
                              double p)
{
    ds_module *m = ds_module_new(parent, name, type);
    if (!(p >= 0 && p <= 1))
        ds_fail(DS_EINVAL, "%s %s: p = %g: expected 0 to 1", type->name, ds_module_name(m), p);
    memcpy(ds_self(m), &p, sizeof p);
    return m;
}

ds_module *ds_nn_dropout(ds_module *parent, const char *name, double p)
{
    static const ds_module_type type = {"Dropout", sizeof(double), .forward = dropout_forward,
                                        .describe = dropout_describe};
    return dropout_new(parent, name, &type, p);
}

ds_module *ds_nn_dropout2d(ds_module *parent, const char *name, double p)
{
    static const ds_module_type type = {"Dropout2d", sizeof(double), .forward = dropout2d_forward,
                                        .describe = dropout_describe};
    return dropout_new(parent, name, &type, p);
}

bool dsi_module_is_pointwise(const ds_module *m)
{
    static ds_tensor *(*const forwards[])(void *, ds_tensor *) = {
        hardsigmoid_forward, hardswish_forward, logsigmoid_forward, mish_forward,
        relu_forward,        selu_forward,      sigmoid_forward,    silu_forward,
        tanh_forward,        gelu_forward,      identity_forward,   leaky_relu_forward,
        elu_forward,         celu_forward,      softplus_forward,   dropout_forward};
    for (size_t i = 0; i < sizeof forwards / sizeof *forwards; i++)
        if (ds_module_type_of(m)->forward == forwards[i]) return true;
    return false;
}

static ds_tensor *max_pool_forward(void *self, ds_tensor *x)
{
    return ds_max_pool2d_with(x, *(ds_pool2d_opts *)self);
}

static ds_tensor *avg_pool_forward(void *self, ds_tensor *x)
{
    return ds_avg_pool2d_with(x, *(ds_pool2d_opts *)self);
}

/* "name=n", or "name=(h, w)" where they differ */
static void pool_describe_pair(FILE *to, const char *name, int h, int w)
{
    w = w == 0 ? h : w == -1 ? 0 : w;
    if (h == w)
        fprintf(to, "%s=%d", name, h);
    else
        fprintf(to, "%s=(%d, %d)", name, h, w);
}

/* As torch prints it: sizes as a number if both are equal, the stride as the
 * kernel's size if it was left out. */
static void avg_pool_describe(void *self, FILE *to)
{
    const ds_pool2d_opts *o = self;
    pool_describe_pair(to, "kernel_size", o->kernel, o->kernel_w);
    if (o->stride || o->stride_w)
        pool_describe_pair(to, ", stride", o->stride ? o->stride : o->kernel, o->stride_w);
    else
        pool_describe_pair(to, ", stride", o->kernel, o->kernel_w);
    pool_describe_pair(to, ", padding", o->padding, o->padding_w);
}

static void max_pool_describe(void *self, FILE *to)
{
    const ds_pool2d_opts *o = self;
    avg_pool_describe(self, to);
    pool_describe_pair(to, ", dilation", o->dilation ? o->dilation : 1, o->dilation_w);
    fprintf(to, ", ceil_mode=%s", o->ceil_mode ? "True" : "False");
}

static ds_module *pool_new(ds_module *parent, const char *name, const ds_module_type *type,
                           ds_pool2d_opts o)
{
    ds_module *m = ds_module_new(parent, name, type);
    memcpy(ds_self(m), &o, sizeof o);
    return m;
}

ds_module *ds_nn_max_pool2d(ds_module *parent, const char *name, ds_pool2d_opts opts)
{
    static const ds_module_type type = {"MaxPool2d", sizeof opts, .forward = max_pool_forward,
                                        .describe = max_pool_describe};
    return pool_new(parent, name, &type, opts);
}

ds_module *ds_nn_avg_pool2d(ds_module *parent, const char *name, ds_pool2d_opts opts)
{
    static const ds_module_type type = {"AvgPool2d", sizeof opts, .forward = avg_pool_forward,
                                        .describe = avg_pool_describe};
    return pool_new(parent, name, &type, opts);
}

static ds_tensor *adaptive_forward(void *self, ds_tensor *x)
{
    const int64_t *size = self;
    return ds_adaptive_avg_pool2d(x, size[0], size[1]);
}

static void adaptive_describe(void *self, FILE *to)
{
    const int64_t *size = self;
    fprintf(to, "output_size=(%lld, %lld)", (long long)size[0], (long long)size[1]);
}

ds_module *ds_nn_adaptive_avg_pool2d(ds_module *parent, const char *name, int64_t h, int64_t w)
{
    ds_module *m = ds_module_make(parent, name, "AdaptiveAvgPool2d", 2 * sizeof h, adaptive_forward,
                                  .describe = adaptive_describe);
    memcpy(ds_self(m), (int64_t[]){h, w}, 2 * sizeof h);
    return m;
}

static ds_tensor *adaptive_max_forward(void *self, ds_tensor *x)
{
    const int64_t *size = self;
    return ds_adaptive_max_pool2d(x, size[0], size[1], NULL);
}

ds_module *ds_nn_adaptive_max_pool2d(ds_module *parent, const char *name, int64_t h, int64_t w)
{
    ds_module *m = ds_module_make(parent, name, "AdaptiveMaxPool2d", 2 * sizeof h,
                                  adaptive_max_forward, .describe = adaptive_describe);
    memcpy(ds_self(m), (int64_t[]){h, w}, 2 * sizeof h);
    return m;
}

/* ---- PReLU ------------------------------------------------------------------------------------------- */

typedef struct PReLU {
    ds_tensor *weight; /* [n] */
} PReLU;

static ds_tensor *prelu_forward(void *self, ds_tensor *x)
{
    return ds_prelu(x, ((PReLU *)self)->weight);
}

static void prelu_describe(void *self, FILE *to)
{
    fprintf(to, "num_parameters=%lld", (long long)ds_numel(((PReLU *)self)->weight));
}

ds_module *ds_nn_prelu(ds_module *parent, const char *name, int64_t n, double init)
{
    ds_module *m = ds_module_make(parent, name, "PReLU", sizeof(PReLU), prelu_forward,
                                  .describe = prelu_describe);
    if (n < 1)
        ds_fail(DS_EINVAL, "PReLU %s: n = %lld: expected at least 1", ds_module_name(m),
                (long long)n);
    else
        ((PReLU *)ds_self(m))->weight = ds_module_param(
            m, "weight", ds_full(DS_F32, ds_shape(n), dsi_option(init, 0.25)));
    return m;
}
