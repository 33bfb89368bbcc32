/* tests/device/norm.c: batch and layer norm, forward and back, against plain
 * loops in double.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

/* [N,C,I]: NCHW, NHWC, and an order that no layer uses */
static const int orders[3][3] = {{0, 1, 2}, {0, 2, 1}, {1, 2, 0}};
static const int64_t shapes[][3] = {{4, 6, 25},  {1, 3, 63},   {130, 17, 1},
                                    {2, 140, 9}, {3, 1, 4100}, {2, 2, 1}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static dsi_view vector(ds_dtype dtype, int64_t n, uint64_t seed, double about)
{
    dsi_view v = view_new(dtype, 1, &n, NULL);
    view_random(&v, seed);
    for (int64_t i = 0; i < n; i++) view_set(&v, i, view_get(&v, i) + about);
    return v;
}

static double at(const dsi_view *v, int64_t n, int64_t c, int64_t i)
{
    return view_get(v, (n * v->d[1] + c) * v->d[2] + i);
}

/* mean and biased variance of channel c; long double, as means of 10000 cost 4
 * digits */
static void plain_stats(const dsi_view *x, int64_t c, double *mean, double *var)
{
    long double count = (long double)(x->d[0] * x->d[2]), m = 0, v = 0;
    for (int64_t n = 0; n < x->d[0]; n++)
        for (int64_t i = 0; i < x->d[2]; i++) m += at(x, n, c, i) / count;
    for (int64_t n = 0; n < x->d[0]; n++)
        for (int64_t i = 0; i < x->d[2]; i++)
            v += (at(x, n, c, i) - m) * (at(x, n, c, i) - m) / count;
    *mean = (double)m, *var = (double)v;
}

static void check_stats(const dsi_kernels *k, ds_dtype dtype, const int64_t *d, const int *order,
                        double about)
{
    double eps = dtype == DS_F32 ? 0x1p-24 : 0x1p-53;
    dsi_view x = view_new(dtype, 3, d, order), mean = vector(dtype, d[1], 0, 0),
             var = vector(dtype, d[1], 0, 0);
    view_random(&x, 1);
    for (int64_t i = 0; i < view_count(&x); i++) view_set(&x, i, view_get(&x, i) + about);
    CHECK_INT(k->batch_stats(NULL, x, mean, var), DS_OK);
    for (int64_t c = 0; c < d[1]; c++) {
        double m, v;
        plain_stats(&x, c, &m, &v);
        CHECK_CLOSE(view_get(&mean, c), m, 2 * eps * (1 + fabs(m)));
        CHECK_CLOSE(view_get(&var, c), v, 16 * eps * v);
    }
    view_free(&x), view_free(&mean), view_free(&var);
}

static void statistics_are_good_to_the_last_digits(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (size_t s = 0; s < N_SHAPES; s++)
            for (int o = 0; o < 3; o++) {
                check_stats(k, dtype, shapes[s], orders[o], 0);
                check_stats(k, dtype, shapes[s], orders[o], 10000); /* far from 0 */
            }
}

/* x in one order, dy and the outputs in another */
static void check_batch_norm(const dsi_kernels *k, ds_dtype dtype, const int64_t *d,
                             const int *order, const int *other, bool batch, bool affine)
{
    double tol = dtype == DS_F32 ? 2e-5 : 1e-12, count = (double)(d[0] * d[2]);
    dsi_view x = view_new(dtype, 3, d, order), y = view_new(dtype, 3, d, order);
    dsi_view dy = view_new(dtype, 3, d, other), dx = view_new(dtype, 3, d, other), none = {0};
    dsi_view mean = vector(dtype, d[1], 3, 0), rstd = vector(dtype, d[1], 4, 2);
    dsi_view w = vector(dtype, d[1], 5, 2), b = vector(dtype, d[1], 6, 0);
    dsi_view dw = vector(dtype, d[1], 0, 0), db = vector(dtype, d[1], 0, 0);
    view_random(&x, 1), view_random(&dy, 2);
    CHECK_INT(k->batch_norm(NULL, x, mean, rstd, affine ? w : none, affine ? b : none, y), DS_OK);
    CHECK_INT(k->batch_norm_dx(NULL, batch, dy, x, mean, rstd, affine ? w : none, dx,
                               affine ? dw : none, affine ? db : none),
              DS_OK);
    for (int64_t c = 0; c < d[1]; c++) {
        double m = view_get(&mean, c), r = view_get(&rstd, c), s1 = 0, s2 = 0;
        double scale = affine ? view_get(&w, c) : 1, shift = affine ? view_get(&b, c) : 0;
        for (int64_t n = 0; n < d[0]; n++)
            for (int64_t i = 0; i < d[2]; i++) {
                s1 += at(&dy, n, c, i), s2 += at(&dy, n, c, i) * (at(&x, n, c, i) - m);
                CHECK_CLOSE(at(&y, n, c, i), (at(&x, n, c, i) - m) * r * scale + shift, tol);
            }
        if (affine) CHECK_CLOSE(view_get(&dw, c), s2 * r, tol * (1 + fabs(s2) + sqrt(count)));
        if (affine) CHECK_CLOSE(view_get(&db, c), s1, tol * (1 + fabs(s1) + sqrt(count)));
        for (int64_t n = 0; n < d[0]; n++)
            for (int64_t i = 0; i < d[2]; i++) {
                double g = at(&dy, n, c, i);
                if (batch) g -= s1 / count + (at(&x, n, c, i) - m) * r * r * s2 / count;
                CHECK_CLOSE(at(&dx, n, c, i), g * r * scale, 10 * tol);
            }
    }
    view_free(&x), view_free(&y), view_free(&dy), view_free(&dx), view_free(&mean),
        view_free(&rstd);
    view_free(&w), view_free(&b), view_free(&dw), view_free(&db);
}

static void batch_norm_and_gradients_match_plain_loops(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (size_t s = 0; s < N_SHAPES; s++)
            for (int o = 0; o < 5; o++)
                for (int kind = 0; kind < 4; kind++)
                    check_batch_norm(k, dtype, shapes[s], orders[o % 3],
                                     orders[o < 3 ? o : (o + 1) % 3], kind & 1, kind & 2);
}

/* evaluation: what is infinite stays so, and its gradient is not touched by x */
static void infinite_elements_spoil_nothing_else(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (int o = 0; o < 2; o++) {
        int64_t d[] = {2, 3, 4};
        dsi_view x = view_new(DS_F32, 3, d, orders[o]), y = view_new(DS_F32, 3, d, orders[o]),
                 none = {0};
        dsi_view mean = vector(DS_F32, 3, 1, 0), rstd = vector(DS_F32, 3, 2, 2);
        view_set(&x, 5, INFINITY);
        CHECK_INT(k->batch_norm(NULL, x, mean, rstd, none, none, y), DS_OK);
        CHECK_CLOSE(view_get(&y, 5), INFINITY, 0);
        CHECK(isfinite(view_get(&y, 4)));
        CHECK_INT(k->batch_norm_dx(NULL, false, y, x, mean, rstd, none, y, none, none), DS_OK);
        CHECK(isfinite(view_get(&y, 4)));
        view_free(&x), view_free(&y), view_free(&mean), view_free(&rstd);
    }
}

static void check_layer_norm(const dsi_kernels *k, ds_dtype dtype, int64_t m, int64_t d,
                             bool affine, bool rms)
{
    double tol = dtype == DS_F32 ? 2e-5 : 1e-12, eps = 1e-3, sum = (double)d;
    dsi_view x = view_new(dtype, 2, (int64_t[]){m, d}, NULL),
             y = view_new(dtype, 2, (int64_t[]){m, d}, NULL);
    dsi_view dy = view_new(dtype, 2, (int64_t[]){m, d}, NULL),
             dx = view_new(dtype, 2, (int64_t[]){m, d}, NULL);
    dsi_view mean = rms ? (dsi_view){0} : vector(dtype, m, 0, 0), rstd = vector(dtype, m, 0, 0),
             none = {0};
    dsi_view w = vector(dtype, d, 5, 2), b = vector(dtype, d, 6, 0), dw = vector(dtype, d, 0, 0),
             db = vector(dtype, d, 0, 0);
    double *want_dw = calloc((size_t)d, sizeof *want_dw),
           *want_db = calloc((size_t)d, sizeof *want_db);
    view_random(&x, 1), view_random(&dy, 2);
    CHECK_INT(k->layer_norm(NULL, eps, x, affine ? w : none, affine ? b : none, y, mean, rstd),
              DS_OK);
    CHECK_INT(k->layer_norm_dx(NULL, dy, x, affine ? w : none, mean, rstd, dx, affine ? dw : none,
                               affine ? db : none),
              DS_OK);
    for (int64_t r = 0; r < m; r++) {
        double mu = 0, var = 0, s1 = 0, s2 = 0;
        for (int64_t i = 0; !rms && i < d; i++) mu += view_get(&x, r * d + i) / sum;
        for (int64_t i = 0; i < d; i++) var += pow(view_get(&x, r * d + i) - mu, 2) / sum;
        double rs = 1 / sqrt(var + eps);
        if (!rms) CHECK_CLOSE(view_get(&mean, r), mu, tol);
        CHECK_CLOSE(view_get(&rstd, r), rs, tol * rs);
        for (int64_t i = 0; i < d; i++) {
            double normal = (view_get(&x, r * d + i) - mu) * rs, g = view_get(&dy, r * d + i);
            CHECK_CLOSE(view_get(&y, r * d + i),
                        affine ? normal * view_get(&w, i) + view_get(&b, i) : normal, 4 * tol);
            want_dw[i] += g * normal, want_db[i] += g;
            if (affine) g *= view_get(&w, i);
            s1 += rms ? 0 : g / sum, s2 += g * normal / sum;
        }
        for (int64_t i = 0; i < d; i++) {
            double normal = (view_get(&x, r * d + i) - mu) * rs, g = view_get(&dy, r * d + i);
            if (affine) g *= view_get(&w, i);
            CHECK_CLOSE(view_get(&dx, r * d + i), rs * (g - s1 - normal * s2), 4 * tol * rs);
        }
    }
    for (int64_t i = 0; affine && i < d; i++) {
        CHECK_CLOSE(view_get(&dw, i), want_dw[i], 4 * tol * (double)(m + 1));
        CHECK_CLOSE(view_get(&db, i), want_db[i], tol * (double)(m + 1));
    }
    free(want_dw), free(want_db);
    view_free(&x), view_free(&y), view_free(&dy), view_free(&dx), view_free(&mean),
        view_free(&rstd);
    view_free(&w), view_free(&b), view_free(&dw), view_free(&db);
}

static void layer_norm_and_gradients_match_plain_loops(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (int kind = 0; kind < 4; kind++) {
            bool affine = kind & 1, rms = kind & 2;
            check_layer_norm(k, dtype, 4, 13, affine, rms);
            check_layer_norm(k, dtype, 200, 129, affine, rms);
            check_layer_norm(k, dtype, 5, 1, affine, rms);
            check_layer_norm(k, dtype, 3, 5000, affine, rms);
            check_layer_norm(k, dtype, 0, 7, affine, rms);
        }
}

#define MANY           200
#define PER_CHANNEL(p) ((dsi_view){p, DS_F32, 1, {d[1]}, {1}})
static dsi_view random_of(const dsi_kernels *k, ds_dtype dtype, const int64_t *d, const int *order,
                          uint64_t seed)
{
    dsi_view x = view_new(DS_F32, 3, d, order), y = view_new(dtype, 3, d, order);
    view_random(&x, seed);
    CHECK_INT(k->copy(NULL, x, y), DS_OK);
    view_free(&x);
    return y;
}

/* A channel's elements are 1, the first ones of each line 0. */
static void set_far(const dsi_view *x, int64_t channel)
{
    for (int64_t n = 0; n < x->d[0]; n++)
        for (int64_t i = 0; i < x->d[2]; i++) {
            char *p = (char *)x->p + (n * x->s[0] + channel * x->s[1] + i * x->s[2]) *
                                         (int64_t)ds_dtype_size(x->dtype);
            if (x->dtype == DS_F32)
                *(float *)p = i < 4 ? 0 : 1;
            else
                *(uint16_t *)p = i < 4 ? 0 : 0x3f80; /* bfloat16 */
        }
}

/* d: at most MANY channels */
static void check_threads(const dsi_kernels *k, ds_dtype dtype, const int64_t *d, const int *order)
{
    float mean[2][MANY] = {{0}}, var[2][MANY] = {{0}}, dw[2][MANY] = {{0}}, db[2][MANY] = {{0}};
    dsi_view x = random_of(k, dtype, d, order, 1), dy = random_of(k, dtype, d, order, 2);
    dsi_view none = {0};
    dsi_view dx[2] = {view_new(dtype, 3, d, order), view_new(dtype, 3, d, order)};
    set_far(&x, 37);
    for (int t = 0; t < 2; t++) {
        CHECK_INT(ds_set_threads(t ? 4 : 1), DS_OK);
        CHECK_INT(k->batch_stats(NULL, x, PER_CHANNEL(mean[t]), PER_CHANNEL(var[t])), DS_OK);
        CHECK_INT(k->batch_norm_dx(NULL, true, dy, x, PER_CHANNEL(mean[t]), PER_CHANNEL(var[t]),
                                   none, dx[t], PER_CHANNEL(dw[t]), PER_CHANNEL(db[t])),
                  DS_OK);
    }
    CHECK_INT(ds_set_threads(1), DS_OK);
    CHECK(memcmp(mean[0], mean[1], sizeof mean[0]) == 0 &&
          memcmp(var[0], var[1], sizeof var[0]) == 0);
    CHECK(memcmp(dw[0], dw[1], sizeof dw[0]) == 0 && memcmp(db[0], db[1], sizeof db[0]) == 0);
    CHECK(memcmp(dx[0].p, dx[1].p, (size_t)view_count(&x) * ds_dtype_size(dtype)) == 0);
    view_free(&x), view_free(&dy), view_free(&dx[0]), view_free(&dx[1]);
}

static void results_do_not_depend_on_threads(void **state)
{
    (void)state;
    /* threads share channels, or the rows of few */
    static const int64_t sizes[][3] = {{4, MANY, 500}, {7, 60, 450}, {7, 120, 721}};
    FOR_EACH_ISA(k)
    for (int o = 0; o < 2; o++)
        for (int i = 0; i < 3; i++) {
            check_threads(k, DS_F32, sizes[i], orders[o]);
            check_threads(k, DS_BF16, sizes[i], orders[o]);
        }
}

TEST_MAIN(cmocka_unit_test(statistics_are_good_to_the_last_digits),
          cmocka_unit_test(batch_norm_and_gradients_match_plain_loops),
          cmocka_unit_test(infinite_elements_spoil_nothing_else),
          cmocka_unit_test(layer_norm_and_gradients_match_plain_loops),
          cmocka_unit_test(results_do_not_depend_on_threads))
