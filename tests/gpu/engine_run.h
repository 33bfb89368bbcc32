/* tests/gpu/engine_run.h: a short training by an engine, with and without step
 * graphs, for the tests of these.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"
#include "emulated.h"
#include "folder.h"
#include "nets.h"

enum { BATCH = 4, MANY = 48, MOST_ROWS = 512, MOST = 48 }; /* MANY rows: more than 4 KiB */

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

typedef struct Plan {
    const char *config; /* keys behind the batch sizes */
    int accumulate;     /* micro steps of an update; 0: 1 */
    int rows;           /* of a batch; 0: BATCH */
    bool ema;
    int keep_at;    /* the call of the step's function that keeps a tensor, from 1 on; 0: none */
    int read_at;    /* the call that reads its loss on the host; 0: none */
    int read_after; /* ... after backward and update, 0 to 2 of these */
    void (*set)(ds_engine *e);         /* called by the step's function; NULL: nothing */
    int overflow_at, save_at, eval_at; /* micro steps; 0: none */
} Plan;

/* Of a micro step. */
typedef struct Seen {
    double loss, norm, lr, scale;
    int64_t steps, skipped;
    bool applied;
} Seen;

typedef struct Run {
    Plan plan;
    ds_engine *e;
    ds_step_graph *graph;
    Seen seen[MOST];
    float *values; /* of parameters, then of averages */
    size_t bytes;
    int calls;
    ds_tensor *kept;
    double kept_sum; /* when it was kept */
    double last;     /* loss of the last call */
} Run;

static inline ds_tensor *engine_step(void *self, ds_tensor *const *in, int n)
{
    Run *r = self;
    CHECK_INT(n, 2);
    ds_tensor *y = ds_cast(ds_engine_forward(r->e, in[0]), DS_F32);
    ds_tensor *loss = ds_cross_entropy(y, in[1]);
    int call = ++r->calls, reads = r->plan.read_at == call ? r->plan.read_after : -1;
    if (call == r->plan.keep_at) r->kept = ds_keep(ds_scale(in[0], 2));
    if (reads == 0) ds_item(loss);
    if (ds_engine_backward(r->e, loss) != DS_OK) return NULL;
    if (reads == 1) ds_item(loss);
    if (ds_engine_step(r->e) != DS_OK) return NULL;
    if (reads == 2) ds_item(loss);
    if (r->plan.set) r->plan.set(r->e);
    return loss;
}

static inline ds_module *classifier(void)
{
    ds_seed(5);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, WIDTH);
    ds_nn_relu(net, "b");
    ds_nn_dropout(net, "d", 0.25);
    ds_nn_linear(net, "c", WIDTH, 10);
    return net;
}

static inline int rows_of(const Run *r) { return r->plan.rows ? r->plan.rows : BATCH; }

static inline void run_begin(Run *r, bool graph)
{
    char config[1200];
    int accumulate = r->plan.accumulate ? r->plan.accumulate : 1;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d%s%s}",
             rows_of(r), accumulate, *r->plan.config ? ", " : "", r->plan.config);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    r->e = ds_initialize(.model = classifier(), .config = config);
    CHECK(r->e);
    if (r->plan.ema) CHECK_INT(ds_engine_use_ema(r->e, 0.9), DS_OK);
    r->kept_sum = NAN;
    r->graph = graph ? ds_engine_step_graph_new(r->e, engine_step, r) : NULL;
}

static inline ds_tensor *run_step(Run *r, int step, double factor)
{
    int64_t labels[MOST_ROWS];
    int rows = rows_of(r);
    for (int i = 0; i < rows; i++) labels[i] = (step * 7 + i * 3) % 10;
    ds_seed((uint64_t)step);
    ds_tensor *x = ds_scale(ds_randn(DS_F32, ds_shape(rows, WIDTH)), factor);
    ds_tensor *in[] = {ds_cast(x, ds_engine_dtype(r->e)),
                       ds_from_data(DS_I64, ds_shape(rows), labels)};
    return r->graph ? ds_step_graph_run(r->graph, in, 2) : engine_step(r, in, 2);
}

static inline void run_micro_step(Run *r, int step, const char *folder)
{
    ds_scope *scope = ds_scope_open();
    if (step && step == r->plan.save_at) {
        CHECK_INT(ds_engine_save(r->e, folder), DS_OK);
        CHECK_INT(ds_engine_load(r->e, folder), DS_OK);
    }
    bool eval = step && step == r->plan.eval_at;
    if (eval && r->plan.ema) { /* the averages, and back */
        CHECK_INT(ds_engine_swap_ema(r->e), DS_OK);
        CHECK_INT(ds_engine_swap_ema(r->e), DS_OK);
    }
    ds_tensor *loss = run_step(r, step, step && step == r->plan.overflow_at ? 6e4 : 1);
    CHECK(loss);
    if (r->kept && isnan(r->kept_sum)) r->kept_sum = ds_item(ds_sum(r->kept));
    Seen *s = &r->seen[step];
    s->loss = ds_item(loss);
    s->norm = ds_engine_global_grad_norm(r->e);
    s->lr = ds_engine_lr(r->e);
    s->scale = ds_engine_loss_scale(r->e);
    s->steps = ds_engine_global_steps(r->e);
    s->skipped = ds_engine_skipped_steps(r->e);
    s->applied = ds_engine_was_step_applied(r->e);
    ds_scope_close(scope);
}

static inline void run_end(Run *r)
{
    ds_step_graph_free(r->graph);
    ds_engine_free(r->e);
    ds_drop(r->kept);
    free(r->values);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static inline void run_all(Run *r, bool graph, int steps)
{
    const char *folder = r->plan.save_at ? folder_make() : NULL;
    run_begin(r, graph);
    for (int i = 0; i < steps; i++) run_micro_step(r, i, folder);
    if (graph) {
        if (ds_step_graph_why_not(r->graph)) fail_msg("%s", ds_step_graph_why_not(r->graph));
        CHECK(ds_step_graph_replays(r->graph));
    }
    if (r->kept) CHECK(ds_item(ds_sum(r->kept)) == r->kept_sum);
    values_add(ds_engine_module(r->e), &r->values, &r->bytes);
    if (r->plan.ema) {
        CHECK_INT(ds_engine_swap_ema(r->e), DS_OK);
        values_add(ds_engine_module(r->e), &r->values, &r->bytes);
    }
    if (folder) folder_remove();
}

static inline bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

#define ADAM "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}"
#define WARMUP \
    ", \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.02, " \
    "\"warmup_num_steps\": 9}}"
#define FP16 \
    ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 10, \"loss_scale_window\": 3, " \
    "\"hysteresis\": 1}"
#define BF16    ", \"bf16\": {\"enabled\": true}"
#define CLIP(x) ", \"gradient_clipping\": " #x
