/* tests/device/conv.c: convolution kernels against plain loops in double
 * precision: every instruction set, memory order and dtype; results equal bit
 * for bit with one thread and with three. Depthwise ones of 16 bits equal those
 * of float32, rounded.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"
#include "views.h"

typedef struct {
    int64_t N, C, H, W, K, R, S;
    dsi_conv2d c;
} Case;

#define CONV(s0, s1, p0, p1, d0, d1, g) \
    { \
        {s0, s1}, {p0, p1}, {d0, d1}, g \
    }
static const Case cases[] = {
    {3, 3, 32, 32, 6, 5, 5, CONV(1, 1, 0, 0, 1, 1, 1)}, /* the tutorial's two */
    {5, 6, 14, 14, 16, 5, 5, CONV(1, 1, 0, 0, 1, 1, 1)},
    {2, 5, 9, 11, 7, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {1, 64, 10, 9, 33, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {2, 16, 8, 8, 32, 3, 3, CONV(2, 2, 1, 1, 1, 1, 1)},
    {3, 24, 7, 7, 48, 1, 1, CONV(1, 1, 0, 0, 1, 1, 1)},
    {2, 8, 9, 9, 16, 1, 1, CONV(2, 2, 0, 0, 1, 1, 1)},
    {2, 4, 13, 17, 8, 3, 2, CONV(2, 3, 2, 1, 1, 2, 1)},
    {1, 3, 20, 19, 5, 4, 7, CONV(3, 1, 3, 5, 2, 1, 1)},
    {2, 8, 12, 12, 8, 3, 3, CONV(1, 1, 1, 1, 1, 1, 8)}, /* depthwise */
    {2, 12, 6, 10, 18, 3, 3, CONV(1, 2, 0, 1, 2, 1, 3)},
    {1, 1, 1, 1, 1, 1, 1, CONV(1, 1, 0, 0, 1, 1, 1)},
    {2, 1, 5, 5, 1, 5, 5, CONV(1, 1, 4, 4, 1, 1, 1)}, /* padding beyond the kernel's half */
    {17, 2, 6, 5, 3, 2, 2, CONV(1, 1, 0, 0, 1, 1, 1)},
    {1, 6, 40, 70, 6, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {9, 20, 5, 5, 40, 3, 3, CONV(1, 1, 0, 0, 2, 2, 1)},
    {2, 3, 30, 30, 12, 7, 7, CONV(4, 4, 3, 3, 1, 1, 1)}, /* some of x is never read */
    {4, 2, 7, 40, 4, 1, 9, CONV(1, 1, 0, 4, 1, 1, 2)},
    /* enough work for three threads */
    {4, 16, 24, 24, 16, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {1, 16, 32, 32, 16, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {3, 16, 30, 30, 32, 3, 3, CONV(2, 2, 1, 1, 1, 1, 2)},
    {1, 3, 64, 64, 6, 5, 5, CONV(1, 1, 0, 0, 1, 1, 1)},
    {2, 3, 5, 10, 3, 3, 3, CONV(1, 1, 0, 0, 1, 1, 1)}, /* rows of half a vector */
    {2, 3, 7, 6, 3, 3, 3, CONV(1, 1, 0, 0, 1, 1, 1)},
    /* by Winograd's way: padding of each kind, odd sizes, more tiles than a
     * block, a block for each thread, many channels */
    {1, 32, 8, 8, 32, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {3, 48, 6, 5, 16, 3, 3, CONV(1, 1, 0, 2, 1, 1, 1)},
    {1, 16, 35, 34, 16, 3, 3, CONV(1, 1, 1, 0, 1, 1, 1)},
    {1, 16, 80, 78, 16, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {2, 144, 6, 7, 128, 3, 3, CONV(1, 1, 1, 1, 1, 1, 1)},
    {2, 40, 9, 10, 40, 3, 3, CONV(1, 1, 1, 1, 1, 1, 40)},  /* depthwise */
    {3, 75, 40, 21, 75, 3, 3, CONV(2, 1, 1, 1, 1, 1, 75)}, /* strips of 16 bits */
    {2, 16, 13, 9, 16, 5, 4, CONV(2, 3, 2, 1, 1, 1, 16)},
    {2, 11, 17, 20, 11, 3, 8, CONV(1, 2, 2, 4, 2, 3, 11)},
    {2, 8, 9, 9, 16, 1, 1, CONV(2, 3, 0, 0, 1, 1, 1)}, /* as matrix products */
    {3, 32, 6, 6, 20, 1, 1, CONV(1, 1, 0, 0, 1, 1, 1)},
    {0, 3, 8, 8, 6, 3, 3, CONV(1, 1, 0, 0, 1, 1, 1)}, /* no samples */
};
#define N_CASES (int)(sizeof cases / sizeof *cases)

static int64_t outputs(const Case *o, int axis)
{
    int64_t length = axis ? o->W : o->H, kernel = axis ? o->S : o->R;
    return (length + 2 * o->c.padding[axis] - o->c.dilation[axis] * (kernel - 1) - 1) /
               o->c.stride[axis] +
           1;
}

/* x, w, y (or their gradients) as row-major doubles; every product of the
 * convolution is visited */
typedef struct {
    const Case *o;
    int64_t P, Q;
    double *x, *w, *b, *y, *dy, *dx, *dw;
} Truth;

static ds_dims x_shape(const Case *o) { return ds_shape(o->N, o->C, o->H, o->W); }
static ds_dims w_shape(const Case *o) { return ds_shape(o->K, o->C / o->c.groups, o->R, o->S); }
static ds_dims y_shape(const Case *o) { return ds_shape(o->N, o->K, outputs(o, 0), outputs(o, 1)); }

static int64_t count(ds_dims d) { return d.d[0] * d.d[1] * d.d[2] * d.d[3]; }

static void visit(Truth *t, int64_t n, int64_t k, int64_t p, int64_t q)
{
    const Case *o = t->o;
    int64_t per = o->C / o->c.groups, at = ((n * o->K + k) * t->P + p) * t->Q + q;
    double y = t->b[k], dy = t->dy[at];
    for (int64_t i = 0; i < per; i++)
        for (int64_t r = 0; r < o->R; r++)
            for (int64_t s = 0; s < o->S; s++) {
                int64_t h = p * o->c.stride[0] + r * o->c.dilation[0] - o->c.padding[0];
                int64_t v = q * o->c.stride[1] + s * o->c.dilation[1] - o->c.padding[1];
                if (h < 0 || h >= o->H || v < 0 || v >= o->W) continue;
                int64_t c = k / (o->K / o->c.groups) * per + i;
                int64_t ix = ((n * o->C + c) * o->H + h) * o->W + v;
                int64_t iw = ((k * per + i) * o->R + r) * o->S + s;
                y += t->x[ix] * t->w[iw];
                t->dx[ix] += dy * t->w[iw];
                t->dw[iw] += dy * t->x[ix];
            }
    t->y[at] = y;
}

static Truth truth(const Case *o, const double *dy)
{
    int64_t nx = count(x_shape(o)), nw = count(w_shape(o)), ny = count(y_shape(o));
    Truth t = {o,
               outputs(o, 0),
               outputs(o, 1),
               noise(nx, 1),
               noise(nw, 2),
               noise(o->K, 3),
               NULL,
               NULL,
               calloc((size_t)nx, sizeof(double)),
               calloc((size_t)nw, sizeof(double))};
    t.y = calloc((size_t)ny, sizeof(double));
    t.dy = noise(ny, 4);
    if (dy) memcpy(t.dy, dy, (size_t)ny * sizeof *dy);
    for (int64_t n = 0; n < o->N && compares_values(); n++)
        for (int64_t k = 0; k < o->K; k++)
            for (int64_t i = 0; i < t.P * t.Q; i++) visit(&t, n, k, i / t.Q, i % t.Q);
    return t;
}

static void truth_free(Truth *t)
{
    free(t->x), free(t->w), free(t->b), free(t->y), free(t->dy), free(t->dx), free(t->dw);
}

static Tensor filled(ds_dtype dtype, ds_dims shape, Order order, const double *x)
{
    Tensor t = tensor(dtype, shape, order);
    put(&t, x);
    return t;
}

static dsi_stream *stream(void) { return &dsi_device_current()->stream; }

/* got against want, relative to the largest value there */
static void compare(const Tensor *got, const double *want, const char *what, const char *isa,
                    int number)
{
    double *x = values(got), largest = 1;
    double eps = got->v.dtype == DS_F32 ? 2e-6 : 1e-13;
    for (int64_t i = 0; i < got->n; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < got->n && compares_values(); i++)
        if (!(fabs(x[i] - want[i]) <= eps * largest))
            fail_msg("%s, %s, case %d, element %lld: %.9g, want %.9g", what, isa, number,
                     (long long)i, x[i], want[i]);
    if (!guards_hold(got))
        fail_msg("%s, %s, case %d: wrote outside of its result", what, isa, number);
    free(x);
}

static bool same_bits(const Tensor *a, const Tensor *b)
{
    return !memcmp(a->memory, b->memory, (size_t)a->room * ds_dtype_size(a->v.dtype));
}

/* Runs `call` with result `y` (made by `make`) on one thread and on three;
 * compares and frees. */
#define CHECK_KERNEL(shape, order, want, what, call) \
    do { \
        Tensor y = tensor(dtype, shape, order), again = tensor(dtype, shape, order), *out = &y; \
        ds_set_threads(1); \
        CHECK_INT(call, DS_OK); \
        compare(&y, want, what, isa->name, (int)(o - cases)); \
        out = &again; \
        ds_set_threads(3); \
        CHECK_INT(call, DS_OK); \
        if (!same_bits(&y, &again)) \
            fail_msg("%s, %s, case %d: another result with 3 threads", what, isa->name, \
                     (int)(o - cases)); \
        tensor_free(&y), tensor_free(&again); \
    } while (0)

static void run_dense(const Isa *isa, const Truth *t, ds_dtype dtype, Order in, Order result)
{
    const Case *o = t->o;
    const dsi_kernels *k = isa->kernels;
    Tensor x = filled(dtype, x_shape(o), in, t->x), w = filled(dtype, w_shape(o), ROW_MAJOR, t->w);
    Tensor b = filled(dtype, ds_shape(o->K), ROW_MAJOR, t->b),
           dy = filled(dtype, y_shape(o), in, t->dy);
    CHECK_KERNEL(y_shape(o), result, t->y, "conv2d",
                 k->conv2d(stream(), &o->c, x.v, w.v, b.v, out->v));
    CHECK_KERNEL(x_shape(o), result, t->dx, "conv2d_dx",
                 k->conv2d_dx(stream(), &o->c, dy.v, w.v, out->v));
    CHECK_KERNEL(w_shape(o), ROW_MAJOR, t->dw, "conv2d_dw",
                 k->conv2d_dw(stream(), &o->c, dy.v, x.v, out->v));
    tensor_free(&x), tensor_free(&w), tensor_free(&b), tensor_free(&dy);
}

/* float64's plain loops do the same in every shape: not those of many products,
 * and with a sanitizer those of few. */
static bool in_float64(const Case *o)
{
    return outputs(o, 0) * outputs(o, 1) * o->N * o->K * (o->C / o->c.groups) * o->R * o->S <
           (quick() ? 3e5 : 6e6);
}

static void every_case(void (*run)(const Isa *, const Truth *, ds_dtype, Order, Order),
                       const Truth *t)
{
    Isa isa[3];
    int n = isas(isa);
    for (int i = 0; i < n; i++)
        for (int in = 0; in < ORDERS; in++)
            for (int result = 0; result < ORDERS; result++) {
                if (quick() && result == (in + 1) % ORDERS) continue;
                run(&isa[i], t, DS_F32, (Order)in, (Order)result);
                if (in == result && (!quick() || in == i) && in_float64(t->o))
                    run(&isa[i], t, DS_F64, (Order)in, (Order)result);
            }
}

static void dense(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        Truth t = truth(&cases[i], NULL);
        every_case(run_dense, &t);
        truth_free(&t);
    }
}

/* A gradient that only the maxima of 2x2 windows have, some of them 0: value
 * and index [N,K,P/2,Q/2]. */
static _Thread_local double *pooled_value, *pooled_index;

static double *make_pooled(const Case *o)
{
    int64_t P = outputs(o, 0), Q = outputs(o, 1), p2 = P / 2, q2 = Q / 2, n = o->N * o->K * p2 * q2;
    double *dense_dy = calloc((size_t)(o->N * o->K * P * Q), sizeof *dense_dy);
    pooled_value = noise(n, 5);
    pooled_index = noise(n, 6);
    for (int64_t i = 0; i < n; i++) {
        int pick = (int)((pooled_index[i] + 1) * 1000);
        int64_t h = i / q2 % p2 * 2 + pick % 2, v = i % q2 * 2 + pick / 2 % 2;
        if (pick % 3 == 0) pooled_value[i] = 0;
        pooled_index[i] = (double)(h * Q + v);
        dense_dy[i / (p2 * q2) * P * Q + h * Q + v] = pooled_value[i];
    }
    return dense_dy;
}

static void run_pooled(const Isa *isa, const Truth *t, ds_dtype dtype, Order in, Order result)
{
    const Case *o = t->o;
    ds_dims half = ds_shape(o->N, o->K, t->P / 2, t->Q / 2);
    Tensor x = filled(dtype, x_shape(o), in, t->x), w = filled(dtype, w_shape(o), ROW_MAJOR, t->w);
    Tensor value = filled(dtype, half, result, pooled_value),
           index = filled(DS_I32, half, result, pooled_index);
    dsi_pooled dy = {.value = value.v, .index = index.v, .h = t->P, .w = t->Q};
    CHECK_KERNEL(x_shape(o), in, t->dx, "conv2d_dx_pooled",
                 isa->fusions->conv2d_dx_pooled(stream(), &o->c, &dy, w.v, out->v));
    CHECK_KERNEL(w_shape(o), ROW_MAJOR, t->dw, "conv2d_dw_pooled",
                 isa->fusions->conv2d_dw_pooled(stream(), &o->c, &dy, x.v, out->v));
    tensor_free(&x), tensor_free(&w), tensor_free(&value), tensor_free(&index);
}

static void pooled(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        if (outputs(&cases[i], 0) < 2 || outputs(&cases[i], 1) < 2) continue;
        double *dy = make_pooled(&cases[i]);
        Truth t = truth(&cases[i], dy);
        every_case(run_pooled, &t);
        truth_free(&t);
        free(dy), free(pooled_value), free(pooled_index);
    }
}

static void run_sum(const Isa *isa, const Truth *t, ds_dtype dtype, Order in, Order result)
{
    const Case *o = t->o;
    (void)result;
    double *want = calloc((size_t)o->K, sizeof *want);
    for (int64_t i = 0; i < count(y_shape(o)); i++) want[i / (t->P * t->Q) % o->K] += t->dy[i];
    Tensor dy = filled(dtype, y_shape(o), in, t->dy);
    CHECK_KERNEL(ds_shape(o->K), ROW_MAJOR, want, "sum_channels",
                 isa->fusions->sum_channels(stream(), dy.v, out->v));
    tensor_free(&dy);
    free(want);
}

static void sums(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const Case *o = &cases[i];
        Truth t = {
            .o = o, .P = outputs(o, 0), .Q = outputs(o, 1), .dy = noise(count(y_shape(o)), 4)};
        every_case(run_sum, &t);
        truth_free(&t);
    }
}

/* ---- 16 bits, a group for each channel ---- */

typedef enum { Y, DX, DW, RESULTS } Result;

static ds_status depthwise_call(const Isa *isa, const Case *o, Result r, const Tensor *in,
                                dsi_view out)
{
    const dsi_kernels *k = isa->kernels;
    if (r == Y) return k->conv2d(stream(), &o->c, in[0].v, in[1].v, in[2].v, out);
    if (r == DX) return k->conv2d_dx(stream(), &o->c, in[3].v, in[1].v, out);
    return k->conv2d_dw(stream(), &o->c, in[3].v, in[0].v, out);
}

/* Compares 16-bit results on 1, 2, 3 and 7 threads with `want`, of float32. */
static void compare_half(const Isa *isa, const Case *o, Result r, const Tensor *in, dsi_view want,
                         ds_dims shape, ds_dtype dtype, Order order)
{
    static const int threads[] = {1, 2, 3, 7};
    Tensor rounded = tensor(dtype, shape, order);
    CHECK_INT(isa->kernels->copy(stream(), want, rounded.v), DS_OK);
    for (int i = 0; i < 4; i++) {
        Tensor y = tensor(dtype, shape, order);
        ds_set_threads(threads[i]);
        CHECK_INT(depthwise_call(isa, o, r, in, y.v), DS_OK);
        if (!same_bits(&y, &rounded))
            fail_msg("result %d, %s, case %d, dtype %d, order %d, %d threads: not float32's", r,
                     isa->name, (int)(o - cases), dtype, order, threads[i]);
        tensor_free(&y);
    }
    tensor_free(&rounded);
}

static void run_half(const Isa *isa, const Truth *t, ds_dtype dtype, Order order, Order result)
{
    const Case *o = t->o;
    const ds_dims shape[] = {x_shape(o), w_shape(o), ds_shape(o->K), y_shape(o)};
    const double *from[] = {t->x, t->w, t->b, t->dy};
    Tensor half[4], wide[4];
    for (int i = 0; i < 4; i++) {
        Order in = i == 1 || i == 2 ? ROW_MAJOR : order;
        half[i] = tensor(dtype, shape[i], in), wide[i] = filled(DS_F32, shape[i], in, from[i]);
        CHECK_INT(isa->kernels->copy(stream(), wide[i].v, half[i].v), DS_OK);
        CHECK_INT(isa->kernels->copy(stream(), half[i].v, wide[i].v), DS_OK);
    }
    for (Result r = Y; r < RESULTS; r++) {
        ds_dims d = shape[r == Y ? 3 : r == DX ? 0 : 1];
        Tensor want = tensor(DS_F32, d, ROW_MAJOR);
        CHECK_INT(depthwise_call(isa, o, r, wide, want.v), DS_OK);
        compare_half(isa, o, r, half, want.v, d, dtype, r == DW ? ROW_MAJOR : result);
        tensor_free(&want);
    }
    for (int i = 0; i < 4; i++) tensor_free(&half[i]), tensor_free(&wide[i]);
}

static void depthwise_half(void **state)
{
    (void)state;
    Isa isa[3];
    for (int i = 0; i < N_CASES; i++) {
        if (cases[i].c.groups != cases[i].C || cases[i].K != cases[i].C) continue;
        Truth t = truth(&cases[i], NULL);
        for (int j = 0, n = isas(isa); j < n; j++)
            for (int order = 0; order < 2 * ORDERS; order++)
                run_half(&isa[j], &t, order % 2 ? DS_F16 : DS_BF16, (Order)(order / 2),
                         (Order)((order + 1) / 2 % ORDERS));
        truth_free(&t);
    }
}

static void other_dtypes(void **state)
{
    (void)state;
    const Case *o = &cases[2];
    Tensor x = tensor(DS_I32, x_shape(o), ROW_MAJOR), w = tensor(DS_I32, w_shape(o), ROW_MAJOR);
    Tensor y = tensor(DS_I32, y_shape(o), ROW_MAJOR);
    Isa isa[3];
    for (int i = 0, n = isas(isa); i < n; i++) {
        CHECK_INT(isa[i].kernels->conv2d(stream(), &o->c, x.v, w.v, (dsi_view){0}, y.v), DS_EINVAL);
        CHECK_ERROR("conv2d: no cpu kernel for int32");
        CHECK_INT(isa[i].kernels->conv2d_dx(stream(), &o->c, y.v, w.v, x.v), DS_EINVAL);
        CHECK_ERROR("conv2d_dx: no cpu kernel for int32");
        CHECK_INT(isa[i].kernels->conv2d_dw(stream(), &o->c, y.v, x.v, w.v), DS_EINVAL);
        CHECK_ERROR("conv2d_dw: no cpu kernel for int32");
    }
    tensor_free(&x), tensor_free(&w), tensor_free(&y);
}

TEST_MAIN(cmocka_unit_test(dense), cmocka_unit_test(pooled), cmocka_unit_test(sums),
          cmocka_unit_test(depthwise_half), cmocka_unit_test(other_dtypes))
