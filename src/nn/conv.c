/* nn/conv.c: Conv2d. Initial values are torch.nn.Conv2d's.
 * SPDX-License-Identifier: MIT */
#include <deepspeed/nn.h>

#include <math.h>

typedef struct Conv2d {
    ds_tensor *weight;   /* [out, in/groups, kernel, kernel_w] */
    ds_conv2d_opts opts; /* .bias [out], or NULL */
} Conv2d;

static ds_tensor *conv2d_forward(void *self, ds_tensor *x)
{
    Conv2d *c = self;
    return ds_conv2d_with(x, c->weight, c->opts);
}

/* ", name=(h, w)"; nothing for the default */
static void conv_describe_pair(FILE *to, const char *name, int h, int w, int usual)
{
    h = h ? h : usual;
    w = w == 0 ? h : w == -1 ? 0 : w;
    if (usual < 0 || h != usual || w != usual) fprintf(to, ", %s=(%d, %d)", name, h, w);
}

/* torch's extra_repr: what has its default is left out, but kernel_size and
 * stride never. */
static void conv2d_describe(void *self, FILE *to)
{
    Conv2d *c = self;
    const ds_conv2d_opts *o = &c->opts;
    int groups = o->groups ? o->groups : 1, stride = o->stride ? o->stride : 1;
    fprintf(to, "%lld, %lld", (long long)ds_size(c->weight, 1) * groups,
            (long long)ds_size(c->weight, 0));
    conv_describe_pair(to, "kernel_size", (int)ds_size(c->weight, 2), (int)ds_size(c->weight, 3),
                       -1);
    conv_describe_pair(to, "stride", stride, o->stride_w, -1);
    conv_describe_pair(to, "padding", o->padding, o->padding_w, 0);
    conv_describe_pair(to, "dilation", o->dilation, o->dilation_w, 1);
    if (groups != 1) fprintf(to, ", groups=%d", groups);
    if (!o->bias) fputs(", bias=False", to);
}

/* weight [out, in / groups, kernel, kernel_w] and bias [out] are drawn from
 * U(-b, b), b = 1 / sqrt(in / groups kernel kernel_w), weight first. Refused
 * sizes leave a module without parameters and the message. */
ds_module *ds_nn_conv2d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                             ds_nn_conv2d_opts o)
{
    static const ds_module_type type = {"Conv2d", sizeof(Conv2d), .forward = conv2d_forward,
                                        .describe = conv2d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Conv2d *c = ds_self(m);
    int64_t groups = o.groups ? o.groups : 1;
    int64_t r = o.kernel, s = o.kernel_w ? o.kernel_w : r;
    if (in <= 0 || out <= 0 || r <= 0 || s <= 0 || groups < 0 || in % groups || out % groups) {
        ds_fail(DS_EINVAL,
                "Conv2d %s: in = %lld, out = %lld, kernel %lld x %lld, groups = %lld: expected "
                "sizes of "
                "at least 1, and groups to divide in and out",
                name, (long long)in, (long long)out, (long long)r, (long long)s, (long long)groups);
        return m;
    }
    c->opts = (ds_conv2d_opts){.stride = o.stride,
                               .stride_w = o.stride_w,
                               .padding = o.padding,
                               .padding_w = o.padding_w,
                               .dilation = o.dilation,
                               .dilation_w = o.dilation_w,
                               .groups = o.groups};
    double bound = 1 / sqrt((double)(in / groups * r * s));
    c->weight = ds_module_param(m, "weight", ds_empty(DS_F32, ds_shape(out, in / groups, r, s)));
    ds_init_kaiming_uniform(c->weight, sqrt(5), DS_FAN_IN, DS_GAIN_LEAKY_RELU);
    if (o.no_bias) return m;
    c->opts.bias = ds_module_param(m, "bias", ds_empty(DS_F32, ds_shape(out)));
    ds_init_uniform(c->opts.bias, -bound, bound);
    return m;
}
