/* device/cpu/index/gather.c: elements named by an index, and the check of one.
 *
 *     gather   y[o,k,i] = x[o,index[o,k,i],i]       x [outer,C,inner], y [outer,K,inner]
 *
 * Elements are copied as bits, of any dtype of their size. The inner loop is
 * over the places of a line, or, where these are few, over `outer`.
 *
 * Invariant: an index is checked before it is used; a bad one sets the device's
 * fault flag (fault_set), and y is 0.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/table.h"
#include "index.h"

#include <stdatomic.h>
#include <string.h>

/* True if one of n places is not in 0 .. classes-1. Without a branch, so that
 * compilers vectorise the loop of places that follow each other. */
static bool line_outside(const int64_t *place, int64_t n, int64_t stride, uint64_t classes)
{
    uint64_t most = 0;
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            most = (uint64_t)place[i] > most ? (uint64_t)place[i] : most;
    else
        for (int64_t i = 0; i < n; i++)
            most = (uint64_t)place[i * stride] > most ? (uint64_t)place[i * stride] : most;
    return n && most >= classes;
}

/* Joins contiguous dimensions into one long line. */
bool elements_inside(dsi_view v, int64_t classes)
{
    bool outside = false;
    for (int i = 0; i < 3; i++) /* what repeats is looked at once */
        if (v.s[i] == 0 && v.d[i] > 1) v.d[i] = 1;
    if (v.d[2] == 1) v.d[2] = v.d[1], v.s[2] = v.s[1], v.d[1] = 1;
    if (v.d[1] == 1 && v.s[0] == v.d[2] * v.s[2]) v.d[2] *= v.d[0], v.d[0] = 1;
    for (int64_t o = 0; o < v.d[0]; o++)
        for (int64_t k = 0; k < v.d[1]; k++) {
            const int64_t *line = (const int64_t *)v.p + o * v.s[0] + k * v.s[1];
            outside |= line_outside(line, v.d[2], v.s[2], (uint64_t)classes);
        }
    return !outside;
}

bool elements_valid(dsi_stream *s, const dsi_view *index, int64_t classes)
{
    if (elements_inside(*index, classes)) return true;
    for (int64_t o = 0; o < index->d[0]; o++)
        for (int64_t k = 0; k < index->d[1]; k++)
            for (int64_t i = 0; i < index->d[2]; i++) {
                int64_t at = element_index(index, o, k, i);
                if (at >= 0 && at < classes) continue;
                fault_set(s, DSI_FAULT_ELEMENT, at, o, k * index->d[2] + i, classes);
                return false;
            }
    return false;
}

typedef struct {
    dsi_view x, index, y;
    size_t size;      /* bytes of an element */
    atomic_bool *bad; /* of short lines: an index is outside */
} job;

#define SHORT_LINE 8  /* most places of a short line */
#define SHORT_ROWS 64 /* outer rows of short lines that are taken together */

#define GATHER(T, suffix) \
    static void gather_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        const dsi_view *x = &j->x, *y = &j->y, *index = &j->index; \
        for (int64_t o = begin; o < end; o++) \
            for (int64_t i = 0; i < y->d[2]; i++) { \
                const T *from = (const T *)x->p + o * x->s[0] + i * x->s[2]; \
                const int64_t *place = (const int64_t *)index->p + o * index->s[0] + \
                                       i * index->s[2]; \
                T *to = (T *)y->p + o * y->s[0] + i * y->s[2]; \
                for (int64_t k = 0; k < y->d[1]; k++) \
                    to[k * y->s[1]] = from[place[k * index->s[1]] * x->s[1]]; \
            } \
    }
GATHER(uint8_t, 8)
GATHER(uint16_t, 16)
GATHER(uint32_t, 32)
GATHER(uint64_t, 64)

/* The same where lines are short and follow each other in the index and in y:
 * one loop over the places of many lines, which are checked while they are in
 * the first cache. */
#define GATHER_SHORT(T, suffix) \
    static void gather_short_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        const uint64_t classes = (uint64_t)j->x.d[1]; \
        const int64_t K = j->y.d[1], rows = dsi_min(end - begin, SHORT_ROWS); \
        int64_t line[SHORT_ROWS * SHORT_LINE] = {0}; /* where the line of a place begins */ \
        for (int64_t r = 0; r < rows; r++) \
            for (int64_t k = 0; k < K; k++) line[r * K + k] = r * j->x.s[0]; \
        for (int64_t o = begin; o < end; o += SHORT_ROWS) { \
            const int64_t n = dsi_min(end - o, SHORT_ROWS) * K; \
            const int64_t *place = (const int64_t *)j->index.p + o * K; \
            const T *x = (const T *)j->x.p + o * j->x.s[0]; \
            T *restrict y = (T *)j->y.p + o * K; \
            if (line_outside(place, n, 1, classes)) { \
                atomic_store(j->bad, true); \
                return; \
            } \
            for (int64_t e = 0; e < n; e++) y[e] = x[line[e] + place[e]]; \
        } \
    }
GATHER_SHORT(uint16_t, 16)
GATHER_SHORT(uint32_t, 32)

/* True if lines of v [outer,K,1] follow each other. */
static bool lines_follow(const dsi_view *v)
{
    return v->d[2] == 1 && (v->s[1] == 1 || v->d[1] == 1) && v->s[0] == v->d[1];
}

#define SHORT_BYTES 1024 /* beyond, memcpy is faster */
/* The lines of `outer` o, of `bytes` each. A constant number of vectors costs
 * less than memcpy, which looks at it for each line. */
ALWAYS_INLINE void copy_lines(const job *j, int64_t o, const int64_t bytes, const bool vectors)
{
    const int64_t size = (int64_t)j->size, xs = j->x.s[1] * size, ys = j->y.s[1] * size;
    const int64_t *place = (const int64_t *)j->index.p + o * j->index.s[0];
    const char *x = (const char *)j->x.p + o * j->x.s[0] * size;
    char *y = (char *)j->y.p + o * j->y.s[0] * size;
    for (int64_t k = 0; k < j->y.d[1]; k++, place += j->index.s[1], y += ys) {
        const char *from = x + *place * xs;
        if (!vectors) memcpy(y, from, (size_t)bytes);
        for (int64_t i = 0; i < bytes && vectors; i += 4 * VF)
            vf_store((float *)(y + i), vf_load((const float *)(from + i)));
    }
}

static void gather_lines(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const int64_t bytes = j->y.d[2] * (int64_t)j->size;
    for (int64_t o = begin; o < end; o++)
        if (bytes == 128)
            copy_lines(j, o, 128, true);
        else if (bytes == 256)
            copy_lines(j, o, 256, true);
        else
            copy_lines(j, o, bytes, bytes % (4 * VF) == 0 && bytes <= SHORT_BYTES);
}

ds_status KERNEL(gather)(dsi_stream *s, dsi_view x, dsi_view index, dsi_view y)
{
    atomic_bool bad = false;
    job j = {.x = x, .index = index, .y = y, .size = ds_dtype_size(x.dtype), .bad = &bad};
    bool few = y.d[1] <= SHORT_LINE && x.s[1] == 1 && lines_follow(&y) && lines_follow(&index) &&
               (j.size == 2 || j.size == 4);
    if (!few && !elements_valid(s, &index, x.d[1])) return KERNEL(fill)(s, 0, y);
    dsi_parallel(y.d[0], PARALLEL_ELEMENTS / (y.d[1] * y.d[2] + 1) + 1,
                 few                              ? j.size == 2 ? gather_short_16 : gather_short_32
                 : inner_together(&index, &x, &y) ? gather_lines
                 : j.size == 1                    ? gather_8
                 : j.size == 2                    ? gather_16
                 : j.size == 4                    ? gather_32
                                                  : gather_64,
                 &j);
    if (bad && !elements_valid(s, &index, x.d[1])) return KERNEL(fill)(s, 0, y);
    return DS_OK;
}
