/* engine/checkpoint/folder_lock.c: which jobs may use a folder at the same time.
 *
 * A save excludes all others: it removes what killed saves have left, and another
 * job's files would be among that. Loads from folders of hosts share it, since they
 * may bring files there. A save waits for loads, which end soon; it does not wait
 * for another save, which is a mistake of the user.
 *
 * A load that recovers versions has the folder alone, too. A save has also locked its
 * .saving-TAG, by which others tell the two apart; the folder of a save that was killed
 * stays, its lock does not.
 *
 * Invariants: a lock is an open file, and ends with the process at the latest; if that
 * is killed while a child lives that it has forked (without exec), with that child.
 * The system grants one without order: who waits for one has none on another host
 * (local_lock), or has marked its save, which is not waited for. So there is no
 * deadlock: tests/protocols/lock.pml.
 * SPDX-License-Identifier: MIT */
#include "folder.h"

#include "base/clock.h"
#include "base/error.h"
#include "comm/comm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define AGAIN_MS 5
/* Of DS_SAVE_TIMEOUT: the other ranks wait that long for the one that waits for the
 * lock, and its reason is to come before they give up. */
#define LOCK_SHARE 0.9

static ds_status lock_open(const char *dir, int *lock)
{
    *lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *lock >= 0 ? DS_OK : dsi_fail(DS_EIO, "open %s: %s", dir, strerror(errno));
}

/* A forked child has the file open, too: close alone would leave it locked. */
void dsi_folder_close_lock(int *lock)
{
    if (*lock >= 0) {
        flock(*lock, LOCK_UN);
        close(*lock);
    }
    *lock = -1;
}

/* Tries `how`. *taken: another job has the folder. A file system without locks
 * excludes no other job. */
static void lock_try(int *lock, int how, bool *taken)
{
    *taken = false;
    if (flock(*lock, how | LOCK_NB) == 0) return;
    *taken = errno == EWOULDBLOCK;
    if (!*taken) dsi_folder_close_lock(lock);
}

/* Several may ask this at the same time: they share the lock, which a save has alone.
 * A folder that cannot be opened, as another user's, may be a living save's. */
static bool saving_is_alive(const char *dir, const char *name)
{
    bool alive;
    char *saving = dsi_path_in(dir, name);
    int fd = open(saving, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        alive = errno != ENOENT && errno != ENOTDIR;
    else
        alive = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    dsi_folder_close_lock(&fd);
    dsi_free(saving);
    return alive;
}

bool dsi_folder_is_saved_to(const char *dir)
{
    DIR *d = opendir(dir);
    bool found = false;
    for (const struct dirent *e; d && !found && (e = readdir(d));)
        found = !strncmp(e->d_name, DSI_SAVING, strlen(DSI_SAVING)) &&
                saving_is_alive(dir, e->d_name);
    if (d) closedir(d);
    return found;
}

/* Waits for those who ask saving_is_alive. */
void dsi_folder_mark_saving(const char *saving, int *lock)
{
    *lock = open(saving, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (*lock >= 0 && flock(*lock, LOCK_EX) && errno == EINTR) {}
}

void dsi_folder_unlock(dsi_folder_locks *locks)
{
    dsi_folder_close_lock(&locks->saving);
    dsi_folder_close_lock(&locks->dir);
}

/* A shared lock can be had beside loads, but not beside a save. */
ds_status dsi_folder_lock(const char *dir, int *lock)
{
    double limit = LOCK_SHARE * dsi_comm_save_timeout(), end = dsi_now() + limit;
    bool taken, saves;
    if (lock_open(dir, lock) != DS_OK) return ds_error_status();
    for (;;) {
        lock_try(lock, LOCK_EX, &taken);
        if (!taken) return DS_OK;
        lock_try(lock, LOCK_SH, &saves);
        saves = saves && dsi_folder_is_saved_to(dir);
        if (saves || dsi_now() > end) break;
        flock(*lock, LOCK_UN);
        nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS * 1000000}, NULL);
    }
    dsi_folder_close_lock(lock);
    if (saves)
        return dsi_fail(DS_ESTATE, "another job is saving to %s: give each job a folder of its own",
                        dir);
    return dsi_fail(DS_ESTATE,
                    "another job has been loading from %s for longer than %.3g s (DS_SAVE_TIMEOUT)",
                    dir, limit);
}

ds_status dsi_folder_try_lock(const char *dir, bool exclusive, int *lock, bool *taken)
{
    *taken = false;
    if (lock_open(dir, lock) != DS_OK) return ds_error_status();
    lock_try(lock, exclusive ? LOCK_EX : LOCK_SH, taken);
    if (*taken) dsi_folder_close_lock(lock);
    return DS_OK;
}
