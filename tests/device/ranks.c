/* tests/device/ranks.c: sums over ranks against plain loops: in place, means,
 * squares, tails.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

enum { N = 300, MOST = 5 };

static float x[MOST][N], y[MOST][N], want[N];

/* want, from x; its squares. */
static double plain(bool average, int ranks, int n)
{
    double squares = 0;
    for (int i = 0; i < n; i++) {
        want[i] = x[0][i];
        for (int r = 1; r < ranks; r++) want[i] += x[r][i];
        if (average) want[i] /= (float)ranks;
        squares += (double)want[i] * (double)want[i];
    }
    return squares;
}

static void one(const dsi_kernels *k, bool average, int ranks, int n)
{
    const void *in[MOST];
    void *out[MOST];
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < n; i++) x[r][i] = (float)sin(i * 7 + r) * (float)(r + 1);
        in[r] = x[r];
        out[r] = r ? y[r] : x[0]; /* the first is in place */
    }
    double got = 0.5, squares = plain(average, ranks, n);
    memset(y, 255, sizeof y);
    table_with(k)->sum_ranks(average, ranks, in, n, ranks, out, &got);
    CHECK_CLOSE(got - 0.5, squares, 1e-9);
    for (int r = 0; r < ranks; r++) assert_memory_equal(out[r], want, (size_t)n * sizeof *want);
    for (int r = 1; r < ranks && n < N; r++) CHECK(isnan(y[r][n])); /* nothing past the end */
}

static void sums_are_those_of_loops(void **state)
{
    (void)state;
    const int sizes[] = {0, 1, 15, 16, 63, 64, 65, 128, N};
    FOR_EACH_ISA(k)
    for (int ranks = 1; ranks <= MOST; ranks++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int average = 0; average < 2; average++) one(k, average, ranks, sizes[i]);
}

static void a_nan_is_seen_in_the_squares(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        double squares = 0;
        memset(x, 0, sizeof x);
        x[1][77] = NAN;
        const void *in[] = {x[0], x[1]};
        void *out = y[0];
        table_with(k)->sum_ranks(true, 2, in, N, 1, &out, &squares);
        CHECK(isnan(squares));
    }
}

TEST_MAIN(cmocka_unit_test(sums_are_those_of_loops), cmocka_unit_test(a_nan_is_seen_in_the_squares))
