/* ops/attention.c: scaled dot product attention; Vaswani et al.,
 * arXiv:1706.03762.
 *
 * q [B,L,D], k [K,S,D], v [K,S,E] -> y = softmax(q k^T scale + mask) v [B,L,E],
 * B and K all leading dimensions, which are equal but with grouped heads. The
 * scores [B,L,S] are never stored: backward makes them again from lse [B,L],
 * the logarithms of the softmax's sums (Dao et al., arXiv:2205.14135). Nor is a
 * mask of dropout: a device that has the fusion draws it again from the call's
 * seed, which a step that is recorded finds in its graph. Others compose, with
 * PyTorch's numbers on the CPU.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "base/mem.h"
#include "base/option.h"
#include "op.h"

#include <math.h>
#include <string.h>

/* Attributes that backward needs beside the saved tensors. */
typedef struct Attention {
    dsi_attention c;
    double dropout_p;  /* 0: none, and no random */
    dsi_philox random; /* of the first call; the next ones' offsets are behind it */
} Attention;

/* The kernels take two leading dimensions: dimensions `from` .. of all operands
 * are one in memory, the one before them is the kernels' first, and of those
 * before that each element is a call. So q, k, v that are views of a projection
 * [N,L,H,D] need no copy and one call, and neither do their gradients, which
 * have the same order in memory. */

/* The first dimension from which on the leading ones of all operands (NULL:
 * left out) are one. */
static int attention_from(ds_tensor *const *x, int n)
{
    int from = 0;
    int64_t stride;
    for (int i = 0; i < n; i++)
        while (x[i] && !dsi_merged(x[i], from, x[i]->shape.n - 2, &stride)) from++;
    return from;
}

/* The number of calls: of elements of the dimensions before from - 1. */
static int64_t attention_calls(const ds_tensor *x, int from)
{
    int64_t n = 1;
    for (int i = 0; i < from - 1; i++) n *= x->shape.d[i];
    return n;
}

/* The part of x [...,M,N] of that call, as [A,B,M,N]; absent of NULL. call
 * counts the dimensions before from - 1 in row-major order; its digits are the
 * indices, the last dimension first. */
static dsi_view attention_part(const ds_tensor *x, int from, int64_t call)
{
    if (!x) return dsi_v(NULL);
    dsi_view all = dsi_v(x), v = {.p = all.p, .dtype = all.dtype, .n = 4};
    int lead = x->shape.n - 2;
    int64_t offset = 0;
    for (int i = from - 2; i >= 0; call /= x->shape.d[i--])
        offset += call % x->shape.d[i] * x->stride[i];
    v.p = (char *)all.p + offset * (int64_t)ds_dtype_size(x->dtype);
    v.d[0] = from ? x->shape.d[from - 1] : 1, v.s[0] = from ? x->stride[from - 1] : 0;
    v.d[1] = 1;
    for (int i = from; i < lead; i++) v.d[1] *= x->shape.d[i];
    dsi_merged(x, from, lead, &v.s[1]);
    for (int i = 0; i < 2; i++) v.d[2 + i] = x->shape.d[lead + i], v.s[2 + i] = x->stride[lead + i];
    return v;
}

/* The rows of lse, which is contiguous [...,L] like q, of that call: [A,B,L] */
static dsi_view attention_lse(const ds_tensor *lse, const dsi_view *q, int64_t call)
{
    int64_t each = q->d[1] * q->d[2];
    char *p = dsi_v(lse).p;
    return (dsi_view){p + call * q->d[0] * each * (int64_t)ds_dtype_size(lse->dtype),
                      lse->dtype,
                      3,
                      {q->d[0], q->d[1], q->d[2]},
                      {each, q->d[2], 1}};
}

/* A new tensor of that shape, its dimensions in like's order in memory, so that
 * what is a view of [N,L,H,D] has a result that is one too; or row-major. */
static ds_tensor *attention_new(const ds_tensor *like, ds_dims shape, int from)
{
    int64_t stride[DS_MAX_DIMS], step = 1;
    bool done[DS_MAX_DIMS] = {false};
    for (int k = 0; k < shape.n; k++) { /* from the innermost dimension on */
        int next = -1;
        for (int i = shape.n - 1; i >= 0; i--)
            if (!done[i] && (next < 0 || like->stride[i] < like->stride[next])) next = i;
        done[next] = true;
        stride[next] = step;
        step *= shape.d[next];
    }
    ds_tensor *memory = dsi_new(like, shape);
    ds_tensor *y = memory ? dsi_view_of(memory, shape, stride, 0) : NULL;
    bool fits = y && y->stride[shape.n - 1] == 1 && attention_from(&y, 1) <= from;
    return fits ? y : memory;
}

/* x, or a copy if its rows have gaps, which kernels do not take. */
static ds_tensor *attention_rows(ds_tensor *x)
{
    return !x || x->stride[x->shape.n - 1] == 1 || ds_size(x, -1) < 2 ? x : ds_contiguous(x);
}

/* The random numbers of that call, whose batches follow those of the call
 * before
 * it. */
static dsi_philox attention_random(const Attention *a, const dsi_view *q, int64_t call)
{
    dsi_philox random = a->random;
    random.offset += (uint64_t)(call * q->d[0] * q->d[1]);
    return random;
}

enum { Q, K, V, Y, MASK, DY, OPERANDS };

/* y and lse from q, k, v and mask (NULL: none). */
static bool attention_run(const Attention *a, ds_tensor *const *x, ds_tensor *lse, int from)
{
    int64_t calls = attention_calls(x[Q], from);
    bool done = true;
    for (int64_t i = 0; i < calls && done; i++) {
        dsi_view q = attention_part(x[Q], from, i), k = attention_part(x[K], from, i),
                 v = attention_part(x[V], from, i), mask = attention_part(x[MASK], from, i),
                 y = attention_part(x[Y], from, i), sums = attention_lse(lse, &q, i);
        dsi_philox random = attention_random(a, &q, i);
        done = a->dropout_p > 0 ? dsi_run_fusion(x[Y], attention_dropout, &random, a->dropout_p,
                                                 &a->c, q, k, v, mask, y, sums)
                                : dsi_run(x[Y], attention, &a->c, q, k, v, mask, y, sums);
    }
    return done;
}

/* The gradients of q, k and v. One kernel gives all three: they share the
 * scores, which are the larger part of the work. */
static bool attention_run_dx(const Attention *a, ds_tensor *const *x, const ds_tensor *lse,
                             ds_tensor *const *grad, int from)
{
    int64_t calls = attention_calls(x[Q], from);
    bool done = true;
    if (!dsi_numel(lse->shape)) return dsi_fill(grad[1], 0) && dsi_fill(grad[2], 0); /* no query */
    for (int64_t i = 0; i < calls && done; i++) {
        dsi_view q = attention_part(x[Q], from, i), k = attention_part(x[K], from, i),
                 v = attention_part(x[V], from, i), mask = attention_part(x[MASK], from, i),
                 y = attention_part(x[Y], from, i), dy = attention_part(x[DY], from, i),
                 dq = attention_part(grad[0], from, i), dk = attention_part(grad[1], from, i),
                 dv = attention_part(grad[2], from, i), sums = attention_lse(lse, &q, i);
        dsi_philox random = attention_random(a, &q, i);
        done = a->dropout_p > 0
                   ? dsi_run_fusion(grad[0], attention_dropout_dx, &random, a->dropout_p, &a->c, dy,
                                    q, k, v, mask, y, sums, dq, dk, dv)
                   : dsi_run(grad[0], attention_dx, &a->c, dy, q, k, v, mask, y, sums, dq, dk, dv);
    }
    return done;
}

/* Saved: q, k, v, y, lse [B,L], mask. */
static void attention_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *lse = dsi_saved_tensor(n, 4), *grad[3] = {NULL};
    ds_tensor *x[OPERANDS] = {
        [Q] = dsi_saved_tensor(n, 0), [K] = dsi_saved_tensor(n, 1),    [V] = dsi_saved_tensor(n, 2),
        [Y] = dsi_saved_tensor(n, 3), [MASK] = dsi_saved_tensor(n, 5), [DY] = attention_rows(dy)};
    int from = attention_from(x, OPERANDS);
    bool done = x[DY];
    for (int i = 0; i < 3 && done; i++) done = (grad[i] = attention_new(x[i], x[i]->shape, from));
    done = done && attention_run_dx(dsi_attr(n), x, lse, grad, from);
    for (int i = 0; i < 3; i++)
        if (dsi_needs_input_grad(n, i)) dsi_accumulate_grad(n, i, dsi_result_if(done, grad[i]));
}

const dsi_op dsi_op_attention = {.name = "attention", .backward = attention_backward};

/* Options by themselves; false with the message. */
static bool attention_opts_check(ds_attention_opts o)
{
    if (o.window < 0 || (o.window && !o.causal))
        return dsi_refuse("attention: window is %lld: expected 1 or more, with causal, or 0",
                          (long long)o.window);
    if (!(o.softcap >= 0 && isfinite(o.softcap)))
        return dsi_refuse("attention: softcap is %g: expected 0 or more, finite", o.softcap);
    if (!(o.dropout_p >= 0 && o.dropout_p <= 1))
        return dsi_refuse("attention: dropout_p is %g: expected 0 to 1", o.dropout_p);
    return true;
}

/* q [...,L,D], k [...,S,D], v [...,S,E] with equal leading dimensions; a mask
 * has q's device, and is bool (true: attend) or of q's dtype (added to the
 * scores). */
static bool attention_check(const ds_tensor *q, const ds_tensor *k, const ds_tensor *v,
                            ds_attention_opts o)
{
    int n = q->shape.n;
    if (!dsi_want_float("attention", q) || !dsi_same_kind("attention", q, k) ||
        !dsi_same_kind("attention", q, v))
        return false;
    bool fits = n >= 2 && k->shape.n == n && v->shape.n == n;
    for (int i = 0; fits && i < n - 2; i++) {
        int64_t heads = q->shape.d[i], shared = k->shape.d[i];
        bool grouped = o.enable_gqa && i == n - 3 && shared > 0 && heads % shared == 0;
        fits = (heads == shared || grouped) && shared == v->shape.d[i];
    }
    if (!fits || q->shape.d[n - 1] != k->shape.d[n - 1] || k->shape.d[n - 2] != v->shape.d[n - 2])
        return dsi_refuse(
            "attention: q is %s, k %s, v %s: expected [...,L,D], [...,S,D], [...,S,E]%s",
            dsi_shape_text(q->shape), dsi_shape_text(k->shape), dsi_shape_text(v->shape),
            o.enable_gqa ? " with heads of q that are a multiple of k's" : "");
    if (o.mask && o.causal)
        return dsi_refuse(
            "attention: a mask and causal exclude each other: put both into the mask");
    if (!attention_opts_check(o)) return false;
    if (!dsi_same_device("attention", q, o.mask)) return false;
    if (o.mask && o.mask->dtype != DS_BOOL && o.mask->dtype != q->dtype)
        return dsi_refuse("attention: the mask is %s: expected bool or %s",
                          ds_dtype_name(o.mask->dtype), ds_dtype_name(q->dtype));
    return true;
}

/* The mask as a view expanded to [...,L,S]; NULL with the message. */
static ds_tensor *attention_expand_mask(const ds_tensor *q, const ds_tensor *k, ds_tensor *mask)
{
    ds_dims scores = q->shape, both;
    scores.d[scores.n - 1] = k->shape.d[scores.n - 2];
    return dsi_broadcast("attention: the mask", scores, mask->shape, &both)
               ? ds_expand(mask, scores)
               : NULL;
}

/* The leading dimensions of q, k, v, but the heads of grouped ones, as views of
 * their common shape; false with the message. */
static bool attention_expand(ds_tensor **x, bool grouped)
{
    int n = x[0]->shape.n, lead = n - 2 - grouped;
    ds_dims shape = {.n = lead};
    bool equal = true;
    for (int i = 0; i < 3; i++) equal = equal && x[i]->shape.n == n;
    if (!equal || lead < 1) return true; /* for attention_check */
    for (int k = 0; k < lead; k++)
        for (int i = shape.d[k] = 1; i <= 3; i++)
            if (shape.d[k] == 1) shape.d[k] = x[i - 1]->shape.d[k];
    for (int i = 0; i < 3; i++) {
        ds_dims whole = x[i]->shape;
        bool same = true;
        for (int k = 0; k < lead; k++) {
            if (whole.d[k] != 1 && whole.d[k] != shape.d[k]) return true;
            same = same && whole.d[k] == shape.d[k];
            whole.d[k] = shape.d[k];
        }
        if (!same && !(x[i] = ds_expand(x[i], whole))) return false;
    }
    return true;
}

/* k or v with each head repeated as often as q has heads to it; itself if that
 * is once. */
static ds_tensor *attention_repeat(ds_tensor *k, const ds_tensor *q)
{
    int head = q->shape.n - 3;
    if (!k || head < 0 || k->shape.d[head] == q->shape.d[head]) return k;
    ds_dims each = k->shape, all = k->shape;
    each.n++;
    for (int i = each.n - 1; i > head + 1; i--) each.d[i] = k->shape.d[i - 1];
    each.d[head + 1] = q->shape.d[head] / k->shape.d[head];
    all.d[head] = q->shape.d[head];
    return ds_reshape(ds_expand(ds_unsqueeze(k, head + 1), each), all);
}

/* x: q, k, v. Heads of k and v that differ in number are repeated to q's, as
 * PyTorch does; others stay, for the kernels and attention_check. False with
 * the message. */
static bool attention_own_groups(ds_tensor **x)
{
    int n = x[0]->shape.n, head = n - 3;
    if (n < 3 || x[1]->shape.n != n || x[2]->shape.n != n) return true;
    int64_t q = x[0]->shape.d[head], k = x[1]->shape.d[head], v = x[2]->shape.d[head];
    if (k == v || k < 1 || v < 1 || q % k || q % v) return true;
    return (x[1] = attention_repeat(x[1], x[0])) && (x[2] = attention_repeat(x[2], x[0]));
}

/* scores [...,L,S] with the mask, and -inf where a key does not count. */
static ds_tensor *scores_masked(ds_tensor *scores, ds_attention_opts o)
{
    if (o.mask && o.mask->dtype != DS_BOOL) return ds_add(scores, dsi_upcast(o.mask));
    if (!scores || (!o.mask && !o.causal)) return scores;
    ds_tensor *least = dsi_number_beside(scores, -INFINITY);
    if (o.mask) return ds_where(o.mask, scores, least);
    ds_tensor *query = ds_unsqueeze(dsi_arange(scores, 0, ds_size(scores, -2), 1), 1),
              *key = dsi_arange(scores, 0, ds_size(scores, -1), 1);
    scores = ds_where(ds_lt(query, key), least, scores);
    if (!o.window) return scores;
    ds_tensor *first = dsi_arange(scores, 1 - (double)o.window, ds_size(scores, -2), 1);
    return ds_where(ds_lt(key, ds_unsqueeze(first, 1)), least, scores);
}

/* softmax(scores), and 0 in a row whose scores are all -inf, as kernels have
 * it; only a mask or a window makes such a row. */
static ds_tensor *scores_softmax(ds_tensor *scores, ds_attention_opts o)
{
    if (!scores || (!o.mask && !o.window) || !ds_size(scores, -1)) return ds_softmax(scores, -1);
    ds_tensor *least = dsi_number_beside(scores, -INFINITY);
    ds_tensor *zero = dsi_number_beside(scores, 0);
    ds_reduce_opts row = {.dims = ds_shape(scores->shape.n - 1), .keepdim = true};
    ds_tensor *none = ds_eq(ds_amax_with(ds_detach(scores), row), least);
    return ds_where(none, zero, ds_softmax(ds_where(none, zero, scores), -1));
}

/* Attention made of single ops: for a mask that requires a gradient (a learned
 * position bias), which is the gradient of the scores, that the kernel never
 * stores; for terms that are added to capped scores; and for dropout where the
 * device has no kernel with it. */
static ds_tensor *attention_composed(ds_tensor *q, ds_tensor *k, ds_tensor *v, ds_attention_opts o,
                                     double scale)
{
    bool was = dsi_cost_set(false); /* attention_cost has counted */
    ds_dtype cast = ds_set_autocast(DS_F32);
    ds_tensor *kt = ds_transpose(dsi_upcast(k), -2, -1);
    ds_tensor *scores = ds_scale(ds_matmul(dsi_upcast(q), kt), scale); /* [...,L,S] */
    if (o.softcap > 0) scores = ds_scale(ds_tanh(ds_scale(scores, 1 / o.softcap)), o.softcap);
    ds_tensor *p = ds_dropout(scores_softmax(scores_masked(scores, o), o), o.dropout_p, true);
    ds_tensor *y = ds_cast(ds_matmul(p, dsi_upcast(v)), q->dtype);
    dsi_cost_set(was), ds_set_autocast(cast);
    return y;
}

/* Of q k^T and its product with v; as in DeepSpeed also of scores that a mask,
 * causal or a window leaves out. */
static void attention_cost(const ds_tensor *q, const ds_tensor *k, const ds_tensor *v)
{
    int n = q->shape.n;
    if (!dsi_observed || !q->shape.d[n - 1]) return;
    double scores = (double)dsi_numel(q->shape) / (double)q->shape.d[n - 1] *
                    (double)k->shape.d[n - 2];
    double macs = scores * (double)(q->shape.d[n - 1] + v->shape.d[n - 1]);
    dsi_cost_add(2 * macs, macs);
}

/* That of `length` queries with heads of `depth` elements. */
static Attention attention_of(int64_t length, int64_t depth, ds_attention_opts o)
{
    return (Attention){.c = {.scale = dsi_option(o.scale, 1 / sqrt(depth ? (double)depth : 1)),
                             .softcap = o.softcap,
                             .causal = o.causal,
                             .window = o.window < length ? o.window : 0},
                       .dropout_p = o.dropout_p};
}

static bool attention_is_fused(const ds_tensor *q, ds_attention_opts o)
{
    return o.dropout_p == 0 || dsi_fusion(q->device, attention_dropout);
}

static bool attention_seed(Attention *a, const ds_tensor *q)
{
    return a->dropout_p == 0 || dsi_seed_take(q->device, &a->random);
}

/* q [N,H,L,E], k [N,H,S,E], v [N,H,S,V] -> [N,H,L,V]; softmax(q k^T scale +
 * mask) v, in blocks where the device has the fused kernel. */
ds_tensor *ds_attention_with(ds_tensor *q, ds_tensor *k, ds_tensor *v, ds_attention_opts o)
{
    dsi_autocast_low(&q, &k, &v, &o.mask);
    if (!dsi_live_all("attention", q, k, v)) return dsi_null_operand("attention");
    ds_tensor *x[] = {q, k, v, NULL};
    if (!attention_expand(x, o.enable_gqa)) return NULL;
    if (o.enable_gqa && !attention_own_groups(x)) return NULL;
    q = x[0], k = x[1], v = x[2];
    if (!attention_check(q, k, v, o)) return NULL;
    int last = q->shape.n - 1;
    Attention a = attention_of(q->shape.d[last - 1], q->shape.d[last], o);
    if (o.mask && !(o.mask = attention_expand_mask(q, k, o.mask))) return NULL;
    bool terms = o.mask && o.mask->dtype != DS_BOOL;
    attention_cost(q, k, v);
    if (dsi_wants_grad(&o.mask, 1) || (terms && o.softcap > 0) || !attention_is_fused(q, o))
        return attention_composed(q, attention_repeat(k, q), attention_repeat(v, q), o, a.c.scale);
    for (int i = 0; i < 3; i++)
        if (!(x[i] = attention_rows(x[i]))) return NULL;
    q = x[0], k = x[1], v = x[2], x[3] = o.mask;
    int from = attention_from(x, 4);
    if (!dsi_acquire(q, k, v, o.mask) || !attention_seed(&a, q)) return NULL;

    ds_dims shape = q->shape, rows = {.n = last - 1};
    shape.d[last] = v->shape.d[last];
    for (int i = 0; i < rows.n; i++) rows.d[i] = q->shape.d[i];
    ds_tensor *y = attention_new(q, shape, from); /* [...,L,E] */
    ds_tensor *lse = dsi_new_upcast(q, ds_shape(dsi_numel(rows), q->shape.d[last - 1])); /* [B,L] */

    ds_tensor *operands[] = {[Q] = q, [K] = k, [V] = v, [Y] = y, [MASK] = o.mask};
    if (!y || !lse || !attention_run(&a, operands, lse, from)) return NULL;

    dsi_node *n = dsi_record(&dsi_op_attention, y, q, k, v);
    dsi_save_for_backward(n, q), dsi_save_for_backward(n, k), dsi_save_for_backward(n, v),
        dsi_save_for_backward(n, y), dsi_save_for_backward(n, lse);
    dsi_save_for_backward(n, o.mask), dsi_set_attr(n, &a, sizeof a);
    return y;
}

ds_tensor *ds_attention(ds_tensor *q, ds_tensor *k, ds_tensor *v)
{
    return ds_attention_with(q, k, v, (ds_attention_opts){0});
}

/* ---- q, k and v in one tensor ------------------------------------------------------------------------ */

/* Part i of x [...,L,parts heads D] as [...,heads,L,D], a view outside of the
 * graph. */
static ds_tensor *packed_heads(const ds_tensor *x, int64_t heads, int64_t depth, int64_t i)
{
    int n = x->shape.n;
    int64_t stride[DS_MAX_DIMS] = {0};
    ds_dims shape = x->shape;
    for (int k = 0; k < n - 2; k++) stride[k] = x->stride[k];
    shape.n = n + 1;
    shape.d[n - 2] = heads, shape.d[n - 1] = x->shape.d[n - 2], shape.d[n] = depth;
    stride[n - 2] = depth, stride[n - 1] = x->stride[n - 2], stride[n] = 1;
    return dsi_view_of(x, shape, stride, x->offset + i * heads * depth);
}

typedef struct PackedAttention {
    Attention a;
    int64_t heads, depth;
} PackedAttention;

/* Saved: qkv, y, lse. The gradients are parts of one tensor, too, so that none
 * has to be added to it. */
static void packed_backward(dsi_node *n, ds_tensor *dy)
{
    const PackedAttention *p = dsi_attr(n);
    ds_tensor *qkv = dsi_saved_tensor(n, 0), *dqkv = dsi_new(qkv, qkv->shape),
              *x[OPERANDS] = {NULL}, *grad[3] = {NULL};
    dy = attention_rows(dy);
    bool done = dqkv && dy;
    for (int i = 0; i < 3 && done; i++)
        done = (x[Q + i] = packed_heads(qkv, p->heads, p->depth, i)) &&
               (grad[i] = packed_heads(dqkv, p->heads, p->depth, i));
    done = done && (x[Y] = packed_heads(dsi_saved_tensor(n, 1), p->heads, p->depth, 0)) &&
           (x[DY] = packed_heads(dy, p->heads, p->depth, 0));
    if (done) {
        ds_tensor *all[] = {x[Q], x[Y], x[DY], grad[0]};
        done = attention_run_dx(&p->a, x, dsi_saved_tensor(n, 2), grad, attention_from(all, 4));
    }
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dqkv));
}

const dsi_op dsi_op_attention_qkvpacked = {.name = "attention_qkvpacked",
                                           .backward = packed_backward};

/* Without a mask: qkv [...,L,3E] with unit stride -> [...,L,E] */
static ds_tensor *packed_attention(ds_tensor *qkv, int64_t heads, ds_attention_opts o)
{
    int n = qkv->shape.n;
    ds_dims shape = qkv->shape;
    int64_t width = shape.d[n - 1] /= 3, depth = width / heads;
    PackedAttention p = {attention_of(shape.d[n - 2], depth, o), heads, depth};
    if (!dsi_acquire(qkv) || !attention_seed(&p.a, qkv)) return NULL;

    ds_tensor *y = dsi_new(qkv, shape), *x[OPERANDS] = {NULL}; /* [...,L,E] */
    if (!y || !(x[Y] = packed_heads(y, heads, depth, 0))) return NULL;
    for (int i = 0; i < 3; i++)
        if (!(x[Q + i] = packed_heads(qkv, heads, depth, i))) return NULL;
    ds_dims rows = x[Q]->shape;
    int64_t length = rows.d[n - 1];
    rows.n -= 2;
    ds_tensor *lse = dsi_new_upcast(qkv, ds_shape(dsi_numel(rows), length));

    ds_tensor *all[] = {x[Q], x[Y]};
    if (!lse || !attention_run(&p.a, x, lse, attention_from(all, 2))) return NULL;

    attention_cost(x[Q], x[Q], x[Q]);

    dsi_node *node = dsi_record(&dsi_op_attention_qkvpacked, y, qkv);
    dsi_save_for_backward(node, qkv), dsi_save_for_backward(node, y);
    dsi_save_for_backward(node, lse), dsi_set_attr(node, &p, sizeof p);
    return y;
}

/* Views of qkv, which becomes [...,3,heads,L,D], and back. */
ds_tensor *ds_attention_qkvpacked(ds_tensor *qkv, int64_t heads, ds_attention_opts o)
{
    dsi_autocast_low(&qkv, &o.mask);
    if (!dsi_live(qkv, "attention_qkvpacked")) return dsi_null_operand("attention_qkvpacked");
    int n = qkv->shape.n;
    int64_t width = n ? qkv->shape.d[n - 1] : 0;
    if (n < 2 || n > DS_MAX_DIMS - 2 || heads < 1 || width % (3 * heads))
        return dsi_refuse("attention_qkvpacked: qkv is %s, of %lld heads: expected [...,L,3E], E a "
                          "multiple of the heads",
                          dsi_shape_text(qkv->shape), (long long)heads);
    if (!attention_opts_check(o)) return NULL;
    bool plain = !o.mask && qkv->stride[n - 1] == 1 && width && attention_is_fused(qkv, o);
    if (plain && dsi_is_float(qkv)) return packed_attention(qkv, heads, o);
    ds_dims split = qkv->shape; /* [...,L,3,heads,D] */
    split.n = n + 2;
    split.d[n - 1] = 3, split.d[n] = heads, split.d[n + 1] = width / 3 / heads;
    ds_tensor *parts = ds_reshape(qkv, split), *x[3];
    for (int i = 0; i < 3; i++) x[i] = ds_transpose(ds_select(parts, -3, i), -3, -2);
    ds_tensor *y = ds_transpose(ds_attention_with(x[0], x[1], x[2], o), -3, -2);
    return y ? ds_flatten_range(y, n - 1, n) : NULL;
}
