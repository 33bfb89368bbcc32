/* tests/reference/train_engine.c: whole runs of the tutorial network through
 * the engine, step by step beside DeepSpeed's: loss, learning rate, gradient
 * norm, loss scale, skipped steps, final weights; on as many ranks, as threads,
 * as the run had processes.
 *
 * Where DeepSpeed has a fault, the rule is ours, and the run is compared as far
 * as the fault does not reach: see comparable. Networks with experts also have
 * their loss for balance compared. In float32 a near-tie of two values in a
 * pooling window may fall the other way (see train.c): the gradient norm of
 * that step tells, or the next loss; what follows is compared more loosely.
 * SPDX-License-Identifier: MIT */
#include "classify.h"
#include "ranks.h"
#include "reference.h"
#include "sample.h"

#include <stdlib.h>

static ds_dataset *images;

#define MAX_WORLD  8
#define MAX_STEPS  1024
#define MAX_IMAGES 256 /* of a micro batch */

/* The results of a rank; filled by its thread, compared by the main one. */
typedef struct Seen {
    double loss[MAX_STEPS], aux[MAX_STEPS], lr[MAX_STEPS], lr_after[MAX_STEPS], norm[MAX_STEPS],
        scale[MAX_STEPS], skipped[MAX_STEPS];
    int64_t micro_steps, updates;
    bool on_gpu;
    float *weights; /* all of them, in the order of the state dict; masters */
} Seen;

typedef struct Run {
    Reference *r;
    char *config;
    const ds_state *init, *rest; /* rest: what a network with experts has besides; or NULL */
    const json_t *moe;           /* options of its layer; or NULL */
    int64_t gas;
    double aux_weight;
    int world;
    Seen *seen; /* [world] */
} Run;

/* ---- one rank ------------------------------------------------------------------------------------------ */

static int64_t read_index(const json_t *list, int64_t *index)
{
    int64_t n = (int64_t)json_array_size(list);
    if (n > MAX_IMAGES) return 0;
    for (int64_t i = 0; i < n; i++) index[i] = json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

/* With experts: a network of the example with one layer of them. */
static ds_module *make_net(const json_t *moe)
{
    int experts = (int)reference_int(moe, "num_experts", 1);
    int64_t least = reference_int(moe, "min_capacity", 4);
    ds_moe_opts o = {
        .ep_size = (int)reference_int(moe, "ep_size", 1),
        .k = (int)reference_int(moe, "k", 1),
        .min_capacity = least ? least : -1,
        .use_residual = reference_bool(moe, "use_residual", false),
        .noisy_gate_policy = reference_text(moe, "noisy_gate_policy", NULL),
        .no_rts = !reference_bool(moe, "use_rts", true),
        .no_top2_2nd_expert_sampling = !reference_bool(moe, "top2_2nd_expert_sampling", true)};
    return moe ? net_new_moe(&experts, 1, &o) : net_new();
}

/* The case's name for what ours calls so: its layer is "moe". */
static const char *given_name(const char *name, char *room, size_t bytes)
{
    static const char ours[] = "moe_layer_list.0";
    if (strncmp(name, ours, sizeof ours - 1) != 0) return name;
    snprintf(room, bytes, "moe%s", name + sizeof ours - 1);
    return room;
}

/* The initial weights were read on another thread: their values are copied. */
static ds_module *load_net(const Run *run)
{
    char room[256];
    ds_module *net = make_net(run->moe);
    ds_state *own = ds_module_state(net);
    for (int i = 0; i < ds_state_len(own); i++) {
        const char *name = given_name(ds_state_name(own, i), room, sizeof room);
        ds_tensor *to = ds_state_at(own, i), *from = ds_state_get(run->rest, name);
        if (!from) from = ds_state_get(run->init, name);
        if (from && ds_numel(from) == ds_numel(to))
            ds_copy(to, ds_from_data(DS_F32, ds_shape_of(to), ds_data(from)));
        else
            ds_fail(DS_EINVAL, "no initial %s", ds_state_name(own, i));
    }
    ds_state_free(own);
    return net;
}

static void one_step(ds_engine *e, const Run *run, Seen *seen, const json_t *list)
{
    int64_t index[MAX_IMAGES], n = read_index(list, index), t = seen->updates;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = NULL, *y = NULL;
    sample_batch(images, index, n, &x, &y);
    ds_tensor *loss = ds_cross_entropy(ds_engine_forward(e, ds_cast(x, ds_engine_dtype(e))), y);
    seen->loss[seen->micro_steps] = ds_item(loss);
    if (run->moe) {
        ds_tensor *aux = ds_moe_aux_loss(ds_engine_module(e));
        seen->aux[seen->micro_steps] = ds_item(aux);
        loss = ds_add(loss, ds_scale(aux, run->aux_weight));
    }
    seen->micro_steps++;
    bool boundary = ds_engine_is_gradient_accumulation_boundary(e);
    seen->lr[t] = ds_engine_lr(e);
    seen->scale[t] = ds_engine_loss_scale(e);
    ds_engine_backward(e, loss);
    ds_engine_step(e);
    ds_scope_close(scope);
    if (!boundary) return;
    seen->lr_after[t] = ds_engine_lr(e);
    seen->norm[t] = ds_engine_global_grad_norm(e);
    seen->skipped[t] = (double)ds_engine_skipped_steps(e);
    seen->updates++;
}

static void keep_weights(ds_engine *e, Seen *seen)
{
    int64_t at = 0;
    ds_state *state = ds_engine_state(e, true);
    seen->weights = calloc((size_t)ds_module_numel(ds_engine_module(e)), sizeof(float));
    for (int i = 0; i < ds_state_len(state); i++) {
        ds_tensor *w = ds_state_at(state, i);
        memcpy(seen->weights + at, ds_data(w), (size_t)ds_numel(w) * sizeof(float));
        at += ds_numel(w);
    }
    ds_state_free(state);
}

static ds_status rank(void *arg)
{
    Run *run = arg;
    int me = ds_comm_rank(ds_world());
    Seen *seen = &run->seen[me];
    use_test_device();
    seen->on_gpu = on_gpu();
    ds_scope *scope = ds_scope_open();
    const json_t *steps = json_array_get(json_object_get(run->r->json, "index"), (size_t)me);
    ds_engine *e = ds_initialize(.model = load_net(run), .config = run->config);
    for (size_t m = 0; e && m < json_array_size(steps) && m < MAX_STEPS && !ds_error(); m++)
        one_step(e, run, seen, json_array_get(steps, m));
    if (!ds_error()) keep_weights(e, seen);
    ds_status status = ds_error_status();
    ds_engine_free(e);
    ds_scope_close(scope);
    return status;
}

/* ---- comparison ---------------------------------------------------------------------------------------- */

static const json_t *wanted(const Run *run, int me, const char *key)
{
    return json_object_get(json_array_get(json_object_get(run->r->json, "ranks"), (size_t)me), key);
}

/* Values from..to-1 of a list, if the case has it. */
static void compare(Run *run, int me, const char *key, const double *got, int64_t from, int64_t to,
                    double atol, double rtol)
{
    char what[64];
    const json_t *want = wanted(run, me, key);
    for (int64_t i = from; json_is_array(want) && i < to; i++) {
        snprintf(what, sizeof what, "rank %d: %s[%lld]", me, key, (long long)i);
        reference_number_within(run->r, what, got[i],
                                reference_number(json_array_get(want, (size_t)i), NAN), atol, rtol);
    }
}

/* The norm that DeepSpeed has of the same gradients: its own, or that of one
 * rank alone. */
static const char *norm_key(const Run *run)
{
    if (json_is_array(wanted(run, 0, "grad_norm_reported"))) return "grad_norm_reported";
    return run->world == 1 ? "grad_norm_computed" : "";
}

/* Updates of this run that DeepSpeed makes by the right rule: all, except with
 * fp16. There, at stage 0, the loss is not scaled but the gradient unscaled;
 * and at a step at which the scale grows, half of the update is made. */
static int64_t comparable(const Run *run)
{
    const json_t *config = json_object_get(run->r->json, "ds_config"),
                 *zero = json_object_get(config, "zero_optimization"),
                 *scale = wanted(run, 0, "loss_scale");
    if (!json_is_true(json_object_get(json_object_get(config, "fp16"), "enabled")))
        return INT64_MAX;
    if (!reference_int(zero, "stage", 0)) return 0;
    for (size_t t = 1; t < json_array_size(scale); t++)
        if (json_number_value(json_array_get(scale, t)) >
            json_number_value(json_array_get(scale, t - 1)))
            return (int64_t)t - 1;
    return INT64_MAX;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define NEAR_TIE 1e-3 /* of a norm, relative */
#define LOSS_TIE 5e-3 /* of a loss, behind one */

/* The last update before a loss of any rank is off by more than rounding and
 * less than a wrong rule would make it. */
static int64_t near_tie_by_loss(const Run *run, double atol)
{
    for (int64_t i = 0; i < run->seen->micro_steps; i++)
        for (int me = 0; me < run->world; me++) {
            const json_t *want = json_array_get(wanted(run, me, "loss"), (size_t)i);
            double off = fabs(run->seen[me].loss[i] - reference_number(want, NAN));
            if (!(off > atol)) continue;
            if (off > LOSS_TIE || i < 10 * run->gas) return INT64_MAX;
            print_message("%s: loss[%lld] is off by %.2g: a near-tie\n", run->r->id, (long long)i,
                          off);
            return i / run->gas - 1;
        }
    return INT64_MAX;
}

/* The first update whose norm is off by more than rounding and less than a
 * wrong rule would make it; on a GPU, where sums have another order, losses
 * tell
 * too. */
static int64_t near_tie(const Run *run, const Seen *s, double atol, double rtol)
{
    const json_t *want = wanted(run, 0, norm_key(run));
    if (json_object_get(run->r->json, "precision")) return INT64_MAX;
    int64_t by_loss = s->on_gpu ? near_tie_by_loss(run, atol) : INT64_MAX;
    for (int64_t t = 0; json_is_array(want) && t < least(s->updates, by_loss); t++) {
        double norm = reference_number(json_array_get(want, (size_t)t), NAN);
        double off = fabs(s->norm[t] - norm) / norm;
        if (!(off > rtol)) continue;
        if (off > NEAR_TIE || t < 10) return INT64_MAX;
        print_message("%s: grad_norm[%lld] is off by %.2g of itself: a near-tie\n", run->r->id,
                      (long long)t, off);
        return t;
    }
    return by_loss;
}

/* Returns how many times larger the tolerance for the weights is: 0 means not
 * to look at them. */
static double compare_rank(Run *run, int me)
{
    const json_t *tol = json_object_get(run->r->json, "tolerance");
    const Seen *s = &run->seen[me];
    double atol = reference_double(tol, "loss_atol", 0),
           rtol = reference_double(tol, "grad_norm_rtol", 0);
    double atol_first = reference_double(tol, "loss_atol_first_steps", atol);
    int64_t upto = least(comparable(run), s->updates),
            tie = least(near_tie(run, s, atol, rtol), upto);
    int64_t micro = least((tie + 1) * run->gas, s->micro_steps),
            first = least(reference_int(tol, "first_steps", 0), micro);
    if (!upto) micro = first = 0;
    compare(run, me, "loss", s->loss, 0, first, atol_first, 0);
    compare(run, me, "loss", s->loss, first, micro, atol, 0);
    compare(run, me, "loss", s->loss, micro, least(upto * run->gas, s->micro_steps),
            s->on_gpu ? LOSS_TIE : 1e-3, 0);
    compare(run, me, "moe_l_aux", s->aux, 0, run->moe ? micro : 0, atol, 1e-5);
    compare(run, me, norm_key(run), s->norm, 0, tie, 0, rtol);
    compare(run, me, norm_key(run), s->norm, tie, upto, 0, 0.05);
    compare(run, me, "lr", s->lr, 0, s->updates, 0, 1e-15);
    compare(run, me, "lr_after", s->lr_after, 0, s->updates, 0, 1e-15);
    if (upto) compare(run, me, "skipped_steps", s->skipped, 0, s->updates, 0, 0);
    if (upto) compare(run, me, "loss_scale", s->scale, 0, s->updates, 0, 0);
    return upto < s->updates ? 0 : tie < s->updates ? 100 : 1;
}

static void compare_weights(Run *run, double times)
{
    double atol = times *
                  reference_double(json_object_get(run->r->json, "tolerance"), "weights_atol", 0);
    const json_t *probes = json_object_get(run->r->json, "master_probe");
    if (!probes) probes = json_object_get(run->r->json, "final_probe");
    char room[256];
    ds_module *net = make_net(run->moe);
    ds_state *names = ds_module_state(net);
    const float *w = run->seen[0].weights;
    for (int i = 0; i < ds_state_len(names); i++) {
        const char *name = given_name(ds_state_name(names, i), room, sizeof room);
        const json_t *probe = json_object_get(probes, name), *at = json_object_get(probe, "at");
        for (size_t k = 0; k < json_array_size(at); k++)
            reference_number_within(
                run->r, name, w[json_integer_value(json_array_get(at, k))],
                reference_number(json_array_get(json_object_get(probe, "values"), k), NAN), atol,
                0);
        w += ds_numel(ds_state_at(names, i));
    }
    ds_state_free(names);
    ds_module_free(net);
}

static void run_engine(Reference *r)
{
    Run run = {.r = r,
               .moe = json_object_get(r->json, "moe"),
               .aux_weight = reference_double(r->json, "l_aux_coefficient", 0),
               .gas = reference_int(r->json, "gas", 1),
               .world = (int)reference_int(r->json, "world", 1)};
    const char *file = reference_text(r->json, "init", NULL),
               *more = reference_text(r->json, "init_rest", NULL);
    ds_state *init = file ? reference_load(r, file) : NULL,
             *rest = more ? reference_load(r, more) : NULL;
    run.init = init;
    run.rest = rest;
    run.config = json_dumps(json_object_get(r->json, "ds_config"), 0);
    if (!init || !run.config || run.world > MAX_WORLD) {
        reference_fail(r, "the case is not understood");
    } else {
        run.seen = calloc((size_t)run.world, sizeof *run.seen);
        if (run_ranks(run.world, rank, &run) != DS_OK) {
            reference_fail(r, "%s", ds_error());
        } else {
            double times = 1;
            for (int me = 0; me < run.world; me++) times = compare_rank(&run, me);
            if (times > 0) compare_weights(&run, times);
        }
        for (int me = 0; me < run.world; me++) free(run.seen[me].weights);
        free(run.seen);
    }
    free(run.config);
    ds_state_free(init);
    ds_state_free(rest);
}

/* ---- cases --------------------------------------------------------------------------------------------- */

static void run_case(Reference *r)
{
    if (strcmp(reference_text(r->json, "engine", ""), "deepspeed") != 0) return;
    run_engine(r);
}

static void runs(void **state)
{
    (void)state;
    images = sample_data(DS_TRAIN);
    CHECK_INT(ds_set_device((ds_device){DS_CPU, 0}), DS_OK); /* ranks share weights there */
    CHECK(images);
    CHECK_INT(reference_each("train", run_case), 0);
    ds_dataset_free(images);
}

TEST_MAIN(cmocka_unit_test(runs))
