/* device/cpu/reduce/softmax.c: softmax, its logarithm, cross entropy, over
 * dimension 1 of [outer, C, inner]. A row is the C elements of one (outer,
 * inner). Rows are processed in blocks that fit into a buffer of 4 KB in the
 * first cache; if they are not dense they are copied there. So exp, which is
 * most of the work, runs over long lines even if C is 10. A row longer than the
 * buffer passes through it in pieces twice: for its maximum with the sum of
 * exp(x - max), and for the result.
 *
 *     softmax        y = exp(x - max) / sum,     dx = y (dy - sum of dy y)
 *     log_softmax    y = x - max - log sum,      dx = dy - exp(y) sum of dy
 *     cross entropy  lse = max + log sum exp(x - max), loss = lse - x[label]
 *     nll_loss       loss = -x[label]
 *
 * Invariants: a row's sum does not depend on its block, and the loss is the sum
 * of fixed parts of rows, so no result depends on the number of threads.
 *
 * A NaN makes its row NaN; so does a row of nothing but -inf, as in PyTorch.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/simd/vmath.h"
#include "device/cpu/table.h"
#include "lines.h"

#include <float.h>

enum { MEAN, SUM, NONE }; /* ds_reduction */

#define BUFFER 1024 /* elements of a block of rows, or of a piece of a long row */
#define STEP   64   /* elements between two fetches */
#define AHEAD  4096 /* bytes: the page that the processor does not fetch by itself */
#define FEW    64   /* columns of rows that are short for vectors */
/* An lse below it has 12 bits behind the point, more than its bfloat16 x. */
#define LSE_MOST 4096
#define PARTS    64 /* of a sum over many rows; their bounds depend on the sizes alone */

typedef struct {
    void *p;
    int64_t outer, columns, inner;
    int64_t step[2], column; /* strides of outer and inner, and of the columns; elements */
    bool dense;              /* rows follow each other without gaps */
    ds_dtype dtype;
    int64_t size; /* bytes of an element */
    bool half;    /* 16-bit elements: lines are converted on their way through the buffer */
} rows;

/* v [outer, C, inner] as rows */
static rows softmax_rows_of(const dsi_view *v)
{
    return (rows){
        .p = v->p,
        .outer = v->d[0],
        .columns = v->d[1],
        .inner = v->d[2],
        .step = {v->s[0], v->s[2]},
        .column = v->s[1],
        .dense = v->d[2] == 1 && (v->s[1] == 1 || v->d[1] == 1) &&
                 (v->s[0] == v->d[1] || v->d[0] == 1),
        .dtype = v->dtype,
        .size = (int64_t)ds_dtype_size(v->dtype),
        .half = v->p && is_half(v->dtype),
    };
}

ALWAYS_INLINE int64_t row_offset(const rows *v, int64_t row)
{
    return v->inner == 1 ? row * v->step[0]
                         : row / v->inner * v->step[0] + row % v->inner * v->step[1];
}

ALWAYS_INLINE uintptr_t row_memory(const rows *v, int64_t row, int64_t c)
{
    return (uintptr_t)v->p + (uintptr_t)((row_offset(v, row) + c * v->column) * v->size);
}

ALWAYS_INLINE int64_t softmax_piece(int64_t left) { return left < BUFFER ? left : BUFFER; }

/* Offset of the element of row n I + i in a view [N, I] */
ALWAYS_INLINE int64_t entropy_place(const dsi_view *v, int64_t row)
{
    return v->d[1] == 1 ? row * v->s[0] : row / v->d[1] * v->s[0] + row % v->d[1] * v->s[1];
}

typedef struct {
    rows dy, x, y;
    bool log;
} job;

typedef struct {
    const dsi_cross_entropy *c;
    rows x, dx;
    dsi_view label, weight, loss, lse; /* loss: its gradient on the way back */
    int64_t n_rows, part_rows;
    double part[PARTS];
    double scale;      /* that the loss was divided by */
    double weight_sum; /* of all classes */
} entropy;

/* Of a gradient in parts: x, dx [N,M]. */
typedef struct {
    dsi_view x, label, lse, scale, dx;
    int64_t first;
} entropy_part;

ALWAYS_INLINE int64_t label_of(const entropy *e, int64_t row)
{
    return ((const int64_t *)e->label.p)[entropy_place(&e->label, row)];
}

#define T           float
#define NAMED(name) name##_f32
#include "softmax.inc"
#define T           double
#define NAMED(name) name##_f64
#include "softmax.inc"

typedef void body(void *arg, int64_t begin, int64_t end);

/* Runs f over n rows of k elements, on several threads where they are worth it. */
static void for_rows(int64_t n, int64_t k, body *f, void *arg)
{
    if (n > 0 && k > 0) dsi_parallel(n, PARALLEL_ELEMENTS / k + 1, f, arg);
}

/* ---- softmax -------------------------------------------------------------------------------------- */

ds_status KERNEL(softmax)(dsi_stream *s, bool log, dsi_view x, dsi_view y)
{
    (void)s;
    job j = {.x = softmax_rows_of(&x), .y = softmax_rows_of(&y), .log = log};
    bool is_long = j.x.columns > BUFFER;
    if (x.dtype > DS_BF16) return no_dtype(log ? "log_softmax" : "softmax", x.dtype);
    body *f = x.dtype == DS_F64 ? (is_long ? softmax_long_rows_f64 : softmax_rows_f64)
                                : (is_long ? softmax_long_rows_f32 : softmax_rows_f32);
    for_rows(j.x.outer * j.x.inner, j.x.columns, f, &j);
    return DS_OK;
}

ds_status KERNEL(softmax_dx)(dsi_stream *s, bool log, dsi_view dy, dsi_view y, dsi_view dx)
{
    (void)s;
    job j = {.dy = softmax_rows_of(&dy),
             .x = softmax_rows_of(&y),
             .y = softmax_rows_of(&dx),
             .log = log};
    if (y.dtype > DS_BF16) return no_dtype(log ? "log_softmax_dx" : "softmax_dx", y.dtype);
    for_rows(j.x.outer * j.x.inner, j.x.columns,
             y.dtype == DS_F64 ? softmax_dx_rows_f64 : softmax_dx_rows_f32, &j);
    return DS_OK;
}

/* ---- cross entropy -------------------------------------------------------------------------------- */

/* Checks all labels before a loss or gradient is computed: sets the fault flag,
 * and is false, if one is no class. *used = sum of the weights of those not
 * ignored. */
static bool labels_valid(dsi_stream *s, const entropy *e, double *used)
{
    *used = 0;
    for (int64_t row = 0; row < e->n_rows; row++) {
        int64_t label = label_of(e, row);
        if (label == e->c->ignore_index) continue;
        if (label < 0 || label >= e->x.columns) {
            fault_set(s, DSI_FAULT_LABEL, label, row, -1, e->x.columns);
            return false;
        }
        *used += e->weight.p ? view_value(&e->weight, label * e->weight.s[0]) : 1;
    }
    return true;
}

ds_status KERNEL(cross_entropy)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view x,
                                dsi_view label, dsi_view weight, dsi_view loss, dsi_view lse,
                                dsi_view divisor)
{
    if (weight.p && is_half(weight.dtype))
        IN_F32(s, 0, KERNEL(cross_entropy)(s, c, x, label, weight, loss, lse, divisor), &weight);
    entropy e = {.c = c,
                 .x = softmax_rows_of(&x),
                 .label = label,
                 .weight = weight,
                 .loss = loss,
                 .lse = lse};
    double used, total = 0;

    if (x.dtype > DS_BF16) return no_dtype("cross_entropy", x.dtype);
    if (e.x.columns == 0) return dsi_fail(DS_EINVAL, "cross_entropy: x has no classes");
    e.n_rows = e.x.outer * e.x.inner;
    if (!labels_valid(s, &e, &used)) return KERNEL(fill)(s, NAN, loss);
    e.scale = c->reduction == MEAN ? used : 1;

    bool small = e.n_rows * e.x.columns < LONG;
    e.part_rows = small ? e.n_rows : (e.n_rows + PARTS - 1) / PARTS;
    if (e.n_rows > 0) {
        int64_t parts = (e.n_rows + e.part_rows - 1) / e.part_rows;
        dsi_parallel(parts, PARALLEL_ELEMENTS / (e.part_rows * e.x.columns) + 1,
                     x.dtype == DS_F64 ? loss_parts_f64 : loss_parts_f32, &e);
        for (int64_t i = 0; i < parts; i++) total += e.part[i];
    }
    if (c->reduction != NONE)
        view_set_value(&loss, 0, total / e.scale); /* 0 / 0 where all are ignored */
    view_set_value(&divisor, 0, e.scale);
    return DS_OK;
}

ds_status KERNEL(cross_entropy_dx)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view dloss,
                                   dsi_view x, dsi_view label, dsi_view weight, dsi_view lse,
                                   dsi_view divisor, dsi_view dx)
{
    if (weight.p && is_half(weight.dtype))
        IN_F32(s, 0, KERNEL(cross_entropy_dx)(s, c, dloss, x, label, weight, lse, divisor, dx),
               &weight);
    entropy e = {.c = c,
                 .x = softmax_rows_of(&x),
                 .dx = softmax_rows_of(&dx),
                 .label = label,
                 .weight = weight,
                 .loss = dloss,
                 .lse = lse};

    if (x.dtype > DS_BF16) return no_dtype("cross_entropy_dx", x.dtype);
    e.n_rows = e.x.outer * e.x.inner;
    if (!labels_valid(s, &e, &e.scale)) return KERNEL(fill)(s, 0, dx);
    e.scale = view_value(&divisor, 0);
    e.weight_sum = (double)e.x.columns;
    if (weight.p) {
        e.weight_sum = 0;
        for (int64_t i = 0; i < e.x.columns; i++)
            e.weight_sum += view_value(&weight, i * weight.s[0]);
    }
    for_rows(e.x.outer * e.x.inner, e.x.columns,
             x.dtype == DS_F64 ? entropy_dx_rows_f64 : entropy_dx_rows_f32, &e);
    return DS_OK;
}

ds_status KERNEL(cross_entropy_part_dx)(dsi_stream *s, int64_t first, dsi_view x, dsi_view label,
                                        dsi_view lse, dsi_view scale, dsi_view dx)
{
    (void)s;
    entropy_part e = {x, label, lse, scale, dx, first};
    if (x.dtype != DS_F32 && x.dtype != DS_F64) return no_dtype("cross_entropy_part_dx", x.dtype);
    for_rows(x.d[0], x.d[1],
             x.dtype == DS_F64 ? entropy_part_dx_rows_f64 : entropy_part_dx_rows_f32, &e);
    return DS_OK;
}

/* ---- negative log likelihood ------------------------------------------------------------------------ */

/* The weight of row's label, which is *label; 0 if it is ignored. */
static double label_weight(const entropy *e, int64_t row, int64_t *label)
{
    *label = label_of(e, row);
    if (*label == e->c->ignore_index) return 0;
    return e->weight.p ? view_value(&e->weight, *label * e->weight.s[0]) : 1;
}

/* The same as labels_valid, but a label is the index of an element, as for
 * gather. */
static bool classes_valid(dsi_stream *s, const entropy *e)
{
    for (int64_t row = 0; row < e->n_rows; row++) {
        int64_t label = label_of(e, row);
        if (label == e->c->ignore_index || (label >= 0 && label < e->x.columns)) continue;
        fault_set(s, DSI_FAULT_ELEMENT, label, row / e->x.inner, row % e->x.inner, e->x.columns);
        return false;
    }
    return true;
}

ds_status KERNEL(nll_loss)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view x, dsi_view label,
                           dsi_view weight, dsi_view loss, dsi_view divisor)
{
    entropy e = {.c = c, .x = softmax_rows_of(&x), .label = label, .weight = weight};
    double total = 0, used = 0;
    e.n_rows = e.x.outer * e.x.inner;
    if (!classes_valid(s, &e)) return KERNEL(fill)(s, NAN, loss);
    for (int64_t row = 0; row < e.n_rows; row++) {
        int64_t at;
        double w = label_weight(&e, row, &at), value = 0;
        if (at != c->ignore_index)
            value = -w * view_value(&x, row_offset(&e.x, row) + at * e.x.column);
        total += value, used += w;
        if (c->reduction == NONE) view_set_value(&loss, entropy_place(&loss, row), value);
    }
    double scale = c->reduction == MEAN ? used : 1;
    if (c->reduction != NONE) view_set_value(&loss, 0, total / scale);
    view_set_value(&divisor, 0, scale);
    return DS_OK;
}

ds_status KERNEL(nll_loss_dx)(dsi_stream *s, const dsi_cross_entropy *c, dsi_view dloss,
                              dsi_view label, dsi_view weight, dsi_view divisor, dsi_view dx)
{
    entropy e = {.c = c, .dx = softmax_rows_of(&dx), .label = label, .weight = weight};
    double scale = view_value(&divisor, 0), g = view_value(&dloss, 0);
    ds_status status = KERNEL(fill)(s, 0, dx);
    for (int64_t row = 0; !status && row < e.dx.outer * e.dx.inner; row++) {
        int64_t at;
        double w = label_weight(&e, row, &at);
        if (at == c->ignore_index) continue;
        if (c->reduction == NONE) g = view_value(&dloss, entropy_place(&dloss, row));
        view_set_value(&dx, row_offset(&e.dx, row) + at * e.dx.column, -w * g / scale);
    }
    return status;
}
