/* deepspeed/nn_conv.h: layers of images, lines and volumes: convolutions,
 * pools, and layers that move elements. nn.h, which includes this file, has the
 * rules of all layers.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_NN_CONV_H
#define DEEPSPEED_NN_CONV_H

#include <deepspeed/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_module ds_module;

typedef struct ds_nn_conv2d_opts {
    int kernel, kernel_w; /* _w: 0 means "the same", -1 none, as in ds_conv2d_opts */
    int stride, stride_w;
    int padding, padding_w;
    int dilation, dilation_w;
    int groups;
    bool no_bias;
    bool same; /* padding="same" */
} ds_nn_conv2d_opts;

/* weight [out, in/groups, kernel, kernel_w], bias [out]. */
#define ds_nn_conv2d(parent, name, in, out, ...) \
    ds_nn_conv2d_with(parent, name, in, out, (ds_nn_conv2d_opts){.kernel = __VA_ARGS__})
DS_API ds_module *ds_nn_conv2d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                                    ds_nn_conv2d_opts opts);

typedef struct ds_nn_conv3d_opts {
    ds_dims kernel;                    /* ds_shape(depth, height, width), or one number for all */
    ds_dims stride, padding, dilation; /* as in ds_conv3d_opts */
    int groups;
    bool no_bias;
} ds_nn_conv3d_opts;

/* weight [out, in/groups, kernel...], bias [out]. */
#define ds_nn_conv3d(parent, name, in, out, ...) \
    ds_nn_conv3d_with(parent, name, in, out, (ds_nn_conv3d_opts){.kernel = __VA_ARGS__})
DS_API ds_module *ds_nn_conv3d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                                    ds_nn_conv3d_opts opts);

typedef struct ds_nn_conv1d_opts {
    int kernel, stride, padding, dilation, groups; /* as in ds_conv1d_opts */
    bool same;                                     /* padding="same" */
    bool no_bias;
} ds_nn_conv1d_opts;

/* weight [out, in/groups, kernel], bias [out]. */
#define ds_nn_conv1d(parent, name, in, out, ...) \
    ds_nn_conv1d_with(parent, name, in, out, (ds_nn_conv1d_opts){.kernel = __VA_ARGS__})
DS_API ds_module *ds_nn_conv1d_with(ds_module *parent, const char *name, int64_t in, int64_t out,
                                    ds_nn_conv1d_opts opts);

typedef struct ds_nn_conv_transpose2d_opts {
    int kernel, kernel_w; /* _w: as in ds_nn_conv2d_opts */
    int stride, stride_w;
    int padding, padding_w;
    int output_padding, output_padding_w;
    int groups;
    bool no_bias;
    int dilation, dilation_w;
} ds_nn_conv_transpose2d_opts;

/* weight [in, out/groups, kernel, kernel_w], bias [out]. */
#define ds_nn_conv_transpose2d(parent, name, in, out, ...) \
    ds_nn_conv_transpose2d_with(parent, name, in, out, \
                                (ds_nn_conv_transpose2d_opts){.kernel = __VA_ARGS__})
DS_API ds_module *ds_nn_conv_transpose2d_with(ds_module *parent, const char *name, int64_t in,
                                              int64_t out, ds_nn_conv_transpose2d_opts opts);

typedef struct ds_nn_conv_transpose1d_opts {
    int kernel, stride, padding, output_padding, groups; /* as in ds_conv_transpose1d_opts */
    bool no_bias;
    int dilation;
} ds_nn_conv_transpose1d_opts;

/* weight [in, out/groups, kernel], bias [out]. */
#define ds_nn_conv_transpose1d(parent, name, in, out, ...) \
    ds_nn_conv_transpose1d_with(parent, name, in, out, \
                                (ds_nn_conv_transpose1d_opts){.kernel = __VA_ARGS__})
DS_API ds_module *ds_nn_conv_transpose1d_with(ds_module *parent, const char *name, int64_t in,
                                              int64_t out, ds_nn_conv_transpose1d_opts opts);

typedef struct ds_nn_conv_transpose3d_opts {
    /* ds_shape(depth, height, width), or one number for all, as in
     * ds_conv_transpose3d_opts */
    ds_dims kernel, stride, padding, output_padding;
    int groups;
    bool no_bias;
    ds_dims dilation;
} ds_nn_conv_transpose3d_opts;

/* weight [in, out/groups, kernel...], bias [out]. */
#define ds_nn_conv_transpose3d(parent, name, in, out, ...) \
    ds_nn_conv_transpose3d_with(parent, name, in, out, \
                                (ds_nn_conv_transpose3d_opts){.kernel = __VA_ARGS__})
DS_API ds_module *ds_nn_conv_transpose3d_with(ds_module *parent, const char *name, int64_t in,
                                              int64_t out, ds_nn_conv_transpose3d_opts opts);

/* ---- pools: the options are those of the op, ds_max_pool2d(x, ...) in ops_conv.h -------- */

DS_API ds_module *ds_nn_max_pool1d(ds_module *parent, const char *name, ds_pool1d_opts opts);
DS_API ds_module *ds_nn_avg_pool1d(ds_module *parent, const char *name, ds_pool1d_opts opts);
DS_API ds_module *ds_nn_max_pool2d(ds_module *parent, const char *name, ds_pool2d_opts opts);
DS_API ds_module *ds_nn_avg_pool2d(ds_module *parent, const char *name, ds_pool2d_opts opts);
DS_API ds_module *ds_nn_max_pool3d(ds_module *parent, const char *name, ds_pool3d_opts opts);
DS_API ds_module *ds_nn_avg_pool3d(ds_module *parent, const char *name, ds_pool3d_opts opts);
DS_API ds_module *ds_nn_adaptive_avg_pool1d(ds_module *parent, const char *name, int64_t n);
DS_API ds_module *ds_nn_adaptive_max_pool1d(ds_module *parent, const char *name, int64_t n);
DS_API ds_module *ds_nn_adaptive_avg_pool2d(ds_module *parent, const char *name, int64_t h,
                                            int64_t w);
DS_API ds_module *ds_nn_adaptive_max_pool2d(ds_module *parent, const char *name, int64_t h,
                                            int64_t w);
DS_API ds_module *ds_nn_adaptive_avg_pool3d(ds_module *parent, const char *name, int64_t depth,
                                            int64_t h, int64_t w);
DS_API ds_module *ds_nn_adaptive_max_pool3d(ds_module *parent, const char *name, int64_t depth,
                                            int64_t h, int64_t w);

/* ---- what moves elements: the arguments are those of the op ------------------------------ */

DS_API ds_module *ds_nn_pixel_shuffle(ds_module *parent, const char *name, int64_t factor);
DS_API ds_module *ds_nn_pixel_unshuffle(ds_module *parent, const char *name, int64_t factor);
DS_API ds_module *ds_nn_channel_shuffle(ds_module *parent, const char *name, int64_t groups);
DS_API ds_module *ds_nn_unfold(ds_module *parent, const char *name, ds_unfold_opts opts);
DS_API ds_module *ds_nn_fold(ds_module *parent, const char *name, int64_t h, int64_t w,
                             ds_unfold_opts opts);
DS_API ds_module *ds_nn_unflatten(ds_module *parent, const char *name, int dim, ds_dims sizes);
DS_API ds_module *ds_nn_upsample(ds_module *parent, const char *name, ds_interpolate_opts opts);
/* torch.nn.ZeroPad1d to 3d, ConstantPad, ReflectionPad, ReplicationPad and
 * CircularPad: as the mode and the number of pairs [before, after] say, the
 * last dimension's first. */
DS_API ds_module *ds_nn_pad(ds_module *parent, const char *name, ds_dims pad, ds_pad_opts opts);
DS_API ds_module *ds_nn_local_response_norm(ds_module *parent, const char *name,
                                            ds_local_response_norm_opts opts);

#ifdef __cplusplus
}
#endif

#endif
