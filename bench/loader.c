/* bench/loader.c: the time that ds_loader_next takes on the training thread,
 * with steps of a given length.
 *
 * Samples are images of CIFAR-10's size in memory, to_float and normalize over
 * them.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "median.h"

#include <deepspeed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIXELS 3072
#define IMAGES 10000

static double now_us(void) { return dsi_now() * 1e6; }

typedef struct images {
    uint8_t *pixels;
} images;

static int64_t images_len(void *self)
{
    (void)self;
    return IMAGES;
}

static ds_status images_get(void *self, int64_t i, void **field)
{
    memcpy(field[0], ((images *)self)->pixels + i * PIXELS, PIXELS);
    *(int64_t *)field[1] = i % 10;
    return DS_OK;
}

static void images_free(void *self) { free(((images *)self)->pixels); }

static ds_dataset *images_new(void)
{
    static const ds_dataset_type type = {"Images", sizeof(images), images_len, images_get,
                                         images_free};
    ds_field fields[] = {{DS_U8, ds_shape(3, 32, 32), "image"}, {DS_I64, {0}, "label"}};
    ds_dataset *d = ds_dataset_new(&type, 2, fields);
    uint8_t *pixels = malloc((size_t)IMAGES * PIXELS);
    for (size_t i = 0; i < (size_t)IMAGES * PIXELS; i++)
        pixels[i] = (uint8_t)(i * 2654435761u >> 24);
    ((images *)ds_dataset_self(d))->pixels = pixels;
    float half = 0.5f;
    return ds_transform_normalize(ds_transform_to_float(d), 1, &half, &half);
}

static void row(int64_t batch, int workers, double step_us)
{
    enum { MOST = 20000 };
    static double took[MOST];
    ds_loader *l = ds_loader_new(images_new(), batch, .shuffle = true, .workers = workers);
    ds_batch b;
    int n = 0;
    double total = 0, begun = now_us();
    while (n < MOST && now_us() - begun < 5e5) {
        double start = now_us();
        if (!ds_loader_next(l, &b)) continue; /* the next epoch begins */
        took[n] = now_us() - start;
        total += took[n++];
        while (now_us() - start < took[n - 1] + step_us) {}
    }
    ds_loader_free(l);
    double middle = median(took, n);
    printf("%6lld %8d %9.0f %11.2f %9.2f %9.2f %15.2f\n", (long long)batch, workers, step_us,
           middle, total / n, took[n - 1 - n / 100], middle / (double)batch);
}

int main(void)
{
    static const int64_t batches[] = {4, 32, 128};
    static const double step_us_per_sample = 30;
    ds_dataset *d = images_new();
    static float x[PIXELS];
    int64_t label;
    double start = now_us();
    for (int i = 0; i < 100000; i++) ds_dataset_get(d, i % IMAGES, (void *[]){x, &label});
    printf("one sample's get: %.2f us\n\n", (now_us() - start) / 100000);
    ds_dataset_free(d);
    printf("%6s %8s %9s %11s %9s %9s %15s\n", "batch", "workers", "step us", "median us", "mean us",
           "99% us", "us a sample");
    for (size_t k = 0; k < sizeof batches / sizeof *batches; k++)
        for (int workers = 0; workers <= 2; workers++) {
            row(batches[k], workers, 0);
            row(batches[k], workers, step_us_per_sample * (double)batches[k]);
        }
    return ds_error() != NULL;
}
