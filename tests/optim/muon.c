/* tests/optim/muon.c: which parameters Muon updates, and by what; shapes, 16 bits,
 * the state dict, and refused options. Traces: tests/reference/lm_muon.c.
 * SPDX-License-Identifier: MIT */
#include "optim/given.h"

static ds_tensor *random_tensor(ds_dims shape, uint64_t seed)
{
    ds_seed(seed);
    return ds_randn(DS_F32, shape);
}

/* One parameter of that name and shape. */
static ds_module *one_param(const char *name, ds_dims shape)
{
    static const ds_module_type type = {.name = "One"};
    ds_module *m = ds_module_new(NULL, "one", &type);
    ds_module_param(m, name, random_tensor(shape, 1));
    return m;
}

static void set_grad(ds_module *m, int i, uint64_t seed)
{
    ds_tensor *p = ds_module_param_at(m, i, NULL);
    CHECK_INT(ds_set_grad_of(p, ds_cast(random_tensor(ds_shape_of(p), seed), ds_dtype_of(p))),
              DS_OK);
}

/* The update of one step of rate 1 without decay. */
static ds_tensor *update_of(ds_module *m, ds_muon_opts o)
{
    ds_tensor *before = ds_clone(ds_detach(ds_module_param_at(m, 0, NULL)));
    o.lr = 1;
    ds_optim *optim = ds_optim_muon_with(m, o);
    set_grad(m, 0, 2);
    CHECK_INT(ds_optim_step(optim), DS_OK);
    ds_optim_free(optim);
    return ds_sub(before, ds_detach(ds_module_param_at(m, 0, NULL)));
}

static double largest(ds_tensor *x)
{
    return ds_item(ds_max(ds_reshape(ds_abs(x), ds_shape(-1)), 0, false));
}

/* ---- groups ---- */

static void groups_by_name_and_shape(void **state)
{
    (void)state;
    static const ds_module_type type = {.name = "Some"};
    const struct {
        const char *name;
        ds_dims shape;
        int group;
    } params[] = {{"w", ds_shape(2, 3), 0},           {"b", ds_shape(3), 1},
                  {"Embed_table", ds_shape(4, 2), 1}, {"lm_head", ds_shape(4, 2), 1},
                  {"conv", ds_shape(2, 3, 3, 3), 0},  {"wte", ds_shape(4, 2), 0}};
    enum { N = sizeof params / sizeof *params };
    ds_module *m = ds_module_new(NULL, "some", &type);
    for (int i = 0; i < N; i++)
        ds_module_param(m, params[i].name, random_tensor(params[i].shape, 3));
    ds_optim *o = ds_optim_by_name(m, "Muon", "{\"lr\": 0.1, \"adam_lr\": 0.2}");
    CHECK(o != NULL);
    CHECK_INT(ds_optim_groups(o), 2);
    for (int i = 0; i < N; i++) CHECK_INT(ds_optim_group_of(o, params[i].name), params[i].group);
    CHECK_CLOSE(ds_optim_group_lr(o, 0), 0.1, 0);
    CHECK_CLOSE(ds_optim_group_lr(o, 1), 0.2, 0);
    for (int i = 0; i < N; i++) set_grad(m, i, 4);
    CHECK_INT(ds_optim_step(o), DS_OK);
    ds_state *s = ds_optim_state(o);
    CHECK(ds_state_get(s, "momentum_buffer.w") && !ds_state_get(s, "exp_avg.w"));
    CHECK(!ds_state_get(s, "momentum_buffer.b") && ds_state_get(s, "exp_avg_sq.b"));
    ds_state_free(s);
    CHECK_INT(ds_optim_split_group(o, 1, NULL, NULL), -1);
    ds_error_clear();
    ds_optim_free(o);
    ds_module_free(m);
}

/* muon_lr and adam_lr come before lr, whose defaults differ. */
static void rates(void **state)
{
    (void)state;
    ds_module *m = given_new(DS_F32);
    const struct {
        const char *params;
        double muon, adam;
    } cases[] = {{NULL, 0.02, 3e-4},
                 {"{\"lr\": 0.5}", 0.5, 0.5},
                 {"{\"lr\": 0}", 0, 0},
                 {"{\"muon_lr\": 0.5}", 0.5, 3e-4},
                 {"{\"lr\": 1, \"muon_lr\": 0, \"adam_lr\": 0.25}", 0, 0.25}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_optim *o = ds_optim_by_name(m, "muon", cases[i].params);
        CHECK(o != NULL);
        CHECK_CLOSE(ds_optim_group_lr(o, 0), cases[i].muon, 0);
        CHECK_CLOSE(ds_optim_group_lr(o, 1), cases[i].adam, 0);
        ds_optim_free(o);
    }
    ds_module_free(m);
}

/* ---- updates ---- */

/* Vectors take AdamW's step, of which the first is lr sign(g). */
static void vectors_take_adamw(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = one_param("b", ds_shape(5));
    ds_tensor *u = update_of(m, (ds_muon_opts){0});
    CHECK_CLOSE(largest(ds_shift(ds_abs(u), -1)), 0, 1e-5);
    ds_module_free(m);
    ds_scope_close(scope);
}

/* Without a gradient AdamW decays the vector alone; Adam's gradient is then the
 * decay, and its first step is lr sign(p). */
static void decay_of_vectors(void **state)
{
    (void)state;
    static const char *const modes[] = {
        "{\"lr\": 0.5, \"weight_decay\": 0.1, \"torch_adam\": true}",
        "{\"lr\": 0.5, \"weight_decay\": 0.1, "
        "\"adam_w_mode\": false}"};
    for (int i = 0; i < 2; i++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = one_param("b", ds_shape(5));
        ds_tensor *p = ds_module_param_at(m, 0, NULL), *before = ds_clone(ds_detach(p));
        ds_optim *o = ds_optim_by_name(m, "Muon", modes[i]);
        CHECK(o != NULL);
        CHECK_INT(ds_set_grad_of(p, ds_zeros(DS_F32, ds_shape(5))), DS_OK);
        CHECK_INT(ds_optim_step(o), DS_OK);
        ds_tensor *want = i ? ds_add_scaled(before, ds_sign(before), -0.5)
                            : ds_scale(before, 1 - 0.5 * 0.1);
        CHECK_CLOSE(largest(ds_sub(ds_detach(p), want)), 0, 1e-6);
        ds_optim_free(o);
        ds_module_free(m);
        ds_scope_close(scope);
    }
}

/* A filter is a matrix of its first dimension and the rest; 3 dimensions are
 * matrices of the last two. Both methods give the same. */
static void shapes_and_methods(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *filter = one_param("w", ds_shape(4, 2, 3, 3)),
              *matrix = one_param("w", ds_shape(4, 18)), *three = one_param("w", ds_shape(3, 5, 7)),
              *again = one_param("w", ds_shape(3, 5, 7));
    ds_tensor *x = update_of(filter, (ds_muon_opts){0});
    ds_tensor *y = update_of(matrix, (ds_muon_opts){0});
    CHECK(x && y && largest(ds_sub(ds_reshape(x, ds_shape(4, 18)), y)) < 1e-6);
    ds_tensor *gram = ds_matmul(y, ds_transpose(y, 0, 1)); /* near the identity */
    const float *g = ds_data(gram);
    for (int i = 0; i < 16; i++) CHECK(i % 5 ? fabsf(g[i]) < 0.4F : g[i] > 0.4F && g[i] < 1.6F);
    x = update_of(three, (ds_muon_opts){0});
    y = update_of(again, (ds_muon_opts){.ns_standard = true});
    CHECK(x && y && largest(ds_sub(x, y)) < 1e-4);
    ds_module_free(filter), ds_module_free(matrix), ds_module_free(three), ds_module_free(again);
    ds_scope_close(scope);
}

/* A bfloat16 parameter, and a gradient of zeros, which moves nothing. */
static void half_and_zero(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_BF16), *f = given_new(DS_F32);
    ds_optim *o = ds_optim_muon(m, 0.5), *of = ds_optim_muon(f, 0.5);
    set_grad(m, 0, 5), set_grad(f, 0, 5);
    CHECK_INT(ds_optim_step(o), DS_OK);
    CHECK_INT(ds_optim_step(of), DS_OK);
    for (int i = 0; i < 6; i++) CHECK_CLOSE(given_at(given_w(m), i), given_at(given_w(f), i), 0.03);
    ds_optim_free(o), ds_optim_free(of);
    o = ds_optim_muon(f, 1);
    double before = given_at(given_w(f), 2);
    given_grad(given_w(f), 0);
    CHECK_INT(ds_optim_step(o), DS_OK);
    CHECK_CLOSE(given_at(given_w(f), 2), before, 0);
    ds_optim_free(o);
    ds_module_free(m), ds_module_free(f);
    ds_scope_close(scope);
}

/* ---- state dict ---- */

static void state_dict(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m[2] = {given_new(DS_F32), given_new(DS_F32)};
    ds_optim *o[2] = {ds_optim_muon(m[0], 0.1), ds_optim_muon(m[1], 0.3)};
    for (int i = 0; i < 2; i++) set_grad(m[0], i, 6);
    CHECK_INT(ds_optim_step(o[0]), DS_OK);
    ds_value *saved = ds_optim_state_dict(o[0]);
    CHECK(ds_value_find(saved, "param_groups/0/use_muon") != NULL);
    CHECK_INT(ds_optim_load_state_dict(o[1], saved), DS_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(ds_copy(ds_module_param_at(m[1], i, NULL), ds_module_param_at(m[0], i, NULL)),
                  DS_OK);
        set_grad(m[0], i, 7), set_grad(m[1], i, 7);
    }
    for (int k = 0; k < 2; k++) CHECK_INT(ds_optim_step(o[k]), DS_OK);
    for (int i = 0; i < 6; i++)
        CHECK_CLOSE(given_at(given_w(m[1]), i), given_at(given_w(m[0]), i), 0);
    ds_value_free(saved);
    for (int k = 0; k < 2; k++) ds_optim_free(o[k]), ds_module_free(m[k]);
    ds_scope_close(scope);
}

/* ---- refused ---- */

static void refused(void **state)
{
    (void)state;
    ds_module *m = given_new(DS_F32);
    CHECK_REFUSED(ds_optim_muon(m, -1), "muon: lr is -1");
    CHECK_REFUSED(ds_optim_muon(m, 1, .adam_lr = -1), "muon: adam_lr is -1");
    CHECK_REFUSED(ds_optim_muon(m, 1, .momentum = 1), "muon: momentum is 1");
    CHECK_REFUSED(ds_optim_muon(m, 1, .beta2 = 2), "muon: beta2 is 2");
    CHECK_REFUSED(ds_optim_muon(m, 1, .ns_steps = -1), "muon: ns_steps is -1");
    CHECK_REFUSED(ds_optim_muon(m, 1, .ns_coefficients = {1, NAN, 0}),
                  "muon: ns_coefficients[1] is nan");
    CHECK_REFUSED(ds_optim_by_name(m, "Muon", "{\"muon_lr\": -1}"),
                  "optimizer.params.muon_lr is -1");
    CHECK_REFUSED(ds_optim_by_name(m, "Muon", "{\"ns_method\": \"qr\"}"),
                  "optimizer.params.ns_method is \"qr\"");
    CHECK_REFUSED(ds_optim_by_name(m, "Muon", "{\"nesterov\": true}"), "nesterov");
    CHECK_REFUSED(ds_optim_by_name(m, "Muon", "{\"per_head_muon\": true}"),
                  "optimizer.params.per_head_muon is true");
    CHECK_REFUSED(ds_optim_by_name(m, "Muon", "{\"fp32_optimizer_states\": false}"),
                  "optimizer.params.fp32_optimizer_states is false");
    ds_module_free(m);
}

/* As in DeepSpeed, where Muon's defaults have no betas: neither the momentum of
 * the matrices nor the betas of the rest. */
static void a_cycle_leaves_the_momenta(void **state)
{
    (void)state;
    ds_module *m = ds_nn_linear(NULL, "fc", 3, 2);
    ds_optim *o = ds_optim_muon(m, 0.02);
    ds_schedule *s = ds_schedule_by_name(
        o, "OneCycle",
        "{\"cycle_min_lr\": 0.1, \"cycle_max_lr\": 0.3, \"cycle_first_step_size\": 2}");
    double momentum, betas[2];
    CHECK(s);
    CHECK_INT(ds_optim_groups(o), 2);
    for (int k = 0; k < 3; k++, ds_schedule_step(s)) {
        CHECK(ds_optim_group_momentum(o, 0, &momentum) && momentum == 0.95);
        CHECK(ds_optim_group_betas(o, 1, betas) && betas[0] == 0.9 && betas[1] == 0.95);
    }
    CHECK_CLOSE(ds_optim_lr(o), 0.2, 1e-12);
    ds_schedule_free(s);
    ds_optim_free(o);
    ds_module_free(m);
}

TEST_MAIN(cmocka_unit_test(a_cycle_leaves_the_momenta), cmocka_unit_test(groups_by_name_and_shape),
          cmocka_unit_test(rates), cmocka_unit_test(vectors_take_adamw),
          cmocka_unit_test(decay_of_vectors), cmocka_unit_test(shapes_and_methods),
          cmocka_unit_test(half_and_zero), cmocka_unit_test(state_dict), cmocka_unit_test(refused))
