/* base/aio.c: operations on files, divided into requests; the threads that run
 * them where io_uring does not.
 *
 * Operations are in a list, oldest first; a runner takes the next request from
 * the first one. With io_uring the caller's thread is the only runner, inside
 * of dsi_aio_start, dsi_aio_progress and dsi_aio_wait. Otherwise the threads
 * are, and the caller while it waits, so that it works even if no thread could
 * be started.
 *
 * Invariants: one thread calls the functions of a dsi_aio. With threads,
 * `mutex` guards the list and all fields of operations, and is not held during
 * a read or write; with io_uring no other thread reads them. An operation
 * belongs to its caller and stays where it is until dsi_aio_wait has returned;
 * `cut` bytes of it were given to requests, `left` bytes have not ended; it is
 * in the list while cut < bytes. Only dsi_aio_wait blocks.
 * SPDX-License-Identifier: MIT */
#include "aio_engine.h"

#include "env.h"
#include "error.h"
#include "mem.h"
#include "text.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MOST_THREADS 64

struct dsi_aio {
    dsi_aio_opts o;
    dsi_ring *ring;           /* NULL: threads */
    dsi_aio_op *first, *last; /* with something that has not been cut off */
    pthread_mutex_t mutex;
    pthread_cond_t work, changed; /* there is a request; one has ended */
    pthread_t thread[MOST_THREADS];
    int threads; /* that run */
    bool quit;
};

/* ---- files ---------------------------------------------------------------------------------------------- */

static ds_status file_no_space(const dsi_aio_file *f, const char *who, const char *folder,
                               int64_t free)
{
    return dsi_fail(DS_EIO,
                    "%s: %s needs %lld bytes, but %s has %lld free: make room, or choose another "
                    "folder",
                    who, f->path, (long long)f->bytes, folder, (long long)free);
}

static int64_t file_free_bytes(const dsi_aio_file *f)
{
    struct statvfs s;
    return fstatvfs(f->fd, &s) ? -1 : (int64_t)s.f_bavail * (int64_t)s.f_frsize;
}

/* The file's blocks; where a file system cannot reserve them, the free ones are
 * counted. */
static ds_status file_reserve(const dsi_aio_file *f, const char *who, const char *folder)
{
    int64_t free = file_free_bytes(f);
    int error = posix_fallocate(f->fd, 0, f->bytes);
    if (error && free >= f->bytes && !ftruncate(f->fd, 0))
        free = file_free_bytes(f); /* others took it */
    if (error == ENOSPC || error == EFBIG || (error && free >= 0 && free < f->bytes))
        return file_no_space(f, who, folder, free);
    if (error && ftruncate(f->fd, f->bytes))
        return dsi_fail(DS_EIO, "%s: %s: %s", who, f->path, strerror(errno));
    return DS_OK;
}

static ds_status aio_make_folder(const char *who, const char *folder)
{
    char *copy = dsi_strdup(folder);
    struct stat s;
    ds_status status = DS_OK;
    const char *parent = dirname(copy);
    if (stat(parent, &s) || !S_ISDIR(s.st_mode))
        status = dsi_fail(DS_EIO, "%s: there is no folder %s: make it, or name another one", who,
                          parent);
    else if (mkdir(folder, 0777) && errno != EEXIST)
        status = dsi_fail(DS_EIO, "%s: %s cannot be made: %s", who, folder, strerror(errno));
    dsi_free(copy);
    return status;
}

ds_status dsi_aio_file_open(dsi_aio_file *f, const char *who, const char *folder, const char *name,
                            int64_t bytes)
{
    *f = (dsi_aio_file){.fd = -1, .bytes = bytes ? bytes : DSI_AIO_ALIGN};
    if (aio_make_folder(who, folder) != DS_OK) return ds_error_status();
    dsi_text path = dsi_text_of("%s/%s", folder, name);
    f->path = path.s;
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    f->fd = open(f->path, flags | O_DIRECT, 0600);
    f->direct = f->fd >= 0;
    if (!f->direct) unlink(f->path); /* some file systems make it before they refuse */
    if (!f->direct) f->fd = open(f->path, flags, 0600);
    ds_status status = f->fd >= 0 ? DS_OK
                                  : dsi_fail(DS_EIO, "%s: %s: %s", who, f->path, strerror(errno));
    if (status == DS_OK) unlink(f->path);
    if (status == DS_OK) status = file_reserve(f, who, folder);
    if (status != DS_OK) dsi_aio_file_close(f);
    return status;
}

void dsi_aio_file_close(dsi_aio_file *f)
{
    if (!f->path) return;
    if (f->fd >= 0) close(f->fd);
    rmdir(dirname(f->path)); /* fails while others are there */
    dsi_free(f->path);
    *f = (dsi_aio_file){.fd = -1};
}

/* ---- requests ------------------------------------------------------------------------------------------- */

bool dsi_aio_next(dsi_aio *a, dsi_aio_request *r)
{
    dsi_aio_op *op = a->first;
    if (!op) return false;
    size_t bytes = op->bytes - op->cut, most = (size_t)a->o.block_size;
    if (bytes > most) bytes = most;
    *r = (dsi_aio_request){op, (char *)op->p + op->cut, bytes, op->at + (int64_t)op->cut};
    op->cut += bytes;
    if (op->cut == op->bytes) {
        a->first = op->after;
        if (!a->first) a->last = NULL;
    }
    return true;
}

bool dsi_aio_done(dsi_aio_request *r, int64_t n)
{
    if (n == -EINTR || n == -EAGAIN) return true;
    if (n <= 0) { /* 0: the end of the file */
        r->op->error = n ? (int)-n : EIO;
        r->op->left -= r->bytes;
        return false;
    }
    r->op->left -= (size_t)n;
    r->p += n;
    r->at += n;
    r->bytes -= (size_t)n;
    return r->bytes > 0;
}

/* ---- threads -------------------------------------------------------------------------------------------- */

/* With the mutex held: runs the next request, if there is one. */
static bool request_run(dsi_aio *a)
{
    dsi_aio_request r;
    bool again = dsi_aio_next(a, &r);
    if (!again) return false;
    while (again) {
        pthread_mutex_unlock(&a->mutex);
        int fd = r.op->file->fd;
        ssize_t n = r.op->write ? pwrite(fd, r.p, r.bytes, r.at) : pread(fd, r.p, r.bytes, r.at);
        int64_t result = n < 0 ? -errno : n;
        pthread_mutex_lock(&a->mutex);
        again = dsi_aio_done(&r, result);
    }
    pthread_cond_broadcast(&a->changed);
    return true;
}

static void *aio_thread_main(void *arg)
{
    dsi_aio *a = arg;
    pthread_mutex_lock(&a->mutex);
    while (!a->quit)
        if (!request_run(a)) pthread_cond_wait(&a->work, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

static void threads_start(dsi_aio *a)
{
    while (a->threads < a->o.threads && a->threads < MOST_THREADS &&
           !dsi_thread_create(&a->thread[a->threads], aio_thread_main, a))
        a->threads++;
}

/* ---- the face ------------------------------------------------------------------------------------------- */

dsi_aio *dsi_aio_new(const dsi_aio_opts *o)
{
    dsi_aio *a = dsi_alloc(sizeof *a);
    static const char *const ways[] = {"io_uring", "threads", NULL};
    bool wants_ring = dsi_env_word_or("DS_AIO", ways, 0, "io_uring is used") == 0;
    a->o = *o;
    if (a->o.block_size <= 0) a->o.block_size = 1 << 20;
    a->o.block_size = (a->o.block_size + DSI_AIO_ALIGN - 1) / DSI_AIO_ALIGN * DSI_AIO_ALIGN;
    if (a->o.block_size > 1 << 30) a->o.block_size = 1 << 30;
    if (a->o.queue_depth <= 0) a->o.queue_depth = 8;
    if (a->o.threads <= 0) a->o.threads = 1;
    if (wants_ring) a->ring = dsi_ring_new(&a->o);
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->work, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (!a->ring) threads_start(a);
    return a;
}

void dsi_aio_free(dsi_aio *a)
{
    if (!a) return;
    pthread_mutex_lock(&a->mutex);
    a->quit = true;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mutex);
    for (int i = 0; i < a->threads; i++) pthread_join(a->thread[i], NULL);
    dsi_ring_free(a->ring);
    pthread_cond_destroy(&a->work);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    dsi_free(a);
}

const char *dsi_aio_engine(const dsi_aio *a) { return a->ring ? "io_uring" : "threads"; }

bool dsi_aio_pin(dsi_aio *a, void *const *p, size_t bytes, int n)
{
    return a->ring && dsi_ring_pin(a->ring, p, bytes, n);
}

void dsi_aio_start(dsi_aio *a, dsi_aio_op *op)
{
    op->cut = 0;
    op->left = op->bytes;
    op->error = 0;
    op->runs = true;
    op->after = NULL;
    if (!op->bytes) return;
    pthread_mutex_lock(&a->mutex);
    *(a->last ? &a->last->after : &a->first) = op;
    a->last = op;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mutex);
    dsi_aio_progress(a);
}

void dsi_aio_progress(dsi_aio *a)
{
    if (a->ring) dsi_ring_progress(a->ring, a, false);
}

bool dsi_aio_has_ended(dsi_aio *a, const dsi_aio_op *op)
{
    if (!a->ring) pthread_mutex_lock(&a->mutex);
    bool done = !op->runs || (!op->left && !op->error);
    if (!a->ring) pthread_mutex_unlock(&a->mutex);
    return done;
}

ds_status dsi_aio_wait(dsi_aio *a, dsi_aio_op *op)
{
    if (!op->runs) return DS_OK;
    while (a->ring && op->left) dsi_ring_progress(a->ring, a, true);
    if (!a->ring) {
        pthread_mutex_lock(&a->mutex);
        while (op->left)
            if (!request_run(a)) pthread_cond_wait(&a->changed, &a->mutex);
        pthread_mutex_unlock(&a->mutex);
    }
    op->runs = false;
    if (!op->error) return DS_OK;
    return dsi_fail(DS_EIO, "%s: %s at byte %lld: %s", op->write ? "write" : "read", op->file->path,
                    (long long)op->at, strerror(op->error));
}
