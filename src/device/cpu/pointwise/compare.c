/* device/cpu/pointwise/compare.c: comparisons, and a choice by a condition.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/table.h"

/* ---- comparisons: any dtype -> bool ---------------------------------------------------------------- */

#define COMPARE_LINE(name, T, suffix, load, op) \
    static void name##_line_##suffix(const void *arg, int64_t n, void *const *p) \
    { \
        const T *a = p[0], *b = p[1]; \
        uint8_t *y = p[2]; \
        (void)arg; \
        for (int64_t i = 0; i < n; i++) y[i] = load(a[i]) op load(b[i]); \
    }
#define COMPARE(name, op) \
    COMPARE_LINE(name, float, f32, , op) \
    COMPARE_LINE(name, double, f64, , op) \
    COMPARE_LINE(name, uint16_t, f16, dsi_f16_to_f32, op) \
    COMPARE_LINE(name, uint16_t, bf16, dsi_bf16_to_f32, op) \
    COMPARE_LINE(name, int64_t, i64, , op) \
    COMPARE_LINE(name, int32_t, i32, , op) \
    COMPARE_LINE(name, int16_t, i16, , op) \
    COMPARE_LINE(name, int8_t, i8, , op) \
    COMPARE_LINE(name, uint8_t, u8, , op)

COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)

#define COMPARE_LINES(name) \
    { \
        [DS_F32] = name##_line_f32, [DS_F64] = name##_line_f64, [DS_F16] = name##_line_f16, \
        [DS_BF16] = name##_line_bf16, [DS_I64] = name##_line_i64, [DS_I32] = name##_line_i32, \
        [DS_I16] = name##_line_i16, [DS_I8] = name##_line_i8, [DS_U8] = name##_line_u8, \
        [DS_BOOL] = name##_line_u8, \
    }

ds_status KERNEL(compare)(dsi_stream *s, dsi_compare_op op, dsi_view a, dsi_view b, dsi_view y)
{
    static strided_line *const lines[DSI_N_COMPARE][DS_DTYPES] = {
        [DSI_EQ] = COMPARE_LINES(eq),
        [DSI_NE] = COMPARE_LINES(ne),
        [DSI_LT] = COMPARE_LINES(lt),
        [DSI_LE] = COMPARE_LINES(le),
    };
    (void)s;
    STRIDED_RUN(lines[op][a.dtype], NULL, &a, &b, &y);
    return DS_OK;
}

/* ---- by a condition ------------------------------------------------------------------------------- */

/* Elements are copied as bits, so their size is enough. */
#define WHERE_LINE(T) \
    static void where_line_##T(const void *arg, int64_t n, void *const *p) \
    { \
        const uint8_t *c = p[0]; \
        const T *a = p[1], *b = p[2]; \
        T *y = p[3]; \
        (void)arg; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T yes = a[i], no = b[i]; /* both are read: a branch would not be vectorised */ \
            y[i] = c[i] ? yes : no; \
        } \
    }
WHERE_LINE(uint8_t)
WHERE_LINE(uint16_t)
WHERE_LINE(uint32_t)
WHERE_LINE(uint64_t)

ds_status KERNEL(where)(dsi_stream *s, dsi_view c, dsi_view a, dsi_view b, dsi_view y)
{
    size_t size = ds_dtype_size(y.dtype);
    strided_line *line = size == 1   ? where_line_uint8_t
                         : size == 2 ? where_line_uint16_t
                         : size == 4 ? where_line_uint32_t
                                     : where_line_uint64_t;
    (void)s;
    STRIDED_RUN(line, NULL, &c, &a, &b, &y);
    return DS_OK;
}
