/* nn/gate.c: Note [Gate] of gate.h: probabilities in ops, so that they have a
 * gradient; choices, which have none, by the device (ops/route.h) or on the
 * host.
 *
 * Invariants: both make the same choices, except random ones. On the host
 * arrays of a Plan are addresses in a dsi_routes, so that choices are plain
 * loops. Token s's choice j is element s k + j. Choices read float32 copies of
 * logits and probabilities; the gradient takes its way through the originals.
 * Each route function leaves chosen, first and taken complete, and place -1 for
 * every dropped choice.
 * SPDX-License-Identifier: MIT */
#include "gate.h"

#include "base/error.h"
#include "base/log.h"
#include "ops/route.h"
#include "tensor/tensor.h"

#include <deepspeed/autograd.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JITTER 0.01 /* half the width of its interval */

/* ---- options ----------------------------------------------------------------------------------------- */

static dsi_route_fn gate_route;

/* 0 is the default of most; of min_capacity too, so that none is -1. */
static void gate_set_defaults(ds_moe_opts *o)
{
    if (!o->num_experts) o->num_experts = 1;
    if (!o->ep_size) o->ep_size = 1;
    if (!o->k) o->k = 1;
    if (o->capacity_factor == 0) o->capacity_factor = 1;
    if (o->eval_capacity_factor == 0) o->eval_capacity_factor = 1;
    o->min_capacity = o->min_capacity == 0 ? 4 : o->min_capacity < 0 ? 0 : o->min_capacity;
}

/* DeepSpeed's names of policies, in this case of letters only. */
static bool gate_set_noise(dsi_gate *g, const char *name)
{
    const char *policy = g->o.noisy_gate_policy ? g->o.noisy_gate_policy : "None";
    g->jitter = !strcmp(policy, "Jitter");
    g->rsample = !strcmp(policy, "RSample");
    if (g->jitter || g->rsample || !strcmp(policy, "None")) return true;
    return dsi_invalid("MoE %s: noisy_gate_policy is \"%s\": expected None, Jitter or RSample",
                       name, policy);
}

/* Checks are in the order in which one option gives the limit of the next. */
bool dsi_gate_open(dsi_gate *g, const char *name, const ds_moe_opts *opts)
{
    g->o = *opts;
    gate_set_defaults(&g->o);
    const ds_moe_opts *o = &g->o;
    if (o->num_experts < 1)
        return dsi_invalid("MoE %s: num_experts is %d: expected at least 1", name, o->num_experts);
    if (o->ep_size < 1)
        return dsi_invalid("MoE %s: ep_size is %d: expected at least 1", name, o->ep_size);
    if (o->num_experts % o->ep_size)
        return dsi_invalid("MoE %s: num_experts is %d: expected a multiple of ep_size, which is %d",
                           name, o->num_experts, o->ep_size);
    if (o->k < 1 || o->k > o->num_experts)
        return dsi_invalid("MoE %s: k is %d: expected 1 to num_experts, which is %d", name, o->k,
                           o->num_experts);
    if (!(o->capacity_factor > 0) || !(o->eval_capacity_factor > 0)) {
        return dsi_invalid(
            "MoE %s: capacity_factor is %g, eval_capacity_factor %g: expected more than 0", name,
            o->capacity_factor, o->eval_capacity_factor);
    }
    g->route = gate_route;
    return gate_set_noise(g, name);
}

/* ---- probabilities ----------------------------------------------------------------------------------- */

typedef struct Weights {
    ds_tensor *weight; /* [experts, hidden] */
} Weights;

/* 16-bit x in float32, others as they are; with a gradient. */
static ds_tensor *gate_upcast(ds_tensor *x)
{
    bool half = ds_dtype_of(x) == DS_F16 || ds_dtype_of(x) == DS_BF16;
    return half ? ds_cast(x, DS_F32) : x;
}

static ds_tensor *wg_forward(void *self, ds_tensor *x)
{
    return ds_linear(x, gate_upcast(((Weights *)self)->weight), NULL);
}

static void wg_describe(void *self, FILE *to)
{
    const ds_tensor *w = ((Weights *)self)->weight;
    fprintf(to, "in_features=%lld, out_features=%lld, bias=False", (long long)ds_size(w, 1),
            (long long)ds_size(w, 0));
}

/* wg [E, hidden] without bias, in float32 for any dtype of the model:
 * probabilities decide where tokens go, and 16 bits would make many of them
 * equal. Drawn as torch.nn.Linear is. */
void dsi_gate_make_wg(dsi_gate *g, ds_module *parent, int64_t hidden)
{
    static const ds_module_type type = {"Linear", sizeof(Weights), .forward = wg_forward,
                                        .describe = wg_describe};
    g->wg = ds_module_new(parent, "wg", &type);
    Weights *w = ds_self(g->wg);
    w->weight = ds_module_param(g->wg, "weight",
                                ds_empty(DS_F32, ds_shape(g->o.num_experts, hidden)));
    ds_init_kaiming_uniform(w->weight, sqrt(5), DS_FAN_IN, DS_GAIN_LEAKY_RELU);
}

/* logits + -log(-log(u)), float32 [S,E], whose largest is a sample of their
 * softmax (Gumbel-max trick). Both ends of u are excluded, where a logarithm
 * would be infinite. */
static ds_tensor *gumbel_noise(ds_tensor *logits, bool there)
{
    if (there) return ds_add(logits, dsi_noise_like(logits, true, FLT_EPSILON, 1 - FLT_EPSILON));
    ds_tensor *u = ds_init_uniform(ds_empty(DS_F32, ds_shape_of(logits)), FLT_EPSILON,
                                   1 - FLT_EPSILON);
    return ds_add(logits, ds_neg(ds_log(ds_neg(ds_log(u)))));
}

/* x times U(1 - JITTER, 1 + JITTER), with a gradient. */
static ds_tensor *gate_jitter(ds_tensor *x)
{
    ds_tensor *u = dsi_uniform_like(x, DS_F32, 1 - JITTER, 1 + JITTER);
    return ds_mul(x, ds_cast(u, ds_dtype_of(x)));
}

/* ---- choices: shared --------------------------------------------------------------------------------- */

/* The arrays behind a dsi_routes, and its sizes. */
typedef struct Plan {
    int64_t tokens;
    int experts, k;
    int64_t *expert, *place, *chosen, *first, *taken;
} Plan;

/* Borrowed addresses of r's arrays; valid while r is. */
static bool plan_open(const dsi_gate *g, dsi_routes *r, Plan *p)
{
    *p = (Plan){.tokens = ds_size(r->expert, 0),
                .experts = g->o.num_experts,
                .k = g->o.k,
                .expert = ds_data_mut(r->expert),
                .place = ds_data_mut(r->place),
                .chosen = ds_data_mut(r->chosen),
                .first = ds_data_mut(r->first),
                .taken = ds_data_mut(r->taken)};
    return p->expert && p->place && p->chosen && p->first && p->taken;
}

/* As float32 computes it in DeepSpeed. A double would sometimes round the
 * product to the other side of a whole number, and drop other tokens than
 * DeepSpeed. */
static int64_t gate_capacity_of(const dsi_gate *g, int64_t tokens)
{
    double factor = g->training ? g->o.capacity_factor : g->o.eval_capacity_factor;
    float share = (float)((double)tokens / g->o.num_experts);
    float places = ceilf(share * (float)(factor * g->o.k));
    int64_t all = tokens * g->o.k; /* a factor may be infinite */
    int64_t room = places < 0x1p62F ? (int64_t)places : all;
    return room > g->o.min_capacity ? room : g->o.min_capacity;
}

/* The same, or without dropping what is needed; then chosen must be complete. */
static int64_t gate_capacity(const dsi_gate *g, const Plan *p)
{
    int64_t most = 0;
    if (!g->o.no_drop_tokens) return gate_capacity_of(g, p->tokens);
    for (int e = 0; e < p->experts; e++)
        if (p->chosen[e] > most) most = p->chosen[e];
    return most;
}

/* Too few tokens for min_capacity are refused for k = 1, as in DeepSpeed. */
static bool gate_want_tokens(const dsi_gate *g, int64_t tokens)
{
    if (g->o.k > 1 || tokens >= g->o.min_capacity) return true;
    return dsi_invalid(
        "MoE: %lld tokens, but min_capacity is %lld: expected at least as many tokens: a "
        "larger batch, or a lower min_capacity",
        (long long)tokens, (long long)g->o.min_capacity);
}

/* The largest of row[0..n-1] without `except`; the first of equal ones. except
 * -1: none is left out. */
static int row_argmax(const float *row, int n, int except)
{
    int at = except == 0 ? 1 : 0;
    for (int e = at + 1; e < n; e++)
        if (e != except && row[e] > row[at]) at = e;
    return at;
}

/* ---- k = 1 ------------------------------------------------------------------------------------------- */

/* Of the tokens that chose an expert `room` are taken: the first ones, or
 * random ones (Knuth, The Art of Computer Programming, 3.4.2, algorithm S:
 * each with the probability wanted / left). Tokens are visited once, in their
 * order, so places of an expert rise with the token. A comparison of two
 * counts ends the draw as soon as all that remain are wanted. */
static bool gate_take_tokens(Plan *p, int64_t room, bool random)
{
    ds_tensor *counts = ds_empty(DS_I64, ds_shape(p->experts));
    ds_tensor *draws = random ? ds_rand(DS_F32, ds_shape(p->tokens)) : NULL;
    int64_t *left = counts ? ds_data_mut(counts) : NULL;
    const float *u = draws ? ds_data(draws) : NULL;
    if (!left || (random && !u)) return false;
    memcpy(left, p->chosen, (size_t)p->experts * sizeof *left);
    for (int64_t s = 0; s < p->tokens; s++) {
        int64_t e = p->expert[s], wanted = room - p->taken[e];
        if (p->place[s] < 0) continue;
        bool lucky = !random || left[e] <= wanted || u[s] * (float)left[e] < (float)wanted;
        p->place[s] = wanted > 0 && lucky ? p->taken[e]++ : -1;
        left[e]--;
    }
    return true;
}

/* Switch: the best expert of each token, chosen with noise if RSample is on. */
static bool gate_route_1(const dsi_gate *g, ds_tensor *logits, ds_tensor *probs, ds_tensor *flags,
                         dsi_routes *r)
{
    Plan p;
    ds_tensor *by = g->rsample && g->training ? gumbel_noise(logits, false) : probs;
    const float *score = ds_data(by);
    const int64_t *used = flags ? ds_data(flags) : NULL;
    if (!plan_open(g, r, &p) || !score || (flags && !used)) return false;
    for (int64_t s = 0; s < p.tokens; s++) {
        int e = row_argmax(score + s * p.experts, p.experts, -1);
        bool goes = !used || used[s];
        p.expert[s] = e;
        p.place[s] = goes ? 0 : -1;
        p.chosen[e] += goes;
        p.first[e] += goes;
    }
    r->capacity = gate_capacity(g, &p);
    bool full = false;
    for (int e = 0; e < p.experts; e++) full |= p.chosen[e] > r->capacity;
    return gate_take_tokens(&p, r->capacity, full && g->training && !g->o.no_rts);
}

/* ---- k = 2 ------------------------------------------------------------------------------------------- */

/* GShard: the best expert and one of the others; places are given to all first
 * choices before any second one. The second expert is sampled by Gumbel noise
 * on all logits except the first expert's; used_token is ignored, as in
 * DeepSpeed. */
static bool gate_route_2(const dsi_gate *g, ds_tensor *logits, ds_tensor *probs, dsi_routes *r)
{
    Plan p;
    bool sample = g->training && !g->o.no_top2_2nd_expert_sampling;
    ds_tensor *rest = sample ? gumbel_noise(logits, false) : logits;
    const float *score = ds_data(probs), *second = rest ? ds_data(rest) : NULL;
    if (!plan_open(g, r, &p) || !score || !second) return false;
    for (int64_t s = 0; s < p.tokens; s++) {
        int a = row_argmax(score + s * p.experts, p.experts, -1);
        int b = row_argmax(second + s * p.experts, p.experts, a);
        p.expert[2 * s] = a, p.expert[2 * s + 1] = b;
        p.first[a]++;
        p.chosen[a]++, p.chosen[b]++;
    }
    r->capacity = gate_capacity(g, &p);
    for (int j = 0; j < 2; j++) /* every first choice before all second ones */
        for (int64_t s = 0; s < p.tokens; s++) {
            int64_t e = p.expert[2 * s + j];
            p.place[2 * s + j] = p.taken[e] < r->capacity ? p.taken[e]++ : -1;
        }
    return true;
}

/* ---- k > 2 ------------------------------------------------------------------------------------------- */

typedef struct Bid {
    float p;
    int64_t route; /* token k + choice */
} Bid;

/* By falling probability; of equal ones the earlier route, so the order does
 * not depend on qsort. */
static int compare_bids(const void *x, const void *y)
{
    const Bid *a = x, *b = y;
    if (a->p != b->p) return a->p < b->p ? 1 : -1;
    return a->route < b->route ? -1 : a->route > b->route;
}

/* Of the routes to expert e the `room` most probable ones stay; the others get
 * no place. */
static void gate_drop_least_probable(Plan *p, const float *probs, int e, int64_t room, Bid *bid)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->tokens * p->k; i++)
        if (p->expert[i] == e) bid[n++] = (Bid){probs[i / p->k * p->experts + e], i};
    for (int64_t i = 0; i < n; i++)
        if (isnan(bid[i].p)) bid[i].p = -1; /* of a step that overflows: NaN has no order */
    if (n) qsort(bid, (size_t)n, sizeof *bid, compare_bids);
    for (int64_t i = room; i < n; i++) p->place[bid[i].route] = -1;
}

/* The k best experts one after the other; each expert then keeps its most
 * probable tokens, in the tokens' order. */
static bool gate_route_k(const dsi_gate *g, ds_tensor *probs, dsi_routes *r)
{
    Plan p;
    const float *score = ds_data(probs);
    if (!plan_open(g, r, &p) || !score) return false;
    for (int64_t s = 0; s < p.tokens; s++)
        for (int j = 0; j < p.k; j++) {
            const float *row = score + s * p.experts;
            int64_t *mine = p.expert + s * p.k;
            int at = -1;
            for (int e = 0; e < p.experts; e++) {
                bool taken = false;
                for (int i = 0; i < j; i++) taken |= mine[i] == e;
                if (!taken && (at < 0 || row[e] > row[at])) at = e;
            }
            mine[j] = at;
            p.first[at]++;
            p.chosen[at]++;
        }
    r->capacity = gate_capacity(g, &p);
    int64_t routes = p.tokens * p.k;
    ds_tensor *room = ds_empty(DS_U8, ds_shape(routes * (int64_t)sizeof(Bid)));
    Bid *bid = room ? ds_data_mut(room) : NULL;
    if (!bid) return false;
    for (int e = 0; e < p.experts; e++)
        if (p.chosen[e] > r->capacity) gate_drop_least_probable(&p, score, e, r->capacity, bid);
    for (int64_t i = 0; i < routes; i++)
        if (p.place[i] == 0) p.place[i] = p.taken[p.expert[i]]++;
    return true;
}

/* ---- on the device -------------------------------------------------------------------------------------- */

/* The same choices, without a word to the host. Nothing is drawn if no expert
 * can be full. */
static bool gate_route_there(const dsi_gate *g, ds_tensor *logits, ds_tensor *p, ds_tensor *used,
                             dsi_routes *r)
{
    const ds_moe_opts *o = &g->o;
    int64_t tokens = ds_size(p, 0);
    dsi_routed out;
    r->capacity = o->no_drop_tokens ? tokens : gate_capacity_of(g, tokens);
    r->rows = r->capacity > tokens ? tokens : r->capacity > 0 ? r->capacity : 1;
    if (g->ranks) r->rows = dsi_agree_on_rows(g->ranks, p->device, r->rows);
    if (!r->rows) return false;
    dsi_route c = {.capacity = r->capacity, .rows = r->rows, .by_choice = o->k == 2};
    if (o->k == 1 && g->training && !o->no_rts && r->capacity < tokens) c.drop = DSI_DROP_RANDOM;
    if (o->k > 2) c.drop = DSI_DROP_LEAST;
    bool sample = g->training && (o->k == 1 ? g->rsample : !o->no_top2_2nd_expert_sampling);
    ds_tensor *by = sample && o->k <= 2 ? gumbel_noise(logits, true) : o->k == 2 ? logits : p;
    if (!by || !dsi_route_tokens(c, o->k, o->k == 1 ? by : p, o->k == 2 ? by : NULL,
                                 o->k == 1 ? used : NULL, &out))
        return false;
    r->expert = out.expert, r->place = out.place;
    if (o->no_drop_tokens) {
        if (!dsi_group_rows(r->expert, o->num_experts, &r->groups)) return false;
        r->capacity = -1;
    } else {
        r->slot = out.slot;
    }
    r->chosen = ds_select(out.counts, 0, 0);
    r->first = ds_select(out.counts, 0, 1);
    r->taken = ds_select(out.counts, 0, 2);
    return r->chosen && r->first && r->taken;
}

/* r's tensors are there if the host routes. */
static bool gate_route(const dsi_gate *g, ds_tensor *logits, ds_tensor *p, ds_tensor *used,
                       dsi_routes *r)
{
    if (!gate_want_tokens(g, ds_size(p, 0))) return false;
    if (!r->expert) return gate_route_there(g, logits, p, used, r);
    if (g->o.k == 1) return gate_route_1(g, logits, p, used, r);
    return g->o.k == 2 ? gate_route_2(g, logits, p, r) : gate_route_k(g, p, r);
}

/* ---- all of it --------------------------------------------------------------------------------------- */

/* E sum over e of mean(p_e) f_e. p [S,E] has the gradient; f, the counts, has
 * none. With k > 2 every choice counts in f, so it is divided by k. */
static ds_tensor *gate_aux_loss(const dsi_gate *g, ds_tensor *p, const dsi_routes *r)
{
    double tokens = (double)ds_size(p, 0), per = g->o.k > 2 ? g->o.k : 1;
    ds_tensor *mean = ds_mean_with(p, (ds_reduce_opts){.dims = ds_shape(0), .keepdim = false});
    ds_tensor *f = ds_cast(ds_to(r->first, ds_device_of(p), DS_I64), ds_dtype_of(p));
    return ds_scale(ds_sum(ds_mul(mean, f)), g->o.num_experts / (per * tokens));
}

/* The probabilities of the choices, of those that have a place divided by
 * their sum. The sum is at least FLT_EPSILON, so a token that was dropped by
 * all has weights 0 and not NaN. */
static ds_tensor *weigh(const dsi_gate *g, ds_tensor *p, const dsi_routes *r)
{
    ds_device there = ds_device_of(p);
    ds_tensor *w = ds_gather(p, 1, ds_to(r->expert, there, DS_I64));
    if (g->o.k == 1) return w; /* without a place a weight is not looked at */
    ds_tensor *place = ds_to(r->place, there, DS_I64);
    ds_tensor *kept = ds_lt(ds_like(place, -1), place);
    w = ds_mul(w, ds_cast(kept, ds_dtype_of(p)));
    ds_tensor *sum = ds_sum_with(w, (ds_reduce_opts){.dims = ds_shape(1), .keepdim = true});
    ds_tensor *least = ds_like(sum, FLT_EPSILON);
    return ds_div(w, ds_where(ds_lt(sum, least), least, sum));
}

static const ds_device host = {DS_CPU, 0};

static ds_tensor *int64s_new(ds_dims shape) { return dsi_fill(dsi_new_host(DS_I64, shape), 0); }

/* All zeros: no token has chosen, none has a place. */
static bool open_routes(const dsi_gate *g, int64_t tokens, dsi_routes *r)
{
    r->expert = int64s_new(ds_shape(tokens, g->o.k));
    r->place = int64s_new(ds_shape(tokens, g->o.k));
    r->chosen = int64s_new(ds_shape(g->o.num_experts));
    r->first = int64s_new(ds_shape(g->o.num_experts));
    r->taken = int64s_new(ds_shape(g->o.num_experts));
    return r->expert && r->place && r->chosen && r->first && r->taken;
}

/* True if there is a flag for each token, or none. */
static bool want_used(const ds_tensor *used, int64_t tokens)
{
    if (!used || ds_numel(used) == tokens) return true;
    return dsi_invalid("used_token has %lld elements: expected one for each of %lld tokens",
                       (long long)ds_numel(used), (long long)tokens);
}

/* Choices are made without a graph. */
static bool gate_choose(const dsi_gate *g, ds_tensor *logits, ds_tensor *p, ds_tensor *used,
                        bool there, dsi_routes *r)
{
    ds_device from = ds_device_of(p), to = there ? from : host, now = ds_current_device();
    *r = (dsi_routes){0};
    if (!there && !open_routes(g, ds_size(p, 0), r)) return false;
    if (to.kind != from.kind)
        dsi_log_once(DSI_INFO,
                     "MoE: tokens are routed on the CPU, as the host needs to know how many an "
                     "expert takes (no_drop_tokens, and experts that are not Linear and "
                     "activations, or on several ranks): probabilities are copied from %s, slots "
                     "to it",
                     ds_device_name(from));
    bool was = ds_set_grad(false);
    ds_set_device(to);
    logits = ds_to(ds_cast(logits, DS_F32), to, DS_F32);
    p = ds_to(ds_cast(p, DS_F32), to, DS_F32);
    ds_tensor *flags = used ? ds_to(ds_reshape(used, ds_shape(-1)), to, DS_I64) : NULL;
    bool done = logits && p && (flags || !used) && g->route(g, logits, p, flags, r);
    ds_set_device(now);
    ds_set_grad(was);
    return done;
}

/* Weights and loss depend on the probabilities by ops, so wg learns from both. */
bool dsi_gate_run(dsi_gate *g, ds_tensor *x, ds_tensor *used, dsi_routes *r, ds_tensor **weights,
                  ds_tensor **aux)
{
    ds_tensor *in = gate_upcast(x);
    bool there = (g->grouped || !g->o.no_drop_tokens) && dsi_can_route(x, g->o.k, g->o.num_experts);
    if (in && g->jitter && g->training) in = gate_jitter(in);
    ds_tensor *logits = ds_call(g->wg, in), *p = ds_softmax(logits, 1);
    if (!p || !want_used(used, ds_size(x, 0))) return false;
    if (!gate_choose(g, logits, p, used, there, r)) return false;
    *weights = weigh(g, p, r);
    *aux = gate_aux_loss(g, p, r);
    return *weights && *aux;
}
