/* device/cuda/held_own.h: what is held (held.h), as held*.c have it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "held.h"
#include "kernels/linear_entropy.h"
#include "operands.h"

typedef enum dsi_cuda_waits {
    DSI_CUDA_NOTHING,
    DSI_CUDA_PRODUCTS, /* kind, grid, group: n of them, at most K_GROUP, of DSI_CUDA_COLUMNS 2 */
    DSI_CUDA_CONV,     /* conv, the suffix of its kernel, of_conv, grid */
    DSI_CUDA_COPY,     /* copy */
    DSI_CUDA_BACK,     /* back, of which there is no dx, and grid */
    DSI_CUDA_NORM,     /* norm; grid, unless it is a sum alone */
    DSI_CUDA_ENTROPY   /* last, grid; last.linear.m is 0 if its x is of no held product; else
                        * n gradients of that product, 0 to 2 */
} dsi_cuda_waits;

/* A norm, then a sum of its result, then a norm of that; the first may be
 * absent, and those that have not come yet: joined.sum, joined.of[1].y are NULL
 * then. */
typedef struct dsi_cuda_held_norm {
    dsi_cuda_norm_sum joined;
    dsi_cuda_pointwise sum; /* where there is no first norm: the sum alone */
} dsi_cuda_held_norm;

struct dsi_cuda_held {
    dsi_stream *s;
    dsi_cuda_waits what;
    int n;
    dsi_cuda_small kind;
    dsi_cuda_grid grid;
    const char *conv; /* beside of_conv */
    union {
        dsi_cuda_matmul_group group;
        dsi_cuda_conv_args of_conv;
        dsi_cuda_element copy;
        dsi_cuda_conv_back back;
        dsi_cuda_linear_entropy last;
        dsi_cuda_held_norm norm;
    };
};

/* The held launch, if it is a `what` of this stream; else NULL. */
struct dsi_cuda_held *dsi_cuda_held_as(const dsi_stream *s, dsi_cuda_waits what);

/* Launches what is held, and begins to hold a launch, *h: the caller sets the
 * members of `what`, then calls dsi_cuda_held. */
ds_status dsi_cuda_held_new(dsi_stream *s, dsi_cuda_waits what, dsi_cuda_grid grid,
                            struct dsi_cuda_held **h);

/* The end of what holds a launch: launches it without launch fusions. */
ds_status dsi_cuda_held(dsi_stream *s);

/* ---- memory of operands --------------------------------------------------- */

typedef struct dsi_cuda_extent {
    const char *begin, *end;
} dsi_cuda_extent;

static inline dsi_cuda_extent dsi_cuda_extent_of(const void *p, int dtype, int n,
                                                 const long long *d, const long long *s)
{
    int64_t last = 0, size = (int64_t)ds_dtype_size((ds_dtype)dtype);
    for (int i = 0; i < n; i++) last += (d[i] - 1) * s[i];
    return (dsi_cuda_extent){p, p ? (const char *)p + (last + 1) * size : NULL};
}

static inline dsi_cuda_extent dsi_cuda_memory_of(const void *p, int64_t bytes)
{
    return (dsi_cuda_extent){p, p ? (const char *)p + bytes : NULL};
}

static inline bool dsi_cuda_overlap(dsi_cuda_extent a, dsi_cuda_extent b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* Whether places in it, from its first element on, have 32 bits. */
static inline bool dsi_cuda_is_near(dsi_cuda_extent e) { return e.end - e.begin <= INT32_MAX; }

enum { DSI_CUDA_INPUTS = 4, DSI_CUDA_OUTPUTS = 3 };

/* in: a, b, bias, epilogue_in; out: y, sums, epilogue_out */
void dsi_cuda_extents(const dsi_cuda_matmul_args *p, dsi_cuda_extent in[DSI_CUDA_INPUTS],
                      dsi_cuda_extent out[DSI_CUDA_OUTPUTS]);

/* Whether the order of a and b does not matter. */
bool dsi_cuda_independent(const dsi_cuda_matmul_args *a, const dsi_cuda_matmul_args *b);

/* ---- held_entropy.c ---------------------------------------------------------- */

ds_status dsi_cuda_held_entropy_launch(struct dsi_cuda_held *h);

/* Fuses p, by the kernel `kind`, with the held cross entropy: false if it is no
 * gradient of its product. */
bool dsi_cuda_held_gradient(const dsi_stream *s, dsi_cuda_small kind,
                            const dsi_cuda_matmul_args *p);

/* The gradient whose result dy is, if dx can be the output of its epilogue
 * K_EPILOGUE_RELU_DX, which reads `mask`. */
dsi_cuda_matmul_args *dsi_cuda_held_gradient_of(const dsi_stream *s, const dsi_view *dy,
                                                const dsi_view *mask, const dsi_view *dx);

/* ---- held_norm.c -------------------------------------------------------------- */

ds_status dsi_cuda_held_norm_launch(struct dsi_cuda_held *h);
