/* data/lock.c: a lock file by flock(2).
 *
 * Invariants: a lock is held by its open descriptor, and ends with the process.
 * The holder removes the file before it unlocks it. So a process that waited
 * may hold a file that has no name any more, which would not keep a third one
 * out: it opens the name again.
 * SPDX-License-Identifier: MIT */
#include "lock.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLL_US 100000

/* Tells whether path is still the name of the open file. */
static bool lock_has_name(int fd, const char *path)
{
    struct stat open_, named;
    return fstat(fd, &open_) == 0 && stat(path, &named) == 0 && open_.st_dev == named.st_dev &&
           open_.st_ino == named.st_ino;
}

/* The latest change of a file in the folder of `path`, in nanoseconds. */
static int64_t folder_changed(const char *path)
{
    const char *slash = strrchr(path, '/');
    dsi_text folder = dsi_text_of("%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    DIR *d = opendir(folder.s);
    int64_t latest = 0;
    struct stat s;
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (fstatat(dirfd(d), e->d_name, &s, 0) != 0) continue;
        int64_t at = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec;
        if (at > latest) latest = at;
    }
    if (d) closedir(d);
    dsi_text_free(&folder);
    return latest;
}

/* Waits until fd is locked: 0, or -1 with errno; EWOULDBLOCK: nothing has
 * changed for idle_s seconds. */
static int lock_wait(int fd, const char *path, double idle_s)
{
    int64_t changed = folder_changed(path);
    double since = dsi_now();
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return -1;
        int64_t latest = folder_changed(path);
        if (latest != changed) since = dsi_now();
        changed = latest;
        if (dsi_now() - since > idle_s) {
            errno = EWOULDBLOCK;
            return -1;
        }
        usleep(POLL_US);
    }
    return 0;
}

/* Repeats until the file that it has locked is the one that has the name. */
ds_status dsi_lock_take(dsi_lock *lock, const char *path, const char *waiting, double idle_s)
{
    *lock = (dsi_lock){.fd = -1};
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) return dsi_fail(DS_EIO, "lock: %s: %s", path, strerror(errno));

        int rc = flock(fd, LOCK_EX | LOCK_NB);
        if (rc != 0 && errno == EWOULDBLOCK) {
            if (waiting) fprintf(stderr, "%s\n", waiting);
            waiting = NULL;
            rc = lock_wait(fd, path, idle_s);
        }
        /* a file system without locks: go on as if alone; files are replaced as
         * a whole anyway */
        bool held = rc == 0 || errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS;
        if (!held) {
            if (errno == EWOULDBLOCK)
                dsi_fail(DS_EIO,
                         "lock: another process has had %s for %.3g s, and writes nothing: end it "
                         "(fuser -v %s names it) and try again",
                         path, idle_s, path);
            else
                dsi_fail(DS_EIO, "lock: %s: %s", path, strerror(errno));
            close(fd);
            return DS_EIO;
        }
        if (lock_has_name(fd, path)) {
            lock->fd = fd;
            lock->path = dsi_strdup(path);
            return DS_OK;
        }
        close(fd);
    }
}

/* Removes the name before the descriptor is closed, which unlocks the file. */
void dsi_lock_drop(dsi_lock *lock)
{
    if (!lock->path) return;
    unlink(lock->path);
    close(lock->fd);
    dsi_free(lock->path);
    *lock = (dsi_lock){.fd = -1};
}
