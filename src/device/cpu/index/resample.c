/* device/cpu/index/resample.c: weighted sums of a few elements along dimension 1.
 *
 *     y[o,k,i] = sum over e = begin[k] .. begin[k + 1] - 1 of weight[e] x[o,index[e],i]
 *
 * With inner elements a sum is made of lines, which vectors run along. Without,
 * GROUP rows of outer are computed together, which share the lists.
 *
 * Invariants: sums are added in the order of the lists. Threads divide lines of y
 * or groups of rows, so no sum depends on them.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/strided.h"
#include "device/cpu/table.h"

#include <string.h>

#define GROUP 8

typedef struct {
    dsi_view x, y; /* [outer,C,inner], [outer,K,inner], contiguous */
    const int64_t *first, *index;
    const void *weight;
} job;

#define RESAMPLE(T, suffix) \
    /* y = w[0] x0 + w[1] x1 over n elements, or += if more */ \
    ALWAYS_INLINE void line_of_two_##suffix(int64_t n, bool more, const T *w, const T *x0, \
                                            const T *x1, T *y) \
    { \
        const T w0 = w[0], w1 = w[1]; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) y[i] = (more ? y[i] : 0) + w0 * x0[i] + w1 * x1[i]; \
    } \
    ALWAYS_INLINE void line_of_one_##suffix(int64_t n, bool more, T w, const T *x, T *y) \
    { \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) y[i] = (more ? y[i] : 0) + w * x[i]; \
    } \
    /* Lines begin .. end-1 of [outer K, inner] */ \
    static void resample_lines_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        const int64_t C = j->x.d[1], K = j->y.d[1], n = j->y.d[2], *at = j->index; \
        const T *w = j->weight; \
        for (int64_t line = begin; line < end; line++) { \
            const T *x = (const T *)j->x.p + line / K * C * n; \
            T *y = (T *)j->y.p + line * n; \
            int64_t first = j->first[line % K], last = j->first[line % K + 1], e = first; \
            for (; e + 2 <= last; e += 2) \
                line_of_two_##suffix(n, e > first, w + e, x + at[e] * n, x + at[e + 1] * n, y); \
            if (e < last) line_of_one_##suffix(n, e > first, w[e], x + at[e] * n, y); \
            if (first == last) memset(y, 0, (size_t)n * sizeof *y); \
        } \
    } \
    /* n <= GROUP rows: y [n,K] from x [n,C] */ \
    ALWAYS_INLINE void resample_rows_##suffix(const job *j, int64_t n, const T *x, T *y) \
    { \
        const int64_t C = j->x.d[1], K = j->y.d[1]; \
        const T *weight = j->weight; \
        for (int64_t k = 0; k < K; k++) { \
            T sum[GROUP] = {0}; \
            for (int64_t e = j->first[k]; e < j->first[k + 1]; e++) \
                for (int64_t r = 0; r < n; r++) sum[r] += weight[e] * x[r * C + j->index[e]]; \
            for (int64_t r = 0; r < n; r++) y[r * K + k] = sum[r]; \
        } \
    } \
    /* Groups begin .. end-1 of rows; inner is 1 */ \
    static void resample_groups_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        for (int64_t o = begin * GROUP; o < end * GROUP && o < j->y.d[0]; o += GROUP) { \
            const T *x = (const T *)j->x.p + o * j->x.d[1]; \
            T *y = (T *)j->y.p + o * j->y.d[1]; \
            if (j->y.d[0] - o >= GROUP) \
                resample_rows_##suffix(j, GROUP, x, y); \
            else \
                resample_rows_##suffix(j, j->y.d[0] - o, x, y); \
        } \
    }
RESAMPLE(float, f32)
RESAMPLE(double, f64)

ds_status KERNEL(resample)(dsi_stream *s, dsi_view x, dsi_view begin, dsi_view index,
                           dsi_view weight, dsi_view y)
{
    (void)s;
    job j = {x, y, begin.p, index.p, weight.p};
    if (x.dtype != DS_F32 && x.dtype != DS_F64) return no_dtype("resample", x.dtype);
    bool single = x.dtype == DS_F32;
    if (y.d[2] > 1)
        dsi_parallel(y.d[0] * y.d[1], PARALLEL_ELEMENTS / (y.d[2] + 1) + 1,
                     single ? resample_lines_f32 : resample_lines_f64, &j);
    else if (y.d[0] && y.d[2])
        dsi_parallel((y.d[0] + GROUP - 1) / GROUP, PARALLEL_ELEMENTS / (GROUP * y.d[1] + 1) + 1,
                     single ? resample_groups_f32 : resample_groups_f64, &j);
    return DS_OK;
}
