/* tests/gpu/groups.c: rows sorted by group and products with the matrix of
 * their group, beside the CPU in float64: random shapes, layouts, dtypes;
 * groups without rows, one that has all; many groups. Models with experts: no
 * waits, a step as a graph, in 16 bits by an engine.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

#include "ops/groups.h"

#include <deepspeed.h>

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

enum { MOST_GROUPS = 300 };

/* ---- rows ---- */

static void check_rows(int64_t n, int64_t k, int64_t groups)
{
    dsi_device *d = gpu_device(), *host = cpu_device();
    int64_t *id = malloc((size_t)(n * k + 1) * sizeof *id);
    bool all_of_one = one_in(4);
    for (int64_t i = 0; i < n * k; i++) id[i] = all_of_one ? groups / 2 : pick(0, groups - 1);
    Operand *in = operand_make(DS_I64, DIMS(n, k), true, id),
            *begin = operand_make(DS_I64, DIMS(groups + 1), true, NULL),
            *row = operand_make(DS_I64, DIMS(n, k), true, NULL);
    CHECK_INT(d->kernels->group_rows(&d->stream, in->gpu, begin->gpu, row->gpu), DS_OK);
    CHECK_INT(host->kernels->group_rows(&host->stream, in->cpu, begin->cpu, row->cpu), DS_OK);
    const int64_t *b = begin->cpu.p, *r = row->cpu.p;
    for (int64_t i = 0, next; i < n * k; i++) { /* the CPU's, by their meaning */
        next = b[id[i]];
        for (int64_t j = 0; j < i && n * k < 3000; j++) next += id[j] == id[i];
        CHECK(r[i] < b[id[i] + 1] && (n * k >= 3000 || r[i] == next));
    }
    CHECK(b[0] == 0 && b[groups] == n * k);
    operand_check("begin", begin, 0, 1);
    operand_check("row", row, 0, 1);
    operands_free();
    free(id);
}

static void rows_are_sorted(void **state)
{
    (void)state;
    for (int i = 0; i < (quick() ? 4 : 10); i++)
        check_rows(pick(0, 40), pick(1, 4), one_in(4) ? MOST_GROUPS : pick(1, 9));
    check_rows(2100, 2, 3);
}

static void bad_groups(void **state)
{
    (void)state;
    for (int on = 0; on < 2; on++) {
        CHECK_INT(ds_set_device(on ? gpu : cpu), DS_OK);
        ds_scope *scope = ds_scope_open();
        static const int64_t id[] = {0, 2, 3, 1};
        dsi_groups groups;
        bool done = dsi_group_rows(ds_from_data(DS_I64, ds_shape(2, 2), id), 3, &groups);
        CHECK(done == on);
        if (on) CHECK(!ds_data(groups.row));
        CHECK_ERROR("group_rows: group 3 at position 2 is outside 0..2");
        ds_scope_close(scope);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- products ---- */

/* How many of `rows` are of which of `groups`: drawn, or all of one. */
static Operand *begin_make(int64_t rows, int64_t groups)
{
    int64_t b[MOST_GROUPS + 1] = {0}, one = one_in(3) ? pick(0, groups - 1) : -1;
    for (int64_t i = 0; i < rows; i++) b[1 + (one >= 0 ? one : pick(0, groups - 1))]++;
    for (int64_t g = 0; g < groups; g++) b[g + 1] += b[g];
    return operand_make(DS_I64, DIMS(groups + 1), true, b);
}

/* The matrices of o [groups,rows,columns], or, turned, their transposes. */
static void matrices_of(const dsi_view *o, bool turned, dsi_view *w)
{
    int r = turned ? 2 : 1, c = 3 - r;
    for (int64_t g = 0; g < o->d[0]; g++) {
        size_t at = (size_t)(g * o->s[0]) * ds_dtype_size(o->dtype);
        w[g] = (dsi_view){(char *)o->p + at, o->dtype, 2, {o->d[r], o->d[c]}, {o->s[r], o->s[c]}};
    }
}

typedef struct Product {
    ds_dtype dtype;
    int64_t rows, in, out, groups;
    bool dense, turned;        /* no gaps; matrices are [out,in] in memory */
    const char *forward, *sum; /* kernels that these are on a GPU of 9.0; NULL: any */
} Product;

static Operand *product_in(const Product *p, dsi_view dims)
{
    if (!p->dense) return operand_in(p->dtype, dims);
    int64_t n = elements_of(&dims);
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = pick_value();
    Operand *o = operand_make(p->dtype, dims, true, x);
    free(x);
    return o;
}

static void check_kernel(const char *want)
{
    if (want && emulated() && !getenv("FAKE_CUDA_CAPABILITY") && strcmp(last_kernel(), want) != 0)
        fail_msg("%s was launched, want %s", last_kernel(), want);
}

static void check_products(Product p)
{
    static const double near[] = {
        [DS_F32] = 1e-6, [DS_F64] = 1e-14, [DS_F16] = 1e-3, [DS_BF16] = 8e-3};
    static dsi_view on[MOST_GROUPS], want[MOST_GROUPS];
    dsi_device *d = gpu_device(), *host = cpu_device();
    dsi_view matrices = p.turned ? DIMS(p.groups, p.out, p.in) : DIMS(p.groups, p.in, p.out);
    Operand *x = product_in(&p, DIMS(p.rows, p.in)), *begin = begin_make(p.rows, p.groups),
            *w = product_in(&p, matrices), *y = operand_out(p.dtype, DIMS(p.rows, p.out)),
            *dw = operand_out(p.dtype, DIMS(p.groups, p.in, p.out)),
            *dy = product_in(&p, DIMS(p.rows, p.out));
    matrices_of(&w->gpu, p.turned, on), matrices_of(&w->cpu, p.turned, want);
    CHECK_INT(d->kernels->group_matmul(&d->stream, x->gpu, begin->gpu, on, y->gpu), DS_OK);
    check_kernel(p.forward);
    CHECK_INT(host->kernels->group_matmul(&host->stream, x->cpu, begin->cpu, want, y->cpu), DS_OK);
    operand_check("group_matmul", y, near[p.dtype], sqrt((double)p.in));
    matrices_of(&dw->gpu, false, on), matrices_of(&dw->cpu, false, want);
    CHECK_INT(d->kernels->group_matmul_dw(&d->stream, x->gpu, dy->gpu, begin->gpu, on), DS_OK);
    check_kernel(p.sum);
    CHECK_INT(host->kernels->group_matmul_dw(&host->stream, x->cpu, dy->cpu, begin->cpu, want),
              DS_OK);
    operand_check("group_matmul_dw", dw, near[p.dtype], sqrt((double)p.rows));
    operands_free();
}

static void products_of_groups(void **state)
{
    (void)state;
    for (int i = 0; i < (quick() ? 8 : 24); i++) {
        ds_dtype dtype = (ds_dtype)(i % 4);
        check_products(
            (Product){dtype, pick(0, 90), pick(1, 70), pick(1, 70), pick(1, 9), .dense = false});
        check_products(
            (Product){dtype, pick(1, 8), pick(8, 40), pick(8, 40), 128, .turned = one_in(2)});
    }
    check_products((Product){DS_F32, 130, 129, 65, 2, .dense = false});
    check_products((Product){DS_F32, 20, 5, 6, MOST_GROUPS, .dense = false});
}

static void kernels_of_groups(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        ds_dtype half = bf16 ? DS_BF16 : DS_F16;
        const char *nt = bf16 ? "groups_nt_bf16" : "groups_nt_f16",
                   *nn = bf16 ? "groups_nn_bf16" : "groups_nn_f16",
                   *tn = bf16 ? "groups_tn_bf16" : "groups_tn_f16",
                   *rows = bf16 ? "groups_rows_bf16" : "groups_rows_f16";
        check_products((Product){half, 150, 40, 136, 2, true, true, nt, tn});
        check_products((Product){half, 90, 136, 24, 3, true, false, nn, tn});
        check_products((Product){half, 2, 264, 16, 8, true, true, rows, tn});
        check_products((Product){half, 9, 37, 16, 8, true, true, rows, NULL});
    }
    check_products((Product){DS_F32, 5, 264, 9, 128, true, true, "groups_rows_f32", "groups_f32"});
    check_products((Product){DS_F32, 30, 64, 8, 2, true, true, "groups_f32", "groups_f32"});
}

/* ---- models ---- */

#define MOE \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, " \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, " \
    "\"intermediate_size\": 24, \"moe_intermediate_size\": 8, \"num_experts\": %d, " \
    "\"num_experts_per_tok\": 2, \"mlp_only_layers\": [1], \"tie_word_embeddings\": true, " \
    "\"router_aux_loss_coef\": 0.1, \"output_router_logits\": true}"

/* With noise at the experts' inputs, and dropout of attention's weights. */
#define NOISY \
    "{\"architectures\": [\"MixtralForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, " \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, " \
    "\"intermediate_size\": 24, \"num_local_experts\": %d, \"num_experts_per_tok\": 2, " \
    "\"router_jitter_noise\": 0.3, \"attention_dropout\": 0.1}"

static ds_module *model_new(const char *config, int experts)
{
    char folder[] = "/tmp/groups.XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    CHECK(f && fprintf(f, config, experts) > 0 && !fclose(f));
    ds_seed(5);
    ds_module *m = ds_pretrained_load(folder, .no_weights = true);
    CHECK(m && !remove(path) && !remove(folder));
    return m;
}

static void no_waits(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *m = model_new(MOE, 128);
    for (int i = 0; i < 2; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_to(ds_randint(DS_I64, 0, 31, ds_shape(2, 9)), gpu, DS_I64);
        long before = emulator_count("fake_cuda_syncs");
        ds_tensor *loss = ds_call(m, x, x);
        CHECK(loss && ds_backward(loss) == DS_OK);
        if (i) CHECK_INT(emulator_count("fake_cuda_syncs") - before, 0);
        for (int p = 0; p < ds_module_params(m); p++)
            CHECK(ds_grad(ds_module_param_at(m, p, NULL)));
        ds_module_zero_grad(m);
        ds_scope_close(scope);
    }
    ds_module_free(m);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

enum { STEPS = 5 };

static ds_tensor *engine_step(void *self, ds_tensor *const *in, int n)
{
    ds_engine *e = self;
    (void)n;
    ds_tensor *loss = ds_call(ds_engine_module(e), in[0], in[0]);
    return ds_engine_backward(e, loss) == DS_OK && ds_engine_step(e) == DS_OK ? loss : NULL;
}

/* again: with activation checkpoints. */
static void train(const char *model, bool again, bool with_graph, double *loss)
{
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
        "{\"lr\": 0.01}}, \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}}";
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *m = model_new(model, 9);
    CHECK_INT(ds_lm_set_checkpointing(m, again), DS_OK);
    ds_engine *e = ds_initialize(.model = m, .config = config);
    ds_step_graph *g = with_graph ? ds_engine_step_graph_new(e, engine_step, e) : NULL;
    for (int i = 0; i < STEPS; i++) {
        ds_scope *scope = ds_scope_open();
        int64_t text[18];
        for (int k = 0; k < 18; k++) text[k] = (k * 7 + i) % 31;
        ds_tensor *x = ds_from_data(DS_I64, ds_shape(2, 9), text);
        ds_tensor *y = g ? ds_step_graph_run(g, &x, 1) : engine_step(e, &x, 1);
        if (!y) printf("# %s\n", ds_error());
        CHECK(y);
        loss[i] = ds_item(y);
        ds_scope_close(scope);
    }
    if (g && ds_step_graph_why_not(g)) printf("# %s\n", ds_step_graph_why_not(g));
    CHECK(!g || ds_step_graph_replays(g));
    ds_step_graph_free(g);
    ds_engine_free(e);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void graphs_have_the_same_bits(void **state)
{
    (void)state;
    static const char *const models[] = {MOE, NOISY};
    double plain[STEPS], graph[STEPS];
    for (int k = 0; k < 2; k++) {
        train(models[k], false, false, plain);
        for (int again = 0; again < 2; again++) {
            train(models[k], again, true, graph);
            for (int i = 0; i < STEPS; i++) CHECK_CLOSE(graph[i], plain[i], 0);
        }
        CHECK(graph[STEPS - 1] < graph[0]);
    }
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted),    cmocka_unit_test(bad_groups),
        cmocka_unit_test(products_of_groups), cmocka_unit_test(kernels_of_groups),
        cmocka_unit_test(no_waits),           cmocka_unit_test(graphs_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
