/* device/cuda/launch_decode.c: a new position of each row of a language model:
 * attention_step and choose_token of kernels.h.
 *
 * Invariants: the numbers of warps and of blocks of a head, and so the order of
 * sums, depend on the size of the cache and the number of heads of all batches
 * (dsi_step_division), not on how much of the cache is filled: a graph that was
 * recorded at one position has the bits of a launch at another.
 * SPDX-License-Identifier: MIT */
#include "kernels/decode.h"
#include "launch.h"
#include "operands.h"

#include "base/error.h"

#define FEW_TOKENS 2048 /* to choose from: 4 warps */

static void strides_of(long long *to, int n, const dsi_view *v)
{
    for (int i = 0; i < n; i++) to[i] = v->s[i];
}

/* 64, 128 or 256 elements of a head, to which `depth` is padded. */
static const char *step_kernel(int64_t depth)
{
    return depth <= 64    ? "attention_step_64"
           : depth <= 128 ? "attention_step_128"
                          : "attention_step_256";
}

/* One launch, or two where a head has several blocks; of 8 warps or
 * K_STEP_WARPS. */
static ds_status step_launch(dsi_stream *s, dsi_cuda_attention_step *a, int64_t heads)
{
    const ds_dtype dtype = (ds_dtype)a->dtype;
    size_t bytes = (size_t)heads * (size_t)a->splits * (size_t)(a->depth + 2) * sizeof *a->part;
    if (a->splits > 1 && !(a->part = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    ds_status status = dsi_cuda_launch(
        s, DSI_CUDA_decode, step_kernel(a->depth), dsi_cuda_dtype_suffix(dtype),
        dsi_cuda_blocks(heads * a->splits, a->rows < DSI_STEP_FEW ? 256 : 32 * K_STEP_WARPS), a);
    if (a->splits == 1) return status;
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_decode, "attention_join", "",
                                 dsi_cuda_blocks(heads, a->depth <= 64 ? 64 : 256), a);
    dsi_cuda_scratch_free(s, a->part, bytes);
    return status;
}

ds_status dsi_cuda_attention_step_of(dsi_stream *s, const dsi_attention_step *o, dsi_view q,
                                     dsi_view k, dsi_view v, dsi_view cache_k, dsi_view cache_v,
                                     dsi_view at, dsi_view pads, dsi_view cos, dsi_view sin,
                                     dsi_view y)
{
    int splits = dsi_step_division(cache_k.d[2], q.d[0] * q.d[1]);
    dsi_cuda_attention_step a = {.q = q.p,
                                 .k = k.p,
                                 .v = v.p,
                                 .cache_k = cache_k.p,
                                 .cache_v = cache_v.p,
                                 .y = y.p,
                                 .fault = dsi_cuda_fault(s),
                                 .at = at.p,
                                 .pads = pads.p,
                                 .cos = cos.p,
                                 .sin = sin.p,
                                 .turn_s = cos.p ? cos.s[0] : 0,
                                 .rows = cache_k.d[2],
                                 .window = o->window,
                                 .heads = (int)q.d[1],
                                 .group = (int)(q.d[1] / k.d[1]),
                                 .depth = (int)q.d[2],
                                 .pairs = cos.p ? (int)cos.d[1] : 0,
                                 .splits = splits ? splits : 1,
                                 .dtype = (int)q.dtype,
                                 .scale = (float)o->scale,
                                 .cap = (float)o->cap};
    strides_of(a.qs, 2, &q), strides_of(a.ks, 2, &k), strides_of(a.vs, 2, &v);
    strides_of(a.ys, 2, &y), strides_of(a.cache_ks, 3, &cache_k);
    strides_of(a.cache_vs, 3, &cache_v);
    if (q.dtype == DS_F64 || q.dtype > DS_BF16 || a.depth > DSI_STEP_DEPTH)
        return dsi_fail(DS_EINVAL,
                        "attention_step: %s heads of %d elements: expected at most %d "
                        "of float32, float16 or bfloat16",
                        ds_dtype_name(q.dtype), a.depth, DSI_STEP_DEPTH);
    return step_launch(s, &a, q.d[0] * q.d[1]);
}

ds_status dsi_cuda_choose_token(dsi_stream *s, dsi_view x, dsi_view token, dsi_view counters)
{
    dsi_cuda_choose a = {.x = x.p,
                         .token = token.p,
                         .counters = counters.p,
                         .n = x.d[1],
                         .xs = x.s[0],
                         .token_s = token.s[0],
                         .dtype = (int)x.dtype,
                         .count = counters.p ? (int)counters.d[0] : 0};
    if (x.dtype == DS_F64 || x.dtype > DS_BF16)
        return dsi_fail(DS_EINVAL, "choose_token: %s: expected float32, float16 or bfloat16",
                        ds_dtype_name(x.dtype));
    return dsi_cuda_launch(s, DSI_CUDA_decode, "choose_token", "",
                           dsi_cuda_blocks(x.d[0], a.n < FEW_TOKENS ? 128 : 1024), &a);
}
