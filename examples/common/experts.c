/* examples/common/experts.c: the mixture of experts of DeepSpeed's CIFAR-10
 * example.
 * SPDX-License-Identifier: MIT */
#include "experts.h"

#include "args.h"
#include "classify.h"

#include <string.h>

/* ---- options ----------------------------------------------------------------------------------------- */

enum {
    MOE = 512,
    EP_WORLD_SIZE,
    NUM_EXPERTS,
    MLP_TYPE,
    TOP_K,
    MIN_CAPACITY,
    CAPACITY_FACTOR,
    EVAL_CAPACITY_FACTOR,
    NOISY_GATE_POLICY,
    MOE_PARAM_GROUP,
    AUX_LOSS_WEIGHT
};

static const struct argp_option options[] = {
    {"moe", MOE, 0, 0, "replace the last hidden layer by MoE layers", 0},
    {"num-experts", NUM_EXPERTS, "N...", 0, "number of experts in each MoE layer (1)", 0},
    {"ep-world-size", EP_WORLD_SIZE, "N", 0,
     "number of ranks that divide the experts among them (1)", 0},
    {"top-k", TOP_K, "N", 0, "experts for each token (1)", 0},
    {"mlp-type", MLP_TYPE, "TYPE", 0,
     "standard, or residual: experts in parallel with a dense branch (standard)", 0},
    {"min-capacity", MIN_CAPACITY, "N", 0, "smallest capacity of an expert, in tokens (0)", 0},
    {"capacity-factor", CAPACITY_FACTOR, "X", 0,
     "capacity of an expert, times its equal share of the tokens (1)", 0},
    {"eval-capacity-factor", EVAL_CAPACITY_FACTOR, "X", 0, "the same in testing (no limit)", 0},
    {"noisy-gate-policy", NOISY_GATE_POLICY, "TYPE", 0, "None, RSample or Jitter (None)", 0},
    {"aux-loss-weight", AUX_LOSS_WEIGHT, "X", 0, "weight of the load-balancing loss (0.01)", 0},
    {"moe-param-group", MOE_PARAM_GROUP, 0, 0,
     "separate parameter groups for experts; they are always made", 0},
    {0}};

static void add_layer(Experts *x, struct argp_state *state, const char *arg)
{
    if (x->layers == MOST_LAYERS)
        argp_error(state, "--num-experts: more than %d layers", MOST_LAYERS);
    else
        x->num_experts[x->layers++] = (int)args_int(state, "num-experts", arg, 1, 100000);
}

static error_t parse_value(int key, char *arg, struct argp_state *state, Experts *x)
{
    switch (key) {
    case EP_WORLD_SIZE:
        x->opts.ep_size = (int)args_int(state, "ep-world-size", arg, 1, 1000000);
        return 0;
    case TOP_K:
        x->opts.k = (int)args_int(state, "top-k", arg, 1, 100000);
        return 0;
    case MIN_CAPACITY:
        x->opts.min_capacity = args_int(state, "min-capacity", arg, 0, 1000000000);
        if (!x->opts.min_capacity) x->opts.min_capacity = -1;
        return 0;
    case CAPACITY_FACTOR:
        x->opts.capacity_factor = args_double(state, "capacity-factor", arg, 1e-6, 1e6);
        return 0;
    case EVAL_CAPACITY_FACTOR:
        x->opts.eval_capacity_factor = args_double(state, "eval-capacity-factor", arg, 1e-6, 1e6);
        return 0;
    case NOISY_GATE_POLICY: /* the layer checks it */
        x->opts.noisy_gate_policy = arg;
        return 0;
    case AUX_LOSS_WEIGHT:
        x->aux_loss_weight = args_double(state, "aux-loss-weight", arg, 0, 1e6);
        return 0;
    case MLP_TYPE:
        x->opts.use_residual = !strcmp(arg, "residual");
        if (!x->opts.use_residual && strcmp(arg, "standard") != 0)
            argp_error(state, "--mlp-type: \"%s\": expected standard or residual", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Experts *x = state->input;
    if (key > MOE && key <= AUX_LOSS_WEIGHT)
        for (int i = 0; options[i].name; i++)
            if (options[i].key == key) x->given = options[i].name;
    if (key >= MOE && key <= AUX_LOSS_WEIGHT) x->listing = key == NUM_EXPERTS;
    switch (key) {
    case ARGP_KEY_INIT:
        *x = (Experts){.opts = {.min_capacity = -1}, .aux_loss_weight = 0.01};
        return 0;
    case ARGP_KEY_ARG:
        if (!x->listing) argp_error(state, "unexpected argument \"%s\"", arg);
        /* fall through */
    case NUM_EXPERTS:
        add_layer(x, state, arg);
        return 0;
    case MOE:
        x->on = true;
        return 0;
    case MOE_PARAM_GROUP:
        return 0;
    case ARGP_KEY_END:
        if (x->given && !x->on) argp_error(state, "--%s needs --moe", x->given);
        if (!x->layers) x->num_experts[x->layers++] = 1;
        return 0;
    default:
        return parse_value(key, arg, state, x);
    }
}

const struct argp experts_argp = {.options = options, .parser = parse};

/* ---- network and loss -------------------------------------------------------------------------------- */

ds_module *experts_net(const Experts *x)
{
    return net_new_moe(x->num_experts, x->layers, &x->opts);
}

ds_tensor *experts_loss(const Experts *x, ds_module *net, ds_tensor *loss)
{
    if (!x->on || x->aux_loss_weight == 0) return loss;
    ds_tensor *aux = ds_scale(ds_moe_aux_loss(net), x->aux_loss_weight);
    return ds_add(loss, ds_cast(aux, ds_dtype_of(loss)));
}

/* ---- load of the experts ----------------------------------------------------------------------------- */

/* load[row] += counts, where they are, so that a step on a GPU does not wait. */
static void add_to(ds_tensor *load, int row, ds_tensor *counts)
{
    ds_tensor *sum = ds_select(load, 0, row);
    ds_copy(sum, ds_add(sum, counts));
}

void experts_count(Experts *x, ds_module *net)
{
    for (int i = 0; x->on && i < x->layers; i++) {
        ds_module *layer = ds_moe_layer(net, i);
        ds_tensor *chosen = ds_moe_exp_counts(layer), *taken = ds_moe_taken_counts(layer);
        if (!chosen || !taken) return;
        if (!x->load[i]) {
            ds_tensor *none = ds_zeros(DS_I64, ds_shape(2, ds_numel(chosen)));
            x->load[i] = ds_keep(ds_to(none, ds_device_of(chosen), DS_I64));
        }
        if (!x->load[i]) return;
        add_to(x->load[i], 0, chosen);
        add_to(x->load[i], 1, taken);
    }
}

/* "Experts of layer 1: 48.1 % 51.9 % of the tokens, 3.2 % dropped" */
static void print_layer(int layer, const int64_t *load, int64_t experts)
{
    int64_t chosen = 0, taken = 0;
    for (int64_t e = 0; e < experts; e++) {
        chosen += load[e];
        taken += load[experts + e];
    }
    if (!chosen) return;
    printf("Experts of layer %d:", layer + 1);
    for (int64_t e = 0; e < experts; e++)
        printf(" %.1f %%", 100.0 * (double)load[e] / (double)chosen);
    printf(" of the tokens, %.1f %% dropped\n", 100.0 * (double)(chosen - taken) / (double)chosen);
}

void experts_print(Experts *x, bool first)
{
    for (int i = 0; i < x->layers && x->load[i] && !ds_error(); i++) {
        ds_tensor *load = ds_clone(ds_to(x->load[i], (ds_device){DS_CPU, 0}, DS_I64));
        if (ds_all_reduce(NULL, load, DS_REDUCE_SUM) != DS_OK) return;
        if (first) print_layer(i, ds_data(load), ds_size(load, 1));
    }
    experts_free(x);
}

void experts_free(Experts *x)
{
    for (int i = 0; i < MOST_LAYERS; i++) ds_drop(x->load[i]), x->load[i] = NULL;
}
