/* device/cuda/kernels/vector.cuh: 16 bytes of memory at a time, as floats: 4 of
 * float32, 8 of 16 bits. Addresses are multiples of 16.
 * SPDX-License-Identifier: MIT */
#pragma once

template <class T> struct vector_of {
    enum { N = 16 / sizeof(T) };
};

template <class T> DEVICE void vector_unpack(float (&to)[vector_of<T>::N], const uint4 &from);
template <class T> DEVICE uint4 vector_pack(const float (&from)[vector_of<T>::N]);

template <>
__device__ __forceinline__ void vector_unpack<float>(float (&to)[4], const uint4 &from)
{
    to[0] = __uint_as_float(from.x), to[1] = __uint_as_float(from.y);
    to[2] = __uint_as_float(from.z), to[3] = __uint_as_float(from.w);
}
template <> __device__ __forceinline__ uint4 vector_pack<float>(const float (&from)[4])
{
    return make_uint4(__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]),
                      __float_as_uint(from[3]));
}

DEVICE float half_of(const __nv_bfloat16 *, unsigned bits) { return __uint_as_float(bits << 16); }
DEVICE float half_of(const __half *, unsigned bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}
/* Of both at once: one instruction, where one a number is four times slower. */
DEVICE unsigned pair_bits(const __nv_bfloat16 *, float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    unsigned bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
DEVICE unsigned pair_bits(const __half *, float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    unsigned bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* Two numbers of 16 bits in a word, the first one low. */
template <class T> DEVICE void pair_unpack(float *to, unsigned from)
{
    const T *type = nullptr;
    to[0] = half_of(type, from & 0xffffu), to[1] = half_of(type, from >> 16);
}
template <class T> DEVICE unsigned pair_pack(float low, float high)
{
    const T *type = nullptr;
    return pair_bits(type, low, high);
}

template <class T> DEVICE void vector_unpack(float (&to)[vector_of<T>::N], const uint4 &from)
{
    pair_unpack<T>(to, from.x), pair_unpack<T>(to + 2, from.y);
    pair_unpack<T>(to + 4, from.z), pair_unpack<T>(to + 6, from.w);
}
template <class T> DEVICE uint4 vector_pack(const float (&from)[vector_of<T>::N])
{
    return make_uint4(pair_pack<T>(from[0], from[1]), pair_pack<T>(from[2], from[3]),
                      pair_pack<T>(from[4], from[5]), pair_pack<T>(from[6], from[7]));
}

/* The vector from element i on, a multiple of N. */
template <class T>
DEVICE void vector_load(float (&to)[vector_of<T>::N], const void *p, long long i)
{
    vector_unpack<T>(to, *(const uint4 *)((const T *)p + i));
}
template <class T>
DEVICE void vector_store(void *p, long long i, const float (&from)[vector_of<T>::N])
{
    *(uint4 *)((T *)p + i) = vector_pack<T>(from);
}

/* Elements i .. i + 3 of floats of at most 32 bits, i a multiple of 4; addresses of
 * the first are multiples of 4 elements. */
DEVICE void quad_load(float (&to)[4], const void *p, int dtype, long long i)
{
    if (dtype == K_F32) {
        vector_load<float>(to, p, i);
        return;
    }
    uint2 bits = ((const uint2 *)p)[i / 4];
    if (dtype == K_BF16)
        pair_unpack<__nv_bfloat16>(to, bits.x), pair_unpack<__nv_bfloat16>(to + 2, bits.y);
    else
        pair_unpack<__half>(to, bits.x), pair_unpack<__half>(to + 2, bits.y);
}

DEVICE void quad_store(void *p, int dtype, long long i, const float (&v)[4])
{
    if (dtype == K_F32)
        vector_store<float>(p, i, v);
    else if (dtype == K_BF16)
        ((uint2 *)p)[i / 4] = make_uint2(pair_pack<__nv_bfloat16>(v[0], v[1]),
                                         pair_pack<__nv_bfloat16>(v[2], v[3]));
    else
        ((uint2 *)p)[i / 4] = make_uint2(pair_pack<__half>(v[0], v[1]),
                                         pair_pack<__half>(v[2], v[3]));
}
