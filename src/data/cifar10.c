/* data/cifar10.c: CIFAR-10 as a data set.
 *
 * Invariants: a data set owns its open files, which are only read, with pread:
 * cifar10_get may run on several threads. Field 0 is the image [3,32,32],
 * float32 in [-1, 1] or (raw) uint8, field 1 the label, an int64 of 0 to 9.
 *
 * SPDX-License-Identifier: MIT */
#include "cifar10.h"
#include "cifar10_obtain.h"
#include "resident.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

typedef struct cifar10 {
    dsi_cifar10 files;
    int64_t len;
    bool raw;
    float table[3][256]; /* of its byte form */
} cifar10;

static int64_t cifar10_len(void *self) { return ((cifar10 *)self)->len; }

/* ToTensor and Normalize(0.5, 0.5) of torchvision, rounded to float after each
 * step as torchvision does. */
static float cifar10_float(uint8_t pixel) { return ((float)pixel / 255 - 0.5f) / 0.5f; }

static void cifar10_scale(const uint8_t *restrict pixels, float *restrict x)
{
    for (int k = 0; k < DSI_CIFAR10_PIXELS; k++) x[k] = cifar10_float(pixels[k]);
}

/* Writes the image and the label of sample i into field[0] and field[1]. */
static ds_status cifar10_get(void *self, int64_t i, void **field)
{
    const cifar10 *c = self;
    uint8_t label, pixels[DSI_CIFAR10_PIXELS];
    ds_status status = dsi_cifar10_read(&c->files, i, &label, c->raw ? field[0] : pixels);
    if (status != DS_OK) return status;

    if (!c->raw) cifar10_scale(pixels, field[0]);
    *(int64_t *)field[1] = label;
    return DS_OK;
}

static ds_status cifar10_get_bytes(void *self, int64_t i, void **field)
{
    uint8_t label;
    ds_status status = dsi_cifar10_read(&((cifar10 *)self)->files, i, &label, field[0]);
    if (status == DS_OK) *(int64_t *)field[1] = label;
    return status;
}

static const float *cifar10_table(void *self)
{
    cifar10 *c = self;
    return c->raw ? NULL : c->table[0];
}

static void cifar10_free(void *self) { dsi_cifar10_close(&((cifar10 *)self)->files); }

/* Makes the data set and moves *files into it, also if it fails. */
static ds_dataset *cifar10_new(dsi_cifar10 *files, bool raw)
{
    static const ds_dataset_type type = {"CIFAR10", sizeof(cifar10), cifar10_len, cifar10_get,
                                         cifar10_free};
    static const dsi_byte_form bytes = {cifar10_get_bytes, cifar10_table};
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
    for (int k = 0; k < 3 * 256; k++)
        c->table[k / 256][k % 256] = cifar10_float((uint8_t)(k % 256));
    dsi_dataset_set_byte_form(d, &bytes);
    return d;
}

/* ---- which folder --------------------------------------------------------------------------------- */

/* Tells whether the built-in sample may replace the files that could not be
 * had, for the reason `got`; then says so on stderr and forgets the failures
 * since `before`. False leaves the failure to the caller. A server that answers
 * without the file is no reason, unless it is the home page, whose address the
 * user did not choose. */
static bool sample_may_serve(const char *folder, dsi_fetched got, const ds_cifar10_opts *o,
                             int before)
{
    bool home_page = !strcmp(dsi_cifar10_url(o->url), DSI_CIFAR10_HOME);
    if (!o->fallback_sample || got == DSI_FETCH_LOCAL) return false;
    if (got == DSI_FETCH_ANSWER && !home_page) return false;
    if (!o->quiet)
        fprintf(
            stderr,
            "CIFAR-10 is not in %s and cannot be had now:\n  %s\n"
            "To train on all of it, run this again with a network, name a mirror or a file:// in\n"
            "DS_CIFAR10_URL, or put cifar-10-binary.tar.gz into %s.\n"
            "Going on with the built-in sample.\n",
            folder, dsi_error_latest(), folder);
    dsi_error_forget(before);
    return true;
}

/* Refuses the folder of the batches themselves: its parent folder is expected,
 * and CIFAR-10 would be downloaded a second time into it. */
static ds_status cifar10_check_parent(const char *folder)
{
    static const char *const names[] = {"test_batch.bin", "test_batch"};
    bool batches = false;
    for (int i = 0; i < 2; i++) {
        char *path = dsi_cifar10_path(folder, names[i]);
        batches = batches || dsi_file_exists(path);
        dsi_free(path);
    }
    if (!batches) return DS_OK;
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    while (n && folder[n - 1] != '/') n--;
    while (n > 1 && folder[n - 1] == '/') n--;
    return dsi_fail(DS_EINVAL,
                    "cifar10: %s is the folder of the batches: give the folder that it is in, %.*s",
                    folder, n ? (int)n : 1, n ? folder : ".");
}

/* Finds the folder with the data, downloads it if the options say so, or takes
 * the sample. Puts its path, for dsi_free, into *home, and its layout into
 * *layout. *home stays NULL after a failure. */
static ds_status cifar10_find_folder(const char *folder, const ds_cifar10_opts *o, char **home,
                                     dsi_cifar10_layout *layout)
{
    bool sample = o->sample;
    int before = dsi_error_count();
    ds_status status = sample ? DS_OK : dsi_cifar10_find(folder, layout);
    if (!sample && status == DS_OK && *layout == DSI_CIFAR10_NONE)
        status = cifar10_check_parent(folder);
    if (!sample && status == DS_OK && *layout == DSI_CIFAR10_NONE) {
        dsi_fetched got = DSI_FETCH_NETWORK;
        if (o->download)
            got = dsi_cifar10_download(folder, o->url, o->quiet);
        else
            dsi_fail(DS_EIO,
                     "cifar10: %s has neither cifar-10-batches-bin nor cifar-10-batches-py: unpack "
                     "cifar-10-binary.tar.gz there, or let it be downloaded",
                     folder);
        sample = got != DSI_FETCHED && sample_may_serve(folder, got, o, before);
        status = got == DSI_FETCHED ? dsi_cifar10_find(folder, layout)
                 : sample           ? DS_OK
                                    : ds_error_status();
    }
    if (status != DS_OK) return status;

    *home = sample ? dsi_cifar10_sample(folder, o->quiet) : dsi_strdup(folder);
    return !*home ? ds_error_status() : sample ? dsi_cifar10_find(*home, layout) : DS_OK;
}

/* Prints torchvision's line for complete files. For a sample says on stderr how
 * many images it has, which needs the other split too. */
static void cifar10_announce(const dsi_cifar10 *files, const char *home, dsi_cifar10_layout layout,
                             ds_split split, bool verified)
{
    if (verified && !files->sample) {
        printf("Files already downloaded and verified\n");
        fflush(stdout);
    }
    if (!files->sample) return;
    dsi_cifar10 other;
    int before = dsi_error_count();
    if (dsi_cifar10_open(&other, home, layout, split == DS_TRAIN ? DS_TEST : DS_TRAIN) != DS_OK) {
        dsi_error_forget(before); /* a sample may be of one split */
        other.files = 0;
    }
    long long n = dsi_cifar10_len(files), m = dsi_cifar10_len(&other);
    fprintf(
        stderr,
        "CIFAR-10: a sample, %lld training and %lld test images, not the full 50000 and 10000\n",
        split == DS_TRAIN ? n : m, split == DS_TRAIN ? m : n);
    dsi_cifar10_close(&other);
}

/* ---- public functions ------------------------------------------------------------------------------ */

ds_dataset *ds_cifar10(const char *folder, ds_split split)
{
    return ds_cifar10_with(folder, split, (ds_cifar10_opts){.download = true});
}

/* After a failure of dsi_cifar10_open, files is empty and owns nothing. */
ds_dataset *ds_cifar10_with(const char *folder, ds_split split, ds_cifar10_opts opts)
{
    dsi_cifar10_layout layout = DSI_CIFAR10_NONE;
    dsi_cifar10 files;
    char *home = NULL;
    if (!folder || !*folder) return dsi_refuse("cifar10: no folder is given");
    if (split != DS_TRAIN && split != DS_TEST)
        return dsi_refuse("cifar10: split is %d, expected DS_TRAIN or DS_TEST", (int)split);

    ds_status status = cifar10_find_folder(folder, &opts, &home, &layout);
    if (status == DS_OK) status = dsi_cifar10_open(&files, home, layout, split);
    if (status == DS_OK && !opts.quiet)
        cifar10_announce(&files, home, layout, split, opts.download);
    dsi_free(home);
    return status == DS_OK ? cifar10_new(&files, opts.raw) : NULL;
}

/* The tutorial's short names, in the order of the labels. */
const char *ds_cifar10_class(int label)
{
    static const char *const names[] = {"plane", "car",  "bird",  "cat",  "deer",
                                        "dog",   "frog", "horse", "ship", "truck"};
    return label >= 0 && label < 10 ? names[label] : NULL;
}
