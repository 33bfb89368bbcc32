/* data/lock.h: one process at a time.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

typedef struct dsi_lock {
    char *path;
    int fd;
} dsi_lock;

/* Creates the lock file path and locks it until dsi_lock_drop removes it. While
 * another process has the lock, prints `waiting` on stderr (NULL: nothing) and
 * blocks, as long as files of the folder appear or grow; after idle_s seconds
 * without that it gives up: DS_EIO. The lock of a process that dies is
 * released. DS_EIO also if the file cannot be made; a file system without locks
 * counts as locked. */
ds_status dsi_lock_take(dsi_lock *lock, const char *path, const char *waiting, double idle_s);
/* Removes the file and unlocks it; nothing if the lock is not held. */
void dsi_lock_drop(dsi_lock *lock);
