/* base/rng.c: mt19937 and the distributions that PyTorch's CPU generator draws
 * from it.
 *
 * The same seed must give PyTorch's own numbers, bit for bit. So what looks odd
 * here is a fact about PyTorch (ATen/core/DistributionsHelper.h,
 * ATen/native/cpu/DistributionTemplates.h):
 *   - a float takes the low 24 bits of one word, a double the low 53 bits of two;
 *   - fewer than 16 normal values are drawn one by one in double precision, and the second value of
 *     each Box-Muller pair waits in the generator for the next call;
 *   - from 16 on all uniforms are drawn first, element j of 16 is paired with element j + 8, and a last
 *     incomplete block is drawn again from its start;
 *   - its kernels are compiled with fused multiply-adds: each fma() below is one of theirs.
 * Invariants: a generator belongs to one thread; the library's is the thread's
 * own. The order of draws is part of the contract: a draw more or less changes
 * all numbers after it. mt19937: Matsumoto and Nishimura, ACM TOMACS 8 (1998).
 * Normal values: Box and Muller (1958). The logarithm, sine and cosine of float
 * blocks are the polynomials of Moshier's Cephes library.
 * SPDX-License-Identifier: MIT */
#include "rng.h"

#include "mem.h"
#include "thread.h"

#include <deepspeed/types.h>

#include <math.h>
#include <string.h>

#define WORDS   624
#define OVERLAP 397

static const double two_pi = 6.283185307179586476925;

/* ---- words -------------------------------------------------------------------------------------- */

void dsi_rng_seed(dsi_rng *g, uint64_t seed)
{
    memset(g, 0, sizeof *g);
    g->seed = seed;
    g->state[0] = (uint32_t)seed; /* the high half of a seed has no effect, as in PyTorch */
    for (uint32_t i = 1; i < WORDS; i++)
        g->state[i] = 1812433253u * (g->state[i - 1] ^ (g->state[i - 1] >> 30)) + i;
    g->next = WORDS;
}

static inline uint32_t twist(uint32_t high, uint32_t low)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return y >> 1 ^ (low & 1 ? 0x9908b0dfu : 0);
}

static void next_words(dsi_rng *g)
{
    uint32_t *s = g->state;
    int i = 0;
    for (; i < WORDS - OVERLAP; i++) s[i] = s[i + OVERLAP] ^ twist(s[i], s[i + 1]);
    for (; i < WORDS - 1; i++) s[i] = s[i + OVERLAP - WORDS] ^ twist(s[i], s[i + 1]);
    s[i] = s[OVERLAP - 1] ^ twist(s[i], s[0]);
    g->next = 0;
}

uint32_t dsi_rng_u32(dsi_rng *g)
{
    if (g->next == WORDS) next_words(g);
    uint32_t y = g->state[g->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint64_t dsi_rng_u64(dsi_rng *g)
{
    uint64_t high = dsi_rng_u32(g);
    return high << 32 | dsi_rng_u32(g);
}

/* ---- integers ----------------------------------------------------------------------------------- */

int64_t dsi_rng_i64(dsi_rng *g) { return (int64_t)(dsi_rng_u64(g) & INT64_MAX); }

int64_t dsi_rng_below(dsi_rng *g, int64_t low, int64_t high)
{
    uint64_t range = (uint64_t)high - (uint64_t)low;
    if (!range) return low;
    /* One word is enough while the remainder's skew stays below 5 %. */
    uint64_t word = range >= (uint64_t)1 << 28 ? dsi_rng_u64(g) : dsi_rng_u32(g);
    return (int64_t)((uint64_t)low + word % range);
}

void dsi_rng_permutation(dsi_rng *g, int64_t *x, int64_t n)
{
    if (n < UINT32_MAX / 20) {
        for (int64_t i = 0; i < n; i++) x[i] = i;
        for (int64_t i = 0; i < n - 1; i++) {
            int64_t k = i + dsi_rng_u32(g) % (n - i), was = x[i];
            x[i] = x[k];
            x[k] = was;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) { /* the inside-out form of the same shuffle */
        int64_t k = (int64_t)(dsi_rng_u64(g) % (uint64_t)(i + 1));
        x[i] = x[k];
        x[k] = i;
    }
}

/* ---- uniform ------------------------------------------------------------------------------------ */

static inline float unit_f32(dsi_rng *g) { return (float)(dsi_rng_u32(g) & 0xffffff) * 0x1p-24f; }

static inline double unit_f64(dsi_rng *g)
{
    return (double)(dsi_rng_u64(g) & (((uint64_t)1 << 53) - 1)) * 0x1p-53;
}

void dsi_rng_uniform_f32(dsi_rng *g, float *x, int64_t n, double low, double high)
{
    float from = (float)low, width = (float)high - from;
    for (int64_t i = 0; i < n; i++) x[i] = fmaf(unit_f32(g), width, from);
}

void dsi_rng_uniform_f64(dsi_rng *g, double *x, int64_t n, double low, double high)
{
    for (int64_t i = 0; i < n; i++) x[i] = fma(unit_f64(g), high - low, low);
}

/* ---- normal ------------------------------------------------------------------------------------- */

/* One value; the other one of its pair is kept. */
static double normal(dsi_rng *g)
{
    if (g->has_normal) {
        g->has_normal = false;
        return g->normal;
    }
    double angle = two_pi * unit_f64(g);
    double radius = sqrt(-2 * log1p(-unit_f64(g)));
    g->normal = radius * sin(angle);
    g->has_normal = true;
    return radius * cos(angle);
}

/* ln x for normal x > 0: x = m 2^e with sqrt(1/2) <= m < sqrt(2), and a
 * polynomial in m - 1. */
static inline float log_f32(float x)
{
    static const float p[] = {-1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f,
                              1.4249322787e-1f,  -1.6668057665e-1f, 2.0000714765e-1f,
                              -2.4999993993e-1f, 3.3333331174e-1f};
    int exponent;
    float m = frexpf(x, &exponent), e = (float)exponent;
    if (m < 0.707106781186547524f) {
        e -= 1;
        m = m - 1 + m;
    } else {
        m -= 1;
    }
    float y = 7.0376836292e-2f, m2 = m * m;
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) y = fmaf(y, m, p[i]);
    y = fmaf(y * m, m2, e * -2.12194440e-4f); /* ln 2 in two parts: this one ... */
    y = fmaf(-m2, 0.5f, y);
    return fmaf(e, 0.693359375f, m + y); /* ... and this */
}

/* Sine and cosine of 0 <= x <= 2 pi: x less the nearest even multiple of pi/4
 * (in three parts), then the two polynomials, exchanged and negated as the
 * octant j asks. */
static inline void sincos_f32(float x, float *sine, float *cosine)
{
    int j = ((int)(x * 1.27323954473516f) + 1) & ~1;
    float k = (float)j;
    x = fmaf(k, -0.78515625f, x);
    x = fmaf(k, -2.4187564849853515625e-4f, x);
    x = fmaf(k, -3.77489497744594108e-8f, x);
    float x2 = x * x;
    float c = fmaf(2.443315711809948e-5f, x2, -1.388731625493765e-3f);
    c = fmaf(c, x2, 4.166664568298827e-2f) * x2;
    c = fmaf(c, x2, -(x2 * 0.5f)) + 1;
    float s = fmaf(-1.9515295891e-4f, x2, 8.3321608736e-3f);
    s = fmaf(s, x2, -1.6666654611e-1f) * x2;
    s = fmaf(s, x, x);
    float a = j & 2 ? c : s, b = j & 2 ? s : c;
    *sine = j & 4 ? -a : a;
    *cosine = (j + 2) & 4 ? -b : b;
}

/* 16 uniform values become 16 normal ones. */
static void normal_16_f32(float *x, float mean, float std)
{
    for (int j = 0; j < 8; j++) {
        float radius = sqrtf(-2 * log_f32(1 - x[j])), sine, cosine;
        sincos_f32((float)two_pi * x[j + 8], &sine, &cosine);
        x[j] = fmaf(radius * cosine, std, mean);
        x[j + 8] = fmaf(radius * sine, std, mean);
    }
}

static void normal_16_f64(double *x, double mean, double std)
{
    for (int j = 0; j < 8; j++) {
        double radius = sqrt(-2 * log(1 - x[j])), angle = two_pi * x[j + 8];
        x[j] = fma(radius * cos(angle), std, mean);
        x[j + 8] = fma(radius * sin(angle), std, mean);
    }
}

void dsi_rng_normal_f32(dsi_rng *g, float *x, int64_t n, double mean, double std)
{
    if (n < 16) {
        for (int64_t i = 0; i < n; i++) x[i] = (float)fma(normal(g), std, mean);
        return;
    }
    for (int64_t i = 0; i < n; i++) x[i] = unit_f32(g);
    for (int64_t i = 0; i <= n - 16; i += 16) normal_16_f32(x + i, (float)mean, (float)std);
    if (n % 16 == 0) return;
    for (int64_t i = n - 16; i < n; i++) x[i] = unit_f32(g);
    normal_16_f32(x + n - 16, (float)mean, (float)std);
}

void dsi_rng_normal_f64(dsi_rng *g, double *x, int64_t n, double mean, double std)
{
    if (n < 16) {
        for (int64_t i = 0; i < n; i++) x[i] = fma(normal(g), std, mean);
        return;
    }
    for (int64_t i = 0; i < n; i++) x[i] = unit_f64(g);
    for (int64_t i = 0; i <= n - 16; i += 16) normal_16_f64(x + i, mean, std);
    if (n % 16 == 0) return;
    for (int64_t i = n - 16; i < n; i++) x[i] = unit_f64(g);
    normal_16_f64(x + n - 16, mean, std);
}

/* ---- as bytes ----------------------------------------------------------------------------------- */

/* at::CPUGeneratorImplState, whose bytes PyTorch copies as they are in
 * memory. */
typedef struct TorchState {
    uint64_t seed;
    int32_t left, seeded; /* left: words until the next twist, and one more */
    uint64_t next;        /* word of state to be used; 0 also before the first twist */
    uint64_t state[WORDS];
    double unused_x, normal, unused_rho; /* normal: the second value of a pair, */
    int32_t has_normal;                  /* if it waits */
    float float_normal;
    bool has_float_normal; /* nothing draws one by one in float */
} TorchState;

void dsi_rng_save(const dsi_rng *g, void *bytes)
{
    dsi_rng fresh;
    dsi_rng_seed(&fresh, g->seed);
    bool unused = g->next == WORDS && !memcmp(fresh.state, g->state, sizeof fresh.state);
    TorchState t;
    memset(&t, 0, sizeof t);
    t.seed = g->seed;
    t.seeded = 1;
    t.next = unused ? 0 : (uint64_t)g->next;
    t.left = unused ? 1 : WORDS + 1 - g->next;
    for (int i = 0; i < WORDS; i++) t.state[i] = g->state[i];
    t.has_normal = g->has_normal;
    t.normal = g->has_normal ? g->normal : 0;
    memcpy(bytes, &t, sizeof t);
}

bool dsi_rng_load(dsi_rng *g, const void *bytes)
{
    TorchState t;
    memcpy(&t, bytes, sizeof t);
    if (t.seeded != 1 || t.left < 1 || t.left > WORDS || t.next > WORDS) return false;
    if (t.left > 1 && (uint64_t)t.left + t.next != WORDS + 1) return false;
    g->seed = t.seed;
    g->next = t.left == 1 ? WORDS : (int)t.next;
    for (int i = 0; i < WORDS; i++) g->state[i] = (uint32_t)t.state[i];
    g->has_normal = t.has_normal;
    g->normal = t.normal;
    return true;
}

_Static_assert(sizeof(TorchState) == DSI_RNG_STATE_BYTES, "as PyTorch's");

/* ---- weights ------------------------------------------------------------------------------------- */

int64_t dsi_rng_weights(const double *w, int64_t n, int64_t *bad)
{
    int64_t positive = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(w[i] >= 0 && isfinite(w[i]))) {
            *bad = i;
            return -1;
        }
        positive += w[i] > 0;
    }
    return positive;
}

/* A number as PyTorch holds it. */
static double held(double value, bool narrow) { return narrow ? (double)(float)value : value; }

/* The index whose share of the running sums u falls into. */
static int64_t draw_one(const double *w, const double *sums, int64_t n, double u)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sums[middle] < u)
            low = middle + 1;
        else
            high = middle;
    }
    while (low + 1 < n && w[low] == 0) low++; /* u is 0 and so is the first weight */
    while (w[low] == 0) low--;                /* rounding at the end of the last share */
    return low;
}

void dsi_rng_draw(dsi_rng *g, const double *w, int64_t n, bool narrow, int64_t *out, int64_t draws)
{
    double total = 0, u, *sums = dsi_alloc((size_t)n * sizeof *sums);
    for (int64_t i = 0; i < n; i++) sums[i] = total = held(total + w[i], narrow);
    for (int64_t i = 0; i < n; i++) sums[i] = held(sums[i] / total, narrow);
    for (int64_t d = 0; d < draws; d++) {
        dsi_rng_uniform_f64(g, &u, 1, 0, 1);
        out[d] = draw_one(w, sums, n, u);
    }
    dsi_free(sums);
}

/* w / e, e exponential (Efraimidis and Spirakis, IPL 97 (2006)). */
void dsi_rng_race(dsi_rng *g, const double *w, int64_t n, bool narrow, double *place)
{
    dsi_rng_uniform_f64(g, place, n, 0, 1);
    for (int64_t i = 0; i < n; i++)
        place[i] = w[i] > 0 ? held(w[i] / held(-log1p(-place[i]), narrow), narrow) : -1;
}

/* ---- the thread's own --------------------------------------------------------------------------- */

static _Thread_local void *mine;

dsi_rng *dsi_rng_default(void)
{
    if (!mine) dsi_rng_seed(dsi_thread_memory(&mine, sizeof(dsi_rng)), 67280421310721);
    return mine;
}
