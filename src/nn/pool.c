/* nn/pool.c: modules of windows: pools, unfold and fold. The op's options are
 * the struct; `describe` prints torch's extra_repr.
 * SPDX-License-Identifier: MIT */
#include "module.h"

#include <string.h>

/* A pool of those options. */
#define POOL(f, Class, Opts, describe_) \
    static ds_tensor *f##_forward(void *self, ds_tensor *x) \
    { \
        return ds_##f##_with(x, *(Opts *)self); \
    } \
\
    ds_module *ds_nn_##f(ds_module *parent, const char *name, Opts opts) \
    { \
        ds_module *m = ds_module_make(parent, name, #Class, sizeof opts, f##_forward, \
                                      .describe = describe_); \
        memcpy(ds_self(m), &opts, sizeof opts); \
        return m; \
    }

/* ---- images ------------------------------------------------------------------------------------------ */

/* "name=n", or "name=(h, w)" where they differ */
static void describe_pair(FILE *to, const char *name, int h, int w)
{
    w = w == 0 ? h : w == -1 ? 0 : w;
    if (h == w)
        fprintf(to, "%s=%d", name, h);
    else
        fprintf(to, "%s=(%d, %d)", name, h, w);
}

/* As torch prints it: sizes as a number if both are equal, the stride as the
 * kernel's size if it was left out. */
static void avg_pool2d_describe(void *self, FILE *to)
{
    const ds_pool2d_opts *o = self;
    describe_pair(to, "kernel_size", o->kernel, o->kernel_w);
    if (o->stride || o->stride_w)
        describe_pair(to, ", stride", o->stride ? o->stride : o->kernel, o->stride_w);
    else
        describe_pair(to, ", stride", o->kernel, o->kernel_w);
    describe_pair(to, ", padding", o->padding, o->padding_w);
}

static void describe_ceil(FILE *to, bool ceil_mode)
{
    fprintf(to, ", ceil_mode=%s", dsi_python_bool(ceil_mode));
}

static void max_pool2d_describe(void *self, FILE *to)
{
    const ds_pool2d_opts *o = self;
    avg_pool2d_describe(self, to);
    describe_pair(to, ", dilation", o->dilation ? o->dilation : 1, o->dilation_w);
    describe_ceil(to, o->ceil_mode);
}

POOL(max_pool2d, MaxPool2d, ds_pool2d_opts, max_pool2d_describe)
POOL(avg_pool2d, AvgPool2d, ds_pool2d_opts, avg_pool2d_describe)

/* ---- lines ------------------------------------------------------------------------------------------- */

static void max_pool1d_describe(void *self, FILE *to)
{
    const ds_pool1d_opts *o = self;
    fprintf(to, "kernel_size=%d, stride=%d, padding=%d, dilation=%d", o->kernel,
            o->stride ? o->stride : o->kernel, o->padding, o->dilation ? o->dilation : 1);
    describe_ceil(to, o->ceil_mode);
}

static void avg_pool1d_describe(void *self, FILE *to)
{
    const ds_pool1d_opts *o = self;
    fprintf(to, "kernel_size=(%d,), stride=(%d,), padding=(%d,)", o->kernel,
            o->stride ? o->stride : o->kernel, o->padding);
}

POOL(max_pool1d, MaxPool1d, ds_pool1d_opts, max_pool1d_describe)
POOL(avg_pool1d, AvgPool1d, ds_pool1d_opts, avg_pool1d_describe)

/* ---- volumes ----------------------------------------------------------------------------------------- */

/* "name=n", or "name=(d, h, w)"; none: `usual` */
static void describe_triple(FILE *to, const char *name, ds_dims d, int usual)
{
    if (d.n == 3)
        fprintf(to, "%s=(%lld, %lld, %lld)", name, (long long)d.d[0], (long long)d.d[1],
                (long long)d.d[2]);
    else
        fprintf(to, "%s=%lld", name, d.n ? (long long)d.d[0] : usual);
}

static void avg_pool3d_describe(void *self, FILE *to)
{
    const ds_pool3d_opts *o = self;
    describe_triple(to, "kernel_size", o->kernel, 0);
    describe_triple(to, ", stride", o->stride.n ? o->stride : o->kernel, 0);
    describe_triple(to, ", padding", o->padding, 0);
}

static void max_pool3d_describe(void *self, FILE *to)
{
    const ds_pool3d_opts *o = self;
    avg_pool3d_describe(self, to);
    describe_triple(to, ", dilation", o->dilation, 1);
    describe_ceil(to, o->ceil_mode);
}

POOL(max_pool3d, MaxPool3d, ds_pool3d_opts, max_pool3d_describe)
POOL(avg_pool3d, AvgPool3d, ds_pool3d_opts, avg_pool3d_describe)

/* ---- adaptive: the output's size is the struct ------------------------------------------------------- */

static void adaptive_describe(void *self, FILE *to)
{
    const ds_dims *size = self;
    fputs(size->n > 1 ? "output_size=(" : "output_size=", to);
    for (int i = 0; i < size->n; i++) fprintf(to, "%s%lld", i ? ", " : "", (long long)size->d[i]);
    if (size->n > 1) putc(')', to);
}

static ds_module *adaptive_new(ds_module *parent, const char *name, const ds_module_type *type,
                               ds_dims size)
{
    ds_module *m = ds_module_new(parent, name, type);
    memcpy(ds_self(m), &size, sizeof size);
    return m;
}

/* call: the op of x and d, the sizes. */
#define ADAPTIVE(f, Class, call, declared, ...) \
    static ds_tensor *f##_forward(void *self, ds_tensor *x) \
    { \
        const int64_t *d = ((ds_dims *)self)->d; \
        return call; \
    } \
\
    ds_module *ds_nn_##f declared \
    { \
        static const ds_module_type type = {#Class, sizeof(ds_dims), .forward = f##_forward, \
                                            .describe = adaptive_describe}; \
        return adaptive_new(parent, name, &type, ds_shape(__VA_ARGS__)); \
    }

ADAPTIVE(adaptive_avg_pool1d, AdaptiveAvgPool1d, ds_adaptive_avg_pool1d(x, d[0]),
         (ds_module * parent, const char *name, int64_t n), n)
ADAPTIVE(adaptive_max_pool1d, AdaptiveMaxPool1d, ds_adaptive_max_pool1d(x, d[0], NULL),
         (ds_module * parent, const char *name, int64_t n), n)
ADAPTIVE(adaptive_avg_pool2d, AdaptiveAvgPool2d, ds_adaptive_avg_pool2d(x, d[0], d[1]),
         (ds_module * parent, const char *name, int64_t h, int64_t w), h, w)
ADAPTIVE(adaptive_max_pool2d, AdaptiveMaxPool2d, ds_adaptive_max_pool2d(x, d[0], d[1], NULL),
         (ds_module * parent, const char *name, int64_t h, int64_t w), h, w)
ADAPTIVE(adaptive_avg_pool3d, AdaptiveAvgPool3d, ds_adaptive_avg_pool3d(x, d[0], d[1], d[2]),
         (ds_module * parent, const char *name, int64_t depth, int64_t h, int64_t w), depth, h, w)
ADAPTIVE(adaptive_max_pool3d, AdaptiveMaxPool3d, ds_adaptive_max_pool3d(x, d[0], d[1], d[2], NULL),
         (ds_module * parent, const char *name, int64_t depth, int64_t h, int64_t w), depth, h, w)

/* ---- windows as columns ------------------------------------------------------------------------------ */

typedef struct Fold {
    int64_t h, w; /* of Fold */
    ds_unfold_opts o;
} Fold;

static void unfold_describe(void *self, FILE *to)
{
    const ds_unfold_opts *o = &((Fold *)self)->o;
    describe_pair(to, "kernel_size", o->kernel, o->kernel_w);
    describe_pair(to, ", dilation", o->dilation ? o->dilation : 1, o->dilation_w);
    describe_pair(to, ", padding", o->padding, o->padding_w);
    describe_pair(to, ", stride", o->stride ? o->stride : 1, o->stride_w);
}

static void fold_describe(void *self, FILE *to)
{
    const Fold *f = self;
    fprintf(to, "output_size=(%lld, %lld), ", (long long)f->h, (long long)f->w);
    unfold_describe(self, to);
}

static ds_tensor *unfold_forward(void *self, ds_tensor *x)
{
    return ds_unfold_with(x, ((Fold *)self)->o);
}

static ds_tensor *fold_forward(void *self, ds_tensor *x)
{
    const Fold *f = self;
    return ds_fold_with(x, f->h, f->w, f->o);
}

ds_module *ds_nn_unfold(ds_module *parent, const char *name, ds_unfold_opts opts)
{
    ds_module *m = ds_module_make(parent, name, "Unfold", sizeof(Fold), unfold_forward,
                                  .describe = unfold_describe);
    ((Fold *)ds_self(m))->o = opts;
    return m;
}

ds_module *ds_nn_fold(ds_module *parent, const char *name, int64_t h, int64_t w,
                      ds_unfold_opts opts)
{
    ds_module *m = ds_module_make(parent, name, "Fold", sizeof(Fold), fold_forward,
                                  .describe = fold_describe);
    *(Fold *)ds_self(m) = (Fold){h, w, opts};
    return m;
}
