/* tests/gpu/decode.c: tokens that are generated on the emulated GPU, one graph
 * a token: those of the CPU, and of a run without graphs; what a token costs;
 * steps that cannot be recorded; the two kernels beside sums in double.
 * SPDX-License-Identifier: MIT */
#include "base/env.h"
#include "base/mem.h"
#include "check.h"
#include "device/device.h"
#include "models/lm.h"
#include "operand.h"
#include "tensor/tensor.h"

#include <deepspeed.h>
#include <math.h>

enum { ROWS = 2, LENGTH = 6, NEW = 12 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* ---- tokens ---- */

typedef struct Costs {
    long launches, graphs, copies, waits;
} Costs;

static Costs costs_now(void)
{
    return (Costs){emulator_count("fake_cuda_launches"), emulator_count("fake_cuda_graph_launches"),
                   emulator_count("fake_cuda_copies"), emulator_count("fake_cuda_syncs")};
}

typedef struct Costly {
    int n;
    Costs at[NEW]; /* when token i of row 0 was there */
} Costly;

static bool note_costs(void *self, int64_t row, int64_t id)
{
    Costly *c = self;
    (void)id;
    if (row == 0 && c->n < NEW) c->at[c->n++] = costs_now();
    return true;
}

/* Row 0 has two tokens of padding. Behind the tokens are -1 where rows ended
 * early. Returns whether it worked. */
static bool generate(ds_module *m, ds_generate_opts o, int64_t *tokens)
{
    static const int64_t prompt[ROWS][LENGTH] = {{0, 0, 36, 6, 66, 4}, {155, 115, 33, 70, 5, 25}};
    static const int64_t present[ROWS][LENGTH] = {{0, 0, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}};
    ds_scope *scope = ds_scope_open();
    ds_tensor *ids = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), prompt);
    o.attention_mask = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), present);
    o.max_new_tokens = NEW;
    ds_tensor *y = ds_generate_with(m, ids, o);
    for (int i = 0; i < ROWS * NEW; i++) tokens[i] = -1;
    if (y) memcpy(tokens, ds_data(y), (size_t)ds_numel(y) * sizeof *tokens);
    ds_scope_close(scope);
    return y;
}

static ds_module *model_on(const char *name, ds_device device, ds_dtype dtype)
{
    char folder[300];
    snprintf(folder, sizeof folder, DS_GOLDEN "/lm/models/%s", name);
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_module *m = ds_pretrained_load(folder);
    CHECK(m && ds_module_to(m, dtype) == DS_OK);
    return m;
}

static void tokens_of(const char *name, ds_device device, ds_dtype dtype, ds_generate_opts o,
                      int64_t *tokens)
{
    ds_module *m = model_on(name, device, dtype);
    CHECK(generate(m, o, tokens));
    ds_module_free(m);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* Greedy and drawn; a row that stops early continues as padding. */
static void tokens_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2-tied", "gemma2", "mistral-window", "phi3-longrope",
                                        "gemma3"};
    for (int i = 0; i < (quick() ? 2 : 5); i++)
        for (int drawn = 0; drawn < 2; drawn++) {
            ds_generate_opts o = {.do_sample = drawn, .seed = 5, .pad_token_id = 1};
            int64_t want[ROWS * NEW], got[ROWS * NEW], plain[ROWS * NEW];
            tokens_of(names[i], cpu, DS_F32, o, want);
            o.stop[0] = want[4], o.n_stop = 1;
            tokens_of(names[i], cpu, DS_F32, o, want);
            tokens_of(names[i], gpu, DS_F32, o, got);
            CHECK_INT(setenv("DS_GRAPHS", "off", 1), 0);
            tokens_of(names[i], gpu, DS_F32, o, plain);
            unsetenv("DS_GRAPHS");
            for (int k = 0; k < ROWS * NEW; k++) CHECK_INT(got[k], want[k]);
            for (int k = 0; k < ROWS * NEW; k++) CHECK_INT(plain[k], want[k]);
        }
}

/* In 16 bits a graph chooses what the same kernels do without. */
static void tokens_of_16_bits(void **state)
{
    (void)state;
    for (int half = DS_F16; half <= DS_BF16; half++) {
        int64_t got[ROWS * NEW], plain[ROWS * NEW];
        tokens_of("gpt2-tied", gpu, (ds_dtype)half, (ds_generate_opts){0}, got);
        CHECK_INT(setenv("DS_GRAPHS", "off", 1), 0);
        tokens_of("gpt2-tied", gpu, (ds_dtype)half, (ds_generate_opts){0}, plain);
        unsetenv("DS_GRAPHS");
        for (int k = 0; k < ROWS * NEW; k++) CHECK_INT(got[k], plain[k]);
    }
}

/* Logits of a position of each row, as float32 on the host. */
static ds_tensor *logits_of(ds_module *m, dsi_fusions_use use, long *launches)
{
    static const int64_t ids[ROWS] = {5, 33};
    dsi_device_set_fusions(use);
    *launches = -emulator_count("fake_cuda_launches");
    ds_tensor *y = ds_call(m, ds_to(ds_from_data(DS_I64, ds_shape(ROWS, 1), ids), gpu, DS_I64));
    CHECK(y && ds_data(y));
    *launches += emulator_count("fake_cuda_launches");
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    return ds_to(y, cpu, DS_F32);
}

/* Launches that are fused round where separate ones do. */
static void fused_launches_have_the_same_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2-tied", "llama-rope3", "gemma2"};
    bool grad = ds_set_grad(false);
    for (int i = 0; i < 9; i++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = model_on(names[i / 3], gpu, (ds_dtype[]){DS_F32, DS_F16, DS_BF16}[i % 3]);
        ds_module_train(m, false);
        long all, fused;
        logits_of(m, DSI_FUSIONS_ALONE, &all); /* allocating memory ends the wait */
        ds_tensor *want = logits_of(m, DSI_FUSIONS_ALONE, &all),
                  *got = logits_of(m, DSI_FUSIONS_ON, &fused);
        CHECK(DSI_SANITIZED || fused <= all - 6); /* there each block is allocated */
        CHECK(!memcmp(ds_data(got), ds_data(want), (size_t)ds_numel(want) * sizeof(float)));
        ds_module_free(m);
        ds_scope_close(scope);
        CHECK_INT(ds_set_device(cpu), DS_OK);
    }
    ds_set_grad(grad);
}

/* From the fifth token on: a launch of the graph, a copy of the tokens and one
 * of the fault flag, a wait; drawn, one more copy, of the ids. */
static void a_token_is_one_launch(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        long most; /* kernels of a token without a graph */
    } model[] = {{"gpt2-tied", 19}, {"llama-rope3", 18}, {"gemma2", 23}, {"mixtral", 42}};
    for (int i = 0; i < (quick() ? 6 : 7); i++) {
        Costly c = {0};
        int64_t tokens[ROWS * NEW];
        int drawn = i % 2;
        ds_generate_opts o = {.do_sample = drawn, .seed = 5, .on_token = note_costs, .arg = &c};
        tokens_of(model[i / 2].name, gpu, DS_F32, o, tokens);
        CHECK_INT(c.n, NEW);
        long plain = c.at[2].launches - c.at[1].launches;
        printf("# %s: %ld kernels a token\n", model[i / 2].name, plain);
        CHECK(plain <= model[i / 2].most + drawn);
        for (int k = 5; k < NEW; k++) {
            CHECK_INT(c.at[k].launches - c.at[k - 1].launches, 0);
            CHECK_INT(c.at[k].graphs - c.at[k - 1].graphs, 1);
            CHECK_INT(c.at[k].copies - c.at[k - 1].copies, 2 + drawn);
            CHECK_INT(c.at[k].waits - c.at[k - 1].waits, 1);
        }
    }
}

/* ---- steps that cannot be recorded ---- */

static void what_is_not_recorded_is_launched(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuStreamBeginCapture_v2=801", "cuGraphLaunch=2",
                                        "cuGraphInstantiateWithFlags=2"};
    int64_t want[ROWS * NEW], got[ROWS * NEW];
    tokens_of("llama-rope3", gpu, DS_F32, (ds_generate_opts){0}, want);
    for (int i = 0; i < 3; i++) {
        ds_module *m = model_on("llama-rope3", gpu, DS_F32);
        CHECK_INT(setenv("FAKE_CUDA_FAIL", calls[i], 1), 0);
        long before = emulator_count("fake_cuda_graph_launches");
        CHECK(generate(m, (ds_generate_opts){0}, got) && !ds_error());
        CHECK_INT(emulator_count("fake_cuda_graph_launches"), before);
        unsetenv("FAKE_CUDA_FAIL");
        for (int k = 0; k < ROWS * NEW; k++) CHECK_INT(got[k], want[k]);
        ds_module_free(m);
        CHECK_INT(ds_set_device(cpu), DS_OK);
    }
}

/* Allocation number `fail` fails: the same tokens, or one message; nothing is
 * lost. */
static void memory_that_runs_out(void **state)
{
    (void)state;
    ds_module *m = model_on("llama-rope3", gpu, DS_F32);
    int64_t want[ROWS * NEW], got[ROWS * NEW];
    CHECK(generate(m, (ds_generate_opts){0}, want));
    dsi_lm_session_drop(dsi_lm_of(m)); /* decode_again.c has calls that follow others */
    size_t memory = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    int failed = 0, fell_back = 0;
    for (int fail = 1; fail < (quick() ? 40 : 260); fail += 23) {
        dsi_cache_fail(fail, false);
        bool done = generate(m, (ds_generate_opts){0}, got);
        bool hit = dsi_cache_fail(0, false) >= fail;
        if (done) CHECK(!ds_error() && !memcmp(got, want, sizeof got));
        if (!done) CHECK_INT(ds_error_status(), DS_ENOMEM);
        failed += !done, fell_back += done && hit;
        ds_error_clear();
        dsi_lm_session_drop(dsi_lm_of(m));
        CHECK_INT((long)ds_memory_allocated(gpu), (long)memory);
        CHECK_INT(ds_live_tensors(), tensors);
    }
    printf("# %d runs failed, %d went on\n", failed, fell_back);
    ds_module_free(m);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- the kernels ---- */

enum { B = 3, G = 2, T = 70, LONG = 1100 }; /* rows of a cache */

typedef struct Step {
    int heads, depth, pairs;
    int64_t window;
    double cap;
    ds_dtype dtype;
    int64_t rows; /* 0: T */
} Step;

static int64_t rows_of(const Step *s) { return s->rows ? s->rows : T; }

static ds_tensor *random_on_gpu(const Step *s, ds_dims shape, ds_tensor **host)
{
    ds_tensor *x = ds_cast(ds_cast(ds_randn(DS_F32, shape), s->dtype), DS_F32);
    *host = x;
    return ds_to(x, gpu, s->dtype);
}

/* Head x [D] at `position`, as the kernel has it. */
static void turn(const Step *s, const float *x, const float *cos, const float *sin, double *y)
{
    for (int i = 0; i < s->depth; i++) y[i] = (double)x[i];
    for (int i = 0; i < s->pairs; i++) {
        y[i] = (double)x[i] * (double)cos[i] - (double)x[i + s->pairs] * (double)sin[i];
        y[i + s->pairs] = (double)x[i + s->pairs] * (double)cos[i] + (double)x[i] * (double)sin[i];
    }
}

/* Of a row and group: the new key and value are in row `at`, others are as
 * before. */
static void check_cache(const Step *s, int group, int64_t at, const double *key,
                        const float *const *from, const float *keys, const float *values,
                        double near)
{
    for (int64_t j = 0; j < rows_of(s); j++)
        for (int e = 0; e < s->depth; e++) {
            int64_t place = (group * rows_of(s) + j) * s->depth + e;
            bool here = j == at;
            CHECK_CLOSE(keys[place], here ? key[e] : (double)from[3][place], here ? near : 0);
            CHECK_CLOSE(values[place],
                        (double)(here ? from[2][group * s->depth + e] : from[4][place]), 0);
        }
}

static void check_step(const Step *s)
{
    ds_scope *scope = ds_scope_open();
    const int64_t rows = rows_of(s), at[B] = {0, rows - 1, 33}, pads[B] = {0, 5, 33};
    ds_tensor *host[8];
    int h = s->heads, d = s->depth, r = s->pairs ? s->pairs : 1;
    ds_tensor *q = random_on_gpu(s, ds_shape(B, h, d), &host[0]),
              *k = random_on_gpu(s, ds_shape(B, G, d), &host[1]),
              *v = random_on_gpu(s, ds_shape(B, G, d), &host[2]),
              *keys = random_on_gpu(s, ds_shape(B, G, rows, d), &host[3]),
              *values = random_on_gpu(s, ds_shape(B, G, rows, d), &host[4]),
              *cos = ds_randn(DS_F32, ds_shape(rows, r)),
              *sin = ds_randn(DS_F32, ds_shape(rows, r)),
              *places = ds_to(ds_from_data(DS_I64, ds_shape(B), at), gpu, DS_I64),
              *padding = ds_to(ds_from_data(DS_I64, ds_shape(B), pads), gpu, DS_I64);
    ds_tensor *cos_gpu = ds_to(cos, gpu, DS_F32), *sin_gpu = ds_to(sin, gpu, DS_F32);
    ds_tensor *y = dsi_new(q, ds_shape(B, h, d));
    dsi_attention_step o = {.scale = 0.3, .cap = s->cap, .window = s->window};
    long before = emulator_count("fake_cuda_launches");
    CHECK(dsi_run_fusion(y, attention_step, &o, dsi_v(q), dsi_v(k), dsi_v(v), dsi_v(keys),
                         dsi_v(values), dsi_v(places), dsi_v(padding),
                         dsi_v(s->pairs ? cos_gpu : NULL), dsi_v(s->pairs ? sin_gpu : NULL),
                         dsi_v(y)));
    CHECK_INT(emulator_count("fake_cuda_launches") - before, s->rows ? 2 : 1);
    const float *got = ds_data(ds_to(y, cpu, DS_F32)),
                *new_keys = ds_data(ds_to(keys, cpu, DS_F32)),
                *new_values = ds_data(ds_to(values, cpu, DS_F32));
    const float *from[5], *c = ds_data(cos), *n = ds_data(sin);
    for (int i = 0; i < 5; i++) from[i] = ds_data(host[i]);
    double near = s->dtype == DS_F32 ? 2e-5 : s->dtype == DS_F16 ? 8e-3 : 6e-2;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h; i++) {
            int g = i / (h / G);
            int64_t turns = (at[b] - pads[b]) * r, first = pads[b];
            if (s->window && at[b] + 1 - s->window > first) first = at[b] + 1 - s->window;
            double query[256], key[256], sum = 0, score[LONG], most = -INFINITY, want[256] = {0};
            turn(s, from[0] + (b * h + i) * d, c + turns, n + turns, query);
            turn(s, from[1] + (b * G + g) * d, c + turns, n + turns, key);
            for (int64_t j = first; j <= at[b]; j++) {
                const float *old = from[3] + ((b * G + g) * rows + j) * d;
                score[j] = 0;
                for (int e = 0; e < d; e++)
                    score[j] += query[e] * (j < at[b] ? (double)old[e] : key[e]);
                score[j] *= 0.3;
                if (s->cap > 0) score[j] = s->cap * tanh(score[j] / s->cap);
                most = fmax(most, score[j]);
            }
            for (int64_t j = first; j <= at[b]; j++) {
                double p = exp(score[j] - most);
                const float *x = j < at[b] ? from[4] + ((b * G + g) * rows + j) * d
                                           : from[2] + (b * G + g) * d;
                sum += p;
                for (int e = 0; e < d; e++) want[e] += p * (double)x[e];
            }
            for (int e = 0; e < d; e++) CHECK_CLOSE(got[(b * h + i) * d + e], want[e] / sum, near);
            check_cache(s, b * G + g, at[b], key, from, new_keys, new_values, near);
        }
    ds_scope_close(scope);
}

static void attention_of_a_position(void **state)
{
    (void)state;
    ds_seed(7);
    static const Step steps[] = {
        {4, 16, 8, 0, 0, DS_F32, 0},        {2, 64, 0, 20, 0, DS_F32, 0},
        {6, 80, 40, 0, 5, DS_F32, 0},       {2, 256, 64, 3, 0, DS_F32, 0},
        {4, 64, 32, 0, 0, DS_F16, 0},       {4, 128, 64, 9, 2, DS_BF16, 0},
        {2, 9, 2, 1, 0, DS_BF16, 0},        {2, 200, 1, 0, 0, DS_F16, 0},
        {4, 64, 32, 0, 0, DS_F32, LONG},    {2, 80, 40, 900, 5, DS_F32, LONG},
        {2, 128, 64, 40, 0, DS_BF16, 1024}, {2, 200, 1, 0, 0, DS_F16, LONG},
    };
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) check_step(&steps[i]);
}

/* Attention at the position that the counter says, which it then advances. */
typedef struct Growing {
    ds_tensor *q, *keys, *values, *at, *y, *token;
} Growing;

static ds_tensor *growing_step(void *self, ds_tensor *const *in, int n)
{
    const Growing *g = self;
    (void)in, (void)n;
    const dsi_attention_step o = {.scale = 0.25};
    const dsi_view none = {.p = NULL};
    dsi_view row = dsi_v(g->q);
    row.n = 2, row.d[0] = 1, row.d[1] = row.s[0] = 8, row.s[1] = 1;
    return dsi_run_fusion(g->y, attention_step, &o, dsi_v(g->q), dsi_v(g->q), dsi_v(g->q),
                          dsi_v(g->keys), dsi_v(g->values), dsi_v(g->at), none, none, none,
                          dsi_v(g->y)) &&
                   dsi_run_fusion(g->y, choose_token, row, dsi_v(g->token), dsi_v(g->at))
               ? g->y
               : NULL;
}

static void growing_run(bool with_graph, float *got, int steps)
{
    ds_scope *scope = ds_scope_open();
    ds_seed(9);
    int64_t at = LONG - steps;
    Growing g = {.q = ds_randn(DS_F32, ds_shape(1, 2, 8)),
                 .keys = ds_randn(DS_F32, ds_shape(1, 2, LONG, 8)),
                 .values = ds_randn(DS_F32, ds_shape(1, 2, LONG, 8))};
    g.at = ds_from_data(DS_I64, ds_shape(1), &at);
    g.y = dsi_new(g.q, g.q->shape);
    g.token = dsi_new_dtype(g.q, DS_I64, ds_shape(1));
    ds_step_graph *graph = ds_step_graph_new(growing_step, &g);
    for (int i = 0; i < steps; i++) {
        ds_tensor *y = with_graph ? ds_step_graph_run(graph, NULL, 0) : growing_step(&g, NULL, 0);
        CHECK(y);
        memcpy(got + (ptrdiff_t)16 * i, ds_data(ds_to(y, cpu, DS_F32)), 16 * sizeof *got);
    }
    CHECK_INT(ds_step_graph_replays(graph), with_graph);
    ds_step_graph_free(graph);
    ds_scope_close(scope);
}

/* Several blocks a head: a graph has the same bits at each position. */
static void a_context_that_grows(void **state)
{
    (void)state;
    enum { MANY = 9 };
    float plain[MANY * 16], graph[MANY * 16];
    CHECK_INT(ds_set_device(gpu), DS_OK);
    growing_run(false, plain, MANY);
    growing_run(true, graph, MANY);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    CHECK(!memcmp(plain, graph, sizeof plain));
    for (int i = 1; i < MANY; i++) CHECK(memcmp(plain, plain + i * 16, 16 * sizeof *plain) != 0);
}

/* A row outside of the cache is a fault, and writes nothing. */
static void a_position_outside_of_the_cache(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const int64_t rows = i < 2 ? 4 : LONG, at = i % 2 ? rows : -1;
        char message[80];
        ds_scope *scope = ds_scope_open();
        CHECK_INT(ds_set_device(gpu), DS_OK);
        ds_tensor *x = ds_ones(DS_F32, ds_shape(1, 1, 8)),
                  *cache = ds_zeros(DS_F32, ds_shape(1, 1, rows, 8)), *y = dsi_new(x, x->shape),
                  *place = ds_to(ds_from_data(DS_I64, ds_shape(1), &at), gpu, DS_I64);
        dsi_attention_step o = {.scale = 1};
        dsi_view none = {.p = NULL};
        CHECK(dsi_run_fusion(y, attention_step, &o, dsi_v(x), dsi_v(x), dsi_v(x), dsi_v(cache),
                             dsi_v(cache), dsi_v(place), none, none, none, dsi_v(y)));
        snprintf(message, sizeof message, "attention_step: place %d at sequence 0 is outside 0..%d",
                 (int)at, (int)rows - 1);
        CHECK(!ds_data(cache) && strstr(ds_error(), message));
        ds_error_clear();
        const float *p = ds_data(cache);
        for (int64_t k = 0; k < rows * 8; k++) CHECK_CLOSE(p[k], 0, 0);
        CHECK_INT(ds_set_device(cpu), DS_OK);
        ds_scope_close(scope);
    }
}

static void the_largest_is_chosen(void **state)
{
    (void)state;
    enum { N = 2100, R = 5, FEW = 40 };
    static float x[R][N];
    static const int64_t want[R] = {1700, 1023, 0, 0, 2099}, want_few[R] = {0, 2, 4, 0, 2};
    for (int i = 0; i < R; i++)
        for (int k = 0; k < N; k++) x[i][k] = -(float)(k % 7) - 1;
    x[0][1700] = x[0][1701] = 3, x[0][5] = NAN;
    x[1][2047] = x[1][1023] = x[1][1024] = 0;
    x[2][0] = NAN, x[2][9] = 5;
    for (int i = 0; i < N; i++) x[3][i] = -INFINITY;
    x[4][N - 1] = INFINITY;
    for (int dtype = 0; dtype < 3; dtype++) {
        ds_scope *scope = ds_scope_open();
        ds_dtype of = dtype == 0 ? DS_F32 : dtype == 1 ? DS_F16 : DS_BF16;
        ds_tensor *rows = ds_to(ds_from_data(DS_F32, ds_shape(R, N), x), gpu, of),
                  *token = dsi_new_dtype(rows, DS_I64, ds_shape(R)),
                  *counters = dsi_new_dtype(rows, DS_I64, ds_shape(3));
        CHECK(dsi_fill(counters, 41));
        CHECK(dsi_run_fusion(rows, choose_token, dsi_v(rows), dsi_v(token), dsi_v(counters)));
        const int64_t *got = ds_data(token), *count = ds_data(counters);
        for (int i = 0; i < R; i++) CHECK_INT(got[i], want[i]);
        for (int i = 0; i < 3; i++) CHECK_INT(count[i], 42);
        ds_tensor *few = ds_slice(rows, 1, 5, 5 + FEW);
        CHECK(dsi_run_fusion(few, choose_token, dsi_v(few), dsi_v(token), (dsi_view){.p = NULL}));
        got = ds_data(token);
        for (int i = 0; i < R; i++) CHECK_INT(got[i], want_few[i]);
        ds_scope_close(scope);
    }
}

/* ---- products of few rows ---- */

/* More than 2^23 multiplications, as of a head: not by tiles of 64 rows. */
static void few_rows_need_no_tiles(void **state)
{
    (void)state;
    enum { M = 5, N = 2056, K = 840 };
    for (int i = 0; i < 6; i++) {
        bool along = i % 2;
        ds_dtype of = i / 2 == 0 ? DS_F32 : i / 2 == 1 ? DS_F16 : DS_BF16;
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(M, K)), of),
                  *w = ds_cast(ds_randn(DS_F32, along ? ds_shape(N, K) : ds_shape(K, N)), of),
                  *b = ds_cast(ds_randn(DS_F32, ds_shape(N)), of), *x_gpu = ds_to(x, gpu, of),
                  *w_gpu = ds_to(w, gpu, of), *b_gpu = ds_to(b, gpu, of);
        ds_tensor *y = along ? ds_linear(x_gpu, w_gpu, b_gpu) : ds_addmm(b_gpu, x_gpu, w_gpu);
        CHECK(ds_data(y) != NULL); /* it is launched now */
        CHECK(!strncmp(last_kernel(), along ? "matmul_rows" : "matmul_columns", along ? 11 : 14));
        const float *got = ds_data(ds_to(y, cpu, DS_F32));
        ds_tensor *wide = ds_cast(w, DS_F64), *in = ds_cast(x, DS_F64), *term = ds_cast(b, DS_F64);
        const double *want = ds_data(along ? ds_linear(in, wide, term) : ds_addmm(term, in, wide));
        double near = of == DS_F32 ? 2e-4 : of == DS_F16 ? 0.07 : 0.6;
        for (int k = 0; k < M * N; k++) CHECK_CLOSE(got[k], want[k], near);
        ds_scope_close(scope);
    }
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_the_cpu),
        cmocka_unit_test(tokens_of_16_bits),
        cmocka_unit_test(fused_launches_have_the_same_bits),
        cmocka_unit_test(a_token_is_one_launch),
        cmocka_unit_test(what_is_not_recorded_is_launched),
        cmocka_unit_test(memory_that_runs_out),
        cmocka_unit_test(attention_of_a_position),
        cmocka_unit_test(a_context_that_grows),
        cmocka_unit_test(a_position_outside_of_the_cache),
        cmocka_unit_test(the_largest_is_chosen),
        cmocka_unit_test(few_rows_need_no_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
