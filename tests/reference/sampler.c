/* tests/reference/sampler.c: the files of folder sampler: random streams,
 * orders of loaders and samplers, default initial values. All bit for bit,
 * except sums and norms, which no order of summation is named for.
 * SPDX-License-Identifier: MIT */
#include "data/sampler.h"
#include "base/rng.h"
#include "check.h"
#include "classify.h"
#include "reference.h"

#include <jansson.h>

static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!value) fail_msg("the case has no \"%s\"", key);
    return value;
}

static int64_t int_of(const json_t *object, const char *key)
{
    return json_integer_value(member(object, key));
}

/* ---- random_streams ------------------------------------------------------------------------------ */

static void check_f32(Reference *r, const json_t *want, const float *got, const char *what)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        float w = (float)json_number_value(json_array_get(want, i));
        if (got[i] != w)
            reference_fail(r, "%s[%zu] is %.9g, want %.9g", what, i, (double)got[i], (double)w);
    }
}

static void check_f64(Reference *r, const json_t *want, const double *got, const char *what)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        double w = json_number_value(json_array_get(want, i));
        if (got[i] != w) reference_fail(r, "%s[%zu] is %.17g, want %.17g", what, i, got[i], w);
    }
}

static void check_i64(Reference *r, const json_t *want, const int64_t *got, const char *what)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        int64_t w = json_integer_value(json_array_get(want, i));
        if (got[i] != w)
            reference_fail(r, "%s[%zu] is %lld, want %lld", what, i, (long long)got[i],
                           (long long)w);
    }
}

static void check_permutation(Reference *r, dsi_rng *g, int64_t n, const json_t *head,
                              const json_t *tail)
{
    int64_t *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    dsi_rng_permutation(g, x, n);
    check_i64(r, head, x, "randperm");
    if (tail) check_i64(r, tail, x + n - json_array_size(tail), "randperm's tail");
    free(x);
}

/* Keys name the call: "uniform_-2_3_7" is 7 values of U(-2, 3). */
static bool check_stream(Reference *r, dsi_rng *g, const char *key, const json_t *want)
{
    enum { MOST = 4096 };
    static float x[MOST];
    static double d[MOST];
    static int64_t k[MOST];
    double a, b;
    int n = (int)json_array_size(want), used = 0;
    if (n > MOST) return false;
    if (!strcmp(key, "random_int64")) {
        for (int i = 0; i < n; i++) k[i] = dsi_rng_i64(g);
        check_i64(r, want, k, key);
    } else if (sscanf(key, "rand_float64_%n", &used), used) {
        dsi_rng_uniform_f64(g, d, n, 0, 1);
        check_f64(r, want, d, key);
    } else if (sscanf(key, "randn_float64_%n", &used), used) {
        dsi_rng_normal_f64(g, d, n, 0, 1);
        check_f64(r, want, d, key);
    } else if (sscanf(key, "uniform_%lf_%lf_%n", &a, &b, &used), used) {
        dsi_rng_uniform_f32(g, x, n, a, b);
        check_f32(r, want, x, key);
    } else if (sscanf(key, "normal_%lf_%lf_%n", &a, &b, &used), used) {
        dsi_rng_normal_f32(g, x, n, a, b);
        check_f32(r, want, x, key);
    } else if (sscanf(key, "randint_%lf_%lf_%n", &a, &b, &used), used) {
        for (int i = 0; i < n; i++) k[i] = dsi_rng_below(g, (int64_t)a, (int64_t)b);
        check_i64(r, want, k, key);
    } else if (sscanf(key, "bernoulli_%lf_%n", &a, &used), used) {
        dsi_rng_uniform_f32(g, x, n, 0, 1);
        for (int i = 0; i < n; i++) x[i] = x[i] < (float)a;
        check_f32(r, want, x, key);
    } else if (sscanf(key, "randperm_%d_head_tail%n", &n, &used), used) {
        check_permutation(r, g, n, json_array_get(want, 0), json_array_get(want, 1));
    } else if (!strcmp(key, "two_rand_3_then_randn_3")) {
        for (size_t i = 0; i < 3; i++) {
            if (i < 2)
                dsi_rng_uniform_f32(g, x, 3, 0, 1);
            else
                dsi_rng_normal_f32(g, x, 3, 0, 1);
            check_f32(r, json_array_get(want, i), x, key);
        }
    } else if (!strcmp(key, "randn_1_then_rand_3")) {
        dsi_rng_normal_f32(g, x, 1, 0, 1);
        check_f32(r, json_array_get(want, 0), x, key);
        dsi_rng_uniform_f32(g, x, 3, 0, 1);
        check_f32(r, json_array_get(want, 1), x, key);
    } else if (!strcmp(key, "randn_1_three_times")) {
        for (int i = 0; i < 3; i++) dsi_rng_normal_f32(g, x + i, 1, 0, 1);
        check_f32(r, want, x, key);
    } else if (sscanf(key, "rand_%*d%n", &used), used) {
        dsi_rng_uniform_f32(g, x, n, 0, 1);
        check_f32(r, want, x, key);
    } else if (sscanf(key, "randn_%*d%n", &used), used) {
        dsi_rng_normal_f32(g, x, n, 0, 1);
        check_f32(r, want, x, key);
    } else {
        return false;
    }
    return true;
}

static void check_streams(Reference *r, const json_t *c)
{
    const char *key;
    json_t *want;
    uint64_t seed = (uint64_t)int_of(c, "seed");
    json_object_foreach((json_t *)c, key, want)
    {
        dsi_rng g;
        dsi_rng_seed(&g, seed);
        if (!strcmp(key, "seed")) continue;
        if (!strcmp(key, "initial_seed")) {
            CHECK_INT((int64_t)g.seed, json_integer_value(want));
        } else if (!strcmp(key, "randperm")) {
            const char *n;
            json_t *order;
            json_object_foreach(want, n, order)
            {
                dsi_rng_seed(&g, seed);
                check_permutation(r, &g, atoll(n), order, NULL);
            }
        } else if (!check_stream(r, &g, key, want)) {
            reference_fail(r, "no driver for the stream \"%s\"", key);
        }
    }
}

/* ---- data_loader --------------------------------------------------------------------------------- */

/* A data set whose sample i is the number i. */
typedef struct numbers {
    int64_t n;
} numbers;

static int64_t numbers_len(void *self) { return ((numbers *)self)->n; }

static ds_status numbers_get(void *self, int64_t i, void **field)
{
    (void)self;
    *(int64_t *)field[0] = i;
    return DS_OK;
}

static ds_dataset *numbers_new(int64_t n)
{
    static const ds_dataset_type type = {"Numbers", sizeof(numbers), numbers_len, numbers_get,
                                         NULL};
    ds_dataset *d = ds_dataset_new(&type, 1, (ds_field[]){{DS_I64, {0}, "i"}});
    ((numbers *)ds_dataset_self(d))->n = n;
    return d;
}

static void check_epoch(Reference *r, ds_loader *l, const json_t *want, const char *what)
{
    ds_batch b;
    size_t n = 0;
    while (!ds_error() && ds_loader_next(l, &b)) {
        const json_t *batch = json_array_get(want, n);
        CHECK_INT(b.size, (int64_t)json_array_size(batch));
        check_i64(r, batch, ds_data(b.x), what);
        check_i64(r, batch, b.index, what);
        n++;
    }
    CHECK(!ds_error());
    CHECK_INT((int64_t)n, (int64_t)json_array_size(want));
}

static void check_loader(Reference *r, const json_t *c, int workers)
{
    ds_loader *l = ds_loader_new(numbers_new(int_of(c, "length")), int_of(c, "batch_size"),
                                 .shuffle = json_is_true(member(c, "shuffle")),
                                 .drop_last = json_is_true(member(c, "drop_last")),
                                 .workers = workers);
    CHECK_INT(ds_loader_len(l), int_of(c, "len"));
    ds_seed((uint64_t)int_of(c, "manual_seed"));
    for (int epoch = 0; epoch < 100; epoch++) {
        char key[32];
        snprintf(key, sizeof key, "epoch_%d", epoch);
        if (!json_object_get(c, key)) break;
        check_epoch(r, l, member(c, key), key);
    }
    ds_loader_free(l);
}

static void check_random_sampler(Reference *r, const json_t *c)
{
    dsi_rng g;
    dsi_rng_seed(&g, (uint64_t)int_of(c, "generator_seed"));
    const json_t *want = member(c, "order"), *samples = member(c, "num_samples");
    int64_t len = int_of(c, "length");
    int64_t n = json_is_null(samples) ? len : json_integer_value(samples);
    CHECK_INT(n, (int64_t)json_array_size(want));
    int64_t *order = malloc((size_t)n * sizeof *order);
    dsi_order_random(&g, len, json_is_true(member(c, "replacement")), order, n);
    check_i64(r, want, order, "RandomSampler");
    free(order);
}

/* ---- distributed_sampler ------------------------------------------------------------------------- */

static void check_rank_loader(Reference *r, const json_t *c, const json_t *epoch, int rank,
                              const json_t *want)
{
    int64_t len = int_of(c, "length");
    ds_loader *l = ds_loader_new(
        numbers_new(len), len + 1, .rank = rank, .ranks = (int)int_of(c, "world"),
        .shuffle = json_is_true(member(c, "shuffle")), .seed = (uint64_t)int_of(c, "seed"),
        .drop_uneven = json_is_true(member(c, "drop_last")));
    ds_loader_set_epoch(l, int_of(epoch, "epoch"));
    ds_batch b;
    if (json_array_size(want)) {
        CHECK(ds_loader_next(l, &b));
        CHECK_INT(b.size, (int64_t)json_array_size(want));
        check_i64(r, want, ds_data(b.x), "the loader of a rank");
    }
    CHECK(!ds_loader_next(l, &b));
    CHECK(!ds_error());
    ds_loader_free(l);
}

static void check_rank_order(Reference *r, const json_t *c, const json_t *epoch, int rank,
                             const json_t *want)
{
    int64_t len = int_of(c, "length"), ranks = int_of(c, "world");
    int64_t n = dsi_order_share(len, (int)ranks, json_is_true(member(c, "drop_last")));
    CHECK_INT(n, int_of(c, "num_samples_per_rank"));
    int64_t *all = malloc((size_t)len * sizeof *all);
    int64_t *share = malloc((size_t)(n ? n : 1) * sizeof *share);
    dsi_rng g;
    dsi_rng_seed(&g, (uint64_t)(int_of(c, "seed") + int_of(epoch, "epoch")));
    for (int64_t i = 0; i < len; i++) all[i] = i;
    if (json_is_true(member(c, "shuffle"))) dsi_order_random(&g, len, false, all, len);
    dsi_order_of_rank(all, len, rank, (int)ranks, share, n);
    CHECK_INT((int64_t)json_array_size(want), n);
    check_i64(r, want, share, "the order of a rank");
    free(share);
    free(all);
}

static void check_ranks(Reference *r, const json_t *c)
{
    size_t e, rank;
    const json_t *epoch, *want;
    json_array_foreach(member(c, "epochs"), e, epoch)
    {
        json_array_foreach(member(epoch, "ranks"), rank, want)
        {
            check_rank_order(r, c, epoch, (int)rank, want);
            check_rank_loader(r, c, epoch, (int)rank, want);
        }
    }
}

/* ---- default_init -------------------------------------------------------------------------------- */

/* Elements at the given places bit for bit; the sum and the norm, for the
 * others, in double. */
static void check_tensor(Reference *r, const char *name, ds_tensor *x, const json_t *want)
{
    if (!x) {
        reference_fail(r, "%s is missing: %s", name, ds_error() ? ds_error() : "");
        return;
    }
    const json_t *shape = member(want, "shape"), *at = member(want, "at");
    CHECK_INT(ds_ndim(x), (int64_t)json_array_size(shape));
    for (int i = 0; i < ds_ndim(x); i++)
        CHECK_INT(ds_size(x, i), json_integer_value(json_array_get(shape, (size_t)i)));
    assert_string_equal(ds_dtype_name(ds_dtype_of(x)), json_string_value(member(want, "dtype")));

    const double *value = ds_data(ds_cast(x, DS_F64));
    CHECK(value != NULL);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < ds_numel(x); i++) sum += value[i], squares += value[i] * value[i];
    CHECK_CLOSE(sum, json_number_value(member(want, "sum")), 1e-9 * (1 + (double)ds_numel(x)));
    CHECK_CLOSE(sqrt(squares), json_number_value(member(want, "l2")), 1e-9 * (1 + sqrt(squares)));
    for (size_t i = 0; i < json_array_size(at); i++) {
        double w = json_number_value(json_array_get(member(want, "values"), i));
        int64_t k = json_integer_value(json_array_get(at, i));
        if (value[k] != w)
            reference_fail(r, "%s[%lld] is %.9g, want %.9g", name, (long long)k, value[k], w);
    }
}

/* Argument i, or element `part` of it if it is a list; absent ones are 0. */
static int64_t arg_part(const json_t *c, size_t i, size_t part)
{
    const json_t *value = json_array_get(member(c, "args"), i);
    return json_integer_value(json_is_array(value) ? json_array_get(value, part) : value);
}

static int64_t arg(const json_t *c, size_t i) { return arg_part(c, i, 0); }

static bool no_bias(const json_t *c, size_t i)
{
    return json_is_false(json_array_get(member(c, "args"), i));
}

/* A root's own name is left out of its state dict, so a single layer's keys are
 * "weight" and "bias". */
static ds_module *make_module(const json_t *c)
{
    const char *name = json_string_value(member(c, "module"));
    if (!strcmp(name, "Net")) return net_new();
    if (!strcmp(name, "Linear"))
        return ds_nn_linear(NULL, "m", arg(c, 0), arg(c, 1), .no_bias = no_bias(c, 2));
    if (!strcmp(name, "Conv2d")) /* in, out, kernel, stride, padding, dilation, groups, bias */
        return ds_nn_conv2d(NULL, "m", arg(c, 0), arg(c, 1), (int)arg_part(c, 2, 0),
                            .kernel_w = (int)arg_part(c, 2, 1), .stride = (int)arg(c, 3),
                            .padding = (int)arg(c, 4), .dilation = (int)arg(c, 5),
                            .groups = (int)arg(c, 6), .no_bias = no_bias(c, 7));
    if (!strcmp(name, "Embedding")) {
        bool padded = json_is_integer(json_array_get(member(c, "args"), 2));
        return ds_nn_embedding(NULL, "m", arg(c, 0), arg(c, 1), padded ? arg(c, 2) : -1);
    }
    if (!strcmp(name, "BatchNorm2d")) return ds_nn_batch_norm2d(NULL, "m", arg(c, 0));
    if (!strcmp(name, "LayerNorm")) {
        const json_t *shape = json_array_get(member(c, "args"), 0);
        ds_dims dims = {json_is_array(shape) ? (int)json_array_size(shape) : 1, {0}};
        for (int i = 0; i < dims.n; i++) dims.d[i] = arg_part(c, 0, (size_t)i);
        return ds_nn_layer_norm(NULL, "m", dims);
    }
    return NULL;
}

static double argument(const json_t *c, const char *key, double otherwise)
{
    const json_t *value = json_object_get(member(c, "arguments"), key);
    return value ? json_number_value(value) : otherwise;
}

static bool says(const json_t *c, const char *key, const char *word)
{
    const char *value = json_string_value(json_object_get(member(c, "arguments"), key));
    return value && !strcmp(value, word);
}

static ds_gain gain_of(const json_t *c)
{
    if (says(c, "nonlinearity", "relu")) return DS_GAIN_RELU;
    if (says(c, "nonlinearity", "linear")) return DS_GAIN_LINEAR;
    if (says(c, "nonlinearity", "tanh")) return DS_GAIN_TANH;
    if (says(c, "nonlinearity", "selu")) return DS_GAIN_SELU;
    return DS_GAIN_LEAKY_RELU;
}

static ds_tensor *call_function(Reference *r, const json_t *c)
{
    ds_dims shape = {0};
    const json_t *sizes = member(c, "shape");
    for (; shape.n < (int)json_array_size(sizes); shape.n++)
        shape.d[shape.n] = json_integer_value(json_array_get(sizes, (size_t)shape.n));
    ds_tensor *x = ds_full(DS_F32, shape, 7);
    const char *name = json_string_value(member(c, "function"));
    ds_fan fan = says(c, "mode", "fan_out") ? DS_FAN_OUT : DS_FAN_IN;
    if (!strcmp(name, "zeros_")) return ds_init_constant(x, 0);
    if (!strcmp(name, "ones_")) return ds_init_constant(x, 1);
    if (!strcmp(name, "constant_")) return ds_init_constant(x, argument(c, "val", 0));
    if (!strcmp(name, "uniform_"))
        return ds_init_uniform(x, argument(c, "a", 0), argument(c, "b", 1));
    if (!strcmp(name, "normal_"))
        return ds_init_normal(x, argument(c, "mean", 0), argument(c, "std", 1));
    if (!strcmp(name, "trunc_normal_"))
        return ds_init_trunc_normal(x, argument(c, "mean", 0), argument(c, "std", 1),
                                    argument(c, "a", -2), argument(c, "b", 2));
    if (!strcmp(name, "xavier_uniform_")) return ds_init_xavier_uniform(x, argument(c, "gain", 1));
    if (!strcmp(name, "xavier_normal_")) return ds_init_xavier_normal(x, argument(c, "gain", 1));
    if (!strcmp(name, "kaiming_uniform_"))
        return ds_init_kaiming_uniform(x, argument(c, "a", 0), fan, gain_of(c));
    if (!strcmp(name, "kaiming_normal_"))
        return ds_init_kaiming_normal(x, argument(c, "a", 0), fan, gain_of(c));
    reference_fail(r, "no driver for the function \"%s\"", name);
    return NULL;
}

static void check_module(Reference *r, const json_t *c)
{
    ds_module *m = make_module(c);
    if (!m) {
        reference_fail(r, "no driver for the module \"%s\"",
                       json_string_value(member(c, "module")));
        return;
    }
    const json_t *next = member(c, "next_rand");
    check_f32(r, next, ds_data(ds_rand(DS_F32, ds_shape((int64_t)json_array_size(next)))),
              "next_rand");

    ds_state *values = ds_module_state(m);
    const char *key;
    json_t *want;
    json_object_foreach((json_t *)member(c, "parameters"), key, want)
    {
        check_tensor(r, key, ds_state_get(values, key), want);
    }
    CHECK_INT(ds_state_len(values), (int64_t)json_object_size(member(c, "parameters")));
    ds_state_free(values);
    ds_module_free(m);
}

/* ---- which is which ------------------------------------------------------------------------------ */

static void check_case(Reference *r, const json_t *c)
{
    bool seeded = json_object_get(c, "manual_seed") != NULL;
    if (seeded) ds_seed((uint64_t)int_of(c, "manual_seed"));
    if (json_object_get(c, "initial_seed"))
        check_streams(r, c);
    else if (json_object_get(c, "random_sampler"))
        check_random_sampler(r, c);
    else if (json_object_get(c, "world"))
        check_ranks(r, c);
    else if (seeded && json_object_get(c, "module"))
        check_module(r, c);
    else if (seeded && json_object_get(c, "function"))
        check_tensor(r, json_string_value(member(c, "function")), call_function(r, c),
                     member(c, "result"));
    else if (seeded && json_object_get(c, "epoch_0"))
        for (int workers = 0; workers < 3; workers++) check_loader(r, c, workers);
    else
        reference_fail(r, "no driver for a case of this kind");
}

static void run(Reference *r)
{
    size_t i;
    const json_t *c;
    json_array_foreach(member(r->json, "cases"), i, c)
    {
        ds_scope *here = ds_scope_open();
        check_case(r, c);
        ds_scope_close(here);
    }
}

static void sampler(void **state)
{
    (void)state;
    CHECK_INT(reference_each("sampler", run), 0);
}

TEST_MAIN(cmocka_unit_test(sampler))
