/* tests/cifar10_files.h: folders in the two layouts of CIFAR-10, with made-up
 * images, and archives of them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A new empty folder below $TMPDIR, and "folder/name"; both live until the
 * program ends. */
const char *new_folder(void);
const char *in(const char *folder, const char *name);

/* Byte k of the pixels of image i of batch b (0: test_batch), and its label. */
uint8_t made_pixel(int b, int64_t i, int k);
int made_label(int b, int64_t i);

/* folder/cifar-10-batches-bin and -py with n images a batch and a file SAMPLE
 * that says so. */
void make_bin(const char *folder, int n);
void make_py(const char *folder, int n);

/* A growing file in memory. */
typedef struct bytes {
    uint8_t *p;
    size_t n, room;
} bytes;
void put(bytes *b, const void *data, size_t n);
void put_text(bytes *b, const char *s);
void put_batch(bytes *b, int batch, int n); /* as Python 2 pickled it */
void save(const char *path, const void *data, size_t n);
bytes load(const char *path);
bool there(const char *path);
int entries(const char *folder); /* hidden ones too */

/* A tar.gz of one file a call, and what its md5 is. */
typedef struct entry {
    const char *path, *link; /* link: a symbolic one to there, instead of data */
    const void *data;
    size_t bytes;
} entry;
void make_archive(const char *path, const entry *e, int n);
void archive_of_folder(const char *path, const char *folder); /* folder/cifar-10-batches-bin */
