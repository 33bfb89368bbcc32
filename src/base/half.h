/* base/half.h: float16 and bfloat16 to float and back, round to nearest even.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float dsi_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t dsi_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0; /* NaN */
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline float dsi_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff, u;
    float f;
    if (exp == 31) {
        u = sign | 0x7f800000 | man << 13;
    } else if (exp) {
        u = sign | (exp + 112) << 23 | man << 13;
    } else { /* subnormal: man 2^-24, exact */
        f = (float)man * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t dsi_f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = u >> 16 & 0x8000, abs = u & 0x7fffffff;
    if (abs > 0x7f800000) return (uint16_t)(sign | 0x7e00);  /* NaN */
    if (abs >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to infinity */
    if (abs < 0x38800000) { /* below 2^-14: adding 1/2 leaves man in the low bits, rounded */
        float g;
        memcpy(&g, &abs, sizeof g);
        g += 0.5f;
        memcpy(&u, &g, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000));
    }
    abs += 0xc8000fff + (abs >> 13 & 1); /* exponent - 112, and round */
    return (uint16_t)(sign | abs >> 13);
}

/* ---- a float32 in two halves ----
 *
 * As integers, its bits are 2^16 p + rest: p is it as a bfloat16, rounded to
 * nearest even, and rest has 16 bits and a sign. So p beside rest is all of it.
 * One number in 131,072 has no rest: a tie between two bfloat16 whose lower one
 * is even, for which rest would be 2^15. dsi_untie moves it by one unit in the
 * last place, towards 0; all others stay. A NaN stays one, of other bits. */

static inline uint32_t dsi_untie(uint32_t x) { return x - ((x & 0x1ffff) == 0x8000); }

static inline uint32_t dsi_join(uint16_t p, int16_t rest)
{
    return ((uint32_t)p << 16) + (uint32_t)(int32_t)rest;
}

/* p of an untied x; its rest is (int16_t)x. */
static inline uint16_t dsi_split(uint32_t x)
{
    return (x & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)((x + 0x8000) >> 16);
}
