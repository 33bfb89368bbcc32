/* data/cifar10.h: CIFAR-10 on disk: where the pixels and the label of each
 * sample lie.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DATA_CIFAR10_H
#define DSI_DATA_CIFAR10_H

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
    bool sample; /* the folder says of itself, by a file SAMPLE, that it is not the full set */
} dsi_cifar10;

/* Which layout folder has; DSI_CIFAR10_NONE, without failure, if none. */
ds_status dsi_cifar10_find(const char *folder, dsi_cifar10_layout *layout);

/* Opens the files of a split and checks sizes, structure and labels. c is empty
 * after a failure. */
ds_status dsi_cifar10_open(dsi_cifar10 *c, const char *folder, dsi_cifar10_layout layout,
                           ds_split split);
void dsi_cifar10_close(dsi_cifar10 *c);
int64_t dsi_cifar10_len(const dsi_cifar10 *c);

/* The label and the 3072 bytes of sample i. For several threads at once. */
ds_status dsi_cifar10_read(const dsi_cifar10 *c, int64_t i, uint8_t *label, uint8_t *pixels);

/* cifar10_pickle.c: finds the pixels and labels in an opened file of the python
 * layout, which must hold f->n samples. */
ds_status dsi_cifar10_parse(dsi_cifar10_file *f);

char *dsi_cifar10_path(const char *folder, const char *name); /* "folder/name", for dsi_free */
const char *dsi_cifar10_folder(dsi_cifar10_layout layout);    /* "cifar-10-batches-bin" */

#endif
