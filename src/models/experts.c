/* models/experts.c: the layers of Mixtral, Qwen2-MoE and Qwen3-MoE that have
 * experts in place of one MLP (Jiang et al., arXiv:2401.04088).
 *
 *     p = softmax(gate(x)) of each token, in float32; its k largest, divided by
 *     their sum if the configuration says so (norm_topk_prob; always in Mixtral)
 *     y = sum over these experts of p expert(x)
 *     Qwen2-MoE: y += sigmoid(shared_expert_gate(x)) shared_expert(x)
 *
 * No token is dropped. The device sorts the tokens by expert, and computes the
 * products of all experts together (ops/groups.h): the host does not know who
 * has which. Only where an expert is more than its matrices (adapters, 8 bits,
 * partitions, hooks) the host reads it, and calls each expert with its tokens.
 *
 * Invariants: with gradients all experts count, also without tokens: each
 * parameter has a gradient in each step, as one optimizer step for all and
 * ZeRO's buckets need. So they do where parameters are partitioned: all ranks
 * gather them, whichever experts the tokens of a rank chose. The sum over a
 * token's experts is in the order of its choices, so that it does not depend on
 * other tokens.
 *
 * The load-balancing loss (Fedus et al., arXiv:2101.03961, (4) to (6)), where
 * the configuration has output_router_logits, is over all layers together: E
 * sum over experts e of f[e] p[e], f the share of tokens that chose e, p the
 * mean of its probability. Between dsi_lm_balance_begin and _end each layer
 * adds its sums once, also as an activation checkpoint that backward runs
 * again.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "ops/groups.h"
#include "ops/op.h"
#include "ops/route.h"

#include "lm.h"

#include <stdio.h>

typedef struct Experts {
    dsi_lm *lm;
    ds_module *gate, **expert;                     /* [config.experts] */
    ds_module *shared_expert, *shared_expert_gate; /* NULL except in Qwen2-MoE */
} Experts;

static void experts_free(void *self) { dsi_free(((Experts *)self)->expert); }

/* ---- rows by expert ---- */

/* rows [R,hidden] through their experts, one call each with its slice, where the
 * host can read which these are. */
static ds_tensor *experts_each(const Experts *m, ds_tensor *rows, ds_tensor *begin)
{
    int64_t experts = m->lm->config.experts;
    ds_tensor *host = ds_to(begin, (ds_device){0}, DS_I64), *all = NULL;
    const int64_t *b = host ? ds_data(host) : NULL;
    if (!rows || !b) return NULL;
    ds_tensor **y = dsi_alloc((size_t)experts * sizeof *y);
    const ds_tensor *w = ds_module_param_at(m->expert[0], 0, NULL);
    bool each = ds_grad_enabled() || dsi_has_materialize_hook(w);
    int n = 0;
    for (int64_t e = 0; e < experts; e++) {
        if (!each && b[e] == b[e + 1]) continue;
        y[n] = ds_call(m->expert[e], ds_slice(rows, 0, b[e], b[e + 1]));
        if (!y[n++]) break;
    }
    if (n && y[n - 1]) all = ds_cat(y, n, 0);
    dsi_free(y);
    return all;
}

/* x [N,hidden] -> [N,hidden]: the sum of each token's experts, by weights w [N,k]. */
static ds_tensor *experts_sum(const Experts *m, ds_tensor *x, const dsi_groups *g, ds_tensor *w)
{
    ds_tensor *rows = dsi_dispatch_to(x, g->row, ds_numel(g->row)), *y = NULL;
    if (!dsi_lm_mlps_grouped(m->expert, m->lm->config.experts, rows, g->begin, &y))
        y = experts_each(m, rows, g->begin);
    return dsi_combine_from(y, g->row, w);
}

/* ---- the load-balancing loss ---- */

void dsi_lm_balance_begin(dsi_lm *lm)
{
    const dsi_lm_config *c = &lm->config;
    if (c->balance == 0) return;
    size_t bytes = (size_t)c->layers * sizeof(ds_tensor *);
    lm->balance = (dsi_lm_balance){.chosen = dsi_alloc(bytes), .probs = dsi_alloc(bytes)};
}

/* p: probabilities [N,E] of a layer. Their sum is an output of the checkpoint
 * that the layer may be in, which names as many in each of its runs. */
static void balance_add(dsi_lm *lm, ds_tensor *p, ds_tensor *begin)
{
    dsi_lm_balance *b = &lm->balance;
    if (lm->config.balance == 0) return;
    ds_tensor *sum = ds_checkpoint_output(ds_sum_with(p, (ds_reduce_opts){.dims = {1, {0}}}));
    if (!b->chosen || ds_recomputing()) return;
    int64_t experts = lm->config.experts;
    ds_tensor *chosen = ds_sub(ds_slice(begin, 0, 1, experts + 1), ds_slice(begin, 0, 0, experts));
    b->chosen[b->layers] = ds_keep(chosen);
    b->probs[b->layers++] = ds_keep(sum);
    b->rows += ds_size(p, 0);
}

ds_tensor *dsi_lm_balance_end(dsi_lm *lm)
{
    dsi_lm_balance *b = &lm->balance;
    ds_tensor *p = b->layers ? b->probs[0] : NULL, *f = p ? b->chosen[0] : NULL, *loss = NULL;
    for (int i = 1; i < b->layers; i++) p = ds_add(p, b->probs[i]), f = ds_add(f, b->chosen[i]);
    if (p && f) {
        double rows = (double)b->rows, scale = (double)lm->config.experts / (rows * rows);
        loss = ds_scale(ds_sum(ds_mul(ds_cast(f, DS_F32), p)), lm->config.balance * scale);
    }
    for (int i = 0; i < b->layers; i++) ds_drop(b->probs[i]), ds_drop(b->chosen[i]);
    dsi_free(b->chosen), dsi_free(b->probs);
    *b = (dsi_lm_balance){0};
    return loss;
}

/* ---- forward ---- */

/* x times random numbers of 1 - jitter to 1 + jitter. */
static ds_tensor *jittered(ds_tensor *x, double jitter)
{
    return ds_mul(x, dsi_uniform_like(x, ds_dtype_of(x), 1 - jitter, 1 + jitter));
}

/* x [N,hidden] -> [N,k], and the experts to *chosen, all probabilities [N,E] to
 * *probs. */
static ds_tensor *weights_of(const Experts *m, ds_tensor *x, ds_tensor **chosen, ds_tensor **probs)
{
    const dsi_lm_config *c = &m->lm->config;
    ds_tensor *p = *probs = ds_softmax(dsi_upcast(ds_call(m->gate, x)), -1);
    ds_tensor *w = ds_topk(p, c->experts_per_token, -1, false, chosen);
    if (!w || !c->norm_topk) return w;
    return ds_div(w, ds_sum_with(w, (ds_reduce_opts){.dims = {1, {1}}, .keepdim = true}));
}

/* x and the result: [B,L,hidden]. */
static ds_tensor *experts_forward(void *self, ds_tensor *x)
{
    const Experts *m = self;
    const dsi_lm_config *c = &m->lm->config;
    if (!x) return NULL;
    if (c->jitter > 0 && ds_module_training(ds_module_of(self))) x = jittered(x, c->jitter);
    ds_tensor *flat = ds_reshape(x, ds_shape(-1, c->hidden)), *chosen = NULL, *probs;
    ds_tensor *w = weights_of(m, flat, &chosen, &probs), *y = NULL;
    dsi_groups groups;
    if (w && dsi_group_rows(chosen, c->experts, &groups)) {
        balance_add(m->lm, probs, groups.begin);
        y = experts_sum(m, flat, &groups, w);
    }
    if (m->shared_expert) {
        ds_tensor *share = ds_sigmoid(ds_call(m->shared_expert_gate, flat));
        y = ds_add(y, ds_mul(share, ds_call(m->shared_expert, flat)));
    }
    return y ? ds_reshape(ds_cast(y, ds_dtype_of(x)), ds_shape_of(x)) : NULL;
}

/* ---- life ---- */

static const ds_module_type experts_type = {"SparseMoeBlock", sizeof(Experts),
                                            .forward = experts_forward, .free = experts_free};

ds_module *dsi_lm_experts_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *parent)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const mixtral[] = {"w1", "w3", "w2"};
    const dsi_lm_config *c = &lm->config;
    bool is_mixtral = c->family == DSI_MIXTRAL;
    size_t in_block, in_list;
    ds_module *m = dsi_lm_enter(b, parent, is_mixtral ? "block_sparse_moe" : "mlp", &experts_type,
                                &in_block);
    Experts *experts = ds_self(m);
    experts->lm = lm;
    experts->expert = dsi_alloc((size_t)c->experts * sizeof *experts->expert);
    experts->gate = dsi_lm_projection_new(b, m, "gate", c->hidden, c->experts, false);
    static const ds_module_type list_type = {.name = "ModuleList"};
    ds_module *list = dsi_lm_enter(b, m, "experts", &list_type, &in_list);
    for (int64_t e = 0; e < c->experts && !ds_error(); e++) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)e);
        experts->expert[e] = dsi_lm_mlp_new(lm, b, list, number, c->expert_inner,
                                            is_mixtral ? mixtral : names);
    }
    dsi_lm_leave(b, in_list);
    if (c->shared_inner) {
        experts->shared_expert = dsi_lm_mlp_new(lm, b, m, "shared_expert", c->shared_inner, names);
        experts->shared_expert_gate = dsi_lm_projection_new(b, m, "shared_expert_gate", c->hidden,
                                                            1, false);
    }
    dsi_lm_leave(b, in_block);
    return m;
}
