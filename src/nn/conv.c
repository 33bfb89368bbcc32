/* nn/conv.c: Conv1d, Conv2d, ConvTranspose2d. Initial values are torch.nn's.
 *
 * The options of the op are kept with the bias in them, as the op takes both.
 * Their horizontal values are 0 for "as the vertical one" and -1 for 0.
 * SPDX-License-Identifier: MIT */
#include <deepspeed/nn.h>

#include <math.h>

/* Sizes of a layer before it has parameters. */
typedef struct ConvSizes {
    int64_t in, out, kernel[2], groups;
} ConvSizes;

/* kernel: of 1 dimension [kernel, 1]. False with the message. */
static bool conv_check(const ds_module *m, ConvSizes s)
{
    if (s.in > 0 && s.out > 0 && s.kernel[0] > 0 && s.kernel[1] > 0 && s.groups > 0 &&
        s.in % s.groups == 0 && s.out % s.groups == 0)
        return true;
    ds_fail(DS_EINVAL,
            "%s %s: in = %lld, out = %lld, kernel %lld x %lld, groups = %lld: expected sizes of "
            "at least 1, and groups to divide in and out",
            ds_module_type_of(m)->name, ds_module_name(m), (long long)s.in, (long long)s.out,
            (long long)s.kernel[0], (long long)s.kernel[1], (long long)s.groups);
    return false;
}

/* Draws weight, of shape [_, channels, ...], and then bias [out], from U(-b, b),
 * b = 1 / sqrt(channels kernel kernel_w). */
static ds_tensor *conv_weight(ds_module *m, ds_dims shape)
{
    ds_tensor *weight = ds_module_param(m, "weight", ds_empty(DS_F32, shape));
    return ds_init_kaiming_uniform(weight, sqrt(5), DS_FAN_IN, DS_GAIN_LEAKY_RELU);
}

/* The fan in is the number of weights of one index of dimension 0, so it is
 * right for a transposed weight in torch's sense too. NULL passes a failure
 * on. */
static ds_tensor *conv_bias(ds_module *m, const ds_tensor *weight, int64_t out)
{
    if (!weight) return NULL;
    double bound = 1 / sqrt((double)(ds_numel(weight) / ds_size(weight, 0)));
    ds_tensor *bias = ds_module_param(m, "bias", ds_empty(DS_F32, ds_shape(out)));
    return ds_init_uniform(bias, -bound, bound);
}

/* ---- Conv2d ------------------------------------------------------------------------------------------ */

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

/* weight [out, in / groups, kernel, kernel_w], bias [out]. Refused sizes leave a
 * module without parameters and the message. */
ds_module *ds_nn_conv2d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                             ds_nn_conv2d_opts o)
{
    static const ds_module_type type = {"Conv2d", sizeof(Conv2d), .forward = conv2d_forward,
                                        .describe = conv2d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Conv2d *c = ds_self(m);
    int64_t r = o.kernel, s = o.kernel_w ? o.kernel_w : r, groups = o.groups ? o.groups : 1;
    if (!conv_check(m, (ConvSizes){in, out, {r, s}, groups})) return m;
    c->opts = (ds_conv2d_opts){.stride = o.stride,
                               .stride_w = o.stride_w,
                               .padding = o.padding,
                               .padding_w = o.padding_w,
                               .dilation = o.dilation,
                               .dilation_w = o.dilation_w,
                               .groups = o.groups};
    c->weight = conv_weight(m, ds_shape(out, in / groups, r, s));
    if (!o.no_bias) c->opts.bias = conv_bias(m, c->weight, out);
    return m;
}

/* ---- Conv1d ------------------------------------------------------------------------------------------ */

typedef struct Conv1d {
    ds_tensor *weight;   /* [out, in/groups, kernel] */
    ds_conv1d_opts opts; /* .bias [out], or NULL */
} Conv1d;

static ds_tensor *conv1d_forward(void *self, ds_tensor *x)
{
    Conv1d *c = self;
    return ds_conv1d_with(x, c->weight, c->opts);
}

static void conv1d_describe(void *self, FILE *to)
{
    Conv1d *c = self;
    const ds_conv1d_opts *o = &c->opts;
    int groups = o->groups ? o->groups : 1;
    fprintf(to, "%lld, %lld, kernel_size=(%lld,), stride=(%d,)",
            (long long)ds_size(c->weight, 1) * groups, (long long)ds_size(c->weight, 0),
            (long long)ds_size(c->weight, 2), o->stride ? o->stride : 1);
    if (o->same) fputs(", padding=same", to);
    if (o->padding) fprintf(to, ", padding=(%d,)", o->padding);
    if (o->dilation > 1) fprintf(to, ", dilation=(%d,)", o->dilation);
    if (groups != 1) fprintf(to, ", groups=%d", groups);
    if (!o->bias) fputs(", bias=False", to);
}

/* weight [out, in / groups, kernel], bias [out]. */
ds_module *ds_nn_conv1d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                             ds_nn_conv1d_opts o)
{
    static const ds_module_type type = {"Conv1d", sizeof(Conv1d), .forward = conv1d_forward,
                                        .describe = conv1d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Conv1d *c = ds_self(m);
    int64_t groups = o.groups ? o.groups : 1;
    if (!conv_check(m, (ConvSizes){in, out, {o.kernel, 1}, groups})) return m;
    c->opts = (ds_conv1d_opts){.stride = o.stride,
                               .padding = o.padding,
                               .dilation = o.dilation,
                               .groups = o.groups,
                               .same = o.same};
    c->weight = conv_weight(m, ds_shape(out, in / groups, o.kernel));
    if (!o.no_bias) c->opts.bias = conv_bias(m, c->weight, out);
    return m;
}

/* ---- ConvTranspose2d --------------------------------------------------------------------------------- */

typedef struct ConvTranspose2d {
    ds_tensor *weight;             /* [in, out/groups, kernel, kernel_w] */
    ds_conv_transpose2d_opts opts; /* .bias [out], or NULL */
} ConvTranspose2d;

static ds_tensor *conv_transpose2d_forward(void *self, ds_tensor *x)
{
    ConvTranspose2d *c = self;
    return ds_conv_transpose2d_with(x, c->weight, c->opts);
}

static void conv_transpose2d_describe(void *self, FILE *to)
{
    ConvTranspose2d *c = self;
    const ds_conv_transpose2d_opts *o = &c->opts;
    int groups = o->groups ? o->groups : 1, stride = o->stride ? o->stride : 1;
    fprintf(to, "%lld, %lld", (long long)ds_size(c->weight, 0),
            (long long)ds_size(c->weight, 1) * groups);
    conv_describe_pair(to, "kernel_size", (int)ds_size(c->weight, 2), (int)ds_size(c->weight, 3),
                       -1);
    conv_describe_pair(to, "stride", stride, o->stride_w, -1);
    conv_describe_pair(to, "padding", o->padding, o->padding_w, 0);
    conv_describe_pair(to, "dilation", o->dilation, o->dilation_w, 1);
    conv_describe_pair(to, "output_padding", o->output_padding, o->output_padding_w, 0);
    if (groups != 1) fprintf(to, ", groups=%d", groups);
    if (!o->bias) fputs(", bias=False", to);
}

/* weight [in, out / groups, kernel, kernel_w], bias [out]: b is that of out /
 * groups channels, as torch computes it. */
ds_module *ds_nn_conv_transpose2d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                                       ds_nn_conv_transpose2d_opts o)
{
    static const ds_module_type type = {"ConvTranspose2d", sizeof(ConvTranspose2d),
                                        .forward = conv_transpose2d_forward,
                                        .describe = conv_transpose2d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    ConvTranspose2d *c = ds_self(m);
    int64_t r = o.kernel, s = o.kernel_w ? o.kernel_w : r, groups = o.groups ? o.groups : 1;
    if (!conv_check(m, (ConvSizes){in, out, {r, s}, groups})) return m;
    c->opts = (ds_conv_transpose2d_opts){.stride = o.stride,
                                         .stride_w = o.stride_w,
                                         .padding = o.padding,
                                         .padding_w = o.padding_w,
                                         .output_padding = o.output_padding,
                                         .output_padding_w = o.output_padding_w,
                                         .groups = o.groups,
                                         .dilation = o.dilation,
                                         .dilation_w = o.dilation_w};
    c->weight = conv_weight(m, ds_shape(in, out / groups, r, s));
    if (!o.no_bias) c->opts.bias = conv_bias(m, c->weight, out);
    return m;
}
