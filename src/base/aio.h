/* base/aio.h: reads and writes of a file that go on while their caller does
 * something else.
 *
 *     dsi_aio_op op = {.file = &file, .p = p, .bytes = n, .at = 0};
 *     dsi_aio_start(a, &op);  ...;  if (dsi_aio_wait(a, &op) != DS_OK) ...
 *
 * An operation is cut into requests of block_size bytes, of which queue_depth
 * are on their way at a time. The kernel runs them (io_uring); where it may not
 * be asked, as in some containers, threads do, with pread and pwrite.
 * Addresses, sizes and places are multiples of DSI_AIO_ALIGN, so that files may
 * be read past the cache.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

#define DSI_AIO_ALIGN 4096

/* As the keys of aio of (almost) that name; 0 is DeepSpeed's default. */
typedef struct dsi_aio_opts {
    int64_t block_size; /* bytes, rounded up to DSI_AIO_ALIGN; 0: 1 MiB */
    int queue_depth;    /* 0: 8 */
    int threads;        /* where there is no io_uring; 0: 1 */
    bool single_submit; /* requests are submitted to the kernel one by one */
    bool in_batches;    /* a queue is emptied before it is filled again (overlap_events: false) */
} dsi_aio_opts;

/* ---- files ---------------------------------------------------------------------------------------------- */

/* Has no name any more once it is open, so that nothing is left when the
 * process ends, however it does. */
typedef struct dsi_aio_file {
    int fd;
    bool direct; /* past the kernel's cache */
    int64_t bytes;
    char *path; /* it had; for messages */
} dsi_aio_file;

/* folder/name, of that many bytes, which are taken from the disk now. `who`
 * begins the message: which path, and if it does not fit how much is needed and
 * how much free. The folder's parent must be there. */
ds_status dsi_aio_file_open(dsi_aio_file *f, const char *who, const char *folder, const char *name,
                            int64_t bytes);
void dsi_aio_file_close(dsi_aio_file *f); /* also removes its folder, if it is empty */

/* ---- operations ----------------------------------------------------------------------------------------- */

typedef struct dsi_aio dsi_aio;

typedef struct dsi_aio_op {
    const dsi_aio_file *file;
    void *p;
    size_t bytes;
    int64_t at;
    bool write;
    /* ours */
    bool runs;
    int error;        /* errno of a request */
    size_t cut, left; /* bytes that requests were made of; that have not been done */
    struct dsi_aio_op *after;
} dsi_aio_op;

/* One thread uses it. Never NULL. DS_AIO=threads leaves the kernel's way out. */
dsi_aio *dsi_aio_new(const dsi_aio_opts *o);
void dsi_aio_free(dsi_aio *a);                /* all has been waited for; NULL passes */
const char *dsi_aio_engine(const dsi_aio *a); /* "io_uring", "threads" */

/* Tells the kernel of memory that operations will use again and again; false:
 * it does without. */
bool dsi_aio_pin(dsi_aio *a, void *const *p, size_t bytes, int n);

void dsi_aio_start(dsi_aio *a, dsi_aio_op *op);
/* Until op has ended; nothing if it does not run. A failure is said once, with
 * the file's path. */
ds_status dsi_aio_wait(dsi_aio *a, dsi_aio_op *op);
/* Hands on what may go on; for long work between start and wait. */
void dsi_aio_progress(dsi_aio *a);
/* Whether op has ended well, so that dsi_aio_wait returns DS_OK at once. */
bool dsi_aio_has_ended(dsi_aio *a, const dsi_aio_op *op);
