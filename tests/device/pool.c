/* tests/device/pool.c: pooling kernels against plain loops in double precision:
 * every instruction set, memory order and dtype; results equal bit for bit with
 * one thread and with three.
 * SPDX-License-Identifier: MIT */
#include "views.h"

typedef struct {
    int64_t N, C, H, W;
    dsi_pool2d c;
    int ceil;
} Case;

#define POOL(k0, k1, s0, s1, p0, p1, d0, d1) \
    { \
        .kernel = {k0, k1}, .stride = {s0, s1}, .padding = {p0, p1}, .dilation = { d0, d1 } \
    }
static const Case cases[] = {
    {2, 6, 28, 28, POOL(2, 2, 2, 2, 0, 0, 1, 1), 0}, /* the tutorial's two */
    {3, 16, 10, 10, POOL(2, 2, 2, 2, 0, 0, 1, 1), 0},
    {1, 3, 33, 71, POOL(2, 2, 2, 2, 0, 0, 1, 1), 0},
    {2, 19, 7, 9, POOL(2, 2, 2, 2, 0, 0, 1, 1), 1},
    {2, 33, 8, 6, POOL(2, 2, 2, 2, 1, 1, 1, 1), 0},
    {2, 5, 9, 11, POOL(3, 3, 2, 2, 1, 1, 1, 1), 0},
    {1, 8, 12, 13, POOL(3, 2, 1, 3, 1, 0, 2, 3), 0},
    {2, 1, 6, 6, POOL(3, 3, 3, 3, 0, 0, 1, 1), 0},
    {1, 2, 5, 5, POOL(5, 5, 5, 5, 0, 0, 1, 1), 0},
    {2, 3, 8, 8, POOL(8, 8, 8, 8, 0, 0, 1, 1), 0}, /* the whole plane */
    {2, 3, 4, 9, POOL(3, 2, 1, 2, 1, 0, 1, 1), 0},
    {2, 2, 7, 7, POOL(4, 4, 3, 3, 2, 2, 1, 1), 1},
    {1, 2, 1, 601, POOL(1, 3, 1, 2, 0, 1, 1, 1), 0}, /* one dimension, in rows of 256 windows */
    {1, 2, 2, 901, POOL(2, 4, 1, 3, 1, 2, 1, 2), 0},
};
#define N_CASES (int)(sizeof cases / sizeof *cases)

static int64_t outputs(const Case *o, int axis)
{
    int64_t length = axis ? o->W : o->H, stride = o->c.stride[axis], pad = o->c.padding[axis];
    int64_t room = length + 2 * pad - o->c.dilation[axis] * (o->c.kernel[axis] - 1) - 1;
    int64_t n = (room + (o->ceil ? stride - 1 : 0)) / stride + 1;
    return o->ceil && (n - 1) * stride >= length + pad ? n - 1
                                                       : n; /* none begins in the right padding */
}

static ds_dims x_shape(const Case *o) { return ds_shape(o->N, o->C, o->H, o->W); }
static ds_dims y_shape(const Case *o) { return ds_shape(o->N, o->C, outputs(o, 0), outputs(o, 1)); }
static int64_t count(ds_dims d) { return d.d[0] * d.d[1] * d.d[2] * d.d[3]; }
static dsi_stream *stream(void) { return &dsi_device_current()->stream; }

static Tensor filled(ds_dtype dtype, ds_dims shape, Order order, const double *x)
{
    Tensor t = tensor(dtype, shape, order);
    if (x) put(&t, x);
    return t;
}

static void compare(const Tensor *got, const double *want, double eps, const char *what,
                    const Isa *isa)
{
    double *x = values(got);
    for (int64_t i = 0; i < got->n; i++)
        if (!(fabs(x[i] - want[i]) <= eps) && x[i] != want[i] && !(isnan(x[i]) && isnan(want[i])))
            fail_msg("%s, %s, element %lld: %.9g, want %.9g", what, isa->name, (long long)i, x[i],
                     want[i]);
    if (!guards_hold(got)) fail_msg("%s, %s: wrote outside of its result", what, isa->name);
    free(x);
}

static void max_truth(const Case *o, const double *x, double *y, double *index)
{
    int64_t P = outputs(o, 0), Q = outputs(o, 1);
    for (int64_t i = 0; i < o->N * o->C * P * Q; i++) {
        const double *plane = x + i / (P * Q) * o->H * o->W;
        bool any = false;
        for (int64_t r = 0; r < o->c.kernel[0]; r++)
            for (int64_t s = 0; s < o->c.kernel[1]; s++) {
                int64_t h = i / Q % P * o->c.stride[0] + r * o->c.dilation[0] - o->c.padding[0];
                int64_t w = i % Q * o->c.stride[1] + s * o->c.dilation[1] - o->c.padding[1];
                if (h < 0 || h >= o->H || w < 0 || w >= o->W) continue;
                double v = plane[h * o->W + w];
                if (any && !(v > y[i]) && !isnan(v)) continue;
                any = true, y[i] = v, index[i] = (double)(h * o->W + w);
            }
    }
}

/* Values with many ties, NaN and infinities if `odd`. */
static double *input(const Case *o, bool odd)
{
    double *x = noise(count(x_shape(o)), 7);
    for (int64_t i = 0; odd && i < count(x_shape(o)); i++) {
        x[i] = round(x[i] * 2);
        if (i % 17 == 3 || i % 19 == 4) x[i] = NAN;
        if (i % 23 < 9) x[i] = -INFINITY;
        if (i % 29 == 6) x[i] = i % 2 ? -0.0 : 0.0;
    }
    return x;
}

static void run_max(const Case *o, const Isa *isa, ds_dtype dtype, Order order, bool odd)
{
    int64_t ny = count(y_shape(o)), nx = count(x_shape(o)), plane = outputs(o, 0) * outputs(o, 1);
    double *x = input(o, odd), *want = malloc((size_t)ny * sizeof *want),
           *at = malloc((size_t)ny * sizeof *at);
    double *dy = noise(ny, 8), *want_dx = calloc((size_t)nx, sizeof *want_dx);
    max_truth(o, x, want, at);
    for (int64_t i = 0; i < ny; i++) want_dx[i / plane * o->H * o->W + (int64_t)at[i]] += dy[i];
    Tensor tx = filled(dtype, x_shape(o), order, x), tdy = filled(dtype, y_shape(o), order, dy);
    for (int threads = 1; threads <= 3; threads += 2) {
        ds_set_threads(threads);
        Tensor y = filled(dtype, y_shape(o), order, NULL),
               index = filled(DS_I32, y_shape(o), order, NULL);
        Tensor dx = filled(dtype, x_shape(o), order, NULL);
        CHECK_INT(isa->kernels->max_pool2d(stream(), &o->c, tx.v, y.v, index.v), DS_OK);
        compare(&y, want, 0, "max_pool2d", isa);
        compare(&index, at, 0, "max_pool2d's index", isa);
        CHECK_INT(isa->kernels->max_pool2d_dx(stream(), tdy.v, index.v, dx.v), DS_OK);
        compare(&dx, want_dx, 1e-6, "max_pool2d_dx", isa);
        tensor_free(&y), tensor_free(&index), tensor_free(&dx);
    }
    tensor_free(&tx), tensor_free(&tdy);
    free(x), free(want), free(at), free(dy), free(want_dx);
}

static void max_pooling(void **state)
{
    (void)state;
    Isa isa[3];
    for (int i = 0, n = isas(isa); i < n; i++)
        for (int k = 0; k < N_CASES; k++)
            for (int order = 0; order < ORDERS; order++)
                for (int odd = 0; odd < 2; odd++) {
                    run_max(&cases[k], &isa[i], DS_F32, (Order)order, odd);
                    run_max(&cases[k], &isa[i], DS_F64, (Order)order, odd);
                }
}

/* One output of a mean: the window's elements and what they are divided by; dx
 * = dy spread back. */
typedef struct {
    int64_t h0, h1, w0, w1;
    double divisor;
} Mean;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static Mean mean_at(const Case *o, const dsi_pool2d *c, int64_t P, int64_t Q, int64_t p, int64_t q)
{
    if (!c) {
        Mean m = {p * o->H / P, ((p + 1) * o->H + P - 1) / P, q * o->W / Q,
                  ((q + 1) * o->W + Q - 1) / Q, 0};
        m.divisor = (double)((m.h1 - m.h0) * (m.w1 - m.w0));
        return m;
    }
    Mean m = {p * c->stride[0] - c->padding[0], 0, q * c->stride[1] - c->padding[1], 0, 0};
    m.h1 = least(m.h0 + c->kernel[0], o->H + c->padding[0]);
    m.w1 = least(m.w0 + c->kernel[1], o->W + c->padding[1]);
    int64_t padded = (m.h1 - m.h0) * (m.w1 - m.w0);
    m.h0 = most(m.h0, 0), m.w0 = most(m.w0, 0), m.h1 = least(m.h1, o->H), m.w1 = least(m.w1, o->W);
    m.divisor = (double)(c->divisor       ? c->divisor
                         : c->exclude_pad ? (m.h1 - m.h0) * (m.w1 - m.w0)
                                          : padded);
    return m;
}

static const dsi_pool2d adaptive = {.adaptive = true};

static void run_mean(const Case *o, const dsi_pool2d *c, ds_dims out, const Isa *isa,
                     ds_dtype dtype, Order order)
{
    int64_t nx = count(x_shape(o)), ny = count(out), P = out.d[2], Q = out.d[3];
    double *x = noise(nx, 9), *dy = noise(ny, 10), eps = dtype == DS_F32 ? 1e-6 : 1e-15;
    double *want = calloc((size_t)ny, sizeof *want), *want_dx = calloc((size_t)nx, sizeof *want_dx);
    for (int64_t i = 0; i < ny; i++) {
        Mean m = mean_at(o, c, P, Q, i / Q % P, i % Q);
        for (int64_t h = m.h0; h < m.h1; h++)
            for (int64_t w = m.w0; w < m.w1; w++) {
                int64_t at = (i / (P * Q) * o->H + h) * o->W + w;
                want[i] += x[at] / m.divisor;
                want_dx[at] += dy[i] / m.divisor;
            }
    }
    Tensor tx = filled(dtype, x_shape(o), order, x), tdy = filled(dtype, out, order, dy);
    for (int threads = 1; threads <= 3; threads += 2) {
        ds_set_threads(threads);
        const dsi_kernels *k = isa->kernels;
        Tensor y = filled(dtype, out, order, NULL), dx = filled(dtype, x_shape(o), order, NULL);
        CHECK_INT(k->avg_pool2d(stream(), c ? c : &adaptive, tx.v, y.v), DS_OK);
        compare(&y, want, eps, "average pooling", isa);
        CHECK_INT(k->avg_pool2d_dx(stream(), c ? c : &adaptive, tdy.v, dx.v), DS_OK);
        compare(&dx, want_dx, 4 * eps, "average pooling's dx", isa);
        tensor_free(&y), tensor_free(&dx);
    }
    tensor_free(&tx), tensor_free(&tdy);
    free(x), free(dy), free(want), free(want_dx);
}

static void mean_pooling(void **state)
{
    (void)state;
    Isa isa[3];
    for (int i = 0, n = isas(isa); i < n; i++)
        for (int k = 0; k < N_CASES; k++)
            for (int order = 0; order < ORDERS; order++)
                for (int kind = 0; kind < 4; kind++) {
                    const Case *o = &cases[k];
                    dsi_pool2d c = o->c;
                    c.dilation[0] = c.dilation[1] = 1;
                    c.exclude_pad = kind == 1;
                    c.divisor = kind == 2 ? 3 : 0;
                    ds_dims out = kind == 3 ? ds_shape(o->N, o->C, 3, 4) : y_shape(o);
                    if (o->c.dilation[0] > 1 && kind < 3) continue;
                    run_mean(o, kind == 3 ? NULL : &c, out, &isa[i], order & 1 ? DS_F64 : DS_F32,
                             (Order)order);
                }
}

static void other_dtypes(void **state)
{
    (void)state;
    const Case *o = &cases[1];
    Tensor x = tensor(DS_I32, x_shape(o), ROW_MAJOR), y = tensor(DS_I32, y_shape(o), ROW_MAJOR);
    Isa isa[3];
    for (int i = 0, n = isas(isa); i < n; i++) {
        CHECK_INT(isa[i].kernels->max_pool2d(stream(), &o->c, x.v, y.v, y.v), DS_EINVAL);
        CHECK_ERROR("max_pool2d: no cpu kernel for int32");
        CHECK_INT(isa[i].kernels->avg_pool2d(stream(), &o->c, x.v, y.v), DS_EINVAL);
        CHECK_ERROR("avg_pool2d: no cpu kernel for int32");
    }
    tensor_free(&x), tensor_free(&y);
}

TEST_MAIN(cmocka_unit_test(max_pooling), cmocka_unit_test(mean_pooling),
          cmocka_unit_test(other_dtypes))
