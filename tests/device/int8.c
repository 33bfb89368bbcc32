/* tests/device/int8.c: matrices of 8 bits, and products with them, on every
 * instruction set.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/gemm/int8.h"
#include "kernels.h"

#include <math.h>

#define FOR_EACH_INT8(k) \
    for (int isa_ = first_isa(); isa_ < 3; isa_++) \
        for (const dsi_cpu_int8 *k = int8_of(isa_); k; k = NULL)

static const dsi_cpu_int8 *int8_of(int isa)
{
    static const char *const names[] = {"generic", "avx2", "avx512"};
    return dsi_cpu_int8_of(names[isa]);
}

/* Memory of each is its own, so that sanitizers see its ends. */
static dsi_int8_matrix matrix_new(int64_t n, int64_t k)
{
    dsi_int8_matrix w = {.n = n, .k = k, .groups = (k + DSI_INT8_GROUP - 1) / DSI_INT8_GROUP};
    w.q = calloc((size_t)(n * w.groups), DSI_INT8_GROUP);
    w.scale = calloc((size_t)(n * w.groups), sizeof *w.scale);
    return w;
}

static void matrix_free(dsi_int8_matrix *w) { free(w->q), free(w->scale); }

static double element(const dsi_int8_matrix *w, int64_t i, int64_t j)
{
    int64_t group = i * w->groups + j / DSI_INT8_GROUP;
    return (double)w->scale[group] * w->q[group * DSI_INT8_GROUP + j % DSI_INT8_GROUP];
}

static float *values(int64_t n, uint32_t seed)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(seed >> 8) / 8388608 - 1;
    }
    return x;
}

static const int64_t sizes[][2] = {{1, 1}, {3, 64}, {70, 130}, {64, 192}, {128, 63}, {5, 100}};

/* Each element is within half a step of what it was, from rows and columns. */
static void quantizes_to_the_nearest(void **state)
{
    (void)state;
    FOR_EACH_INT8(k)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int transposed = 0; transposed < 2; transposed++) {
            int64_t n = sizes[s][0], depth = sizes[s][1];
            dsi_int8_matrix w = matrix_new(n, depth);
            float *x = values(n * depth, 7);
            k->quantize(x, transposed, transposed ? n : depth, &w);
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < w.groups * DSI_INT8_GROUP; j++) {
                    double want = j < depth ? (double)x[transposed ? j * n + i : i * depth + j] : 0;
                    double step = (double)w.scale[i * w.groups + j / DSI_INT8_GROUP];
                    CHECK(fabs(element(&w, i, j) - want) <= 0.5001 * step);
                    CHECK(step > 0 && step <= 1.0 / 127);
                }
            free(x), matrix_free(&w);
        }
}

/* No conversion to an integer is undefined, and other groups do not notice. */
static void quantizes_what_is_no_number(void **state)
{
    (void)state;
    FOR_EACH_INT8(k)
    {
        dsi_int8_matrix w = matrix_new(4, 64);
        float *x = values(4 * 64, 3);
        x[5] = NAN, x[64 + 9] = -INFINITY;
        for (int i = 0; i < 64; i++) x[128 + i] = 0;
        k->quantize(x, false, 64, &w);
        for (int64_t j = 0; j < 64; j++) {
            CHECK(element(&w, 2, j) == 0);
            CHECK(fabs(element(&w, 3, j) - (double)x[192 + j]) < 0.005);
            CHECK(isfinite(element(&w, 1, j)));
        }
        free(x), matrix_free(&w);
    }
}

/* y of the matrix that the bytes mean; a row has the same bits among others. */
static void multiplies(void **state)
{
    (void)state;
    enum { M = 7 };
    FOR_EACH_INT8(k)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s][0], depth = sizes[s][1];
        dsi_int8_matrix w = matrix_new(n, depth);
        float *from = values(n * depth, 1), *x = values(M * depth, 2), *bias = values(n, 5);
        float *y = calloc((size_t)(M * n), sizeof *y), *one = calloc((size_t)n, sizeof *one);
        k->quantize(from, false, depth, &w);
        for (int with = 0; with < 2; with++) {
            k->linear(M, x, &w, with ? bias : NULL, y);
            for (int64_t i = 0; i < M * n; i++) {
                double want = with ? (double)bias[i % n] : 0;
                for (int64_t j = 0; j < depth; j++)
                    want += (double)x[i / n * depth + j] * element(&w, i % n, j);
                CHECK_CLOSE((double)y[i], want, 1e-5);
            }
            for (int64_t r = 0; r < M; r++) {
                k->linear(1, x + r * depth, &w, with ? bias : NULL, one);
                CHECK(!memcmp(one, y + r * n, (size_t)n * sizeof *one));
            }
        }
        free(from), free(x), free(bias), free(y), free(one), matrix_free(&w);
    }
}

TEST_MAIN(cmocka_unit_test(quantizes_to_the_nearest), cmocka_unit_test(quantizes_what_is_no_number),
          cmocka_unit_test(multiplies))
