/* bench/moe.c: an MoE layer, forward and backward; and the experts alone, each
 * on its share of the tokens, as a lower bound. bench/peer_moe.py measures
 * DeepSpeed's layer.
 *
 *   bench_moe [--tokens 2048] [--hidden 512] [--experts 8] [--k 1] [--expert linear|mlp] [--ranks 1]
 *
 * One line of JSON: medians of thread time, so that other load on the core does
 * not count, and the bytes that a rank has sent in one forward and backward, by
 * the formula of comm.h (0 on one rank).
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "comm/comm.h"
#include "median.h"

#include <deepspeed.h>

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 21
#define WARM  3

typedef struct Options {
    int64_t tokens, hidden;
    int experts, k, ranks;
    bool mlp;
} Options;

static const struct argp_option options[] = {
    {"tokens", 't', "N", 0, "rows of the input, on each rank (2048)", 0},
    {"hidden", 'h', "N", 0, "their width (512)", 0},
    {"experts", 'e', "N", 0, "experts (8)", 0},
    {"k", 'k', "N", 0, "experts of a token (1)", 0},
    {"expert", 'x', "KIND", 0, "linear: h-h; mlp: h-4h-h (linear)", 0},
    {"ranks", 'r', "N", 0, "rank threads that share the experts (1)", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    if (key == 'x') {
        o->mlp = !strcmp(arg, "mlp");
        return 0;
    }
    if (!key || !strchr("thekr", key)) return ARGP_ERR_UNKNOWN;
    int n = atoi(arg);
    if (n < 1) argp_error(state, "\"%s\": expected a number of 1 or more", arg);
    if (key == 't') o->tokens = n;
    if (key == 'h') o->hidden = n;
    if (key == 'e') o->experts = n;
    if (key == 'k') o->k = n;
    if (key == 'r') o->ranks = n;
    return 0;
}

static ds_module *expert(ds_module *parent, const char *name, void *arg)
{
    const Options *o = arg;
    if (!o->mlp) return ds_nn_linear(parent, name, o->hidden, o->hidden);
    ds_module *m = ds_nn_sequential(parent, name);
    ds_nn_linear(m, "0", o->hidden, 4 * o->hidden);
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", 4 * o->hidden, o->hidden);
    return m;
}

/* Seconds of a pass of the layer, or of its experts on equal shares of k rows a
 * token. */
static double one_pass(const Options *o, ds_module *moe, ds_module *alone, ds_tensor *x)
{
    ds_scope *scope = ds_scope_open();
    double begin = dsi_thread_time();
    if (moe) {
        ds_tensor *y = ds_call(moe, x), *aux = ds_moe_aux_loss(moe);
        ds_backward(ds_add(ds_sum(y), ds_scale(aux, 0.01)));
    }
    int64_t share = o->tokens * o->k / o->experts;
    for (int e = 0; alone && e < o->experts; e++) {
        int64_t from = e * share % (o->tokens - share + 1);
        ds_tensor *part = ds_require_grad(ds_detach(ds_slice(x, 0, from, from + share)), true);
        ds_tensor *y = ds_call(ds_module_child(alone, e), part);
        ds_backward_from(y, ds_like(y, 1));
    }
    double seconds = dsi_thread_time() - begin;
    ds_module_zero_grad(moe ? moe : alone);
    ds_set_grad_of(x, NULL);
    ds_scope_close(scope);
    return seconds;
}

static double median_pass(const Options *o, ds_module *moe, ds_module *alone, ds_tensor *x)
{
    double t[STEPS];
    for (int i = 0; i < WARM; i++) one_pass(o, moe, alone, x);
    for (int i = 0; i < STEPS; i++) t[i] = one_pass(o, moe, alone, x);
    return median(t, STEPS);
}

static ds_status measure(void *arg)
{
    const Options *o = arg;
    ds_scope *scope = ds_scope_open();
    ds_seed(1);
    ds_module *moe = ds_nn_moe(NULL, "moe", o->hidden, expert, .arg = arg,
                               .num_experts = o->experts, .ep_size = o->ranks, .k = o->k);
    ds_module *alone = ds_nn_module_list(NULL, "experts");
    for (int e = 0; e < o->experts; e++) {
        char name[16];
        snprintf(name, sizeof name, "%d", e);
        expert(alone, name, arg);
    }
    ds_tensor *x = ds_require_grad(ds_randn(DS_F32, ds_shape(o->tokens, o->hidden)), true);
    double least = median_pass(o, NULL, alone, x), layer = median_pass(o, moe, NULL, x);
    ds_tensor *wanted = ds_moe_exp_counts(moe), *taken = ds_moe_taken_counts(moe);
    if (!ds_error() && ds_comm_rank(ds_world()) == 0)
        printf("{\"bench\": \"moe\", \"kind\": \"ours\", \"expert\": \"%s\", \"tokens\": %lld, "
               "\"hidden\": %lld, \"experts\": %d, \"k\": %d, \"ranks\": %d, \"ms\": %.3f, "
               "\"experts_alone_ms\": %.3f, \"taken\": %.0f, \"of\": %.0f}\n",
               o->mlp ? "mlp" : "linear", (long long)o->tokens, (long long)o->hidden, o->experts,
               o->k, o->ranks, 1e3 * layer, 1e3 * least, ds_item(ds_sum(ds_cast(taken, DS_F64))),
               ds_item(ds_sum(ds_cast(wanted, DS_F64))));
    ds_module_free(moe);
    ds_module_free(alone);
    ds_scope_close(scope);
    return ds_error_status();
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse, NULL, "A layer of experts, timed.", NULL, NULL, NULL};
    Options o = {.tokens = 2048, .hidden = 512, .experts = 8, .k = 1, .ranks = 1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 2;
    ds_status status = ds_run_ranks(o.ranks, measure, &o);
    if (status != DS_OK) fprintf(stderr, "bench_moe: %s\n", ds_error());
    return status != DS_OK;
}
