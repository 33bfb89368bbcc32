/* base/mapping.h: a whole file in memory.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a file that may be read, and written to: what is written stays in
 * this process. They begin at a multiple of 64, and some bytes behind the last
 * may be read too, as vectors do. */
typedef struct dsi_mapping {
    unsigned char *p;
    size_t bytes;
    bool mapped; /* the file's own pages; else a copy of a small file */
    int refs;    /* of one thread */
} dsi_mapping;

/* The least size of a file that is mapped. */
#define DSI_MAPPED_BYTES ((size_t)1 << 20)

/* One count is the caller's; NULL with the message, which begins with `what`.
 * *fd, if fd is not NULL: the file itself, for the caller to close. */
dsi_mapping *dsi_mapping_open(const char *what, const char *path, int *fd);
void dsi_mapping_unref(void *mapping); /* a dsi_mapping; NULL passes */

/* The pages within these bytes of m, which must not have been written to, need
 * not be in memory any more: the next access reads them from the file again.
 * NULL passes. */
void dsi_mapping_drop_pages(const dsi_mapping *m, const void *bytes, size_t n);

/* Of m only some parts will be read, each of which dsi_mapping_prefetch names
 * first: the disk is asked for them, and for nothing around them. NULL
 * passes. */
void dsi_mapping_advise_random(const dsi_mapping *m);
void dsi_mapping_prefetch(const dsi_mapping *m, const void *bytes, size_t n);

/* CRC-32 of n bytes of m from `at` on, whose file is open as fd; false, with
 * errno (0: the file became shorter), if they cannot be read: looking at them
 * would be the end of the program. forget: their pages, as
 * dsi_mapping_drop_pages. */
bool dsi_mapping_sum(const dsi_mapping *m, int fd, size_t at, size_t n, bool forget, uint32_t *crc);

/* How many bytes this thread has read of files that hold tensors, as their
 * readers count them. */
int64_t dsi_bytes_read(void);
void dsi_count_read(size_t n);
