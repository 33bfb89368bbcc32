/* nn/activation.c: modules of one op each. Only PReLU has a parameter.
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
ACTIVATION(softsign, Softsign)
ACTIVATION(tanh, Tanh)
ACTIVATION(tanhshrink, Tanhshrink)

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

/* A number behind a label as Python prints a float: 1.0, 0.01. */
static void describe_float(FILE *to, const char *label, double x)
{
    bool whole = x == (double)(int64_t)x;
    fprintf(to, whole ? "%s%.1f" : "%s%g", label, x);
}

/* A module that is an op of a tensor and an option. */
#define WITH_OPTION(f, Class, T, option, tells) \
    static ds_tensor *f##_forward(void *self, ds_tensor *x) { return ds_##f(x, *(T *)self); } \
\
    ds_module *ds_nn_##f(ds_module *parent, const char *name, T option) \
    { \
        ds_module *m = ds_module_make(parent, name, #Class, sizeof(T), f##_forward, \
                                      .describe = tells); \
        *(T *)ds_self(m) = option; \
        return m; \
    }

/* The option is a number, whose default is `usual`. */
#define ACTIVATION_WITH(f, Class, number, label, usual) \
    static void f##_describe(void *self, FILE *to) \
    { \
        describe_float(to, label, dsi_option(*(double *)self, usual)); \
    } \
    WITH_OPTION(f, Class, double, number, f##_describe)

ACTIVATION_WITH(leaky_relu, LeakyReLU, negative_slope, "negative_slope=", 0.01)
ACTIVATION_WITH(elu, ELU, alpha, "alpha=", 1)
ACTIVATION_WITH(celu, CELU, alpha, "alpha=", 1)
ACTIVATION_WITH(hardshrink, Hardshrink, lambda, "", 0.5)
ACTIVATION_WITH(softshrink, Softshrink, lambda, "", 0.5)

static ds_tensor *softplus_forward(void *self, ds_tensor *x)
{
    const double *o = self;
    return ds_softplus(x, o[0], o[1]);
}

static void softplus_describe(void *self, FILE *to)
{
    const double *o = self;
    describe_float(to, "beta=", dsi_option(o[0], 1));
    describe_float(to, ", threshold=", dsi_option(o[1], 20));
}

ds_module *ds_nn_softplus(ds_module *parent, const char *name, double beta, double threshold)
{
    ds_module *m = ds_module_make(parent, name, "Softplus", 2 * sizeof beta, softplus_forward,
                                  .describe = softplus_describe);
    memcpy(ds_self(m), (double[]){beta, threshold}, 2 * sizeof beta);
    return m;
}

/* Both bounds 0: -1 and 1. */
static ds_tensor *hardtanh_forward(void *self, ds_tensor *x)
{
    const double *o = self;
    return ds_clamp(x, o[0], o[1]);
}

static void hardtanh_describe(void *self, FILE *to)
{
    const double *o = self;
    describe_float(to, "min_val=", o[0]);
    describe_float(to, ", max_val=", o[1]);
}

ds_module *ds_nn_hardtanh(ds_module *parent, const char *name, double low, double high)
{
    ds_module *m = ds_module_make(parent, name, "Hardtanh", 2 * sizeof low, hardtanh_forward,
                                  .describe = hardtanh_describe);
    if (low == 0 && high == 0) low = -1, high = 1;
    low = dsi_option(low, 0), high = dsi_option(high, 0);
    if (!(low < high))
        ds_fail(DS_EINVAL, "Hardtanh %s: from %g to %g: expected a range", ds_module_name(m), low,
                high);
    memcpy(ds_self(m), (double[]){low, high}, 2 * sizeof low);
    return m;
}

static ds_tensor *relu6_forward(void *self, ds_tensor *x) { return (void)self, ds_clamp(x, 0, 6); }

ds_module *ds_nn_relu6(ds_module *parent, const char *name)
{
    return ds_module_make(parent, name, "ReLU6", .forward = relu6_forward);
}

static ds_tensor *threshold_forward(void *self, ds_tensor *x)
{
    const double *o = self;
    return ds_threshold(x, o[0], o[1]);
}

static void threshold_describe(void *self, FILE *to)
{
    const double *o = self;
    fprintf(to, "threshold=%g, value=%g", o[0], o[1]);
}

ds_module *ds_nn_threshold(ds_module *parent, const char *name, double threshold, double value)
{
    ds_module *m = ds_module_make(parent, name, "Threshold", 2 * sizeof value, threshold_forward,
                                  .describe = threshold_describe);
    memcpy(ds_self(m), (double[]){threshold, value}, 2 * sizeof value);
    return m;
}

static void dim_describe(void *self, FILE *to) { fprintf(to, "dim=%d", *(int *)self); }

WITH_OPTION(softmax, Softmax, int, dim, dim_describe)
WITH_OPTION(log_softmax, LogSoftmax, int, dim, dim_describe)
WITH_OPTION(softmin, Softmin, int, dim, dim_describe)
WITH_OPTION(glu, GLU, int, dim, dim_describe)

static void dropout_describe(void *self, FILE *to)
{
    fprintf(to, "p=%g, inplace=False", *(double *)self);
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

#define DROPOUT(f, Class, op) \
    static ds_tensor *f##_forward(void *self, ds_tensor *x) \
    { \
        return op(x, *(double *)self, ds_module_training(ds_module_of(self))); \
    } \
\
    ds_module *ds_nn_##f(ds_module *parent, const char *name, double p) \
    { \
        static const ds_module_type type = {#Class, sizeof(double), .forward = f##_forward, \
                                            .describe = dropout_describe}; \
        return dropout_new(parent, name, &type, p); \
    }

DROPOUT(dropout, Dropout, ds_dropout)
/* whole planes of [N,C,...] */
DROPOUT(dropout1d, Dropout1d, ds_dropout2d)
DROPOUT(dropout2d, Dropout2d, ds_dropout2d)
DROPOUT(dropout3d, Dropout3d, ds_dropout2d)
DROPOUT(alpha_dropout, AlphaDropout, ds_alpha_dropout)
DROPOUT(feature_alpha_dropout, FeatureAlphaDropout, ds_feature_alpha_dropout)

bool dsi_module_is_pointwise(const ds_module *m)
{
    static ds_tensor *(*const forwards[])(void *, ds_tensor *) = {
        hardsigmoid_forward, hardswish_forward,  logsigmoid_forward, mish_forward,
        relu_forward,        selu_forward,       sigmoid_forward,    silu_forward,
        softsign_forward,    tanh_forward,       tanhshrink_forward, gelu_forward,
        identity_forward,    leaky_relu_forward, elu_forward,        celu_forward,
        hardshrink_forward,  softshrink_forward, softplus_forward,   hardtanh_forward,
        relu6_forward,       threshold_forward,  dropout_forward};
    for (size_t i = 0; i < sizeof forwards / sizeof *forwards; i++)
        if (ds_module_type_of(m)->forward == forwards[i]) return true;
    return false;
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
