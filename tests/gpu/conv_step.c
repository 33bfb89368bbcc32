/* tests/gpu/conv_step.c: the backward of a convolution whose input has no
 * gradient, and SGD's step, as one launch (device/cuda/held_step.c) beside the
 * same calls with a wait between them, which makes them two: the same bits in
 * all of a memory that has every operand, over random shapes, rules' options
 * and spans; what must not be fused; networks, also frozen, in groups, as graphs.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "base/mem.h"
#include "classify.h"
#include "nets.h"
#include "operand.h"

enum { CASES = 60, FEW_CASES = 15, SPANS = 13, SPAN_MOST = 3000 };

/* ---- operands in one memory ------------------------------------------------- */

enum { MEMORY = 1 << 19, GAP = 64 };

/* Bytes on the host and on the GPU; used: by operands so far. */
static struct {
    char *host, *gpu;
    size_t used;
} memory;

static void memory_begin(void)
{
    if (!memory.gpu) memory.gpu = dsi_cache_alloc(gpu_device(), MEMORY);
    if (!memory.host) memory.host = malloc(MEMORY);
    CHECK(memory.gpu && memory.host);
    memset(memory.host, 0xff, MEMORY); /* NaN */
    memory.used = GAP;
}

static void memory_end(void)
{
    dsi_cache_free(gpu_device(), memory.gpu, MEMORY);
    free(memory.host);
}

/* On the GPU; *host: the same on the host. */
static void *memory_take(size_t bytes, void *host)
{
    size_t at = memory.used;
    memory.used += (bytes + GAP) / 4 * 4 + 4 * (size_t)pick(0, 3);
    CHECK(memory.used < MEMORY);
    if (host) *(char **)host = memory.host + at;
    return memory.gpu + at;
}

static float *floats_take(int64_t n)
{
    float *host, *gpu = memory_take((size_t)n * sizeof *gpu, &host);
    for (int64_t i = 0; i < n; i++) host[i] = (float)pick_value();
    return gpu;
}

static void *doubles_take(const void *values, size_t bytes)
{
    void *host;
    memory.used = (memory.used + 7) / 8 * 8;
    void *gpu = memory_take(bytes, &host);
    memcpy(host, values, bytes);
    return gpu;
}

/* ---- one case ----------------------------------------------------------------- */

/* An event between both calls, or a part that is not as it has to be. */
typedef enum Odd {
    NOTHING, /* they are fused */
    IS_READ,
    P_IS_X,
    M_IS_VALUE,
    G_IS_PART,
    G_IS_TWICE,
    SKIP_IS_DB,
    MANY_SPANS,
    HALF_G,
    LOW_COPY,
    IS_ADAM,
    HAS_DX,
    ODDS
} Odd;

typedef struct Case {
    dsi_conv2d conv;
    dsi_pooled dy;
    dsi_view x, w, dx, dw, db;
    dsi_optimizer rule;
    int n;
    dsi_span span[SPANS + 2];
    Odd odd;
    bool fault;
} Case;

static dsi_view view_make(void *p, ds_dtype dtype, dsi_view dims)
{
    int64_t step = 1;
    dims.p = p, dims.dtype = dtype;
    for (int i = dims.n - 1; i >= 0; i--) dims.s[i] = step, step *= dims.d[i];
    return dims;
}

static dsi_view floats_view(dsi_view dims)
{
    return view_make(floats_take(elements_of(&dims)), DS_F32, dims);
}

static void conv_make(Case *c)
{
    int64_t n = pick(1, 6), groups = one_in(3) ? 2 : 1, in = groups == 2 ? 8 : pick(1, 4),
            out = groups == 2 ? 8 : pick(1, 8), h = pick(6, 14), w = pick(6, 14), r = pick(1, 3),
            s = pick(1, 3);
    c->conv = (dsi_conv2d){{pick(1, 2), 1}, {pick(0, 1), pick(0, 1)}, {1, 1}, groups};
    c->dy.h = out_size(h, r, &c->conv, 0), c->dy.w = out_size(w, s, &c->conv, 1);
    dsi_view pooled = DIMS(n, groups * out, c->dy.h / 2, c->dy.w / 2);
    c->x = floats_view(DIMS(n, groups * in, h, w));
    c->w = floats_view(DIMS(groups * out, in, r, s));
    c->dy.value = floats_view(pooled), c->dy.max = floats_view(pooled), c->dy.relu = one_in(2);
    int64_t places = elements_of(&pooled);
    int32_t *host, *index = memory_take((size_t)places * sizeof *index, &host);
    for (int64_t i = 0; i < places; i++) {
        int64_t y = i / pooled.d[3] % pooled.d[2] * 2 + pick(0, 1);
        host[i] = (int32_t)(y * c->dy.w + i % pooled.d[3] * 2 + pick(0, 1));
    }
    c->dy.index = view_make(index, DS_I32, pooled);
    c->dw = floats_view(DIMS(groups * out, in, r, s));
    if (!one_in(4)) c->db = floats_view(DIMS(groups * out));
    if (c->odd == HAS_DX) c->dx = floats_view(DIMS(n, groups * in, h, w));
}

static dsi_span span_make(const Case *c, int64_t n, const float *g)
{
    bool adam = c->odd == IS_ADAM;
    return (dsi_span){.dtype = DS_F32,
                      .p = floats_take(n),
                      .g = g ? g : floats_take(n),
                      .m = adam || c->rule.sgd.momentum != 0 ? floats_take(n) : NULL,
                      .v = adam ? floats_take(n) : NULL,
                      .n = n,
                      .step = pick(1, 2),
                      .g_dtype = DS_F32,
                      .g_scale = one_in(2) ? 1 : 0.25};
}

static void rule_make(Case *c)
{
    c->rule = (dsi_optimizer){.rule = DSI_SGD,
                              .sgd = {.lr = 0.1,
                                      .momentum = one_in(3) ? 0 : 0.9,
                                      .dampening = one_in(3) ? 0.25 : 0,
                                      .weight_decay = one_in(2) ? 0.01 : 0,
                                      .nesterov = one_in(2),
                                      .maximize = one_in(4)}};
    if (c->odd == IS_ADAM)
        c->rule = (dsi_optimizer){.rule = DSI_ADAM,
                                  .adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8}};
    dsi_step_scalars scalars = {
        .lr = 0.05, .momentum = c->rule.sgd.momentum != 0 ? 0.8 : 0, .steps = pick(0, 1)};
    double factor = 0.5, skip = one_in(2);
    if (one_in(2)) c->rule.scalars = doubles_take(&scalars, sizeof scalars);
    if (one_in(3)) c->rule.g_factor = doubles_take(&factor, sizeof factor);
    if (one_in(3)) c->rule.skip = doubles_take(&skip, sizeof skip);
}

/* Which of the mistakes there are to make. */
static void odd_make(Case *c)
{
    dsi_span *first = &c->span[0];
    switch (c->odd) {
    case P_IS_X:
        first->p = c->x.p, first->n = dsi_min(first->n, elements_of(&c->x));
        break;
    case M_IS_VALUE:
        first->m = c->dy.value.p, first->n = dsi_min(first->n, elements_of(&c->dy.value));
        break;
    case G_IS_PART:
        *first = span_make(c, elements_of(&c->dw) - 1, (float *)c->dw.p + 1);
        break;
    case G_IS_TWICE:
        *first = span_make(c, elements_of(&c->dw), c->dw.p);
        break;
    case SKIP_IS_DB:
        c->rule.skip = (double *)((uintptr_t)c->dw.p / 8 * 8);
        break;
    case HALF_G:
        first->g_dtype = DS_F16;
        break;
    case LOW_COPY:
        first->low = floats_take(first->n), first->low_dtype = DS_BF16;
        break;
    default:
        break;
    }
}

static Case case_make(Odd odd)
{
    Case c = {.odd = odd, .fault = one_in(5)};
    memory_begin();
    rule_make(&c);
    conv_make(&c);
    int spans = odd == MANY_SPANS ? SPANS : (int)pick(odd != NOTHING, SPANS - 1);
    for (int i = 0; i < spans; i++)
        c.span[c.n++] = span_make(&c, i % 4 ? pick(1, 40) : pick(1, SPAN_MOST), NULL);
    odd_make(&c);
    if (odd == G_IS_TWICE || !one_in(5)) c.span[c.n++] = span_make(&c, elements_of(&c.dw), c.dw.p);
    if (c.db.p && !one_in(5)) c.span[c.n++] = span_make(&c, elements_of(&c.db), c.db.p);
    return c;
}

/* A label that is no class. */
static void fault_set(void)
{
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device((ds_device){DS_CUDA, 0}), DS_OK);
    CHECK(ds_cross_entropy(ds_zeros(DS_F32, ds_shape(1, 3)),
                           ds_from_data(DS_I64, ds_shape(1), (int64_t[]){3})));
    CHECK_INT(ds_set_device((ds_device){DS_CPU, 0}), DS_OK);
    ds_scope_close(scope);
}

/* All of the memory after both calls; the caller frees it. *launches: of them. */
static char *case_run(const Case *c, bool apart, long *launches)
{
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    char *after = malloc(MEMORY);
    bool done = false;
    CHECK_INT(d->type->copy_in(s, memory.gpu, memory.host, MEMORY), DS_OK);
    if (c->fault) fault_set();
    CHECK_INT(d->type->sync(s), DS_OK);
    *launches = -emulator_count("fake_cuda_launches");
    CHECK_INT(d->own_fusions->conv2d_back_pooled(s, &c->conv, &c->dy, c->x, c->w, c->dx, c->dw,
                                                 c->db, &done),
              DS_OK);
    CHECK(done);
    if (apart) CHECK_INT(d->type->sync(s), DS_OK);
    CHECK_INT(d->kernels->optimizer(s, &c->rule, c->n, c->span), DS_OK);
    CHECK_INT(d->type->sync(s), DS_OK);
    *launches += emulator_count("fake_cuda_launches");
    CHECK_INT(d->type->copy_out(s, after, memory.gpu, MEMORY), DS_OK);
    CHECK_INT(dsi_device_check(d), c->fault ? DS_EINVAL : DS_OK);
    ds_error_clear();
    return after;
}

static void case_compare(Odd odd, uint64_t seed)
{
    long apart, together;
    operand_seed = seed;
    Case c = case_make(odd);
    char *want = case_run(&c, true, &apart), *got = case_run(&c, odd == IS_READ, &together);
    for (int i = 0; i < MEMORY; i++)
        if (got[i] != want[i]) fail_msg("case %llu: byte %d differs", (unsigned long long)seed, i);
    if (emulated()) {
        CHECK_INT(apart, 1 + (c.n > 0));
        CHECK_INT(together, odd == NOTHING ? 1 : apart);
    }
    free(want), free(got);
}

static void random_cases(void **state)
{
    (void)state;
    int n = quick() ? FEW_CASES : CASES;
    for (int i = 0; i < n; i++) case_compare(NOTHING, (uint64_t)i * 613 + 7);
}

static void what_must_not_join(void **state)
{
    (void)state;
    for (Odd odd = IS_READ; odd < ODDS; odd++)
        for (uint64_t i = 0; i < 2; i++) case_compare(odd, i * 977 + odd);
    memory_end();
}

/* ---- networks ------------------------------------------------------------------ */

typedef enum How { TOGETHER, APART, GRAPH, HOWS } How;

typedef enum Kind {
    PLAIN,
    FROZEN_WEIGHT, /* of the first convolution */
    FROZEN,        /* and its bias */
    TWO_GROUPS,    /* its weight is in the second */
    NOT_STEPPED,   /* the optimizer is the last layer's */
    TWO_BACKWARDS, /* whose gradients are added */
    KEEPS,         /* no zero_grad */
    BAD_STEP,      /* a label of step 3 is no class */
    KINDS
} Kind;

enum { BATCH = 4, STEPS = 5, FEW_STEPS = 3 }; /* of a graph the third is recorded */

typedef struct Training {
    Kind kind;
    How how;
    int step;
    ds_module *module;
    ds_optim *optim;
    ds_step_graph *graph;
    long launches; /* of the last step */
    float *values; /* parameters and gradients after it */
    size_t bytes;
} Training;

static ds_tensor *param(const Training *t, int i) { return ds_module_param_at(t->module, i, NULL); }

static ds_tensor *training_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    CHECK_INT(n, 2);
    ds_tensor *loss = NULL;
    if (t->kind != KEEPS) ds_module_zero_grad(t->module);
    for (int i = 0; i < (t->kind == TWO_BACKWARDS ? 2 : 1); i++) {
        loss = ds_cross_entropy(ds_call(t->module, in[0]), in[1]);
        if (ds_backward(loss) != DS_OK) return NULL;
    }
    if (t->how == APART && !ds_data(ds_to(param(t, 9), (ds_device){DS_CPU, 0}, DS_F32)))
        return NULL;
    return ds_optim_step(t->optim) == DS_OK ? loss : NULL;
}

static void training_begin(Training *t)
{
    CHECK_INT(ds_set_device((ds_device){DS_CUDA, 0}), DS_OK);
    ds_seed(11);
    t->module = net_new();
    if (t->kind == FROZEN_WEIGHT || t->kind == FROZEN) CHECK(ds_require_grad(param(t, 0), false));
    if (t->kind == FROZEN) CHECK(ds_require_grad(param(t, 1), false));
    ds_module *last = ds_module_child(t->module, ds_module_children(t->module) - 1);
    t->optim = ds_optim_sgd(t->kind == NOT_STEPPED ? last : t->module, 0.01, .momentum = 0.9,
                            .weight_decay = 0.01);
    if (t->kind == TWO_GROUPS)
        CHECK_INT(ds_optim_add_group_of(t->optim, (ds_tensor *[]){param(t, 0), param(t, 9)}, 2), 1);
    t->graph = t->how == GRAPH ? ds_step_graph_new(training_step, t) : NULL;
}

/* Learning rate and momentum change at each step. */
static void training_run(Training *t)
{
    int64_t labels[BATCH];
    bool bad = t->kind == BAD_STEP && t->step == 3;
    for (int i = 0; i < BATCH; i++) labels[i] = (t->step * 7 + i * 3) % 10;
    if (bad) labels[1] = 10;
    ds_scope *scope = ds_scope_open();
    ds_tensor *in[] = {ds_randn(DS_F32, ds_shape(BATCH, 3, 32, 32)),
                       ds_from_data(DS_I64, ds_shape(BATCH), labels)};
    ds_optim_set_lr(t->optim, 0.01 / (1 + t->step));
    for (int g = 0; g < ds_optim_groups(t->optim); g++)
        CHECK(ds_optim_set_group_momentum(t->optim, g, 0.9 - 0.05 * t->step));
    t->launches = -emulator_count("fake_cuda_launches");
    ds_tensor *loss = t->graph ? ds_step_graph_run(t->graph, in, 2) : training_step(t, in, 2);
    t->launches += emulator_count("fake_cuda_launches");
    CHECK(loss || bad);
    if (bad && loss) CHECK(isnan(ds_item(loss)));
    if (bad) CHECK_ERROR("cross_entropy: label 10 at index 1 is outside 0..9");
    ds_error_clear();
    ds_scope_close(scope);
}

static void training_values(Training *t)
{
    values_add(t->module, &t->values, &t->bytes);
    ds_scope *scope = ds_scope_open();
    for (int i = 0; i < ds_module_params(t->module); i++) {
        ds_tensor *g = ds_grad(param(t, i));
        if (!g) continue;
        g = ds_to(g, (ds_device){DS_CPU, 0}, DS_F32);
        size_t more = (size_t)ds_numel(g) * sizeof(float);
        t->values = realloc(t->values, t->bytes + more);
        memcpy((char *)t->values + t->bytes, ds_data(g), more);
        t->bytes += more;
    }
    ds_scope_close(scope);
}

static bool has_graph(Kind kind) { return kind == PLAIN || kind == TWO_GROUPS || kind == BAD_STEP; }

static Training train(Kind kind, How how)
{
    Training t = {.kind = kind, .how = how};
    training_begin(&t);
    for (; t.step < (has_graph(kind) ? STEPS : FEW_STEPS); t.step++) training_run(&t);
    training_values(&t);
    CHECK(!t.graph || ds_step_graph_replays(t.graph));
    ds_step_graph_free(t.graph);
    ds_optim_free(t.optim);
    ds_module_free(t.module);
    CHECK_INT(ds_set_device((ds_device){DS_CPU, 0}), DS_OK);
    return t;
}

/* Whether two launches of the last step are one. With the first convolution
 * frozen it is the second's backward that has no dx. */
static bool is_fused(Kind kind)
{
    return kind != FROZEN_WEIGHT && kind != TWO_BACKWARDS && kind != KEEPS;
}

static void networks(void **state)
{
    (void)state;
    for (Kind kind = 0; kind < KINDS; kind++) {
        Training run[HOWS];
        int ways = has_graph(kind) ? HOWS : GRAPH;
        if (quick() && kind % 2) continue;
        for (How how = 0; (int)how < ways; how++) run[how] = train(kind, how);
        for (How how = 0; (int)how < ways; how++)
            if (run[how].bytes != run[0].bytes ||
                memcmp(run[how].values, run[0].values, run[0].bytes))
                fail_msg("network %d: other values in way %d", (int)kind, (int)how);
        long saved = run[APART].launches - run[TOGETHER].launches;
        if (emulated() && !DSI_SANITIZED && saved != is_fused(kind))
            fail_msg("network %d: %ld launches less", (int)kind, saved);
        for (How how = 0; (int)how < ways; how++) free(run[how].values);
    }
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_cases),
                                       cmocka_unit_test(what_must_not_join),
                                       cmocka_unit_test(networks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
