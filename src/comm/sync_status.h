/* comm/sync_status.h: collectives for work that can fail on one rank alone,
 * as files do.
 *
 * Invariants: all functions are collective and block; all ranks call them in
 * the same order, also those that have failed. With one rank they return at
 * once. They use the communicator's ordered collectives, so none may be called
 * while a bucket is being reduced. They send host memory, without NCCL, so that
 * a rank that then fails, and aborts NCCL, does not disturb the others. The first
 * of them is public: ds_comm_sync_status.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/comm.h>

/* ds_comm_sync_status after work that a slow disk may delay on some rank: the others wait
 * for DS_SAVE_TIMEOUT seconds. */
ds_status dsi_sync_disk(ds_comm *c, const char *folder, ds_status mine);

/* *out: a copy of rank 0's text, to be freed, or NULL if that is NULL. Fails
 * only if the communicator does. */
ds_status dsi_broadcast_text(ds_comm *c, const char *text, char **out);

/* *n becomes rank 0's number. */
ds_status dsi_broadcast_count(ds_comm *c, int64_t *n);

/* The n bytes of host memory at p become those of rank `root`. */
ds_status dsi_broadcast_bytes(ds_comm *c, void *p, int64_t n, int root);

/* *rank: the first rank whose number is not rank 0's, or 0; two: rank 0's number
 * and that rank's. */
ds_status dsi_sync_find_different(ds_comm *c, int64_t mine, int *rank, int64_t two[2]);

/* *same: whether the text is the same on all ranks, by its hash. */
ds_status dsi_sync_same_text(ds_comm *c, const char *text, bool *same);

/* Each of the n numbers becomes the largest of all ranks. */
ds_status dsi_sync_max(ds_comm *c, int64_t *x, int64_t n);
