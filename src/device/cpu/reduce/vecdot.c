/* device/cpu/reduce/vecdot.c: dot products of rows.
 *
 * Invariants: partial sums of at most LINE_BLOCK products are in T, the type of
 * the rows, their totals in double. A partial sum that is too large for T, or so
 * small that products were lost, is computed again in double. Threads divide
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

typedef struct {
    dsi_view a, b, y;
    int64_t row, part_length; /* of a long row */
    double part[PARTS];
} job;

#define LOST 0x1p-96f /* a product of float32 below 2^-126 has lost digits */

static double dot_in_double(int64_t n, const float *a, const float *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* sum, or if float32 does not hold it, that of double. */
static double dot_checked(float sum, int64_t n, const float *a, const float *b)
{
    bool good = fabsf(sum) <= FLT_MAX && fabsf(sum) >= LOST;
    return good ? (double)sum : dot_in_double(n, a, b);
}

/* The sum of a[i] b[i] over n elements. */
#define DOT_LINE(T, wide, sum_lanes, checked) \
    enum { L = sizeof(wide) / sizeof(T) }; \
    double total = 0; \
    int64_t i = 0; \
    while (n - i >= 4 * L) { \
        int64_t begin = i, end = n - i < LINE_BLOCK ? n : i + LINE_BLOCK; \
        wide p = {0}, q = {0}, r = {0}, s = {0}; \
        for (; i + 4 * L <= end; i += 4 * L) { \
            const wide *x = (const wide *)(a + i), *y = (const wide *)(b + i); \
            p += x[0] * y[0], q += x[1] * y[1], r += x[2] * y[2], s += x[3] * y[3]; \
        } \
        p += q, r += s, p += r; \
        total += checked(sum_lanes(&p), i - begin, a + begin, b + begin); \
    } \
    T rest = 0; \
    for (int64_t k = i; k < n; k++) rest += a[k] * b[k]; \
    return total + checked(rest, n - i, a + i, b + i);

static double dot_line_f32(int64_t n, const float *a, const float *b)
{
    DOT_LINE(float, wide_f32, sum_lanes_f32, dot_checked)
}

static double dot_line_f64(int64_t n, const double *a, const double *b)
{
#define AS_IT_IS(sum, n, a, b) ((void)(n), sum)
    DOT_LINE(double, wide_f64, sum_lanes_f64, AS_IT_IS)
#undef AS_IT_IS
}

/* Of n elements from element `at` of both operands on. */
static double dot(const job *j, int64_t at, int64_t n)
{
    if (j->a.dtype == DS_F32)
        return dot_line_f32(n, (const float *)j->a.p + at, (const float *)j->b.p + at);
    return dot_line_f64(n, (const double *)j->a.p + at, (const double *)j->b.p + at);
}

static void dot_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t k = j->a.d[1];
    for (int64_t row = begin; row < end; row++)
        view_set_value(&j->y, row * j->y.s[0], dot(j, row * k, k));
}

/* Parts begin .. end-1 of j->row. */
static void dot_parts(void *arg, int64_t begin, int64_t end)
{
    job *j = arg;
    int64_t k = j->a.d[1];
    for (int64_t part = begin; part < end; part++) {
        int64_t first = part * j->part_length;
        j->part[part] = dot(j, j->row * k + first, dsi_min(j->part_length, k - first));
    }
}

/* A row at a time, each by parts, which depend on its length alone. */
static void dot_long_rows(job *j)
{
    int64_t k = j->a.d[1];
    j->part_length = (k / PARTS + LINE_BLOCK) / LINE_BLOCK * LINE_BLOCK;
    int64_t parts = dsi_div_up(k, j->part_length);
    for (j->row = 0; j->row < j->y.d[0]; j->row++) {
        double total = 0;
        dsi_parallel(parts, PARALLEL_ELEMENTS / j->part_length + 1, dot_parts, j);
        for (int64_t part = 0; part < parts; part++) total += j->part[part];
        view_set_value(&j->y, j->row * j->y.s[0], total);
    }
}

ds_status KERNEL(vecdot)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view y)
{
    (void)s;
    if (a.dtype != DS_F32 && a.dtype != DS_F64) return no_dtype("vecdot", a.dtype);
    job j = {.a = a, .b = b, .y = y};
    int64_t k = a.d[1];
    if (k >= LONG)
        dot_long_rows(&j);
    else if (y.d[0] > 0)
        dsi_parallel(y.d[0], PARALLEL_ELEMENTS / (k + 1) + 1, dot_rows, &j);
    return DS_OK;
}
