/* tests/sample.c: images of the built-in CIFAR-10 sample.
 * SPDX-License-Identifier: MIT */
#include "sample.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

static char folder[] = "/tmp/deepspeed-sample-XXXXXX";
static int made;

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s, (void)type, (void)at;
    return remove(path);
}

static void remove_folder(void) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

ds_dataset *sample_data(ds_split split)
{
    if (!made) {
        if (!mkdtemp(folder)) {
            ds_fail(DS_EIO, "sample: no folder in /tmp can be made");
            return NULL;
        }
        atexit(remove_folder);
        made = 1;
    }
    return ds_cifar10_with(folder, split, (ds_cifar10_opts){.sample = true, .quiet = true});
}

ds_status sample_batch(ds_dataset *data, const int64_t *index, int64_t n, ds_tensor **x,
                       ds_tensor **y)
{
    float *image = calloc((size_t)n + 1, 3072 * sizeof *image);
    int64_t *label = calloc((size_t)n + 1, sizeof *label);
    for (int64_t i = 0; i < n; i++) {
        void *field[] = {image + i * 3072, label + i};
        if (ds_dataset_get(data, index[i], field) != DS_OK) break;
    }
    *x = ds_from_data(DS_F32, ds_shape(n, 3, 32, 32), image);
    *y = ds_from_data(DS_I64, ds_shape(n), label);
    free(image);
    free(label);
    return ds_error() ? ds_error_status() : DS_OK;
}
