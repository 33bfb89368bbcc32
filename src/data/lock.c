/* data/lock.c: a lock file by flock(2).
 *
 * Invariants: a lock is held by its open descriptor, and ends with the process.
 * The holder removes the file before it unlocks it. So a process that waited
 * may hold a file that has no name any more, which would not keep a third one
 * out: it opens the name again.
 * SPDX-License-Identifier: MIT */
#include "lock.h"

#include "base/error.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Tells whether path is still the name of the open file. */
static bool lock_has_name(int fd, const char *path)
{
    struct stat open_, named;
    return fstat(fd, &open_) == 0 && stat(path, &named) == 0 && open_.st_dev == named.st_dev &&
           open_.st_ino == named.st_ino;
}

/* Repeats until the file that it has locked is the one that has the name. */
ds_status dsi_lock_take(dsi_lock *lock, const char *path, const char *waiting)
{
    *lock = (dsi_lock){.fd = -1};
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) return dsi_fail(DS_EIO, "lock: %s: %s", path, strerror(errno));

        int rc = flock(fd, LOCK_EX | LOCK_NB);
        if (rc != 0 && errno == EWOULDBLOCK) {
            if (waiting) fprintf(stderr, "%s\n", waiting);
            waiting = NULL;
            while ((rc = flock(fd, LOCK_EX)) != 0 && errno == EINTR) continue;
        }
        /* a file system without locks: go on as if alone; files are replaced as
         * a whole anyway */
        bool held = rc == 0 || errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS;
        if (!held) {
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
