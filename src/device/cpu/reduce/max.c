/* device/cpu/reduce/max.c: maxima over the middle dimension, and their places,
 * as torch.max(x, dim) has them: the first of equal ones, or the first NaN.
 *
 * Invariants: a result depends neither on the number of threads nor on strides.
 * SPDX-License-Identifier: MIT */
#include "max.h"

#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"

#define COLUMNS 256 /* neighbouring outputs that are compared together */
#define LANES   32  /* of a row that runs through memory: each has its own maximum so far */

typedef struct {
    dsi_view x;        /* [outer, C, inner] */
    dsi_view y, index; /* [outer, inner] */
} maxima;

#define T           float
#define NAMED(name) name##_f32
#include "max.inc"
#define T           double
#define NAMED(name) name##_f64
#include "max.inc"

/* [outer,1,inner] as [outer,inner] */
static dsi_view without_middle(dsi_view v)
{
    v.n = 2;
    v.d[1] = v.d[2], v.s[1] = v.s[2];
    return v;
}

static void max_rows_i64(void *arg, int64_t begin, int64_t end)
{
    const maxima *m = arg;
    for (int64_t row = begin; row < end; row++) {
        int64_t o = row / m->x.d[2], i = row % m->x.d[2], at = 0;
        const int64_t *x = (const int64_t *)m->x.p + o * m->x.s[0] + i * m->x.s[2];
        if (m->x.s[1] == 1) {
            int64_t max = x[0];
            for (int64_t c = 1; c < m->x.d[1]; c++) max = x[c] > max ? x[c] : max;
            while (x[at] != max) at++;
        }
        for (int64_t c = 1; c < m->x.d[1] && m->x.s[1] != 1; c++)
            if (x[c * m->x.s[1]] > x[at * m->x.s[1]]) at = c;
        ((int64_t *)m->index.p)[o * m->index.s[0] + i * m->index.s[1]] = at;
        if (m->y.p) ((int64_t *)m->y.p)[o * m->y.s[0] + i * m->y.s[1]] = x[at * m->x.s[1]];
    }
}

ds_status reduce_max(dsi_stream *s, dsi_view x, dsi_view y, dsi_view index)
{
    maxima m = {x, without_middle(y), without_middle(index)};
    int64_t n = x.d[0] * x.d[2];

    if (is_half(x.dtype)) IN_F32(s, 1, reduce_max(s, x, y, index), &y, &x);
    if (x.dtype != DS_F32 && x.dtype != DS_F64 && x.dtype != DS_I64)
        return no_dtype("max", x.dtype);
    if (n == 0) return DS_OK;
    if (x.d[1] == 0) return dsi_fail(DS_EINVAL, "max: the dimension has no elements");
    if (x.dtype == DS_I64) {
        dsi_parallel(n, PARALLEL_ELEMENTS / x.d[1] + 1, max_rows_i64, &m);
        return DS_OK;
    }
    bool f32 = x.dtype == DS_F32;
    if (x.s[2] == 1 && x.d[2] > 1 && x.d[1] < INT32_MAX)
        dsi_parallel(x.d[0] * ((x.d[2] + COLUMNS - 1) / COLUMNS),
                     PARALLEL_ELEMENTS / x.d[1] / COLUMNS + 1,
                     f32 ? max_columns_f32 : max_columns_f64, &m);
    else
        dsi_parallel(n, PARALLEL_ELEMENTS / x.d[1] + 1, f32 ? max_rows_f32 : max_rows_f64, &m);
    return DS_OK;
}
