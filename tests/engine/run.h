/* tests/engine/run.h: a training run on each rank of ds_world() that can be cut
 * in two: a net with running statistics and dropout, shuffled data, a schedule,
 * averages; and what must be equal afterwards, in one list of numbers.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "ranks.h"

#define RUN_SAMPLES 96
#define RUN_BATCH   24    /* of a step, on all ranks */
#define RUN_ROOM    16384 /* numbers of a run */

typedef struct RunPlan {
    int stage, accumulate, steps;
    const char *dtype;   /* "bf16", "fp16", "fp32" */
    const char *optim;   /* NULL: AdamW */
    const char *options; /* of it, beside lr: "\"momentum\": 0.9," */
    const char *more;    /* of the configuration: "\"checkpoint\": {...}," */
    const char *zero;    /* of zero_optimization, likewise */
    int ep_size;         /* ranks that share 4 experts; 0: there are none */
    bool plain;          /* no dropout, and no averages: for ranks that change */
    int samples;         /* 0: RUN_SAMPLES, of which all are used */
    const char *dir;     /* to load from, and to save to */
    bool load, save;
    uint64_t seed;
} RunPlan;

typedef struct RunResult {
    double loss[32]; /* of each step, the mean over the ranks */
    double x[RUN_ROOM];
    int n;
} RunResult;

typedef struct RunNet {
    ds_module *conv, *norm, *drop, *fc1, *moe, *fc2;
} RunNet;

static inline ds_tensor *run_forward(void *self, ds_tensor *x)
{
    RunNet *net = self;
    x = ds_call(net->conv, x); /* [B,4,6,6] */
    if (net->norm) x = ds_call(net->norm, x);
    x = ds_flatten(ds_relu(x), 1);
    if (net->drop) x = ds_call(net->drop, x);
    x = ds_relu(ds_call(net->fc1, x));
    return ds_call(net->fc2, net->moe ? ds_add(x, ds_call(net->moe, x)) : x);
}

static inline ds_module *run_expert(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, 19, 19);
}

static inline ds_module *run_net(bool plain, int ep_size, uint64_t seed)
{
    static const ds_module_type type = {"RunNet", sizeof(RunNet), .forward = run_forward};
    ds_seed(seed);
    ds_module *m = ds_module_new(NULL, "net", &type);
    RunNet *net = ds_self(m);
    net->conv = ds_nn_conv2d(m, "conv", 2, 4, 3, .padding = 1);
    if (!plain) net->norm = ds_nn_batch_norm2d(m, "norm", 4);
    if (!plain) net->drop = ds_nn_dropout(m, "drop", 0.2);
    net->fc1 = ds_nn_linear(m, "fc1", 144, 19);
    if (ep_size)
        net->moe = ds_nn_moe(m, "moe", 19, run_expert, .num_experts = 4, .ep_size = ep_size, .k = 1,
                             .no_drop_tokens = true, .no_rts = true,
                             .noisy_gate_policy = plain ? NULL : "Jitter");
    net->fc2 = ds_nn_linear(m, "fc2", 19, 5);
    return m;
}

static inline ds_dataset *run_data(int n)
{
    float x[RUN_SAMPLES][72];
    int64_t y[RUN_SAMPLES];
    uint64_t state = 5;
    for (int i = 0; i < n; i++) {
        y[i] = i % 5;
        for (int k = 0; k < 72; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            x[i][k] = (float)(state >> 40) / (1 << 23) - 1 + (float)(k % 5 == y[i]);
        }
    }
    return ds_tensor_dataset((ds_tensor *[]){ds_from_data(DS_F32, ds_shape(n, 2, 6, 6), x),
                                             ds_from_data(DS_I64, ds_shape(n), y)},
                             2);
}

static inline ds_engine *run_engine(const RunPlan *p)
{
    char text[1500];
    snprintf(
        text, sizeof text,
        "{\"train_batch_size\": %d, \"gradient_accumulation_steps\": %d, %s \"steps_per_print\": 0,"
        "\"optimizer\": {\"type\": \"%s\", \"params\": {%s \"lr\": 0.01}},"
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.01, "
        "\"warmup_num_steps\": 8}},"
        "\"bf16\": {\"enabled\": %s}, \"fp16\": {\"enabled\": %s, \"initial_scale_power\": %d, "
        "\"loss_scale_window\": 3, \"hysteresis\": 1},"
        "\"zero_allow_untested_optimizer\": true, \"zero_optimization\": {\"stage\": %d, %s "
        "\"stage3_param_persistence_threshold\": 100, \"reduce_bucket_size\": 400, "
        "\"allgather_bucket_size\": 400}}",
        RUN_BATCH, p->accumulate, p->more ? p->more : "", p->optim ? p->optim : "AdamW",
        p->options ? p->options : "", strcmp(p->dtype, "bf16") ? "false" : "true",
        strcmp(p->dtype, "fp16") ? "false" : "true", p->plain ? 8 : 20 /* overflows at first */,
        p->stage, p->zero ? p->zero : "");
    ds_engine *e = ds_initialize(.model = run_net(p->plain, p->ep_size, p->seed),
                                 .training_data = run_data(p->samples ? p->samples : RUN_SAMPLES),
                                 .config = text, .seed = p->seed + 3);
    if (e && !p->plain) ds_engine_use_ema(e, 0.9);
    return e;
}

static inline ds_status run_micro(ds_engine *e, const ds_batch *b, double *sum)
{
    ds_tensor *loss = ds_cross_entropy(ds_cast(ds_engine_forward(e, b->x), DS_F32), b->y);
    ds_status status = ds_engine_backward(e, loss);
    *sum += ds_item(loss) / (double)ds_engine_gradient_accumulation_steps(e);
    return status == DS_OK ? ds_engine_step(e) : status;
}

static inline double run_mean(double x)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *t = ds_from_data(DS_F64, ds_shape(1), &x);
    ds_all_reduce(ds_world(), t, DS_REDUCE_AVG);
    x = ds_item(t);
    ds_scope_close(scope);
    return x;
}

/* Steps until the engine has made `until` of them; epochs end where they end. */
static inline ds_status run_steps(ds_engine *e, int64_t until, RunResult *r)
{
    ds_batch b;
    double sum = 0;
    ds_loader *l = ds_engine_loader(e);
    while (!ds_error() && ds_engine_global_steps(e) < until) {
        if (!ds_loader_next(l, &b)) continue;
        int64_t step = ds_engine_global_steps(e);
        if (run_micro(e, &b, &sum) != DS_OK) break;
        if (ds_engine_global_steps(e) == step) continue;
        r->loss[step] = run_mean(sum);
        sum = 0;
    }
    return ds_error() ? ds_error_status() : DS_OK;
}

static inline ds_status run_note(RunResult *r, const ds_state *state)
{
    ds_status status = state ? DS_OK : ds_error_status();
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        ds_tensor *x = ds_cast(ds_state_at(state, i), DS_F64);
        if (!x || r->n + ds_numel(x) > RUN_ROOM) {
            status = ds_fail(DS_ESTATE, "run: more than RUN_ROOM values");
        } else {
            memcpy(r->x + r->n, ds_data(x), (size_t)ds_numel(x) * sizeof(double));
            r->n += (int)ds_numel(x);
        }
    }
    ds_scope_close(scope);
    return status;
}

/* Whole weights, running statistics, averages, learning rate, scale, counters,
 * the next random number. */
static inline ds_status run_end(ds_engine *e, RunResult *r)
{
    r->n = 0;
    ds_state *state = ds_engine_state(e, true);
    ds_status status = run_note(r, state);
    ds_state_free(state);
    bool ema = status == DS_OK && ds_engine_swap_ema(e) == DS_OK;
    if (!ema) ds_error_clear();
    if (ema) {
        state = ds_engine_state(e, true);
        status = run_note(r, state);
        ds_state_free(state);
        ds_engine_swap_ema(e);
    }
    double more[] = {ds_engine_lr(e),
                     ds_engine_loss_scale(e),
                     (double)ds_engine_global_steps(e),
                     (double)ds_engine_micro_steps(e),
                     (double)ds_engine_global_samples(e),
                     (double)ds_engine_skipped_steps(e),
                     ds_engine_global_grad_norm(e),
                     ds_item(ds_rand(DS_F32, ds_shape(1)))};
    memcpy(r->x + r->n, more, sizeof more);
    r->n += 8;
    return status;
}
