/* device/cpu/reduce/reduce.c: sums and maxima over any dimensions, norms. The
 * dimensions of x are sorted by its strides. Neighbours that are both kept or
 * both summed, and contiguous to each other, are joined. Then the inner one is
 * either
 *   summed  every output is a sum of dense lines (a row's sum, a sum of everything), or
 *   kept    outputs that are neighbours are summed together, line upon line (a bias gradient).
 * A line is all elements along the inner dimension. T is the type of x. Lines
 * that are not dense, and 16-bit ones, pass through a buffer in pieces of
 * GATHER elements.
 *
 * Invariants: partial sums of at most 4096 elements are in T, their totals in
 * double. The order of a sum depends on shapes and strides alone: threads
 * divide outputs, or the fixed parts of one long line.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"
#include "lines.h"
#include "max.h"

#include <math.h>

#define COLUMNS       256 /* neighbouring outputs that are summed together */
#define LEAST_COLUMNS 64  /* the same, for few outputs: so that there are UNITS */
#define UNITS         8
#define FEW           4    /* elements of which a line has the same sum as lines of one */
#define ROWS          256  /* lines whose sum is kept in T: 64 additions an element */
#define GATHER        512  /* elements of a line that is not dense, at a time */
#define SHORT         64   /* elements of lines that are gathered together */
#define OUTPUTS       128  /* whose lines are taken in the order of memory */
#define PARTS         64   /* of one long line */
#define ROWS_AHEAD    8    /* rows, further apart than the hardware looks, of 16 bits */
#define AHEAD         4096 /* bytes: the page that the hardware does not fetch ahead by itself */

typedef struct {
    int n;
    int64_t d[DS_MAX_DIMS], s[DS_MAX_DIMS];
} dims;

/* y = factor times a sum over x; how the dimensions are divided. */
typedef struct {
    const char *x;
    char *y;
    double factor;
    dims summed, kept_x, kept_y; /* without the inner dimension; strides in elements of x or y */
    int64_t lines, outputs;      /* their sizes */
    int64_t inner, inner_x, inner_y;
    bool inner_summed;
    int64_t unit; /* neighbours that are summed together */
    ds_dtype x_dtype;
} plan;

/* Offset of the k-th element, counted in row-major order. */
ALWAYS_INLINE int64_t offset(const dims *v, int64_t k)
{
    int64_t sum = 0;
    if (v->n == 0) return 0;
    for (int i = v->n - 1; i > 0; i--) {
        sum += k % v->d[i] * v->s[i];
        k /= v->d[i];
    }
    return sum + k * v->s[0];
}

ALWAYS_INLINE int64_t line_offset(const plan *p, int64_t line) { return offset(&p->summed, line); }

/* The larger one; NaN if either is. */
ALWAYS_INLINE double larger(double a, double b) { return a >= b || a != a ? a : b; }

/* The largest of n elements, NaN if one is. */
static double largest_of_f64(int64_t n, const void *p)
{
    const double *x = p;
    double max = -INFINITY;
    for (int64_t i = 0; i < n; i++) max = larger(max, x[i]);
    return max;
}

/* By vectors, which leave NaNs out; a product with 0 finds these, and
 * infinities. */
static double largest_of_f32(int64_t n, const void *p)
{
    const float *x = p;
    const vf zero = vf_zero();
    vf a = vf_set(-INFINITY), b = a, odd = zero, even = zero;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        vf v = vf_load(x + i), w = vf_load(x + i + VF);
        a = vf_max(v, a), b = vf_max(w, b);
        odd = vf_fma(v, zero, odd), even = vf_fma(w, zero, even);
    }
    float max = vf_largest(vf_max(a, b)), sum = vf_sum(vf_add(odd, even));
    for (; i < n; i++) max = x[i] > max ? x[i] : max, sum += x[i] * 0;
    if (sum == 0) return (double)max;
    double most = -INFINITY;
    for (i = 0; i < n; i++) most = larger(most, (double)x[i]);
    return most;
}

#define T           float
#define NAMED(name) name##_f32
#include "reduce.inc"
#define T           double
#define NAMED(name) name##_f64
#include "reduce.inc"

static void gather_f16(int64_t n, const void *from, int64_t stride, void *to)
{
    half_gather(DS_F16, from, stride, to, n);
}

static void gather_bf16(int64_t n, const void *from, int64_t stride, void *to)
{
    half_gather(DS_BF16, from, stride, to, n);
}

/* ---- the plan ------------------------------------------------------------------------------------- */

static void add_dim(dims *v, int64_t d, int64_t s)
{
    v->d[v->n] = d;
    v->s[v->n++] = s;
}

/* y has size 1 in dimensions that are summed; y->p == NULL: all are. */
static plan plan_of(const dsi_view *x, const dsi_view *y)
{
    plan p = {.x = x->p,
              .y = y->p,
              .lines = 1,
              .outputs = 1,
              .inner = 1,
              .inner_x = 1,
              .inner_summed = true,
              .x_dtype = x->dtype};
    int64_t d[DS_MAX_DIMS], sx[DS_MAX_DIMS], sy[DS_MAX_DIMS]; /* sy -1: summed */
    int order[DS_MAX_DIMS], n = 0, m = 0;

    for (int i = 0; i < x->n; i++) { /* insertion sort by x's strides, largest first */
        if (x->d[i] == 1) continue;
        int at = n++;
        for (; at > 0 && x->s[order[at - 1]] < x->s[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    for (int k = 0; k < n; k++) {
        int i = order[k];
        int64_t step = y->p && y->d[i] != 1 ? y->s[i] : -1;
        bool joins = m > 0 && sx[m - 1] == x->s[i] * x->d[i] &&
                     (step < 0 ? sy[m - 1] < 0 : sy[m - 1] == step * x->d[i]);
        if (!joins) d[m++] = 1;
        d[m - 1] *= x->d[i], sx[m - 1] = x->s[i], sy[m - 1] = step;
    }
    for (int i = 0; i < m; i++) {
        if (i == m - 1) {
            p.inner = d[i], p.inner_x = sx[i], p.inner_y = sy[i], p.inner_summed = sy[i] < 0;
        } else if (sy[i] < 0) {
            add_dim(&p.summed, d[i], sx[i]);
            p.lines *= d[i];
        } else {
            add_dim(&p.kept_x, d[i], sx[i]);
            add_dim(&p.kept_y, d[i], sy[i]);
            p.outputs *= d[i];
        }
    }
    int last = p.kept_x.n - 1;
    if (p.inner_summed && p.inner <= FEW && p.lines == 1 && last >= 0 &&
        p.kept_x.d[last] >= LEAST_COLUMNS) { /* the same sums, of outputs that are neighbours */
        add_dim(&p.summed, p.inner, p.inner_x);
        p.lines = p.inner, p.inner_summed = false;
        p.inner = p.kept_x.d[last], p.inner_x = p.kept_x.s[last], p.inner_y = p.kept_y.s[last];
        p.kept_x.n = p.kept_y.n = last, p.outputs /= p.inner;
    }
    return p;
}

/* ---- lines to one number -------------------------------------------------------------------------- */

typedef struct {
    double (*line)(int64_t n, const void *x); /* of a dense line */
    /* the same of lines x + from[i], combined with total[i]; NULL: line by line */
    void (*lines)(int64_t lines, int64_t n, const void *x, const int64_t *from, double *total);
    void (*gather)(int64_t n, const void *from, int64_t stride, void *to);
    int64_t size;     /* bytes of an element */
    int64_t out_size; /* of y's */
    bool largest;     /* lines are combined by the larger, else by the sum */
    double first;     /* what the first line is combined with */
    bool half;        /* dense lines are gathered too, but where there is */
    double (*dense)(int64_t n, const void *x); /* the same of 16-bit ones, or NULL */
} fold;

/* The sum of bfloat16, of which a vector's even and odd elements are floats
 * after a shift and a mask. */
static double sum_of_bf16(int64_t n, const void *p)
{
    typedef uint32_t bits __attribute__((__vector_size__(32), __aligned__(2), __may_alias__));
    enum { PAIRS = sizeof(bits) / 2 };
    const uint16_t *x = p;
    double total = 0;
    int64_t i = 0;
    while (n - i >= 2 * PAIRS) {
        int64_t end = n - i < LINE_BLOCK ? n : i + LINE_BLOCK;
        wide_f32 a = {0}, b = {0}, c = {0}, d = {0};
        for (; i + 2 * PAIRS <= end; i += 2 * PAIRS) {
            bits u = *(const bits *)(x + i), v = *(const bits *)(x + i + PAIRS);
            a += (wide_f32)(u << 16), b += (wide_f32)(u & 0xffff0000u);
            c += (wide_f32)(v << 16), d += (wide_f32)(v & 0xffff0000u);
        }
        a += b, c += d, a += c;
        total += (double)sum_lanes_f32(&a);
    }
    for (; i < n; i++) total += (double)dsi_bf16_to_f32(x[i]);
    return total;
}

typedef float four_f32 __attribute__((__vector_size__(16)));

/* x in doubles. GCC 12 makes four instructions of a vector's conversion. */
ALWAYS_INLINE void widen_four(four_f32 x, wide_f64 *y)
{
#if defined(DSI_ISA_avx512) || defined(DSI_ISA_avx2)
    *y = (wide_f64)_mm256_cvtps_pd((__m128)x);
#else
    *y = __builtin_convertvector(x, wide_f64);
#endif
}

/* The same of their squares, in doubles as sum_of_squares_f32. */
static double squares_of_bf16(int64_t n, const void *p)
{
    typedef uint32_t bits __attribute__((__vector_size__(16), __aligned__(2), __may_alias__));
    enum { PAIRS = sizeof(bits) / 2, LINE = 4 };
    const uint16_t *x = p;
    wide_f64 sum[4] = {{0}};
    int64_t i = 0;
    for (; i + LINE * PAIRS <= n; i += LINE * PAIRS) {
        __builtin_prefetch((const char *)(x + i) + AHEAD);
        UNROLL for (int j = 0; j < LINE; j++)
        {
            bits pairs = *(const bits *)(x + i + j * PAIRS);
            wide_f64 even, odd;
            widen_four((four_f32)(pairs << 16), &even);
            widen_four((four_f32)(pairs & 0xffff0000u), &odd);
            sum[j % 2 * 2] += even * even, sum[j % 2 * 2 + 1] += odd * odd;
        }
    }
    sum[0] += sum[1], sum[2] += sum[3], sum[0] += sum[2];
    double total = sum_lanes_f64(&sum[0]);
    for (; i < n; i++) total += (double)dsi_bf16_to_f32(x[i]) * (double)dsi_bf16_to_f32(x[i]);
    return total;
}

static fold half_fold(fold f, ds_dtype dtype)
{
    f.gather = dtype == DS_F16 ? gather_f16 : gather_bf16;
    f.size = 2;
    f.half = true;
    if (dtype == DS_BF16 && f.line == sum_of_f32) f.dense = sum_of_bf16;
    if (dtype == DS_BF16 && f.line == sum_of_squares_f32) f.dense = squares_of_bf16;
    return f;
}

static double fold_combine(const fold *f, double a, double b)
{
    return f->largest ? larger(a, b) : a + b;
}

/* The lines from[0..lines-1] of n elements each: neighbours that follow each
 * other are converted as one, those that fit in the buffer. */
static void fold_lines_half(const fold *f, int64_t lines, int64_t n, const char *x,
                            const int64_t *from, double *total)
{
    float buf[2 * GATHER];
    int64_t most = n ? 2 * GATHER / n : lines, first[OUTPUTS];
    for (int64_t i = 0, many; i < lines; i += many) {
        for (many = 1; many < most && i + many < lines && from[i + many] == from[i] + many * n;)
            many++;
        f->gather(many * n, x + from[i] * f->size, 1, buf);
        for (int64_t k = 0; k < many; k++) first[k] = k * n;
        f->lines(many, n, buf, first, total + i);
    }
}

/* The sum (or the largest) of n elements, `stride` apart. */
static double fold_line(const fold *f, int64_t n, const char *x, int64_t stride)
{
    double buf[GATHER], total = f->first;
    if (stride == 1 && f->dense) return f->dense(n, x);
    if (stride == 1 && !f->half) return f->line(n, x);
    for (int64_t i = 0; i < n; i += GATHER) {
        int64_t m = n - i < GATHER ? n - i : GATHER;
        f->gather(m, x + i * stride * f->size, stride, buf);
        total = fold_combine(f, total, f->line(m, buf));
    }
    return total;
}

typedef struct {
    const plan *p;
    const fold *f;
    int64_t part_length;
    double part[PARTS];
} fold_job;

static void fold_parts(void *arg, int64_t begin, int64_t end)
{
    fold_job *j = arg;
    const plan *p = j->p;
    for (int64_t k = begin; k < end; k++) {
        int64_t first = k * j->part_length, left = p->inner - first;
        j->part[k] = fold_line(j->f, left < j->part_length ? left : j->part_length,
                               p->x + first * p->inner_x * j->f->size, p->inner_x);
    }
}

/* All lines of one output, whose first element is x. */
static double fold_lines(const plan *p, const fold *f, const char *x)
{
    double total = f->first;
    for (int64_t line = 0; line < p->lines; line++)
        total = fold_combine(
            f, total, fold_line(f, p->inner, x + line_offset(p, line) * f->size, p->inner_x));
    return total;
}

/* The sum (or the largest) of all of x. A single long line is divided into at
 * most PARTS parts by its length alone, whatever the number of threads. */
static double fold_all(const plan *p, const fold *f)
{
    fold_job j = {.p = p, .f = f};
    double total = f->first;
    if (p->lines != 1 || p->inner < LONG) return fold_lines(p, f, p->x);
    j.part_length = (p->inner / PARTS + LINE_BLOCK) / LINE_BLOCK * LINE_BLOCK;
    int64_t parts = (p->inner + j.part_length - 1) / j.part_length;
    dsi_parallel(parts, PARALLEL_ELEMENTS / j.part_length + 1, fold_parts, &j);
    for (int64_t k = 0; k < parts; k++) total = fold_combine(f, total, j.part[k]);
    return total;
}

/* ---- sums of 16 bits whose inner dimension is kept -------------------------------------------------- */

#define TOGETHER 4 /* rows */

/* part[i] += x[row, i] of TOGETHER rows of bfloat16, side by side. */
static void add_rows_bf16(const uint16_t *const x[TOGETHER], int64_t k, float *part)
{
    const uint16_t *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    INDEPENDENT
    for (int64_t i = 0; i < k; i++)
        part[i] += (dsi_bf16_to_f32(x0[i]) + dsi_bf16_to_f32(x1[i])) +
                   (dsi_bf16_to_f32(x2[i]) + dsi_bf16_to_f32(x3[i]));
}

/* part[i] += x[row, i] over n rows, in the order of add_rows_f32. */
static void add_rows_half(const plan *p, const uint16_t *x, int64_t row, int64_t n, int64_t k,
                          float *part)
{
    float a[TOGETHER][COLUMNS];
    bool direct = p->x_dtype == DS_BF16 && p->inner_x == 1;
    for (int64_t end = row + n; row < end;) {
        int64_t rows = row + TOGETHER <= end ? TOGETHER : 1;
        const uint16_t *at[TOGETHER];
        for (int64_t r = row + ROWS_AHEAD; r < dsi_min(row + ROWS_AHEAD + rows, end); r++)
            FETCH(x + line_offset(p, r), p->inner_x == 1 ? 2 * k : 0, 0);
        for (int64_t r = 0; r < rows; r++) {
            at[r] = x + line_offset(p, row + r);
            if (!direct || rows < TOGETHER) half_gather(p->x_dtype, at[r], p->inner_x, a[r], k);
        }
        if (rows < TOGETHER)
            for (int64_t i = 0; i < k; i++) part[i] += a[0][i];
        else if (direct)
            add_rows_bf16(at, k, part);
        else
            for (int64_t i = 0; i < k; i++) part[i] += (a[0][i] + a[1][i]) + (a[2][i] + a[3][i]);
        row += rows;
    }
}

/* As sum_columns_f32, which says what a unit is. */
static void sum_columns_half(void *arg, int64_t begin, int64_t end)
{
    const plan *p = arg;
    int64_t chunks = dsi_div_up(p->inner, p->unit);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t kept = unit / chunks, first = unit % chunks * p->unit;
        int64_t k = dsi_min(p->inner - first, p->unit);
        const uint16_t *x = (const uint16_t *)p->x + offset(&p->kept_x, kept) + first * p->inner_x;
        float *y = (float *)p->y + offset(&p->kept_y, kept) + first * p->inner_y;
        double total[COLUMNS] = {0};
        for (int64_t row = 0; row < p->lines; row += ROWS) {
            float part[COLUMNS] = {0};
            add_rows_half(p, x, row, dsi_min(p->lines - row, ROWS), k, part);
            for (int64_t i = 0; i < k; i++) total[i] += (double)part[i];
        }
        for (int64_t i = 0; i < k; i++) y[i * p->inner_y] = (float)(p->factor * total[i]);
    }
}

/* ---- sum ------------------------------------------------------------------------------------------ */

static void reduce_put(char *y, int64_t size, double value)
{
    if (size == 4)
        *(float *)y = (float)value;
    else
        *(double *)y = value;
}

/* Outputs begin .. end-1, if the inner dimension is summed. */
static void fold_rows(void *arg, int64_t begin, int64_t end)
{
    const fold_job *j = arg;
    const plan *p = j->p;
    const fold *f = j->f;
    for (int64_t k = begin; k < end; k += OUTPUTS) {
        int64_t n = dsi_min(end - k, OUTPUTS), from[OUTPUTS];
        double total[OUTPUTS];
        for (int64_t i = 0; i < n; i++) from[i] = offset(&p->kept_x, k + i), total[i] = f->first;
        for (int64_t line = 0; line < p->lines; line++) {
            const char *x = p->x + line_offset(p, line) * f->size;
            if (p->inner_x == 1 && f->half && p->inner <= SHORT)
                fold_lines_half(f, n, p->inner, x, from, total);
            else if (p->inner_x == 1 && f->lines && !f->half)
                f->lines(n, p->inner, x, from, total);
            else
                for (int64_t i = 0; i < n; i++)
                    total[i] = fold_combine(
                        f, total[i], fold_line(f, p->inner, x + from[i] * f->size, p->inner_x));
        }
        for (int64_t i = 0; i < n; i++)
            reduce_put(p->y + offset(&p->kept_y, k + i) * f->out_size, f->out_size,
                       p->factor * total[i]);
    }
}

/* y = each output's fold, if the inner dimension is not kept. */
static void reduce_fold(const plan *p, const fold *f)
{
    fold_job j = {.p = p, .f = f};
    if (p->outputs == 1)
        reduce_put(p->y, f->out_size, p->factor * fold_all(p, f));
    else
        dsi_parallel(p->outputs, PARALLEL_ELEMENTS / (p->lines * p->inner + 1) + 1, fold_rows, &j);
}

/* y by units of neighbours, if the inner dimension is kept. Each of them has
 * the same sum in a unit of any size. */
static void reduce_columns(plan *p, void (*columns)(void *arg, int64_t begin, int64_t end))
{
    p->unit = COLUMNS;
    while (ds_threads() > 1 && p->unit > LEAST_COLUMNS &&
           p->outputs * dsi_div_up(p->inner, p->unit) < UNITS)
        p->unit /= 2;
    int64_t units = p->outputs * dsi_div_up(p->inner, p->unit);
    int64_t elements = p->lines * dsi_min(p->inner, p->unit);
    dsi_parallel(units, PARALLEL_ELEMENTS / (elements + 1) + 1, columns, p);
}

static uint64_t sum_line_i64(int64_t n, const int64_t *x, int64_t stride)
{
    uint64_t total = 0;
    if (stride == 1)
        for (int64_t i = 0; i < n; i++) total += (uint64_t)x[i];
    else
        for (int64_t i = 0; i < n; i++) total += (uint64_t)x[i * stride];
    return total;
}

/* y = the sum of int64 x, modulo 2^64: outputs begin .. end-1, of which a row
 * has neighbours i. */
static void sum_rows_i64(void *arg, int64_t begin, int64_t end)
{
    const plan *p = arg;
    int64_t across = p->inner_summed ? 1 : p->inner, along = p->inner_summed ? p->inner : 1;
    for (int64_t k = begin; k < end; k++)
        for (int64_t i = 0; i < across; i++) {
            const int64_t *x = (const int64_t *)p->x + offset(&p->kept_x, k) + i * p->inner_x;
            uint64_t total = 0;
            for (int64_t line = 0; line < p->lines; line++)
                total += sum_line_i64(along, x + line_offset(p, line), p->inner_x);
            ((int64_t *)p->y)[offset(&p->kept_y, k) + i * p->inner_y] = (int64_t)total;
        }
}

static ds_status reduce_sum_i64(dsi_view x, dsi_view y)
{
    if (view_numel(&y) == 0) return DS_OK;
    plan p = plan_of(&x, &y);
    dsi_parallel(p.outputs, PARALLEL_ELEMENTS / (p.lines * p.inner + 1) + 1, sum_rows_i64, &p);
    return DS_OK;
}

/* y = factor times the sum of x; 16-bit x and y are summed in float32. */
static ds_status reduce_sum(dsi_stream *s, double factor, dsi_view x, dsi_view y)
{
    static const fold f32 = {sum_of_f32, sums_of_f32, gather_f32, 4, 4, .first = 0};
    static const fold f64 = {sum_of_f64, sums_of_f64, gather_f64, 8, 8, .first = 0};
    bool half = is_half(x.dtype), single = x.dtype == DS_F32 || half;
    fold f = half ? half_fold(f32, x.dtype) : single ? f32 : f64;

    if (x.dtype == DS_I64) return reduce_sum_i64(x, y);
    if (!single && x.dtype != DS_F64) return no_dtype("sum", x.dtype);
    if (is_half(y.dtype)) IN_F32(s, 1, reduce_sum(s, factor, x, y), &y);
    if (view_numel(&y) == 0) return DS_OK;
    plan p = plan_of(&x, &y);
    p.factor = factor;
    if (p.inner_summed)
        reduce_fold(&p, &f);
    else
        reduce_columns(&p, half ? sum_columns_half : single ? sum_columns_f32 : sum_columns_f64);
    return DS_OK;
}

/* ---- entries, norm ---------------------------------------------------------------------------------------- */

ds_status KERNEL(reduce)(dsi_stream *s, dsi_reduce_op op, double factor, dsi_view x, dsi_view y,
                         dsi_view index)
{
    return op == DSI_SUM ? reduce_sum(s, factor, x, y) : reduce_max(s, x, y, index);
}

/* y = the largest of x, NaN where one is. */
ds_status KERNEL(amax)(dsi_stream *s, dsi_view x, dsi_view y)
{
    static const fold f32 = {largest_of_f32, largest_f32, gather_f32, 4,   4,
                             true,           -INFINITY,   false,      NULL};
    static const fold f64 = {largest_of_f64, largest_f64, gather_f64, 8,   8,
                             true,           -INFINITY,   false,      NULL};
    if (is_half(x.dtype)) IN_F32(s, 1, KERNEL(amax)(s, x, y), &y, &x);
    if (x.dtype != DS_F32 && x.dtype != DS_F64) return no_dtype("amax", x.dtype);
    if (view_numel(&y) == 0) return DS_OK;
    bool single = x.dtype == DS_F32;
    plan p = plan_of(&x, &y);
    p.factor = 1;
    if (p.inner_summed)
        reduce_fold(&p, single ? &f32 : &f64);
    else
        reduce_columns(&p, single ? largest_columns_f32 : largest_columns_f64);
    return DS_OK;
}

ds_status KERNEL(norm)(dsi_stream *s, double p, int n, const dsi_view *x, dsi_view norm)
{
    static const fold folds[3][2] = {
        {{sum_of_absolutes_f32, NULL, gather_f32, 4, 0, .first = 0},
         {sum_of_absolutes_f64, NULL, gather_f64, 8, 0, .first = 0}},
        {{sum_of_squares_f32, NULL, gather_f32, 4, 0, .first = 0},
         {sum_of_squares_f64, NULL, gather_f64, 8, 0, .first = 0}},
        {{largest_absolute_f32, NULL, gather_f32, 4, 0, true, .first = 0},
         {largest_absolute_f64, NULL, gather_f64, 8, 0, true, .first = 0}},
    };
    const dsi_view nothing = {0};
    int kind = p == 1 ? 0 : p == 2 ? 1 : 2;
    double total = 0;

    (void)s;
    if (kind == 2 && !(p == (double)INFINITY))
        return dsi_fail(DS_EINVAL, "norm: p is %g, expected 1, 2 or infinity", p);
    for (int i = 0; i < n; i++) {
        if (x[i].dtype > DS_BF16) return no_dtype("norm", x[i].dtype);
        fold f = folds[kind][x[i].dtype == DS_F64];
        if (is_half(x[i].dtype)) f = half_fold(f, x[i].dtype);
        plan all = plan_of(&x[i], &nothing);
        total = fold_combine(&f, total, fold_all(&all, &f));
    }
    *(double *)norm.p = kind == 1 ? sqrt(total) : total;
    return DS_OK;
}
