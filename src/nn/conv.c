/* nn/conv.c: Conv1d to Conv3d, ConvTranspose1d to ConvTranspose3d. Initial
 * values are
 * torch.nn's.
 *
 * The options of the op are kept with the bias in them, as the op takes both.
 * Their horizontal values are 0 for "as the vertical one" and -1 for 0.
 * SPDX-License-Identifier: MIT */
#include <deepspeed/nn.h>

#include <math.h>

/* Sizes of a layer before it has parameters. */
typedef struct ConvSizes {
    int64_t in, out, groups; /* groups 0: 1 */
    ds_dims kernel;          /* of 1 to 3 dimensions */
    bool transposed, no_bias;
} ConvSizes;

/* False with the message. */
static bool conv_check(const ds_module *m, ConvSizes s)
{
    int64_t least = s.kernel.d[0];
    for (int i = 1; i < s.kernel.n; i++)
        if (s.kernel.d[i] < least) least = s.kernel.d[i];
    if (s.in > 0 && s.out > 0 && least > 0 && s.groups > 0 && s.in % s.groups == 0 &&
        s.out % s.groups == 0)
        return true;
    ds_fail(DS_EINVAL,
            "%s %s: in = %lld, out = %lld, the smallest kernel size is %lld, groups = %lld: "
            "expected sizes of at least 1, and groups to divide in and out",
            ds_module_type_of(m)->name, ds_module_name(m), (long long)s.in, (long long)s.out,
            (long long)least, (long long)s.groups);
    return false;
}

/* Makes the weight [out, in/groups, kernel...], transposed [in, out/groups,
 * kernel...], and draws it and then the bias [out] from U(-b, b), b = 1 /
 * sqrt(n), n weights with one index of dimension 0: that is torch's fan in for
 * a transposed weight too. Returns the weight, and sets *bias unless there is
 * none; refused sizes leave a module without parameters, and the message. */
static ds_tensor *conv_params(ds_module *m, ConvSizes s, ds_tensor **bias)
{
    if (!s.groups) s.groups = 1;
    if (!conv_check(m, s)) return NULL;
    ds_dims shape = ds_shape(s.out, s.in / s.groups);
    if (s.transposed) shape = ds_shape(s.in, s.out / s.groups);
    for (int i = 0; i < s.kernel.n; i++) shape.d[shape.n++] = s.kernel.d[i];
    ds_tensor *weight = ds_module_param(m, "weight", ds_empty(DS_F32, shape));
    weight = ds_init_kaiming_uniform(weight, sqrt(5), DS_FAN_IN, DS_GAIN_LEAKY_RELU);
    if (!weight || s.no_bias) return weight;
    double bound = 1 / sqrt((double)(ds_numel(weight) / ds_size(weight, 0)));
    *bias = ds_module_param(m, "bias", ds_empty(DS_F32, ds_shape(s.out)));
    *bias = ds_init_uniform(*bias, -bound, bound);
    return weight;
}

/* The vertical and the horizontal value of an option, 0 being `usual`. */
static ds_dims conv_pair(int h, int w, int usual)
{
    h = h ? h : usual;
    return ds_shape(h, w == 0 ? h : w == -1 ? 0 : w);
}

/* Of depth, height, width. */
static ds_dims conv_triple(ds_dims d, int64_t usual)
{
    int64_t one = d.n ? d.d[0] : usual;
    return d.n == 3 ? d : ds_shape(one, one, one);
}

/* Options that torch's extra_repr prints; no dimensions: there is no such
 * option. */
typedef struct ConvText {
    ds_dims stride, padding, dilation, output_padding;
    int groups; /* 0: 1 */
    const ds_tensor *bias;
    bool same, transposed;
} ConvText;

/* ", name=(a, b)"; nothing if all are `usual` */
static void conv_describe_dims(FILE *to, const char *name, ds_dims d, int64_t usual)
{
    bool all = true;
    for (int i = 0; i < d.n; i++) all = all && d.d[i] == usual;
    if (all) return;
    fprintf(to, ", %s=(", name);
    for (int i = 0; i < d.n; i++) fprintf(to, i ? ", %lld" : "%lld", (long long)d.d[i]);
    fputs(d.n == 1 ? ",)" : ")", to);
}

/* Omits options that have their defaults, except kernel_size and stride. */
static void conv_describe(FILE *to, const ds_tensor *weight, ConvText t)
{
    ds_dims kernel = {.n = ds_ndim(weight) - 2};
    int64_t groups = t.groups ? t.groups : 1;
    for (int i = 0; i < kernel.n; i++) kernel.d[i] = ds_size(weight, 2 + i);
    int64_t first = ds_size(weight, 0), second = ds_size(weight, 1) * groups;
    fprintf(to, "%lld, %lld", (long long)(t.transposed ? first : second),
            (long long)(t.transposed ? second : first));
    conv_describe_dims(to, "kernel_size", kernel, -1);
    conv_describe_dims(to, "stride", t.stride, -1);
    if (t.same) fputs(", padding=same", to);
    conv_describe_dims(to, "padding", t.padding, 0);
    conv_describe_dims(to, "dilation", t.dilation, 1);
    conv_describe_dims(to, "output_padding", t.output_padding, 0);
    if (groups != 1) fprintf(to, ", groups=%lld", (long long)groups);
    if (!t.bias) fputs(", bias=False", to);
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

static void conv2d_describe(void *self, FILE *to)
{
    Conv2d *c = self;
    const ds_conv2d_opts *o = &c->opts;
    conv_describe(to, c->weight,
                  (ConvText){.stride = conv_pair(o->stride, o->stride_w, 1),
                             .padding = conv_pair(o->padding, o->padding_w, 0),
                             .dilation = conv_pair(o->dilation, o->dilation_w, 1),
                             .groups = o->groups,
                             .bias = o->bias,
                             .same = o->same});
}

/* weight [out, in / groups, kernel, kernel_w], bias [out]. */
ds_module *ds_nn_conv2d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                             ds_nn_conv2d_opts o)
{
    static const ds_module_type type = {"Conv2d", sizeof(Conv2d), .forward = conv2d_forward,
                                        .describe = conv2d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Conv2d *c = ds_self(m);
    c->opts = (ds_conv2d_opts){.stride = o.stride,
                               .stride_w = o.stride_w,
                               .padding = o.padding,
                               .padding_w = o.padding_w,
                               .dilation = o.dilation,
                               .dilation_w = o.dilation_w,
                               .groups = o.groups,
                               .same = o.same};
    ds_dims kernel = ds_shape(o.kernel, o.kernel_w ? o.kernel_w : o.kernel);
    c->weight = conv_params(m, (ConvSizes){in, out, o.groups, kernel, .no_bias = o.no_bias},
                            &c->opts.bias);
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
    conv_describe(to, c->weight,
                  (ConvText){.stride = ds_shape(o->stride ? o->stride : 1),
                             .padding = ds_shape(o->padding),
                             .dilation = ds_shape(o->dilation ? o->dilation : 1),
                             .groups = o->groups,
                             .bias = o->bias,
                             .same = o->same});
}

/* weight [out, in / groups, kernel], bias [out]. */
ds_module *ds_nn_conv1d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                             ds_nn_conv1d_opts o)
{
    static const ds_module_type type = {"Conv1d", sizeof(Conv1d), .forward = conv1d_forward,
                                        .describe = conv1d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Conv1d *c = ds_self(m);
    c->opts = (ds_conv1d_opts){.stride = o.stride,
                               .padding = o.padding,
                               .dilation = o.dilation,
                               .groups = o.groups,
                               .same = o.same};
    ds_dims kernel = ds_shape(o.kernel);
    c->weight = conv_params(m, (ConvSizes){in, out, o.groups, kernel, .no_bias = o.no_bias},
                            &c->opts.bias);
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
    conv_describe(to, c->weight,
                  (ConvText){.stride = conv_pair(o->stride, o->stride_w, 1),
                             .padding = conv_pair(o->padding, o->padding_w, 0),
                             .dilation = conv_pair(o->dilation, o->dilation_w, 1),
                             .output_padding = conv_pair(o->output_padding, o->output_padding_w, 0),
                             .groups = o->groups,
                             .bias = o->bias,
                             .transposed = true});
}

/* weight [in, out / groups, kernel, kernel_w], bias [out]. */
ds_module *ds_nn_conv_transpose2d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                                       ds_nn_conv_transpose2d_opts o)
{
    static const ds_module_type type = {"ConvTranspose2d", sizeof(ConvTranspose2d),
                                        .forward = conv_transpose2d_forward,
                                        .describe = conv_transpose2d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    ConvTranspose2d *c = ds_self(m);
    c->opts = (ds_conv_transpose2d_opts){.stride = o.stride,
                                         .stride_w = o.stride_w,
                                         .padding = o.padding,
                                         .padding_w = o.padding_w,
                                         .output_padding = o.output_padding,
                                         .output_padding_w = o.output_padding_w,
                                         .groups = o.groups,
                                         .dilation = o.dilation,
                                         .dilation_w = o.dilation_w};
    ds_dims kernel = ds_shape(o.kernel, o.kernel_w ? o.kernel_w : o.kernel);
    c->weight = conv_params(m, (ConvSizes){in, out, o.groups, kernel, true, o.no_bias},
                            &c->opts.bias);
    return m;
}

/* ---- Conv3d ------------------------------------------------------------------------------------------ */

typedef struct Conv3d {
    ds_tensor *weight;   /* [out, in/groups, kernel...] */
    ds_conv3d_opts opts; /* .bias [out], or NULL */
} Conv3d;

static ds_tensor *conv3d_forward(void *self, ds_tensor *x)
{
    Conv3d *c = self;
    return ds_conv3d_with(x, c->weight, c->opts);
}

static void conv3d_describe(void *self, FILE *to)
{
    Conv3d *c = self;
    const ds_conv3d_opts *o = &c->opts;
    conv_describe(to, c->weight,
                  (ConvText){.stride = conv_triple(o->stride, 1),
                             .padding = conv_triple(o->padding, 0),
                             .dilation = conv_triple(o->dilation, 1),
                             .groups = o->groups,
                             .bias = o->bias});
}

/* weight [out, in / groups, kernel...], bias [out]. */
ds_module *ds_nn_conv3d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                             ds_nn_conv3d_opts o)
{
    static const ds_module_type type = {"Conv3d", sizeof(Conv3d), .forward = conv3d_forward,
                                        .describe = conv3d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Conv3d *c = ds_self(m);
    c->opts = (ds_conv3d_opts){
        .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups};
    ds_dims kernel = conv_triple(o.kernel, 0);
    c->weight = conv_params(m, (ConvSizes){in, out, o.groups, kernel, .no_bias = o.no_bias},
                            &c->opts.bias);
    return m;
}

/* ---- ConvTranspose1d --------------------------------------------------------------------------------- */

typedef struct ConvTranspose1d {
    ds_tensor *weight;             /* [in, out/groups, kernel] */
    ds_conv_transpose1d_opts opts; /* .bias [out], or NULL */
} ConvTranspose1d;

static ds_tensor *conv_transpose1d_forward(void *self, ds_tensor *x)
{
    ConvTranspose1d *c = self;
    return ds_conv_transpose1d_with(x, c->weight, c->opts);
}

static void conv_transpose1d_describe(void *self, FILE *to)
{
    ConvTranspose1d *c = self;
    const ds_conv_transpose1d_opts *o = &c->opts;
    conv_describe(to, c->weight,
                  (ConvText){.stride = ds_shape(o->stride ? o->stride : 1),
                             .padding = ds_shape(o->padding),
                             .dilation = ds_shape(o->dilation ? o->dilation : 1),
                             .output_padding = ds_shape(o->output_padding),
                             .groups = o->groups,
                             .bias = o->bias,
                             .transposed = true});
}

/* weight [in, out / groups, kernel], bias [out]. */
ds_module *ds_nn_conv_transpose1d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                                       ds_nn_conv_transpose1d_opts o)
{
    static const ds_module_type type = {"ConvTranspose1d", sizeof(ConvTranspose1d),
                                        .forward = conv_transpose1d_forward,
                                        .describe = conv_transpose1d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    ConvTranspose1d *c = ds_self(m);
    c->opts = (ds_conv_transpose1d_opts){.stride = o.stride,
                                         .padding = o.padding,
                                         .output_padding = o.output_padding,
                                         .groups = o.groups,
                                         .dilation = o.dilation};
    c->weight = conv_params(m, (ConvSizes){in, out, o.groups, ds_shape(o.kernel), true, o.no_bias},
                            &c->opts.bias);
    return m;
}

/* ---- ConvTranspose3d --------------------------------------------------------------------------------- */

typedef struct ConvTranspose3d {
    ds_tensor *weight;             /* [in, out/groups, kernel...] */
    ds_conv_transpose3d_opts opts; /* .bias [out], or NULL */
} ConvTranspose3d;

static ds_tensor *conv_transpose3d_forward(void *self, ds_tensor *x)
{
    ConvTranspose3d *c = self;
    return ds_conv_transpose3d_with(x, c->weight, c->opts);
}

static void conv_transpose3d_describe(void *self, FILE *to)
{
    ConvTranspose3d *c = self;
    const ds_conv_transpose3d_opts *o = &c->opts;
    conv_describe(to, c->weight,
                  (ConvText){.stride = conv_triple(o->stride, 1),
                             .padding = conv_triple(o->padding, 0),
                             .dilation = conv_triple(o->dilation, 1),
                             .output_padding = conv_triple(o->output_padding, 0),
                             .groups = o->groups,
                             .bias = o->bias,
                             .transposed = true});
}

/* weight [in, out / groups, kernel...], bias [out]. */
ds_module *ds_nn_conv_transpose3d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                                       ds_nn_conv_transpose3d_opts o)
{
    static const ds_module_type type = {"ConvTranspose3d", sizeof(ConvTranspose3d),
                                        .forward = conv_transpose3d_forward,
                                        .describe = conv_transpose3d_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    ConvTranspose3d *c = ds_self(m);
    c->opts = (ds_conv_transpose3d_opts){.stride = o.stride,
                                         .padding = o.padding,
                                         .output_padding = o.output_padding,
                                         .groups = o.groups,
                                         .dilation = o.dilation};
    ds_dims kernel = conv_triple(o.kernel, 0);
    c->weight = conv_params(m, (ConvSizes){in, out, o.groups, kernel, true, o.no_bias},
                            &c->opts.bias);
    return m;
}
