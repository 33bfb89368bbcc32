/* tests/device/softmax.c: softmax, log-softmax and cross entropy against plain
 * loops in double.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "kernels.h"

#include <float.h>

/* Shapes [outer, C, inner]: the network's, long rows (pieces of the buffer),
 * one class, many inner. */
static const int64_t shapes[][3] = {{4, 10, 1},   {513, 10, 1}, {3, 1, 5},    {2, 7, 33},
                                    {1, 1024, 1}, {2, 1025, 2}, {3, 3000, 1}, {0, 5, 1}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

/* log sum exp of the row of element [o, :, i] */
static double row_lse(const dsi_view *x, int64_t o, int64_t i, int64_t inner)
{
    int64_t c_max = x->d[1];
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < c_max; c++) max = fmax(max, view_get(x, (o * c_max + c) * inner + i));
    for (int64_t c = 0; c < c_max; c++) sum += exp(view_get(x, (o * c_max + c) * inner + i) - max);
    return max + log(sum);
}

static void check_softmax(const dsi_kernels *k, ds_dtype dtype, const int64_t *d, const int *order)
{
    double tol = dtype == DS_F32 ? 2e-6 : 1e-13;
    dsi_view x = view_new(dtype, 3, d, order), dy = view_new(dtype, 3, d, NULL);
    dsi_view y = view_new(dtype, 3, d, order), l = view_new(dtype, 3, d, NULL);
    dsi_view dx = view_new(dtype, 3, d, NULL), dl = view_new(dtype, 3, d, order);

    view_random(&x, 1), view_random(&dy, 2);
    for (int64_t i = 0; i < view_count(&x); i++) view_set(&x, i, 8 * view_get(&x, i) + 20);
    CHECK_INT(k->softmax(NULL, false, x, y), DS_OK);
    CHECK_INT(k->softmax(NULL, true, x, l), DS_OK);
    CHECK_INT(k->softmax_dx(NULL, false, dy, y, dx), DS_OK);
    CHECK_INT(k->softmax_dx(NULL, true, dy, l, dl), DS_OK);
    for (int64_t o = 0; o < d[0]; o++)
        for (int64_t i = 0; i < d[2]; i++) {
            double lse = row_lse(&x, o, i, d[2]), dot = 0, sum = 0;
            for (int64_t c = 0; c < d[1]; c++) {
                int64_t at = (o * d[1] + c) * d[2] + i;
                dot += view_get(&dy, at) * exp(view_get(&x, at) - lse);
                sum += view_get(&dy, at);
            }
            for (int64_t c = 0; c < d[1]; c++) {
                int64_t at = (o * d[1] + c) * d[2] + i;
                double want = view_get(&x, at) - lse, p = exp(want), g = view_get(&dy, at);
                CHECK_CLOSE(view_get(&l, at), want, tol * (1 + fabs(want)));
                CHECK_CLOSE(view_get(&y, at), p, tol * p + tol * 1e-3);
                CHECK_CLOSE(view_get(&dx, at), p * (g - dot), tol);
                CHECK_CLOSE(view_get(&dl, at), g - p * sum, 4 * tol * (1 + fabs(p * sum)));
            }
        }
    view_free(&x), view_free(&dy), view_free(&y), view_free(&l), view_free(&dx), view_free(&dl);
}

static void softmax_and_gradients_match_plain_loops(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (size_t i = 0; i < N_SHAPES; i++)
        for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++) {
            check_softmax(k, dtype, shapes[i], NULL);
            check_softmax(k, dtype, shapes[i], (int[]){1, 2, 0});
        }
}

static void rows_of_infinities_and_nan_are_nan(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        float x[3][4] = {
            {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {1, NAN, 2, 3}, {0, -INFINITY, 0, 0}};
        float y[3][4], l[3][4];
        CHECK_INT(k->softmax(NULL, false, (dsi_view){x, DS_F32, 3, {3, 4, 1}, {4, 1, 1}},
                             (dsi_view){y, DS_F32, 3, {3, 4, 1}, {4, 1, 1}}),
                  DS_OK);
        CHECK_INT(k->softmax(NULL, true, (dsi_view){x, DS_F32, 3, {3, 4, 1}, {4, 1, 1}},
                             (dsi_view){l, DS_F32, 3, {3, 4, 1}, {4, 1, 1}}),
                  DS_OK);
        for (int c = 0; c < 4; c++) {
            CHECK(isnan(y[0][c]) && isnan(l[0][c]));
            CHECK(isnan(y[1][c]) && isnan(l[1][c]));
            CHECK_CLOSE((double)y[2][c], c == 1 ? 0.0 : 1.0 / 3, 1e-7);
            CHECK_CLOSE((double)l[2][c], c == 1 ? -INFINITY : -log(3), 1e-6);
        }
    }
}

/* Rows longer than the buffer, whose pieces differ. */
static void check_long_row(const dsi_kernels *k, ds_dtype dtype, int kind)
{
    const int64_t d[] = {1, 2500, 1};
    double least = dtype == DS_F32 ? -(double)FLT_MAX : -DBL_MAX;
    dsi_view x = view_new(dtype, 3, d, NULL), y = view_new(dtype, 3, d, NULL);
    for (int64_t c = 0; c < d[1]; c++)
        view_set(&x, c,
                 kind == 0   ? 0.04 * (double)c /* each piece has a larger maximum */
                 : kind == 1 ? (c < 1100 || c > 2300 ? -INFINITY : 0.01 * (double)(c % 7))
                 : kind == 2 ? least
                 : kind == 3 ? -INFINITY
                 : kind == 4 ? (c == 1700 ? NAN : 1)
                             : (c == 1700 ? INFINITY : 1));
    double lse = kind == 2 ? least : row_lse(&x, 0, 0, 1);
    CHECK_INT(k->softmax(NULL, false, x, y), DS_OK);
    for (int64_t c = 0; c < d[1]; c++) {
        double p = kind == 2 ? 1 / 2500.0 : exp(view_get(&x, c) - lse);
        if (kind < 3)
            CHECK_CLOSE(view_get(&y, c), p, 4e-6 * p + 1e-9);
        else
            CHECK(isnan(view_get(&y, c)));
    }
    view_free(&x), view_free(&y);
}

static void pieces_of_long_rows_differ(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (int kind = 0; kind < 6; kind++)
        for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++) check_long_row(k, dtype, kind);
}

static void other_dtypes_are_refused(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        int64_t x[2] = {1, 2};
        dsi_view v = {x, DS_I64, 3, {1, 2, 1}, {2, 1, 1}};
        CHECK_INT(k->softmax(NULL, false, v, v), DS_EINVAL);
        CHECK_ERROR("softmax: no cpu kernel for int64");
    }
}

/* ---- cross entropy -------------------------------------------------------------------------------- */

typedef struct {
    dsi_view x, label, weight, loss, lse, divisor, dx;
} entropy;

static entropy entropy_new(ds_dtype dtype, const int64_t *d, bool weighted, int reduction,
                           const int *order)
{
    int64_t ni[] = {d[0], d[2]};
    uint64_t seed = 5;
    entropy e = {.x = view_new(dtype, 3, d, order),
                 .label = view_new(DS_I64, 2, ni, NULL),
                 .loss = view_new(dtype, reduction == 2 ? 2 : 0, ni, NULL),
                 .lse = view_new(dtype, 2, ni, NULL),
                 .divisor = view_new(dtype, 0, NULL, NULL),
                 .dx = view_new(dtype, 3, d, NULL)};
    view_random(&e.x, 3);
    for (int64_t i = 0; i < view_count(&e.x); i++) view_set(&e.x, i, 5 * view_get(&e.x, i) - 30);
    for (int64_t i = 0; i < view_count(&e.label); i++) {
        int64_t c = (int64_t)((next_random(&seed) + 1) / 2 * (double)d[1]);
        ((int64_t *)e.label.p)[i] = i % 5 == 2 ? -100 : c;
    }
    if (weighted) {
        e.weight = view_new(dtype, 1, &d[1], NULL);
        view_random(&e.weight, 4);
        for (int64_t i = 0; i < d[1]; i++) view_set(&e.weight, i, view_get(&e.weight, i) + 1.5);
    }
    return e;
}

static void entropy_free(entropy *e)
{
    view_free(&e->x), view_free(&e->label), view_free(&e->weight), view_free(&e->loss);
    view_free(&e->lse), view_free(&e->divisor), view_free(&e->dx);
}

static double weight_at(const entropy *e, int64_t c)
{
    return e->weight.p ? view_get(&e->weight, c) : 1;
}

/* The loss of one row before the reduction, and its gradient times g. */
static double plain_row(const entropy *e, const dsi_cross_entropy *c, int64_t o, int64_t i,
                        double g, double *dx)
{
    int64_t classes = e->x.d[1], inner = e->x.d[2];
    int64_t label = ((int64_t *)e->label.p)[o * inner + i];
    double lse = row_lse(&e->x, o, i, inner), loss = 0;
    for (int64_t j = 0; j < classes; j++) dx[j] = 0;
    if (label == c->ignore_index) return 0;
    for (int64_t j = 0; j < classes; j++) { /* -sum over j of t_j logp_j */
        double t = c->smoothing / (double)classes * weight_at(e, j);
        if (j == label) t += (1 - c->smoothing) * weight_at(e, j);
        loss -= t * (view_get(&e->x, (o * classes + j) * inner + i) - lse);
        dx[j] -= g * t;
        for (int64_t m = 0; m < classes; m++)
            dx[m] += g * t * exp(view_get(&e->x, (o * classes + m) * inner + i) - lse);
    }
    return loss;
}

static void check_entropy(const dsi_kernels *k, ds_dtype dtype, const int64_t *d,
                          const dsi_cross_entropy *c, bool weighted, const int *order)
{
    double tol = dtype == DS_F32 ? 4e-6 : 1e-12, total = 0, used = 0,
           *dx = calloc((size_t)d[1], sizeof *dx);
    entropy e = entropy_new(dtype, d, weighted, c->reduction, order);
    int64_t n_rows = d[0] * d[2];

    CHECK_INT(k->cross_entropy(NULL, c, e.x, e.label, e.weight, e.loss, e.lse, e.divisor), DS_OK);
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t label = ((int64_t *)e.label.p)[r];
        if (label != c->ignore_index) used += weight_at(&e, label);
        double loss = plain_row(&e, c, r / d[2], r % d[2], 1, dx);
        total += loss;
        if (c->reduction == 2) CHECK_CLOSE(view_get(&e.loss, r), loss, tol * (1 + fabs(loss)));
        CHECK_CLOSE(view_get(&e.lse, r), row_lse(&e.x, r / d[2], r % d[2], d[2]), tol * 40);
    }
    double divisor = c->reduction == 0 ? used : 1;
    CHECK_CLOSE(view_get(&e.divisor, 0), divisor, tol * divisor);
    if (c->reduction != 2)
        CHECK_CLOSE(view_get(&e.loss, 0), total / divisor, tol * (1 + fabs(total / divisor)));

    /* the loss's gradient takes the loss's place */
    for (int64_t i = 0; i < view_count(&e.loss); i++) view_set(&e.loss, i, 0.5 + (double)(i % 3));
    CHECK_INT(k->cross_entropy_dx(NULL, c, e.loss, e.x, e.label, e.weight, e.lse, e.divisor, e.dx),
              DS_OK);
    for (int64_t r = 0; r < n_rows; r++) {
        double g = view_get(&e.loss, c->reduction == 2 ? r : 0) / divisor;
        plain_row(&e, c, r / d[2], r % d[2], g, dx);
        for (int64_t j = 0; j < d[1]; j++)
            CHECK_CLOSE(view_get(&e.dx, (r / d[2] * d[1] + j) * d[2] + r % d[2]), dx[j],
                        tol * fabs(g));
    }
    entropy_free(&e);
    free(dx);
}

/* As view_get, of 16 bits too, without gaps. */
static double part_get(const dsi_view *v, int64_t i)
{
    if (v->dtype == DS_BF16) return (double)dsi_bf16_to_f32(((uint16_t *)v->p)[i]);
    if (v->dtype == DS_F16) return (double)dsi_f16_to_f32(((uint16_t *)v->p)[i]);
    return view_get(v, i);
}

/* Classes first .. first + m - 1 of [n, first + m + 3]: rows with gaps, of x
 * and dx. */
static void check_part(const dsi_kernels *k, ds_dtype dtype, ds_dtype to, int64_t m)
{
    enum { N = 5 };
    const int64_t first = 3, all[] = {N, first + m + 3}, n = N;
    const double scale[N] = {0.5, -2, 1e-3, 0, 1}; /* of a row without a label: 0 */
    const int64_t labels[N] = {first, first + m - 1, first + m, -100, 1};
    double least = to == DS_F16 ? 0x1p-25 : 0; /* half of the smallest number */
    double tol = to == DS_BF16 ? 4e-3 : to == DS_F16 ? 6e-4 : dtype == DS_F32 ? 2e-6 : 1e-13;
    dsi_view x = view_new(dtype, 2, all, NULL), dx = view_new(to, 2, all, NULL);
    dsi_view lse = view_new(dtype, 1, &n, NULL), by = view_new(dtype, 1, &n, NULL);
    dsi_view label = view_new(DS_I64, 1, &n, NULL), part[2] = {x, dx};
    memcpy(label.p, labels, sizeof labels);
    view_random(&x, 3);
    for (int64_t i = 0; i < view_count(&x); i++) view_set(&x, i, 5 * view_get(&x, i) - 3);
    dsi_view rows = {x.p, dtype, 3, {N, all[1], 1}, {all[1], 1, 1}};
    for (int i = 0; i < N; i++) view_set(&lse, i, row_lse(&rows, i, 0, 1));
    for (int i = 0; i < N; i++) view_set(&by, i, scale[i]);
    for (int i = 0; i < 2; i++) {
        part[i].p = (char *)part[i].p + (size_t)first * ds_dtype_size(part[i].dtype);
        part[i].d[1] = m;
    }
    CHECK_INT(k->cross_entropy_part_dx(NULL, first, part[0], label, lse, by, part[1]), DS_OK);
    for (int64_t r = 0; r < N; r++)
        for (int64_t c = 0; c < all[1]; c++) {
            double p = exp(view_get(&x, r * all[1] + c) - row_lse(&rows, r, 0, 1));
            double want = (p - (labels[r] == c)) * scale[r];
            bool inside = c >= first && c < first + m;
            CHECK_CLOSE(part_get(&dx, r * all[1] + c), inside ? want : 0,
                        inside ? tol * (fabs(want) + fabs(scale[r]) * tol) + least : 0);
        }
    view_free(&x), view_free(&dx), view_free(&lse), view_free(&by), view_free(&label);
}

static void parts_of_a_gradient_match_plain_loops(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (int64_t m = 1; m < 2100; m = m * 7 + 2)
        for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
            for (ds_dtype to = DS_F32; to <= DS_BF16; to++)
                if (to == dtype || (to >= DS_F16 && dtype == DS_F32)) check_part(k, dtype, to, m);
}

static void cross_entropy_and_gradient_match_plain_loops(void **state)
{
    (void)state;
    static const int64_t small[][3] = {{4, 10, 1}, {131, 10, 1}, {3, 4, 15}, {2, 1, 1}};
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F32; dtype <= DS_F64; dtype++)
        for (int reduction = 0; reduction < 3; reduction++)
            for (int kind = 0; kind < 4; kind++) {
                dsi_cross_entropy c = {-100, kind & 1 ? 0.2 : 0, reduction};
                for (int i = 0; i < 4; i++) {
                    check_entropy(k, dtype, small[i], &c, kind & 2, NULL);
                    check_entropy(k, dtype, small[i], &c, kind & 2, (int[]){1, 2, 0});
                }
            }
}

static void long_rows_go_in_pieces(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        dsi_cross_entropy c = {-100, 0.1, 0};
        check_entropy(k, DS_F32, (int64_t[]){4, 1500, 1}, &c, true, NULL);
        check_entropy(k, DS_F64, (int64_t[]){2, 1100, 2}, &c, false, (int[]){2, 1, 0});
    }
}

/* v's elements, rounded to 16 bits, as those of a view of them; v itself is
 * rounded
 * too. */
static dsi_view halves_of(dsi_view *v, ds_dtype dtype)
{
    dsi_view h = view_new(dtype, v->n, v->d, NULL);
    for (int64_t i = 0; i < view_count(v); i++) {
        uint16_t *to = (uint16_t *)h.p + i;
        float x = (float)view_get(v, i);
        *to = dtype == DS_BF16 ? dsi_f32_to_bf16(x) : dsi_f32_to_f16(x);
        view_set(v, i, part_get(&h, i));
    }
    return h;
}

/* The gradient of 16-bit logits near `middle`, beside that of the same numbers
 * in
 * double. */
static void check_half_entropy(const dsi_kernels *k, ds_dtype dtype, int64_t classes, double middle)
{
    dsi_cross_entropy c = {-100, 0, 1};
    const int64_t d[] = {4, classes, 1};
    double step = dtype == DS_BF16 ? 0x1p-8 : 0x1p-11, least = dtype == DS_BF16 ? 1e-37 : 0x1p-25;
    entropy e = entropy_new(DS_F32, d, false, 1, NULL);
    for (int64_t i = 0; i < view_count(&e.x); i++)
        view_set(&e.x, i, view_get(&e.x, i) + 30 + middle);
    dsi_view x = halves_of(&e.x, dtype), got = view_new(dtype, 3, d, NULL);
    CHECK_INT(k->cross_entropy(NULL, &c, x, e.label, e.weight, e.loss, e.lse, e.divisor), DS_OK);
    view_set(&e.loss, 0, 1);
    CHECK_INT(k->cross_entropy_dx(NULL, &c, e.loss, x, e.label, e.weight, e.lse, e.divisor, got),
              DS_OK);
    for (int64_t r = 0; r < d[0]; r++) {
        int64_t label = ((int64_t *)e.label.p)[r];
        double lse = row_lse(&e.x, r, 0, 1);
        for (int64_t j = 0; j < classes; j++) {
            double want = exp(view_get(&e.x, r * classes + j) - lse) - (j == label);
            if (label == c.ignore_index) want = 0;
            CHECK_CLOSE(part_get(&got, r * classes + j), want,
                        1.3 * step * fabs(want) + least + 4e-6 * (j == label));
        }
    }
    view_free(&x), view_free(&got), entropy_free(&e);
}

static void gradients_of_16_bits_match_plain_loops(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    for (ds_dtype dtype = DS_F16; dtype <= DS_BF16; dtype++)
        for (int64_t classes = 10; classes < 2000; classes *= 13)
            for (int far = 0; far < 4; far++)
                check_half_entropy(k, dtype, classes, (const double[]){0, -1000, 4000, 30000}[far]);
}

static void nothing_but_ignored_labels_is_nan(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        dsi_cross_entropy c = {7, 0, 0};
        entropy e = entropy_new(DS_F32, (int64_t[]){3, 4, 1}, false, 0, NULL);
        for (int i = 0; i < 3; i++) ((int64_t *)e.label.p)[i] = 7; /* ignored, though no class */
        CHECK_INT(k->cross_entropy(NULL, &c, e.x, e.label, e.weight, e.loss, e.lse, e.divisor),
                  DS_OK);
        CHECK(isnan(view_get(&e.loss, 0)));
        CHECK_INT(k->cross_entropy_dx(NULL, &c, e.divisor, e.x, e.label, e.weight, e.lse, e.divisor,
                                      e.dx),
                  DS_OK);
        for (int i = 0; i < 12; i++) CHECK_CLOSE(view_get(&e.dx, i), 0, 0);
        entropy_free(&e);
    }
}

static void labels_that_are_no_class_are_faults(void **state)
{
    (void)state;
    dsi_stream *s = &dsi_device_current()->stream;
    FOR_EACH_ISA(k)
    {
        dsi_cross_entropy c = {-100, 0, 0};
        entropy e = entropy_new(DS_F32, (int64_t[]){5, 10, 1}, false, 0, NULL);
        ((int64_t *)e.label.p)[3] = 10;
        CHECK_INT(k->cross_entropy(s, &c, e.x, e.label, e.weight, e.loss, e.lse, e.divisor), DS_OK);
        CHECK(isnan(view_get(&e.loss, 0)));
        CHECK_FAULT("cross_entropy: label 10 at index 3 is outside 0..9");
        ((int64_t *)e.label.p)[3] = -1;
        CHECK_INT(
            k->cross_entropy_dx(s, &c, e.divisor, e.x, e.label, e.weight, e.lse, e.divisor, e.dx),
            DS_OK);
        CHECK_FAULT("cross_entropy: label -1 at index 3 is outside 0..9");
        CHECK_INT(k->cross_entropy(s, &c, e.x, e.label, e.weight, e.loss, e.lse, e.divisor), DS_OK);
        CHECK(isnan(view_get(&e.loss, 0)));
        CHECK_FAULT("cross_entropy: label -1 at index 3 is outside 0..9");
        entropy_free(&e);
    }
}

/* large logits: what x has before the point must not cost digits behind it */
static void large_logits_keep_their_digits(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        dsi_cross_entropy c = {-100, 0, 0};
        entropy e = entropy_new(DS_F32, (int64_t[]){1, 3, 1}, false, 0, NULL);
        double x[] = {100000, 100001, 99999.5}, dx[3];
        for (int i = 0; i < 3; i++) view_set(&e.x, i, x[i]);
        ((int64_t *)e.label.p)[0] = 2;
        CHECK_INT(k->cross_entropy(NULL, &c, e.x, e.label, e.weight, e.loss, e.lse, e.divisor),
                  DS_OK);
        CHECK_CLOSE(view_get(&e.loss, 0), plain_row(&e, &c, 0, 0, 1, dx), 1e-6);
        CHECK_INT(k->cross_entropy_dx(NULL, &c, e.divisor, e.x, e.label, e.weight, e.lse, e.divisor,
                                      e.dx),
                  DS_OK);
        for (int i = 0; i < 3; i++) CHECK_CLOSE(view_get(&e.dx, i), dx[i], 2e-7);
        entropy_free(&e);
    }
}

static void results_do_not_depend_on_threads(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        dsi_cross_entropy c = {-100, 0.1, 0};
        int64_t d[] = {60000, 10, 1};
        entropy one = entropy_new(DS_F32, d, true, 0, NULL),
                four = entropy_new(DS_F32, d, true, 0, NULL);
        CHECK_INT(k->cross_entropy(NULL, &c, one.x, one.label, one.weight, one.loss, one.lse,
                                   one.divisor),
                  DS_OK);
        CHECK_INT(k->cross_entropy_dx(NULL, &c, one.loss, one.x, one.label, one.weight, one.lse,
                                      one.divisor, one.dx),
                  DS_OK);
        CHECK_INT(ds_set_threads(4), DS_OK);
        CHECK_INT(k->cross_entropy(NULL, &c, four.x, four.label, four.weight, four.loss, four.lse,
                                   four.divisor),
                  DS_OK);
        CHECK_INT(k->cross_entropy_dx(NULL, &c, four.loss, four.x, four.label, four.weight,
                                      four.lse, four.divisor, four.dx),
                  DS_OK);
        CHECK_INT(ds_set_threads(1), DS_OK);
        CHECK(memcmp(one.loss.p, four.loss.p, sizeof(float)) == 0);
        CHECK(memcmp(one.dx.p, four.dx.p, (size_t)view_count(&one.dx) * sizeof(float)) == 0);
        entropy_free(&one), entropy_free(&four);
    }
}

TEST_MAIN(cmocka_unit_test(softmax_and_gradients_match_plain_loops),
          cmocka_unit_test(rows_of_infinities_and_nan_are_nan),
          cmocka_unit_test(pieces_of_long_rows_differ), cmocka_unit_test(other_dtypes_are_refused),
          cmocka_unit_test(cross_entropy_and_gradient_match_plain_loops),
          cmocka_unit_test(parts_of_a_gradient_match_plain_loops),
          cmocka_unit_test(long_rows_go_in_pieces),
          cmocka_unit_test(gradients_of_16_bits_match_plain_loops),
          cmocka_unit_test(nothing_but_ignored_labels_is_nan),
          cmocka_unit_test(labels_that_are_no_class_are_faults),
          cmocka_unit_test(large_logits_keep_their_digits),
          cmocka_unit_test(results_do_not_depend_on_threads))
