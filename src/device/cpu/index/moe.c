/* device/cpu/index/moe.c: tokens to slots of experts and back.
 *
 *     dispatch     y[slot[s,j],:] = w[s,j] x[s,:]       (w absent: 1)
 *     combine      y[s,:] = sum over j of w[s,j] x[slot[s,j],:]
 *     combine_dw   dw[s,j] = dy[s,:] . x[slot[s,j],:]
 *
 * s counts tokens, j the k experts of a token; a slot is a row of the experts'
 * input. slot < 0: the token was dropped by that expert.
 *
 * Invariants: ops/moe.c has checked that no slot occurs twice, so tokens are
 * independent of each other, and threads divide them. A token's sum is in the
 * order of j, so it does not depend on the threads.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"

#include <string.h>

typedef struct {
    /* x, y [rows,D], unit stride along D; slot int64 [S,k]; w [S,k] or absent */
    dsi_view x, slot, w, y;
    int64_t size; /* bytes of an element */
} job;

/* The slot of token s at its expert k; below 0: dropped. */
ALWAYS_INLINE int64_t slot_of(const job *j, int64_t s, int64_t k)
{
    return ((const int64_t *)j->slot.p)[s * j->slot.s[0] + k * j->slot.s[1]];
}

/* Rows of D elements, each with k slots, from which another thread pays. */
static int64_t rows_each(int64_t d, int64_t k) { return PARALLEL_ELEMENTS / (d * k + 1) + 1; }

/* ---- dispatch -------------------------------------------------------------------------------------- */

/* Tokens begin .. end-1, without weights: rows are copied as bits. */
static void dispatch_copy_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    size_t bytes = (size_t)(j->x.d[1] * j->size);
    for (int64_t s = begin; s < end; s++)
        for (int64_t k = 0; k < j->slot.d[1]; k++)
            if (slot_of(j, s, k) >= 0)
                memcpy((char *)j->y.p + slot_of(j, s, k) * j->y.s[0] * j->size,
                       (const char *)j->x.p + s * j->x.s[0] * j->size, bytes);
}

#define SCALE_ROWS(T, suffix) \
    static void scale_rows_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        for (int64_t s = begin; s < end; s++) \
            for (int64_t k = 0; k < j->slot.d[1]; k++) { \
                int64_t at = slot_of(j, s, k), n = j->x.d[1]; \
                if (at < 0) continue; \
                T w = ((const T *)j->w.p)[s * j->w.s[0] + k * j->w.s[1]]; \
                const T *restrict x = (const T *)j->x.p + s * j->x.s[0]; \
                T *restrict y = (T *)j->y.p + at * j->y.s[0]; \
                for (int64_t c = 0; c < n; c++) y[c] = w * x[c]; \
            } \
    }
SCALE_ROWS(float, f32)
SCALE_ROWS(double, f64)

/* True if some slot has no token; then y is filled with zeros first. */
static bool has_free_slots(const job *j)
{
    int64_t taken = 0;
    for (int64_t s = 0; s < j->slot.d[0]; s++)
        for (int64_t k = 0; k < j->slot.d[1]; k++) taken += slot_of(j, s, k) >= 0;
    return taken < j->y.d[0];
}

ds_status KERNEL(dispatch)(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y)
{
    if (w.p && is_half(x.dtype)) IN_F32(s, 1, KERNEL(dispatch)(s, x, slot, w, y), &y, &x, &w);
    if (w.p && x.dtype != DS_F32 && x.dtype != DS_F64) return no_dtype("dispatch", x.dtype);
    job j = {.x = x, .slot = slot, .w = w, .y = y, .size = (int64_t)ds_dtype_size(x.dtype)};
    ds_status status = has_free_slots(&j) ? KERNEL(fill)(s, 0, y) : DS_OK;
    if (!status)
        dsi_parallel(x.d[0], rows_each(x.d[1], slot.d[1]),
                     !w.p                ? dispatch_copy_rows
                     : x.dtype == DS_F32 ? scale_rows_f32
                                         : scale_rows_f64,
                     &j);
    return status;
}

/* ---- combine --------------------------------------------------------------------------------------- */

/* The first slot sets y, the others are added. A token without slots becomes 0. */
#define COMBINE(T, suffix) \
    static void combine_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        for (int64_t s = begin; s < end; s++) { \
            T *restrict y = (T *)j->y.p + s * j->y.s[0]; \
            int64_t n = j->y.d[1]; \
            bool set = false; \
            for (int64_t k = 0; k < j->slot.d[1]; k++) { \
                int64_t at = slot_of(j, s, k); \
                if (at < 0) continue; \
                T w = j->w.p ? ((const T *)j->w.p)[s * j->w.s[0] + k * j->w.s[1]] : 1; \
                const T *restrict x = (const T *)j->x.p + at * j->x.s[0]; \
                if (set) \
                    for (int64_t c = 0; c < n; c++) y[c] += w * x[c]; \
                else \
                    for (int64_t c = 0; c < n; c++) y[c] = w * x[c]; \
                set = true; \
            } \
            if (!set) memset(y, 0, (size_t)n * sizeof *y); \
        } \
    }
COMBINE(float, f32)
COMBINE(double, f64)

/* The same of 16-bit rows: the sum is rounded once. */
static void combine_half(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t s = begin; s < end; s++)
        for (int64_t c = 0, n; c < j->y.d[1]; c += n) {
            float sum[HALF_PIECE] = {0}, x[HALF_PIECE];
            n = j->y.d[1] - c < HALF_PIECE ? j->y.d[1] - c : HALF_PIECE;
            for (int64_t k = 0; k < j->slot.d[1]; k++) {
                int64_t at = slot_of(j, s, k);
                if (at < 0) continue;
                float w = j->w.p ? (float)view_value(&j->w, s * j->w.s[0] + k * j->w.s[1]) : 1;
                half_to_floats(j->x.dtype, (const uint16_t *)j->x.p + at * j->x.s[0] + c, x, n);
                for (int64_t i = 0; i < n; i++) sum[i] += w * x[i];
            }
            floats_to_half(j->y.dtype, sum, (uint16_t *)j->y.p + s * j->y.s[0] + c, n);
        }
}

ds_status KERNEL(combine)(dsi_stream *s, dsi_view x, dsi_view slot, dsi_view w, dsi_view y)
{
    (void)s;
    if (x.dtype > DS_BF16) return no_dtype("combine", x.dtype);
    job j = {.x = x, .slot = slot, .w = w, .y = y};
    dsi_parallel(y.d[0], rows_each(y.d[1], slot.d[1]),
                 x.dtype == DS_F32   ? combine_f32
                 : x.dtype == DS_F64 ? combine_f64
                                     : combine_half,
                 &j);
    return DS_OK;
}

/* ---- the gradient of weights -------------------------------------------------------------------------- */

ALWAYS_INLINE float dot_f32(int64_t n, const float *a, const float *b)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t c = 0;
    for (; c + 4 * VF <= n; c += 4 * VF)
        UNROLL for (int i = 0; i < 4; i++)
            sum[i] = vf_fma(vf_load(a + c + i * VF), vf_load(b + c + i * VF), sum[i]);
    float total = vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
    for (; c < n; c++) total += a[c] * b[c];
    return total;
}

ALWAYS_INLINE double dot_f64(int64_t n, const double *a, const double *b)
{
    double total = 0;
    for (int64_t c = 0; c < n; c++) total += a[c] * b[c];
    return total;
}

#define COMBINE_DW(T, suffix) \
    static void combine_dw_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const job *j = arg; \
        for (int64_t s = begin; s < end; s++) \
            for (int64_t k = 0; k < j->slot.d[1]; k++) { \
                int64_t at = slot_of(j, s, k); \
                const T *dy = (const T *)j->y.p + s * j->y.s[0]; \
                ((T *)j->w.p)[s * j->w.s[0] + k * j->w.s[1]] = \
                    at < 0 ? 0 : dot_##suffix(j->y.d[1], dy, (const T *)j->x.p + at * j->x.s[0]); \
            } \
    }
COMBINE_DW(float, f32)
COMBINE_DW(double, f64)

/* Of 16-bit rows; dw is float32. */
static void combine_dw_half(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t d = j->y.d[1];
    for (int64_t s = begin; s < end; s++)
        for (int64_t k = 0; k < j->slot.d[1]; k++) {
            int64_t at = slot_of(j, s, k);
            float dy[HALF_PIECE], x[HALF_PIECE], total = 0;
            for (int64_t c = 0, n; at >= 0 && c < d; c += n) {
                n = d - c < HALF_PIECE ? d - c : HALF_PIECE;
                half_to_floats(j->y.dtype, (const uint16_t *)j->y.p + s * j->y.s[0] + c, dy, n);
                half_to_floats(j->x.dtype, (const uint16_t *)j->x.p + at * j->x.s[0] + c, x, n);
                total += dot_f32(n, dy, x);
            }
            ((float *)j->w.p)[s * j->w.s[0] + k * j->w.s[1]] = total;
        }
}

ds_status KERNEL(combine_dw)(dsi_stream *s, dsi_view dy, dsi_view x, dsi_view slot, dsi_view dw)
{
    (void)s;
    if (x.dtype > DS_BF16) return no_dtype("combine_dw", x.dtype);
    job j = {.x = x, .slot = slot, .w = dw, .y = dy};
    dsi_parallel(dy.d[0], rows_each(dy.d[1], slot.d[1]),
                 x.dtype == DS_F32   ? combine_dw_f32
                 : x.dtype == DS_F64 ? combine_dw_f64
                                     : combine_dw_half,
                 &j);
    return DS_OK;
}
