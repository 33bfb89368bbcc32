/* comm/reduce.c: reductions over ranks: float32 by a kernel, other types in
 * blocks that fit the first cache.
 *
 * The order is that of `in` on every thread, so each run gives the same bits.
 * Conversions of 16-bit floats are the CPU's copy kernels, which know the
 * processor's instructions.
 * SPDX-License-Identifier: MIT */
#include "reduce.h"

#include "base/error.h"
#include "device/cpu/cpu.h"

#include <string.h>

#define BLOCK 1024 /* elements */

/* A NaN on any rank is a NaN for all. */
#define MAX_REAL(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN_REAL(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX(a, b)      ((a) > (b) ? (a) : (b))
#define MIN(a, b)      ((a) < (b) ? (a) : (b))

#define EACH(expr) \
    for (int64_t i = 0; i < n; i++) acc[i] = (expr)
/* wide: the type in which sums wrap around without a fault */
#define COMBINE(name, type, wide, max, min) \
    static void combine_##name(ds_redop op, int64_t n, void *to, const void *from) \
    { \
        type *restrict acc = to; \
        const type *restrict x = from; \
        if (op == DS_REDUCE_MAX) \
            EACH(max(acc[i], x[i])); \
        else if (op == DS_REDUCE_MIN) \
            EACH(min(acc[i], x[i])); \
        else \
            EACH((type)((wide)acc[i] + (wide)x[i])); \
    }

COMBINE(f32, float, float, MAX_REAL, MIN_REAL)
COMBINE(f64, double, double, MAX_REAL, MIN_REAL)
COMBINE(i64, int64_t, uint64_t, MAX, MIN)
COMBINE(i32, int32_t, uint32_t, MAX, MIN)
COMBINE(i16, int16_t, uint16_t, MAX, MIN)
COMBINE(i8, int8_t, uint8_t, MAX, MIN)
COMBINE(u8, uint8_t, uint8_t, MAX, MIN)

/* acc = acc op x, element by element. AVG sums here, and is divided at the end.
 * Bool is u8: max is any, min is all. 16-bit floats have no entry: they are
 * combined as float32. */
static void ranks_combine(ds_dtype dtype, ds_redop op, int64_t n, void *acc, const void *x)
{
    static void (*const by_dtype[])(ds_redop op, int64_t n, void *acc, const void *x) = {
        [DS_F32] = combine_f32, [DS_F64] = combine_f64, [DS_I64] = combine_i64,
        [DS_I32] = combine_i32, [DS_I16] = combine_i16, [DS_I8] = combine_i8,
        [DS_U8] = combine_u8,   [DS_BOOL] = combine_u8};
    by_dtype[dtype](op, n, acc, x);
}

/* In the dtype itself: float64, or float32 for all others. */
static void ranks_average(ds_dtype dtype, int64_t n, int ranks, void *sum)
{
    if (dtype == DS_F64) {
        double *acc = sum;
        EACH(acc[i] / ranks);
    } else {
        float *acc = sum;
        EACH(acc[i] / (float)ranks);
    }
}

static dsi_device *reduce_cpu(void)
{
    dsi_device *cpu = dsi_device_get((ds_device){DS_CPU, 0});
    DSI_ASSERT(cpu); /* the tensors are on it */
    return cpu;
}

/* By the device's copy kernel, which rounds as all other conversions do. */
static void reduce_convert(int64_t n, ds_dtype from, const void *x, ds_dtype to, void *y)
{
    dsi_device *cpu = reduce_cpu();
    dsi_view in = {.dtype = from, .n = 1, .d = {n}, .s = {1}}, out = in;
    memcpy(&in.p, &x, sizeof x); /* a view's memory is not const */
    out.p = y;
    out.dtype = to;
    ds_status status = cpu->kernels->copy(&cpu->stream, in, out);
    DSI_ASSERT(status == DS_OK);
}

#define LANES 8 /* sums that grow side by side */

#define SQUARES(name, type) \
    static double name(int64_t n, const type *x) \
    { \
        double sum[LANES] = {0}, total = 0; \
        int64_t i = 0; \
        for (; i + LANES <= n; i += LANES) \
            for (int k = 0; k < LANES; k++) sum[k] += (double)x[i + k] * (double)x[i + k]; \
        for (; i < n; i++) total += (double)x[i] * (double)x[i]; \
        for (int k = 0; k < LANES; k++) total += sum[k]; \
        return total; \
    }

SQUARES(squares_f32, float)
SQUARES(squares_f64, double)

/* The sum of squares of a block, n <= BLOCK, in double: of the rounded result,
 * which is what a gradient's norm is of. */
static double squares_of(ds_dtype dtype, int64_t n, const void *x)
{
    float wide[BLOCK];
    if (dtype == DS_F64) return squares_f64(n, x);
    /* as it was rounded: what is too large for 16 bits is inf */
    reduce_convert(n, dtype, x, DS_F32, wide);
    return squares_f32(n, wide);
}

static const void *byte_offset(const void *p, size_t bytes) { return (const char *)p + bytes; }

/* Sums of 16-bit values are taken in float32 and rounded once, so the number of
 * ranks does not add rounding errors. */
static void ranks_reduce_half(ds_dtype dtype, ds_redop op, int ranks, const void *const *in,
                              size_t at, int64_t n, void *acc)
{
    float sum[BLOCK], x[BLOCK];
    reduce_convert(n, dtype, byte_offset(in[0], at), DS_F32, sum);
    for (int r = 1; r < ranks; r++) {
        reduce_convert(n, dtype, byte_offset(in[r], at), DS_F32, x);
        combine_f32(op, n, sum, x);
    }
    if (op == DS_REDUCE_AVG) ranks_average(DS_F32, n, ranks, sum);
    reduce_convert(n, DS_F32, sum, dtype, acc);
}

/* acc = in[0] op in[1] op .., n <= BLOCK elements from byte `at` on; acc is
 * large enough for a block of any dtype. */
static void ranks_reduce_block(ds_dtype dtype, ds_redop op, int ranks, const void *const *in,
                               size_t at, int64_t n, void *acc)
{
    if (dtype == DS_F16 || dtype == DS_BF16) {
        ranks_reduce_half(dtype, op, ranks, in, at, n, acc);
        return;
    }
    memcpy(acc, byte_offset(in[0], at), (size_t)n * ds_dtype_size(dtype));
    for (int r = 1; r < ranks; r++) ranks_combine(dtype, op, n, acc, byte_offset(in[r], at));
    if (op == DS_REDUCE_AVG) ranks_average(dtype, n, ranks, acc);
}

/* One pass over memory. */
static void ranks_sum_f32(ds_redop op, int ranks, const void *const *in, int64_t n, int outs,
                          void *const *out, double *squares)
{
    dsi_cpu_table_in(reduce_cpu())
        ->sum_ranks(op == DS_REDUCE_AVG, ranks, in, n, outs, out, squares);
}

/* Block by block, in the order of ranks: the same bits for any size of piece.
 * out may be an in: a block is read from all ranks before it is written. */
void dsi_reduce_ranks(ds_dtype dtype, ds_redop op, int ranks, const void *const *in, int64_t n,
                      int outs, void *const *out, double *squares)
{
    double acc[BLOCK]; /* of any dtype */
    size_t size = ds_dtype_size(dtype);
    if (dtype == DS_F32 && (op == DS_REDUCE_SUM || op == DS_REDUCE_AVG)) {
        ranks_sum_f32(op, ranks, in, n, outs, out, squares);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK;
        ranks_reduce_block(dtype, op, ranks, in, (size_t)i * size, count, acc);
        for (int k = 0; k < outs; k++)
            memcpy((char *)out[k] + (size_t)i * size, acc, (size_t)count * size);
        if (squares) *squares += squares_of(dtype, count, acc);
    }
}
