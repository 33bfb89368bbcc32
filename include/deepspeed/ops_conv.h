/* deepspeed/ops_conv.h: convolution, pooling, resizing; what holds for all
 * ops is in ops.h, which includes this file.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_OPS_CONV_H
#define DEEPSPEED_OPS_CONV_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes are in elements. A member whose name ends in _w is the horizontal
 * value: 0 means the same as the vertical one, -1 means zero. */
typedef struct ds_conv2d_opts {
    ds_tensor *bias;          /* [K] or NULL */
    int stride, stride_w;     /* 0: 1 */
    int padding, padding_w;   /* zeros on each side */
    int dilation, dilation_w; /* 0: 1 */
    int groups;               /* 0: 1 */
    bool same;                /* padding="same": the output is as large as the input; stride 1 */
} ds_conv2d_opts;

/* torch.nn.functional.conv2d, a cross-correlation.
 *   x [N,C,H,W], w [K,C/groups,R,S], .bias [K] or NULL -> [N,K,P,Q];
 *   or [C,H,W] -> [K,P,Q]
 *   P = (H + 2 padding - dilation (R-1) - 1) / stride + 1, Q likewise
 * Refuses x of other dimensions, channels that are not C, groups that do not
 * divide C and K, and windows larger than the padded input. */
#define ds_conv2d(x, w, ...) ds_conv2d_with(x, w, (ds_conv2d_opts){.bias = __VA_ARGS__})
DS_API ds_tensor *ds_conv2d_with(ds_tensor *x, ds_tensor *w, ds_conv2d_opts opts);

typedef struct ds_conv1d_opts {
    ds_tensor *bias; /* [K] or NULL */
    int stride;      /* 0: 1 */
    int padding;     /* zeros on each side */
    int dilation;    /* 0: 1 */
    int groups;      /* 0: 1 */
    bool same;       /* padding="same": the output is as long as the input; stride 1 */
} ds_conv1d_opts;

/* torch.nn.functional.conv1d, a cross-correlation.
 *   x [N,C,L], w [K,C/groups,R], .bias [K] or NULL -> [N,K,M]; or [C,L] -> [K,M]
 *   M = (L + 2 padding - dilation (R-1) - 1) / stride + 1
 * Refuses what ds_conv2d refuses. */
#define ds_conv1d(x, w, ...) ds_conv1d_with(x, w, (ds_conv1d_opts){.bias = __VA_ARGS__})
DS_API ds_tensor *ds_conv1d_with(ds_tensor *x, ds_tensor *w, ds_conv1d_opts opts);

typedef struct ds_conv3d_opts {
    ds_tensor *bias;  /* [K] or NULL */
    ds_dims stride;   /* ds_shape(depth, height, width), or one number for all; none: 1 */
    ds_dims padding;  /* likewise: zeros on each side; none: 0 */
    ds_dims dilation; /* likewise; none: 1 */
    int groups;       /* 0: 1 */
    bool same;        /* as in ds_conv2d_opts */
} ds_conv3d_opts;

/* torch.nn.functional.conv3d, a cross-correlation.
 *   x [N,C,D,H,W] or [C,D,H,W], w [K,C/groups,T,R,S] -> [N,K,O,P,Q]
 *   O = (D + 2 padding - dilation (T-1) - 1) / stride + 1, P and Q likewise
 * It is conv2d of the T planes that make a plane of the output, as channels:
 * they are copied, T times x's memory at stride 1. */
#define ds_conv3d(x, w, ...) ds_conv3d_with(x, w, (ds_conv3d_opts){.bias = __VA_ARGS__})
DS_API ds_tensor *ds_conv3d_with(ds_tensor *x, ds_tensor *w, ds_conv3d_opts opts);

typedef struct ds_conv_transpose2d_opts {
    ds_tensor *bias;                      /* [K] or NULL */
    int stride, stride_w;                 /* 0: 1 */
    int padding, padding_w;               /* rows and columns cut from each side of y */
    int output_padding, output_padding_w; /* added at the end; below stride or dilation */
    int groups;                           /* 0: 1 */
    int dilation, dilation_w;             /* 0: 1 */
} ds_conv_transpose2d_opts;

/* torch.nn.functional.conv_transpose2d, the gradient of conv2d for its input
 * (Zeiler et al., CVPR 2010):
 *   x [N,C,H,W], w [C,K/groups,R,S], .bias [K] or NULL -> [N,K,P,Q];
 *   or [C,H,W] -> [K,P,Q]
 *   P = (H-1) stride - 2 padding + dilation (R-1) + output_padding + 1, Q likewise */
#define ds_conv_transpose2d(x, w, ...) \
    ds_conv_transpose2d_with(x, w, (ds_conv_transpose2d_opts){.bias = __VA_ARGS__})
DS_API ds_tensor *ds_conv_transpose2d_with(ds_tensor *x, ds_tensor *w,
                                           ds_conv_transpose2d_opts opts);

typedef struct ds_conv_transpose1d_opts {
    ds_tensor *bias;                             /* [K] or NULL */
    int stride, padding, output_padding, groups; /* as in ds_conv_transpose2d_opts */
    int dilation;
} ds_conv_transpose1d_opts;

/* torch.nn.functional.conv_transpose1d, the gradient of conv1d for its input:
 *   x [N,C,L], w [C,K/groups,R], .bias [K] or NULL -> [N,K,M]; or [C,L] -> [K,M]
 *   M = (L-1) stride - 2 padding + dilation (R-1) + output_padding + 1 */
#define ds_conv_transpose1d(x, w, ...) \
    ds_conv_transpose1d_with(x, w, (ds_conv_transpose1d_opts){.bias = __VA_ARGS__})
DS_API ds_tensor *ds_conv_transpose1d_with(ds_tensor *x, ds_tensor *w,
                                           ds_conv_transpose1d_opts opts);

/* The dims: ds_shape(depth, height, width), or one number for all. */
typedef struct ds_conv_transpose3d_opts {
    ds_tensor *bias;        /* [K] or NULL */
    ds_dims stride;         /* none: 1 */
    ds_dims padding;        /* cut from each side of y; none: 0 */
    ds_dims output_padding; /* added at the end; below stride or dilation; none: 0 */
    int groups;             /* 0: 1 */
    ds_dims dilation;       /* none: 1 */
} ds_conv_transpose3d_opts;

/* torch.nn.functional.conv_transpose3d, the gradient of conv3d for its input:
 *   x [N,C,D,H,W] or [C,D,H,W], w [C,K/groups,T,R,S], .bias [K] or NULL -> [N,K,O,P,Q]
 *   O = (D-1) stride - 2 padding + dilation (T-1) + output_padding + 1, P and Q likewise
 * It is conv_transpose2d of each plane to T planes, which are added where they
 * belong. */
#define ds_conv_transpose3d(x, w, ...) \
    ds_conv_transpose3d_with(x, w, (ds_conv_transpose3d_opts){.bias = __VA_ARGS__})
DS_API ds_tensor *ds_conv_transpose3d_with(ds_tensor *x, ds_tensor *w,
                                           ds_conv_transpose3d_opts opts);

typedef struct ds_pool2d_opts {
    int kernel, kernel_w;
    int stride, stride_w;     /* 0: as the kernel */
    int padding, padding_w;   /* at most half the kernel; -inf for max, 0 for the average */
    int dilation, dilation_w; /* max only; 0: 1 */
    bool ceil_mode; /* P and Q rounded up; a window begins in the input or its left padding */
    /* Max: NULL, or *indices becomes int64 [N,C,P,Q]: h W + w of each maximum. */
    ds_tensor **indices;
    bool exclude_pad; /* average: count_include_pad = False */
    int divisor;      /* average: divisor_override; 0: the size of the window */
} ds_pool2d_opts;

/* torch.nn.functional.max_pool2d and avg_pool2d: of each window the maximum (a
 * NaN wins; the gradient is the first maximum's) or the average.
 *   x [N,C,H,W] -> [N,C,P,Q], or [C,H,W] -> [C,P,Q]
 *   P = (H + 2 padding - dilation (kernel-1) - 1) / stride + 1, Q likewise */
#define ds_max_pool2d(x, ...) ds_max_pool2d_with(x, (ds_pool2d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_max_pool2d_with(ds_tensor *x, ds_pool2d_opts opts);
#define ds_avg_pool2d(x, ...) ds_avg_pool2d_with(x, (ds_pool2d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_avg_pool2d_with(ds_tensor *x, ds_pool2d_opts opts);

typedef struct ds_pool1d_opts {
    int kernel, stride, padding, dilation; /* as in ds_pool2d_opts */
    bool ceil_mode, exclude_pad;
    ds_tensor **indices; /* max: int64 [N,C,P], the place of each maximum */
} ds_pool1d_opts;

/* torch.nn.functional.max_pool1d and avg_pool1d: x [N,C,L] -> [N,C,P], or [C,L]
 * -> [C,P]; P as in ds_max_pool2d. */
#define ds_max_pool1d(x, ...) ds_max_pool1d_with(x, (ds_pool1d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_max_pool1d_with(ds_tensor *x, ds_pool1d_opts opts);
#define ds_avg_pool1d(x, ...) ds_avg_pool1d_with(x, (ds_pool1d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_avg_pool1d_with(ds_tensor *x, ds_pool1d_opts opts);

/* torch.nn.functional.adaptive_avg_pool2d: averages of the rows
 * floor(i H / h) to ceil((i+1) H / h) - 1, of columns likewise.
 *   x [N,C,H,W] -> [N,C,h,w], or [C,H,W] -> [C,h,w] */
DS_API ds_tensor *ds_adaptive_avg_pool2d(ds_tensor *x, int64_t h, int64_t w);

/* torch.nn.functional.adaptive_max_pool2d: the maxima of the same windows; NaN
 * wins, of equal ones the first in row-major order.
 *   x [N,C,H,W] -> [N,C,h,w], or [C,H,W] -> [C,h,w]
 * *indices, unless indices is NULL, becomes their places, int64 of the result's
 * shape: row * W + column. Made of index_select and max: it copies the
 * windows. */
DS_API ds_tensor *ds_adaptive_max_pool2d(ds_tensor *x, int64_t h, int64_t w, ds_tensor **indices);

/* torch.nn.functional.adaptive_avg_pool1d and adaptive_max_pool1d: x [N,C,L] ->
 * [N,C,n], or [C,L] -> [C,n]; indices as above: the place in L. */
DS_API ds_tensor *ds_adaptive_avg_pool1d(ds_tensor *x, int64_t n);
DS_API ds_tensor *ds_adaptive_max_pool1d(ds_tensor *x, int64_t n, ds_tensor **indices);

typedef struct ds_pool3d_opts {
    ds_dims kernel;              /* ds_shape(depth, height, width), or one number for all */
    ds_dims stride;              /* none: as the kernel */
    ds_dims padding;             /* at most half the kernel; none: 0 */
    ds_dims dilation;            /* max only; none: 1 */
    bool ceil_mode, exclude_pad; /* as in ds_pool2d_opts */
    int divisor;
    /* Max: NULL, or *indices becomes int64 [N,C,O,P,Q]: (d H + h) W + w of each
     * maximum. */
    ds_tensor **indices;
} ds_pool3d_opts;

/* torch.nn.functional.max_pool3d and avg_pool3d: x [N,C,D,H,W] -> [N,C,O,P,Q],
 * or without N; O, P and Q as P of ds_max_pool2d. Made of two pools: of planes,
 * then of their depth. */
#define ds_max_pool3d(x, ...) ds_max_pool3d_with(x, (ds_pool3d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_max_pool3d_with(ds_tensor *x, ds_pool3d_opts opts);
#define ds_avg_pool3d(x, ...) ds_avg_pool3d_with(x, (ds_pool3d_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_avg_pool3d_with(ds_tensor *x, ds_pool3d_opts opts);

/* torch.nn.functional.adaptive_avg_pool3d and adaptive_max_pool3d: x
 * [N,C,D,H,W] -> [N,C,d,h,w], or without N. */
DS_API ds_tensor *ds_adaptive_avg_pool3d(ds_tensor *x, int64_t d, int64_t h, int64_t w);
DS_API ds_tensor *ds_adaptive_max_pool3d(ds_tensor *x, int64_t d, int64_t h, int64_t w,
                                         ds_tensor **indices);

/* torch.nn.functional.max_unpool1d, 2d and 3d: zeros of the given size (of the
 * 1 to 3 dimensions after [N,C]) with x at `indices`, as max-pooling of such an
 * input says them. x [N,C,...], indices int64 of its shape. PyTorch's default
 * size of a dimension is (n - 1) stride - 2 padding + kernel. */
DS_API ds_tensor *ds_max_unpool(ds_tensor *x, ds_tensor *indices, ds_dims size);

typedef enum ds_interpolate_mode {
    DS_NEAREST = 0,
    DS_LINEAR,   /* x [N,C,L] */
    DS_BILINEAR, /* x [N,C,H,W] */
    DS_AREA,     /* averages of windows, as in adaptive_avg_pool2d */
    DS_NEAREST_EXACT,
    DS_BICUBIC,  /* x [N,C,H,W] */
    DS_TRILINEAR /* x [N,C,D,H,W] */
} ds_interpolate_mode;

typedef struct ds_interpolate_opts {
    ds_dims size;          /* .d: of each dimension after [N,C], .n of them; one is for all */
    double scale_factor;   /* instead of size: output size = floor(input size * factor) */
    double scale_factor_w; /* of the columns; 0: the same */
    double scale_factor_h; /* of a volume's rows; 0: the same */
    ds_interpolate_mode mode;
    bool align_corners; /* linear modes: the first and the last elements stay where they are */
    bool recompute_scale_factor; /* sample by the ratio of sizes, not by the given factor */
    bool antialias;              /* of bilinear and bicubic: smaller images are blurred first */
} ds_interpolate_opts;

/* torch.nn.functional.interpolate: x [N,C,L], [N,C,H,W] or [N,C,D,H,W] resized.
 *   nearest  y[i] = x[floor(i s)], s = 1 / scale_factor, or input size / output
 *            size; nearest-exact: x[floor((i + 1/2) s)]
 *   linear   y[i] between the neighbours of x at max(0, (i + 1/2) s - 1/2); with
 *            align_corners at i (input size - 1) / (output size - 1); bilinear,
 *            trilinear: along two and three dimensions
 *   bicubic  of four neighbours, by cubic convolution with a = -3/4 (Keys, IEEE
 *            TASSP 29, 1981)
 *   antialias  of all elements less than max(s, 1) away (bicubic: twice that),
 *            by a triangle or a cubic with a = -1/2 of that width, as in Pillow
 *     ds_interpolate(x, .scale_factor = 2, .mode = DS_BILINEAR)
 * Refuses size beside scale_factor, neither, and align_corners or antialias for
 * other modes. */
#define ds_interpolate(x, ...) ds_interpolate_with(x, (ds_interpolate_opts){__VA_ARGS__})
DS_API ds_tensor *ds_interpolate_with(ds_tensor *x, ds_interpolate_opts opts);

/* ---- places of images ---------------------------------------------------------------------------- */

/* torch.nn.functional.pixel_shuffle: x [...,C r^2,H,W] -> [...,C,H r,W r], Shi
 * et al., arXiv:1609.05158; pixel_unshuffle is its inverse. */
DS_API ds_tensor *ds_pixel_shuffle(ds_tensor *x, int64_t factor);
DS_API ds_tensor *ds_pixel_unshuffle(ds_tensor *x, int64_t factor);
/* torch.nn.functional.channel_shuffle: channel g C/groups + i of x [N,C,...]
 * becomes i groups + g. */
DS_API ds_tensor *ds_channel_shuffle(ds_tensor *x, int64_t groups);

typedef struct ds_unfold_opts {
    int kernel, kernel_w; /* _w: 0 means "the same", -1 none, as in ds_conv2d_opts */
    int dilation, dilation_w, padding, padding_w, stride, stride_w;
} ds_unfold_opts;

/* torch.nn.functional.unfold: the windows of a convolution, P Q of them, as
 * columns.
 *   x [N,C,H,W] -> [N,C kernel kernel_w,P Q], or without N
 * fold: the planes h x w of which x has the columns; where windows overlap they
 * add up. */
#define ds_unfold(x, ...) ds_unfold_with(x, (ds_unfold_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_unfold_with(ds_tensor *x, ds_unfold_opts opts);
#define ds_fold(x, h, w, ...) ds_fold_with(x, h, w, (ds_unfold_opts){.kernel = __VA_ARGS__})
DS_API ds_tensor *ds_fold_with(ds_tensor *x, int64_t h, int64_t w, ds_unfold_opts opts);

typedef enum ds_grid_padding {
    DS_GRID_ZEROS = 0, /* beyond the image */
    DS_GRID_BORDER,    /* the nearest place of it */
    DS_GRID_REFLECTION /* mirrored at its edges until inside */
} ds_grid_padding;

typedef struct ds_grid_sample_opts {
    bool nearest; /* the nearest element, of halves the even one; else bilinear */
    ds_grid_padding padding_mode;
    bool align_corners; /* -1 and 1 are the middles of the outer elements, not their edges */
} ds_grid_sample_opts;

/* torch.nn.functional.grid_sample of images: y[n,c,p,q] is x at grid[n,p,q] =
 * (column, row), -1 to 1 from edge to edge; NaN is -1. x [N,C,H,W], grid
 * [N,P,Q,2] -> [N,C,P,Q]. The nearest element has no gradient of the grid. */
DS_API ds_tensor *ds_grid_sample(ds_tensor *x, ds_tensor *grid);
DS_API ds_tensor *ds_grid_sample_with(ds_tensor *x, ds_tensor *grid, ds_grid_sample_opts opts);
/* torch.nn.functional.affine_grid: the grid [N,h,w,2] of theta [N,2,3] times
 * the places (column, row, 1) of an image h x w. */
DS_API ds_tensor *ds_affine_grid(ds_tensor *theta, int64_t h, int64_t w, bool align_corners);

#ifdef __cplusplus
}
#endif

#endif
