/* nn/arrange.c: modules that move elements: shuffled channels, other sizes and
 * edges; and local response norm. The op's options are the struct; `describe`
 * prints torch's extra_repr.
 * SPDX-License-Identifier: MIT */
#include "base/option.h"

#include <deepspeed/nn.h>

#include <string.h>

/* A module that is an op of a tensor and an integer, which torch calls `label`. */
#define OF_INTEGER(f, Class, label) \
    static ds_tensor *f##_forward(void *self, ds_tensor *x) \
    { \
        return ds_##f(x, *(int64_t *)self); \
    } \
\
    static void f##_describe(void *self, FILE *to) \
    { \
        fprintf(to, label "=%lld", (long long)*(int64_t *)self); \
    } \
\
    ds_module *ds_nn_##f(ds_module *parent, const char *name, int64_t n) \
    { \
        ds_module *m = ds_module_make(parent, name, #Class, sizeof n, f##_forward, \
                                      .describe = f##_describe); \
        memcpy(ds_self(m), &n, sizeof n); \
        return m; \
    }

OF_INTEGER(pixel_shuffle, PixelShuffle, "upscale_factor")
OF_INTEGER(pixel_unshuffle, PixelUnshuffle, "downscale_factor")
OF_INTEGER(channel_shuffle, ChannelShuffle, "groups")

/* ---- shapes ------------------------------------------------------------------------------------------ */

/* "(2, 5)", and "(2,)" of one */
static void describe_dims(FILE *to, ds_dims d)
{
    for (int i = 0; i < d.n; i++) fprintf(to, "%s%lld", i ? ", " : "(", (long long)d.d[i]);
    fputs(d.n == 1 ? ",)" : d.n ? ")" : "()", to);
}

typedef struct Unflatten {
    int dim;
    ds_dims sizes;
} Unflatten;

static ds_tensor *unflatten_forward(void *self, ds_tensor *x)
{
    const Unflatten *u = self;
    return ds_unflatten(x, u->dim, u->sizes);
}

static void unflatten_describe(void *self, FILE *to)
{
    const Unflatten *u = self;
    fprintf(to, "dim=%d, unflattened_size=", u->dim);
    describe_dims(to, u->sizes);
}

ds_module *ds_nn_unflatten(ds_module *parent, const char *name, int dim, ds_dims sizes)
{
    ds_module *m = ds_module_make(parent, name, "Unflatten", sizeof(Unflatten), unflatten_forward,
                                  .describe = unflatten_describe);
    *(Unflatten *)ds_self(m) = (Unflatten){dim, sizes};
    return m;
}

static ds_tensor *upsample_forward(void *self, ds_tensor *x)
{
    return ds_interpolate_with(x, *(ds_interpolate_opts *)self);
}

static void upsample_describe(void *self, FILE *to)
{
    static const char *const modes[] = {"nearest",       "linear",  "bilinear", "area",
                                        "nearest-exact", "bicubic", "trilinear"};
    const ds_interpolate_opts *o = self;
    double f = o->scale_factor;
    if (f != 0)
        fprintf(to, f == (double)(int64_t)f ? "scale_factor=%.1f" : "scale_factor=%g", f);
    else if (o->size.n == 1)
        fprintf(to, "size=%lld", (long long)o->size.d[0]);
    else
        fputs("size=", to), describe_dims(to, o->size);
    bool known = (unsigned)o->mode < sizeof modes / sizeof *modes;
    fprintf(to, ", mode='%s'", known ? modes[o->mode] : "?");
}

ds_module *ds_nn_upsample(ds_module *parent, const char *name, ds_interpolate_opts opts)
{
    ds_module *m = ds_module_make(parent, name, "Upsample", sizeof opts, upsample_forward,
                                  .describe = upsample_describe);
    memcpy(ds_self(m), &opts, sizeof opts);
    return m;
}

/* ---- edges ------------------------------------------------------------------------------------------- */

typedef struct Pad {
    ds_dims pad;
    ds_pad_opts o;
} Pad;

static ds_tensor *pad_forward(void *self, ds_tensor *x)
{
    const Pad *p = self;
    return ds_pad_with(x, p->pad, p->o);
}

static void pad_describe(void *self, FILE *to)
{
    const Pad *p = self;
    bool value = p->o.mode == DS_PAD_CONSTANT && p->o.value != 0;
    if (value) fputs("padding=", to);
    describe_dims(to, p->pad);
    if (value) fprintf(to, ", value=%g", p->o.value);
}

/* torch's class for a mode and a number of dimensions. */
ds_module *ds_nn_pad(ds_module *parent, const char *name, ds_dims pad, ds_pad_opts opts)
{
    static const char *const names[][3] = {
        {"ZeroPad1d", "ZeroPad2d", "ZeroPad3d"},
        {"ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d"},
        {"ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d"},
        {"CircularPad1d", "CircularPad2d", "CircularPad3d"},
        {"ConstantPad1d", "ConstantPad2d", "ConstantPad3d"},
    };
    int dims = pad.n / 2, mode = (int)opts.mode;
    bool known = pad.n % 2 == 0 && dims >= 1 && dims <= 3 && mode >= 0 && mode <= DS_PAD_CIRCULAR;
    if (mode == DS_PAD_CONSTANT && opts.value != 0) mode = 4;
    ds_module *m = ds_module_make(parent, name, known ? names[mode][dims - 1] : "Pad", sizeof(Pad),
                                  pad_forward, .describe = pad_describe);
    if (!known)
        ds_fail(DS_EINVAL, "Pad %s: %d numbers: expected 2, 4 or 6, and a mode", ds_module_name(m),
                pad.n);
    *(Pad *)ds_self(m) = (Pad){pad, opts};
    return m;
}

/* ---- across channels --------------------------------------------------------------------------------- */

static ds_tensor *local_response_norm_forward(void *self, ds_tensor *x)
{
    return ds_local_response_norm_with(x, *(ds_local_response_norm_opts *)self);
}

static void local_response_norm_describe(void *self, FILE *to)
{
    const ds_local_response_norm_opts *o = self;
    double k = dsi_option(o->k, 1);
    fprintf(to, "%d, alpha=%g, beta=%g, k=", o->size, dsi_option(o->alpha, 1e-4),
            dsi_option(o->beta, 0.75));
    fprintf(to, k == (double)(int64_t)k ? "%.1f" : "%g", k);
}

ds_module *ds_nn_local_response_norm(ds_module *parent, const char *name,
                                     ds_local_response_norm_opts opts)
{
    ds_module *m = ds_module_make(parent, name, "LocalResponseNorm", sizeof opts,
                                  local_response_norm_forward,
                                  .describe = local_response_norm_describe);
    memcpy(ds_self(m), &opts, sizeof opts);
    return m;
}
