/* nn/linear.c: Linear. Initial values are torch.nn.Linear's.
 * SPDX-License-Identifier: MIT */
#include <deepspeed/nn.h>

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

static void linear_describe(void *self, FILE *to)
{
    Linear *l = self;
    fprintf(to, "in_features=%lld, out_features=%lld, bias=%s", (long long)ds_size(l->weight, 1),
            (long long)ds_size(l->weight, 0), l->bias ? "True" : "False");
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
