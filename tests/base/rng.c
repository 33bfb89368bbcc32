/* tests/base/rng.c: mt19937's published words; what the streams of PyTorch's
 * generator must have besides their values (tests/reference/sampler.c compares
 * those).
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "check.h"

#include <pthread.h>

/* Matsumoto and Nishimura give the 10000th word of seed 5489: 4123659995 (also
 * in the C++ standard). */
static void words_are_mt19937s(void **state)
{
    (void)state;
    dsi_rng g;
    dsi_rng_seed(&g, 5489);
    uint32_t last = 0;
    for (int i = 0; i < 10000; i++) last = dsi_rng_u32(&g);
    CHECK_INT(last, 4123659995u);
}

static void seed_restarts_the_stream(void **state)
{
    (void)state;
    float a[3], b[3];
    dsi_rng g;
    dsi_rng_seed(&g, 9);
    dsi_rng_normal_f32(&g, a, 3, 0, 1); /* leaves the fourth waiting */
    CHECK(g.has_normal);
    dsi_rng_seed(&g, 9);
    CHECK(!g.has_normal);
    dsi_rng_normal_f32(&g, b, 3, 0, 1);
    assert_memory_equal(a, b, sizeof a);
    dsi_rng_seed(&g, ((uint64_t)1 << 32) + 9); /* only the low half counts */
    dsi_rng_normal_f32(&g, b, 3, 0, 1);
    assert_memory_equal(a, b, sizeof a);
}

static void ranges_are_kept(void **state)
{
    (void)state;
    dsi_rng g;
    dsi_rng_seed(&g, 3);
    static const int64_t bounds[][2] = {{0, 1},
                                        {-5, 5},
                                        {7, 8},
                                        {0, (int64_t)1 << 40},
                                        {INT64_MIN, INT64_MAX},
                                        {-((int64_t)1 << 28), 0}};
    for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++)
        for (int i = 0; i < 1000; i++) {
            int64_t x = dsi_rng_below(&g, bounds[k][0], bounds[k][1]);
            CHECK(x >= bounds[k][0] && x < bounds[k][1]);
        }
    CHECK_INT(dsi_rng_below(&g, 4, 4), 4);
    for (int i = 0; i < 1000; i++) {
        float x;
        double y;
        dsi_rng_uniform_f32(&g, &x, 1, -2, 3);
        dsi_rng_uniform_f64(&g, &y, 1, -2, 3);
        CHECK(x >= -2 && x < 3 && y >= -2 && y < 3);
        CHECK(dsi_rng_i64(&g) >= 0);
    }
}

static void permutations_hold_each_number_once(void **state)
{
    (void)state;
    enum { MOST = 1000 };
    static int64_t x[MOST];
    dsi_rng g;
    dsi_rng_seed(&g, 1);
    for (int64_t n = 0; n <= MOST; n += n < 10 ? 1 : 99) {
        int seen[MOST] = {0};
        dsi_rng_permutation(&g, x, n);
        for (int64_t i = 0; i < n; i++) seen[x[i]]++;
        for (int64_t i = 0; i < n; i++) CHECK_INT(seen[i], 1);
    }
}

static void check_moments(double sum, double squares, double n, double mean, double std)
{
    CHECK_CLOSE(sum / n, mean, 5 * std / sqrt(n));
    CHECK_CLOSE(sqrt(squares / n - sum / n * (sum / n)), std, 5 * std / sqrt(n));
}

/* All orders: below 16, whole blocks, and a block drawn twice. */
static void normal_values_have_their_moments(void **state)
{
    (void)state;
    enum { N = 100003 };
    static float x[N];
    static double y[N];
    dsi_rng g;
    dsi_rng_seed(&g, 77);
    static const int64_t blocks[] = {1, 15, 16, 31, N};
    for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
        int64_t block = blocks[k], n = N / block * block;
        double sum[2] = {0}, squares[2] = {0};
        for (int64_t i = 0; i < n; i += block) {
            dsi_rng_normal_f32(&g, x + i, block, 3, 0.5);
            dsi_rng_normal_f64(&g, y + i, block, -1, 2);
        }
        for (int64_t i = 0; i < n; i++) {
            sum[0] += x[i], squares[0] += (double)x[i] * x[i];
            sum[1] += y[i], squares[1] += y[i] * y[i];
        }
        check_moments(sum[0], squares[0], (double)n, 3, 0.5);
        check_moments(sum[1], squares[1], (double)n, -1, 2);
    }
}

/* The polynomials for blocks stay close to the C library's functions over the
 * whole range. */
static void float_blocks_are_accurate(void **state)
{
    (void)state;
    dsi_rng g, h;
    dsi_rng_seed(&g, 5);
    h = g;
    for (int i = 0; i < 2000; i++) {
        float u[16], x[16];
        dsi_rng_uniform_f32(&h, u, 16, 0, 1);
        dsi_rng_normal_f32(&g, x, 16, 0, 1);
        for (int j = 0; j < 8; j++) {
            double radius = sqrt(-2 * log1p(-(double)u[j])), angle = 6.283185307179586 * u[j + 8];
            CHECK_CLOSE(x[j], radius * cos(angle), 2e-6);
            CHECK_CLOSE(x[j + 8], radius * sin(angle), 2e-6);
        }
    }
}

static void *first_draw(void *arg)
{
    *(uint32_t *)arg = dsi_rng_u32(dsi_rng_default());
    return NULL;
}

static void each_thread_has_its_own(void **state)
{
    (void)state;
    dsi_rng g;
    dsi_rng_seed(&g, 67280421310721);
    uint32_t first = dsi_rng_u32(&g), other = 0;
    ds_seed(1);
    pthread_t thread;
    pthread_create(&thread, NULL, first_draw, &other);
    pthread_join(thread, NULL);
    CHECK_INT(other, first); /* PyTorch's default seed, whatever this thread has */
    CHECK_INT((int64_t)dsi_rng_default()->seed, 1);
    CHECK_INT(dsi_rng_u32(dsi_rng_default()), 1791095845); /* the first word of seed 1 */
}

TEST_MAIN(cmocka_unit_test(words_are_mt19937s), cmocka_unit_test(seed_restarts_the_stream),
          cmocka_unit_test(ranges_are_kept), cmocka_unit_test(permutations_hold_each_number_once),
          cmocka_unit_test(normal_values_have_their_moments),
          cmocka_unit_test(float_blocks_are_accurate), cmocka_unit_test(each_thread_has_its_own))
