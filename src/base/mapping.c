/* base/mapping.c: a whole file in memory.
 *
 * A large file is mapped: reading it costs no memory but the page cache's.
 * Behind its last page there is one more of zeros, as vectors may read past the
 * end of the last tensor. Small files, where a copy costs nothing, are copied:
 * a mapped file that is made shorter in place loses its pages, and reading them
 * is a SIGBUS.
 *
 * Invariants: the mapping is private: a page that is written to becomes this
 * process's own. It outlives a rename over its file. `refs` is not atomic: a
 * mapping belongs to one thread. bytes <= MAX_BYTES; p is aligned to 64.
 * SPDX-License-Identifier: MIT */
#include "mapping.h"

#include "crc.h"
#include "error.h"
#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN     64
#define HUGE_PAGE ((size_t)2 << 20)
#define PAST_END  64 /* bytes that may be read behind the last */
#define AHEAD     ((off_t)1 << 30)
#define PIECE     ((size_t)2 << 20)
#define MAX_BYTES (SIZE_MAX / 4)

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* of Linux 5.14 */
#endif

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t mapping_bytes(size_t bytes)
{
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes() + page_bytes();
}

/* Room for the file and the page behind it, and then the file over its
 * beginning. */
static unsigned char *mapping_map(int fd, size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_NORESERVE;
    void *room = mmap(NULL, mapping_bytes(bytes), PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1,
                      0);
    if (room == MAP_FAILED) return NULL;
    if (mmap(room, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) != MAP_FAILED)
        return room;
    int error = errno;
    munmap(room, mapping_bytes(bytes));
    errno = error;
    return NULL;
}

static unsigned char *mapping_copy(int fd, size_t bytes)
{
    unsigned char *p = aligned_alloc(ALIGN, (bytes + PAST_END + ALIGN - 1) / ALIGN * ALIGN);
    for (size_t at = 0; p && at < bytes;) {
        ssize_t got = read(fd, p + at, bytes - at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) { /* an error, or the file became shorter */
            if (!got) errno = EIO;
            free(p);
            return NULL;
        }
        at += (size_t)got;
    }
    if (p) memset(p + bytes, 0, PAST_END);
    return p;
}

dsi_mapping *dsi_mapping_open(const char *what, const char *path, int *kept)
{
    if (kept) *kept = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for a writer */
    struct stat st = {0};
    const char *why = fd < 0 || fstat(fd, &st) ? strerror(errno)
                      : S_ISDIR(st.st_mode)    ? "is a folder"
                      : !S_ISREG(st.st_mode) || (uintmax_t)st.st_size > MAX_BYTES
                          ? "not a regular file"
                          : NULL;
    if (why) {
        dsi_fail(DS_EIO, "%s: %s: %s", what, path, why);
        if (fd >= 0) close(fd);
        return NULL;
    }
    dsi_mapping *m = dsi_alloc(sizeof *m);
    *m = (dsi_mapping){.bytes = (size_t)st.st_size, .refs = 1};
    m->mapped = m->bytes >= DSI_MAPPED_BYTES;
    posix_fadvise(fd, 0, st.st_size < AHEAD ? st.st_size : AHEAD, POSIX_FADV_SEQUENTIAL);
    m->p = m->mapped ? mapping_map(fd, m->bytes) : mapping_copy(fd, m->bytes);
    if (!m->p) {
        dsi_fail(errno == ENOMEM ? DS_ENOMEM : DS_EIO, "%s: %s: %s", what, path, strerror(errno));
        dsi_free(m);
        m = NULL;
    }
    if (m && kept)
        *kept = fd;
    else
        close(fd);
    return m;
}

void dsi_mapping_unref(void *mapping)
{
    dsi_mapping *m = mapping;
    if (!m || --m->refs > 0) return;
    if (m->mapped)
        munmap(m->p, mapping_bytes(m->bytes));
    else
        free(m->p);
    dsi_free(m);
}

void dsi_mapping_drop_pages(const dsi_mapping *m, const void *bytes, size_t n)
{
    if (!m || !m->mapped) return;
    size_t at = (size_t)((const unsigned char *)bytes - m->p);
    size_t begin = (at + page_bytes() - 1) / page_bytes() * page_bytes(),
           end = (at + n) / page_bytes() * page_bytes();
    if (begin < end) (void)madvise(m->p + begin, end - begin, MADV_DONTNEED); /* a hint */
}

void dsi_mapping_advise_random(const dsi_mapping *m)
{
    if (m && m->mapped) (void)madvise(m->p, m->bytes, MADV_RANDOM); /* no reading around a fault */
}

void dsi_mapping_prefetch(const dsi_mapping *m, const void *bytes, size_t n)
{
    if (!m || !m->mapped || !n) return;
    size_t at = (size_t)((const unsigned char *)bytes - m->p),
           begin = at / page_bytes() * page_bytes();
    (void)madvise(m->p + begin, at + n - begin, MADV_WILLNEED);
}

/* By pread, which says what is wrong. */
static bool mapping_sum_by_reading(int fd, size_t at, size_t n, uint32_t *crc)
{
    unsigned char *piece = dsi_alloc(n);
    ssize_t got = 1;
    for (size_t done = 0; got > 0 && done < n; done += (size_t)got) {
        do {
            got = pread(fd, piece, n - done, (off_t)(at + done));
        } while (got < 0 && errno == EINTR);
        if (got > 0) *crc = dsi_crc32(*crc, piece, (size_t)got);
        if (!got) errno = 0;
    }
    int error = errno;
    dsi_free(piece);
    errno = error;
    return got > 0;
}

/* Where they are mapped, which costs no copy. Their pages are asked for first,
 * a piece at a time: that fails where touching one would be a signal. */
bool dsi_mapping_sum(const dsi_mapping *m, int fd, size_t at, size_t n, bool forget, uint32_t *crc)
{
    bool good = true;
    *crc = 0;
    for (size_t some; good && n; n -= some, at += some) {
        some = n < PIECE ? n : PIECE;
        size_t begin = at / page_bytes() * page_bytes();
        bool there = !m->mapped || !madvise(m->p + begin, at + some - begin, MADV_POPULATE_READ);
        if (there)
            *crc = dsi_crc32(*crc, m->p + at, some);
        else
            good = mapping_sum_by_reading(fd, at, some, crc);
        if (good) dsi_count_read(some);
        if (forget) dsi_mapping_drop_pages(m, m->p + at, some);
    }
    return good;
}

static _Thread_local int64_t bytes_read;

int64_t dsi_bytes_read(void) { return bytes_read; }

void dsi_count_read(size_t n) { bytes_read += (int64_t)n; }
