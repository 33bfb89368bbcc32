/* device/cpu/conv/conv_taps_dw.c: dw of bfloat16 where vectors multiply it
 * (AVX512_BF16), without unfolding:
 *
 *     dw (r, s) [K, C] = sum over samples and pixels of dy [K] x moved by (r, s) [C]^T
 *
 * The instruction adds products of pairs. Here a pair are the same pixel and
 * channel of two samples, so a tap moves whole pairs, and one packed copy of x
 * and of dy serves all taps; those outside the image are left out. Packed
 * images are [panels of channels][H][W][N / 2][channels of a panel][2].
 *
 * Loop order: blocks of samples whose panels stay in the second cache. For each
 * panel of dy and of x: for each tap, CHUNK pairs are added to the sums of
 * K_ROWS channels after another while they are in the first cache.
 *
 * Invariants: sums are float32, in the order of blocks, rows, columns and
 * samples; blocks depend on shapes alone. Threads divide pairs of panels.
 * SPDX-License-Identifier: MIT */
#include "conv_taps.h"
#include "device/cpu/gemm/tiles.h"
#include "device/cpu/table.h"

#ifdef HAS_TILES

#define K_ROWS       8    /* channels of dy in a product */
#define PANEL        32   /* channels of a panel, at most */
#define CHUNK        128  /* pairs of pixels that are read for one product after another */
#define BLOCK_PIXELS 4096 /* of a block of samples: 256 KB a panel of pairs */
#define GRAIN_FLOPS  4e6
#define GRAIN_BYTES  65536

/* Neighbouring pairs, in a panel: their first place in x, in dy, and number. */
typedef struct Run {
    int64_t x, dy, n;
} Run;

/* An image, two samples in one. */
typedef struct Pairs {
    const uint16_t *from; /* [N][H][W] pixels, each with `pixel` elements */
    int64_t pixel, H, W, C;
    int64_t samples, panel; /* of a block; channels of a panel */
    uint16_t *to;
} Pairs;

typedef struct Gradient {
    const Unfolding *u;
    Pairs x, dy;
    float *sums; /* [K][u->length] */
} Gradient;

/* ---- packing -------------------------------------------------------------------------------------------- */

/* Rows begin .. end-1 of [panels][H]. */
static void pack_pairs(void *arg, int64_t begin, int64_t end)
{
    const Pairs *o = arg;
    const int64_t sample = o->H * o->W * o->pixel, half = o->samples / 2;
    for (int64_t i = begin; i < end; i++) {
        const uint16_t *from = o->from + i % o->H * o->W * o->pixel + i / o->H * o->panel;
        uint16_t *to = o->to + i * o->W * half * o->panel * 2;
        for (int64_t w = 0; w < o->W; w++, from += o->pixel)
            for (int64_t n = 0; n < half; n++, to += 2 * o->panel)
                for (int64_t c = 0; c < o->panel; c += 8) {
                    const uint16_t *first = from + 2 * n * sample + c;
                    __m128i a = _mm_loadu_si128((const __m128i *)first),
                            b = _mm_loadu_si128((const __m128i *)(first + sample));
                    _mm_storeu_si128((__m128i *)(to + 2 * c), _mm_unpacklo_epi16(a, b));
                    _mm_storeu_si128((__m128i *)(to + 2 * c + 8), _mm_unpackhi_epi16(a, b));
                }
    }
}

static void pack_image(Pairs *o)
{
    dsi_parallel(o->C / o->panel * o->H, 1 + GRAIN_BYTES / (o->W * o->samples * o->panel * 2),
                 pack_pairs, o);
}

/* ---- products ------------------------------------------------------------------------------------------- */

/* sums [K_ROWS][V LINES], whose rows are `line` apart, + the products of n
 * runs. width: elements of a pair of dy. */
#define ADD_RUNS(name, V) \
    USES_TILES static void name(const uint16_t *dy, int64_t width, const uint16_t *x, \
                                const Run *run, int64_t n, float *sums, int64_t line) \
    { \
        __m512 sum[K_ROWS][V]; \
        UNROLL for (int i = 0; i < K_ROWS; i++) UNROLL for (int j = 0; j < V; j++) \
            sum[i][j] = vf_load(sums + i * line + j * LINES); \
        for (; n > 0; n--, run++) { \
            const uint16_t *b = x + run->x * V * DEEP, *a = dy + run->dy * width; \
            for (int64_t left = run->n; left > 0; left--, b += V * DEEP, a += width) { \
                __m512i of_b[V]; \
                UNROLL for (int j = 0; j < V; j++) of_b[j] = _mm512_loadu_si512(b + j * DEEP); \
                UNROLL for (int i = 0; i < K_ROWS; i++) ADD_PAIR(sum[i], V, a + 2 * i, of_b); \
            } \
        } \
        UNROLL for (int i = 0; i < K_ROWS; i++) UNROLL for (int j = 0; j < V; j++) \
            vf_store(sums + i * line + j * LINES, sum[i][j]); \
    }

ADD_RUNS(add_runs, 2)
ADD_RUNS(add_runs_narrow, 1)
#undef ADD_RUNS

/* Adds n runs to the sums of a panel of dy and one of x. */
static void add_chunk(const Gradient *o, const uint16_t *dy, const uint16_t *x, const Run *run,
                      int64_t n, float *sums)
{
    for (int64_t k = 0; k < o->dy.panel && n; k += K_ROWS)
        (o->x.panel == PANEL ? add_runs : add_runs_narrow)(dy + 2 * k, 2 * o->dy.panel, x, run, n,
                                                           sums + k * o->u->length, o->u->length);
}

/* The outputs *first .. end-1 of an axis for which tap t is inside. */
static int64_t outputs_of(const Unfolding *u, int axis, int64_t t, int64_t *first)
{
    int64_t at = t * u->dilation[axis] - u->padding[axis], stride = u->stride[axis],
            size = axis ? u->W : u->H, count = axis ? u->Q : u->P;
    *first = at < 0 ? dsi_div_up(-at, stride) : 0;
    return at < size ? dsi_min(count, (size - 1 - at) / stride + 1) : 0;
}

/* Tap (r, s) of a panel of dy and one of x: chunks of runs of pairs. */
static void add_tap(const Gradient *o, int64_t r, int64_t s, const uint16_t *dy, const uint16_t *x,
                    float *sums)
{
    const Unfolding *u = o->u;
    Run run[CHUNK];
    int64_t half = o->x.samples / 2, p, q0, n = 0, left = CHUNK, end = outputs_of(u, 0, r, &p),
            q1 = outputs_of(u, 1, s, &q0);
    int64_t across = u->stride[1] == 1 ? q1 - q0 : 1; /* columns that follow each other in x */
    for (; p < end; p++)
        for (int64_t q = q0; q < q1; q += across) {
            int64_t h = p * u->stride[0] - u->padding[0] + r * u->dilation[0],
                    w = q * u->stride[1] - u->padding[1] + s * u->dilation[1];
            Run all = {(h * u->W + w) * half, (p * u->Q + q) * half, across * half};
            while (all.n > 0) {
                run[n] = all, run[n].n = dsi_min(all.n, left);
                left -= run[n].n, all.n -= run[n].n, all.x += run[n].n, all.dy += run[n].n, n++;
                if (left > 0) continue;
                add_chunk(o, dy, x, run, n, sums);
                n = 0, left = CHUNK;
            }
        }
    add_chunk(o, dy, x, run, n, sums);
}

/* Items begin .. end-1 of [panels of x][panels of dy]. */
static void add_panels(void *arg, int64_t begin, int64_t end)
{
    const Gradient *o = arg;
    const Unfolding *u = o->u;
    int64_t across = o->dy.C / o->dy.panel, half = o->x.samples / 2;
    for (int64_t item = begin; item < end; item++) {
        int64_t c = item / across * o->x.panel, k = item % across * o->dy.panel;
        const uint16_t *x = o->x.to + c * u->H * u->W * half * 2,
                       *dy = o->dy.to + k * u->P * u->Q * half * 2;
        for (int64_t t = 0; t < u->R * u->S; t++)
            add_tap(o, t / u->S, t % u->S, dy, x, o->sums + k * u->length + t * u->C + c);
    }
}

/* ---- the gradient ----------------------------------------------------------------------------------------- */

bool taps_take_dw(int64_t samples, int64_t C, int64_t K)
{
    return samples % 2 == 0 && C % LINES == 0 && K % K_ROWS == 0 && dsi_cpu_bf16() &&
           !dsi_cpu_amx();
}

static int64_t panel_of(int64_t channels)
{
    return channels % PANEL == 0 ? PANEL : channels % LINES == 0 ? LINES : K_ROWS;
}

ds_status taps_dw(dsi_stream *s, const Unfolding *u, const dsi_view *dy, int64_t c, int64_t K,
                  float *sums)
{
    int64_t most = dsi_max(2, BLOCK_PIXELS / (u->H * u->W) / 2 * 2), samples = dsi_min(most, u->N),
            of_x = u->H * u->W * u->C, of_dy = u->P * u->Q * dy->d[1];
    Gradient o = {.u = u, .sums = sums};
    o.x = (Pairs){u->x, u->C, u->H, u->W, u->C, samples, panel_of(u->C), NULL};
    o.dy = (Pairs){
        (const uint16_t *)dy->p + c, dy->d[1], u->P, u->Q, K, samples, panel_of(K), NULL};
    o.x.to = dsi_scratch(s, (size_t)(samples * (of_x + u->P * u->Q * K)) * sizeof *o.x.to);
    if (!o.x.to) return DS_ENOMEM;
    o.dy.to = o.x.to + samples * of_x;
    memset(sums, 0, (size_t)(K * u->length) * sizeof *sums);
    for (int64_t n = 0; n < u->N; n += samples) {
        o.x.samples = o.dy.samples = dsi_min(samples, u->N - n);
        pack_image(&o.x), pack_image(&o.dy);
        double flops = 2.0 * (double)(o.x.samples * u->P * u->Q * u->R * u->S) *
                       (double)(o.x.panel * o.dy.panel);
        dsi_parallel(u->C / o.x.panel * (K / o.dy.panel), 1 + (int64_t)(GRAIN_FLOPS / flops),
                     add_panels, &o);
        o.x.from += samples * of_x, o.dy.from += samples * of_dy;
    }
    dsi_scratch_release(s, o.x.to);
    return DS_OK;
}

#else

bool taps_take_dw(int64_t samples, int64_t C, int64_t K)
{
    (void)samples, (void)C, (void)K;
    return false;
}

ds_status taps_dw(dsi_stream *s, const Unfolding *u, const dsi_view *dy, int64_t c, int64_t K,
                  float *sums)
{
    (void)s, (void)u, (void)c, (void)K, (void)sums;
    return no_dtype("conv2d_dw", dy->dtype);
}

#endif
