/* tests/gpu/zero.c: the engine on 2 to 4 ranks with an emulated GPU each beside
 * ranks on the CPU: stages, dtypes, offload, experts, recomputation; checkpoints
 * from one to the other, and to another number of ranks. With fewer GPUs than
 * ranks, ranks share them.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "folder.h"
#include "nets.h"

enum { RANKS = 4, BATCH = 2, STEPS = 3, ROOM = 4096, HIDDEN = 8 };

typedef struct Run {
    ds_device_kind kind;
    int stage, accumulate;
    const char *precision, *zero;   /* parts of the configuration */
    bool experts, drops, recompute; /* drops: experts take some tokens, routed on the GPU */
    const char *save, *load;        /* after, or before, the steps */
    /* of rank 0 */
    double loss[STEPS], next; /* next: of the step after saving or loading */
    float state[ROOM];
    int n;
} Run;

/* ---- the networks ------------------------------------------------------------------------------------ */

static ds_module *expert(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    ds_module *m = ds_nn_sequential(parent, name);
    ds_nn_linear(m, "0", HIDDEN, HIDDEN);
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", HIDDEN, HIDDEN);
    return m;
}

typedef struct Twice {
    ds_module *inner;
} Twice;

static ds_tensor *twice_forward(void *self, ds_tensor *x)
{
    return ds_checkpoint_call(((Twice *)self)->inner, x);
}

/* Its forward runs again in backward. */
static ds_module *twice_new(void)
{
    static const ds_module_type type = {"Twice", sizeof(Twice), .forward = twice_forward};
    ds_seed(5);
    ds_module *m = ds_module_new(NULL, "net", &type);
    ds_module *inner = ds_nn_sequential(m, "inner");
    ds_nn_linear(inner, "a", WIDTH, WIDTH);
    ds_nn_relu(inner, "b");
    ds_nn_linear(inner, "c", WIDTH, 1);
    ((Twice *)ds_self(m))->inner = inner;
    return m;
}

static ds_module *net_of(const Run *run)
{
    if (run->recompute) return twice_new();
    if (!run->experts) return small_net();
    ds_seed(5);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, HIDDEN);
    ds_nn_moe(net, "moe", HIDDEN, expert, .num_experts = 4, .ep_size = 2, .k = 2, .no_rts = true,
              .no_top2_2nd_expert_sampling = true, .min_capacity = -1,
              .no_drop_tokens = !run->drops);
    ds_nn_linear(net, "c", HIDDEN, 1);
    return net;
}

static ds_tensor *loss_of(ds_engine *e, int step)
{
    ds_seed((uint64_t)(step * RANKS + ds_comm_rank(NULL)));
    ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(BATCH, WIDTH)), ds_engine_dtype(e));
    ds_tensor *y = ds_cast(ds_engine_forward(e, x), DS_F32);
    return ds_mean(ds_mul(y, y));
}

/* ---- a run ------------------------------------------------------------------------------------------- */

static double step(ds_engine *e, int number)
{
    ds_scope *scope = ds_scope_open();
    double value = 0;
    for (int i = 0; i < ds_engine_gradient_accumulation_steps(e) && !ds_error(); i++) {
        ds_tensor *loss = loss_of(e, 2 * number + i);
        ds_engine_backward(e, loss);
        ds_engine_step(e);
        value = ds_item(loss);
    }
    ds_scope_close(scope);
    return value;
}

static ds_status note_state(Run *run, ds_engine *e)
{
    ds_state *s = ds_engine_state(e, true); /* collective */
    run->n = 0;
    for (int i = 0; s && i < ds_state_len(s) && !ds_error(); i++) {
        ds_tensor *x = ds_to(ds_state_at(s, i), (ds_device){DS_CPU, 0}, DS_F32);
        int64_t n = x ? ds_numel(x) : 0;
        if (ds_comm_rank(NULL) || !x || run->n + n > ROOM) continue;
        memcpy(run->state + run->n, ds_data(x), (size_t)n * sizeof(float));
        run->n += (int)n;
    }
    ds_state_free(s);
    return ds_error_status();
}

static ds_status body(void *arg)
{
    Run *run = arg, own = *run; /* other ranks note nothing */
    int rank = ds_comm_rank(NULL);
    if (rank) run = &own;
    char config[1000];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": 0.5, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
             "{\"lr\": 0.01, \"eps\": 0.01}}, %s\"zero_optimization\": {\"stage\": %d, "
             "\"stage3_param_persistence_threshold\": 0%s}}",
             BATCH, run->accumulate, run->precision, run->stage, run->zero);
    if (ds_set_device((ds_device){run->kind, run->kind == DS_CUDA ? rank % ds_device_count(DS_CUDA)
                                                                  : 0}) != DS_OK)
        return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_engine *e = ds_initialize(.model = net_of(run), .config = config);
    if (e && run->load) ds_engine_load(e, run->load);
    for (int i = 0; e && i < STEPS && !run->load && !ds_error(); i++) run->loss[i] = step(e, i);
    if (e && !ds_error()) note_state(run, e);
    if (e && run->save && !ds_error()) ds_engine_save(e, run->save);
    if (e && (run->save || run->load) && !ds_error()) run->next = step(e, STEPS);
    ds_engine_free(e);
    ds_scope_close(scope);
    return ds_error_status();
}

static void run_on(int ranks, Run *run)
{
    if (!run->accumulate) run->accumulate = 1;
    if (ds_run_ranks(ranks, body, run) != DS_OK)
        fail_msg("stage %d%s, %s%d ranks: %s", run->stage, run->zero, run->precision, ranks,
                 ds_error());
}

/* The same on GPUs as on the CPU; float32 parameters too. Not to the bit: the
 * sums of a product have another order there. Adam's first update is lr g / (|g|
 * + eps): where g is near 0, a difference dg of its last bits becomes lr dg /
 * eps. With the default eps, 1e-8, that is a million dg; here eps is lr, and it
 * is dg. */
static void compare(int ranks, Run run, double tolerance)
{
    Run want = run, got = run;
    want.kind = DS_CPU;
    got.kind = DS_CUDA;
    run_on(ranks, &want);
    run_on(ranks, &got);
    CHECK(want.loss[0] > 0 && want.n > 0);
    CHECK_INT(got.n, want.n);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(got.loss[i] - want.loss[i]) <= tolerance * (1 + want.loss[i])))
            fail_msg("stage %d%s, %s%d ranks: the loss of step %d is %.9g, %.9g on the CPU",
                     run.stage, run.zero, run.precision, ranks, i, got.loss[i], want.loss[i]);
    for (int i = 0; i < got.n && !*run.precision; i++)
        if (!(fabs(got.state[i] - want.state[i]) <= 1e-6))
            fail_msg("stage %d%s, %d ranks: number %d of the parameters is %.9g, %.9g on the CPU",
                     run.stage, run.zero, ranks, i, got.state[i], want.state[i]);
}

#define BF16    "\"bf16\": {\"enabled\": true}, "
#define FP16    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}, "
#define OFFLOAD ", \"offload_optimizer\": {\"device\": \"cpu\"}"

static const struct {
    const char *precision;
    double tolerance;
} dtypes[] = {{"", 1e-6}, {BF16, 2e-2}, {FP16, 3e-3}};

/* ranks.c has float32 on 2 ranks and bfloat16 on 3. */
static void stages_and_dtypes(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int d = 0; d < 3; d++)
            for (int offload = 0; offload <= (stage > 0); offload++) {
                int ranks = quick() || (stage + d) % 2 ? 2 : RANKS;
                Run run = {.stage = stage,
                           .precision = dtypes[d].precision,
                           .accumulate = 1 + d % 2,
                           .zero = offload ? OFFLOAD : ""};
                compare(ranks, run, dtypes[d].tolerance);
            }
}

/* The text, with the folder in the place of each @. */
static void files_in(char *to, const char *text, const char *folder)
{
    for (; *text; text++)
        if (*text == '@')
            to += sprintf(to, "%s", folder);
        else
            *to++ = *text;
    *to = 0;
}

/* Where parameters, masters and moments lie changes no bit; only the device that
 * updates them may. */
static void offload(void **state)
{
    (void)state;
    static const char *const places[] = {
        "",
        OFFLOAD,
        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"@\", \"buffer_count\": "
        "2, "
        "\"pipeline_read\": true, \"pipeline_write\": true}, \"sub_group_size\": 1024",
        ", \"offload_param\": {\"device\": \"cpu\"}",
        OFFLOAD ", \"offload_param\": {\"device\": \"cpu\"}",
        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"@\"}, "
        "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"@\", \"buffer_count\": 2, "
        "\"max_in_cpu\": 0}"};
    enum { PLACES = sizeof places / sizeof *places, UPDATES_ON_GPU = 1 << 0 | 1 << 3 };
    for (int k = 0; k < 6; k++) {
        int stage = 1 + k / 2, ranks = 1 + k % 2, d = k % 3;
        Run got[PLACES] = {{.kind = DS_CUDA}};
        for (int i = 0; i < (stage == 3 ? PLACES : 3); i++) {
            char zero[400];
            files_in(zero, places[i], folder_make());
            got[i] = (Run){.kind = DS_CUDA,
                           .stage = stage,
                           .precision = dtypes[d].precision,
                           .accumulate = 1 + k % 2,
                           .zero = zero};
            run_on(ranks, &got[i]);
            folder_remove();
            const Run *same = &got[(UPDATES_ON_GPU >> i & 1) ? 0 : i ? 1 : 0];
            CHECK_INT(got[i].n, same->n);
            if (memcmp(got[i].state, same->state, (size_t)same->n * sizeof(float)) != 0)
                fail_msg("stage %d%s, %s%d ranks: other bits", stage, zero, dtypes[d].precision,
                         ranks);
        }
    }
}

static void experts(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        compare(2, (Run){.experts = true, .stage = stage, .precision = "", .zero = ""}, 1e-6);
        compare(RANKS, (Run){.experts = true, .stage = stage, .precision = BF16, .zero = ""}, 3e-2);
        Run drops = {.experts = true, .drops = true, .stage = stage, .precision = "", .zero = ""};
        compare(2, drops, 1e-6);
        if (stage % 2) compare(RANKS, drops, 1e-6);
    }
}

static void recomputation(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        compare(2, (Run){.recompute = true, .stage = stage, .precision = "", .zero = ""}, 1e-6);
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

/* Ranks that load have the weights of those that saved, to the bit, and the same
 * next loss. */
static void carry(ds_device_kind from, int saving, ds_device_kind to, int loading, Run run,
                  double tolerance)
{
    Run saved = run, loaded = run;
    saved.kind = from;
    loaded.kind = to;
    saved.save = loaded.load = folder_make();
    run_on(saving, &saved);
    loaded.stage = (run.stage + saving) % 4; /* another stage too */
    run_on(loading, &loaded);
    CHECK_INT(loaded.n, saved.n);
    assert_memory_equal(loaded.state, saved.state, (size_t)saved.n * sizeof(float));
    CHECK_CLOSE(loaded.next, saved.next, tolerance * (1 + fabs(saved.next)));
    folder_remove();
}

static void checkpoints(void **state)
{
    (void)state;
    static const int ranks[][2] = {{2, 2}, {2, 3}, {3, 1}, {1, 4}, {4, 2}};
    for (int stage = 0; stage <= 3; stage++)
        for (int k = 0; k < 5; k++) {
            int d = (stage + k) % 3;
            if (quick() && (k + stage) % 4) continue;
            Run run = {.stage = stage, .precision = dtypes[d].precision, .zero = ""};
            bool there = (stage + k) % 2;
            carry(there ? DS_CPU : DS_CUDA, ranks[k][0], there || k == 4 ? DS_CUDA : DS_CPU,
                  ranks[k][1], run, dtypes[d].tolerance);
        }
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_and_dtypes), cmocka_unit_test(offload), cmocka_unit_test(experts),
        cmocka_unit_test(recomputation), cmocka_unit_test(checkpoints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
