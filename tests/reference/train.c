/* tests/reference/train.c: whole runs of the tutorial network, step by step
 * beside PyTorch's; with DistributedDataParallel on as many ranks, as threads,
 * as the run had processes. (The norm recorded there is of p.grad after the
 * backward: of the mean over the ranks, the same on each.)
 *
 * Every loss must agree. So must every gradient norm, except at near-ties:
 * where two values of a pooling window differ by less than the rounding of
 * their sums, another order of summation sends the gradient to the other one,
 * and the norm of that step alone moves by some 1e-5. Such steps are named; one
 * in fifty may be off by up to 1e-4, and the final weights of such a run by ten
 * times their tolerance.
 * SPDX-License-Identifier: MIT */
#include "classify.h"
#include "ranks.h"
#include "reference.h"
#include "sample.h"

static ds_dataset *images;

/* [4, 5, 6] -> index[0..n-1]; returns n, or 0 if there are more than `room`
 * numbers, or one is not whole. */
static int64_t read_index(const json_t *list, int64_t *index, int64_t room)
{
    int64_t n = (int64_t)json_array_size(list);
    if (n > room) return 0;
    for (int64_t i = 0; i < n; i++) index[i] = json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static ds_module *load_net(Reference *r, const char *file)
{
    ds_state *weights = file ? reference_load(r, file) : NULL;
    ds_module *net = net_new();
    if (!weights || ds_module_load(net, weights) != DS_OK) {
        reference_fail(r, "initial weights: %s", ds_error() ? ds_error() : "none are named");
        ds_module_free(net);
        net = NULL;
    }
    ds_state_free(weights);
    return net;
}

/* ---- one rank ------------------------------------------------------------------------------------------ */

#define MAX_WORLD  8
#define MAX_STEPS  1024
#define MAX_IMAGES 1024 /* of a micro batch */

/* The results of a rank; filled by its thread, compared by the main one. */
typedef struct Seen {
    double loss[MAX_STEPS], norm[MAX_STEPS];
    int64_t micro_steps, updates;
} Seen;

typedef struct Run {
    Reference *r;
    ds_module *net; /* the main thread's: with the initial weights, then with the final ones */
    int64_t gas;
    int world;
    double max_norm;
    Seen seen[MAX_WORLD];
} Run;

static ds_optim *make_optim(const json_t *o, ds_module *net)
{
    const json_t *p = json_object_get(o, "params");
    const char *type = reference_text(o, "type", "none");
    double lr = reference_double(p, "lr", 0.001), decay = reference_double(p, "weight_decay", 0);
    if (!strcmp(type, "SGD"))
        return ds_optim_sgd(net, lr, .momentum = reference_double(p, "momentum", 0),
                            .weight_decay = decay, .dampening = reference_double(p, "dampening", 0),
                            .nesterov = reference_bool(p, "nesterov", false));
    const json_t *betas = json_object_get(p, "betas");
    double b1 = reference_number(json_array_get(betas, 0), 0.9),
           b2 = reference_number(json_array_get(betas, 1), 0.999);
    double eps = reference_double(p, "eps", 1e-8);
    if (!strcmp(type, "Adam"))
        return ds_optim_adam(net, lr, .beta1 = b1, .beta2 = b2, .eps = eps, .weight_decay = decay);
    if (!strcmp(type, "AdamW"))
        return ds_optim_adamw(net, lr, .beta1 = b1, .beta2 = b2, .eps = eps,
                              .weight_decay = reference_double(p, "weight_decay", 0.01));
    ds_fail(DS_EINVAL, "no optimizer of type %s here", type);
    return NULL;
}

/* Weights cross threads as values. */
static void copy_weights(const ds_module *from, ds_module *to)
{
    for (int i = 0; i < ds_module_params(to); i++) {
        ds_tensor *x = ds_module_param_at(to, i, NULL), *y = ds_module_param_at(from, i, NULL);
        ds_copy(x, ds_from_data(DS_F32, ds_shape_of(x), ds_data(y)));
    }
}

/* Forward and backward of one micro step; between updates without sending, as
 * with no_sync. */
static void micro_step(const Run *run, ds_ddp *ddp, const json_t *list, Seen *seen)
{
    int64_t index[MAX_IMAGES], n = read_index(list, index, MAX_IMAGES);
    ds_scope *s = ds_scope_open();
    ds_tensor *x = NULL, *y = NULL;
    sample_batch(images, index, n, &x, &y);
    ds_tensor *loss = ds_cross_entropy(ds_ddp_call(ddp, x), y);
    seen->loss[seen->micro_steps++] = ds_item(loss);
    bool was = ds_ddp_set_sync(ddp, seen->micro_steps % run->gas == 0);
    ds_ddp_backward(ddp, run->gas > 1 ? ds_scale(loss, 1.0 / (double)run->gas) : loss);
    ds_ddp_set_sync(ddp, was);
    ds_scope_close(s);
}

static void update(const Run *run, ds_module *net, ds_optim *optim, Seen *seen)
{
    seen->norm[seen->updates++] = run->max_norm ? ds_item(ds_clip_grad_norm(net, run->max_norm, 2))
                                                : ds_grad_norm(net);
    ds_optim_step(optim);
    ds_optim_zero_grad(optim);
}

static ds_status rank(void *arg)
{
    Run *run = arg;
    int me = ds_comm_rank(ds_world());
    Seen *seen = &run->seen[me];
    use_test_device();
    ds_scope *scope = ds_scope_open();
    const json_t *steps = json_array_get(json_object_get(run->r->json, "index"), (size_t)me);
    ds_module *net = net_new();
    copy_weights(run->net, net);
    ds_ddp *ddp = ds_ddp_new(net);
    ds_optim *optim = make_optim(json_object_get(run->r->json, "torch_optimizer"), net);
    for (size_t m = 0; optim && m < json_array_size(steps) && !ds_error(); m++) {
        micro_step(run, ddp, json_array_get(steps, m), seen);
        if (seen->micro_steps % run->gas == 0 && !ds_error()) update(run, net, optim, seen);
    }
    if (me == 0 && ds_barrier(ds_world()) == DS_OK) copy_weights(net, run->net);
    if (me) ds_barrier(ds_world()); /* by now the others have read the initial weights */
    ds_status status = ds_error_status();
    ds_ddp_free(ddp);
    ds_optim_free(optim);
    ds_module_free(net);
    ds_scope_close(scope);
    return status;
}

/* ---- comparison ---------------------------------------------------------------------------------------- */

#define NEAR_TIE 1e-4 /* relative */

/* Returns the near-ties of this rank. */
static int64_t compare_norms(const Run *run, int me, const json_t *want_all, double rtol)
{
    char what[64];
    int64_t near_ties = 0;
    const Seen *seen = &run->seen[me];
    for (int64_t t = 0; t < seen->updates; t++) {
        double want = reference_number(json_array_get(want_all, (size_t)t), NAN);
        double off = fabs(seen->norm[t] - want) / want;
        snprintf(what, sizeof what, "rank %d: grad_norm[%lld]", me, (long long)t);
        if (off > rtol && off < NEAR_TIE && 50 * near_ties < seen->updates) {
            near_ties++;
            print_message("%s: %s is off by %.2g of itself: a near-tie\n", run->r->id, what, off);
            continue;
        }
        reference_number_within(run->r, what, seen->norm[t], want, 0, rtol);
    }
    return near_ties;
}

static int64_t compare_rank(const Run *run, int me)
{
    const json_t *tolerance = json_object_get(run->r->json, "tolerance"),
                 *want = json_array_get(json_object_get(run->r->json, "ranks"), (size_t)me);
    double atol = reference_double(tolerance, "loss_atol", 0);
    for (int64_t m = 0; m < run->seen[me].micro_steps; m++) {
        char what[64];
        bool first = m < reference_int(tolerance, "first_steps", 0);
        snprintf(what, sizeof what, "rank %d: loss[%lld]", me, (long long)m);
        reference_number_within(
            run->r, what, run->seen[me].loss[m],
            reference_number(json_array_get(json_object_get(want, "loss"), (size_t)m), NAN),
            first ? reference_double(tolerance, "loss_atol_first_steps", atol) : atol, 0);
    }
    return compare_norms(run, me, json_object_get(want, "grad_norm_computed"),
                         reference_double(tolerance, "grad_norm_rtol", 0));
}

/* Sum, norm and some values of each final weight; all of them where a file has
 * them. */
static void compare_weights(Run *run, int64_t near_ties)
{
    const json_t *tolerance = json_object_get(run->r->json, "tolerance");
    const char *file = reference_text(run->r->json, "final", NULL);
    double atol = reference_double(tolerance, "weights_atol", 0) * (near_ties ? 10 : 1);
    ds_state *want = file ? reference_load(run->r, file) : NULL, *got = ds_module_state(run->net);
    for (int i = 0; want && i < ds_state_len(want); i++)
        reference_within(run->r, ds_state_name(want, i), ds_state_get(got, ds_state_name(want, i)),
                         ds_state_at(want, i), atol, 0);
    const char *name;
    json_t *probe;
    json_object_foreach(json_object_get(run->r->json, "final_probe"), name, probe)
    {
        const json_t *at = json_object_get(probe, "at"), *values = json_object_get(probe, "values");
        const float *w = ds_data(ds_state_get(got, name));
        for (size_t k = 0; w && k < json_array_size(at); k++)
            reference_number_within(run->r, name, w[json_integer_value(json_array_get(at, k))],
                                    reference_number(json_array_get(values, k), NAN), atol, 0);
        if (!w) reference_fail(run->r, "no weight %s", name);
    }
    ds_state_free(want);
    ds_state_free(got);
}

static void train(Reference *r)
{
    const json_t *index = json_object_get(r->json, "index");
    size_t steps = json_array_size(json_array_get(index, 0));
    Run *run = calloc(1, sizeof *run);
    run->r = r;
    run->gas = reference_int(r->json, "gas", 1);
    run->world = (int)reference_int(r->json, "world", 1);
    run->max_norm = reference_double(r->json, "max_norm", 0);
    run->net = load_net(r, reference_text(r->json, "init", NULL));
    if (!steps || steps > MAX_STEPS || run->world > MAX_WORLD) {
        reference_fail(r, "%zu steps on %d ranks: expected 1 to %d on at most %d", steps,
                       run->world, MAX_STEPS, MAX_WORLD);
    } else if (run->net && run_ranks(run->world, rank, run) != DS_OK) {
        reference_fail(r, "step %lld: %s", (long long)run->seen[0].micro_steps, ds_error());
    } else if (run->net) {
        int64_t near_ties = 0;
        for (int me = 0; me < run->world; me++) near_ties += compare_rank(run, me);
        if (!r->failures) compare_weights(run, near_ties);
    }
    ds_module_free(run->net);
    free(run);
}

/* ---- evaluation ------------------------------------------------------------------------------------------ */

static void evaluate_case(Reference *r)
{
    int64_t index[1024], n = read_index(json_object_get(r->json, "images"), index, 1024);
    ds_module *net = load_net(r, reference_text(r->json, "weights", NULL));
    ds_tensor *x, *y;
    if (!net) return;
    if (!n || sample_batch(images, index, n, &x, &y) != DS_OK) {
        reference_fail(r, "images: %s", ds_error() ? ds_error() : "none");
        ds_module_free(net);
        return;
    }
    bool was = ds_set_grad(false);
    ds_tensor *logits = ds_call(net, x);
    const char *name = ds_state_name(r->tensors, 0);
    reference_within(r, name ? name : "logits", logits, name ? ds_state_at(r->tensors, 0) : NULL,
                     reference_double(r->json, "atol", 1e-6), 0);
    reference_number_within(r, "mean_loss", ds_item(ds_cross_entropy(logits, y)),
                            reference_double(r->json, "mean_loss", NAN), 1e-5, 0);
    const int64_t *guess = ds_data(ds_argmax(logits, 1));
    const json_t *argmax = json_object_get(r->json, "argmax");
    for (int64_t i = 0; guess && i < n; i++)
        reference_number_within(r, "argmax", (double)guess[i],
                                reference_number(json_array_get(argmax, (size_t)i), NAN), 0, 0);
    ds_set_grad(was);
    ds_module_free(net);
}

static void run_case(Reference *r)
{
    const char *engine = reference_text(r->json, "engine", "");
    if (!strcmp(reference_text(r->json, "kind", ""), "eval")) {
        use_test_device();
        evaluate_case(r);
        CHECK_INT(ds_set_device((ds_device){DS_CPU, 0}), DS_OK);
    } else if (!strcmp(engine, "torch") || !strcmp(engine, "ddp"))
        train(r);
    else if (strcmp(engine, "deepspeed") != 0) /* those are train_engine.c's */
        reference_fail(r, "an engine named \"%s\"", engine);
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
