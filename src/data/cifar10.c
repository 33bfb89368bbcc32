/* data/cifar10.c: CIFAR-10 as a data set.
 * SPDX-License-Identifier: MIT */
#include "cifar10.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

typedef struct cifar10 {
    dsi_cifar10 files;
    int64_t len;
    bool raw;
} cifar10;

static int64_t cifar10_len(void *self) { return ((cifar10 *)self)->len; }

/* torchvision's ToTensor and Normalize(0.5, 0.5), rounded after each step as there. */
static void scale(const uint8_t *restrict pixels, float *restrict x)
{
    for (int k = 0; k < DSI_CIFAR10_PIXELS; k++) x[k] = ((float)pixels[k] / 255 - 0.5f) / 0.5f;
}

static ds_status cifar10_get(void *self, int64_t i, void **field)
{
    const cifar10 *c = self;
    uint8_t label, pixels[DSI_CIFAR10_PIXELS];
    ds_status status = dsi_cifar10_read(&c->files, i, &label, c->raw ? field[0] : pixels);
    if (status != DS_OK) return status;

    if (!c->raw) scale(pixels, field[0]);
    *(int64_t *)field[1] = label;
    return DS_OK;
}

static void cifar10_free(void *self) { dsi_cifar10_close(&((cifar10 *)self)->files); }

/* Takes files. */
static ds_dataset *make(dsi_cifar10 *files, bool raw)
{
    static const ds_dataset_type type = {"CIFAR10", sizeof(cifar10), cifar10_len, cifar10_get,
                                         cifar10_free};
    ds_field fields[] = {{raw ? DS_U8 : DS_F32, ds_shape(3, 32, 32), "image"},
                         {DS_I64, {0}, "label"}};
    ds_dataset *d = ds_dataset_new(&type, 2, fields);
    if (!d) {
        dsi_cifar10_close(files);
        return NULL;
    }

    cifar10 *c = ds_dataset_self(d);
    c->files = *files;
    c->len = dsi_cifar10_len(files);
    c->raw = raw;
    return d;
}

ds_dataset *ds_cifar10(const char *folder, ds_split split)
{
    return ds_cifar10_with(folder, split, (ds_cifar10_opts){.download = true});
}

ds_dataset *ds_cifar10_with(const char *folder, ds_split split, ds_cifar10_opts opts)
{
    dsi_cifar10_layout layout;
    dsi_cifar10 files;
    if (!folder) return dsi_refuse("cifar10: the folder is NULL");
    if (split != DS_TRAIN && split != DS_TEST)
        return dsi_refuse("cifar10: split is %d, expected DS_TRAIN or DS_TEST", (int)split);

    if (dsi_cifar10_find(folder, &layout) != DS_OK) return NULL;
    if (layout == DSI_CIFAR10_NONE)
        return dsi_refuse("cifar10: %s has neither cifar-10-batches-bin nor cifar-10-batches-py",
                          folder);
    if (dsi_cifar10_open(&files, folder, layout, split) != DS_OK) return NULL;
    if (opts.download && !opts.quiet) {
        printf("Files already downloaded and verified\n");
        fflush(stdout);
    }
    return make(&files, opts.raw);
}

const char *ds_cifar10_class(int label)
{
    static const char *const names[] = {"plane", "car",  "bird",  "cat",  "deer",
                                        "dog",   "frog", "horse", "ship", "truck"};
    return label >= 0 && label < 10 ? names[label] : NULL;
}
