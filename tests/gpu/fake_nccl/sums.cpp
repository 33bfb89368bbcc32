/* tests/gpu/fake_nccl/sums.cpp: sums over ranks, 16-bit floats in float32: the
 * arithmetic of src/comm/reduce.c.
 * SPDX-License-Identifier: MIT */
#include "nccl.h"

#include "gpu/emulator/types.h"

#include <vector>

template <class T> static T combine(ncclRedOp_t op, T a, T b)
{
    if (op == ncclMax) return a > b ? a : b;
    if (op == ncclMin) return a < b ? a : b;
    return (T)(a + b);
}

/* Wide: the type in which sums are taken. */
template <class T, class Wide, class Load, class Store>
static void sum(ncclRedOp_t op, int ranks, int first, const char *const *in, size_t n, char *out,
                Load load, Store store)
{
    for (size_t i = 0; i < n; i++) {
        T x;
        Wide total = 0;
        for (int k = 0; k < ranks; k++) {
            memcpy(&x, in[(first + k) % ranks] + i * sizeof x, sizeof x);
            total = k ? combine<Wide>(op, total, load(x)) : load(x);
        }
        x = store(op == ncclAvg ? (Wide)(total / (Wide)ranks) : total);
        memcpy(out + i * sizeof x, &x, sizeof x);
    }
}

template <class T, class Wide = T>
static void sum_plain(ncclRedOp_t op, int ranks, int first, const char *const *in, size_t n,
                      char *out)
{
    sum<T, Wide>(
        op, ranks, first, in, n, out, [](T x) { return (Wide)x; }, [](Wide x) { return (T)x; });
}

size_t nccl_bytes(ncclDataType_t type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[type];
}

void nccl_sum(ncclDataType_t type, ncclRedOp_t op, int ranks, int first, const char *const *in,
              size_t n, char *out)
{
    switch (type) {
    case ncclInt8:
        return sum_plain<int8_t, int>(op, ranks, first, in, n, out);
    case ncclUint8:
        return sum_plain<uint8_t, int>(op, ranks, first, in, n, out);
    case ncclInt32:
        return sum_plain<int32_t, int64_t>(op, ranks, first, in, n, out);
    case ncclInt64:
        return sum_plain<int64_t>(op, ranks, first, in, n, out);
    case ncclFloat32:
        return sum_plain<float>(op, ranks, first, in, n, out);
    case ncclFloat64:
        return sum_plain<double>(op, ranks, first, in, n, out);
    case ncclFloat16:
        return sum<__half, float>(op, ranks, first, in, n, out, __half2float, __float2half_rn);
    case ncclBfloat16:
        return sum<__nv_bfloat16, float>(op, ranks, first, in, n, out, __bfloat162float,
                                         __float2bfloat16_rn);
    }
}
