/* tests/gpu/held.c: launches that wait for what follows (device/cuda/held.h)
 * beside the same calls with none that waits: random calls on random places of
 * one memory, where results take the memory of operands of earlier calls; all
 * of that memory is compared, to the bit.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

enum { CASES = 1500, FEW_CASES = 150, FLOATS = 4608, CALLS = 14 };

typedef enum Kind {
    ROWS,
    COLUMNS,
    SUMS,
    RELU,
    RELU_DX,
    ENTROPY,
    FILL,
    ENTROPY_DX,
    COPY,
    GATHER,
    CONV,
    POOL,
    MOVE,
    ACTIVATION,
    TIMES,
    NORM, /* layer norm, or RMS norm, which may have a term */
    ADD,
    KINDS
} Kind;

/* Operands of a call: places in the memory, in floats. */
typedef struct Call {
    Kind kind;
    int64_t d[3];  /* sizes, by kind */
    int64_t in[4]; /* -1: none */
    int64_t out[3];
    double value;
    bool turned; /* COLUMNS, SUMS: a is transposed */
    dsi_cross_entropy c;
} Call;

typedef struct Range {
    int64_t at, n;
} Range;

static bool meet(Range a, Range b) { return a.at < b.at + b.n && b.at < a.at + a.n; }

/* n floats of the memory. */
static int64_t any_place(int64_t n)
{
    int64_t at = pick(0, (FLOATS - n) / 4) * 4;
    return one_in(6) && at + n + 2 <= FLOATS ? at + 2 : at;
}

/* For a result: apart from the operands of the same call. */
static int64_t out_place(int64_t n, const Range *own, int n_own)
{
    for (;;) {
        int64_t at = any_place(n);
        bool free = true;
        for (int i = 0; i < n_own; i++) free = free && !meet((Range){at, n}, own[i]);
        if (free) return at;
    }
}

/* Operands and results of a call, of these sizes; an operand that is chosen
 * already (>= 0) stays. */
static void places_pick(Call *c, const int64_t *in, int n_in, const int64_t *out, int n_out)
{
    Range own[8];
    int n = 0;
    for (int i = 0; i < n_in; i++) {
        if (c->in[i] < 0) c->in[i] = any_place(in[i]);
        own[n++] = (Range){c->in[i], in[i]};
    }
    for (int i = 0; i < n_out; i++) {
        c->out[i] = out_place(out[i], own, n);
        own[n++] = (Range){c->out[i], out[i]};
    }
}

/* Calls whose results the next one may use. */
typedef struct Last {
    Call product, before, layer, entropy, conv; /* layer: of ROWS; before: the product before */
    Call norm, sum, activation;
    bool has_activation, has_product, has_layer, has_entropy, has_conv, has_norm, has_sum;
    int64_t fill, dx; /* -1: none */
} Last;

static void product_pick(Call *c, const Last *last)
{
    int64_t m = pick(1, 9), n = pick(1, 12), k = c->kind == ROWS ? 4 * pick(8, 12) : pick(1, 20);
    const Call *e = &last->entropy, *p = &last->product;
    bool gradient = c->kind != ROWS && last->dx >= 0 && !one_in(4);
    c->turned = c->kind == SUMS || one_in(2);
    if (gradient) {
        const Call *layer = &last->layer;
        c->in[0] = last->dx;
        m = c->turned ? e->d[1] : e->d[0], k = c->turned ? e->d[0] : e->d[1];
        n = one_in(2) ? 4 * pick(1, 12) : pick(1, 40);
        if (last->has_layer && layer->d[0] == e->d[0] && layer->d[1] == e->d[1] && !one_in(4))
            n = layer->d[2], c->in[1] = layer->in[!c->turned];
    }
    if (c->kind == ROWS && last->has_product && p->kind == ROWS && one_in(2)) /* of one input */
        m = p->d[0], n = one_in(4) ? n : p->d[1], k = p->d[2], c->in[0] = p->in[0];
    c->d[0] = m, c->d[1] = n, c->d[2] = k;
    c->value = c->kind != SUMS && one_in(3); /* a bias */
    if (gradient) c->value = 0;
    places_pick(c, (const int64_t[]){m * k, k * n, n}, 3, (const int64_t[]){m * n, m}, 2);
}

static void entropy_pick(Call *c, const Last *last)
{
    const Call *p = &last->product;
    c->d[0] = pick(1, 9), c->d[1] = pick(1, 12);
    bool small = last->has_product && p->d[0] <= 12 && p->d[1] <= 12;
    if (small && !one_in(5)) c->d[0] = p->d[0], c->d[1] = p->d[1], c->in[0] = p->out[0];
    c->c = (dsi_cross_entropy){one_in(3) ? 0 : -100, 0, (int)pick(0, 1)};
    int64_t rows = c->d[0];
    places_pick(c, (const int64_t[]){rows * c->d[1], 2 * rows}, 2, (const int64_t[]){1, rows, 1},
                3);
    c->in[1] = c->in[1] / 2 * 2;
}

/* The same operands; in[2], the gradient of the loss; out[2] is dx. */
static void entropy_dx_pick(Call *c, const Last *last)
{
    const Call *e = &last->entropy;
    c->d[0] = e->d[0], c->d[1] = e->d[1], c->c = e->c;
    c->in[0] = e->in[0], c->in[1] = e->in[1], c->in[2] = last->fill >= 0 ? last->fill : -1;
    c->in[3] = e->out[2];
    int64_t n = c->d[0] * c->d[1];
    Range own[] = {
        {c->in[0], n}, {c->in[1], 2 * c->d[0]}, {e->out[1], c->d[0]}, {c->in[3], 1}, {0, 0}};
    if (c->in[2] < 0) c->in[2] = any_place(1);
    own[4] = (Range){c->in[2], 1};
    c->out[0] = e->out[0], c->out[1] = e->out[1];
    c->out[2] = out_place(n, own, 5);
}

enum {
    PLANE = 8,
    INNER = 6,
    POOLED = 3,
    CHANNELS = 3,
    FILTERS = 4,
    IMAGE = 16,
    SAMPLES = 5,
    TAKEN = 3
};

/* y may be x, and dx dy or the result that was saved. */
static void relu_pick(Call *c, const Last *last)
{
    const Call *p = &last->product;
    int64_t n = pick(1, 100);
    if (last->has_product && !one_in(6)) n = p->d[0] * p->d[1], c->in[0] = p->out[0];
    c->d[0] = n;
    places_pick(c, (const int64_t[]){n, n}, 2, (const int64_t[]){n}, 1);
    if (one_in(4)) c->out[0] = c->in[0];
    if (c->kind == RELU_DX && c->out[0] != c->in[1] &&
        meet((Range){c->out[0], n}, (Range){c->in[1], n}))
        c->in[1] = c->out[0];
}

/* Of a recent product, one of those before it, or its activation. */
static void activation_pick(Call *c, const Last *last)
{
    const Call *p = one_in(3) ? &last->product : &last->before;
    relu_pick(c, last);
    if (last->has_product && p->d[0] && !one_in(4)) {
        c->d[0] = p->d[0] * p->d[1], c->in[0] = p->out[0];
        places_pick(c, (const int64_t[]){c->d[0]}, 1, (const int64_t[]){c->d[0]}, 1);
    }
    c->value = (double)pick(0, 2);
}

static void times_pick(Call *c, const Last *last)
{
    const Call *p = &last->product;
    int turned = one_in(2);
    int64_t n = last->has_activation ? last->activation.d[0] : 0;
    relu_pick(c, last);
    if (!n || one_in(4)) return;
    c->d[0] = n;
    c->in[turned] = last->activation.out[0];
    c->in[!turned] = last->has_product && p->d[0] * p->d[1] == n ? p->out[0] : -1;
    places_pick(c, (const int64_t[]){n, n}, 2, (const int64_t[]){n}, 1);
}

/* Rows of 4 columns or more, of the last sum or of any place. */
static void norm_pick(Call *c, const Last *last)
{
    int64_t n = 4 * pick(1, 30);
    if (last->has_sum && !one_in(4)) n = last->sum.d[0], c->in[0] = last->sum.out[0];
    c->d[0] = n % 3 == 0 && one_in(2) ? 3 : 1;
    c->d[1] = n / c->d[0];
    if (last->has_norm && last->norm.d[0] * last->norm.d[1] == n)
        c->d[0] = last->norm.d[0], c->d[1] = last->norm.d[1];
    c->turned = one_in(2); /* an RMS norm */
    c->value = one_in(3) ? 1 : 0;
    places_pick(c, (const int64_t[]){n, c->d[1], c->d[1]}, 3,
                (const int64_t[]){n, c->d[0], c->d[0]}, 3);
}

/* Of the last norm's result, on one side, or of any place; also in place. */
static void sum_pick(Call *c, const Last *last)
{
    int64_t n = 4 * pick(1, 30);
    if (last->has_norm && !one_in(3))
        n = last->norm.d[0] * last->norm.d[1], c->in[one_in(2)] = last->norm.out[0];
    c->d[0] = n;
    places_pick(c, (const int64_t[]){n, n}, 2, (const int64_t[]){n}, 1);
    int64_t same = c->in[one_in(2)], other = same == c->in[0] ? c->in[1] : c->in[0];
    if (one_in(4) && !meet((Range){same, n}, (Range){other, n})) c->out[0] = same;
}

static void call_pick(Call *c, const Last *last)
{
    switch (c->kind) {
    case ROWS:
    case COLUMNS:
    case SUMS:
        product_pick(c, last);
        break;
    case RELU:
    case RELU_DX:
        relu_pick(c, last);
        break;
    case ENTROPY:
        entropy_pick(c, last);
        break;
    case ENTROPY_DX:
        if (last->has_entropy)
            entropy_dx_pick(c, last);
        else
            c->kind = FILL, c->out[0] = any_place(1);
        break;
    case FILL:
        c->out[0] = any_place(1), c->value = one_in(6) ? -0.0 : (double)pick(-300, 300) / 16;
        break;
    case COPY:
        places_pick(c, (const int64_t[]){1}, 1, (const int64_t[]){1}, 1);
        break;
    case GATHER: /* index, table, images, labels */
        places_pick(c, (const int64_t[]){2 * TAKEN, 256, SAMPLES * IMAGE / 4, SAMPLES}, 4,
                    (const int64_t[]){TAKEN * IMAGE, TAKEN}, 2);
        c->in[0] = c->in[0] / 2 * 2;
        break;
    case CONV:
        places_pick(c, (const int64_t[]){CHANNELS * PLANE * PLANE, FILTERS * CHANNELS * 9, FILTERS},
                    3, (const int64_t[]){FILTERS * INNER * INNER}, 1);
        break;
    case ACTIVATION:
        activation_pick(c, last);
        break;
    case TIMES:
        times_pick(c, last);
        break;
    case NORM:
        norm_pick(c, last);
        break;
    case ADD:
        sum_pick(c, last);
        break;
    case POOL:
        if (last->has_conv) c->in[0] = last->conv.out[0];
        places_pick(c, (const int64_t[]){FILTERS * INNER * INNER}, 1,
                    (const int64_t[]){FILTERS * POOLED * POOLED, FILTERS * POOLED * POOLED}, 2);
        break;
    default:
        c->d[0] = pick(2, 60);
        places_pick(c, c->d, 1, c->d, 1);
    }
}

static void last_note(Last *last, const Call *c)
{
    if (c->kind == ACTIVATION) last->activation = *c, last->has_activation = true;
    if (c->kind <= SUMS) last->before = last->product;
    if (c->kind <= SUMS) last->product = *c, last->has_product = true;
    if (c->kind == ROWS) last->layer = *c, last->has_layer = true;
    if (c->kind == ENTROPY)
        last->entropy = *c, last->has_entropy = true, last->fill = last->dx = -1;
    if (c->kind == ENTROPY_DX) last->dx = c->out[2];
    if (c->kind == FILL && last->fill < 0) last->fill = c->out[0];
    if (c->kind == NORM) last->norm = *c, last->has_norm = true;
    if (c->kind == ADD) last->sum = *c, last->has_sum = true;
    if (c->kind == CONV) last->conv = *c, last->has_conv = true;
}

/* Orders of calls that can be fused, in part; else any. */
static int calls_pick(Call *call)
{
    static const Kind orders[][9] = {
        {ROWS, ENTROPY, FILL, ENTROPY_DX, COLUMNS, RELU_DX, SUMS, KINDS},
        {ROWS, ENTROPY, FILL, ENTROPY_DX, SUMS, COLUMNS, RELU_DX, KINDS},
        {ROWS, ENTROPY, FILL, ENTROPY_DX, COLUMNS, COLUMNS, RELU_DX, KINDS},
        {ROWS, RELU, ROWS, RELU_DX, KINDS},
        {COLUMNS, RELU_DX, SUMS, COPY, GATHER, KINDS},
        {COLUMNS, COLUMNS, RELU, KINDS},
        {SUMS, COLUMNS, COPY, GATHER, KINDS},
        {CONV, POOL, COPY, GATHER, KINDS},
        {ENTROPY, FILL, ENTROPY_DX, COPY, GATHER, KINDS},
        {COPY, GATHER, COPY, COPY, GATHER, KINDS},
        {ROWS, ROWS, ACTIVATION, TIMES, KINDS},
        {ROWS, ROWS, ROWS, ACTIVATION, COLUMNS, ACTIVATION, KINDS},
        {ADD, NORM, ADD, NORM, NORM, ADD, KINDS},
        {NORM, ADD, NORM, NORM, ADD, NORM, KINDS},
    };
    Last last = {.fill = -1, .dx = -1};
    int n = 0;
    while (n < CALLS - 1) {
        const Kind *order = orders[pick(0, (int64_t)(sizeof orders / sizeof *orders) - 1)];
        for (int i = 0; order[i] != KINDS && n < CALLS; i++) {
            Kind kind = one_in(12) ? (Kind)pick(0, KINDS - 1) : order[i];
            call[n] = (Call){.kind = kind, .in = {-1, -1, -1, -1}, .out = {-1, -1, -1}};
            call_pick(&call[n], &last);
            last_note(&last, &call[n++]);
        }
    }
    return n;
}

#define F(at, ...) operand_dense(p, at, DS_F32, DIMS(__VA_ARGS__))
#define ONE(at)    ((dsi_view){.p = (void *)(uintptr_t)(p + (at))})

static ds_status product_run(const Call *c, const float *p)
{
    dsi_device *d = gpu_device();
    const int64_t m = c->d[0], n = c->d[1], k = c->d[2];
    dsi_view a = F(c->in[0], 1, m, k), b = F(c->in[1], 1, k, n), y = F(c->out[0], 1, m, n),
             bias = c->value > 0 ? F(c->in[2], n) : (dsi_view){.p = NULL};
    if (c->kind == ROWS) b.s[1] = 1, b.s[2] = k;
    if (c->kind != ROWS && c->turned) a.s[1] = 1, a.s[2] = m;
    return c->kind == SUMS ? d->own_fusions->matmul_sums(&d->stream, a, b, y, F(c->out[1], m))
                           : d->own_kernels->matmul(&d->stream, a, b, bias, y);
}

static ds_status gather_run(const Call *c, const float *p)
{
    dsi_device *d = gpu_device();
    dsi_view x[] = {operand_dense(p, c->in[2], DS_U8, DIMS(SAMPLES, 1, IMAGE)),
                    F(c->in[3], SAMPLES, 1, 1)},
             y[] = {F(c->out[0], TAKEN, 1, IMAGE), F(c->out[1], TAKEN, 1, 1)};
    return d->own_fusions->gather_batch(&d->stream, operand_dense(p, c->in[0], DS_I64, DIMS(TAKEN)),
                                        F(c->in[1], 1, 256), 2, x, y);
}

static ds_status norm_run(const Call *c, const float *p)
{
    dsi_device *d = gpu_device();
    const int64_t m = c->d[0], n = c->d[1];
    dsi_view none = {.p = NULL}, x = F(c->in[0], m, n), weight = F(c->in[1], n),
             y = F(c->out[0], m, n);
    if (c->turned && c->value > 0)
        return d->own_fusions->rms_norm_shifted(&d->stream, 1e-5, 1, x, weight, y);
    return d->own_kernels->layer_norm(&d->stream, 1e-5, x, weight,
                                      c->value > 0 ? F(c->in[2], n) : none, y,
                                      c->turned ? none : F(c->out[1], m), F(c->out[2], m));
}

static ds_status call_run(const Call *c, const float *p)
{
    static const dsi_conv2d conv = {{1, 1}, {0, 0}, {1, 1}, 1};
    static const dsi_pool2d pool = {.kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}};
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    const dsi_kernels *k = d->own_kernels;
    const int64_t m = c->d[0], n = c->d[1];
    dsi_view none = {.p = NULL};
    switch (c->kind) {
    case RELU:
        return k->unary(s, DSI_RELU, 0, F(c->in[0], m), F(c->out[0], m));
    case RELU_DX:
        return k->unary_dx(s, DSI_RELU, 0, F(c->in[0], m), F(c->in[1], m), F(c->out[0], m));
    case ENTROPY:
        return k->cross_entropy(s, &c->c, F(c->in[0], m, n, 1),
                                operand_dense(p, c->in[1], DS_I64, DIMS(m, 1)), none,
                                ONE(c->out[0]), F(c->out[1], m, 1), ONE(c->out[2]));
    case ENTROPY_DX:
        return k->cross_entropy_dx(s, &c->c, ONE(c->in[2]), F(c->in[0], m, n, 1),
                                   operand_dense(p, c->in[1], DS_I64, DIMS(m, 1)), none,
                                   F(c->out[1], m, 1), ONE(c->in[3]), F(c->out[2], m, n, 1));
    case FILL:
        return k->fill(s, c->value, ONE(c->out[0]));
    case COPY:
        return k->copy(s, ONE(c->in[0]), ONE(c->out[0]));
    case GATHER:
        return gather_run(c, p);
    case CONV:
        return k->conv2d(s, &conv, F(c->in[0], 1, CHANNELS, PLANE, PLANE),
                         F(c->in[1], FILTERS, CHANNELS, 3, 3), F(c->in[2], FILTERS),
                         F(c->out[0], 1, FILTERS, INNER, INNER));
    case POOL:
        return k->max_pool2d(s, &pool, F(c->in[0], 1, FILTERS, INNER, INNER),
                             F(c->out[0], 1, FILTERS, POOLED, POOLED),
                             operand_dense(p, c->out[1], DS_I32, DIMS(1, FILTERS, POOLED, POOLED)));
    case ACTIVATION:
        return k->unary(s,
                        c->value < 1   ? DSI_SILU
                        : c->value < 2 ? DSI_GELU
                                       : DSI_GELU_TANH,
                        0, F(c->in[0], m), F(c->out[0], m));
    case TIMES:
        return k->binary(s, DSI_MUL, 0, F(c->in[0], m), F(c->in[1], m), F(c->out[0], m));
    case NORM:
        return norm_run(c, p);
    case ADD:
        return k->binary(s, DSI_ADD, 1, F(c->in[0], m), F(c->in[1], m), F(c->out[0], m));
    case MOVE:
        return k->copy(s, F(c->in[0], m), F(c->out[0], m));
    default:
        return product_run(c, p);
    }
}

static long calls_run(const Call *call, int n, float *p, const float *before, float *after,
                      dsi_fusions_use use)
{
    dsi_device *d = gpu_device();
    size_t bytes = FLOATS * sizeof *p;
    dsi_device_set_fusions(use);
    CHECK_INT(d->type->copy_in(&d->stream, p, before, bytes), DS_OK);
    long launches = emulator_count("fake_cuda_launches");
    for (int i = 0; i < n; i++) CHECK_INT(call_run(&call[i], p), DS_OK);
    CHECK_INT(d->type->copy_out(&d->stream, after, p, bytes), DS_OK);
    (void)dsi_device_check(d); /* places may be none */
    ds_error_clear();
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    return emulator_count("fake_cuda_launches") - launches;
}

static void case_fail(int number, const Call *call, int n, int64_t at, const float *got,
                      const float *want)
{
    for (int i = 0; i < n; i++)
        printf("# %d: kind %d, sizes %lld %lld %lld, in %lld %lld %lld %lld, out "
               "%lld %lld %lld\n",
               i, call[i].kind, (long long)call[i].d[0], (long long)call[i].d[1],
               (long long)call[i].d[2], (long long)call[i].in[0], (long long)call[i].in[1],
               (long long)call[i].in[2], (long long)call[i].in[3], (long long)call[i].out[0],
               (long long)call[i].out[1], (long long)call[i].out[2]);
    fail_msg("case %d: float %lld is %.9g, and %.9g if no launch waits", number, (long long)at,
             (double)got[at], (double)want[at]);
}

/* Labels or indices of the call, in range. */
static void names_write(const Call *c, float *memory)
{
    int64_t value[16], names = c->kind == ENTROPY ? c->d[0] : c->kind == GATHER ? TAKEN : 0;
    for (int k = 0; k < names; k++)
        value[k] = pick(0, c->kind == GATHER ? SAMPLES - 1 : c->d[1] - 1);
    if (names) memcpy(memory + c->in[c->kind == ENTROPY], value, (size_t)names * sizeof *value);
}

static void as_if_none_waited(void **state)
{
    (void)state;
    static float before[FLOATS], got[FLOATS], want[FLOATS];
    dsi_device *d = gpu_device();
    float *p = dsi_cache_alloc(d, sizeof before);
    CHECK(p);
    long fused = 0, all = 0;
    for (int i = 0; i < (quick() ? FEW_CASES : CASES); i++) {
        Call call[CALLS];
        operand_seed = (uint64_t)i * 7919 + 5;
        for (int k = 0; k < FLOATS; k++) before[k] = (float)pick_value();
        int n = calls_pick(call);
        for (int c = 0; c < n; c++) names_write(&call[c], before);
        all += calls_run(call, n, p, before, want, DSI_FUSIONS_ALONE);
        fused += calls_run(call, n, p, before, got, DSI_FUSIONS_ON);
        for (int k = 0; k < FLOATS; k++)
            if (memcmp(&got[k], &want[k], sizeof *got) && !(isnan(got[k]) && isnan(want[k])))
                case_fail(i, call, n, k, got, want);
    }
    printf("# %ld launches, and %ld if none waits\n", fused, all);
    if (emulated()) CHECK(fused < all * 3 / 4);
    dsi_cache_free(d, p, sizeof before);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_if_none_waited)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
