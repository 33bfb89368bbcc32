/* device/cpu/reduce/deviations.c: means of rows, and the sums of squares of
 * their elements' distances from them.
 *
 * Distances are from a number near the mean, that of a few elements: the mean
 * is then found in the same pass, and what the number was off is subtracted
 * from the sum of squares. If that takes digits from it, another pass has
 * distances from the mean itself (Chan, Golub, LeVeque, The American
 * Statistician 37 (1983), "shifted data"). Of equal elements all distances are
 * 0.
 *
 * Invariants: partial sums of at most LINE_BLOCK elements are in T, the type of
 * the rows, their totals in double. A partial sum that is too large for T, or
 * so small that squares were lost, is computed again in double. Threads divide
 * rows, or the fixed parts of a long row, so no sum depends on them.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/table.h"
#include "lines.h"

#include <float.h>
#include <math.h>

#define PARTS 64
#define SOME  64       /* elements whose mean is near that of all */
#define LOST  0x1p-96f /* a square of float32 below 2^-126 has lost digits */

typedef struct {
    double first, second; /* of distances, of their squares */
} Sums;

typedef struct {
    dsi_view x, sum, mean, rest;
    int64_t row, part_length; /* of a long row */
    double about;             /* a number of x's type */
    Sums part[PARTS];
} job;

/* If float32 holds the sums of n elements: s, else those of double. */
static Sums sums_checked(Sums s, int64_t n, const float *x, float about)
{
    if (fabs(s.first) <= (double)FLT_MAX && s.second <= (double)FLT_MAX && s.second >= (double)LOST)
        return s;
    s = (Sums){0, 0};
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)about;
        s.first += d, s.second += d * d;
    }
    return s;
}

/* The sums of n elements x[i] - about. */
#define SUMS_LINE(T, wide, sum_lanes, checked) \
    enum { L = sizeof(wide) / sizeof(T) }; \
    Sums total = {0, 0}, s; \
    const wide c = about - (wide){0}; \
    int64_t i = 0; \
    while (n - i >= 4 * L) { \
        int64_t begin = i, end = n - i < LINE_BLOCK ? n : i + LINE_BLOCK; \
        wide a[4] = {{0}}, b[4] = {{0}}; \
        for (; i + 4 * L <= end; i += 4 * L) UNROLL for (int j = 0; j < 4; j++) \
            { \
                wide d = *(const wide *)(x + i + j * L) - c; \
                a[j] += d, b[j] += d * d; \
            } \
        a[0] += a[1], a[2] += a[3], a[0] += a[2]; \
        b[0] += b[1], b[2] += b[3], b[0] += b[2]; \
        s = checked(((Sums){(double)sum_lanes(&a[0]), (double)sum_lanes(&b[0])}), i - begin, \
                    x + begin, about); \
        total.first += s.first, total.second += s.second; \
    } \
    T first = 0, second = 0; \
    for (int64_t k = i; k < n; k++) { \
        T d = x[k] - about; \
        first += d, second += d * d; \
    } \
    s = checked(((Sums){(double)first, (double)second}), n - i, x + i, about); \
    return (Sums){total.first + s.first, total.second + s.second};

static Sums sums_line_f32(int64_t n, const float *x, float about)
{
    SUMS_LINE(float, wide_f32, sum_lanes_f32, sums_checked)
}

static Sums sums_line_f64(int64_t n, const double *x, double about)
{
#define AS_THEY_ARE(sums, n, x, about) ((void)(n), sums)
    SUMS_LINE(double, wide_f64, sum_lanes_f64, AS_THEY_ARE)
#undef AS_THEY_ARE
}

/* Of n elements of x, from element `at` on. */
static Sums sums_of(const job *j, int64_t at, int64_t n, double about)
{
    if (j->x.dtype == DS_F32) return sums_line_f32(n, (const float *)j->x.p + at, (float)about);
    return sums_line_f64(n, (const double *)j->x.p + at, about);
}

/* Parts begin .. end-1 of j->row. */
static void sums_of_parts(void *arg, int64_t begin, int64_t end)
{
    job *j = arg;
    int64_t k = j->x.d[1];
    for (int64_t part = begin; part < end; part++) {
        int64_t first = part * j->part_length;
        j->part[part] = sums_of(j, j->row * k + first, dsi_min(j->part_length, k - first),
                                j->about);
    }
}

/* Of j->row about j->about; a long row by parts, which depend on its length
 * alone. */
static Sums sums_of_row(job *j)
{
    int64_t k = j->x.d[1];
    if (k < LONG) return sums_of(j, j->row * k, k, j->about);
    j->part_length = (k / PARTS + LINE_BLOCK) / LINE_BLOCK * LINE_BLOCK;
    int64_t parts = dsi_div_up(k, j->part_length);
    Sums total = {0, 0};
    dsi_parallel(parts, PARALLEL_ELEMENTS / j->part_length + 1, sums_of_parts, j);
    for (int64_t part = 0; part < parts; part++)
        total.first += j->part[part].first, total.second += j->part[part].second;
    return total;
}

static double rounded(const job *j, double x)
{
    return j->x.dtype == DS_F32 ? (double)(float)x : x;
}

/* The mean of some elements of j->row; their own number if they are equal. */
static double mean_of_some(const job *j)
{
    int64_t k = j->x.d[1], n = dsi_min(k, SOME);
    if (!n) return 0;
    double first = view_value(&j->x, j->row * k), sum = 0;
    for (int64_t i = 0; i < n; i++) sum += view_value(&j->x, j->row * k + i * (k / n)) - first;
    return rounded(j, first + sum / (double)n);
}

static void deviations_of_row(job *j)
{
    double n = (double)j->x.d[1];
    j->about = mean_of_some(j);
    Sums s = sums_of_row(j);
    double off = s.first / n;
    if (!(16 * off * off <= s.second / n)) {
        j->about = rounded(j, j->about + off);
        s = sums_of_row(j);
        off = s.first / n;
    }
    double sum = j->x.d[1] ? s.second - s.first * off : 0, mean = rounded(j, j->about + off);
    view_set_value(&j->sum, j->row * j->sum.s[0], sum < 0 ? 0 : sum);
    view_set_value(&j->mean, j->row * j->mean.s[0], mean);
    view_set_value(&j->rest, j->row * j->rest.s[0], j->about - mean + off);
}

static void deviations_of_rows(void *arg, int64_t begin, int64_t end)
{
    job j = *(const job *)arg;
    for (j.row = begin; j.row < end; j.row++) deviations_of_row(&j);
}

ds_status KERNEL(deviations)(dsi_stream *s, dsi_view x, dsi_view sum, dsi_view mean, dsi_view rest)
{
    (void)s;
    if (x.dtype != DS_F32 && x.dtype != DS_F64) return no_dtype("deviations", x.dtype);
    job j = {.x = x, .sum = sum, .mean = mean, .rest = rest};
    int64_t k = x.d[1];
    if (k >= LONG)
        deviations_of_rows(&j, 0, x.d[0]);
    else if (x.d[0] > 0)
        dsi_parallel(x.d[0], PARALLEL_ELEMENTS / (k + 1) + 1, deviations_of_rows, &j);
    return DS_OK;
}
