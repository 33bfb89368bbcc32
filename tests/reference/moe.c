/* tests/reference/moe.c: a layer of experts beside DeepSpeed's: output, loss
 * for balance, counts, routes, and gradients of sum(output * grad_output) +
 * l_aux_coefficient * l_aux.
 *
 * The case's tolerances come from its run in float64, in which DeepSpeed's gate
 * is float32 nevertheless: what the rounding of probabilities does to gradients
 * is not in them, and is added here.
 *
 * Which tokens of a full expert stay, where DeepSpeed leaves it to the order of
 * equal values, is taken from the case; that as many stay is compared first.
 * SPDX-License-Identifier: MIT */
#include "nn/moe.h"
#include "check.h"
#include "reference.h"

/* ---- the layer of a case ------------------------------------------------------------------------------- */

static ds_module *linear(ds_module *parent, const char *name, void *arg)
{
    int64_t hidden = *(int64_t *)arg;
    return ds_nn_linear(parent, name, hidden, hidden);
}

static ds_module *mlp(ds_module *parent, const char *name, void *arg)
{
    int64_t hidden = *(int64_t *)arg;
    ds_module *m = ds_nn_sequential(parent, name);
    ds_nn_linear(m, "0", hidden, 2 * hidden);
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", 2 * hidden, hidden);
    return m;
}

static bool make_layer(Reference *r, int64_t *hidden, ds_module **moe)
{
    static const char *const known[] = {"num_experts",
                                        "ep_size",
                                        "k",
                                        "noisy_gate_policy",
                                        "use_rts",
                                        "min_capacity",
                                        "capacity_factor",
                                        "eval_capacity_factor",
                                        "drop_tokens",
                                        "use_residual",
                                        "top2_2nd_expert_sampling"};
    const json_t *o = json_object_get(r->json, "moe");
    const char *kind = reference_text(r->json, "expert", ""), *key;
    json_t *value;
    json_object_foreach((json_t *)o, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= !strcmp(key, known[i]);
        if (!found) reference_fail(r, "the option %s is not understood", key);
    }
    if (strcmp(kind, "linear") != 0 && strcmp(kind, "mlp") != 0)
        reference_fail(r, "the expert %s is not understood", kind);
    int64_t min_capacity = reference_int(o, "min_capacity", 4);
    *hidden = reference_int(r->json, "hidden", 0);
    *moe = ds_nn_moe(
        NULL, "moe", *hidden, !strcmp(kind, "linear") ? linear : mlp, .arg = hidden,
        .num_experts = (int)reference_int(o, "num_experts", 1),
        .ep_size = (int)reference_int(o, "ep_size", 1), .k = (int)reference_int(o, "k", 1),
        .capacity_factor = reference_double(o, "capacity_factor", 1),
        .eval_capacity_factor = reference_double(o, "eval_capacity_factor", 1),
        .min_capacity = min_capacity ? min_capacity : -1,
        .use_residual = reference_bool(o, "use_residual", false),
        .noisy_gate_policy = reference_text(o, "noisy_gate_policy", NULL),
        .no_drop_tokens = !reference_bool(o, "drop_tokens", true),
        .no_rts = !reference_bool(o, "use_rts", true),
        .no_top2_2nd_expert_sampling = !reference_bool(o, "top2_2nd_expert_sampling", true));
    return !ds_error() && !r->failures;
}

static bool load_weights(const Reference *r, ds_module *moe)
{
    ds_state *mine = ds_module_state(moe), *given = ds_state_new();
    for (int i = 0; i < ds_state_len(mine); i++) {
        char name[256];
        snprintf(name, sizeof name, "weight.%s", ds_state_name(mine, i));
        ds_tensor *w = reference_tensor(r, name);
        if (w) ds_state_set(given, ds_state_name(mine, i), w);
    }
    bool loaded = ds_module_load(moe, given) == DS_OK;
    ds_state_free(mine);
    ds_state_free(given);
    return loaded;
}

/* ---- routes -------------------------------------------------------------------------------------------- */

/* The case that runs, and the layer's own decision, whose place it takes. */
static struct {
    Reference *r;
    dsi_route_fn *own;
    int64_t dropped;
} given;

/* The case's [k,S] tensor as int64 [S,k] values. */
static int64_t stored(const ds_tensor *t, int64_t s, int64_t k)
{
    return ((const int32_t *)ds_data((ds_tensor *)t))[k * ds_size(t, 1) + s];
}

static void compare_routes(const dsi_routes *r, const ds_tensor *index, const ds_tensor *place)
{
    int64_t tokens = ds_size(r->expert, 0), choices = ds_size(r->expert, 1);
    const int64_t *e = ds_data(r->expert), *p = ds_data(r->place);
    for (int64_t s = 0; s < tokens; s++)
        for (int64_t k = 0; k < choices; k++) {
            int64_t i = s * choices + k, want = stored(index, s, k);
            if ((p[i] < 0 ? -1 : e[i]) != want || (want >= 0 && p[i] != stored(place, s, k)))
                reference_fail(given.r,
                               "token %lld, choice %lld: expert %lld place %lld, want %lld %lld",
                               (long long)s, (long long)k, (long long)e[i], (long long)p[i],
                               (long long)want, (long long)stored(place, s, k));
        }
}

/* Writes x, of the CPU, over *to. */
static void put(ds_tensor *to, ds_tensor *x)
{
    if (to) CHECK_INT(ds_copy(to, x), DS_OK);
}

static void take_routes(dsi_routes *r, const ds_tensor *index, const ds_tensor *place)
{
    const ds_device cpu = {DS_CPU, 0};
    ds_tensor *expert = ds_clone(ds_to(r->expert, cpu, DS_I64)), *at = ds_clone(expert),
              *slot = ds_clone(expert), *taken = ds_clone(ds_to(r->taken, cpu, DS_I64));
    int64_t *e = ds_data_mut(expert), *p = ds_data_mut(at), *row = ds_data_mut(slot),
            *n = ds_data_mut(taken);
    memset(n, 0, (size_t)ds_numel(taken) * sizeof *n);
    for (int64_t s = 0; s < ds_numel(expert); s++) { /* k = 1 */
        p[s] = row[s] = -1;
        if (stored(index, s, 0) < 0) continue;
        e[s] = stored(index, s, 0);
        p[s] = stored(place, s, 0);
        row[s] = e[s] * r->rows + p[s];
        n[e[s]]++;
    }
    put(r->expert, expert), put(r->place, at), put(r->slot, slot), put(r->taken, taken);
}

static bool decide(const dsi_gate *g, ds_tensor *logits, ds_tensor *p, ds_tensor *used,
                   dsi_routes *r)
{
    ds_tensor *index = reference_tensor(given.r, "route.indices"),
              *place = reference_tensor(given.r, "route.locations");
    if (!given.own(g, logits, p, used, r)) return false;
    const int64_t *at = ds_data(r->place);
    given.dropped = 0;
    for (int64_t i = 0; i < ds_numel(r->place); i++) given.dropped += at[i] < 0;
    if (reference_bool(given.r->json, "random", false)) return true;
    if (reference_bool(given.r->json, "arbitrary_drops", false))
        take_routes(r, index, place);
    else
        compare_routes(r, index, place);
    return true;
}

/* ---- comparison ---------------------------------------------------------------------------------------- */

static void compare_counts(Reference *r, ds_module *moe)
{
    const json_t *want = json_object_get(r->json, "exp_counts");
    const int64_t *got = ds_data(ds_moe_exp_counts(moe));
    bool random = reference_bool(r->json, "random", false);
    int64_t sum = 0, wanted = 0;
    for (size_t e = 0; e < json_array_size(want); e++) {
        int64_t n = json_integer_value(json_array_get(want, e));
        sum += got[e];
        wanted += n;
        if (!random && got[e] != n)
            reference_fail(r, "exp_counts[%zu] is %lld, want %lld", e, (long long)got[e],
                           (long long)n);
    }
    if (sum != wanted)
        reference_fail(r, "exp_counts are %lld in all, want %lld", (long long)sum,
                       (long long)wanted);
    int64_t capacity = reference_int(r->json, "capacity", -1),
            dropped = reference_int(r->json, "dropped_routes", -1);
    if (ds_moe_capacity(moe) != capacity)
        reference_fail(r, "capacity is %lld, want %lld", (long long)ds_moe_capacity(moe),
                       (long long)capacity);
    if (!random && given.dropped != dropped)
        reference_fail(r, "%lld routes were dropped, want %lld", (long long)given.dropped,
                       (long long)dropped);
}

/* Half an ulp of a probability that counts as much as the largest gradient, a
 * few times over. */
static double gate_rounding(const Reference *r)
{
    double most = 0;
    for (int i = 0; i < ds_state_len(r->tensors); i++) {
        ds_tensor *t = ds_state_at(r->tensors, i);
        const float *x = ds_data(t);
        if (strncmp(ds_state_name(r->tensors, i), "grad.", 5) != 0) continue;
        for (int64_t k = 0; k < ds_numel(t); k++) most = fmax(most, fabs((double)x[k]));
    }
    return 0x1p-22 * most;
}

static void compare_gradient(Reference *r, const char *path, ds_tensor *grad)
{
    char name[256];
    snprintf(name, sizeof name, "grad.%s", path);
    double atol = reference_double(json_object_get(r->json, "atol"), name, NAN);
    ds_tensor *want = reference_tensor(r, name);
    if (!grad || !want)
        reference_fail(r, "%s has no gradient %s", path, grad ? "there" : "here");
    else
        reference_within(r, name, grad, want, atol + gate_rounding(r), 0);
}

static void compare_gradients(Reference *r, ds_module *moe)
{
    for (int i = 0; i < ds_module_params(moe); i++) {
        const char *path;
        ds_tensor *p = ds_module_param_at(moe, i, &path);
        compare_gradient(r, path, ds_grad(p));
    }
}

static void run_layer(Reference *r, ds_module *moe)
{
    ds_device device = ds_current_device(); /* the values are on the CPU */
    ds_tensor *x = ds_to(ds_clone(reference_tensor(r, "input")), device, DS_F32),
              *dy = ds_to(reference_tensor(r, "grad_output"), device, DS_F32);
    ds_tensor *used = reference_tensor(r, "used_token");
    dsi_gate *gate = dsi_moe_gate(moe);
    given.r = r;
    given.own = gate->route;
    gate->route = decide;
    ds_require_grad(x, true);
    ds_module_train(moe, reference_bool(r->json, "train", true));
    ds_tensor *y = used ? ds_call(moe, x, used) : ds_call(moe, x), *aux = ds_moe_aux_loss(moe);
    double part = reference_double(r->json, "l_aux_coefficient", 0);
    ds_tensor *loss = ds_add(ds_sum(ds_mul(y, dy)), ds_scale(aux, part));
    if (ds_backward(loss) != DS_OK) {
        reference_fail(r, "%s", ds_error());
        return;
    }
    compare_counts(r, moe);
    if (reference_bool(r->json, "random", false)) {
        if (!isfinite(ds_item(loss))) reference_fail(r, "the loss is %g", ds_item(loss));
        return;
    }
    reference_close(r, "output", y);
    reference_close(r, "l_aux", ds_reshape(aux, ds_shape(1)));
    compare_gradient(r, "input", ds_grad(x));
    compare_gradients(r, moe);
}

static void run_case(Reference *r)
{
    const json_t *raises = json_object_get(r->json, "raises");
    int64_t hidden;
    ds_module *moe;
    bool made = make_layer(r, &hidden, &moe);
    if (raises) { /* at the making, or at the call */
        ds_dims shape = reference_dims(r->json, "input");
        if (made && ds_call(moe, ds_zeros(DS_F32, shape))) reference_fail(r, "it was not refused");
        ds_error_clear();
    } else if (!made || !load_weights(r, moe)) {
        reference_fail(r, "%s", ds_error() ? ds_error() : "the case is not understood");
        ds_error_clear();
    } else {
        run_layer(r, moe);
        ds_error_clear();
    }
    ds_module_free(moe);
}

static void layers(void **state)
{
    (void)state;
    CHECK_INT(reference_each("moe", run_case), 0);
}

TEST_MAIN(cmocka_unit_test(layers))
