/* device/cpu/gemm/int8.c: matrices of 8 bits, and few rows of float32 times one.
 *
 * Reading such a matrix takes a quarter of the time of float32, and memory
 * limits a product of few rows. A group of DSI_INT8_GROUP elements of a row of w
 * is converted to floats in registers, which all rows of x use; the products are
 * summed, and the sum is scaled once.
 *
 * Order of a sum: each of VF lanes sums its products of a group in order, then
 * the groups; vf_sum adds the lanes at the end. It depends on the instruction
 * set, not on the number of rows or threads.
 * SPDX-License-Identifier: MIT */
#include "int8.h"

#include "device/cpu/simd/transpose.h"

#include <math.h>
#include <string.h>

#define GROUP         DSI_INT8_GROUP
#define ROWS          4     /* of x at a time */
#define QUANTIZE_ROWS 64    /* of w at a time */
#define AHEAD         4096  /* bytes: w is one stream, and its next page comes late */
#define GRAIN         32768 /* elements of w that a helper pays for */

/* ---- quantize ---- */

typedef struct {
    const float *w;
    bool transposed;
    int64_t stride;
    dsi_int8_matrix to;
} quantize_job;

/* A group of a row: GROUP floats -> q, returns the scale. x + ROUND - ROUND is x
 * rounded to the nearest integer. NaN becomes -127; a group with an inf is 0. */
static float quantize_group(const float *x, int8_t *q)
{
    const float round = 12582912; /* 1.5 2^23 */
    vf most = vf_zero();
    for (int i = 0; i < GROUP; i += VF) {
        vf v = vf_load(x + i);
        most = vf_max(vf_max(v, vf_sub(vf_zero(), v)), most);
    }
    float largest = vf_largest(most), factor = largest > 0 ? 127 / largest : 0;
    int32_t whole[GROUP];
    for (int i = 0; i < GROUP; i++) {
        float value = x[i] * factor + round - round;
        value = value > -127 ? value : -127;
        whole[i] = (int32_t)(value < 127 ? value : 127);
    }
    for (int i = 0; i < GROUP; i++) q[i] = (int8_t)whole[i];
    return factor > 0 ? largest / 127 : 0;
}

/* x = rows x cols elements of w, which has unit stride along its columns. */
static void transpose_group(const float *w, int64_t col, int64_t rows, int64_t cols,
                            float x[QUANTIZE_ROWS][GROUP])
{
    if (rows < QUANTIZE_ROWS || cols < GROUP) {
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = 0; r < rows; r++) x[r][c] = w[r + c * col];
        return;
    }
    for (int c = 0; c < GROUP; c += VF)
        for (int r = 0; r < QUANTIZE_ROWS; r += VF) {
            vf square[VF];
            UNROLL for (int i = 0; i < VF; i++) square[i] = vf_load(w + r + (c + i) * col);
            transpose_square(square);
            UNROLL for (int i = 0; i < VF; i++) vf_store(&x[r + i][c], square[i]);
        }
}

/* Blocks begin .. end-1 of QUANTIZE_ROWS rows: a group of all of them is copied
 * first. */
static void quantize_blocks(void *arg, int64_t begin, int64_t end)
{
    const quantize_job *job = arg;
    const dsi_int8_matrix *to = &job->to;
    float x[QUANTIZE_ROWS][GROUP] = {{0}};
    for (int64_t block = begin; block < end; block++)
        for (int64_t g = 0; g < to->groups; g++) {
            int64_t i = block * QUANTIZE_ROWS, j = g * GROUP;
            int64_t rows = to->n - i < QUANTIZE_ROWS ? to->n - i : QUANTIZE_ROWS;
            int64_t cols = to->k - j < GROUP ? to->k - j : GROUP;
            const float *w = job->w + (job->transposed ? i + j * job->stride : i * job->stride + j);
            if (cols < GROUP) memset(x, 0, sizeof x);
            if (job->transposed) transpose_group(w, job->stride, rows, cols, x);
            for (int64_t r = 0; r < rows; r++) {
                const float *from = w + r * job->stride;
                int64_t at = (i + r) * to->groups + g;
                bool in_place = !job->transposed && cols == GROUP;
                if (!job->transposed && !in_place) memcpy(x[r], from, (size_t)cols * sizeof *w);
                to->scale[at] = quantize_group(in_place ? from : x[r], to->q + at * GROUP);
            }
        }
}

static void int8_quantize(const float *w, bool transposed, int64_t stride,
                          const dsi_int8_matrix *to)
{
    quantize_job job = {w, transposed, stride, *to};
    int64_t each = QUANTIZE_ROWS * to->groups * GROUP;
    dsi_parallel((to->n + QUANTIZE_ROWS - 1) / QUANTIZE_ROWS, 1 + GRAIN / each, quantize_blocks,
                 &job);
}

/* ---- product ---- */

#if defined(DSI_ISA_avx512)
ALWAYS_INLINE vf load_int8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
#elif defined(DSI_ISA_avx2)
ALWAYS_INLINE vf load_int8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
#else
ALWAYS_INLINE vf load_int8(const int8_t *p) { return (vf){p[0], p[1], p[2], p[3]}; }
#endif

typedef struct {
    int64_t m;
    const float *x, *bias;
    dsi_int8_matrix w;
    float *y;
} linear_job;

/* sum[r] += scale times the products of group q with x[r xm ..] of R rows. */
ALWAYS_INLINE void add_group(const int R, const float *x, int64_t xm, const int8_t *q, float scale,
                             vf sum[ROWS])
{
    vf part[ROWS];
    __builtin_prefetch(q + AHEAD);
    UNROLL for (int r = 0; r < R; r++) part[r] = vf_zero();
    UNROLL for (int i = 0; i < GROUP; i += VF)
    {
        vf w = load_int8(q + i);
        UNROLL for (int r = 0; r < R; r++) part[r] = vf_fma(vf_load(x + r * xm + i), w, part[r]);
    }
    UNROLL for (int r = 0; r < R; r++) sum[r] = vf_fma(vf_set(scale), part[r], sum[r]);
}

/* Outputs begin .. end-1 of R rows from row `first` on. */
ALWAYS_INLINE void linear_rows(const int R, const linear_job *job, int64_t first, int64_t begin,
                               int64_t end)
{
    const dsi_int8_matrix *w = &job->w;
    const float *x = job->x + first * w->k;
    int64_t whole = w->k / GROUP, rest = w->k - whole * GROUP;
    float last[ROWS][GROUP] = {{0}}; /* the group at the end, where x has not all of it */
    for (int r = 0; r < R && rest; r++)
        memcpy(last[r], x + r * w->k + whole * GROUP, (size_t)rest * sizeof *x);
    for (int64_t j = begin; j < end; j++) {
        const int8_t *q = w->q + j * w->groups * GROUP;
        const float *scale = w->scale + j * w->groups;
        vf sum[ROWS];
        UNROLL for (int r = 0; r < R; r++) sum[r] = vf_zero();
        for (int64_t g = 0; g < whole; g++)
            add_group(R, x + g * GROUP, w->k, q + g * GROUP, scale[g], sum);
        if (rest) add_group(R, last[0], GROUP, q + whole * GROUP, scale[whole], sum);
        UNROLL for (int r = 0; r < R; r++)
            job->y[(first + r) * w->n + j] = vf_sum(sum[r]) + (job->bias ? job->bias[j] : 0);
    }
}

static void linear_outputs(void *arg, int64_t begin, int64_t end)
{
    const linear_job *job = arg;
    int64_t r = 0;
    for (; r + ROWS <= job->m; r += ROWS) linear_rows(ROWS, job, r, begin, end);
    if (job->m - r == 3) linear_rows(3, job, r, begin, end);
    if (job->m - r == 2) linear_rows(2, job, r, begin, end);
    if (job->m - r == 1) linear_rows(1, job, r, begin, end);
}

static void int8_linear(int64_t m, const float *x, const dsi_int8_matrix *w, const float *bias,
                        float *y)
{
    linear_job job = {m, x, bias, *w, y};
    dsi_parallel(w->n, 1 + GRAIN / (w->groups * GROUP), linear_outputs, &job);
}

extern const dsi_cpu_int8 KERNEL(dsi_cpu_int8);
const dsi_cpu_int8 KERNEL(dsi_cpu_int8) = {int8_quantize, int8_linear};
