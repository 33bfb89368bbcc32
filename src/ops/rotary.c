/* ops/rotary.c: rotary position embedding; Su et al., arXiv:2104.09864.
 *
 * The R pairs of a row of x [...,D] turn, each by its own angle; the elements
 * after them stay. The gradient turns back. A turn is two kernels,
 * y = a cos -+ b sin, over the pairs' first and second elements as views.
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* The first or second elements of x's pairs, [...,R]. */
static dsi_view rotary_half(const ds_tensor *x, int64_t pairs, bool interleaved, int which)
{
    dsi_view v = dsi_v(x);
    int last = v.n - 1;
    int64_t offset = (int64_t)which * (interleaved ? 1 : pairs) * v.s[last];
    v.p = (char *)v.p + offset * (int64_t)ds_dtype_size(v.dtype);
    v.d[last] = pairs;
    if (interleaved) v.s[last] *= 2;
    return v;
}

/* y = a b + alpha c d; t is of y's shape, and is used if the device lacks the
 * fusion. */
static bool rotary_mul_add(ds_tensor *x, double alpha, dsi_view a, dsi_view b, dsi_view c,
                           dsi_view d, dsi_view y, dsi_view t)
{
    if (dsi_fusion(x->device, mul_add)) return dsi_run_fusion(x, mul_add, alpha, a, b, c, d, y);
    return dsi_run_op(x, binary, DSI_MUL, 1.0, a, b, y) &&
           dsi_run_op(x, binary, DSI_MUL, 1.0, c, d, t) &&
           dsi_run_op(x, binary, DSI_ADD, alpha, y, t, y);
}

/* Attributes that backward needs beside cos and sin. */
typedef struct Rotary {
    bool interleaved;
} Rotary;

/* x turned by sign times the angle: a new tensor. */
static ds_tensor *rotary_turn(ds_tensor *x, ds_tensor *cos, ds_tensor *sin, bool interleaved,
                              double sign)
{
    ds_dtype dtype = x->dtype;
    bool fused = dsi_fusion(x->device, mul_add);
    if (!fused) x = dsi_upcast(x), cos = dsi_upcast(cos), sin = dsi_upcast(sin); /* rounds once */
    if (!x || !cos || !sin) return NULL;
    int last = x->shape.n - 1;
    ds_dims half = x->shape;
    int64_t pairs = cos->shape.d[cos->shape.n - 1], size = half.d[last];
    half.d[last] = pairs;
    ds_tensor *y = dsi_new(x, x->shape), *t = fused || !y ? y : dsi_new(x, half);
    if (!y || !t) return NULL;
    dsi_view c = dsi_v_expand(cos, half), s = dsi_v_expand(sin, half);
    dsi_view x0 = rotary_half(x, pairs, interleaved, 0), x1 = rotary_half(x, pairs, interleaved, 1);
    dsi_view y0 = rotary_half(y, pairs, interleaved, 0), y1 = rotary_half(y, pairs, interleaved, 1);
    bool done = rotary_mul_add(x, -sign, x0, c, x1, s, y0, dsi_v(t)) &&
                rotary_mul_add(x, sign, x1, c, x0, s, y1, dsi_v(t));
    if (done && 2 * pairs < size) {
        dsi_view from = dsi_v(x), to = dsi_v(y);
        size_t bytes = ds_dtype_size(x->dtype);
        from.p = (char *)from.p + (size_t)(2 * pairs * from.s[last]) * bytes;
        to.p = (char *)to.p + (size_t)(2 * pairs * to.s[last]) * bytes;
        from.d[last] = to.d[last] = size - 2 * pairs;
        done = dsi_run(x, copy, from, to);
    }
    return done ? ds_cast(y, dtype) : NULL;
}

/* Saved: cos, sin. */
static void rotary_embedding_backward(dsi_node *n, ds_tensor *dy)
{
    const Rotary *o = dsi_attr(n);
    dsi_accumulate_grad(
        n, 0, rotary_turn(dy, dsi_saved_tensor(n, 0), dsi_saved_tensor(n, 1), o->interleaved, -1));
}

const dsi_op dsi_op_rotary_embedding = {.name = "rotary_embedding",
                                        .backward = rotary_embedding_backward};

/* t is cos or sin. */
static bool rotary_fits(const ds_tensor *x, const ds_tensor *t, const char *name)
{
    bool mixed = dsi_is_16bit(x) && t->dtype == DS_F32 && t->device == x->device;
    int n = t->shape.n;
    if (!mixed && !dsi_same_kind("rotary_embedding", x, t)) return false;
    bool fits = n >= 1 && n <= x->shape.n && 2 * t->shape.d[n - 1] <= x->shape.d[x->shape.n - 1];
    for (int i = 2; fits && i <= n; i++)
        fits = t->shape.d[n - i] == 1 || t->shape.d[n - i] == x->shape.d[x->shape.n - i];
    return fits || dsi_refuse("rotary_embedding: %s is %s, x is %s: expected [...,R] that "
                              "broadcasts to x's rows, with 2 R at most the row",
                              name, dsi_shape_text(t->shape), dsi_shape_text(x->shape));
}

ds_tensor *ds_rotary_embedding(ds_tensor *x, ds_tensor *cos, ds_tensor *sin, bool interleaved)
{
    if (!dsi_live_all("rotary_embedding", x, cos, sin)) return dsi_null_operand("rotary_embedding");
    if (!dsi_want_float("rotary_embedding", x)) return NULL;
    if (x->shape.n < 1)
        return dsi_refuse("rotary_embedding: x is %s: expected rows", dsi_shape_text(x->shape));
    if (!rotary_fits(x, cos, "cos") || !rotary_fits(x, sin, "sin")) return NULL;
    if (!dsi_same_shape(cos->shape, sin->shape))
        return dsi_refuse("rotary_embedding: cos is %s, sin %s: expected the same shape",
                          dsi_shape_text(cos->shape), dsi_shape_text(sin->shape));
    if (!dsi_acquire(x, cos, sin)) return NULL;

    ds_tensor *y = rotary_turn(ds_detach(x), cos, sin, interleaved, 1);

    if (!y) return NULL;

    dsi_node *n = dsi_record(&dsi_op_rotary_embedding, y, x);
    dsi_save_for_backward(n, cos), dsi_save_for_backward(n, sin);
    dsi_set_attr(n, &(Rotary){interleaved}, sizeof(Rotary));
    return y;
}
