/* base/file.c: whole files: read one, and replace one without ever leaving half
 * of it.
 *
 * To replace a file is to write another one beside it, on the same file system,
 * to sync it to the disk, and to rename it: rename either happens or does not,
 * also when the power fails. The writer holds a lock (flock) on the other one:
 * a file without a lock was left by a killed program, and the next program that
 * replaces the file removes it.
 *
 * Invariants: a dsi_file belongs to one thread. Its first error is kept, later
 * writes do nothing, and dsi_file_commit returns it, so that a caller with a
 * hundred writes checks once. Until the commit the old file is untouched;
 * dsi_file_commit frees the struct in any case, and removes the new file after
 * an error. All functions may block on the disk.
 * SPDX-License-Identifier: MIT */
#include "file.h"

#include "clock.h"
#include "error.h"
#include "mem.h"
#include "text.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* "write runs/net.pth: No space left on device" */
static ds_status file_io_error(const char *doing, const char *path, int error)
{
    return dsi_fail(DS_EIO, "%s %s: %s", doing, path, strerror(error));
}

/* A write that failed after that number of bytes; if the disk is full or the
 * file may not grow, also the remedy. */
static ds_status file_write_error(const char *path, int error, int64_t bytes)
{
    if (error != ENOSPC && error != EDQUOT && error != EFBIG)
        return file_io_error("write", path, error);
    return dsi_fail(DS_EIO, "write %s: %s after %lld bytes: %s", path, strerror(error),
                    (long long)bytes,
                    error == EFBIG ? "raise the limit (ulimit -f)"
                                   : "free some space, or choose another folder");
}

bool dsi_file_exists(const char *path)
{
    struct stat s;
    return path && stat(path, &s) == 0;
}

bool dsi_is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

#define DEVICE_BYTES ((size_t)1 << 20) /* most that is read of one, such as /dev/zero */
#define WRITER_MS    10000             /* that a FIFO waits for its writer */

bool dsi_is_no_file(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && !S_ISREG(s.st_mode);
}

/* ---- read ---------------------------------------------------------------------------------------- */

/* Reads to the end: pipes and /proc say no size. NULL, with errno, if that does
 * not work, or if there are more than `most` bytes (EFBIG). fifo: its end is
 * not the end of the text before a writer has come; without one it is empty. */
static char *file_read_all(int fd, size_t hint, size_t most, bool fifo, size_t *bytes)
{
    size_t room = hint + 1, n = 0;
    char *data = malloc(room);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (data) {
        if (n + 1 >= room) {
            char *more = room > SIZE_MAX / 4 ? NULL : realloc(data, room *= 2);
            if (!more) break;
            data = more;
        }
        ssize_t got = read(fd, data + n, room - n - 1);
        if (got < 0 && errno == EAGAIN && poll(&p, 1, -1) >= 0) continue;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) break;
        if (got == 0 && fifo && !n) {
            fifo = false;
            poll(&p, 1, WRITER_MS);
            continue;
        }
        if (got == 0) {
            data[n] = 0;
            *bytes = n;
            return data;
        }
        n += (size_t)got;
        if (n > most) {
            errno = EFBIG;
            break;
        }
    }
    free(data);
    return NULL;
}

/* Without O_NONBLOCK the open of a FIFO would wait for a writer. */
static char *file_read_with(const char *path, size_t *bytes, bool regular)
{
    if (!path) return dsi_refuse("read: the path is NULL");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        file_io_error("read", path, errno);
        return NULL;
    }
    struct stat s;
    bool known = fstat(fd, &s) == 0, device = known && S_ISCHR(s.st_mode);
    size_t most = device ? DEVICE_BYTES : SIZE_MAX;
    size_t n = 0, hint = known && s.st_size > 0 ? (size_t)s.st_size : 4096;
    char *data = NULL;
    if (regular && known && !S_ISREG(s.st_mode))
        dsi_fail(DS_EIO, "read %s: %s", path,
                 S_ISDIR(s.st_mode) ? strerror(EISDIR) : "not a regular file");
    else if (!(data = file_read_all(fd, hint + 1, most, known && S_ISFIFO(s.st_mode), &n)))
        device &&errno == EFBIG
            ? dsi_fail(DS_EIO, "read %s: a device without an end: expected a file", path)
            : file_io_error("read", path, errno);
    if (bytes) *bytes = n;
    close(fd);
    return data;
}

char *dsi_file_read(const char *path, size_t *bytes) { return file_read_with(path, bytes, false); }

char *dsi_file_read_regular(const char *path, size_t *bytes)
{
    return file_read_with(path, bytes, true);
}

/* ---- replace ------------------------------------------------------------------------------------- */

#define BUFFER (64 * 1024)
#define AHEAD  (8 << 20) /* bytes that are on their way to the disk while the next ones are made */

struct dsi_file {
    char *path, *temporary; /* temporary: what is written, and then renamed to path; path itself */
    int fd;
    int error;              /* errno of the first failure, 0: none */
    size_t n;               /* bytes in buffer */
    off_t written, started; /* bytes; of these, on their way to the disk */
    char buffer[BUFFER];
};

static void file_free(dsi_file *f)
{
    if (f->temporary != f->path) dsi_free(f->temporary);
    dsi_free(f->path);
    dsi_free(f);
}

/* Messages name `path`, which the caller asked for. fd: -1, with errno, if
 * temporary could not be opened. */
static dsi_file *file_of(char *path, char *temporary, int fd)
{
    dsi_file *f = dsi_alloc(sizeof *f);
    f->path = path; /* no assignment of all: it would clear the buffer once more */
    f->temporary = temporary;
    f->fd = fd;
    if (fd >= 0) return f;
    file_io_error("write", path, errno);
    file_free(f);
    return NULL;
}

char *dsi_temporary_name(const char *path)
{
    uint32_t once;
    if (getrandom(&once, sizeof once, GRND_NONBLOCK) < 0)
        once = (uint32_t)(uint64_t)(dsi_now() * 1e9);
    return dsi_text_of("%s.tmp.%ld-%08x", path, (long)getpid(), once).s;
}

/* Whether name is dsi_temporary_name of base, which has n letters. */
static bool is_temporary_name(const char *name, const char *base, size_t n)
{
    if (strncmp(name, base, n) != 0 || strncmp(name + n, ".tmp.", 5) != 0) return false;
    const char *at = name + n + 5, *pid = at;
    while (isdigit((unsigned char)*at)) at++;
    return at > pid && *at == '-' && strspn(at + 1, "0123456789abcdef") == 8 && !at[9];
}

static dsi_text folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return dsi_text_of("%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
}

/* Removes the files of programs that were killed while they replaced path: they
 * have no lock. A file system without locks keeps them. */
static void file_remove_dead(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    dsi_text folder = folder_of(path);
    DIR *d = opendir(folder.s);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (!is_temporary_name(e->d_name, base, strlen(base))) continue;
        struct stat s;
        int fd = openat(dirfd(d), e->d_name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && !flock(fd, LOCK_EX | LOCK_NB))
            unlinkat(dirfd(d), e->d_name, 0);
        if (fd >= 0) close(fd);
    }
    if (d) closedir(d);
    dsi_text_free(&folder);
}

/* Makes the file and locks it. Another process may have found it before it was
 * locked, and removed it: then it is made again. */
static int temporary_open(const char *temporary)
{
    for (;;) {
        struct stat s;
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        bool locked = fd < 0 || !flock(fd, LOCK_EX | LOCK_NB);
        if (!locked && errno != EWOULDBLOCK) return fd; /* a file system without locks */
        if (locked && (fd < 0 || fstat(fd, &s) || s.st_nlink)) return fd;
        close(fd);
        unlink(temporary);
    }
}

dsi_file *dsi_file_replace(const char *path)
{
    if (!path) return dsi_refuse("write: the path is NULL");
    file_remove_dead(path);
    char *temporary = dsi_temporary_name(path);
    int fd = temporary_open(temporary);
    return file_of(dsi_strdup(path), temporary, fd);
}

ds_status dsi_file_check_replace(const char *path)
{
    if (path && dsi_is_folder(path)) return file_io_error("write", path, EISDIR);
    dsi_file *f = dsi_file_replace(path);
    dsi_file_abandon(f);
    return f ? DS_OK : ds_error_status();
}

dsi_file *dsi_file_create(const char *path)
{
    if (!path) return dsi_refuse("write: the path is NULL");
    char *copy = dsi_strdup(path);
    return file_of(copy, copy, open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_TRUNC, 0666));
}

static void file_write_out(dsi_file *f, const char *data, size_t bytes)
{
    while (bytes && !f->error) {
        ssize_t put = write(f->fd, data, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            f->error = errno;
            return;
        }
        data += put;
        bytes -= (size_t)put;
        f->written += put;
    }
    if (f->written - f->started < AHEAD) return;
    /* a hint: what comes of it is seen by fsync */
    (void)sync_file_range(f->fd, f->started, f->written - f->started, SYNC_FILE_RANGE_WRITE);
    f->started = f->written;
}

static void file_flush(dsi_file *f)
{
    file_write_out(f, f->buffer, f->n);
    f->n = 0;
}

void dsi_file_write(dsi_file *f, const void *data, size_t bytes)
{
    if (!f || f->error || !bytes) return;
    if (f->n + bytes > BUFFER) file_flush(f);
    if (bytes > BUFFER) {
        file_write_out(f, data, bytes);
    } else {
        memcpy(f->buffer + f->n, data, bytes);
        f->n += bytes;
    }
}

/* Not a device that was there before, as /dev/full. */
static void file_remove_written(const dsi_file *f)
{
    struct stat s;
    if (lstat(f->temporary, &s) == 0 && S_ISREG(s.st_mode)) unlink(f->temporary);
}

bool dsi_file_failed(const dsi_file *f) { return !f || f->error; }

/* Writes the folder to the disk: it contains the new name, which is safe only
 * then. Not every file system can. */
static void file_sync_folder(const char *path)
{
    dsi_text folder = folder_of(path);
    int fd = open(folder.s, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    dsi_text_free(&folder);
}

static ds_status file_commit(dsi_file *f, bool synced)
{
    if (!f) return dsi_null_operand("write"), DS_EIO;
    file_flush(f);
    /* without the time of change; EINVAL: something that cannot be synced, as
     * /dev/full and pipes */
    if (synced && !f->error && fdatasync(f->fd) && errno != EINVAL) f->error = errno;
    bool beside = f->temporary != f->path;
    int locked = beside ? fcntl(f->fd, F_DUPFD_CLOEXEC, 0) : -1; /* until it has its name */
    if (close(f->fd) && !f->error) f->error = errno;
    if (!f->error && beside && rename(f->temporary, f->path)) f->error = errno;
    if (locked >= 0) close(locked);
    ds_status status = DS_OK;
    if (f->error) {
        file_remove_written(f);
        status = file_write_error(f->path, f->error, f->written);
    } else if (synced && beside) {
        file_sync_folder(f->path);
    }
    file_free(f);
    return status;
}

ds_status dsi_file_commit(dsi_file *f) { return file_commit(f, true); }

ds_status dsi_file_commit_unsynced(dsi_file *f) { return file_commit(f, false); }

void dsi_file_abandon(dsi_file *f)
{
    if (!f) return;
    close(f->fd);
    file_remove_written(f);
    file_free(f);
}

/* ---- folders ------------------------------------------------------------------------------------- */

ds_status dsi_mkdirs(const char *path)
{
    if (!path || !*path) return dsi_fail(DS_EINVAL, "mkdir: the path is empty");
    char *part = dsi_strdup(path);
    int error = 0;
    for (char *p = part + 1; !error; p++) {
        if (*p && *p != '/') continue;
        char end = *p;
        *p = 0;
        struct stat s;
        if (mkdir(part, 0777) && errno != EEXIST) error = errno;
        /* what is there may also be in the way */
        if (!error && (stat(part, &s) || !S_ISDIR(s.st_mode))) error = ENOTDIR;
        if (error) file_io_error("mkdir", part, error);
        *p = end;
        if (!end) break;
    }
    dsi_free(part);
    return error ? DS_EIO : DS_OK;
}

ds_status dsi_file_copy_if_there(const char *from, const char *to, const char *name)
{
    dsi_text source = dsi_text_of("%s/%s", from, name), target = dsi_text_of("%s/%s", to, name);
    ds_status status = DS_OK;
    if (dsi_file_exists(source.s)) {
        size_t bytes = 0;
        char *data = dsi_file_read_regular(source.s, &bytes);
        dsi_file *f = data ? dsi_file_replace(target.s) : NULL;
        if (f) dsi_file_write(f, data, bytes);
        status = f ? dsi_file_commit(f) : ds_error_status();
        dsi_free(data);
    }
    dsi_text_free(&source), dsi_text_free(&target);
    return status;
}

ds_status dsi_file_copy_all(const char *from, const char *to, const char *folder, const char *end)
{
    dsi_text source = dsi_text_of("%s/%s", from, folder), target = dsi_text_of("%s/%s", to, folder);
    ds_status status = DS_OK;
    DIR *d = opendir(source.s);
    for (const struct dirent *e; d && status == DS_OK && (e = readdir(d));) {
        if (!dsi_ends_with(e->d_name, end)) continue;
        status = dsi_mkdirs(target.s);
        if (status == DS_OK) status = dsi_file_copy_if_there(source.s, target.s, e->d_name);
    }
    if (d) closedir(d);
    dsi_text_free(&source), dsi_text_free(&target);
    return status;
}
