/* tests/device/moe.c: rows to places and back: strides, places without a row,
 * threads, on each instruction set.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#define S 300
#define K 2
#define N 640
#define D 37

static float x[S * (D + 3)], w[S * K], y[N * D], want[N * D], back[S * D], dw[S * K];
static int64_t slot[S * K];

static double value_of(int i) { return sin(0.7 * i); }

static void fill_inputs(void)
{
    for (int i = 0; i < S * (D + 3); i++) x[i] = (float)value_of(i);
    for (int i = 0; i < S * K; i++) {
        w[i] = (float)value_of(i + 5);
        slot[i] = i % 11 == 4 ? -1 : (int64_t)i * 7 % N; /* 7 and N have no common factor */
    }
}

static dsi_view rows(float *p, int64_t n, int64_t stride)
{
    return (dsi_view){p, DS_F32, 2, {n, D}, {stride, 1}};
}

static dsi_view slots(void) { return (dsi_view){slot, DS_I64, 2, {S, K}, {K, 1}}; }
static dsi_view weights(float *p) { return (dsi_view){p, DS_F32, 2, {S, K}, {K, 1}}; }

static void there_and_back(const dsi_kernels *k)
{
    memset(want, 0, sizeof want);
    for (int i = 0; i < S * K; i++)
        for (int c = 0; slot[i] >= 0 && c < D; c++)
            want[slot[i] * D + c] = w[i] * x[i / K * (D + 3) + c];
    memset(y, 255, sizeof y);
    CHECK_INT(k->dispatch(NULL, rows(x, S, D + 3), slots(), weights(w), rows(y, N, D)), DS_OK);
    assert_memory_equal(y, want, sizeof y);
    CHECK_INT(k->combine(NULL, rows(y, N, D), slots(), weights(w), rows(back, S, D)), DS_OK);
    CHECK_INT(k->combine_dw(NULL, rows(x, S, D + 3), rows(y, N, D), slots(), weights(dw)), DS_OK);
    for (int i = 0; i < S; i++) {
        double squares = 0, dot[K] = {0};
        for (int j = 0; j < K; j++) squares += slot[i * K + j] < 0 ? 0 : pow(w[i * K + j], 2);
        for (int c = 0; c < D; c++) {
            double v = x[i * (D + 3) + c];
            CHECK_CLOSE(back[i * D + c], squares * v, 1e-6);
            for (int j = 0; j < K; j++) dot[j] += slot[i * K + j] < 0 ? 0 : w[i * K + j] * v * v;
        }
        for (int j = 0; j < K; j++) CHECK_CLOSE(dw[i * K + j], dot[j], 2e-5);
    }
}

static void rows_move(void **state)
{
    (void)state;
    fill_inputs();
    FOR_EACH_ISA(k)
    for (int threads = 1; threads <= 4; threads += 3) { /* the same bits */
        CHECK_INT(ds_set_threads(threads), DS_OK);
        there_and_back(k);
    }
    ds_set_threads(1);
}

TEST_MAIN(cmocka_unit_test(rows_move))
