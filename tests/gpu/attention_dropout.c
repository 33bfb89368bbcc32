/* tests/gpu/attention_dropout.c: dropout of attention's weights inside of the
 * kernels, beside the same formula of single ops in float64 on the CPU, whose mask
 * is drawn by base/philox.h: values and gradients; finite differences; chance;
 * recomputation; a step that is recorded; memory of a language model.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "folder.h"

#include "base/philox.h"
#include "base/rng.h"

#include <deepspeed.h>
#include <math.h>

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* ---- values and gradients ----------------------------------------------------------------------------- */

/* outer: as much in the last dimension of memory but two, so that a device is
 * called once for each; group: heads of q to one of k and v. */
typedef struct Shape {
    ds_dtype dtype;
    double p;
    int64_t outer, batch, heads, group, l, s, d, e;
    bool causal, mask;
} Shape;

/* The seed that the next call draws. */
static uint64_t next_seed(uint64_t seed)
{
    ds_seed(seed);
    uint64_t drawn = dsi_rng_u64(dsi_rng_default());
    ds_seed(seed);
    return drawn;
}

/* keep / (1 - p), [outer,batch,heads,L,S] */
static ds_tensor *kept_weights(const Shape *c, uint64_t seed)
{
    int64_t batches = c->outer * c->batch * c->heads, n = c->l * c->s;
    double *w = malloc((size_t)(batches * n) * sizeof *w);
    double below = (1 - c->p) * 0x1p32, factor = c->p < 1 ? 1 / (1 - c->p) : 0;
    for (int64_t b = 0; b < batches; b++)
        for (int64_t i = 0; i < n; i++) {
            uint32_t word = dsi_philox_weight(seed, (uint64_t)b, (uint32_t)(i / c->s),
                                              (uint32_t)(i % c->s));
            w[b * n + i] = word < below ? factor : 0;
        }
    ds_dims shape = ds_shape(c->outer, c->batch, c->heads, c->l, c->s);
    ds_tensor *y = ds_from_data(DS_F64, shape, w);
    free(w);
    return y;
}

/* true where key j counts for query i, [L,S]; causal or a pattern */
static ds_tensor *counts(const Shape *c)
{
    uint8_t *p = malloc((size_t)(c->l * c->s));
    for (int64_t i = 0; i < c->l * c->s; i++) p[i] = c->causal ? i % c->s <= i / c->s : i % 3 != 1;
    ds_tensor *y = ds_from_data(DS_BOOL, ds_shape(c->l, c->s), p);
    free(p);
    return y;
}

typedef struct Result {
    ds_tensor *leaf[3], *y;
} Result;

/* q, k or v, as its heads [outer,batch,heads,rows,width] in memory of
 * [batch,outer,rows,heads,width]. */
static ds_tensor *heads_of(ds_tensor *leaf) { return ds_permute(leaf, ds_shape(1, 0, 3, 2, 4)); }

static Result run_fused(const Shape *c, ds_tensor *const *x)
{
    Result r = {{NULL}, NULL};
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int i = 0; i < 3; i++) r.leaf[i] = ds_require_grad(ds_to(x[i], gpu, c->dtype), true);
    r.y = ds_attention_with(
        heads_of(r.leaf[0]), heads_of(r.leaf[1]), heads_of(r.leaf[2]),
        (ds_attention_opts){.causal = c->causal,
                            .mask = c->mask ? ds_to(counts(c), gpu, DS_BOOL) : NULL,
                            .enable_gqa = true,
                            .dropout_p = c->p});
    CHECK_INT(ds_set_device(cpu), DS_OK);
    return r;
}

static Result run_composed(const Shape *c, ds_tensor *const *x, ds_tensor *keep)
{
    Result r = {{NULL}, NULL};
    ds_tensor *in[3];
    for (int i = 0; i < 3; i++) {
        r.leaf[i] = ds_require_grad(ds_cast(ds_cast(x[i], c->dtype), DS_F64), true);
        in[i] = heads_of(r.leaf[i]);
        if (i && c->group > 1) { /* [outer,batch,heads / group,group,rows,width] */
            ds_dims each = ds_shape_of(ds_unsqueeze(in[i], 3));
            each.d[3] = c->group;
            in[i] = ds_flatten_range(ds_expand(ds_unsqueeze(in[i], 3), each), 2, 3);
        }
    }
    ds_tensor *t = ds_scale(ds_matmul(in[0], ds_transpose(in[1], -2, -1)), 1 / sqrt((double)c->d));
    if (c->causal || c->mask) t = ds_where(counts(c), t, ds_full(DS_F64, (ds_dims){0}, -INFINITY));
    r.y = ds_matmul(ds_mul(ds_softmax(t, -1), keep), in[2]);
    return r;
}

/* The largest difference, of the largest value or 1. */
static double difference(ds_tensor *got, ds_tensor *want)
{
    got = ds_contiguous(ds_cast(ds_to(ds_detach(got), cpu, ds_dtype_of(got)), DS_F64));
    want = ds_contiguous(ds_detach(want));
    const double *a = ds_data(got), *b = ds_data(want);
    double most = 0, largest = 1;
    CHECK_INT(ds_numel(got), ds_numel(want));
    for (int64_t i = 0; i < ds_numel(want); i++) {
        CHECK(isfinite(a[i]));
        most = fmax(most, fabs(a[i] - b[i])), largest = fmax(largest, fabs(b[i]));
    }
    return most / largest;
}

static double room(ds_dtype dtype)
{
    return dtype == DS_F64 ? 1e-12 : dtype == DS_F32 ? 3e-6 : dtype == DS_F16 ? 2e-3 : 1e-2;
}

static void shape_compare(const Shape *c)
{
    ds_scope *scope = ds_scope_open();
    int64_t keys = c->heads / c->group;
    ds_dims dims[] = {ds_shape(c->batch, c->outer, c->l, c->heads, c->d),
                      ds_shape(c->batch, c->outer, c->s, keys, c->d),
                      ds_shape(c->batch, c->outer, c->s, keys, c->e),
                      ds_shape(c->outer, c->batch, c->heads, c->l, c->e)};
    ds_tensor *x[4];
    ds_seed(3);
    for (int i = 0; i < 4; i++) x[i] = ds_randn(DS_F32, dims[i]);
    ds_tensor *keep = kept_weights(c, next_seed(17));
    Result got = run_fused(c, x), want = run_composed(c, x, keep);
    if (!got.y) fail_msg("%s", ds_error());
    ds_tensor *dy = ds_cast(x[3], c->dtype);
    CHECK_INT(ds_backward_from(got.y, ds_to(dy, gpu, c->dtype)), DS_OK);
    CHECK_INT(ds_backward_from(want.y, ds_cast(dy, DS_F64)), DS_OK);
    CHECK_CLOSE(difference(got.y, want.y), 0, room(c->dtype));
    for (int i = 0; i < 3; i++)
        CHECK_CLOSE(difference(ds_grad(got.leaf[i]), ds_grad(want.leaf[i])), 0, room(c->dtype));
    ds_scope_close(scope);
}

static void equals_the_formula(void **state)
{
    (void)state;
    static const Shape shapes[] = {
        /* flash: heads of 64 and of 128, tiles that are not whole, groups */
        {DS_BF16, 0.1, 1, 2, 2, 1, 130, 130, 64, 64, .causal = true},
        {DS_F16, 0.5, 1, 1, 4, 2, 70, 150, 64, 48, .causal = false},
        {DS_BF16, 0.3, 2, 1, 2, 2, 37, 37, 128, 128, .causal = true},
        {DS_F16, 0.3, 1, 1, 2, 1, 100, 33, 72, 128, .causal = false},
        /* tiles by tensor cores, and without */
        {DS_BF16, 0.2, 1, 1, 2, 1, 70, 70, 9, 9, .causal = true},
        {DS_F16, 0.4, 1, 1, 1, 1, 20, 90, 64, 64, .mask = true},
        {DS_F32, 0.3, 1, 2, 2, 2, 70, 75, 17, 9, .causal = true},
        {DS_F32, 0.25, 2, 2, 1, 1, 9, 75, 5, 70, .mask = true},
        {DS_F64, 0.3, 2, 1, 2, 1, 40, 35, 6, 7, .causal = true},
        {DS_F64, 0.6, 1, 1, 3, 3, 20, 35, 33, 7, .mask = true},
        /* nothing is kept */
        {DS_BF16, 1, 1, 1, 1, 1, 20, 20, 64, 64, .causal = false},
        {DS_F64, 1, 1, 1, 1, 1, 20, 20, 4, 4, .causal = true}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += quick() ? 2 : 1)
        shape_compare(&shapes[i]);
}

/* A window's blocks draw a seed each; packed q, k and v are those in parts. */
static void other_calls_draw_too(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(4);
    ds_tensor *qkv = ds_to(ds_randn(DS_F32, ds_shape(2, 150, 3 * 2 * 8)), gpu, DS_F32), *x[3];
    ds_tensor *parts = ds_reshape(qkv, ds_shape(2, 150, 3, 2, 8));
    for (int i = 0; i < 3; i++) x[i] = ds_transpose(ds_select(parts, 2, i), 1, 2);
    ds_attention_opts o = {.causal = true, .dropout_p = 0.4};
    ds_seed(5);
    ds_tensor *y = ds_transpose(ds_attention_with(x[0], x[1], x[2], o), 1, 2);
    ds_seed(5);
    ds_tensor *packed = ds_attention_qkvpacked(qkv, 2, o);
    CHECK_CLOSE(ds_item(ds_max(ds_abs(ds_sub(ds_flatten(packed, 0), ds_flatten(y, 0))), 0, false)),
                0, 0);
    o.window = 20;
    ds_tensor *window = ds_attention_with(x[0], x[1], x[2], o);
    CHECK(window && isfinite(ds_item(ds_sum(window))));
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_scope_close(scope);
}

/* ---- chance ------------------------------------------------------------------------------------------- */

enum { KEYS = 64, QUERIES = 200 };

/* With equal scores and the identity as values y is keep / (S (1 - p)). */
static void mask_read(ds_dtype dtype, double p, float *mask)
{
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    float v[KEYS * KEYS] = {0};
    for (int i = 0; i < KEYS; i++) v[i * KEYS + i] = KEYS;
    ds_tensor *q = ds_to(ds_zeros(DS_F32, ds_shape(1, QUERIES, KEYS)), gpu, dtype),
              *k = ds_to(ds_zeros(DS_F32, ds_shape(1, KEYS, KEYS)), gpu, dtype),
              *value = ds_to(ds_from_data(DS_F32, ds_shape(1, KEYS, KEYS), v), gpu, dtype);
    ds_tensor *y = ds_attention_with(q, k, value, (ds_attention_opts){.dropout_p = p});
    memcpy(mask, ds_data(ds_to(y, cpu, DS_F32)), KEYS * QUERIES * sizeof *mask);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_scope_close(scope);
}

static void chance(void **state)
{
    (void)state;
    static float mask[3][KEYS * QUERIES];
    const ds_dtype dtypes[] = {DS_BF16, DS_F32};
    const int n = KEYS * QUERIES;
    const double p = 0.25;
    for (int k = 0; k < 2; k++) {
        int kept = 0, pairs = 0;
        ds_seed(8);
        mask_read(dtypes[k], p, mask[0]), mask_read(dtypes[k], p, mask[1]);
        ds_seed(8);
        mask_read(dtypes[k], p, mask[2]);
        CHECK(!memcmp(mask[0], mask[2], sizeof *mask) && memcmp(mask[0], mask[1], sizeof *mask));
        for (int i = 0; i < n; i++) {
            CHECK_CLOSE(mask[0][i], mask[0][i] > 0 ? 1 / (1 - p) : 0, 1e-2);
            kept += mask[0][i] > 0, pairs += mask[0][i] > 0 && mask[1][i] > 0;
        }
        CHECK_CLOSE(kept, (1 - p) * n, 5 * sqrt(p * (1 - p) * n));
        CHECK_CLOSE(pairs, (1 - p) * (1 - p) * n, 5 * sqrt(0.5625 * 0.4375 * n));
    }
}

/* ---- one seed, several runs --------------------------------------------------------------------------- */

static ds_tensor *attend(void *self, ds_tensor **in, int n)
{
    (void)self, (void)n;
    return ds_attention_with(in[0], in[0], in[0],
                             (ds_attention_opts){.causal = true, .dropout_p = 0.3});
}

/* sum(y dy); the gradient of x in *grad, if that is not NULL */
static double loss_of(ds_tensor *x, ds_tensor *dy, bool checkpoint, ds_tensor **grad)
{
    ds_seed(6);
    ds_tensor *y = checkpoint ? ds_checkpoint(attend, NULL, &x, 1) : attend(NULL, &x, 1);
    ds_tensor *loss = ds_sum(ds_mul(y, dy));
    if (grad) {
        CHECK_INT(ds_backward(loss), DS_OK);
        *grad = ds_grad(x);
    }
    return ds_item(loss);
}

static void finite_differences_and_recompute(void **state)
{
    (void)state;
    const double h = 1e-5;
    const ds_dims shape = ds_shape(2, 40, 5);
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(2);
    ds_tensor *value = ds_to(ds_randn(DS_F64, shape), gpu, DS_F64),
              *dy = ds_to(ds_randn(DS_F64, shape), gpu, DS_F64),
              *direction = ds_to(ds_randn(DS_F64, shape), gpu, DS_F64), *grad[2];
    for (int again = 0; again < 2; again++)
        loss_of(ds_require_grad(ds_clone(value), true), dy, again, &grad[again]);
    CHECK_CLOSE(ds_item(ds_sum(ds_abs(ds_sub(grad[0], grad[1])))), 0, 0);
    double up = loss_of(ds_add_scaled(value, direction, h), dy, false, NULL),
           down = loss_of(ds_add_scaled(value, direction, -h), dy, false, NULL);
    double slope = ds_item(ds_sum(ds_mul(grad[0], direction)));
    CHECK_CLOSE((up - down) / (2 * h), slope, 1e-7 * fmax(1, fabs(slope)));
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_scope_close(scope);
}

static ds_tensor *graph_step(void *self, ds_tensor *const *in, int n)
{
    (void)n;
    ds_module *net = self;
    ds_tensor *y = ds_call(net, in[0]), *loss = ds_mean(ds_mul(y, y));
    ds_module_zero_grad(net);
    if (ds_backward(loss) != DS_OK) return NULL;
    ds_tensor *grad = ds_grad(ds_module_param_at(net, 0, NULL));
    return ds_add(loss, ds_sum(ds_mul(grad, grad)));
}

/* Each replay draws what the same call without a graph draws: values and
 * gradients are the same, and others than at the replay before. */
static void replays_draw_again(void **state)
{
    (void)state;
    enum { STEPS = 6 };
    double loss[2][STEPS];
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int with = 0; with < 2; with++) {
        ds_scope *scope = ds_scope_open();
        ds_seed(9);
        ds_module *net = ds_nn_multihead_attention(NULL, "attention", 16, 2, .dropout = 0.3);
        ds_tensor *x = ds_to(ds_randn(DS_F32, ds_shape(10, 2, 16)), gpu, DS_F32);
        ds_step_graph *g = with ? ds_step_graph_new(graph_step, net) : NULL;
        for (int i = 0; i < STEPS; i++)
            loss[with][i] = ds_item(g ? ds_step_graph_run(g, &x, 1) : graph_step(net, &x, 1));
        if (g) CHECK(ds_step_graph_replays(g));
        ds_step_graph_free(g);
        ds_module_free(net);
        ds_scope_close(scope);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
    for (int i = 0; i < STEPS; i++) {
        CHECK_CLOSE(loss[1][i], loss[0][i], 0);
        if (i) CHECK(loss[1][i] != loss[1][i - 1]);
    }
}

/* Bytes of a GPT-2's forward and backward, at most. */
static size_t gpt2_peak(double p)
{
    enum { LENGTH = 64 };
    int64_t text[LENGTH];
    ds_scope *scope = ds_scope_open();
    FILE *f = fopen(folder_path("config.json"), "w");
    fprintf(f,
            "{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 16, \"n_positions\": %d, "
            "\"n_embd\": 16, \"n_layer\": 1, \"n_head\": 4, \"resid_pdrop\": 0, "
            "\"embd_pdrop\": 0, \"attn_pdrop\": %g}",
            LENGTH, p);
    fclose(f);
    ds_module *m = ds_pretrained_load(folder_path(""), .no_weights = true);
    for (int i = 0; i < LENGTH; i++) text[i] = i * 7 % 16;
    ds_tensor *x = ds_from_data(DS_I64, ds_shape(1, LENGTH), text);
    CHECK_INT(ds_module_to(m, DS_BF16), DS_OK);
    ds_memory_reset_peak(gpu);
    CHECK_INT(ds_backward(ds_call(m, x, x)), DS_OK);
    size_t peak = ds_memory_peak(gpu);
    ds_module_free(m);
    ds_scope_close(scope);
    return peak;
}

/* The scores would be 32 KB in bfloat16. */
static void no_scores_are_stored(void **state)
{
    (void)state;
    folder_make();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    size_t with = gpt2_peak(0.1), without = gpt2_peak(0);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    CHECK_CLOSE((double)with / (double)without, 1, 0.01);
    folder_remove();
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_the_formula),
                                       cmocka_unit_test(other_calls_draw_too),
                                       cmocka_unit_test(chance),
                                       cmocka_unit_test(finite_differences_and_recompute),
                                       cmocka_unit_test(replays_draw_again),
                                       cmocka_unit_test(no_scores_are_stored)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
