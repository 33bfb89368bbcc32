/* device/cpu/pointwise/lanes.h: log, tanh, erf, gelu and sigmoid of AVX-512's
 * vectors, by tables. The number of instructions limits such a loop: log has
 * 13, the others 18 to 21.
 *
 * Errors over all floats are at most 1.3 units in the last place for log and
 * sigmoid, 1.0 for tanh, 1.9 for erf and 1.2 for gelu, but where said. NaN
 * stays NaN, infinities and denormals are right. Of formulas.h alone.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/vmath.h"
#include "pieces.h"

/* x = 2^k m, m in [0.75, 1.5): log x = k log 2 + log c + log(1 + r), where 1 +
 * r is m / c, of 16 c; where m < 1, k is 1 less and log 2 + log c is in the
 * table. The pieces beside 1 have c = 1, where r is exact; each other 1 / c is
 * a float near its piece's middle whose log c is nearly one. 0, infinity and
 * numbers below 0 come right by k and m. */
ALWAYS_INLINE vf log_lanes(vf x)
{
    vf m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan), k = _mm512_getexp_ps(x);
    __m512i piece = _mm512_srli_epi32(_mm512_castps_si512(m), 19); /* of it 4 bits count */
    vf r = _mm512_fmsub_ps(m, _mm512_permutexvar_ps(piece, vf_load(log_inverses)), vf_set(1));
    k = vf_fma(k, vf_set(0.693147181f), _mm512_permutexvar_ps(piece, vf_load(log_logs)));
    vf p = vf_fma(r, vf_set(0.2248692536f), vf_set(-0.2524776046f));
    p = vf_fma(p, r, vf_set(0.3333255378f));
    p = vf_fma(p, r, vf_set(-0.4999979674f));
    return vf_add(k, vf_fma(p, vf_mul(r, r), r));
}

/* The polynomial of a's piece; of `piece` 5 bits count. */
ALWAYS_INLINE vf of_pieces(const float *table, __m512i piece, vf a)
{
    vf at[7];
    UNROLL for (int i = 0; i < 7; i++) at[i] = _mm512_permutex2var_ps(
        vf_load(table + 32 * i), piece, vf_load(table + 32 * i + 16));
    a = vf_sub(a, at[0]);
    UNROLL for (int i = 5; i > 0; i--) at[i] = vf_fma(at[i + 1], a, at[i]);
    return at[1];
}

/* An odd function by pieces of quarters of an octave; least is in the one
 * around 0. */
ALWAYS_INLINE vf odd_lanes(const float *table, float least, float most, vf x)
{
    const __m512i sign = _mm512_set1_epi32((int)0x80000000);
    vf a = _mm512_min_ps(vf_set(most), _mm512_abs_ps(x)); /* a NaN passes */
    __m512i bits = _mm512_castps_si512(_mm512_max_ps(vf_set(least), a));
    vf y = of_pieces(table, _mm512_srli_epi32(bits, 21), a);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_castps_si512(y), _mm512_castps_si512(x), sign, 0xd8)); /* bits of x where sign has */
}

ALWAYS_INLINE vf tanh_lanes(vf x) { return odd_lanes(tanh_pieces, 0x1.cp-5f, 9.1f, x); }
ALWAYS_INLINE vf erf_lanes(vf x) { return odd_lanes(erf_pieces, 0x1.cp-6f, 3.99f, x); }

/* 2^x for x <= 0, off by 2.6e-6 of itself; 0 where it would be denormal: those
 * are slow */
ALWAYS_INLINE vf power_below_lanes(vf x)
{
    static const float power[] = {0.05201146078f, 0.2414427568f, 0.6930038345f, 1.000002593f};
    vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_set(0.01353416785f);
    UNROLL for (int i = 0; i < 4; i++) p = vf_fma(p, r, vf_set(power[i]));
    __mmask16 normal = _mm512_cmp_ps_mask(x, vf_set(-126), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(normal, p, x); /* p 2^floor(x) */
}

/* x normal(x) = max(x, 0) - |x| normal(-|x|), whose second term has pieces.
 * Below -5.48, where it is less than 1.2e-7, the logarithm of normal(x) is a
 * polynomial of degree 5, and the error 2e-5 of itself; it is 0 below -12.9. */
ALWAYS_INLINE vf gelu_lanes(vf x)
{
    static const float power[] = {0.000220408451f, -0.00544480796f, -0.6456033548f, -0.7154705619f,
                                  -1.462416034f};
    vf size = _mm512_abs_ps(x), a = _mm512_min_ps(vf_set(5.48f), size); /* a NaN passes */
    vf t = vf_fma(a, vf_fma(a, vf_set(0.5f), vf_set(3)), vf_set(0x1.8p23f));
    vf y = of_pieces(gelu_pieces, _mm512_castps_si512(t), a);
    y = vf_sub(_mm512_max_ps(vf_zero(), x), y);
    __mmask16 far = _mm512_cmp_ps_mask(x, vf_set(-5.48f), _CMP_LT_OQ);
    if (__builtin_expect(far, 0)) {
        vf p = vf_set(-3.783302025e-6f);
        UNROLL for (int i = 0; i < 5; i++) p = vf_fma(p, size, vf_set(power[i]));
        y = _mm512_mask_mul_ps(y, far, x, power_below_lanes(p));
    }
    return y;
}

/* The same for a result that is rounded to bfloat16. exp(-a^2/2) R(a) is one
 * power of two, whose exponent is -a^2 / (2 log 2) + P(a), by a polynomial of
 * degree 6; R is normal_ratio_f32's, which continues from 5 as it is there. The
 * result is off by 1.5e-5 of itself, which is 0.004 units of bfloat16's last
 * place, and by 2e-8 below -5. */
ALWAYS_INLINE vf gelu_short_lanes(vf x)
{
    static const float even[] = {0.007746014257f, 0.2617220571f, -1.000017644f};
    static const float odd[] = {-0.05260629272f, -1.150867234f};
    vf a = _mm512_abs_ps(x), s = _mm512_min_ps(vf_set(5), a), s2 = vf_mul(s, s);
    vf p = vf_set(2.945815879e-5f), q = vf_set(-0.000708782875f);
    UNROLL for (int i = 0; i < 3; i++) p = vf_fma(p, s2, vf_set(even[i]));
    UNROLL for (int i = 0; i < 2; i++) q = vf_fma(q, s2, vf_set(odd[i]));
    p = vf_fma(vf_mul(x, x), vf_set(-0.7213475204f), vf_fma(q, s, p));
    __mmask16 right = _mm512_cmp_ps_mask(x, vf_zero(), _CMP_NLT_UQ);
    vf tail = power_below_lanes(p);
    return vf_mul(x, _mm512_mask_sub_ps(tail, right, vf_set(1), tail));
}

/* exp(x) for x <= 0, as exp_f32 */
ALWAYS_INLINE vf exp_below_lanes(vf x)
{
    static const float power[] = {0.008368730039f, 0.04166838887f, 0.1666652052f, 0.4999999344f};
    const vf round = vf_set(0x1.8p23f);
    x = _mm512_max_ps(vf_set(-104), x);
    vf k = vf_sub(vf_fma(x, vf_set(1.44269504f), round), round), p = vf_set(0.001381459968f);
    vf r = _mm512_fnmadd_ps(k, vf_set(0.693359375f), x);
    r = vf_fma(k, vf_set(2.12194440e-4f), r);
    UNROLL for (int i = 0; i < 4; i++) p = vf_fma(p, r, vf_set(power[i]));
    return _mm512_scalef_ps(vf_add(vf_fma(p, vf_mul(r, r), r), vf_set(1)), k);
}

/* y = 1 / (1 + exp |x|) by pieces, or 1 - y of x >= 0; exp(x) below -17.9 */
ALWAYS_INLINE vf sigmoid_lanes(vf x)
{
    vf a = _mm512_min_ps(vf_set(17.9f), _mm512_abs_ps(x)); /* a NaN passes */
    vf t = vf_fma(a, vf_set(1.75f), vf_set(0x1.8p23f));
    vf y = of_pieces(sigmoid_pieces, _mm512_castps_si512(t), a);
    __mmask16 right = _mm512_cmp_ps_mask(x, vf_zero(), _CMP_GE_OQ);
    y = _mm512_mask_sub_ps(y, right, vf_set(1), y);
    __mmask16 far = _mm512_cmp_ps_mask(x, vf_set(-17.9f), _CMP_LT_OQ);
    if (__builtin_expect(far, 0)) y = _mm512_mask_mov_ps(y, far, exp_below_lanes(x));
    return y;
}

/* Below -87.4, where sigmoid is denormal, the error grows to 52 units, 1e-43 at
 * most. */
ALWAYS_INLINE vf silu_lanes(vf x) { return vf_mul(x, sigmoid_lanes(x)); }
