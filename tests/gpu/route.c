/* tests/gpu/route.c: tokens routed on the GPU: the kernels beside loops on the
 * CPU, to the bit, in random shapes; a layer of experts beside the same one on
 * the CPU, what it launches and waits for; and its steps as graphs.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

#include "base/philox.h"
#include "nn/moe.h"

#include <deepspeed.h>
#include <float.h>

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* ---- the kernels ------------------------------------------------------------------------------------- */

typedef struct Case {
    int64_t tokens, experts, k;
    dsi_route c;
    dsi_philox random;
    bool second, used, slots;
} Case;

/* Some equal ones, zeros of both signs; sometimes NaN and infinities. */
static double *scores_new(int64_t n, bool odd)
{
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (double)pick(-3, 12) / 8;
        if (one_in(20)) x[i] = -0.0;
        if (odd && one_in(6)) x[i] = one_in(2) ? NAN : one_in(2) ? INFINITY : -INFINITY;
    }
    return x;
}

static Operand *scores_in(const Case *c, bool odd)
{
    double *x = scores_new(c->tokens * c->experts, odd);
    Operand *o = operand_make(DS_F32, DIMS(c->tokens, c->experts), true, x);
    free(x);
    return o;
}

static Operand *used_in(const Case *c)
{
    int64_t *x = malloc((size_t)c->tokens * sizeof *x);
    for (int64_t i = 0; i < c->tokens; i++) x[i] = one_in(4) ? 0 : pick(1, 3);
    Operand *o = operand_make(DS_I64, DIMS(c->tokens), true, x);
    free(x);
    return o;
}

/* A choice of an expert: o is its place in the order of places. */
typedef struct Bid {
    double score;
    uint32_t word;
    int64_t o, at; /* at: s k + j */
    bool random;
} Bid;

static int better_first(const void *x, const void *y)
{
    const Bid *a = x, *b = y;
    if (a->random && a->word != b->word) return a->word < b->word ? -1 : 1;
    if (!a->random && a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->o < b->o ? -1 : a->o > b->o;
}

static int by_order(const void *x, const void *y)
{
    const Bid *a = x, *b = y;
    return a->o < b->o ? -1 : a->o > b->o;
}

/* The expert of choice j of a token whose first ones are mine[0..j-1]. */
static int64_t choose(const double *row, int64_t experts, const int64_t *mine, int64_t j)
{
    int64_t at = -1;
    for (int64_t e = 0; e < experts; e++) {
        bool out = false;
        for (int64_t i = 0; i < j; i++) out |= mine[i] == e;
        if (!out && (at < 0 || row[e] > row[at])) at = e;
    }
    return at;
}

/* Routes of one expert, of which the first `chosen` are its bids. */
static void take(const Case *c, int64_t e, Bid *bid, int64_t n, int64_t *place, int64_t *slot)
{
    int64_t room = n < c->c.capacity ? n : c->c.capacity;
    if (c->c.drop != DSI_DROP_LAST) qsort(bid, (size_t)n, sizeof *bid, better_first);
    for (int64_t i = 0; i < n; i++) place[bid[i].at] = slot[bid[i].at] = -1;
    qsort(bid, (size_t)room, sizeof *bid, by_order);
    for (int64_t i = 0; i < room; i++) {
        place[bid[i].at] = i;
        slot[bid[i].at] = e * c->c.rows + i;
    }
}

/* The values that the kernel has to give, from .cpu of score, second, used to
 * .cpu of
 * outputs. */
static void reference(const Case *c, const double *score, const double *second, const int64_t *used,
                      Operand *const *out)
{
    int64_t *expert = out[0]->cpu.p, *place = out[1]->cpu.p, *counts = out[3]->cpu.p,
            *slot = out[2]->cpu.p, k = c->k, n = c->experts;
    Bid *bid = malloc((size_t)(c->tokens * k) * sizeof *bid);
    for (int64_t s = 0; s < c->tokens; s++)
        for (int64_t j = 0; j < k; j++) {
            expert[s * k + j] = choose((j ? second : score) + s * n, n, expert + s * k, j);
            place[s * k + j] = slot[s * k + j] = -1;
        }
    for (int64_t e = 0; e < n; e++) {
        int64_t bids = 0, first = 0;
        for (int64_t j = 0; j < k; j++)
            for (int64_t s = 0; s < c->tokens; s++) {
                if (expert[s * k + j] != e || (used && !used[s])) continue;
                double p = score[s * n + e];
                bid[bids++] = (Bid){isnan(p) ? -1 : p,
                                    dsi_philox_word(c->random.seed, c->random.offset, (uint64_t)s),
                                    c->c.by_choice ? j * c->tokens + s : s * k + j, s * k + j,
                                    c->c.drop == DSI_DROP_RANDOM};
                first += !j || !c->c.by_choice;
            }
        qsort(bid, (size_t)bids, sizeof *bid, by_order);
        take(c, e, bid, bids, place, slot);
        counts[e] = bids, counts[n + e] = first;
        counts[2 * n + e] = bids < c->c.capacity ? bids : c->c.capacity;
    }
    free(bid);
}

static void run_case(Case *c, bool odd)
{
    dsi_device *d = gpu_device();
    const dsi_view none = {0};
    Operand *score = scores_in(c, odd), *second = c->second ? scores_in(c, odd) : score,
            *used = c->used ? used_in(c) : NULL;
    Operand *out[4];
    for (int i = 0; i < 3; i++) out[i] = operand_make(DS_I64, DIMS(c->tokens, c->k), true, NULL);
    out[3] = operand_make(DS_I64, DIMS(3, c->experts), true, NULL);
    c->c.random = c->c.drop == DSI_DROP_RANDOM ? &c->random : NULL;
    reference(c, score->cpu.p, second->cpu.p, used ? used->cpu.p : NULL, out);
    CHECK_INT(d->own_fusions->route(&d->stream, &c->c, score->gpu, c->second ? second->gpu : none,
                                    used ? used->gpu : none, out[0]->gpu, out[1]->gpu,
                                    c->slots ? out[2]->gpu : none, out[3]->gpu),
              DS_OK);
    char name[160];
    for (int i = 0; i < 4; i++) {
        if (i == 2 && !c->slots) continue;
        snprintf(name, sizeof name,
                 "output %d of %lld tokens, %lld of %lld, capacity %lld, drop %d", i,
                 (long long)c->tokens, (long long)c->k, (long long)c->experts,
                 (long long)c->c.capacity, (int)c->c.drop);
        operand_check(name, out[i], 0, 0);
    }
    operands_free();
}

static Case case_pick(int64_t tokens, int64_t experts)
{
    int64_t k = one_in(3) ? 1 : one_in(2) ? 2 : pick(1, experts < 6 ? experts : 6);
    if (k > experts) k = experts;
    Case c = {.tokens = tokens, .experts = experts, .k = k};
    c.random = (dsi_philox){.seed = (uint64_t)pick(0, 1 << 30) << 20,
                            .offset = (uint64_t)pick(0, 99)};
    c.c.capacity = one_in(8) ? pick(0, 1) : pick(0, 1 + 2 * tokens * k / experts);
    if (one_in(8)) c.c.capacity = tokens + pick(0, 1) * ((int64_t)1 << 61);
    c.c.rows = c.c.capacity < tokens ? c.c.capacity : tokens;
    c.c.by_choice = one_in(2);
    if (!c.c.by_choice) c.c.drop = (dsi_drop)pick(0, 2);
    c.second = one_in(2), c.used = one_in(3), c.slots = !one_in(4);
    return c;
}

static void random_routes(void **state)
{
    (void)state;
    int cases = getenv("DS_TEST_QUICK") ? 60 : 300;
    for (int i = 0; i < cases; i++) {
        operand_seed = (uint64_t)i * 77 + 1;
        Case c = case_pick(one_in(4) ? pick(1, 5) : pick(1, one_in(4) ? 2500 : 300),
                           one_in(8)   ? 1
                           : one_in(3) ? pick(33, 128)
                                       : pick(2, 32));
        run_case(&c, one_in(3));
    }
}

/* Many of one expert, and as many experts as there may be. */
static void edges(void **state)
{
    (void)state;
    operand_seed = 5;
    Case many = {.tokens = 9000, .experts = 2, .k = 1, .c = {.capacity = 4097, .rows = 4097}};
    for (int drop = 0; drop < 3; drop++) {
        many.c.drop = (dsi_drop)drop;
        many.random.seed = 9;
        run_case(&many, false);
    }
    Case wide = {.tokens = 3, .experts = DSI_ROUTE_EXPERTS, .k = 40, .slots = true};
    wide.c.capacity = wide.c.rows = 2;
    run_case(&wide, true);
}

static void too_many_experts(void **state)
{
    (void)state;
    dsi_device *d = gpu_device();
    dsi_view none = {0}, score = {.dtype = DS_F32, .n = 2, .d = {1, DSI_ROUTE_EXPERTS + 1}},
             expert = {.dtype = DS_I64, .n = 2, .d = {1, 1}};
    CHECK_INT(d->own_fusions->route(&d->stream, &(dsi_route){.capacity = 1, .rows = 1}, score, none,
                                    none, expert, expert, none, expert),
              DS_EINVAL);
    CHECK_ERROR("route: 1 tokens, 1 choices of 2049 experts: expected fewer than 2^31 choices, and "
                "at most 2048 experts");
}

static void noise(void **state)
{
    (void)state;
    dsi_device *d = gpu_device();
    const dsi_philox random = {.seed = 1234567890123, .offset = 7};
    for (int k = 0; k < 8; k++) {
        int64_t n = k < 2 ? 4001 : pick(1, 9);
        bool gumbel = k % 2;
        double low = gumbel ? FLT_EPSILON : 0.99, high = gumbel ? 1 - FLT_EPSILON : 1.01, sum = 0;
        Operand *y = operand_make(DS_F32, DIMS(n), true, NULL);
        double *want = y->cpu.p;
        for (int64_t i = 0; i < n; i++) {
            uint32_t word = dsi_philox_word(random.seed, random.offset, (uint64_t)i);
            float u = (float)low + (float)(high - low) * ((float)(word >> 8) * 0x1p-24F);
            want[i] = gumbel ? -logf(-logf(u)) : u;
            sum += want[i];
        }
        CHECK_INT(d->own_fusions->noise(&d->stream, &random, gumbel, low, high, y->gpu), DS_OK);
        operand_check("noise", y, 1e-6, 1);
        if (k < 2) CHECK_CLOSE(sum / (double)n, gumbel ? 0.5772 : 1, gumbel ? 0.08 : 3e-4);
        operands_free();
    }
}

/* ---- a layer ------------------------------------------------------------------------------------------- */

enum { HIDDEN = 8, EXPERTS = 5, TOKENS = 40 };

static ds_module *expert_new(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, HIDDEN, HIDDEN);
}

static ds_module *two_layers_new(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    ds_module *m = ds_nn_sequential(parent, name);
    ds_nn_linear(m, "0", HIDDEN, HIDDEN + 5);
    ds_nn_gelu(m, "1");
    ds_nn_linear(m, "2", HIDDEN + 5, HIDDEN, .no_bias = true);
    return m;
}

#define KEEPS_ALL 0 /* as a factor: without dropping */

/* The same on both devices: nothing is drawn. */
static ds_module *layer_new(int k, double factor)
{
    ds_seed(3);
    return ds_nn_moe(NULL, "moe", HIDDEN, factor == KEEPS_ALL ? two_layers_new : expert_new,
                     .num_experts = EXPERTS, .k = k, .no_drop_tokens = factor == KEEPS_ALL,
                     .capacity_factor = factor, .min_capacity = -1, .no_rts = true,
                     .no_top2_2nd_expert_sampling = true);
}

/* Outputs of one forward and backward, moved to the CPU. */
enum { Y, DX, CHOSEN, TAKEN, AUX, PARAMETERS, OUTPUTS };

static ds_tensor *gradients_joined(ds_module *m)
{
    ds_tensor *all[64];
    int n = ds_module_params(m);
    for (int i = 0; i < n; i++)
        all[i] = ds_reshape(ds_grad(ds_module_param_at(m, i, NULL)), ds_shape(-1));
    return ds_cat(all, n, 0);
}

static void layer_run(ds_device device, int k, double factor, bool used, ds_tensor **out,
                      int64_t *capacity)
{
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_module *moe = layer_new(k, factor);
    ds_seed(8);
    ds_tensor *x = ds_require_grad(ds_randn(DS_F32, ds_shape(TOKENS, HIDDEN)), true);
    ds_tensor *flags = ds_lt(ds_randn(DS_F32, ds_shape(TOKENS)), ds_full(DS_F32, ds_shape(1), 0.5));
    ds_tensor *y = used ? ds_call(moe, x, flags) : ds_call(moe, x), *aux = ds_moe_aux_loss(moe);
    CHECK_INT(ds_backward(ds_add(ds_sum(ds_mul(y, y)), aux)), DS_OK);
    ds_tensor *all[] = {y,   ds_grad(x),           ds_moe_exp_counts(moe), ds_moe_taken_counts(moe),
                        aux, gradients_joined(moe)};
    CHECK(ds_moe_capacity(moe) > 0);
    *capacity = ds_moe_capacity(moe);
    for (int i = 0; i < OUTPUTS; i++)
        out[i] = ds_to(ds_detach(all[i]), cpu, i == CHOSEN || i == TAKEN ? DS_I64 : DS_F32);
    ds_module_free(moe);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void as_on_the_cpu(void **state)
{
    (void)state;
    static const double factors[] = {0.5, 1, 1.5, INFINITY, KEEPS_ALL};
    for (int i = 0; i < 20; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *want[OUTPUTS], *got[OUTPUTS];
        int64_t room, own;
        double factor = factors[i % 5];
        layer_run(cpu, 1 + i % 3, factor, i % 2, want, &room);
        layer_run(gpu, 1 + i % 3, factor, i % 2, got, &own);
        CHECK_INT(own, room);
        for (int t = 0; t < OUTPUTS; t++) {
            if (t == CHOSEN || t == TAKEN) {
                CHECK(!memcmp(ds_data(got[t]), ds_data(want[t]), EXPERTS * sizeof(int64_t)));
                continue;
            }
            const float *a = ds_data(got[t]), *b = ds_data(want[t]);
            for (int64_t e = 0; e < ds_numel(want[t]); e++)
                CHECK_CLOSE(a[e], b[e], 1e-5 * fmax(1, fabs(b[e])));
        }
        ds_scope_close(scope);
    }
}

/* Experts of several widths, whose products cannot be one: the host calls each. */
static ds_module *wider_new(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    ds_module *m = ds_nn_sequential(parent, name);
    ds_nn_linear(m, "0", HIDDEN, HIDDEN + atoi(name));
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", HIDDEN + atoi(name), HIDDEN);
    return m;
}

static void experts_that_differ(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *y[2];
    long waits = 0;
    for (int on = 0; on < 2; on++) {
        CHECK_INT(ds_set_device(on ? gpu : cpu), DS_OK);
        ds_seed(3);
        ds_module *moe = ds_nn_moe(NULL, "moe", HIDDEN, wider_new, .num_experts = EXPERTS, .k = 2,
                                   .no_drop_tokens = true, .no_top2_2nd_expert_sampling = true);
        ds_tensor *x = ds_randn(DS_F32, ds_shape(TOKENS, HIDDEN));
        waits = emulator_count("fake_cuda_syncs");
        y[on] = ds_to(ds_detach(ds_call(moe, x)), cpu, DS_F32);
        ds_module_free(moe);
    }
    CHECK(!emulated() || emulator_count("fake_cuda_syncs") - waits > 1);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    for (int64_t i = 0; i < ds_numel(y[0]); i++)
        CHECK_CLOSE(((const float *)ds_data(y[1]))[i], ((const float *)ds_data(y[0]))[i], 1e-5);
    ds_scope_close(scope);
}

/* A layer that draws all that there is to draw. */
static void no_waits(void **state)
{
    (void)state;
    static const char *const noise_of[] = {"RSample", "Jitter", NULL};
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int i = 0; i < 6; i++) {
        ds_scope *scope = ds_scope_open();
        bool all = i > 2;
        int k = 1 + i % 3;
        ds_module *moe = ds_nn_moe(NULL, "moe", HIDDEN, all ? two_layers_new : expert_new,
                                   .num_experts = EXPERTS, .k = k, .no_drop_tokens = all,
                                   .noisy_gate_policy = noise_of[k - 1]);
        ds_tensor *x = ds_require_grad(ds_randn(DS_F32, ds_shape(TOKENS, HIDDEN)), true);
        long before = 0;
        for (int run = 0; run < 3; run++) { /* the first makes what stays: numbers of the GPU */
            before = emulator_count("fake_cuda_syncs");
            ds_tensor *y = ds_call(moe, x);
            CHECK_INT(ds_backward(ds_add(ds_sum(y), ds_moe_aux_loss(moe))), DS_OK);
        }
        CHECK_INT(emulator_count("fake_cuda_syncs") - before, 0);
        int64_t equal = (TOKENS * k + EXPERTS - 1) / EXPERTS;
        CHECK(all ? ds_moe_capacity(moe) >= equal : ds_moe_capacity(moe) == equal);
        ds_scope_close(scope);
        ds_module_free(moe);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* Choices: two launches, one more for noise and its sum. */
static void launches_of_a_route(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_module *moe = layer_new(1, 1);
    dsi_gate *gate = dsi_moe_gate(moe);
    ds_tensor *p = ds_softmax(ds_randn(DS_F32, ds_shape(TOKENS, EXPERTS)), 1);
    dsi_routes r = {0};
    long before = emulator_count("fake_cuda_launches");
    CHECK(gate->route(gate, p, p, NULL, &r));
    if (emulated()) CHECK_INT(emulator_count("fake_cuda_launches") - before, 2);
    ds_scope_close(scope);
    ds_module_free(moe);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- steps as graphs ------------------------------------------------------------------------------------- */

enum { STEPS = 7, ROWS = 24 };

typedef struct Training {
    ds_module *net;
    ds_optim *optim; /* or */
    ds_engine *engine;
    double loss[STEPS];
    int64_t taken[STEPS];
    bool again; /* the network is an activation checkpoint, whose random numbers are repeated */
} Training;

static ds_module *net_of(int k, bool all)
{
    static const char *const noise_of[] = {"RSample", NULL, "Jitter"};
    ds_seed(4);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", HIDDEN, HIDDEN);
    ds_nn_moe(net, "moe", HIDDEN, all ? two_layers_new : expert_new, .num_experts = EXPERTS, .k = k,
              .no_drop_tokens = all, .use_residual = k == 2, .noisy_gate_policy = noise_of[k - 1]);
    ds_nn_linear(net, "c", HIDDEN, 10);
    return net;
}

static ds_tensor *step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    CHECK_INT(n, 2);
    if (t->optim) ds_optim_zero_grad(t->optim);
    ds_tensor *y = t->engine  ? ds_engine_forward(t->engine, in[0])
                   : t->again ? ds_checkpoint_call(t->net, in[0])
                              : ds_call(t->net, in[0]);
    ds_tensor *loss = ds_add(ds_cross_entropy(ds_cast(y, DS_F32), in[1]),
                             ds_scale(ds_moe_aux_loss(t->net), 0.1));
    if (t->engine)
        return ds_engine_backward(t->engine, loss) == DS_OK && ds_engine_step(t->engine) == DS_OK
                   ? loss
                   : NULL;
    return ds_backward(loss) == DS_OK && ds_optim_step(t->optim) == DS_OK ? loss : NULL;
}

static void training_open(Training *t, int k, bool all, bool by_engine)
{
    t->net = net_of(k, all);
    if (!by_engine) {
        t->optim = ds_optim_adam(t->net, 0.01);
        return;
    }
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 24, \"optimizer\": {\"type\": "
        "\"Adam\", \"params\": {\"lr\": 0.01}}, \"zero_optimization\": "
        "{\"stage\": 1}, \"bf16\": {\"enabled\": true}}";
    t->engine = ds_initialize(.model = t->net, .config = config);
    CHECK(t->engine);
    t->net = ds_engine_module(t->engine);
}

static void train(Training *t, int k, bool all, bool by_engine, bool with_graph)
{
    *t = (Training){.again = with_graph && !by_engine};
    CHECK_INT(ds_set_device(gpu), DS_OK);
    training_open(t, k, all, by_engine);
    ds_step_graph *graph = !with_graph ? NULL
                           : by_engine ? ds_engine_step_graph_new(t->engine, step, t)
                                       : ds_step_graph_new(step, t);
    for (int i = 0; i < STEPS; i++) {
        ds_scope *scope = ds_scope_open();
        int64_t labels[ROWS];
        for (int r = 0; r < ROWS; r++) labels[r] = (i + 3 * r) % 10;
        ds_tensor *in[] = {ds_randn(DS_F32, ds_shape(ROWS, HIDDEN)),
                           ds_from_data(DS_I64, ds_shape(ROWS), labels)};
        if (by_engine) in[0] = ds_cast(in[0], DS_BF16);
        ds_tensor *loss = graph ? ds_step_graph_run(graph, in, 2) : step(t, in, 2);
        if (!loss) printf("# %s\n", ds_error());
        CHECK(loss);
        t->loss[i] = ds_item(loss);
        ds_tensor *taken = ds_moe_taken_counts(ds_moe_layer(t->net, 0));
        for (int e = 0; e < EXPERTS; e++)
            t->taken[i] = t->taken[i] * 31 + ((const int64_t *)ds_data(taken))[e];
        ds_scope_close(scope);
    }
    if (graph && ds_step_graph_why_not(graph)) printf("# %s\n", ds_step_graph_why_not(graph));
    CHECK(!graph || ds_step_graph_replays(graph));
    ds_step_graph_free(graph);
    ds_optim_free(t->optim);
    if (t->engine)
        ds_engine_free(t->engine);
    else
        ds_module_free(t->net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void graphs_have_the_same_bits(void **state)
{
    (void)state;
    for (int c = 0; c < 9; c++) {
        Training plain, graph;
        int k = 1 + c % 3;
        bool all = c > 5, by_engine = c > 2 && c != 7;
        train(&plain, k, all, by_engine, false);
        train(&graph, k, all, by_engine, true);
        for (int i = 0; i < STEPS; i++) {
            CHECK_CLOSE(graph.loss[i], plain.loss[i], 0);
            CHECK_INT(graph.taken[i], plain.taken[i]);
        }
    }
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_routes),
        cmocka_unit_test(edges),
        cmocka_unit_test(too_many_experts),
        cmocka_unit_test(noise),
        cmocka_unit_test(experts_that_differ),
        cmocka_unit_test(as_on_the_cpu),
        cmocka_unit_test(no_waits),
        cmocka_unit_test(launches_of_a_route),
        cmocka_unit_test(graphs_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
