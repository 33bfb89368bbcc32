/* device/cpu/index/index.c: rows and elements named by an index.
 *
 *     gather_rows    y[i,:] = w[index[i],:]               y [N,D], w [V,D]
 *     scatter_rows   dw[index[i],:] += dy[i,:]
 *     scatter_add    dx[o,index[o,k,i],i] += dy[o,k,i]    dx [outer,C,inner]
 *     scatter        y = x, y[o,index[o,k,i],i] = src[o,k,i]
 *
 * Rows are gathered as bits, of any dtype of their size.
 *
 * Invariants: an index is checked before it is used; a bad one sets the
 * device's fault flag (fault_set), and results are 0. Scattering adds in the
 * order of the index. Its threads divide the rows of dw (scatter_rows), or
 * `outer` or parts of `inner` (scatter_add), never the index, so the sum of a
 * row that is named twice does not depend on them.
 * SPDX-License-Identifier: MIT */
#include "index.h"
#include "base/int.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"

#include <stdatomic.h>
#include <string.h>

typedef struct {
    /* w [V,D], index [N], y [N,D]; or x [outer,C,inner], index and y
     * [outer,K,inner] */
    dsi_view w, index, y;
    int64_t skip;           /* scatter_rows: an index that gets no gradient (padding_idx) */
    int64_t size;           /* bytes of an element */
    dsi_view base;          /* scatter, scatter_sum: what w is without src */
    double alpha;           /* scatter_sum */
    bool back;              /* scatter_dx */
    int64_t at_once;        /* scatter, scatter_sum: `outer`s that are checked together */
    atomic_bool *bad;       /* and that an index of some of them is outside */
    int64_t *first, *named; /* scatter_rows: sort_by_row */
} job;

ALWAYS_INLINE int64_t index_of(const job *j, int64_t i)
{
    return ((const int64_t *)j->index.p)[i * j->index.s[0]];
}

/* Sets the fault flag, and is false, if one of n indices names no row. */
static bool rows_valid(dsi_stream *s, const job *j, int64_t n)
{
    int64_t rows = j->w.d[0];
    for (int64_t i = 0; i < n; i++) {
        int64_t at = index_of(j, i);
        if (at >= 0 && at < rows) continue;
        fault_set(s, DSI_FAULT_ROW, at, i, -1, rows);
        return false;
    }
    return true;
}

/* ---- rows ----------------------------------------------------------------------------------------- */

#define MOVE(bytes, type) \
    case bytes: \
        for (int64_t c = 0; c < n; c++) ((type *)y)[c * sy] = ((const type *)x)[c * sx]; \
        break
/* Copies n elements with strides sx and sy. */
static void move_row(int64_t size, int64_t n, const char *x, int64_t sx, char *y, int64_t sy)
{
    if (sx == 1 && sy == 1) {
        memcpy(y, x, (size_t)(n * size));
        return;
    }
    switch (size) {
        MOVE(1, uint8_t);
        MOVE(2, uint16_t);
        MOVE(4, uint32_t);
        MOVE(8, uint64_t);
    }
}

/* Rows begin .. end-1 of y. */
static void gather_part(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t i = begin; i < end; i++)
        move_row(j->size, j->y.d[1], (const char *)j->w.p + index_of(j, i) * j->w.s[0] * j->size,
                 j->w.s[1], (char *)j->y.p + i * j->y.s[0] * j->size, j->y.s[1]);
}

ds_status KERNEL(gather_rows)(dsi_stream *s, dsi_view w, dsi_view index, dsi_view y)
{
    job j = {.w = w, .index = index, .y = y, .size = (int64_t)ds_dtype_size(w.dtype)};
    if (!rows_valid(s, &j, y.d[0])) return KERNEL(fill)(s, 0, y);
    dsi_parallel(y.d[0], PARALLEL_ELEMENTS / (y.d[1] + 1) + 1, gather_part, &j);
    return DS_OK;
}

/* Columns c .. c+n-1 of row v of dw: 0, then the sum of the rows of dy that
 * name it. */
#define SCATTER_ROW(T, suffix) \
    static void scatter_row_##suffix(const job *j, int64_t v, int64_t c, int64_t n) \
    { \
        const dsi_view *w = &j->w, *dy = &j->y; \
        const int64_t sw = w->s[1], sy = dy->s[1]; \
        T *to = (T *)w->p + v * w->s[0] + c * sw; \
        for (int64_t i = 0; i < n; i++) to[i * sw] = 0; \
        for (int64_t k = j->first[v]; k < j->first[v + 1]; k++) { \
            const T *from = (const T *)dy->p + j->named[k] * dy->s[0] + c * sy; \
            if (sw == 1 && sy == 1) \
                for (int64_t i = 0; i < n; i++) to[i] += from[i]; \
            else \
                for (int64_t i = 0; i < n; i++) to[i * sw] += from[i * sy]; \
        } \
    }
SCATTER_ROW(float, f32)
SCATTER_ROW(double, f64)

/* n 16-bit elements of w from element `at` on: sums of the others, or base +
 * alpha sum, rounded once. */
static void sums_store(const job *j, int64_t at, int64_t stride, int64_t n, float *sum)
{
    float x[HALF_PIECE];
    for (int64_t i = 0; i < n && j->base.p; i += HALF_PIECE) {
        int64_t m = dsi_min(n - i, HALF_PIECE);
        half_gather(j->base.dtype, (const uint16_t *)j->base.p + at + i * stride, stride, x, m);
        for (int64_t c = 0; c < m; c++) sum[i + c] = x[c] + (float)j->alpha * sum[i + c];
    }
    half_scatter(j->w.dtype, sum, (uint16_t *)j->w.p + at, stride, n);
}

/* Columns c .. c+n-1 of row v, of bfloat16 side by side; n is at most WIDE, so
 * that sums stay in registers. */
#define WIDE 32
#define NEXT 8 /* places, before which a row of dy is fetched */
ALWAYS_INLINE void scatter_columns_bf16(const job *j, int64_t v, int64_t c, const int64_t n)
{
    const dsi_view *w = &j->w, *dy = &j->y;
    int64_t at = v * w->s[0] + c;
    uint16_t *to = (uint16_t *)w->p + at;
    const uint16_t *base = j->base.p ? (const uint16_t *)j->base.p + at : NULL;
    float sum[WIDE] = {0}, alpha = (float)j->alpha;
    for (int64_t k = j->first[v]; k < j->first[v + 1]; k++) {
        const uint16_t *x = (const uint16_t *)dy->p + j->named[k] * dy->s[0] + c;
        __builtin_prefetch((const uint16_t *)dy->p + j->named[k + NEXT] * dy->s[0] + c);
        for (int64_t i = 0; i < n; i++) sum[i] += dsi_bf16_to_f32(x[i]);
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = bf16_of(base ? dsi_bf16_to_f32(base[i]) + alpha * sum[i] : sum[i]);
}

/* As scatter_row of 16-bit rows; n is at most HALF_PIECE. */
static void scatter_row_half(const job *j, int64_t v, int64_t c, int64_t n)
{
    const dsi_view *w = &j->w, *dy = &j->y;
    int64_t first = j->first[v], named = j->first[v + 1] - first, at = v * w->s[0] + c * w->s[1];
    bool base = j->base.p;
    if (named < 2 - base && w->s[1] == 1 && dy->s[1] == 1) { /* no sum */
        const uint16_t *from = base ? (const uint16_t *)j->base.p + at : NULL;
        if (named) from = (const uint16_t *)dy->p + j->named[first] * dy->s[0] + c;
        if (from)
            memcpy((uint16_t *)w->p + at, from, (size_t)n * sizeof *from);
        else
            memset((uint16_t *)w->p + at, 0, (size_t)n * sizeof *from);
        return;
    }
    if (w->s[1] == 1 && dy->s[1] == 1 && w->dtype == DS_BF16 && dy->dtype == DS_BF16) {
        int64_t whole = n / WIDE * WIDE;
        for (int64_t i = 0; i < whole; i += WIDE) scatter_columns_bf16(j, v, c + i, WIDE);
        if (whole < n) scatter_columns_bf16(j, v, c + whole, n - whole);
        return;
    }
    float sum[HALF_PIECE], from[HALF_PIECE];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t k = first; k < first + named; k++) {
        const uint16_t *x = (const uint16_t *)dy->p + j->named[k] * dy->s[0] + c * dy->s[1];
        half_gather(dy->dtype, x, dy->s[1], from, n);
        for (int64_t i = 0; i < n; i++) sum[i] += from[i];
    }
    sums_store(j, at, w->s[1], n, sum);
}

static void scatter_row(const job *j, int64_t v)
{
    for (int64_t c = 0; c < j->w.d[1]; c += HALF_PIECE) {
        int64_t n = dsi_min(j->w.d[1] - c, HALF_PIECE);
        if (j->w.dtype == DS_F64)
            scatter_row_f64(j, v, c, n);
        else if (j->w.dtype == DS_F32)
            scatter_row_f32(j, v, c, n);
        else
            scatter_row_half(j, v, c, n);
    }
}

/* Rows begin .. end-1 of dw. */
static void scatter_part(void *arg, int64_t begin, int64_t end)
{
    for (int64_t v = begin; v < end; v++) scatter_row(arg, v);
}

/* Sorts the index by rows: named[first[v]] to named[first[v + 1] - 1] are the
 * places, in their order, of row v; behind the last are NEXT zeros. False
 * without scratch memory, which begins at `first`. */
static bool sort_by_row(dsi_stream *s, job *j)
{
    int64_t n = j->y.d[0], rows = j->w.d[0], all = rows + 1 + n + NEXT;
    int64_t *first = dsi_scratch(s, (size_t)all * sizeof *first);
    if (!first) return false;
    int64_t *named = first + rows + 1;
    memset(first, 0, (size_t)all * sizeof *first);
    for (int64_t i = 0; i < n; i++)
        if (index_of(j, i) != j->skip) first[index_of(j, i) + 1]++;
    for (int64_t v = 0; v < rows; v++) first[v + 1] += first[v];
    for (int64_t i = 0; i < n; i++) /* first[v] moves to where row v ends */
        if (index_of(j, i) != j->skip) named[first[index_of(j, i)]++] = i;
    for (int64_t v = rows; v > 0; v--) first[v] = first[v - 1];
    first[0] = 0;
    j->first = first, j->named = named;
    return true;
}

ds_status KERNEL(scatter_rows)(dsi_stream *s, dsi_view dy, dsi_view index, int64_t skip,
                               dsi_view dw)
{
    if (dy.dtype > DS_BF16) return no_dtype("scatter_rows", dy.dtype);
    job j = {.w = dw, .index = index, .y = dy, .skip = skip};
    if (!rows_valid(s, &j, dy.d[0])) return KERNEL(fill)(s, 0, dw);
    int64_t rows = dw.d[0], n = dy.d[0];
    if (!sort_by_row(s, &j)) return DS_ENOMEM;
    dsi_parallel(rows, PARALLEL_ELEMENTS / ((rows + n) / (rows + 1) * dw.d[1] + 1) + 1,
                 scatter_part, &j);
    dsi_scratch_release(s, j.first);
    return DS_OK;
}

/* ---- elements ------------------------------------------------------------------------------------ */

/* Both loops over the elements of an index [K,inner], of which the longer is
 * the inner one; from, to: strides of the elements that it moves from or to
 * along each loop. */
typedef struct {
    int64_t n[2], index[2], from[2], to[2];
} element_loops;

static element_loops loops_of(const dsi_view *index, const dsi_view *from, const dsi_view *to)
{
    int in = from->d[2] > 1 ? 2 : 1, out = 3 - in;
    return (element_loops){.n = {from->d[out], from->d[in]},
                           .index = {index->s[out], index->s[in]},
                           .from = {from->s[out], from->s[in]},
                           .to = {out == 2 ? to->s[2] : 0, in == 2 ? to->s[2] : 0}};
}

/* About as many elements are checked and moved while they are in the first
 * cache. */
#define AT_ONCE 2048

/* Runs `part` over all of `outer`, which it divides by outers_checked; false if
 * an index is outside: the fault flag is set. index: that of j, or what it is a
 * part of. */
static bool outers_run(dsi_stream *s, job *j, const dsi_view *index,
                       void (*part)(void *, int64_t, int64_t))
{
    atomic_bool bad = false;
    int64_t work = (j->w.d[1] + j->y.d[1]) * j->w.d[2] + 1;
    j->at_once = AT_ONCE / work + 1, j->bad = &bad;
    dsi_parallel(j->w.d[0], PARALLEL_ELEMENTS / work + 1, part, j);
    return !bad || elements_valid(s, index, j->w.d[1]);
}

/* Where those of `outer` from `begin` on end that are done together; 0 if an
 * index of theirs is outside. */
static int64_t outers_checked(const job *j, int64_t begin, int64_t end)
{
    int64_t n = dsi_min(end - begin, j->at_once);
    if (elements_inside(view_slice(j->index, begin, n), j->w.d[1])) return begin + n;
    atomic_store(j->bad, true);
    return 0;
}

#define SCATTER_ADD(T, suffix) \
    static void scatter_add_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        const dsi_view *dx = &j->w, *dy = &j->y; \
        const element_loops l = loops_of(&j->index, dy, dx); \
        const int64_t xs = dx->s[1], at = l.index[1], step = l.from[1], across = l.to[1]; \
        const bool together = inner_together(&j->index, &j->w, &j->y); \
        const bool dense = l.n[0] == 1 && at == 1 && step == 1 && xs == 1 && across == 0; \
        for (int64_t o = begin; o < end && dense; o++) { \
            const int64_t *place = (const int64_t *)j->index.p + o * j->index.s[0]; \
            const T *restrict from = (const T *)dy->p + o * dy->s[0]; \
            T *restrict to = (T *)dx->p + o * dx->s[0]; \
            for (int64_t i = 0; i < l.n[1]; i++) to[place[i]] += from[i]; \
        } \
        for (int64_t o = begin; o < end && !dense; o++) \
            for (int64_t k = 0; k < l.n[0]; k++) { \
                const int64_t *place = (const int64_t *)j->index.p + o * j->index.s[0] + \
                                       k * l.index[0]; \
                const T *restrict from = (const T *)dy->p + o * dy->s[0] + k * l.from[0]; \
                T *restrict to = (T *)dx->p + o * dx->s[0] + k * l.to[0]; \
                if (together) \
                    for (int64_t i = 0; i < l.n[1]; i++) to[*place * xs + i] += from[i]; \
                else \
                    for (int64_t i = 0; i < l.n[1]; i++) \
                        to[place[i * at] * xs + i * across] += from[i * step]; \
            } \
    }
SCATTER_ADD(float, f32)
SCATTER_ADD(double, f64)

/* v [1,C,inner] as [parts,C,inner / parts] */
static dsi_view view_parts(dsi_view v, int64_t parts)
{
    v.d[0] = parts, v.d[2] /= parts, v.s[0] = v.d[2] * v.s[2];
    return v;
}

/* Without other dimensions in front, parts of inner are what threads divide. */
static void split_inner(job *j)
{
    int64_t parts = 16;
    while (parts > 1 && (j->w.d[2] % parts || j->w.d[2] / parts < 32)) parts /= 2;
    if (j->w.d[0] != 1 || parts == 1) return;
    j->w = view_parts(j->w, parts), j->y = view_parts(j->y, parts);
    j->index = view_parts(j->index, parts);
}

/* ---- slices: one index for all of outer and inner --------------------------------------------------- */

/* dx and dy of `outer` o as matrices. */
static job slices_of(const job *j, int64_t o)
{
    job m = *j;
    dsi_view *const v[] = {&m.w, &m.y, &m.base};
    for (int u = 0; u < (m.base.p ? 3 : 2); u++) {
        v[u]->p = (char *)v[u]->p + o * v[u]->s[0] * (int64_t)ds_dtype_size(v[u]->dtype);
        for (int i = 0; i < 2; i++) v[u]->d[i] = v[u]->d[i + 1], v[u]->s[i] = v[u]->s[i + 1];
    }
    m.index.s[0] = m.index.s[1];
    return m;
}

/* Lines begin .. end-1 of dx, [outer C] of them. */
static void slices_part(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t classes = j->w.d[1], last;
    for (int64_t line = begin; line < end; line = last) {
        job m = slices_of(j, line / classes);
        last = dsi_min(end, (line / classes + 1) * classes);
        for (int64_t v = line % classes; line < last; line++, v++) scatter_row(&m, v);
    }
}

/* The index is valid, and the same in all of outer and inner. */
static ds_status slices_run(dsi_stream *s, job *j)
{
    int64_t outer = j->w.d[0], classes = j->w.d[1], inner = j->w.d[2], places = j->y.d[1];
    if (!outer || !classes) return DS_OK;
    job m = slices_of(j, 0);
    if (!sort_by_row(s, &m)) return DS_ENOMEM;
    j->first = m.first, j->named = m.named;
    dsi_parallel(outer * classes, PARALLEL_ELEMENTS / ((places / classes + 1) * inner + 1) + 1,
                 slices_part, j);
    dsi_scratch_release(s, j->first);
    return DS_OK;
}

/* ---- sums of elements ------------------------------------------------------------------------------- */

#define SUMS 4096 /* float32 sums of a line of dx that are on the stack */

/* 16-bit dx and dy, at most SUMS classes: sums of a line of dx, or of many
 * short ones that follow each other, in float32. */
static void scatter_add_half(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const dsi_view *dx = &j->w, *dy = &j->y;
    const int64_t ys = dy->s[1], at = j->index.s[1], C = dx->d[1], K = dy->d[1], I = dx->d[2];
    bool joined = I == 1 && dx->s[1] == 1 && dx->s[0] == C;
    int64_t at_once = joined ? SUMS / C : 1;
    float sum[SUMS];
    for (int64_t line = begin; line < end; line += at_once) {
        int64_t n = dsi_min(end - line, at_once), o = I == 1 ? line : line / I, i = line - o * I;
        memset(sum, 0, (size_t)(n * C) * sizeof *sum);
        for (int64_t l = 0; l < n; l++) {
            const uint16_t *from = (const uint16_t *)dy->p + (o + l) * dy->s[0] + i * dy->s[2];
            const int64_t *place = (const int64_t *)j->index.p + (o + l) * j->index.s[0] +
                                   i * j->index.s[2];
            for (int64_t k = 0; k < K; k++)
                sum[l * C + place[k * at]] += half_value(dy->dtype, from[k * ys]);
        }
        sums_store(j, o * dx->s[0] + i * dx->s[2], dx->s[1], n * C, sum);
    }
}

/* The same if a line has few places: dx is the base, or 0, and they alone are
 * rounded. */
static void scatter_add_few(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const dsi_view *dx = &j->w, *dy = &j->y;
    const int64_t xs = dx->s[1], ys = dy->s[1], at = j->index.s[1], K = dy->d[1], I = dx->d[2];
    const uint16_t *base = j->base.p;
    float sum[SUMS];
    memset(sum, 0, (size_t)dx->d[1] * sizeof *sum);
    for (int64_t line = begin; line < end; line++) {
        int64_t o = line / I, i = line % I, first = o * dx->s[0] + i * dx->s[2];
        uint16_t *to = (uint16_t *)dx->p + first;
        const uint16_t *from = (const uint16_t *)dy->p + o * dy->s[0] + i * dy->s[2];
        const int64_t *place = (const int64_t *)j->index.p + o * j->index.s[0] + i * j->index.s[2];
        for (int64_t k = 0; k < K; k++) sum[place[k * at]] += half_value(dy->dtype, from[k * ys]);
        for (int64_t k = 0; k < K; k++) {
            int64_t c = place[k * at];
            float y = sum[c];
            if (base) y = half_value(dx->dtype, base[first + c * xs]) + (float)j->alpha * y;
            to[c * xs] = half_of(dx->dtype, y);
        }
        for (int64_t k = 0; k < K; k++) sum[place[k * at]] = 0;
    }
}

/* Of items o and on of dimension 0, n of them, in float32. */
static ds_status scatter_slice(dsi_stream *s, const job *j, int64_t o, int64_t n)
{
    dsi_view w = view_slice(j->w, o, n), base = view_slice(j->base, o, n);
    dsi_view src = view_slice(j->y, o, n), index = view_slice(j->index, o, n);
    if (!base.p) IN_F32(s, 1, KERNEL(scatter_add)(s, src, index, w), &w, &src);
    IN_F32(s, 1, KERNEL(scatter_sum)(s, j->alpha, base, index, src, w), &w, &base, &src);
}

static ds_status scatter_half(dsi_stream *s, job *j)
{
    int64_t outer = j->w.d[0], classes = j->w.d[1], inner = j->w.d[2], places = j->y.d[1];
    bool few = !classes || places < classes / 4;
    if (!elements_valid(s, &j->index, classes)) return KERNEL(fill)(s, 0, j->w);
    if ((outer == 1 || j->index.s[0] == 0) && inner_together(&j->index, &j->w, &j->y))
        return slices_run(s, j);
    ds_status status = DS_OK;
    int64_t n = slice_items((classes + places) * inner); /* few copies live at a time */
    for (int64_t o = 0; classes > SUMS && !status && o < outer; o += n)
        status = scatter_slice(s, j, o, n);
    if (classes > SUMS) return status;
    if (few) status = j->base.p ? KERNEL(copy)(s, j->base, j->w) : KERNEL(fill)(s, 0, j->w);
    if (!status && classes)
        dsi_parallel(outer * inner, PARALLEL_ELEMENTS / (places + classes + 1) + 1,
                     few ? scatter_add_few : scatter_add_half, j);
    return status;
}

ds_status KERNEL(scatter_add)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx)
{
    job j = {.w = dx, .index = index, .y = dy, .skip = -1};
    if (is_half(dx.dtype)) return scatter_half(s, &j);
    if (dx.dtype != DS_F32 && dx.dtype != DS_F64) return no_dtype("scatter_add", dx.dtype);
    ds_status status = KERNEL(fill)(s, 0, dx);
    split_inner(&j);
    if (!status && elements_valid(s, &index, dx.d[1]))
        dsi_parallel(j.w.d[0], PARALLEL_ELEMENTS / (dy.d[1] * j.w.d[2] + 1) + 1,
                     dx.dtype == DS_F32 ? scatter_add_f32 : scatter_add_f64, &j);
    return status;
}

/* y = x + alpha y of n elements, y of dtype float32 or float64. */
static void add_to_base(ds_dtype dtype, double alpha, int64_t n, const void *x, void *y)
{
    if (dtype == DS_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)y)[i] = ((const float *)x)[i] + (float)alpha * ((float *)y)[i];
    else
        for (int64_t i = 0; i < n; i++)
            ((double *)y)[i] = ((const double *)x)[i] + alpha * ((double *)y)[i];
}

/* scatter_sum: a few `outer`s while they are in the first cache, together if
 * they follow each other; w and base have the same strides. */
static void scatter_sums(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const dsi_view *w = &j->w;
    bool dense = w->s[1] == w->d[2];
    int64_t lines = dense ? 1 : w->d[1], each = (dense ? w->d[1] : 1) * w->d[2];
    bool joined = dense && w->s[0] == each;
    for (int64_t o = begin, next; o < end && (next = outers_checked(j, o, end)); o = next)
        for (int64_t i = o, last; i < next; i = last) {
            last = joined ? next : i + 1;
            int64_t at = i * w->s[0] * j->size, step = w->s[1] * j->size, n = (last - i) * each;
            char *y = (char *)w->p + at;
            const char *x = (const char *)j->base.p + at;
            for (int64_t c = 0; c < lines; c++) memset(y + c * step, 0, (size_t)(n * j->size));
            (w->dtype == DS_F32 ? scatter_add_f32 : scatter_add_f64)(arg, i, last);
            for (int64_t c = 0; c < lines; c++)
                add_to_base(w->dtype, j->alpha, n, x + c * step, y + c * step);
        }
}

ds_status KERNEL(scatter_sum)(dsi_stream *s, double alpha, dsi_view x, dsi_view index, dsi_view src,
                              dsi_view y)
{
    job j = {.w = y, .index = index, .y = src, .skip = -1, .base = x, .alpha = alpha};
    j.size = (int64_t)ds_dtype_size(y.dtype);
    if (is_half(y.dtype)) return scatter_half(s, &j);
    if (y.dtype != DS_F32 && y.dtype != DS_F64) return no_dtype("scatter_sum", y.dtype);
    split_inner(&j);
    return outers_run(s, &j, &index, scatter_sums) ? DS_OK : KERNEL(fill)(s, 0, y);
}

/* ---- elements that take the place of others ------------------------------------------------------- */

/* scatter: w is y, already x, and y is src. With `back`, of scatter_dx, w is dx
 * and y is dsrc: from the last k on, so that the last takes the gradient. */
#define SCATTER(T, suffix) \
    static void scatter_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        const element_loops l = loops_of(&j->index, &j->y, &j->w); \
        const int64_t ws = j->w.s[1], at = l.index[1], step = l.from[1], across = l.to[1]; \
        const bool back = j->back, \
                   dense = at == 1 && step == 1 && ws == 1 && across == 0 && !back; \
        for (int64_t o = begin; o < end; o++) \
            for (int64_t k = 0; k < l.n[0]; k++) { \
                int64_t line = back ? l.n[0] - 1 - k : k; \
                const int64_t *place = (const int64_t *)j->index.p + o * j->index.s[0] + \
                                       line * l.index[0]; \
                T *src = (T *)j->y.p + o * j->y.s[0] + line * l.from[0]; \
                T *to = (T *)j->w.p + o * j->w.s[0] + line * l.to[0]; \
                for (int64_t i = 0; i < l.n[1] && dense; i++) to[place[i]] = src[i]; \
                for (int64_t i = 0; i < l.n[1] && !back && !dense; i++) \
                    to[place[i * at] * ws + i * across] = src[i * step]; \
                for (int64_t i = l.n[1] - 1; i >= 0 && back; i--) { \
                    T *taken = &to[place[i * at] * ws + i * across]; \
                    src[i * step] = *taken, *taken = 0; \
                } \
            } \
    }
SCATTER(uint8_t, 8)
SCATTER(uint16_t, 16)
SCATTER(uint32_t, 32)
SCATTER(uint64_t, 64)

/* Copies each `outer` of the base, and scatters it while it is in the first
 * cache. */
static void scatter_places(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t bytes = j->w.d[1] * j->w.d[2] * j->size;
    for (int64_t o = begin, next; o < end && (next = outers_checked(j, o, end)); o = next) {
        memcpy((char *)j->w.p + o * bytes, (const char *)j->base.p + o * bytes,
               (size_t)((next - o) * bytes));
        (j->size == 1   ? scatter_8
         : j->size == 2 ? scatter_16
         : j->size == 4 ? scatter_32
                        : scatter_64)(arg, o, next);
    }
}

static ds_status scatter_run(dsi_stream *s, job j)
{
    j.size = (int64_t)ds_dtype_size(j.w.dtype);
    if (outers_run(s, &j, &j.index, scatter_places)) return DS_OK;
    ds_status status = KERNEL(fill)(s, 0, j.w);
    return status || !j.back ? status : KERNEL(fill)(s, 0, j.y);
}

ds_status KERNEL(scatter)(dsi_stream *s, dsi_view x, dsi_view index, dsi_view src, dsi_view y)
{
    return scatter_run(s, (job){.w = y, .index = index, .y = src, .base = x});
}

ds_status KERNEL(scatter_dx)(dsi_stream *s, dsi_view dy, dsi_view index, dsi_view dx, dsi_view dsrc)
{
    return scatter_run(s, (job){.w = dx, .index = index, .y = dsrc, .base = dy, .back = true});
}
