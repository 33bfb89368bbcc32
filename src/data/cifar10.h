/* data/cifar10.h: CIFAR-10 on disk: at which byte of which file the pixels of a
 * sample begin, and its label.
 *
 * Invariants: sample i of a split is in the first file f for which i is less
 * than the samples of file[0 .. f] together. Its pixels are 3072 bytes,
 * [3,32,32], from byte pixels_at + k * stride of that file, k being its number
 * within the file. labels are copied when the file is opened. Nothing changes
 * afterwards.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/data.h>

enum { DSI_CIFAR10_PIXELS = 3 * 32 * 32, DSI_CIFAR10_BATCH = 10000, DSI_CIFAR10_FILES = 5 };

typedef enum dsi_cifar10_layout {
    DSI_CIFAR10_NONE = 0,
    DSI_CIFAR10_BIN, /* cifar-10-batches-bin/data_batch_1.bin: records of a label and 3072 pixels */
    DSI_CIFAR10_PY   /* cifar-10-batches-py/data_batch_1: a pickled dict of a list and an array */
} dsi_cifar10_layout;

typedef struct dsi_cifar10_file {
    char *path;
    int fd;
    int64_t n;         /* samples */
    int64_t pixels_at; /* byte of the first sample's pixels, [3,32,32] each */
    int64_t stride;    /* bytes from one sample's pixels to the next's */
    uint8_t *labels;   /* [n], each 0 .. 9 */
} dsi_cifar10_file;

/* One split. Pixels stay in the files (150 MB that the program does not have to
 * hold). */
typedef struct dsi_cifar10 {
    dsi_cifar10_file file[DSI_CIFAR10_FILES];
    int files;
    bool sample; /* the folder has a file SAMPLE: it is not the full set */
} dsi_cifar10;

/* Puts the layout of folder into *layout; DSI_CIFAR10_NONE, with DS_OK, if it
 * has neither, also if there is no such folder. */
ds_status dsi_cifar10_find(const char *folder, dsi_cifar10_layout *layout);

/* Opens the files of a split and checks sizes, structure and labels. c is empty
 * after a failure. */
ds_status dsi_cifar10_open(dsi_cifar10 *c, const char *folder, dsi_cifar10_layout layout,
                           ds_split split);
/* Closes the files and frees the labels; *c is empty afterwards. */
void dsi_cifar10_close(dsi_cifar10 *c);
/* The samples of the split, over all files. */
int64_t dsi_cifar10_len(const dsi_cifar10 *c);

/* Reads the label and the 3072 bytes of pixels of sample i. Several threads may
 * call it at once. DS_EIO if the file cannot be read or has become shorter. */
ds_status dsi_cifar10_read(const dsi_cifar10 *c, int64_t i, uint8_t *label, uint8_t *pixels);

/* cifar10_pickle.c: finds the pixels and labels in an opened file of the python
 * layout, which must hold f->n samples. */
ds_status dsi_cifar10_parse(dsi_cifar10_file *f);

char *dsi_cifar10_path(const char *folder, const char *name); /* "folder/name", for dsi_free */
const char *dsi_cifar10_folder(dsi_cifar10_layout layout);    /* "cifar-10-batches-bin" */
