/* tools/selftest/cases_products.c: products and convolutions.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

/* ---- products ---- */

static ds_status matmul_tiles(Trial *t)
{
    int64_t m = BIG(t, 1024, 65), n = BIG(t, 1024, 66), k = BIG(t, 1024, 17);
    return CALL(t, matmul, IN(t, 2, m, k), IN(t, 2, k, n), STATS(t, n), OUT(t, 2, m, n));
}

/* of gemm_small.cu: lines along k of both, and lines across k of b */
static ds_status matmul_rows(Trial *t)
{
    int64_t m = BIG(t, 64, 5), n = BIG(t, 130, 7), k = BIG(t, 404, 132);
    dsi_view a = trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(m, k));
    dsi_view b = trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(n, k));
    dsi_view x = {a.p, a.dtype, 3, {1, m, k}, {0, a.s[0], 1}};
    dsi_view w = {b.p, b.dtype, 3, {1, k, n}, {0, 1, b.s[0]}};
    return CALL(t, matmul, x, w, STATS(t, n), OUT(t, 1, m, n));
}
static ds_status matmul_columns(Trial *t)
{
    int64_t m = BIG(t, 64, 5), n = BIG(t, 130, 35), k = BIG(t, 404, 70);
    return CALL(t, matmul, IN(t, 2, m, k), IN(t, 2, k, n), STATS(t, n), OUT(t, 2, m, n));
}

/* Of few rows, with an activation: of gemm_joined.cu. */
static ds_status matmul_gate_up(Trial *t)
{
    int64_t m = 5, n = BIG(t, 2048, 35), k = BIG(t, 2048, 132);
    dsi_view a = trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(m, k));
    dsi_view x = {a.p, a.dtype, 3, {1, m, k}, {0, a.s[0], 1}}, w[2], y[2], none = ABSENT;
    for (int i = 0; i < 2; i++) {
        dsi_view b = trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(n, k));
        w[i] = (dsi_view){b.p, b.dtype, 3, {1, k, n}, {0, 1, b.s[0]}};
        y[i] = trial_operand(t, t->dtype, DENSE, 0, 0, true, DIMS(1, m, n));
    }
    dsi_view act = trial_operand(t, t->dtype, DENSE, 0, 0, true, DIMS(1, m, n)),
             product = trial_operand(t, t->dtype, DENSE, 0, 0, true, DIMS(1, m, n));
    ds_status status = CALL(t, matmul, x, w[0], none, y[0]);
    if (status == DS_OK) status = CALL(t, matmul, x, w[1], none, y[1]);
    if (status == DS_OK) status = CALL(t, unary, DSI_SILU, 0, y[0], act);
    return status == DS_OK ? CALL(t, binary, DSI_MUL, 0, act, y[1], product) : status;
}
static ds_status matmul_columns_gelu(Trial *t)
{
    int64_t m = 5, n = BIG(t, 2048, 35), k = BIG(t, 2048, 70);
    dsi_view y = trial_operand(t, t->dtype, DENSE, 0, 0, true, DIMS(1, m, n)),
             act = trial_operand(t, t->dtype, DENSE, 0, 0, true, DIMS(1, m, n));
    ds_status status = CALL(t, matmul, IN(t, 1, m, k), IN(t, 1, k, n), STATS(t, n), y);
    return status == DS_OK ? CALL(t, unary, DSI_GELU_TANH, 0, y, act) : status;
}

static ds_status matmul_few(Trial *t)
{
    int64_t k = BIG(t, 4096, 65);
    return CALL(t, matmul, IN(t, 2, 3, k), IN(t, 2, k, 5), ABSENT, OUT(t, 2, 3, 5));
}

/* Lines of a (b) along k, or across: what tensor cores take. */
static ds_status matmul_of(Trial *t, int64_t m, int64_t n, int64_t k, bool a_along_k,
                           bool b_along_k)
{
    int64_t pad = 8;
    dsi_view a = a_along_k
                     ? trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(m, k + pad - k % pad))
                     : trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(k, m + pad - m % pad));
    dsi_view b = b_along_k
                     ? trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(n, k + pad - k % pad))
                     : trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(k, n + pad - n % pad));
    dsi_view x = {a.p, a.dtype, 3, {1, m, k}, {0, a_along_k ? a.s[0] : 1, a_along_k ? 1 : a.s[0]}};
    dsi_view w = {b.p, b.dtype, 3, {1, k, n}, {0, b_along_k ? 1 : b.s[0], b_along_k ? b.s[0] : 1}};
    return CALL(t, matmul, x, w, STATS(t, n), OUT(t, 1, m, n));
}

static ds_status matmul_lines(Trial *t, bool a_along_k, bool b_along_k)
{
    return matmul_of(t, BIG(t, 1024, 130), BIG(t, 1024, 129), BIG(t, 1024, 41), a_along_k,
                     b_along_k);
}

/* The sum is cut into parts; tiles are in more than one group. */
static ds_status matmul_long(Trial *t)
{
    return matmul_of(t, BIG(t, 768, 37), BIG(t, 768, 35), BIG(t, 8192, 2051), false, false);
}
static ds_status matmul_tall(Trial *t)
{
    return matmul_of(t, BIG(t, 8192, 2180), BIG(t, 3072, 132), BIG(t, 768, 9), true, true);
}

/* So many tiles that larger ones are faster, those of 192 columns where there
 * are such, or of 256; small in wide dtypes. */
static ds_status matmul_columns_of(Trial *t, int64_t large, int64_t m, int64_t n, int64_t k,
                                   bool a_along_k, bool b_along_k)
{
    bool half = t->dtype == DS_F16 || t->dtype == DS_BF16;
    return matmul_of(t, BIG(t, 8192, half ? m : 17), BIG(t, large, half ? n : 17), BIG(t, 768, k),
                     a_along_k, b_along_k);
}
/* With lines t n, the sum takes more steps than a block has stages. */
static ds_status matmul_wide(Trial *t, bool a_along_k, bool b_along_k)
{
    bool long_sum = !a_along_k && !b_along_k;
    return matmul_columns_of(t, 2304, long_sum ? 17100 : 8600, 134, long_sum ? 201 : 9, a_along_k,
                             b_along_k);
}
static ds_status matmul_wider(Trial *t, bool a_along_k, bool b_along_k)
{
    bool long_sum = !a_along_k && !b_along_k;
    return matmul_columns_of(t, 3072, 8600, 198, long_sum ? 321 : 9, a_along_k, b_along_k);
}
static ds_status matmul_wide_nn(Trial *t) { return matmul_wide(t, true, false); }
static ds_status matmul_wide_nt(Trial *t) { return matmul_wide(t, true, true); }
static ds_status matmul_wide_tn(Trial *t) { return matmul_wide(t, false, false); }
static ds_status matmul_wide_tt(Trial *t) { return matmul_wide(t, false, true); }
static ds_status matmul_wider_nn(Trial *t) { return matmul_wider(t, true, false); }
static ds_status matmul_wider_nt(Trial *t) { return matmul_wider(t, true, true); }
static ds_status matmul_wider_tn(Trial *t) { return matmul_wider(t, false, false); }
static ds_status matmul_wider_tt(Trial *t) { return matmul_wider(t, false, true); }

/* Large enough for the tiles of float32; small in other dtypes. */
static ds_status matmul_f32(Trial *t, bool a_along_k, bool b_along_k, int64_t m, int64_t k)
{
    bool single = t->dtype == DS_F32;
    return matmul_of(t, BIG(t, 2048, single ? m : 17), BIG(t, 2048, single ? m - 3 : 17),
                     BIG(t, 2048, single ? k : 17), a_along_k, b_along_k);
}
static ds_status matmul_f32_nt(Trial *t) { return matmul_f32(t, true, true, 261, 253); }
static ds_status matmul_f32_tn(Trial *t) { return matmul_f32(t, false, false, 70, 3900); }
static ds_status matmul_f32_tt(Trial *t) { return matmul_f32(t, false, true, 261, 253); }

/* Rows are not aligned: of a large product they are copied. */
static ds_status matmul_unaligned(Trial *t)
{
    int64_t edge = t->dtype == DS_F64 ? 17 : 257;
    int64_t m = BIG(t, 1024, edge), n = BIG(t, 8191, edge), k = BIG(t, 1001, 255);
    return CALL(t, matmul, IN(t, 1, m, k), IN(t, 1, k, n), STATS(t, n), OUT(t, 1, m, n));
}

static ds_status matmul_nn(Trial *t) { return matmul_lines(t, true, false); }
static ds_status matmul_nt(Trial *t) { return matmul_lines(t, true, true); }
static ds_status matmul_tn(Trial *t) { return matmul_lines(t, false, false); }
static ds_status matmul_tt(Trial *t) { return matmul_lines(t, false, true); }

/* ---- convolution: C K groups H W and the options ---- */

typedef struct Sizes {
    int64_t n, c, k, h, w, r, s;
    dsi_conv2d o;
} Sizes;

static Sizes plain_conv(const Trial *t)
{
    return (Sizes){BIG(t, 32, 2),
                   BIG(t, 64, 3),
                   BIG(t, 64, 65),
                   BIG(t, 32, 7),
                   BIG(t, 32, 6),
                   3,
                   3,
                   {{1, 1}, {1, 1}, {1, 1}, 1}};
}
static Sizes odd_conv(const Trial *t)
{
    return (Sizes){2, BIG(t, 64, 4), BIG(t, 64, 6), 9, 8, 3, 2, {{2, 1}, {1, 2}, {1, 2}, 2}};
}
/* the sum of dw is long enough to be cut into parts */
static Sizes long_conv(const Trial *t)
{
    return (Sizes){BIG(t, 64, 3), 2, 17, BIG(t, 64, 18), 18, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}};
}
static Sizes depthwise_conv(const Trial *t)
{
    int64_t c = BIG(t, 256, 4);
    return (Sizes){2, c, c, 8, 8, 3, 3, {{1, 1}, {1, 1}, {1, 1}, c}};
}

/* few channels out and in: conv_small.cu */
static Sizes few_conv(const Trial *t)
{
    return (Sizes){
        BIG(t, 64, 3), 12, BIG(t, 32, 18), BIG(t, 32, 9), 11, 5, 3, {{2, 1}, {1, 2}, {1, 1}, 2}};
}

static int64_t out_size(const Sizes *z, int axis)
{
    int64_t in = axis ? z->w : z->h, taps = axis ? z->s : z->r;
    return (in + 2 * z->o.padding[axis] - z->o.dilation[axis] * (taps - 1) - 1) /
               z->o.stride[axis] +
           1;
}

static ds_status conv_of(Trial *t, Sizes z)
{
    return CALL(t, conv2d, &z.o, IN(t, z.n, z.c, z.h, z.w), IN(t, z.k, z.c / z.o.groups, z.r, z.s),
                STATS(t, z.k), OUT(t, z.n, z.k, out_size(&z, 0), out_size(&z, 1)));
}
static ds_status conv_dx_of(Trial *t, Sizes z)
{
    return CALL(t, conv2d_dx, &z.o, IN(t, z.n, z.k, out_size(&z, 0), out_size(&z, 1)),
                IN(t, z.k, z.c / z.o.groups, z.r, z.s), OUT(t, z.n, z.c, z.h, z.w));
}
static ds_status conv_dw_of(Trial *t, Sizes z)
{
    return CALL(t, conv2d_dw, &z.o, IN(t, z.n, z.k, out_size(&z, 0), out_size(&z, 1)),
                IN(t, z.n, z.c, z.h, z.w), OUT(t, z.k, z.c / z.o.groups, z.r, z.s));
}
#define CONV_CASES(name, sizes) \
    static ds_status name(Trial *t) { return conv_of(t, sizes(t)); } \
    static ds_status name##_dx(Trial *t) { return conv_dx_of(t, sizes(t)); } \
    static ds_status name##_dw(Trial *t) { return conv_dw_of(t, sizes(t)); }
CONV_CASES(conv_plain, plain_conv)
CONV_CASES(conv_odd, odd_conv)
CONV_CASES(conv_long, long_conv)
CONV_CASES(conv_depthwise, depthwise_conv)
CONV_CASES(conv_few, few_conv)

/* Channels are neighbours in memory: 16 bits go to conv_last.cu. Pixels are no
 * multiple of a tile. dw is large enough for warpgroups. */
static Sizes last_conv(const Trial *t)
{
    return (Sizes){BIG(t, 64, 2),
                   64,
                   BIG(t, 64, 72),
                   BIG(t, 32, 29),
                   BIG(t, 32, 28),
                   3,
                   3,
                   {{1, 1}, {1, 1}, {1, 1}, 1}};
}
static Sizes last_stride(const Trial *t)
{
    return (Sizes){BIG(t, 64, 3),
                   BIG(t, 128, 24),
                   BIG(t, 256, 136),
                   BIG(t, 16, 9),
                   BIG(t, 16, 8),
                   3,
                   3,
                   {{2, 2}, {1, 1}, {1, 1}, 1}};
}
static Sizes last_point(const Trial *t)
{
    return (Sizes){BIG(t, 64, 3),
                   BIG(t, 256, 72),
                   BIG(t, 128, 136),
                   BIG(t, 16, 9),
                   BIG(t, 16, 7),
                   1,
                   1,
                   {{2, 2}, {0, 0}, {1, 1}, 1}};
}
static Sizes last_groups(const Trial *t)
{
    return (Sizes){2, BIG(t, 128, 48), BIG(t, 128, 48), 9, 8, 3, 2, {{2, 1}, {1, 2}, {1, 2}, 2}};
}

/* the sum of dw is cut into many parts */
static Sizes last_long(const Trial *t)
{
    return (Sizes){5, 8, 16, BIG(t, 128, 31), 30, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}};
}

/* few pixels: the sums of y and dx are cut into parts */
static Sizes last_deep(const Trial *t)
{
    int64_t channels = BIG(t, 512, 128);
    return (Sizes){BIG(t, 32, 1), channels, channels, 7, 6, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}};
}

/* few channels of planes */
static Sizes last_few(const Trial *t)
{
    return (Sizes){BIG(t, 64, 3),
                   3,
                   BIG(t, 64, 40),
                   BIG(t, 32, 9),
                   BIG(t, 32, 11),
                   3,
                   3,
                   {{2, 1}, {1, 1}, {1, 1}, 1}};
}

static dsi_view last_image(Trial *t, int64_t n, int64_t c, int64_t h, int64_t w, bool output)
{
    dsi_view v = trial_operand(t, t->dtype, DENSE, output ? 0 : -1, output ? 0 : 1, output,
                               DIMS(n, h, w, c));
    return (dsi_view){v.p, v.dtype, 4, {n, c, h, w}, {v.s[0], v.s[3], v.s[1], v.s[2]}};
}
static dsi_view last_x(Trial *t, Sizes z, bool output)
{
    if (z.c % 8)
        return trial_operand(t, t->dtype, t->layout, output ? 0 : -1, output ? 0 : 1, output,
                             DIMS(z.n, z.c, z.h, z.w));
    return last_image(t, z.n, z.c, z.h, z.w, output);
}
#define LAST_Y(t, z, output) \
    last_image(t, (z).n, (z).k, out_size(&(z), 0), out_size(&(z), 1), output)

static ds_status last_of(Trial *t, Sizes z)
{
    return CALL(t, conv2d, &z.o, last_x(t, z, false), IN(t, z.k, z.c / z.o.groups, z.r, z.s),
                STATS(t, z.k), LAST_Y(t, z, true));
}
static ds_status last_dx_of(Trial *t, Sizes z)
{
    return CALL(t, conv2d_dx, &z.o, LAST_Y(t, z, false), IN(t, z.k, z.c / z.o.groups, z.r, z.s),
                last_x(t, z, true));
}
static ds_status last_dw_of(Trial *t, Sizes z)
{
    return CALL(t, conv2d_dw, &z.o, LAST_Y(t, z, false), last_x(t, z, false),
                OUT(t, z.k, z.c / z.o.groups, z.r, z.s));
}
/* float64 has no tiles, so few channels are as good. */
static Sizes last_sizes(const Trial *t, Sizes z)
{
    if (t->dtype != DS_F64 || t->big) return z;
    z.c = z.c < 16 ? z.c : 16;
    z.k = z.k < 16 ? z.k : 16;
    return z;
}
#define LAST_CASES(name) \
    static ds_status conv_##name(Trial *t) { return last_of(t, last_sizes(t, name(t))); } \
    static ds_status conv_##name##_dx(Trial *t) { return last_dx_of(t, last_sizes(t, name(t))); } \
    static ds_status conv_##name##_dw(Trial *t) { return last_dw_of(t, last_sizes(t, name(t))); }
LAST_CASES(last_conv)
LAST_CASES(last_stride)
LAST_CASES(last_point)
LAST_CASES(last_groups)
LAST_CASES(last_few)
LAST_CASES(last_long)
LAST_CASES(last_deep)

/* ---- fusions: the host has the kernels that they replace ---- */

static ds_status conv_dw_db(Trial *t)
{
    Sizes z = plain_conv(t);
    dsi_view dy = IN(t, z.n, z.k, out_size(&z, 0), out_size(&z, 1)), x = IN(t, z.n, z.c, z.h, z.w);
    dsi_view dw = OUT(t, z.k, z.c / z.o.groups, z.r, z.s), db = OUT(t, z.k);
    if (t->device->type->kind != DS_CPU) return CALL_FUSION(t, conv2d_dw_db, &z.o, dy, x, dw, db);
    dsi_view wide = {db.p, db.dtype, 4, {1, z.k, 1, 1}, {0, db.s[0], 0, 0}};
    ds_status status = CALL(t, conv2d_dw, &z.o, dy, x, dw);
    return status == DS_OK ? CALL(t, reduce, DSI_SUM, 1, dy, wide, ABSENT) : status;
}

static const dsi_pool2d quads = {{2, 2}, {2, 2}, {0, 0}, {1, 1}, false, 0, false};

/* The second convolution of the tutorial's network, and one of odd sizes. */
static Sizes pooled_conv(const Trial *t, bool odd)
{
    if (odd) return (Sizes){3, 16, 16, 11, 9, 4, 2, {{1, 1}, {2, 1}, {1, 2}, 2}};
    return (Sizes){BIG(t, 16, 4), 6, 16, 14, 14, 5, 5, {{1, 1}, {0, 0}, {1, 1}, 1}};
}

/* A convolution, and max-pooling of its result, which may be one kernel. */
static ds_status conv_pool_of(Trial *t, bool odd)
{
    Sizes z = pooled_conv(t, odd);
    int64_t p = out_size(&z, 0), q = out_size(&z, 1);
    dsi_view y = OUT(t, z.n, z.k, p, q), pooled = OUT(t, z.n, z.k, p / 2, q / 2);
    dsi_view index = OUT_INDEX(t, DS_I32, z.n, z.k, p / 2, q / 2);
    ds_status status = CALL(t, conv2d, &z.o, IN(t, z.n, z.c, z.h, z.w),
                            IN(t, z.k, z.c / z.o.groups, z.r, z.s), STATS(t, z.k), y);
    return status == DS_OK ? CALL_FUSION(t, relu_max_pool2d, &quads, y, pooled, index) : status;
}
static ds_status conv_pool(Trial *t) { return conv_pool_of(t, false); }
static ds_status conv_pool_groups(Trial *t) { return conv_pool_of(t, true); }

/* SGD's second step of w, whose gradient is dw, b, and a parameter of a
 * gradient that is not here. */
static ds_status step_of(Trial *t, const dsi_view *dw, const dsi_view *db)
{
    const dsi_optimizer c = {.rule = DSI_SGD, .sgd = {0.1, 0.9, 0, 0.01, true, false}};
    dsi_view g = trial_operand(t, t->dtype, DENSE, -1, 1, false, DIMS(BIG(t, 50000, 2049)));
    const dsi_view *of[] = {dw, db, &g};
    dsi_span span[3];
    for (int i = 0; i < 3; i++) {
        int64_t n = 1;
        for (int k = 0; k < of[i]->n; k++) n *= of[i]->d[k];
        dsi_view p = trial_operand(t, t->dtype, DENSE, -1, 1, true, DIMS(n)),
                 m = trial_operand(t, trial_wide(t), DENSE, -1, 1, true, DIMS(n));
        span[i] = (dsi_span){.dtype = t->dtype,
                             .p = p.p,
                             .g = of[i]->p,
                             .m = m.p,
                             .n = n,
                             .step = 2,
                             .g_dtype = t->dtype,
                             .g_scale = 0.5};
    }
    return CALL(t, optimizer, &c, 3, span);
}

/* The host has no conv2d_back_pooled: the core's kernels that it replaces. With
 * `steps` there is no dx, and SGD follows. */
static ds_status conv_back_pooled_of(Trial *t, bool odd, bool relu, bool steps)
{
    Sizes z = pooled_conv(t, odd);
    int64_t p = out_size(&z, 0), q = out_size(&z, 1);
    dsi_view x = IN(t, z.n, z.c, z.h, z.w), w = IN(t, z.k, z.c / z.o.groups, z.r, z.s),
             y = IN(t, z.n, z.k, p, q), value = IN(t, z.n, z.k, p / 2, q / 2);
    dsi_view max = OUT(t, z.n, z.k, p / 2, q / 2), dense = IN(t, z.n, z.k, p, q),
             index = OUT_INDEX(t, DS_I32, z.n, z.k, p / 2, q / 2);
    Layout layout = steps ? DENSE : t->layout;
    dsi_view dx = steps ? ABSENT : OUT(t, z.n, z.c, z.h, z.w),
             dw = trial_operand(t, t->dtype, layout, 0, 0, true,
                                DIMS(z.k, z.c / z.o.groups, z.r, z.s)),
             db = trial_operand(t, t->dtype, layout, 0, 0, true, DIMS(z.k));
    dsi_view wide = {db.p, db.dtype, 4, {1, z.k, 1, 1}, {0, db.s[0], 0, 0}};
    dsi_pooled dy = {.value = value, .max = max, .index = index, .h = p, .w = q, .relu = relu};
    bool done = false;
    ds_status status = CALL(t, max_pool2d, &quads, y, max, index);
    if (status == DS_OK && t->device->type->kind != DS_CPU)
        status = CALL_FUSION(t, conv2d_back_pooled, &z.o, &dy, x, w, dx, dw, db, &done);
    if (status != DS_OK || done) return status == DS_OK && steps ? step_of(t, &dw, &db) : status;
    if (relu) status = CALL(t, unary_dx, DSI_RELU, 0, value, max, value);
    if (status == DS_OK) status = CALL(t, max_pool2d_dx, value, index, dense);
    if (status == DS_OK && !steps) status = CALL(t, conv2d_dx, &z.o, dense, w, dx);
    if (status == DS_OK) status = CALL(t, conv2d_dw, &z.o, dense, x, dw);
    if (status == DS_OK) status = CALL(t, reduce, DSI_SUM, 1, dense, wide, ABSENT);
    return status == DS_OK && steps ? step_of(t, &dw, &db) : status;
}
static ds_status conv_back_pooled(Trial *t) { return conv_back_pooled_of(t, false, true, false); }
static ds_status conv_back_pooled_groups(Trial *t)
{
    return conv_back_pooled_of(t, true, false, false);
}
static ds_status conv_back_step(Trial *t) { return conv_back_pooled_of(t, false, true, true); }

static ds_status matmul_sums_of(Trial *t, int64_t m, int64_t k, int64_t n)
{
    dsi_view a = IN(t, 1, m, k), b = IN(t, 1, k, n), y = OUT(t, 1, m, n), sums = OUT(t, m);
    if (t->device->type->kind != DS_CPU) return CALL_FUSION(t, matmul_sums, a, b, y, sums);
    dsi_view line = {sums.p, sums.dtype, 3, {1, m, 1}, {0, sums.s[0], 0}};
    ds_status status = CALL(t, matmul, a, b, ABSENT, y);
    return status == DS_OK ? CALL(t, reduce, DSI_SUM, 1, a, line, ABSENT) : status;
}

static ds_status matmul_sums(Trial *t)
{
    return matmul_sums_of(t, BIG(t, 1000, 65), 17, BIG(t, 1001, 66));
}
/* The gradient of a layer's weights for 4 and for 3 samples. */
static ds_status matmul_sums_few(Trial *t) { return matmul_sums_of(t, 120, 4, 400); }
static ds_status matmul_sums_odd(Trial *t) { return matmul_sums_of(t, 35, 3, 132); }

const SelfCase selftest_products[] = {
    {"matmul", "tiles", matmul_tiles, 4, false},
    {"matmul", "long sums", matmul_long, 4, true},
    {"matmul", "many rows", matmul_tall, 4, true},
    {"matmul", "rows that are not aligned", matmul_unaligned, 4, true},
    {"matmul", "wide, lines n n", matmul_wide_nn, 4, true},
    {"matmul", "wide, lines n t", matmul_wide_nt, 4, true},
    {"matmul", "wide, lines t n", matmul_wide_tn, 4, true},
    {"matmul", "wide, lines t t", matmul_wide_tt, 4, true},
    {"matmul", "wider, lines n n", matmul_wider_nn, 4, true},
    {"matmul", "wider, lines n t", matmul_wider_nt, 4, true},
    {"matmul", "wider, lines t n", matmul_wider_tn, 4, true},
    {"matmul", "wider, lines t t", matmul_wider_tt, 4, true},
    {"matmul", "large, lines n t", matmul_f32_nt, 4, true},
    {"matmul", "large, lines t n", matmul_f32_tn, 4, true},
    {"matmul", "large, lines t t", matmul_f32_tt, 4, true},
    {"matmul", "few", matmul_few, 4, false},
    {"matmul", "rows", matmul_rows, 4, false},
    {"matmul", "columns", matmul_columns, 4, false},
    {"matmul", "gate and up, SiLU", matmul_gate_up, 8, true},
    {"matmul", "columns, GELU", matmul_columns_gelu, 8, false},
    {"matmul", "lines n n", matmul_nn, 4, true},
    {"matmul", "lines n t", matmul_nt, 4, true},
    {"matmul", "lines t n", matmul_tn, 4, true},
    {"matmul", "lines t t", matmul_tt, 4, true},
#define CONV(what, name, dense) \
    {"conv2d", what, name, 4, dense}, {"conv2d_dx", what, name##_dx, 4, dense}, \
    { \
        "conv2d_dw", what, name##_dw, 4, dense \
    }
    CONV("3x3", conv_plain, false),
    CONV("stride, dilation, groups", conv_odd, false),
    CONV("long sums", conv_long, false),
    CONV("depthwise", conv_depthwise, false),
    CONV("few channels", conv_few, false),
    CONV("channels last", conv_last_conv, true),
    CONV("channels last, stride", conv_last_stride, true),
    CONV("channels last, 1x1", conv_last_point, true),
    CONV("channels last, long sums", conv_last_long, true),
    CONV("channels last, deep sums", conv_last_deep, true),
    CONV("channels last, few", conv_last_few, false),
    CONV("channels last, groups", conv_last_groups, false),
    {"conv2d_dw_db", "", conv_dw_db, 4, false},
    {"conv2d, max_pool2d", "", conv_pool, 4, false},
    {"conv2d, max_pool2d", "groups", conv_pool_groups, 4, false},
    {"conv2d_back_pooled", "", conv_back_pooled, 4, false},
    {"conv2d_back_pooled", "groups", conv_back_pooled_groups, 4, false},
    {"conv2d_back_pooled", "sgd", conv_back_step, 4, false},
    {"matmul_sums", "", matmul_sums, 4, false},
    {"matmul_sums", "4 samples", matmul_sums_few, 4, false},
    {"matmul_sums", "3 samples", matmul_sums_odd, 4, false},
    {0}};
