/* tests/device/half.c: kernels on 16-bit tensors: what float32 gives for the
 * same elements, rounded once; for ordinary and special values, in several
 * orders of memory, of no elements, and where a copy to float32 finds no
 * memory.
 *
 * A row is a call on views x[0..], y[0..]; the same call runs on float32 and on
 * 16-bit views. Values of whole networks of ops are the business of
 * tests/ops/values.c.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#define MAX_VIEWS 4

typedef ds_status Call(const dsi_kernels *k, dsi_stream *s, const dsi_view *x, const dsi_view *y);

typedef struct Row {
    const char *name;
    Call *call;
    ds_dims x[MAX_VIEWS], y[MAX_VIEWS]; /* n == 0: no view */
    unsigned whole;                     /* bits of views without a batch: x's, from bit 8 y's */
    double places;                      /* in which sums may differ: of the last place of 16 bits */
    bool tame;                          /* no infinities and NaNs: sums of them are not compared */
} Row;

/* ---- rows ---------------------------------------------------------------------------------------------- */

#define CALL(name, ...) \
    static ds_status name(const dsi_kernels *k, dsi_stream *s, const dsi_view *x, \
                          const dsi_view *y) \
    { \
        return k->__VA_ARGS__; \
    }
#define UNARY(f, OP) CALL(f##_, unary(s, OP, 0.5, x[0], y[0]))
#define DX(f, OP)    CALL(f##_dx_, unary_dx(s, OP, 0.5, x[0], x[1], y[0]))

/* [B,K,M] as [B,M,K] */
static dsi_view transposed(dsi_view v)
{
    int64_t d = v.d[1], step = v.s[1];
    v.d[1] = v.d[2], v.s[1] = v.s[2];
    v.d[2] = d, v.s[2] = step;
    return v;
}

UNARY(abs, DSI_ABS)
UNARY(exp, DSI_EXP)
UNARY(log, DSI_LOG)
UNARY(sqrt, DSI_SQRT)
UNARY(relu, DSI_RELU)
UNARY(gelu, DSI_GELU)
UNARY(gelu_tanh, DSI_GELU_TANH)
UNARY(silu, DSI_SILU)
UNARY(sigmoid, DSI_SIGMOID)
UNARY(tanh, DSI_TANH)
DX(relu, DSI_RELU)
DX(sigmoid, DSI_SIGMOID)
DX(tanh, DSI_TANH)
DX(gelu, DSI_GELU)
DX(gelu_tanh, DSI_GELU_TANH)
DX(silu, DSI_SILU)
DX(abs, DSI_ABS)
DX(exp, DSI_EXP)
DX(log, DSI_LOG)
DX(sqrt, DSI_SQRT)
CALL(mul_, binary(s, DSI_MUL, 1, x[0], x[1], y[0]))
CALL(div_, binary(s, DSI_DIV, 1, x[0], x[1], y[0]))
CALL(add_, binary(s, DSI_ADD, -0.75, x[0], x[1], y[0]))
CALL(softmax_, softmax(s, false, x[0], y[0]))
CALL(log_softmax_, softmax(s, true, x[0], y[0]))
CALL(softmax_dx_, softmax_dx(s, false, x[0], x[1], y[0]))
CALL(log_softmax_dx_, softmax_dx(s, true, x[0], x[1], y[0]))
CALL(affine_, affine(s, 1.5, -0.25, x[0], y[0]))
CALL(square_, unary(s, DSI_POW, 2, x[0], y[0]))
CALL(root_, unary(s, DSI_POW, 0.5, x[0], y[0]))
CALL(sum_, reduce(s, DSI_SUM, 0.5, x[0], y[0], (dsi_view){0}))
CALL(matmul_, matmul(s, x[0], x[1], x[2], y[0]))
CALL(matmul_columns_, matmul(s, transposed(x[0]), x[1], x[2], y[0]))

static const dsi_conv2d conv = {{1, 1}, {1, 1}, {1, 1}, 1};
static const dsi_pool2d pool = {{2, 2}, {2, 2}, {0, 0}, {1, 1}, false, 0, false};
CALL(conv2d_, conv2d(s, &conv, x[0], x[1], x[2], y[0]))
CALL(conv2d_dx_, conv2d_dx(s, &conv, x[0], x[1], y[0]))
CALL(conv2d_dw_, conv2d_dw(s, &conv, x[0], x[1], y[0]))
CALL(avg_pool2d_, avg_pool2d(s, &pool, x[0], y[0]))
CALL(avg_pool2d_dx_, avg_pool2d_dx(s, &pool, x[0], y[0]))
static const dsi_pool2d adaptive = {.adaptive = true};
CALL(adaptive_avg_pool2d_, avg_pool2d(s, &adaptive, x[0], y[0]))
CALL(adaptive_avg_pool2d_dx_, avg_pool2d_dx(s, &adaptive, x[0], y[0]))

static ds_status sum_channels_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                               const dsi_view *y)
{
    return table_with(k)->fusions.sum_channels(s, x[0], y[0]);
}

static ds_status conv2d_dx_bias_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                                 const dsi_view *y)
{
    return table_with(k)->fusions.conv2d_dx_bias(s, &conv, x[0], x[1], x[2], y[0]);
}

/* ---- kernels beside whose 16-bit operands statistics are float32 ---- */

static float statistics[3][4096];
static int64_t places[4096];

static dsi_view statistic(int i, int64_t n)
{
    return (dsi_view){statistics[i], DS_F32, 1, {n}, {1}};
}

static ds_status batch_norm_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                             const dsi_view *y)
{
    int64_t c = x[0].d[1];
    for (int64_t i = 0; i < c; i++)
        statistics[0][i] = 0.25F * (float)(i % 5),
        statistics[1][i] = 0.5F + 0.125F * (float)(i % 7);
    dsi_view mean = statistic(0, c), rstd = statistic(1, c);
    ds_status status = k->batch_norm(s, x[0], mean, rstd, x[2], x[3], y[0]);
    return status ? status
                  : k->batch_norm_dx(s, true, x[1], x[0], mean, rstd, x[2], y[1], y[2], y[3]);
}

/* The statistics themselves, and what follows from them. */
static ds_status batch_stats_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                              const dsi_view *y)
{
    int64_t c = x[0].d[1];
    dsi_view mean = statistic(0, c), var = statistic(1, c);
    ds_status status = k->batch_stats(s, x[0], mean, var);
    return status ? status : k->batch_norm(s, x[0], mean, var, x[2], x[3], y[0]);
}

static ds_status layer_norm_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                             const dsi_view *y)
{
    dsi_view mean = statistic(0, x[0].d[0]), rstd = statistic(1, x[0].d[0]);
    ds_status status = k->layer_norm(s, 1e-5, x[0], x[2], x[3], y[0], mean, rstd);
    return status ? status : k->layer_norm_dx(s, x[1], x[0], x[2], mean, rstd, y[1], y[2], y[3]);
}

static ds_status rms_norm_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                           const dsi_view *y)
{
    dsi_view none = {0}, rstd = statistic(1, x[0].d[0]);
    ds_status status = k->layer_norm(s, 1e-5, x[0], x[2], none, y[0], none, rstd);
    return status ? status : k->layer_norm_dx(s, x[1], x[0], x[2], none, rstd, y[1], y[2], none);
}

/* x[0] [N,C,I], weight x[1] [C], x[2] [N,I] dloss */
static ds_status cross_entropy_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                                const dsi_view *y)
{
    int64_t n = x[0].d[0], inner = x[0].d[2];
    const dsi_cross_entropy c = {.ignore_index = 1, .smoothing = 0.125, .reduction = 2};
    for (int64_t i = 0; i < n * inner; i++) places[i] = i * 7 % x[0].d[1];
    dsi_view label = {places, DS_I64, 2, {n, inner}, {inner, 1}};
    dsi_view lse = {statistics[0], DS_F32, 2, {n, inner}, {inner, 1}}, divisor = statistic(1, 1);
    divisor.n = 0;
    ds_status status = k->cross_entropy(s, &c, x[0], label, x[1], y[0], lse, divisor);
    return status ? status
                  : k->cross_entropy_dx(s, &c, x[2], x[0], label, x[1], lse, divisor, y[1]);
}

/* q, k, v, mask -> y, dq, dk, dv, with y as its own gradient */
static ds_status attention_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                            const dsi_view *y)
{
    int64_t b = x[0].d[0], l = x[0].d[1];
    dsi_view lse = {statistics[0], DS_F32, 2, {b, l}, {l, 1}};
    const dsi_attention how = {.scale = 0.5};
    ds_status status = k->attention(s, &how, x[0], x[1], x[2], x[3], y[0], lse);
    return status ? status
                  : k->attention_dx(s, &how, x[0], x[0], x[1], x[2], x[3], x[0], lse, y[1], y[2],
                                    y[3]);
}

static dsi_view rows_named(int64_t n, int64_t of)
{
    for (int64_t i = 0; i < n; i++) places[i] = i * i % of;
    return (dsi_view){places, DS_I64, 1, {n}, {1}};
}
CALL(scatter_rows_, scatter_rows(s, x[0], rows_named(x[0].d[0], 9), 4, y[0]))

/* x[0] [outer,K,inner] -> y[0] [outer,C,inner], by an index of each element or,
 * of long lines, of slices. */
static ds_status scatter_add_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                              const dsi_view *y)
{
    const int64_t *d = x[0].d, slices = d[2] > 100;
    dsi_view index = rows_named(slices ? d[1] : d[0] * d[1] * d[2], y[0].d[1]);
    index = (dsi_view){index.p, DS_I64, 3, {d[0], d[1], d[2]}, {d[1] * d[2], d[2], 1}};
    if (slices) index.s[0] = index.s[2] = 0, index.s[1] = 1;
    return k->scatter_add(s, x[0], index, y[0]);
}

/* x[0] [S k,D], w x[1] [S,k] -> y[0] [S,D] */
static ds_status combine_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x, const dsi_view *y)
{
    int64_t n = x[1].d[0], each = x[1].d[1];
    dsi_view slot = rows_named(n * each, 1 << 20);
    for (int64_t i = 0; i < n * each; i++) places[i] = i % 5 == 2 ? -1 : n * each - 1 - i;
    slot = (dsi_view){places, DS_I64, 2, {n, each}, {each, 1}};
    return k->combine(s, x[0], slot, x[1], y[0]);
}

/* Maxima, and the gradient x[1] of them put to their places. */
static ds_status max_pool2d_(const dsi_kernels *k, dsi_stream *s, const dsi_view *x,
                             const dsi_view *y)
{
    dsi_view index = y[0];
    index.dtype = DS_I32;
    index.p = calloc(3 * (size_t)view_count(&index) + 1, sizeof(int32_t)); /* gaps too */
    ds_status status = k->max_pool2d(s, &pool, x[0], y[0], index);
    if (status == DS_OK) status = k->max_pool2d_dx(s, x[1], index, y[1]);
    free(index.p);
    return status;
}

/* clang-format off */
#define SHAPE(...) {sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}}
#define POINTWISE(f) {#f, f##_, {SHAPE(3, 5, 2, 37)}, {SHAPE(3, 5, 2, 37)}, 0, 0, false}
#define OF_TWO(f) {#f, f##_, {SHAPE(3, 5, 2, 37), SHAPE(3, 5, 2, 37)}, {SHAPE(3, 5, 2, 37)}, 0, 0, false}
static const Row rows[] = {
    POINTWISE(abs), POINTWISE(exp), POINTWISE(log), POINTWISE(sqrt), POINTWISE(relu), POINTWISE(gelu),
    POINTWISE(gelu_tanh), POINTWISE(sigmoid), POINTWISE(tanh), POINTWISE(affine), POINTWISE(square),
    POINTWISE(root), OF_TWO(mul), OF_TWO(div), OF_TWO(relu_dx), OF_TWO(sigmoid_dx), OF_TWO(tanh_dx),
    OF_TWO(gelu_dx), OF_TWO(gelu_tanh_dx), OF_TWO(abs_dx), OF_TWO(exp_dx), OF_TWO(log_dx), OF_TWO(sqrt_dx),
    OF_TWO(add), POINTWISE(silu), OF_TWO(silu_dx),
    {"long lines", tanh_, {SHAPE(2, 5000)}, {SHAPE(2, 5000)}, 0, 0, false},
    {"softmax", softmax_, {SHAPE(4, 33, 3)}, {SHAPE(4, 33, 3)}, 0, 0, false},
    {"log_softmax", log_softmax_, {SHAPE(4, 33, 3)}, {SHAPE(4, 33, 3)}, 0, 0, false},
    {"softmax_dx", softmax_dx_, {SHAPE(4, 33, 3), SHAPE(4, 33, 3)}, {SHAPE(4, 33, 3)}, 0, 0, true},
    {"log_softmax_dx", log_softmax_dx_, {SHAPE(4, 33, 3), SHAPE(4, 33, 3)}, {SHAPE(4, 33, 3)}, 0, 0, true},
    {"sum of rows", sum_, {SHAPE(6, 300)}, {SHAPE(6, 1)}, 0, 1, true},
    {"sum of columns", sum_, {SHAPE(7, 300)}, {SHAPE(1, 300)}, 1 << 8, 1, true},
    {"sum of long columns", sum_, {SHAPE(519, 300)}, {SHAPE(1, 300)}, 1 << 8, 1, true},
    {"sum", sum_, {SHAPE(4, 9, 700)}, {SHAPE(1, 1, 1)}, 1 << 8, 1, true},
    {"sum_channels", sum_channels_, {SHAPE(3, 5, 7, 6)}, {SHAPE(5)}, 1 << 8, 1, true},
    {"matmul", matmul_, {SHAPE(2, 9, 40), SHAPE(2, 40, 21), SHAPE(21)}, {SHAPE(2, 9, 21)}, 4, 1, true},
    {"matmul, large", matmul_, {SHAPE(1, 90, 700), SHAPE(1, 700, 500), SHAPE(500)}, {SHAPE(1, 90, 500)}, 4, 1, true},
    {"matmul, one block of k", matmul_, {SHAPE(1, 130, 200), SHAPE(1, 200, 530), SHAPE(530)}, {SHAPE(1, 130, 530)}, 4, 1, true},
    {"matmul, two sides", matmul_, {SHAPE(1, 1000, 70), SHAPE(1, 70, 66), SHAPE(66)}, {SHAPE(1, 1000, 66)}, 4, 1, true},
    {"matmul, columns of a", matmul_columns_, {SHAPE(1, 300, 140), SHAPE(1, 300, 330), SHAPE(330)}, {SHAPE(1, 140, 330)}, 4, 1, true},
    {"conv2d", conv2d_, {SHAPE(2, 4, 9, 8), SHAPE(6, 4, 3, 3), SHAPE(6)}, {SHAPE(2, 6, 9, 8)}, 6, 1, true},
    {"conv2d_dx", conv2d_dx_, {SHAPE(2, 6, 9, 8), SHAPE(6, 4, 3, 3)}, {SHAPE(2, 4, 9, 8)}, 2, 1, true},
    {"conv2d_dx_bias", conv2d_dx_bias_, {SHAPE(2, 6, 9, 8), SHAPE(6, 4, 3, 3), SHAPE(4)}, {SHAPE(2, 4, 9, 8)}, 2, 1, true},
    {"conv2d_dw", conv2d_dw_, {SHAPE(2, 6, 9, 8), SHAPE(2, 4, 9, 8)}, {SHAPE(6, 4, 3, 3)}, 1 << 8, 1, true},
    {"conv2d, large", conv2d_, {SHAPE(8, 8, 64, 64), SHAPE(8, 8, 3, 3), SHAPE(8)}, {SHAPE(8, 8, 64, 64)}, 6, 1, true},
    {"max_pool2d", max_pool2d_, {SHAPE(2, 6, 8, 14), SHAPE(2, 6, 4, 7)}, {SHAPE(2, 6, 4, 7), SHAPE(2, 6, 8, 14)}, 0, 0, false},
    {"avg_pool2d", avg_pool2d_, {SHAPE(2, 3, 8, 6)}, {SHAPE(2, 3, 4, 3)}, 0, 0, true},
    {"avg_pool2d_dx", avg_pool2d_dx_, {SHAPE(2, 3, 4, 3)}, {SHAPE(2, 3, 8, 6)}, 0, 0, true},
    {"adaptive_avg_pool2d", adaptive_avg_pool2d_, {SHAPE(2, 3, 8, 6)}, {SHAPE(2, 3, 3, 2)}, 0, 0, true},
    {"batch_norm", batch_norm_, {SHAPE(3, 5, 700), SHAPE(3, 5, 700), SHAPE(5), SHAPE(5)},
     {SHAPE(3, 5, 700), SHAPE(3, 5, 700), SHAPE(5), SHAPE(5)}, 12 | 12 << 8, 1, true},
    {"batch_norm, rows", batch_norm_, {SHAPE(1200, 40, 1), SHAPE(1200, 40, 1), SHAPE(40), SHAPE(40)},
     {SHAPE(1200, 40, 1), SHAPE(1200, 40, 1), SHAPE(40), SHAPE(40)}, 12 | 12 << 8, 1, true},
    {"batch_stats", batch_stats_, {SHAPE(30, 7, 90), SHAPE(7), SHAPE(7), SHAPE(7)}, {SHAPE(30, 7, 90)}, 14, 1, true},
    {"layer_norm", layer_norm_, {SHAPE(11, 1300), SHAPE(11, 1300), SHAPE(1300), SHAPE(1300)},
     {SHAPE(11, 1300), SHAPE(11, 1300), SHAPE(1300), SHAPE(1300)}, 12 | 12 << 8, 1, true},
    {"rms_norm", rms_norm_, {SHAPE(9, 130), SHAPE(9, 130), SHAPE(130)},
     {SHAPE(9, 130), SHAPE(9, 130), SHAPE(130)}, 4 | 4 << 8, 1, true},
    {"cross_entropy", cross_entropy_, {SHAPE(4, 33, 3), SHAPE(33), SHAPE(4, 3)}, {SHAPE(4, 3), SHAPE(4, 33, 3)}, 2, 1, true},
    {"cross_entropy, long rows", cross_entropy_, {SHAPE(3, 3000, 1), SHAPE(3000), SHAPE(3, 1)},
     {SHAPE(3, 1), SHAPE(3, 3000, 1)}, 2, 1, true},
    {"attention", attention_, {SHAPE(4, 33, 20), SHAPE(4, 100, 20), SHAPE(4, 100, 20), SHAPE(4, 33, 100)},
     {SHAPE(4, 33, 20), SHAPE(4, 33, 20), SHAPE(4, 100, 20), SHAPE(4, 100, 20)}, 0, 1, true},
    {"attention, slices", attention_, {SHAPE(9, 160, 96), SHAPE(3, 130, 96), SHAPE(3, 130, 96), SHAPE(9, 160, 130)},
     {SHAPE(9, 160, 96), SHAPE(9, 160, 96), SHAPE(3, 130, 96), SHAPE(3, 130, 96)}, 0, 1, true},
    {"scatter_rows", scatter_rows_, {SHAPE(50, 700)}, {SHAPE(9, 700)}, 1 << 8, 1, true},
    {"scatter_add", scatter_add_, {SHAPE(3, 40, 5)}, {SHAPE(3, 9, 5)}, 0, 1, true},
    {"scatter_add, few", scatter_add_, {SHAPE(4, 3, 2)}, {SHAPE(4, 50, 2)}, 0, 1, true},
    {"scatter_add, many classes", scatter_add_, {SHAPE(4, 30, 2)}, {SHAPE(4, 5000, 2)}, 0, 1, true},
    {"scatter_add, slices", scatter_add_, {SHAPE(3, 20, 600)}, {SHAPE(3, 9, 600)}, 0, 1, true},
    {"combine", combine_, {SHAPE(30, 600), SHAPE(15, 2)}, {SHAPE(15, 600)}, 0, 0, true},
    {"adaptive_avg_pool2d_dx", adaptive_avg_pool2d_dx_, {SHAPE(2, 3, 3, 2)}, {SHAPE(2, 3, 8, 6)}, 0, 0, true},
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- running a row in float32 and in 16 bits ------------------------------------------------------------ */

typedef enum { ROW_MAJOR, CHANNELS_LAST, GAPS, ORDERS } Order;

/* A view in `order`: rows of three dimensions and less stay as they are except
 * gaps; *block is to be freed. */
static dsi_view laid_out(ds_dtype dtype, ds_dims d, Order order, void **block)
{
    static const int last[] = {0, 2, 3, 1};
    ds_dims room = d;
    if (order == GAPS && d.n) room.d[d.n - 1] = 2 * d.d[d.n - 1] + 1;
    dsi_view v = view_new(dtype, room.n, room.d, order == CHANNELS_LAST && d.n == 4 ? last : NULL);
    *block = v.p;
    for (int i = 0; i < d.n; i++) v.d[i] = d.d[i];
    if (order == GAPS && d.n) v.s[d.n - 1] *= 2;
    return v;
}

typedef struct Side {
    dsi_view v[2][MAX_VIEWS]; /* x's, y's */
    void *block[2][MAX_VIEWS];
} Side;

static void new_side(Side *side, const Row *row, bool empty, ds_dtype dtype, Order order)
{
    *side = (Side){0};
    for (int i = 0; i < 2 * MAX_VIEWS; i++) {
        int y = i / MAX_VIEWS, at = i % MAX_VIEWS;
        ds_dims d = y ? row->y[at] : row->x[at];
        if (empty && !(row->whole >> (8 * y + at) & 1)) d.d[0] = 0;
        if (d.n) side->v[y][at] = laid_out(dtype, d, order, &side->block[y][at]);
    }
}

static void free_side(Side *side)
{
    for (int i = 0; i < 2 * MAX_VIEWS; i++) free(side->block[i / MAX_VIEWS][i % MAX_VIEWS]);
}

/* Values around 1, some of them large, tiny, denormal in 16 bits; without
 * `tame` infinities and NaNs too. */
static void fill_with(const dsi_view *v, uint64_t seed, bool tame)
{
    static const double special[] = {0.0, -0.0, 3e-6,     -7e-8,     1e-30,
                                     300, -1e3, INFINITY, -INFINITY, NAN};
    int n = (int)(sizeof special / sizeof *special) - (tame ? 5 : 0);
    for (int64_t i = 0; i < view_count(v); i++) {
        double x = 2 * next_random(&seed);
        view_set(v, i, i % 5 == 3 ? special[i / 5 % n] : x);
    }
}

/* The same elements on both sides: those that 16 bits have. */
static void fill_sides(const dsi_kernels *k, dsi_stream *s, const Row *row, Side *wide, Side *half)
{
    for (int i = 0; i < MAX_VIEWS; i++) {
        if (!row->x[i].n) continue;
        fill_with(&wide->v[0][i], 7 + (uint64_t)i, row->tame);
        CHECK_INT(k->copy(s, wide->v[0][i], half->v[0][i]), DS_OK);
        CHECK_INT(k->copy(s, half->v[0][i], wide->v[0][i]), DS_OK);
    }
}

static void compare(const dsi_kernels *k, dsi_stream *s, const Row *row, const dsi_view *want,
                    const dsi_view *got)
{
    dsi_view rounded = view_new(got->dtype, got->n, got->d, NULL);
    dsi_view w = view_new(DS_F32, got->n, got->d, NULL), g = view_new(DS_F32, got->n, got->d, NULL);
    double place = got->dtype == DS_BF16 ? 0x1p-7 : 0x1p-10, largest = 0;
    /* products take weights as two bfloat16 numbers (attention_bf16.c) */
    bool split = got->dtype == DS_BF16 && strstr(row->name, "attention");
    CHECK_INT(k->copy(s, *want, rounded), DS_OK);
    CHECK_INT(k->copy(s, rounded, w), DS_OK);
    CHECK_INT(k->copy(s, *got, g), DS_OK);
    for (int64_t i = 0; split && i < view_count(got); i++)
        largest = fmax(largest, fabs(view_get(&w, i)));
    for (int64_t i = 0; i < view_count(got); i++) {
        double a = view_get(&g, i), b = view_get(&w, i);
        double most = row->places * place * (fabs(b) + 0x1p-14) + 0x1p-16 * largest;
        if (!(a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= most))
            fail_msg("%s: %s element %lld is %.9g, want %.9g", row->name, ds_dtype_name(got->dtype),
                     (long long)i, a, b);
    }
    view_free(&rounded), view_free(&w), view_free(&g);
}

static void run_row(const dsi_kernels *k, const Row *row, bool empty, ds_dtype dtype, Order order)
{
    dsi_stream *s = &dsi_device_current()->stream;
    Side wide, half;
    new_side(&wide, row, empty, DS_F32, ROW_MAJOR);
    new_side(&half, row, empty, dtype, order);
    fill_sides(k, s, row, &wide, &half);
    CHECK_INT(row->call(k, s, wide.v[0], wide.v[1]), DS_OK);
    CHECK_INT(row->call(k, s, half.v[0], half.v[1]), DS_OK);
    for (int i = 0; i < MAX_VIEWS; i++)
        if (row->y[i].n) compare(k, s, row, &wide.v[1][i], &half.v[1][i]);
    free_side(&wide), free_side(&half);
}

/* Some kernels take what is contiguous, attention and combine a unit stride. */
static bool fits(const Row *row, Order order)
{
    static const char *const contiguous[] = {"softmax", "layer_norm", "rms_norm", "attention",
                                             "combine"};
    bool fit = true;
    for (size_t i = 0; i < sizeof contiguous / sizeof *contiguous; i++)
        fit = fit && !strstr(row->name, contiguous[i]);
    return fit || order == ROW_MAJOR;
}

static void as_float32_rounded_once(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (int i = 0; i < ROWS; i++)
        for (Order order = ROW_MAJOR; order < ORDERS; order++) {
            if (!fits(&rows[i], order)) continue;
            run_row(k, &rows[i], false, DS_BF16, order);
            run_row(k, &rows[i], false, DS_F16, order);
        }
}

static void of_no_elements(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (int i = 0; i < ROWS; i++)
        for (Order order = ROW_MAJOR; order < ORDERS; order++) {
            if (!fits(&rows[i], order)) continue;
            run_row(k, &rows[i], true, DS_BF16, order);
            run_row(k, &rows[i], true, DS_F16, order);
        }
}

/* A large convolution has its copies from the device's storage. */
static void without_memory(void **state)
{
    (void)state;
    dsi_stream *s = &dsi_device_current()->stream;
    const Row *row = NULL;
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].name, "conv2d, large")) row = &rows[i];
    FOR_EACH_ISA(k)
    {
        Side half;
        size_t live = dsi_cache_live(s->device);
        new_side(&half, row, false, DS_F16, ROW_MAJOR);
        dsi_cache_fail(1, false);
        CHECK_INT(row->call(k, s, half.v[0], half.v[1]), DS_ENOMEM);
        dsi_cache_fail(0, false);
        CHECK_ERROR("memory");
        CHECK_INT(dsi_cache_live(s->device), live);
        free_side(&half);
    }
}

TEST_MAIN(cmocka_unit_test(as_float32_rounded_once), cmocka_unit_test(of_no_elements),
          cmocka_unit_test(without_memory))
