/* tests/nn/moe.c: a layer of experts on one rank: what it says of itself, its
 * random choices, empty and full experts, what it refuses; and whole state
 * dicts where ranks share experts.
 * SPDX-License-Identifier: MIT */
#include "ranks.h"

#include "nn/moe.h"

static ds_module *linear(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, 4, 4);
}

static ds_module *wide(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, 4, 5);
}

static ds_module *nested(ds_module *parent, const char *name, void *arg)
{
    return ds_nn_moe(parent, name, 4, linear, .arg = arg);
}

static ds_module *nothing(ds_module *parent, const char *name, void *arg)
{
    (void)parent, (void)name, (void)arg;
    return NULL;
}

#define MOE(...) ds_nn_moe(NULL, "moe", 4, linear, __VA_ARGS__)

static ds_tensor *tokens(int64_t n) { return ds_randn(DS_F32, ds_shape(n, 4)); }
static int64_t number(ds_tensor *x, int64_t i) { return ((const int64_t *)ds_data(x))[i]; }

static int64_t total(ds_tensor *x)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < ds_numel(x); i++) sum += number(x, i);
    return sum;
}

/* All tokens to expert 0. */
static void lean_to_first(ds_module *moe)
{
    ds_tensor *wg = ds_module_param_at(moe, 0, NULL);
    for (int64_t i = 0; i < ds_numel(wg); i++) set_element(wg, i, i < 4 ? 5 : -5);
}

static ds_tensor *positive(int64_t n) { return ds_shift(ds_abs(tokens(n)), 0.5); }

/* ---- what it is ---------------------------------------------------------------------------------------------- */

static void names(void **state)
{
    (void)state;
    static const char *const want[] = {"deepspeed_moe.gate.wg.weight",
                                       "deepspeed_moe.experts.deepspeed_experts.0.weight",
                                       "deepspeed_moe.experts.deepspeed_experts.0.bias",
                                       "deepspeed_moe.experts.deepspeed_experts.1.weight",
                                       "deepspeed_moe.experts.deepspeed_experts.1.bias",
                                       "mlp.weight",
                                       "mlp.bias",
                                       "coefficient.weight",
                                       "coefficient.bias"};
    ds_seed(1);
    ds_module *moe = MOE(.num_experts = 2, .use_residual = true);
    const int64_t *after = ds_data(ds_randint(DS_I64, 0, 1000, ds_shape(1)));
    CHECK_INT(ds_module_params(moe), 9);
    for (int i = 0; i < 9; i++) {
        const char *path;
        ds_tensor *p = ds_module_param_at(moe, i, &path);
        assert_string_equal(path, want[i]);
        dsi_expert e = dsi_module_expert_of(moe, p);
        CHECK((e.of != NULL) == (i >= 1 && i < 5));
        if (e.of) CHECK_INT(e.number, (i - 1) / 2);
    }
    /* experts and the dense branch begin equal, and draw once */
    ds_tensor *a = ds_module_param_at(moe, 1, NULL);
    for (int i = 3; i <= 5; i += 2)
        assert_memory_equal(ds_data(ds_module_param_at(moe, i, NULL)), ds_data(a), 64);
    ds_seed(1);
    ds_module *more = MOE(.num_experts = 2, .use_residual = true);
    CHECK_INT(*after, number(ds_randint(DS_I64, 0, 1000, ds_shape(1)), 0));
    ds_module_free(moe);
    ds_module_free(more);
}

static void layers_are_counted(void **state)
{
    (void)state;
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_moe(net, "0", 4, linear, .num_experts = 2);
    ds_nn_linear(net, "1", 4, 4);
    ds_module *last = ds_nn_moe(net, "2", 4, linear, .num_experts = 4);
    CHECK_INT(ds_moe_layers(net), 2);
    CHECK(ds_moe_layer(net, 1) == last && !ds_moe_layer(net, 2) && !ds_moe_layer(net, -1));
    dsi_expert e = dsi_module_expert_of(net, ds_module_param_at(last, 7, NULL));
    CHECK_INT(e.layer, 1);
    CHECK_INT(e.number, 3);
    CHECK_INT(e.of->all, 4);
    CHECK_CLOSE(ds_item(ds_moe_aux_loss(net)), 0, 0); /* not called yet */
    CHECK(!ds_moe_exp_counts(last) && !ds_moe_exp_counts(net));
    CHECK(ds_call(net, tokens(8)));
    CHECK_INT(total(ds_moe_exp_counts(last)), 8);
    CHECK(ds_item(ds_moe_aux_loss(net)) > 1.5);
    ds_module_free(net);
}

/* ---- routes of tokens ------------------------------------------------------------------------------------------- */

static void full_experts_drop(void **state)
{
    (void)state;
    ds_module *moe = MOE(.num_experts = 4, .min_capacity = -1);
    lean_to_first(moe);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = positive(16), *y = ds_call(moe, x);
    CHECK_INT(ds_moe_capacity(moe), 4);
    CHECK_INT(number(ds_moe_exp_counts(moe), 0), 16);
    CHECK_INT(number(ds_moe_taken_counts(moe), 0), 4);
    CHECK_CLOSE(ds_item(ds_moe_aux_loss(moe)), 4, 1e-3);
    int64_t kept = 0;
    const float *v = ds_data(y);
    for (int i = 0; i < 16; i++) kept += v[4 * i] != 0 || v[4 * i + 1] != 0;
    CHECK_INT(kept, 4);
    /* experts without a token have gradients, of zeros */
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    for (int i = 1; i < ds_module_params(moe); i++) {
        ds_tensor *g = ds_grad(ds_module_param_at(moe, i, NULL));
        CHECK(g);
        double sum = ds_item(ds_sum(ds_abs(g)));
        CHECK(i < 3 ? sum > 0 : sum == 0);
    }
    ds_scope_close(scope);
    ds_module_free(moe);
}

/* As many as there are, however many may come; and NaN, as before a loss scale
 * fits, is no trouble. */
static void infinite_factors_and_nan(void **state)
{
    (void)state;
    for (int k = 1; k <= 3; k++) {
        ds_module *moe = MOE(.num_experts = 4, .k = k, .capacity_factor = INFINITY);
        lean_to_first(moe);
        ds_scope *scope = ds_scope_open();
        CHECK(ds_call(moe, positive(16)));
        CHECK_INT(total(ds_moe_taken_counts(moe)), 16 * k);
        ds_scope_close(scope);
        ds_module_free(moe);

        moe = MOE(.num_experts = 4, .k = k);
        scope = ds_scope_open();
        CHECK(ds_call(moe, ds_full(DS_F32, ds_shape(64, 4), NAN)));
        CHECK_INT(number(ds_moe_taken_counts(moe), 0), 16 * k);
        ds_scope_close(scope);
        ds_module_free(moe);
    }
}

/* Which places of 16 tokens have an answer. */
static unsigned answered(ds_module *moe, ds_tensor *x)
{
    const float *v = ds_data(ds_call(moe, x));
    unsigned set = 0;
    for (int i = 0; v && i < 16; i++) set |= (v[4 * i] != 0 ? 1u : 0u) << i;
    return set;
}

static void random_tokens_stay(void **state)
{
    (void)state;
    ds_module *moe = MOE(.num_experts = 4, .min_capacity = -1);
    lean_to_first(moe);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = positive(16);
    int times[16] = {0}, same = 0;
    for (int k = 0; k < 400; k++) {
        unsigned set = answered(moe, x);
        CHECK_INT(number(ds_moe_taken_counts(moe), 0), 4);
        same += set == 15;
        for (int i = 0; i < 16; i++) times[i] += set >> i & 1;
    }
    CHECK(same < 20);
    for (int i = 0; i < 16; i++) CHECK(times[i] > 60 && times[i] < 140); /* 100 +- 4.6 sigma */
    ds_module_train(moe, false); /* the same answer each time */
    CHECK_INT(answered(moe, x), 15);
    CHECK_INT(answered(moe, x), 15);
    ds_scope_close(scope);
    ds_module_free(moe);
}

/* p of expert 0 is 1/2 in both ways to draw: the second of three by Gumbel
 * noise, and the first with RSample. */
static void sampling_follows_p(void **state)
{
    (void)state;
    ds_module *moe = MOE(.num_experts = 2, .noisy_gate_policy = "RSample", .min_capacity = -1);
    ds_module *two = MOE(.num_experts = 3, .k = 2, .min_capacity = -1, .no_drop_tokens = true);
    ds_init_constant(ds_module_param_at(moe, 0, NULL), 0);
    ds_init_constant(ds_module_param_at(two, 0, NULL), 0);
    set_element(ds_module_param_at(moe, 0, NULL), 0, logf(3)); /* p = 3/4, 1/4 */
    set_element(ds_module_param_at(two, 0, NULL), 0, 9);       /* first expert 0, */
    set_element(ds_module_param_at(two, 0, NULL), 4, logf(3)); /* of the others 3/4 and 1/4 */
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(4000, 4));
    CHECK(ds_call(moe, x) && ds_call(two, x));
    CHECK_CLOSE((double)number(ds_moe_exp_counts(moe), 0), 3000, 120); /* sigma: 27 */
    CHECK_INT(number(ds_moe_exp_counts(two), 0), 4000);
    CHECK_CLOSE((double)number(ds_moe_exp_counts(two), 1), 3000, 120);
    ds_module_train(moe, false), ds_module_train(two, false); /* no noise */
    CHECK(ds_call(moe, x) && ds_call(two, x));
    CHECK_INT(number(ds_moe_exp_counts(moe), 0), 4000);
    CHECK_INT(number(ds_moe_exp_counts(two), 1), 4000);
    ds_scope_close(scope);
    ds_module_free(moe);
    ds_module_free(two);
}

static void jitter_moves_the_gate_alone(void **state)
{
    (void)state;
    ds_module *moe = MOE(.num_experts = 2, .noisy_gate_policy = "Jitter", .no_drop_tokens = true,
                         .min_capacity = -1);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = tokens(64);
    const float *a = ds_data(ds_call(moe, x)), *b = ds_data(ds_call(moe, x));
    double most = 0;
    for (int i = 0; i < 256; i++) /* gcc 12 for aarch64 crashes at an fmax here */
        if (fabs((double)a[i] - b[i]) > most) most = fabs((double)a[i] - b[i]);
    CHECK(most > 0 && most < 0.2);
    ds_module_train(moe, false);
    a = ds_data(ds_call(moe, x)), b = ds_data(ds_call(moe, x));
    assert_memory_equal(a, b, 256 * sizeof *a);
    ds_scope_close(scope);
    ds_module_free(moe);
}

/* In one batch all go to expert 0, in the next some are left out; whatever
 * happens every sum is there. */
static void fewer_tokens_than_room(void **state)
{
    (void)state;
    ds_module *moe = MOE(.num_experts = 4, .k = 2, .min_capacity = 8);
    ds_scope *scope = ds_scope_open();
    CHECK(ds_call(moe, tokens(1)));
    CHECK_INT(ds_moe_capacity(moe), 8);
    CHECK_INT(total(ds_moe_taken_counts(moe)), 2);
    CHECK(ds_call(moe, ds_reshape(tokens(6), ds_shape(2, 3, 4))));
    CHECK_INT(total(ds_moe_taken_counts(moe)), 12);
    ds_scope_close(scope);
    ds_module_free(moe);
}

/* ---- checkpoints of activations; 16 bits; float64 ---------------------------------------------------------------- */

static ds_tensor *layer_of(void *moe, ds_tensor **in, int n) { return ds_call_n(moe, in, n); }

static void gradients_are_right(void **state)
{
    (void)state;
    for (int k = 1; k <= 3; k++) {
        ds_seed(5);
        ds_module *moe = MOE(.num_experts = 3, .k = k, .use_residual = k == 2, .min_capacity = -1,
                             .no_rts = true, .no_top2_2nd_expert_sampling = true);
        CHECK_INT(ds_module_to(moe, DS_F64), DS_OK);
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_require_grad(ds_randn(DS_F64, ds_shape(7, 4)), true);
        CHECK_INT(ds_gradcheck(layer_of, moe, &x, 1, (ds_gradcheck_opts){0}), DS_OK);
        ds_scope_close(scope);
        ds_module_free(moe);
    }
}

static void recomputed(void **state)
{
    (void)state;
    ds_module *moe = MOE(.num_experts = 2, .noisy_gate_policy = "RSample");
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(tokens(16), true);
    ds_seed(4);
    CHECK_INT(ds_backward(ds_sum(ds_call(moe, x))), DS_OK);
    ds_tensor *want = ds_clone(ds_grad(x));
    ds_set_grad_of(x, NULL);
    ds_seed(4);
    ds_tensor *y = ds_checkpoint_call(moe, x);
    CHECK_INT(total(ds_moe_exp_counts(moe)), 16);
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    assert_memory_equal(ds_data(ds_grad(x)), ds_data(want), 64 * sizeof(float));
    ds_scope_close(scope);
    ds_module_free(moe);
}

/* ---- the layer's loss comes through a checkpoint ------------------------------------------------------------- */

/* Two layers, one after the other; `inner`: the second in a checkpoint of its
 * own. */
typedef struct Pair {
    ds_module *a, *b;
    bool inner;
} Pair;

static ds_tensor *pair_forward(void *self, ds_tensor *x)
{
    Pair *p = self;
    x = ds_call(p->a, x);
    return p->inner ? ds_checkpoint_call(p->b, x) : ds_call(p->b, x);
}

static ds_module *make_pair(bool inner)
{
    static const ds_module_type type = {"Pair", sizeof(Pair), .forward = pair_forward};
    ds_module *m = ds_module_new(NULL, "pair", &type);
    Pair *p = ds_self(m);
    p->inner = inner;
    p->a = ds_nn_moe(m, "a", 4, linear, .num_experts = 3, .noisy_gate_policy = "RSample");
    p->b = ds_nn_moe(m, "b", 4, linear, .num_experts = 2, .k = 2);
    return m;
}

/* sum(y) and the layers' losses, or (what = 1, 2) only one of them */
static void pair_backward(ds_module *m, ds_tensor *x, bool checkpoint, int what)
{
    ds_seed(4);
    for (int i = 0; i < ds_module_params(m); i++)
        ds_set_grad_of(ds_module_param_at(m, i, NULL), NULL);
    ds_set_grad_of(x, NULL);
    ds_tensor *y = ds_sum(checkpoint ? ds_checkpoint_call(m, x) : ds_call(m, x));
    ds_tensor *aux = ds_moe_aux_loss(m);
    CHECK_INT(ds_backward(what == 1 ? y : what == 2 ? aux : ds_add(y, ds_scale(aux, 0.1))), DS_OK);
}

static void check_pair(ds_module *m, int what)
{
    enum { MOST = 32 };
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(tokens(16), true), *want[MOST] = {0};
    int n = ds_module_params(m);
    CHECK(n < MOST);
    pair_backward(m, x, false, what);
    for (int i = 0; i <= n; i++) {
        ds_tensor *g = ds_grad(i < n ? ds_module_param_at(m, i, NULL) : x);
        want[i] = g ? ds_clone(g) : NULL;
    }
    pair_backward(m, x, true, what);
    for (int i = 0; i <= n; i++) {
        ds_tensor *g = ds_grad(i < n ? ds_module_param_at(m, i, NULL) : x);
        CHECK(!g == !want[i]);
        if (g)
            assert_memory_equal(ds_data(g), ds_data(want[i]), (size_t)ds_numel(g) * sizeof(float));
    }
    ds_scope_close(scope);
}

static void losses_of_recomputed_layers(void **state)
{
    (void)state;
    for (int inner = 0; inner < 2; inner++) {
        ds_module *m = make_pair(inner);
        for (int what = 0; what < 3; what++) check_pair(m, what);
        ds_module_free(m);
    }
}

static void in_16_bits(void **state)
{
    (void)state;
    ds_module *moe = MOE(.num_experts = 3, .k = 2, .use_residual = true);
    CHECK_INT(ds_module_to(moe, DS_BF16), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = ds_call(moe, ds_cast(tokens(9), DS_BF16)), *aux = ds_moe_aux_loss(moe);
    CHECK_INT(ds_dtype_of(y), DS_BF16);
    CHECK_INT(ds_dtype_of(aux), DS_F32); /* the gate is always float32 */
    CHECK_INT(ds_backward(ds_add(ds_cast(ds_sum(y), DS_F32), aux)), DS_OK);
    for (int i = 0; i < ds_module_params(moe); i++) {
        ds_tensor *p = ds_module_param_at(moe, i, NULL);
        CHECK(ds_grad(p) && ds_dtype_of(ds_grad(p)) == DS_BF16);
    }
    ds_scope_close(scope);
    ds_module_free(moe);
}

/* ---- what is refused ----------------------------------------------------------------------------------------------- */

static void refused(ds_module *moe, const char *why)
{
    CHECK_ERROR(why);
    CHECK(!ds_call(moe, tokens(8))); /* it is there, and does nothing */
    ds_error_clear();
    ds_module_free(moe);
}

static void bad_options(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    refused(MOE(.num_experts = -1), "MoE moe: num_experts is -1: expected at least 1");
    refused(MOE(.num_experts = 3, .ep_size = 2),
            "num_experts is 3: expected a multiple of ep_size");
    refused(MOE(.num_experts = 2, .k = 3),
            "MoE moe: k is 3: expected 1 to num_experts, which is 2");
    refused(MOE(.num_experts = 2, .noisy_gate_policy = "Gauss"),
            "noisy_gate_policy is \"Gauss\": expected None, Jitter or RSample");
    refused(MOE(.num_experts = 2, .capacity_factor = -1), "capacity_factor is -1");
    refused(MOE(.num_experts = 2, .ep_size = 2), "ep_size is 2, but the number of ranks is 1");
    refused(ds_nn_moe(NULL, "moe", 0, linear), "hidden is 0");
    refused(ds_nn_moe(NULL, "moe", 4, NULL), ".expert is NULL");
    refused(ds_nn_moe(NULL, "moe", 4, nothing), "MoE moe: .expert returned NULL");
    refused(ds_nn_moe(NULL, "moe", 4, nested), "is inside of an expert");
    ds_scope_close(scope);
}

static void bad_calls(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *moe = MOE(.num_experts = 2), *other = ds_nn_moe(NULL, "moe", 4, wide);
    CHECK(!ds_call(moe, ds_ones(DS_F32, ds_shape(8, 5))));
    CHECK_ERROR("moe: MoE takes x [...,4]");
    CHECK(!ds_call(moe, tokens(0)));
    CHECK_ERROR("of 0 elements");
    CHECK(!ds_call(moe, tokens(3)));
    CHECK_ERROR("moe: MoE: 3 tokens, but min_capacity is 4");
    CHECK(!ds_call(moe, tokens(8), ds_ones(DS_I64, ds_shape(7))));
    CHECK_ERROR("used_token has 7 elements: expected one for each of 8 tokens");
    CHECK(!ds_call(other, tokens(8)));
    CHECK_ERROR("8 x 5, for rows of 8 x 4: expected the same");
    CHECK(!ds_moe_aux_loss(NULL) && ds_moe_layers(NULL) == 0);
    ds_module_free(moe);
    ds_module_free(other);
    ds_scope_close(scope);
}

/* ---- state dicts where ranks share experts ----------------------------------------------------------------------------- */

static ds_status load_shared(void *arg)
{
    (void)arg;
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world());
    ds_module *all = MOE(.num_experts = 24), *moe = MOE(.num_experts = 24, .ep_size = ranks);
    for (int i = 0; i < ds_module_params(all); i++)
        ds_init_constant(ds_module_param_at(all, i, NULL), i);
    ds_state *whole = ds_module_state(all);
    RANK_CHECK(ds_module_load(moe, whole) == DS_OK);
    ds_tensor *mine = ds_module_param_at(moe, 1, NULL); /* the weight of the first one */
    RANK_CHECK(*(const float *)ds_data(mine) == (float)(1 + 2 * (24 / ranks) * rank));
    RANK_CHECK(dsi_module_expert_of(moe, mine).number == 24 / ranks * rank);
    ds_state_set(whole, "deepspeed_moe.experts.deepspeed_experts.24.bias", mine);
    RANK_CHECK(ds_module_load(moe, whole) == DS_EINVAL);
    RANK_CHECK(strstr(ds_error(), "unknown deepspeed_moe.experts.deepspeed_experts.24.bias"));
    ds_error_clear();
    /* a part: the rank's own experts load, those of other ranks are not
     * unexpected */
    ds_state *missing, *unexpected;
    ds_init_constant(mine, -1);
    RANK_CHECK(ds_module_load_partial(moe, whole, &missing, &unexpected) == DS_OK);
    RANK_CHECK(*(const float *)ds_data(mine) == (float)(1 + 2 * (24 / ranks) * rank));
    RANK_CHECK(ds_state_len(missing) == 0 && ds_state_len(unexpected) == 1);
    ds_state_free(missing), ds_state_free(unexpected);
    ds_state_free(whole);
    ds_module_free(all);
    ds_module_free(moe);
    return DS_OK;
}

static void whole_state_dicts_fit(void **state)
{
    (void)state;
    TEST_RANKS(load_shared, NULL);
}

TEST_MAIN(cmocka_unit_test(names), cmocka_unit_test(layers_are_counted),
          cmocka_unit_test(full_experts_drop), cmocka_unit_test(infinite_factors_and_nan),
          cmocka_unit_test(random_tokens_stay), cmocka_unit_test(sampling_follows_p),
          cmocka_unit_test(jitter_moves_the_gate_alone), cmocka_unit_test(fewer_tokens_than_room),
          cmocka_unit_test(gradients_are_right), cmocka_unit_test(recomputed),
          cmocka_unit_test(losses_of_recomputed_layers), cmocka_unit_test(in_16_bits),
          cmocka_unit_test(bad_options), cmocka_unit_test(bad_calls),
          cmocka_unit_test(whole_state_dicts_fit))
