/* tools/selftest/cases_math.c: copies, pointwise ops, reductions, indices,
 * experts, optimizers, a step of generation.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include "base/mem.h"

#include <math.h>
#include <stddef.h>

#define SHAPE(t) BIG(t, 512, 5), BIG(t, 512, 7), BIG(t, 16, 9)

static dsi_view positive(Trial *t)
{
    return trial_operand(t, t->dtype, t->layout, 0.25, 2, false, DIMS(SHAPE(t)));
}

/* ---- copies ---- */

static ds_status copy_same(Trial *t) { return CALL(t, copy, IN(t, SHAPE(t)), OUT(t, SHAPE(t))); }
static ds_status copy_to_float(Trial *t)
{
    return CALL(t, copy, IN(t, SHAPE(t)), OUT_STATS(t, SHAPE(t)));
}
static ds_status copy_to_int(Trial *t)
{
    dsi_view x = trial_operand(t, t->dtype, t->layout, -100, 100, false, DIMS(SHAPE(t)));
    return CALL(t, copy, x, OUT_INDEX(t, DS_I32, SHAPE(t)));
}
/* A part of each line, which begins anywhere. */
static ds_status copy_lines(Trial *t)
{
    int64_t lines = BIG(t, 512, 5);
    dsi_view x = IN(t, lines, 1030), y = OUT(t, lines, 1023);
    x.p = (char *)x.p + 3 * x.s[1] * (int64_t)ds_dtype_size(x.dtype);
    x.d[1] = 1023;
    return CALL(t, copy, x, y);
}
static ds_status fill(Trial *t) { return CALL(t, fill, 1.25, OUT(t, SHAPE(t))); }

/* ---- pointwise ---- */

#define UNARY_CASE(constant, name, formula, dx, saved) \
    static ds_status unary_##name(Trial *t) \
    { \
        return CALL(t, unary, DSI_##constant, 1.5, positive(t), OUT(t, SHAPE(t))); \
    } \
    static ds_status unary_dx_##name(Trial *t) \
    { \
        return CALL(t, unary_dx, DSI_##constant, 1.5, IN(t, SHAPE(t)), positive(t), \
                    OUT(t, SHAPE(t))); \
    }
DSI_UNARY_OPS(UNARY_CASE)

/* Of int64 alone, in trials of every dtype. */
static ds_status bits_and(Trial *t)
{
    dsi_view a = trial_operand(t, DS_I64, t->layout, -100, 100, false, DIMS(SHAPE(t)));
    dsi_view b = trial_operand(t, DS_I64, t->layout, -100, 100, false, DIMS(SHAPE(t)));
    return CALL(t, binary, DSI_BITS_AND, 1, a, b, OUT_INDEX(t, DS_I64, SHAPE(t)));
}

#define BINARY_CASE(constant, name, formula) \
    static ds_status binary_##name(Trial *t) \
    { \
        if (DSI_##constant == DSI_BITS_AND) return bits_and(t); \
        return CALL(t, binary, DSI_##constant, 0.5, IN(t, SHAPE(t)), positive(t), \
                    OUT(t, SHAPE(t))); \
    }
DSI_BINARY_OPS(BINARY_CASE)

#define COMPARE_CASE(constant, name, formula) \
    static ds_status compare_##name(Trial *t) \
    { \
        return CALL(t, compare, DSI_##constant, IN(t, SHAPE(t)), IN(t, SHAPE(t)), \
                    OUT_INDEX(t, DS_BOOL, SHAPE(t))); \
    }
DSI_COMPARE_OPS(COMPARE_CASE)

static ds_status affine(Trial *t)
{
    return CALL(t, affine, -2.5, 0.75, IN(t, SHAPE(t)), OUT(t, SHAPE(t)));
}
static ds_status where(Trial *t)
{
    return CALL(t, where, BOOLS(t, SHAPE(t)), IN(t, SHAPE(t)), IN(t, SHAPE(t)), OUT(t, SHAPE(t)));
}
static ds_status mask_scale(Trial *t)
{
    return CALL_FUSION(t, mask_scale, 2, IN(t, SHAPE(t)), BOOLS(t, SHAPE(t)), OUT(t, SHAPE(t)));
}

/* Enough elements without gaps for kernels that take 16 bytes at a time, and
 * three more. */
#define VECTORS(t) BIG(t, 1 << 24, 65536 + 3)
static ds_status dense_gelu(Trial *t)
{
    return CALL(t, unary, DSI_GELU_TANH, 0, IN(t, VECTORS(t)), OUT(t, VECTORS(t)));
}
static ds_status dense_gelu_dx(Trial *t)
{
    return CALL(t, unary_dx, DSI_GELU_TANH, 0, IN(t, VECTORS(t)), IN(t, VECTORS(t)),
                OUT(t, VECTORS(t)));
}
static ds_status dense_add(Trial *t)
{
    return CALL(t, binary, DSI_ADD, 0.5, IN(t, VECTORS(t)), IN(t, VECTORS(t)), OUT(t, VECTORS(t)));
}
static ds_status dense_affine(Trial *t)
{
    return CALL(t, affine, -2.5, 0.75, IN(t, VECTORS(t)), OUT(t, VECTORS(t)));
}

/* The host computes the sum, and then ReLU's gradient. */
static ds_status relu_dx_of(Trial *t, dsi_view a, dsi_view b, dsi_view y, dsi_view dx)
{
    if (t->device->type->kind != DS_CPU) return CALL_FUSION(t, relu_dx_of_sum, a, b, y, dx);
    ds_status status = CALL(t, binary, DSI_ADD, 1, a, b, dx);
    return status == DS_OK ? CALL(t, unary_dx, DSI_RELU, 0, dx, y, dx) : status;
}
static ds_status relu_dx_of_sum(Trial *t)
{
    dsi_view a = IN(t, SHAPE(t)), b = IN(t, SHAPE(t)), y = IN(t, SHAPE(t));
    return relu_dx_of(t, a, b, y, OUT(t, SHAPE(t)));
}
static ds_status dense_relu_dx_of_sum(Trial *t)
{
    dsi_view a = IN(t, VECTORS(t)), b = IN(t, VECTORS(t)), y = IN(t, VECTORS(t));
    return relu_dx_of(t, a, b, y, OUT(t, VECTORS(t)));
}

/* ---- reductions ---- */

/* The host has no such kernel: its values, copied. */
static ds_status arange(Trial *t)
{
    enum { N = 37 };
    double value[N];
    dsi_view y = OUT(t, N), x = {value, DS_F64, 1, {N}, {1}};
    if (t->device->type->kind != DS_CPU) return CALL_FUSION(t, arange, 2, 0.3, y);
    for (int i = 0; i < N; i++) value[i] = 2 + i * 0.3;
    return CALL(t, copy, x, y);
}

static ds_status sum_of(Trial *t, bool first, bool last)
{
    int64_t d[] = {SHAPE(t)};
    dsi_view y = OUT(t, first ? 1 : d[0], d[1], last ? 1 : d[2]);
    return CALL(t, reduce, DSI_SUM, 0.5, IN(t, SHAPE(t)), y, ABSENT);
}
static ds_status sum_outer(Trial *t) { return sum_of(t, true, false); }
static ds_status sum_inner(Trial *t) { return sum_of(t, false, true); }
static ds_status sum_both(Trial *t) { return sum_of(t, true, true); }
static ds_status sum_columns(Trial *t)
{
    int64_t rows = BIG(t, 8192, 203), columns = BIG(t, 3072, 264);
    return CALL(t, reduce, DSI_SUM, 0.5, IN(t, rows, columns), OUT(t, 1, columns), ABSENT);
}
static ds_status sum_long(Trial *t)
{
    int64_t n = BIG(t, 1 << 22, 4099);
    return CALL(t, reduce, DSI_SUM, 1, IN(t, n), OUT_STATS(t, 1), ABSENT);
}
static ds_status max_of_rows(Trial *t)
{
    int64_t d[] = {SHAPE(t)};
    return CALL(t, reduce, DSI_MAX, 1, IN(t, SHAPE(t)), OUT(t, d[0], 1, d[2]),
                OUT_INDEX(t, DS_I64, d[0], 1, d[2]));
}
static ds_status norm_of(Trial *t, double p)
{
    dsi_view x[] = {IN(t, SHAPE(t)), IN(t, 4099)};
    dsi_view y = trial_operand(t, DS_F64, DENSE, 0, 0, true, DIMS(1));
    y.n = 0;
    return CALL(t, norm, p, 2, x, y);
}
static ds_status norm_2(Trial *t) { return norm_of(t, 2); }
static ds_status norm_1(Trial *t) { return norm_of(t, 1); }
static ds_status norm_inf(Trial *t) { return norm_of(t, INFINITY); }

/* ---- by index ---- */

static ds_status gather_rows(Trial *t)
{
    int64_t n = BIG(t, 4096, 17);
    return CALL(t, gather_rows, IN(t, 11, 33), INDEX(t, 11, n), OUT(t, n, 33));
}
static ds_status scatter_rows(Trial *t)
{
    int64_t n = BIG(t, 4096, 17);
    return CALL(t, scatter_rows, IN(t, n, 33), INDEX(t, 11, n), 3, OUT(t, 11, 33));
}
/* A device without the kernel: the same on the host. */
static ds_status batch_on_host(Trial *t, dsi_view index, dsi_view table, const dsi_view *x,
                               const dsi_view *y)
{
    int64_t image = x[0].d[1] * x[0].d[2], n = index.d[0];
    float *wide = dsi_alloc((size_t)(n * image) * sizeof *wide);
    dsi_view from = y[0];
    from.p = wide, from.dtype = DS_F32;
    for (int64_t b = 0; b < n; b++) {
        int64_t row = ((const int64_t *)index.p)[b];
        const uint8_t *bytes = (const uint8_t *)x[0].p + row * image;
        for (int64_t i = 0; i < image; i++)
            wide[b * image + i] = ((const float *)table.p)[i / x[0].d[2] * 256 + bytes[i]];
        ((int64_t *)y[1].p)[b] = ((const int64_t *)x[1].p)[row];
    }
    ds_status status = CALL(t, copy, from, y[0]);
    dsi_free(wide);
    return status;
}

/* Images as bytes, and labels. */
static ds_status gather_batch(Trial *t)
{
    int64_t n = BIG(t, 4096, 23), b = BIG(t, 128, 5), c = 3, i = BIG(t, 1024, 135);
    dsi_view x[] = {trial_operand(t, DS_U8, DENSE, 0, 256, false, DIMS(n, c, i)),
                    INDEX(t, 10, n, 1, 1)};
    dsi_view table = trial_operand(t, DS_F32, DENSE, -1, 1, false, DIMS(c, 256));
    dsi_view index = INDEX(t, (double)n, b);
    dsi_view y[] = {OUT(t, b, c, i), OUT_INDEX(t, DS_I64, b, 1, 1)};
    if (t->device->type->kind == DS_CPU) return batch_on_host(t, index, table, x, y);
    return CALL_FUSION(t, gather_batch, index, table, 2, x, y);
}
static ds_status gather(Trial *t)
{
    int64_t k = BIG(t, 512, 5);
    return CALL(t, gather, IN(t, 3, 7, 4), INDEX(t, 7, 3, k, 4), OUT(t, 3, k, 4));
}
static ds_status scatter_add(Trial *t)
{
    int64_t k = BIG(t, 512, 5);
    return CALL(t, scatter_add, IN(t, 3, k, 4), INDEX(t, 7, 3, k, 4), OUT(t, 3, 7, 4));
}

/* ---- experts: slots are rows 0 .. S k - 1 in order, of which the last is none ---- */

/* int64 [S,k]: s k + j; each at most once */
static dsi_view slots(Trial *t, int64_t s, int64_t k)
{
    dsi_view v = INDEX(t, 1, s, k); /* zeros */
    for (int64_t i = 0; i < s * k; i++) {
        int64_t row = i % 5 == 4 ? -1 : i;
        t->device->type->copy_in(&t->device->stream, (int64_t *)v.p + i, &row, sizeof row);
    }
    return v;
}
static ds_status dispatch(Trial *t)
{
    return CALL(t, dispatch, IN(t, 6, 33), slots(t, 6, 2), STATS(t, 6, 2),
                trial_operand(t, t->dtype, DENSE, 0, 0, true, DIMS(12, 33)));
}
static ds_status combine(Trial *t)
{
    return CALL(t, combine, IN(t, 12, 33), slots(t, 6, 2), STATS(t, 6, 2), OUT(t, 6, 33));
}
static ds_status combine_dw(Trial *t)
{
    return CALL(t, combine_dw, IN(t, 6, 33), IN(t, 12, 33), slots(t, 6, 2), OUT_STATS(t, 6, 2));
}

/* ---- rows of groups: of four, of which the second and the last have none ---- */

static dsi_view group_begin(Trial *t, int64_t rows)
{
    const int64_t begin[] = {0, rows / 3, rows / 3, rows, rows};
    dsi_view v = INDEX(t, 1, 5);
    t->device->type->copy_in(&t->device->stream, v.p, begin, sizeof begin);
    return v;
}
/* The matrices of x [4,rows,columns]. */
static void group_matrices(dsi_view x, dsi_view *w)
{
    for (int64_t g = 0; g < 4; g++) {
        size_t at = (size_t)(g * x.s[0]) * ds_dtype_size(x.dtype);
        w[g] = (dsi_view){(char *)x.p + at, x.dtype, 2, {x.d[1], x.d[2]}, {x.s[1], x.s[2]}};
    }
}
static ds_status group_rows(Trial *t)
{
    int64_t n = BIG(t, 8192, 301);
    return CALL(t, group_rows, INDEX(t, 5, n, 2), OUT_INDEX(t, DS_I64, 6),
                OUT_INDEX(t, DS_I64, n, 2));
}
static ds_status group_matmul(Trial *t)
{
    int64_t rows = BIG(t, 4096, 131), in = BIG(t, 1024, 72), out = BIG(t, 2048, 136);
    dsi_view x = IN(t, rows, in), w[4];
    group_matrices(IN(t, 4, in, out), w);
    return CALL(t, group_matmul, x, group_begin(t, rows), w, OUT(t, rows, out));
}
static ds_status group_matmul_dw(Trial *t)
{
    int64_t rows = BIG(t, 4096, 131), in = BIG(t, 1024, 72), out = BIG(t, 2048, 136);
    dsi_view x = IN(t, rows, in), dy = IN(t, rows, out), w[4];
    group_matrices(OUT(t, 4, in, out), w);
    return CALL(t, group_matmul_dw, x, dy, group_begin(t, rows), w);
}

/* Of float64, for which a GPU has no kernel, the core's maximum. */
static ds_status topk(Trial *t)
{
    enum { ROWS = 9, N = 70 };
    double value[ROWS * N] = {0};
    int64_t k = t->dtype == DS_F64 ? 1 : 3, place[3];
    dsi_view x = IN(t, ROWS, N, 1), index = OUT_INDEX(t, DS_I64, ROWS, k, 1);
    if (t->dtype == DS_F64) return CALL(t, reduce, DSI_MAX, 1, x, ABSENT, index);
    x.n = index.n = 2;
    if (t->device->type->kind != DS_CPU) return CALL_FUSION(t, topk, x, index);
    ds_status status = CALL(t, copy, x, ((dsi_view){value, DS_F64, 2, {ROWS, N}, {N, 1}}));
    for (int64_t m = 0; m < ROWS; m++)
        for (int64_t j = 0; j < k; j++) {
            place[j] = 0;
            for (int64_t i = 0; i < N; i++)
                if (value[m * N + i] > value[m * N + place[j]]) place[j] = i;
            value[m * N + place[j]] = -2;
            ((int64_t *)index.p)[m * k + j] = place[j];
        }
    return status;
}

/* ---- optimizers: the third step of two parameters ---- */

/* master: parameters in float32 and copies of them in the trial's dtype. */
static ds_status optimizer_with(Trial *t, const dsi_optimizer *c, bool master)
{
    dsi_span span[2];
    const int64_t n[] = {BIG(t, 1 << 20, 1025), 7};
    for (int i = 0; i < 2; i++) {
        ds_dtype dtype = master ? trial_wide(t) : t->dtype;
        dsi_view p = trial_operand(t, dtype, DENSE, 0, 1, true, DIMS(n[i])),
                 low = master && dtype != t->dtype ? INOUT(t, n[i]) : ABSENT,
                 g = trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(n[i]));
        dsi_view m[3];
        for (int j = 0; j < 3; j++)
            m[j] = trial_operand(t, trial_wide(t), DENSE, 0.1, 1, true, DIMS(n[i]));
        span[i] = (dsi_span){.dtype = dtype,
                             .p = p.p,
                             .low = low.p,
                             .low_dtype = t->dtype,
                             .g = g.p,
                             .m = m[0].p,
                             .v = m[1].p,
                             .vmax = m[2].p,
                             .n = n[i],
                             .step = 3,
                             .g_dtype = t->dtype,
                             .g_scale = 0.5};
    }
    return CALL(t, optimizer, c, 2, span);
}
static ds_status optimizer_of(Trial *t, const dsi_optimizer *c)
{
    return optimizer_with(t, c, false);
}
#define OPTIMIZER(name, ...) \
    static ds_status name(Trial *t) { return optimizer_of(t, &(dsi_optimizer){__VA_ARGS__}); }
OPTIMIZER(sgd, .rule = DSI_SGD, .sgd = {0.1, 0.9, 0, 0.01, true, false})
OPTIMIZER(adam, .rule = DSI_ADAM, .adam = {0.1, 0.9, 0.99, 1e-8, 0.01, true, true, false, true})
static ds_status adam_master(Trial *t)
{
    const dsi_optimizer c = {.rule = DSI_ADAM,
                             .adam = {0.1, 0.9, 0.99, 1e-8, 0.01, true, false, false, true}};
    return optimizer_with(t, &c, true);
}
OPTIMIZER(adagrad, .rule = DSI_ADAGRAD, .adagrad = {0.1, 0.01, 0.01, 1e-8, false})
OPTIMIZER(rmsprop, .rule = DSI_RMSPROP, .rmsprop = {0.1, 0.9, 1e-8, 0.01, 0.9, false, false})
OPTIMIZER(adadelta, .rule = DSI_ADADELTA, .adadelta = {0.1, 0.9, 1e-8, 0.01, false})
OPTIMIZER(lion, .rule = DSI_LION, .lion = {0.1, 0.9, 0.99, 0.01})
OPTIMIZER(lamb, .rule = DSI_LAMB, .lamb = {0.1, 0.9, 0.99, 1e-8, 0.01, 10, 0.01, true, false})

/* ---- a step of generation ---- */

/* Row b of x [B,..] as [1,..], from row `first` of dimension 2 on, n of them
 * (0: all). */
static dsi_view step_part(dsi_view x, int64_t b, int64_t first, int64_t n)
{
    x.p = (char *)x.p + (size_t)(b * x.s[0] + first * x.s[2]) * ds_dtype_size(x.dtype);
    x.d[0] = 1;
    if (n) x.d[2] = n;
    return x;
}

/* x [B,H,D] as [B,H,1,D]. */
static dsi_view step_heads(dsi_view x)
{
    return (dsi_view){
        x.p, x.dtype, 4, {x.d[0], x.d[1], 1, x.d[2]}, {x.s[0], x.s[1], x.s[1], x.s[2]}};
}

/* Attention to a cache; of float64, for which it has no kernel, to all rows. On
 * the host the core's kernels, row by row. */
static ds_status step_of(Trial *t, int64_t rows)
{
    int64_t n = 3, h = 4, d = BIG(t, 64, 72);
    const dsi_attention_step o = {.scale = 0.25, .window = BIG(t, 1500, 40)};
    const dsi_attention every = {.scale = o.scale};
    dsi_view q = IN(t, n, h, d), k = IN(t, n, h / 2, d), v = IN(t, n, h / 2, d),
             keys = INOUT(t, n, h / 2, rows, d), values = INOUT(t, n, h / 2, rows, d),
             at = INDEX(t, (double)rows, n), y = OUT(t, n, h, d), sums = STATS(t, n, h, 1);
    dsi_view query = step_heads(q), to = step_heads(y);
    if (t->dtype == DS_F64)
        return CALL(t, attention, &every, query, keys, values, ABSENT, to, sums);
    if (t->device->type->kind != DS_CPU)
        return CALL_FUSION(t, attention_step, &o, q, k, v, keys, values, at, ABSENT, ABSENT, ABSENT,
                           y);
    ds_status status = DS_OK;
    for (int64_t b = 0; b < n && status == DS_OK; b++) {
        int64_t last = ((const int64_t *)at.p)[b],
                first = last + 1 > o.window ? last + 1 - o.window : 0;
        status = CALL(t, copy, step_part(step_heads(k), b, 0, 0), step_part(keys, b, last, 1));
        if (status == DS_OK)
            status = CALL(t, copy, step_part(step_heads(v), b, 0, 0),
                          step_part(values, b, last, 1));
        if (status == DS_OK)
            status = CALL(t, attention, &every, step_part(query, b, 0, 0),
                          step_part(keys, b, first, last + 1 - first),
                          step_part(values, b, first, last + 1 - first), ABSENT,
                          step_part(to, b, 0, 0), step_part(sums, b, 0, 0));
    }
    return status;
}

static ds_status attention_step(Trial *t) { return step_of(t, BIG(t, 900, 67)); }
static ds_status attention_step_long(Trial *t) { return step_of(t, BIG(t, 8192, 1027)); }

/* On the host, and of float64, the core's maximum. */
static ds_status choose_token(Trial *t)
{
    int64_t n = 5, tokens = BIG(t, 50257, 1030);
    dsi_view x = IN(t, n, tokens, 1), index = OUT_INDEX(t, DS_I64, n, 1, 1);
    if (t->dtype == DS_F64 || t->device->type->kind == DS_CPU)
        return CALL(t, reduce, DSI_MAX, 1, x, ABSENT, index);
    dsi_view token = index;
    x.n = 2, token.n = 1;
    return CALL_FUSION(t, choose_token, x, token, ABSENT);
}

/* Float32 in two halves. */
static ds_status halves_join(Trial *t)
{
    int64_t n = BIG(t, 1 << 20, 1025);
    dsi_view p = trial_operand(t, DS_BF16, DENSE, -1, 1, false, DIMS(n)),
             rest = trial_operand(t, DS_I16, DENSE, -32768, 32768, false, DIMS(n));
    return CALL(t, halves_join, p, rest, trial_operand(t, DS_F32, DENSE, 0, 0, true, DIMS(n)));
}
static ds_status halves_split(Trial *t)
{
    int64_t n = BIG(t, 1 << 20, 1025);
    dsi_view x = trial_operand(t, DS_F32, DENSE, -1, 1, true, DIMS(n)),
             p = trial_operand(t, DS_BF16, DENSE, 0, 0, true, DIMS(n));
    return CALL(t, halves_split, x, p, trial_operand(t, DS_I16, DENSE, 0, 0, true, DIMS(n)));
}

/* With a loss and a norm; without. */
static ds_status step_result_of(Trial *t, bool given)
{
    const dsi_step_limits limits = {.max_norm = 0.5, .finite_loss = given, .finite_norm = given};
    dsi_view loss = trial_operand(t, t->dtype, DENSE, 0.5, 2, false, DIMS(1)),
             norm = trial_operand(t, DS_F64, DENSE, 0.5, 2, false, DIMS(1));
    return CALL(t, step_result, &limits, trial_operand(t, DS_F64, DENSE, 0.5, 2, false, DIMS(1)),
                given ? loss : ABSENT, given ? norm : ABSENT,
                trial_operand(t, DS_F64, DENSE, 0, 0, true, DIMS(5)));
}
static ds_status step_result_given(Trial *t) { return step_result_of(t, true); }
static ds_status step_result_absent(Trial *t) { return step_result_of(t, false); }

/* After a skipped step, and without one: it grows. */
static ds_status loss_scale_of(Trial *t, double skips)
{
    const dsi_scale_rule rule = {.growth = 3, .backoff = 0.3, .interval = 1};
    dsi_view x = trial_operand(t, DS_F64, DENSE, 0.5, 2, true, DIMS(5)), at = x;
    at.p = (double *)x.p + 3, at.n = 0;
    ds_status status = CALL(t, fill, skips, at);
    return status == DS_OK ? CALL(t, loss_scale, &rule, x) : status;
}
static ds_status loss_scale_skipped(Trial *t) { return loss_scale_of(t, 1); }
static ds_status loss_scale_grows(Trial *t) { return loss_scale_of(t, 0); }

const SelfCase selftest_math[] = {
    {"copy", "", copy_same, 1, false},
    {"copy", "parts of lines", copy_lines, 1, false},
    {"copy", "to float32", copy_to_float, 1, false},
    {"copy", "to int32", copy_to_int, 1, false},
    {"fill", "", fill, 1, false},
#define UNARY_ROW(constant, name, formula, dx, saved) \
    {"unary", #name, unary_##name, 8, false}, \
        {"unary_dx", #name, DSI_##constant < DSI_FLOOR ? unary_dx_##name : NULL, 8, false},
    DSI_UNARY_OPS(UNARY_ROW)
#define BINARY_ROW(constant, name, formula) {"binary", #name, binary_##name, 2, false},
        DSI_BINARY_OPS(BINARY_ROW)
#define COMPARE_ROW(constant, name, formula) {"compare", #name, compare_##name, 1, false},
            DSI_COMPARE_OPS(COMPARE_ROW){"affine", "", affine, 2, false},
    {"unary", "gelu_tanh, dense", dense_gelu, 4, true},
    {"unary_dx", "gelu_tanh, dense", dense_gelu_dx, 4, true},
    {"binary", "add, dense", dense_add, 1, true},
    {"affine", "dense", dense_affine, 1, true},
    {"relu_dx_of_sum", "", relu_dx_of_sum, 1, false},
    {"relu_dx_of_sum", "dense", dense_relu_dx_of_sum, 1, true},
    {"where", "", where, 1, false},
    {"mask_scale", "", mask_scale, 1, false},
    {"reduce", "sum, outer", sum_outer, 4, false},
    {"reduce", "sum, inner", sum_inner, 4, false},
    {"reduce", "sum, both", sum_both, 8, false},
    {"reduce", "sum, columns", sum_columns, 16, false},
    {"reduce", "sum, long", sum_long, 16, false},
    {"reduce", "max", max_of_rows, 1, false},
    {"arange", "", arange, 1, false},
    {"norm", "2", norm_2, 4, true},
    {"norm", "1", norm_1, 4, true},
    {"norm", "infinity", norm_inf, 1, true},
    {"gather_rows", "", gather_rows, 1, false},
    {"scatter_rows", "", scatter_rows, 2, false},
    {"gather_batch", "", gather_batch, 1, true},
    {"gather", "", gather, 1, false},
    {"scatter_add", "", scatter_add, 2, false},
    {"dispatch", "", dispatch, 2, true},
    {"combine", "", combine, 4, true},
    {"combine_dw", "", combine_dw, 4, true},
    {"group_rows", "", group_rows, 1, true},
    {"group_matmul", "", group_matmul, 8, false},
    {"group_matmul_dw", "", group_matmul_dw, 8, false},
    {"topk", "", topk, 1, true},
    {"attention_step", "", attention_step, 4, true},
    {"attention_step", "several blocks a head", attention_step_long, 4, true},
    {"choose_token", "", choose_token, 1, true},
    {"optimizer", "sgd", sgd, 4, true},
    {"optimizer", "adam", adam, 8, true},
    {"optimizer", "adam, master weights", adam_master, 8, true},
    {"optimizer", "adagrad", adagrad, 8, true},
    {"optimizer", "rmsprop", rmsprop, 8, true},
    {"optimizer", "adadelta", adadelta, 8, true},
    {"optimizer", "lion", lion, 4, true},
    {"optimizer", "lamb", lamb, 8, true},
    {"halves_join", "", halves_join, 1, true},
    {"halves_split", "", halves_split, 1, true},
    {"step_result", "", step_result_given, 1, true},
    {"step_result", "no loss, no norm", step_result_absent, 1, true},
    {"loss_scale", "skipped", loss_scale_skipped, 1, true},
    {"loss_scale", "grows", loss_scale_grows, 1, true},
    {0}};
