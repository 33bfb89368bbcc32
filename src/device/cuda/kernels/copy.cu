/* device/cuda/kernels/copy.cu: copies between any dtypes and strides, fill and
 * arange.
 * Conversions are those of device/cpu/pointwise/copy.c.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "copy.h"

/* As on x86 in PyTorch: truncated; NaN and what does not fit gives the smallest
 * integer. */
template <class C> DEVICE long long whole_64(C x)
{
    return x >= (C)-9223372036854775808.0 && x < (C)9223372036854775808.0
               ? (long long)x
               : (long long)(-9223372036854775807 - 1);
}

template <class C> DEVICE int whole_32(C x)
{
    return x >= (C)-2147483648.0 && x < (C)2147483648.0 ? (int)x : -2147483647 - 1;
}

DEVICE long long whole_64(long long x) { return x; }
DEVICE int whole_32(long long x) { return (int)x; }

template <class C> DEVICE void store_any(void *p, int dtype, long long i, C v)
{
    switch (dtype) {
    case K_I64: ((long long *)p)[i] = whole_64(v); break;
    case K_I32: ((int *)p)[i] = whole_32(v); break;
    case K_I16: ((short *)p)[i] = (short)whole_32(v); break;
    case K_I8: ((signed char *)p)[i] = (signed char)whole_32(v); break;
    case K_U8: ((unsigned char *)p)[i] = (unsigned char)whole_64(v); break;
    case K_BOOL: ((unsigned char *)p)[i] = v != 0; break;
    default: store(p, dtype, i, v);
    }
}

/* x, y of different dtypes */
KERNEL(copy_convert, dsi_cuda_elements, 256)
{
    int from = P.dtype[0], to = P.dtype[1];
    GRID_LOOP (i, P.count) {
        long long at[2];
        places(P, i, at);
        if (from == K_F64)
            store_any(P.p[1], to, at[1], ((const double *)P.p[0])[at[0]]);
        else if (from <= K_BF16)
            store_any(P.p[1], to, at[1], load<float>(P.p[0], from, at[0]));
        else
            store_any(P.p[1], to, at[1], load_int(P.p[0], from, at[0]));
    }
}

/* of the same dtype */
KERNEL(copy_same, dsi_cuda_elements, 256)
{
    int bytes = size_of(P.dtype[1]);
    GRID_LOOP (i, P.count) {
        long long at[2];
        places(P, i, at);
        store_bits(P.p[1], bytes, at[1], load_bits(P.p[0], bytes, at[0]));
    }
}

/* A block a line, which begins anywhere; zeros where x has no elements. */
template <class T> DEVICE void pad_line(const dsi_cuda_padding &P)
{
    const T *x = (const T *)P.x + blockIdx.x * P.xs;
    T *y = (T *)P.y + blockIdx.x * P.ys;
    long long n = blockIdx.x < P.lines ? P.columns : 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < P.all_columns; i += 256) y[i] = i < n ? x[i] : (T)0;
}

KERNEL(pad_lines, dsi_cuda_padding, 256)
{
    if (P.bytes == 2)
        pad_line<unsigned short>(P);
    else
        pad_line<unsigned>(P);
}

/* y = a */
KERNEL(fill, dsi_cuda_pointwise, 256)
{
    GRID_LOOP (i, P.e.count) {
        long long at[1];
        places(P.e, i, at);
        store_any(P.e.p[0], P.e.dtype[0], at[0], P.a);
    }
}

/* y[i] = a + i b, of one dimension; rounded as on the host */
KERNEL(arange, dsi_cuda_pointwise, 256)
{
    GRID_LOOP (i, P.e.count) {
        long long at[1];
        places(P.e, i, at);
        store_any(P.e.p[0], P.e.dtype[0], at[0], __dadd_rn(P.a, __dmul_rn((double)i, P.b)));
    }
}
