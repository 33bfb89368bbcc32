/* nn/linear.c: Linear, Bilinear. Initial values are torch.nn's.
 * SPDX-License-Identifier: MIT */
#include "module.h"

#include <math.h>

typedef struct Linear {
    ds_tensor *weight; /* [out, in] */
    ds_tensor *bias;   /* [out], or NULL */
} Linear;

/* x [...,in] -> x W^T + b [...,out]. */
static ds_tensor *linear_forward(void *self, ds_tensor *x)
{
    Linear *l = self;
    return ds_linear(x, l->weight, l->bias);
}

bool dsi_module_is_linear(const ds_module *m)
{
    return ds_module_type_of(m)->forward == linear_forward;
}

static void linear_describe(void *self, FILE *to)
{
    Linear *l = self;
    fprintf(to, "in_features=%lld, out_features=%lld, bias=%s", (long long)ds_size(l->weight, 1),
            (long long)ds_size(l->weight, 0), dsi_python_bool(l->bias));
}

/* weight [out, in] and bias [out] from U(-b, b), b = 1 / sqrt(in), weight
 * first, as torch draws them; nothing is drawn for a tied weight. */
ds_module *ds_nn_linear_with(ds_module *parent, const char *name, int64_t in, ds_linear_opts o)
{
    static const ds_module_type type = {"Linear", sizeof(Linear), .forward = linear_forward,
                                        .describe = linear_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Linear *l = ds_self(m);
    if (in <= 0 || o.out <= 0) {
        ds_fail(DS_EINVAL, "Linear %s: in = %lld, out = %lld: expected at least 1",
                ds_module_name(m), (long long)in, (long long)o.out);
        return m;
    }
    if (o.tied &&
        (ds_ndim(o.tied) != 2 || ds_size(o.tied, 0) != o.out || ds_size(o.tied, 1) != in)) {
        ds_fail(DS_EINVAL, "Linear %s: the tied weight does not have the shape [%lld, %lld]",
                ds_module_name(m), (long long)o.out, (long long)in);
        return m;
    }
    double bound = 1 / sqrt((double)in);
    if (o.tied) {
        l->weight = ds_module_tie(m, "weight", o.tied);
    } else {
        l->weight = ds_module_param(m, "weight", ds_empty(DS_F32, ds_shape(o.out, in)));
        ds_init_kaiming_uniform(l->weight, sqrt(5), DS_FAN_IN, DS_GAIN_LEAKY_RELU);
    }
    if (o.no_bias) return m;
    l->bias = ds_module_param(m, "bias", ds_empty(DS_F32, ds_shape(o.out)));
    ds_init_uniform(l->bias, -bound, bound);
    return m;
}

/* ---- Bilinear ---------------------------------------------------------------------------------------- */

typedef struct Bilinear {
    ds_tensor *weight; /* [out, in1, in2] */
    ds_tensor *bias;   /* [out], or NULL */
} Bilinear;

static ds_tensor *bilinear_forward(void *self, ds_tensor **in, int n)
{
    Bilinear *l = self;
    if (n != 2) return ds_fail(DS_EINVAL, "Bilinear: %d inputs: expected 2", n), NULL;
    return ds_bilinear(in[0], in[1], l->weight, l->bias);
}

static void bilinear_describe(void *self, FILE *to)
{
    Bilinear *l = self;
    fprintf(to, "in1_features=%lld, in2_features=%lld, out_features=%lld, bias=%s",
            (long long)ds_size(l->weight, 1), (long long)ds_size(l->weight, 2),
            (long long)ds_size(l->weight, 0), dsi_python_bool(l->bias));
}

/* Both from U(-b, b), b = 1 / sqrt(in1), weight first. */
ds_module *ds_nn_bilinear(ds_module *parent, const char *name, int64_t in1, int64_t in2,
                          int64_t out, bool no_bias)
{
    static const ds_module_type type = {"Bilinear", sizeof(Bilinear), .forward_n = bilinear_forward,
                                        .describe = bilinear_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Bilinear *l = ds_self(m);
    if (in1 <= 0 || in2 <= 0 || out <= 0) {
        ds_fail(DS_EINVAL, "Bilinear %s: in1 = %lld, in2 = %lld, out = %lld: expected at least 1",
                ds_module_name(m), (long long)in1, (long long)in2, (long long)out);
        return m;
    }
    double bound = 1 / sqrt((double)in1);
    l->weight = ds_module_param(m, "weight", ds_empty(DS_F32, ds_shape(out, in1, in2)));
    ds_init_uniform(l->weight, -bound, bound);
    if (no_bias) return m;
    l->bias = ds_module_param(m, "bias", ds_empty(DS_F32, ds_shape(out)));
    ds_init_uniform(l->bias, -bound, bound);
    return m;
}
