/* nn/attention.c: MultiheadAttention (Vaswani et al., arXiv:1706.03762), with
 * torch.nn's state dict, initial values and masks.
 *
 * Invariant: `call`, the options of ds_call_attention, is set only while its
 * call of the module runs.
 *
 * The parameters belong to the module; `weight` and `weights` exclude each
 * other, as in torch: one matrix if keys and values have E columns, else
 * three. A mask is a term that is added to the scores; ds_attention_with has all
 * behind the projections, unless the caller asks for the weights.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "tensor/tensor.h"

#include <deepspeed/nn.h>

#include <math.h>

/* ---- MultiheadAttention ------------------------------------------------------------------------------ */

/* Letters of shapes: N batch, L queries, S keys, E embed_dim, H heads, D = E/H. */
typedef struct MultiheadAttention {
    int64_t embed, heads;
    ds_tensor *weight;          /* in_proj_weight [3E,E]; NULL: the next three */
    ds_tensor *weights[3];      /* q_, k_, v_proj_weight [E,E], [E,kdim], [E,vdim] */
    ds_tensor *bias;            /* in_proj_bias [3E], or NULL */
    ds_tensor *bias_k, *bias_v; /* [1,1,E], or NULL */
    ds_module *out;
    double dropout;
    bool zero_attn, batch_first;
    ds_attention_call call;
} MultiheadAttention;

/* Part i of the projections of x [...,E] for q, k, v: 0, 1, 2. The rows of
 * in_proj_weight and in_proj_bias are q's, k's, v's, E each. */
static ds_tensor *attention_project(MultiheadAttention *a, ds_tensor *x, int i)
{
    int64_t e = a->embed;
    ds_tensor *w = a->weight ? ds_slice(a->weight, 0, i * e, (i + 1) * e) : a->weights[i];
    return ds_linear(x, w, a->bias ? ds_slice(a->bias, 0, i * e, (i + 1) * e) : NULL);
}

/* q, k, v, all from one product if they are projections of one tensor. The
 * comparison is of handles: self-attention calls pass one three times. False
 * after a failure. */
static bool attention_project_all(MultiheadAttention *a, ds_tensor **x, ds_tensor **y)
{
    if (a->weight && x[0] == x[1] && x[1] == x[2]) {
        ds_tensor *all = ds_linear(x[0], a->weight, a->bias);
        for (int i = 0; i < 3; i++) y[i] = ds_slice(all, -1, i * a->embed, (i + 1) * a->embed);
    } else {
        for (int i = 0; i < 3; i++) y[i] = attention_project(a, x[i], i);
    }
    return y[0] && y[1] && y[2];
}

/* x with one position more, `last` [1,1,E], for each sample. */
static ds_tensor *attention_append(const MultiheadAttention *a, ds_tensor *x, ds_tensor *last)
{
    ds_dims shape = ds_shape_of(x);
    int time = a->batch_first ? 1 : 0;
    shape.d[time] = 1;
    return ds_cat((ds_tensor *[]){x, ds_expand(last, shape)}, 2, time);
}

/* [N,L,E] or [L,N,E] -> [N,H,L,D], and back */
static ds_tensor *attention_split_heads(const MultiheadAttention *a, ds_tensor *x)
{
    int64_t dim = a->embed / a->heads;
    ds_tensor *y = ds_reshape(x, ds_shape(ds_size(x, 0), ds_size(x, 1), a->heads, dim));
    return ds_permute(y, a->batch_first ? ds_shape(0, 2, 1, 3) : ds_shape(1, 2, 0, 3));
}

/* The heads of a position are side by side again, head 0 first. No copy is
 * made where y's memory is in this order already. */
static ds_tensor *attention_merge_heads(const MultiheadAttention *a, ds_tensor *y)
{
    y = ds_permute(y, a->batch_first ? ds_shape(0, 2, 1, 3) : ds_shape(2, 0, 1, 3));
    return ds_reshape(y, ds_shape(ds_size(y, 0), ds_size(y, 1), a->embed));
}

/* ---- masks: torch's true means "ignored" -------------------------------------------------------------- */

/* A mask as a term of the scores, with `more` positions at its end that are
 * attended to. A bool mask becomes -inf where it is true and 0 elsewhere, in
 * x's dtype and on its device; a mask of floats is the term itself. `more`
 * counts bias_k and the zero key, which no mask of the caller can know. */
static ds_tensor *mask_as_term(const ds_tensor *x, ds_tensor *mask, int64_t more)
{
    ds_device device = ds_device_of(x);
    if (ds_dtype_of(mask) == DS_BOOL) {
        ds_tensor *least = ds_to(ds_full(ds_dtype_of(x), (ds_dims){0}, -INFINITY), device,
                                 ds_dtype_of(x));
        ds_tensor *none = ds_to(ds_zeros(ds_dtype_of(x), (ds_dims){0}), device, ds_dtype_of(x));
        mask = ds_where(mask, least, none);
    }
    if (!mask || !more) return mask;
    ds_dims shape = ds_shape_of(mask);
    shape.d[shape.n - 1] = more;
    ds_tensor *zeros = ds_to(ds_zeros(ds_dtype_of(mask), shape), device, ds_dtype_of(mask));
    return ds_cat((ds_tensor *[]){mask, zeros}, 2, -1);
}

/* bool [L,S], true where query i may not see key j */
static ds_tensor *mask_causal(const ds_tensor *x, int64_t l, int64_t s)
{
    ds_tensor *mask = dsi_new_host(DS_BOOL, ds_shape(l, s));
    uint8_t *p = mask ? ds_data_mut(mask) : NULL;
    for (int64_t i = 0; p && i < l * s; i++) p[i] = i % s > i / s;
    return p ? ds_to(mask, ds_device_of(x), DS_BOOL) : NULL;
}

/* Exactly these shapes, as in PyTorch: another order of dimensions may have as
 * many elements. key_padding_mask is [S] for one sample. */
static bool attention_check_masks(const ds_attention_call *c, int64_t n, int64_t heads, int64_t l,
                                  int64_t s)
{
    ds_dims m = c->attn_mask ? ds_shape_of(c->attn_mask) : ds_shape(l, s);
    if ((m.n != 2 && m.n != 3) || m.d[m.n - 2] != l || m.d[m.n - 1] != s ||
        (m.n == 3 && m.d[0] != n * heads))
        return dsi_refuse("multihead_attention: attn_mask is %s: expected [%lld, %lld] or [%lld, "
                          "%lld, %lld]",
                          dsi_shape_text(m), (long long)l, (long long)s, (long long)(n * heads),
                          (long long)l, (long long)s);
    m = c->key_padding_mask ? ds_shape_of(c->key_padding_mask) : ds_shape(n, s);
    bool one = m.n == 1 && n == 1 && m.d[0] == s;
    if (!one && (m.n != 2 || m.d[0] != n || m.d[1] != s))
        return dsi_refuse("multihead_attention: key_padding_mask is %s: expected [%lld, %lld]",
                          dsi_shape_text(m), (long long)n, (long long)s);
    return true;
}

/* The sum of all masks, which broadcasts to [N,H,L,S] -> *sum; NULL if there
 * are none. False with the message. A 3-D attn_mask is torch's [N H,L,S];
 * key_padding_mask is [N,S]. A causal mask is written out only beside other
 * masks or if the weights are computed here. */
static bool attention_masks(const MultiheadAttention *a, const ds_tensor *q, const ds_tensor *k,
                            int64_t more, ds_tensor **sum)
{
    const ds_attention_call *c = &a->call;
    int64_t n = ds_size(q, 0), l = ds_size(q, 2), s = ds_size(k, 2) - more;
    if (!attention_check_masks(c, n, a->heads, l, s)) return false;
    ds_tensor *terms[3] = {c->attn_mask, c->key_padding_mask, NULL};
    if (terms[0] && ds_ndim(terms[0]) == 3)
        terms[0] = ds_reshape(terms[0], ds_shape(n, a->heads, l, s));
    if (terms[1]) terms[1] = ds_reshape(terms[1], ds_shape(n, 1, 1, s));
    bool alone = !c->attn_mask && !c->key_padding_mask && !c->weights && !more;
    if (c->causal && !alone) terms[2] = mask_causal(q, l, s); /* else ds_attention has it */
    *sum = NULL;
    bool asked[3] = {c->attn_mask, c->key_padding_mask, c->causal && !alone};
    for (int i = 0; i < 3; i++) {
        ds_tensor *term = asked[i] && terms[i] ? mask_as_term(q, terms[i], more) : NULL;
        if (asked[i] && !term) return false;
        if (term) *sum = *sum ? ds_add(*sum, term) : term;
        if (term && !*sum) return false;
    }
    return true;
}

/* ---- forward ------------------------------------------------------------------------------------------ */

/* dims: 3, or 2 for one sample without a batch. The last dimension of keys and
 * values is kdim and vdim where those differ from E. */
static bool attention_check(const MultiheadAttention *a, ds_tensor **x, int dims)
{
    static const char *const names[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        int64_t width = a->weight || i == 0 ? a->embed : ds_size(a->weights[i], 1);
        if (ds_ndim(x[i]) != dims || ds_size(x[i], -1) != width)
            return dsi_refuse("multihead_attention: %s is %s: expected %s%lld]", names[i],
                              dsi_shape_text(ds_shape_of(x[i])),
                              dims == 2        ? "[time, "
                              : a->batch_first ? "[batch, time, "
                                               : "[time, batch, ",
                              (long long)width);
    }
    return true;
}

/* q [N,H,L,D], k, v [N,H,S,D] -> [N,H,L,D]; the weights, if they are asked
 * for, as PyTorch computes them then: the softmax in full. softmax(q k^T /
 * sqrt(D) + mask) v. The weights that the caller receives are those after
 * dropout, as torch's are; they are kept, because the forward's scope ends
 * before ds_call_attention returns. By default they are averaged over the
 * heads: [N,L,S]. */
static ds_tensor *attention_weighted(MultiheadAttention *a, ds_tensor **qkv, ds_tensor *mask)
{
    bool training = ds_module_training(ds_module_of(a));
    if (!a->call.weights)
        return ds_attention_with(qkv[0], qkv[1], qkv[2],
                                 (ds_attention_opts){.mask = mask,
                                                     .causal = a->call.causal && !mask,
                                                     .dropout_p = training ? a->dropout : 0});
    ds_tensor *q = ds_scale(qkv[0], 1 / sqrt((double)ds_size(qkv[0], -1)));
    ds_tensor *scores = ds_matmul(q, ds_transpose(qkv[1], -2, -1));
    if (mask) scores = ds_add(scores, mask);
    ds_tensor *w = ds_dropout(ds_softmax(scores, -1), a->dropout, training);
    bool each = a->call.weights_per_head;
    *a->call.weights = ds_keep(each ? w : ds_mean_with(w, (ds_reduce_opts){.dims = ds_shape(1)}));
    return ds_matmul(w, qkv[2]);
}

/* x: query, key, value; one is all of them, two are query and the others. For
 * one sample the batch of size 1 is added after the projections and removed
 * before out_proj. */
static ds_tensor *attention_forward(void *self, ds_tensor **in, int n)
{
    MultiheadAttention *a = self;
    if (n < 1 || n > 3)
        return dsi_refuse("multihead_attention: %d tensors: expected query, key, value", n);
    ds_tensor *x[3] = {in[0], in[n > 1], in[n - 1]}, *qkv[3];
    bool one = ds_ndim(x[0]) == 2;
    if (!attention_check(a, x, one ? 2 : 3) || !attention_project_all(a, x, qkv)) return NULL;
    for (int i = 0; i < 3 && one; i++) qkv[i] = ds_unsqueeze(qkv[i], a->batch_first ? 0 : 1);
    if (a->bias_k) {
        qkv[1] = attention_append(a, qkv[1], a->bias_k);
        qkv[2] = attention_append(a, qkv[2], a->bias_v);
    }
    for (int i = 1; i < 3 && a->zero_attn && qkv[i]; i++) {
        ds_tensor *zero = ds_zeros(ds_dtype_of(qkv[i]), ds_shape(1, 1, a->embed));
        qkv[i] = attention_append(a, qkv[i],
                                  ds_to(zero, ds_device_of(qkv[i]), ds_dtype_of(qkv[i])));
    }
    for (int i = 0; i < 3; i++)
        if (!qkv[i] || !(qkv[i] = attention_split_heads(a, qkv[i]))) return NULL;
    ds_tensor *mask;
    if (!attention_masks(a, qkv[0], qkv[1], !!a->bias_k + a->zero_attn, &mask)) return NULL;
    ds_tensor *y = attention_merge_heads(a, attention_weighted(a, qkv, mask));
    return ds_call(a->out, one ? ds_squeeze(y, a->batch_first ? 0 : 1) : y);
}

/* The options travel in the module's struct, since a forward takes tensors
 * only; hooks of the module run as in every call. So one module cannot be
 * called by two threads at a time. key NULL is query, value NULL is key. */
ds_tensor *ds_call_attention_with(ds_module *m, ds_tensor *query, ds_tensor *key, ds_tensor *value,
                                  ds_attention_call call)
{
    if (!dsi_live_all("call_attention", m, query)) return dsi_null_operand("call_attention");
    if (ds_module_type_of(m)->forward_n != attention_forward)
        return dsi_refuse("call_attention: %s is a %s: expected a MultiheadAttention",
                          ds_module_name(m), ds_module_type_of(m)->name);
    MultiheadAttention *a = ds_self(m);
    key = key ? key : query;
    if (call.weights) *call.weights = NULL;
    a->call = call;
    ds_tensor *y = ds_call(m, query, key, value ? value : key);
    a->call = (ds_attention_call){0};
    if (!call.weights || !*call.weights) return y;
    ds_tensor *w = dsi_scope_add(*call.weights); /* kept by the forward, beyond its scope */
    *call.weights = ds_ndim(query) == 2 ? ds_squeeze(w, 0) : w;
    return y;
}

/* ---- the module --------------------------------------------------------------------------------------- */

/* Its values are drawn later, by attention_init, in torch's order. */
static ds_tensor *attention_weight(ds_module *m, const char *name, int64_t rows, int64_t columns)
{
    return ds_module_param(m, name, ds_empty(DS_F32, ds_shape(rows, columns)));
}

/* In torch's order of the state dict; the order of random numbers is out_proj,
 * projections, bias_k, bias_v. out_proj is made last and so drawn first. */
static void attention_init(MultiheadAttention *a, ds_module *m, int64_t kdim, int64_t vdim,
                           ds_nn_multihead_attention_opts o)
{
    int64_t e = a->embed;
    ds_dims last = ds_shape(1, 1, e);
    if (kdim == e && vdim == e) {
        a->weight = attention_weight(m, "in_proj_weight", 3 * e, e);
    } else {
        a->weights[0] = attention_weight(m, "q_proj_weight", e, e);
        a->weights[1] = attention_weight(m, "k_proj_weight", e, kdim);
        a->weights[2] = attention_weight(m, "v_proj_weight", e, vdim);
    }
    if (!o.no_bias) a->bias = ds_module_param(m, "in_proj_bias", ds_zeros(DS_F32, ds_shape(3 * e)));
    if (o.add_bias_kv) {
        a->bias_k = ds_module_param(m, "bias_k", ds_empty(DS_F32, last));
        a->bias_v = ds_module_param(m, "bias_v", ds_empty(DS_F32, last));
    }
    a->out = ds_nn_linear(m, "out_proj", e, e, .no_bias = o.no_bias);
    if (!o.no_bias) ds_init_constant(ds_module_param_at(a->out, 1, NULL), 0);
    if (a->weight) ds_init_xavier_uniform(a->weight, 1);
    for (int i = 0; i < 3; i++)
        if (a->weights[i]) ds_init_xavier_uniform(a->weights[i], 1);
    if (a->bias_k) ds_init_xavier_normal(a->bias_k, 1), ds_init_xavier_normal(a->bias_v, 1);
}

ds_module *ds_nn_multihead_attention_with(ds_module *parent, const char *name, int64_t embed_dim,
                                          ds_nn_multihead_attention_opts o)
{
    static const ds_module_type type = {"MultiheadAttention", sizeof(MultiheadAttention),
                                        .forward_n = attention_forward};
    ds_module *m = ds_module_new(parent, name, &type);
    MultiheadAttention *a = ds_self(m);
    if (embed_dim < 1 || o.num_heads < 1 || embed_dim % o.num_heads || o.kdim < 0 || o.vdim < 0 ||
        !(o.dropout >= 0 && o.dropout <= 1)) {
        ds_fail(DS_EINVAL,
                "MultiheadAttention %s: embed_dim = %lld, num_heads = %lld, dropout = %g: expected "
                "heads that divide embed_dim, and dropout from 0 to 1",
                ds_module_name(m), (long long)embed_dim, (long long)o.num_heads, o.dropout);
        return m;
    }
    a->embed = embed_dim, a->heads = o.num_heads, a->dropout = o.dropout;
    a->zero_attn = o.add_zero_attn, a->batch_first = o.batch_first;
    attention_init(a, m, o.kdim ? o.kdim : embed_dim, o.vdim ? o.vdim : embed_dim, o);
    return m;
}
