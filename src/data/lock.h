/* data/lock.h: one process at a time.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DATA_LOCK_H
#define DSI_DATA_LOCK_H

#include <deepspeed/types.h>

typedef struct dsi_lock {
    char *path;
    int fd;
} dsi_lock;

/* Makes the file path and holds it for the caller alone until dsi_lock_drop
 * removes it. While another holds it, says `waiting` on stderr (NULL: nothing)
 * and waits. A process that dies lets go. */
ds_status dsi_lock_take(dsi_lock *lock, const char *path, const char *waiting);
void dsi_lock_drop(dsi_lock *lock);

#endif
