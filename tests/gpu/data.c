/* tests/gpu/data.c: a data set on the GPU beside the loader of the CPU: the same
 * batches, to the bit, in the same order; which data sets are not there.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "folder.h"

#include <deepspeed/data.h>

enum { BATCH = 7, SAMPLES = 40 };

static const char *folder;
static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

typedef enum Kind { PLAIN, TORCHVISION, FLIPPED, BF16, FP16 } Kind;

static ds_dataset *images(Kind kind)
{
    static const float mean[] = {0.49f, 0.48f, 0.45f}, std[] = {0.25f, 0.24f, 0.26f};
    ds_dataset *d = ds_cifar10_with(
        "unused", DS_TRAIN, (ds_cifar10_opts){.sample = true, .quiet = true, .raw = kind != PLAIN});
    d = ds_subset(d, 11, SAMPLES);
    if (kind != PLAIN) d = ds_transform_normalize(ds_transform_to_float(d), 3, mean, std);
    if (kind == FLIPPED) d = ds_transform_random_flip(d, 0.5, 3);
    if (kind >= BF16) d = ds_transform_cast(d, kind == BF16 ? DS_BF16 : DS_F16);
    return d;
}

/* All batches of two epochs, [2 SAMPLES, 3, 32, 32] and the labels behind them;
 * the caller frees them. */
static float *batches(ds_device device, Kind kind, bool shuffle, size_t *bytes)
{
    enum { IMAGE = 3 * 32 * 32 };
    *bytes = (size_t)2 * SAMPLES * (IMAGE + 1) * sizeof(float);
    float *all = malloc(*bytes), *x = all, *y = all + (ptrdiff_t)2 * SAMPLES * IMAGE;
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_seed(5);
    ds_loader *l = ds_loader_new(images(kind), BATCH, .shuffle = shuffle);
    ds_batch b;
    for (int epoch = 0; epoch < 2; epoch++)
        while (ds_loader_next(l, &b)) {
            CHECK(ds_device_of(b.x).kind == device.kind && ds_device_of(b.y).kind == device.kind);
            const int64_t *labels = ds_data(b.y);
            memcpy(x, ds_data(ds_cast(b.x, DS_F32)), (size_t)b.size * IMAGE * sizeof *x);
            x += b.size * IMAGE;
            for (int64_t i = 0; i < b.size; i++) *y++ = (float)labels[i];
        }
    CHECK(!ds_error() && x == all + (ptrdiff_t)2 * SAMPLES * IMAGE);
    ds_loader_free(l);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    return all;
}

static void the_same_batches(void **state)
{
    (void)state;
    size_t n, before = ds_memory_allocated(gpu);
    for (int kind = PLAIN; kind <= FP16; kind++) {
        float *want = batches(cpu, kind, kind != TORCHVISION, &n);
        float *got = batches(gpu, kind, kind != TORCHVISION, &n);
        CHECK(!memcmp(want, got, n));
        free(want);
        free(got);
    }
    CHECK_INT(ds_memory_allocated(gpu), before);
}

/* Once an epoch has begun, a batch makes the host wait for nothing. */
static void batches_wait_for_nothing(void **state)
{
    (void)state;
    ds_batch b;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    for (int half = 0; half < 2; half++) {
        ds_loader *l = ds_loader_new(images(half ? BF16 : PLAIN), BATCH, .shuffle = true);
        CHECK(ds_loader_next(l, &b));
        long before = emulator_count("fake_cuda_syncs");
        for (int i = 0; i < 3; i++) CHECK(ds_loader_next(l, &b));
        CHECK_INT(emulator_count("fake_cuda_syncs") - before, 0);
        ds_loader_free(l);
    }
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    setenv("DS_CIFAR10_SAMPLE", DS_SOURCE_DIR "/assets/cifar10-sample.tar.xz", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_batches),
                                       cmocka_unit_test(batches_wait_for_nothing)};
    folder = folder_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove();
    return failed;
}
