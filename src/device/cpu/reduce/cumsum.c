/* device/cpu/reduce/cumsum.c: running sums along dimension 1 of [outer, C, inner].
 *
 * Sums are in double (of 16 bits in float, of int64 modulo 2^64), and each is
 * rounded when it is stored, as in PyTorch. Threads divide `outer`.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"

typedef struct {
    dsi_view x, y; /* [outer, C, inner] */
    bool reverse;
} running;

/* Rows begin .. end-1 of outer. */
#define CUMSUM(T, Total, suffix) \
    static void cumsum_##suffix(void *arg, int64_t begin, int64_t end) \
    { \
        const running *r = arg; \
        const dsi_view *x = &r->x, *y = &r->y; \
        for (int64_t o = begin; o < end; o++) \
            for (int64_t i = 0; i < x->d[2]; i++) { \
                const T *from = (const T *)x->p + o * x->s[0] + i * x->s[2]; \
                T *to = (T *)y->p + o * y->s[0] + i * y->s[2]; \
                Total total = 0; \
                for (int64_t k = 0; k < x->d[1]; k++) { \
                    int64_t c = r->reverse ? x->d[1] - 1 - k : k; \
                    total += (Total)from[c * x->s[1]]; \
                    to[c * y->s[1]] = (T)total; \
                } \
            } \
    }
CUMSUM(float, double, f32)
CUMSUM(double, double, f64)
CUMSUM(int64_t, uint64_t, i64)

ds_status KERNEL(cumsum)(dsi_stream *s, bool reverse, dsi_view x, dsi_view y)
{
    running r = {x, y, reverse};
    if (is_half(y.dtype)) IN_F32(s, 1, KERNEL(cumsum)(s, reverse, x, y), &y, &x);
    if (x.dtype != DS_F32 && x.dtype != DS_F64 && x.dtype != DS_I64)
        return no_dtype("cumsum", x.dtype);
    dsi_parallel(x.d[0], PARALLEL_ELEMENTS / (x.d[1] * x.d[2] + 1) + 1,
                 x.dtype == DS_F32   ? cumsum_f32
                 : x.dtype == DS_F64 ? cumsum_f64
                                     : cumsum_i64,
                 &r);
    return DS_OK;
}
