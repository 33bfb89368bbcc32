/* tests/gpu/held_alone.c: launches that wait for what follows
 * (device/cuda/held.h): rows that are far apart, a copy without a batch, and
 * launches that fail while they wait.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

#define F(at, ...) operand_dense(p, at, DS_F32, DIMS(__VA_ARGS__))
#define ONE(at)    ((dsi_view){.p = (void *)(uintptr_t)(p + (at))})

/* ---- rows that are far apart ---- */

/* A layer and its cross entropy. lse is what it returns. */
static void far_layer_run(float *const *row, int64_t rows, const float *p, dsi_fusions_use use,
                          float *lse)
{
    enum { K = 32, CLASSES = 3, Y = 1024, LSE = 1536, LABELS = 2048, LOSS = 2560 };
    const dsi_cross_entropy c = {-100, 0, 0};
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    dsi_view x = {row[0], DS_F32, 3, {1, rows, K}, {0, row[1] - row[0], 1}}, none = {.p = NULL},
             w = F(0, 1, K, CLASSES), y = F(Y, 1, rows, CLASSES);
    w.s[1] = 1, w.s[2] = K;
    CHECK(rows * x.s[1] > INT32_MAX);
    dsi_device_set_fusions(use);
    CHECK_INT(d->own_kernels->matmul(s, x, w, none, y), DS_OK);
    CHECK_INT(d->own_kernels->cross_entropy(s, &c, F(Y, rows, CLASSES, 1),
                                            operand_dense(p, LABELS, DS_I64, DIMS(rows, 1)), none,
                                            ONE(LOSS), F(LSE, rows, 1), ONE(LOSS + 1)),
              DS_OK);
    CHECK_INT(d->type->copy_out(s, lse, p + LSE, (size_t)rows * sizeof *lse), DS_OK);
    dsi_device_set_fusions(DSI_FUSIONS_ON);
}

static void rows_far_apart(void **state)
{
    (void)state;
    enum { ROWS_FAR = 12, MEMORY = 4096 };
    static float values[MEMORY];
    dsi_device *d = gpu_device();
    float *row[ROWS_FAR], *p = dsi_cache_alloc(d, sizeof values), got[ROWS_FAR], want[ROWS_FAR];
    if (!emulated()) skip();
    operand_seed = 3;
    for (int i = 0; i < MEMORY / 2; i++) values[i] = (float)pick_value(); /* labels are 0 */
    CHECK_INT(d->type->copy_in(&d->stream, p, values, sizeof values), DS_OK);
    for (int i = 0; i < ROWS_FAR; i++) {
        row[i] = d->type->alloc_fixed(d, 4096);
        setenv("FAKE_CUDA_GAP", "1073000448", 1); /* less than 2^28 floats */
        CHECK(row[i] && d->type->copy_in(&d->stream, row[i], values + 16 * i, 4096) == DS_OK);
    }
    unsetenv("FAKE_CUDA_GAP");
    far_layer_run(row + 1, ROWS_FAR - 1, p, DSI_FUSIONS_ALONE, want);
    far_layer_run(row + 1, ROWS_FAR - 1, p, DSI_FUSIONS_ON, got);
    CHECK(!memcmp(got, want, (ROWS_FAR - 1) * sizeof *got));
    for (int i = 0; i < ROWS_FAR; i++) d->type->free_fixed(d, row[i]);
    dsi_cache_free(d, p, sizeof values);
}

/* ---- launches that are left out, or fail ---- */

/* A product that waits. */
static ds_status product_run(const float *p)
{
    dsi_device *d = gpu_device();
    return d->own_kernels->matmul(&d->stream, F(0, 1, 4, 4), F(64, 1, 4, 4), (dsi_view){.p = NULL},
                                  F(128, 1, 4, 4));
}

static void a_copy_is_done_without_a_batch(void **state)
{
    (void)state;
    const float before[] = {1, 2, 3, 4};
    float after[4];
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    float *p = dsi_cache_alloc(d, 4096);
    CHECK_INT(d->type->copy_in(s, p, before, sizeof before), DS_OK);
    CHECK_INT(d->own_kernels->copy(s, ONE(3), ONE(0)), DS_OK);
    dsi_view x[] = {operand_dense(p, 16, DS_U8, DIMS(5, 1, 4))}, y[] = {F(32, 0, 1, 4)};
    CHECK_INT(d->own_fusions->gather_batch(s, operand_dense(p, 8, DS_I64, DIMS(0)), F(64, 1, 256),
                                           1, x, y),
              DS_OK);
    CHECK_INT(d->type->copy_out(s, after, p, sizeof after), DS_OK);
    CHECK(after[0] == 4 && after[1] == 2);
    dsi_cache_free(d, p, 4096);
}

/* A call that needs it reports it, once. */
static void a_failure_is_reported(void **state)
{
    (void)state;
    enum { FREED, SYNC, READ, LAUNCH, EVENT, CALLS_AFTER };
    static const char *const want = "a kernel before this call was not launched";
    if (!emulated()) skip();
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    float *p = dsi_cache_alloc(d, 4096), number;
    dsi_event event = {NULL};
    for (int after = FREED; after < CALLS_AFTER; after++) {
        void *other = d->type->alloc(d, 4096);
        CHECK_INT(product_run(p), DS_OK);
        setenv("FAKE_CUDA_FAIL", "cuLaunchKernel=2", 1);
        d->type->free(d, other); /* launches it */
        unsetenv("FAKE_CUDA_FAIL");
        ds_error_clear();
        ds_status status = after == READ     ? d->type->copy_out(s, &number, p, sizeof number)
                           : after == LAUNCH ? d->own_kernels->fill(s, 2, F(256, 8))
                           : after == EVENT  ? d->type->record(s, &event)
                                             : d->type->sync(s);
        CHECK_INT(status, DS_EDEVICE);
        CHECK(ds_error() && strstr(ds_error(), want));
        ds_error_clear();
        CHECK_INT(d->type->sync(s), DS_OK);
    }
    d->type->free_event(d, &event);
    dsi_cache_free(d, p, 4096);
}

static void a_capture_with_a_failure_is_no_graph(void **state)
{
    (void)state;
    if (!emulated()) skip();
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    float *p = dsi_cache_alloc(d, 4096);
    for (int fails = 1; fails >= 0; fails--)
        for (int keep = 1; keep >= 0; keep--) {
            void *work = p;
            CHECK_INT(d->type->capture_begin(s), DS_OK);
            CHECK_INT(product_run(p), DS_OK);
            if (fails) setenv("FAKE_CUDA_FAIL", "cuLaunchKernel=2", 1);
            ds_status status = d->type->capture_end(s, keep, &work);
            unsetenv("FAKE_CUDA_FAIL");
            CHECK_INT(status, fails && keep ? DS_EDEVICE : DS_OK);
            CHECK((work != NULL) == (keep && !fails));
            ds_error_clear();
            CHECK_INT(d->type->sync(s), DS_OK);
            if (work) d->type->graph_free(d, work);
        }
    dsi_cache_free(d, p, 4096);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_far_apart),
                                       cmocka_unit_test(a_copy_is_done_without_a_batch),
                                       cmocka_unit_test(a_failure_is_reported),
                                       cmocka_unit_test(a_capture_with_a_failure_is_no_graph)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
