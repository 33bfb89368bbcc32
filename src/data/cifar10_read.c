/* data/cifar10_read.c: the files of CIFAR-10, checked and read in place.
 *
 * binary    data_batch_1.bin .. data_batch_5.bin, test_batch.bin, 10,000 records each:
 *           1 byte label, 1024 red, 1024 green, 1024 blue, rows from the top
 * python    data_batch_1 .. data_batch_5, test_batch: pickles, see cifar10_pickle.c
 * SAMPLE    in either folder: "data_batch_1.bin 1000" a line says how many samples a file has; a
 *           folder with it is a part of CIFAR-10 and is announced as such
 *
 * Only labels are kept. Pixels are read with pread from the page cache, sample
 * by sample: 0.4 us each, without a lock between the loader's threads, and
 * without 150 MB in this process.
 * https://www.cs.toronto.edu/~kriz/cifar.html
 * SPDX-License-Identifier: MIT */
#include "cifar10.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD (1 + DSI_CIFAR10_PIXELS)

/* Bytes of a file that are mapped at a time to copy its labels, which are 3073
 * bytes apart. A mapping reads them 8 times as fast as 50,000 calls of pread; a
 * small one adds little to the process's resident memory. A whole number of
 * pages. */
#define WINDOW ((int64_t)2 << 20)

char *dsi_cifar10_path(const char *folder, const char *name)
{
    return dsi_text_of("%s/%s", folder, name).s;
}

const char *dsi_cifar10_folder(dsi_cifar10_layout layout)
{
    return layout == DSI_CIFAR10_PY ? "cifar-10-batches-py" : "cifar-10-batches-bin";
}

/* An unreadable folder is an error, a missing one is not: it may be
 * downloaded. */
ds_status dsi_cifar10_find(const char *folder, dsi_cifar10_layout *layout)
{
    ds_status status = DS_OK;
    struct stat st;
    *layout = DSI_CIFAR10_NONE;
    if (stat(folder, &st) == 0 && !S_ISDIR(st.st_mode))
        return dsi_fail(DS_EINVAL, "cifar10: %s is a file, expected a folder", folder);

    for (int k = DSI_CIFAR10_BIN; k <= DSI_CIFAR10_PY && !*layout && status == DS_OK; k++) {
        char *path = dsi_cifar10_path(folder, dsi_cifar10_folder((dsi_cifar10_layout)k));
        if (stat(path, &st) != 0) {
            if (errno != ENOENT)
                status = dsi_fail(DS_EIO, "cifar10: %s: %s", path, strerror(errno));
        } else if (!S_ISDIR(st.st_mode)) {
            status = dsi_fail(DS_EFORMAT, "cifar10: %s is a file, expected a folder", path);
        } else {
            *layout = (dsi_cifar10_layout)k;
        }
        dsi_free(path);
    }
    return status;
}

/* ---- one file -------------------------------------------------------------------------------------- */

/* Returns how many samples the file must have: 10,000, or in a folder with a
 * file SAMPLE what its line for `name` says; 0 if the sample lacks that
 * file. */
static int64_t cifar10_file_len(const char *folder, const char *name, bool *sample)
{
    char *path = dsi_cifar10_path(folder, "SAMPLE"), line[256], word[64];
    FILE *f = fopen(path, "re");
    int64_t n = f ? 0 : DSI_CIFAR10_BATCH;
    long long count;
    *sample = f != NULL;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %lld", word, &count) == 2 && !strcmp(word, name) && count > 0 &&
            count <= DSI_CIFAR10_BATCH)
            n = count;
    if (f) fclose(f);
    dsi_free(path);
    return n;
}

/* Copies labels[i] = byte i * RECORD of the file. */
static ds_status cifar10_map_labels(dsi_cifar10_file *f)
{
    int64_t size = f->n * RECORD, i = 0;
    for (int64_t at = 0; at < size; at += WINDOW) {
        size_t bytes = (size_t)(size - at < WINDOW ? size - at : WINDOW);
        const uint8_t *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, f->fd, (off_t)at);
        if (p == MAP_FAILED)
            return dsi_fail(DS_EIO, "cifar10: %s: cannot be mapped: %s", f->path, strerror(errno));
        for (; i < f->n && i * RECORD < at + (int64_t)bytes; i++) f->labels[i] = p[i * RECORD - at];
        munmap((void *)(uintptr_t)p, bytes);
    }
    return DS_OK;
}

/* Checks the size of a file of records, and fills where its pixels and labels
 * are. */
static ds_status cifar10_check_records(dsi_cifar10_file *f)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return dsi_fail(DS_EIO, "cifar10: %s: %s", f->path, strerror(errno));

    int64_t want = f->n * RECORD, size = st.st_size;
    if (size < want)
        return dsi_fail(
            DS_EFORMAT,
            "cifar10: %s ends in record %lld: it has %lld bytes, expected %lld (%lld records "
            "of %d); remove its folder to have it fetched again",
            f->path, (long long)(size / RECORD), (long long)size, (long long)want, (long long)f->n,
            RECORD);
    if (size > want)
        return dsi_fail(
            DS_EFORMAT,
            "cifar10: %s continues after record %lld: it has %lld bytes, expected %lld (%lld "
            "records of %d); remove its folder to have it fetched again",
            f->path, (long long)f->n - 1, (long long)size, (long long)want, (long long)f->n,
            RECORD);
    f->pixels_at = 1;
    f->stride = RECORD;
    return cifar10_map_labels(f);
}

/* A label above 9 would index past the classes of a model; here the message
 * names the record. */
static ds_status cifar10_check_labels(const dsi_cifar10_file *f)
{
    for (int64_t i = 0; i < f->n; i++)
        if (f->labels[i] > 9)
            return dsi_fail(DS_EFORMAT, "cifar10: %s: record %lld has label %d, expected 0 to 9",
                            f->path, (long long)i, f->labels[i]);
    return DS_OK;
}

/* Opens and checks the file f->path of f->n samples. After a failure the caller
 * closes it with dsi_cifar10_close. */
static ds_status cifar10_open_file(dsi_cifar10_file *f, dsi_cifar10_layout layout)
{
    struct stat st;
    /* a fifo is refused, not waited for */
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        return dsi_fail(DS_EIO, "cifar10: %s: %s; expected a batch of %lld images", f->path,
                        strerror(errno), (long long)f->n);
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return dsi_fail(DS_EFORMAT, "cifar10: %s is not a regular file", f->path);

    f->labels = dsi_alloc((size_t)f->n);
    ds_status status = layout == DSI_CIFAR10_PY ? dsi_cifar10_parse(f) : cifar10_check_records(f);
    return status == DS_OK ? cifar10_check_labels(f) : status;
}

/* ---- a split --------------------------------------------------------------------------------------- */

/* A file that the sample does not have is skipped; c->file holds the others. */
ds_status dsi_cifar10_open(dsi_cifar10 *c, const char *folder, dsi_cifar10_layout layout,
                           ds_split split)
{
    const char *end = layout == DSI_CIFAR10_PY ? "" : ".bin";
    char *base = dsi_cifar10_path(folder, dsi_cifar10_folder(layout)), name[32];
    ds_status status = DS_OK;
    *c = (dsi_cifar10){0};

    for (int k = 1; k <= (split == DS_TEST ? 1 : DSI_CIFAR10_FILES) && status == DS_OK; k++) {
        if (split == DS_TEST)
            snprintf(name, sizeof name, "test_batch%s", end);
        else
            snprintf(name, sizeof name, "data_batch_%d%s", k, end);
        int64_t n = cifar10_file_len(base, name, &c->sample);
        if (!n) continue;
        dsi_cifar10_file *f = &c->file[c->files++];
        f->path = dsi_cifar10_path(base, name);
        f->n = n;
        status = cifar10_open_file(f, layout);
    }
    if (status == DS_OK && !c->files)
        status = dsi_fail(DS_EFORMAT, "cifar10: %s/SAMPLE names no file of this split", base);
    if (status != DS_OK) dsi_cifar10_close(c);
    dsi_free(base);
    return status;
}

/* The descriptor is -1 if the file could not be opened. */
void dsi_cifar10_close(dsi_cifar10 *c)
{
    for (int k = 0; k < c->files; k++) {
        if (c->file[k].fd >= 0) close(c->file[k].fd);
        dsi_free(c->file[k].path);
        dsi_free(c->file[k].labels);
    }
    *c = (dsi_cifar10){0};
}

int64_t dsi_cifar10_len(const dsi_cifar10 *c)
{
    int64_t n = 0;
    for (int k = 0; k < c->files; k++) n += c->file[k].n;
    return n;
}

/* A file that is truncated while the program runs is an error, not a crash. */
ds_status dsi_cifar10_read(const dsi_cifar10 *c, int64_t i, uint8_t *label, uint8_t *pixels)
{
    const dsi_cifar10_file *f = c->file;
    int64_t record = i;
    for (; f < c->file + c->files && record >= f->n; f++) record -= f->n;
    if (i < 0 || f == c->file + c->files)
        return dsi_fail(DS_EINVAL, "cifar10: sample %lld of %lld", (long long)i,
                        (long long)dsi_cifar10_len(c));

    off_t at = (off_t)(f->pixels_at + record * f->stride);
    for (ssize_t done = 0, got; done < DSI_CIFAR10_PIXELS; done += got) {
        got = pread(f->fd, pixels + done, (size_t)(DSI_CIFAR10_PIXELS - done), at + done);
        if (got < 0 && errno == EINTR) {
            got = 0;
        } else if (got <= 0) {
            return dsi_fail(DS_EIO, "cifar10: %s: record %lld: %s", f->path, (long long)record,
                            got ? strerror(errno) : "the file has become shorter");
        }
    }
    *label = f->labels[record];
    return DS_OK;
}
