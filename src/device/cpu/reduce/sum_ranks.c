/* device/cpu/reduce/sum_ranks.c: the sum over ranks of arrays that are all in
 * this process's memory, in one pass.
 *
 * The speed of memory limits it, so everything that needs a sum is done while
 * it is in registers: the mean, the sum of squares, and the copies to all
 * outputs.
 *
 * Invariants: an element is summed in the order of ranks. STEP elements of
 * every rank are read before any output is written, so an output may be an
 * input.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/table.h"

#define VECTORS 4
#define STEP    (VECTORS * VF)

/* Doubles of one register, and as many floats, which become doubles as they are
 * loaded. */
typedef double Wide __attribute__((__vector_size__(VF / 2 * sizeof(double))));
typedef float Narrow __attribute__((__vector_size__(VF / 2 * sizeof(float)),
                                    __aligned__(sizeof(float)), __may_alias__));

#define SUMS (2 * VECTORS)

typedef struct {
    int ranks, outs;
    const void *const *x; /* [ranks] */
    void *const *y;       /* [outs] */
    float by;             /* what sums are divided by, or multiplied, where that is the same */
    bool divides;
} job;

ALWAYS_INLINE const float *in(const job *j, int r) { return j->x[r]; }
ALWAYS_INLINE float *out(const job *j, int k) { return j->y[k]; }

ALWAYS_INLINE vf mean(const job *j, vf sum)
{
    if (j->divides) return sum / vf_set(j->by);
    return vf_mul(sum, vf_set(j->by));
}

ALWAYS_INLINE void one_step(const job *j, int64_t i, Wide *squares)
{
    vf sum[VECTORS];
    UNROLL
    for (int v = 0; v < VECTORS; v++) sum[v] = vf_load(in(j, 0) + i + v * VF);
    for (int r = 1; r < j->ranks; r++) {
        const float *x = in(j, r) + i;
        UNROLL
        for (int v = 0; v < VECTORS; v++) sum[v] = vf_add(sum[v], vf_load(x + v * VF));
    }
    UNROLL
    for (int v = 0; v < VECTORS; v++) sum[v] = mean(j, sum[v]);
    for (int k = 0; k < j->outs; k++) {
        float *y = out(j, k) + i;
        UNROLL
        for (int v = 0; v < VECTORS; v++) vf_store(y + v * VF, sum[v]);
    }
    const Narrow *y = (const Narrow *)(const void *)(out(j, 0) + i);
    if (!squares) return;
    UNROLL
    for (int v = 0; v < SUMS; v++) {
        Wide w = __builtin_convertvector(y[v], Wide);
        squares[v] += w * w;
    }
}

/* Elements i .. n-1, fewer than STEP, one by one. */
static double rest(const job *j, int64_t i, int64_t n)
{
    double squares = 0;
    for (; i < n; i++) {
        float sum = in(j, 0)[i];
        for (int r = 1; r < j->ranks; r++) sum += in(j, r)[i];
        sum = j->divides ? sum / j->by : sum * j->by;
        for (int k = 0; k < j->outs; k++) out(j, k)[i] = sum;
        squares += (double)sum * (double)sum;
    }
    return squares;
}

void KERNEL(sum_ranks)(bool average, int ranks, const void *const *x, int64_t n, int outs,
                       void *const *y, double *squares)
{
    bool exact = (ranks & (ranks - 1)) == 0; /* 1 / ranks is */
    float by = !average ? 1 : exact ? 1 / (float)ranks : (float)ranks;
    job j = {ranks, outs, x, y, by, average && !exact};
    Wide part[SUMS] = {{0}};
    int64_t i = 0;
    if (squares)
        for (; i + STEP <= n; i += STEP) one_step(&j, i, part);
    else
        for (; i + STEP <= n; i += STEP) one_step(&j, i, NULL);
    double last = rest(&j, i, n);
    if (!squares) return;
    Wide sum = ((part[0] + part[1]) + (part[2] + part[3])) +
               ((part[4] + part[5]) + (part[6] + part[7]));
    for (int k = 0; k < VF / 2; k++) last += sum[k];
    *squares += last;
}
