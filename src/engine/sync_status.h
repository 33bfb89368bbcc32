/* engine/sync_status.h: what ranks must know of each other where one of them may fail alone, at its files.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_ENGINE_AGREE_H
#define DSI_ENGINE_AGREE_H

#include <deepspeed/comm.h>

/* All ranks call it, each with how it went for itself: DS_OK, or dsi_fail's status. Returns DS_OK if it
 * went well on all, else the status of the first rank that failed, with its message, on all. */
ds_status dsi_sync_status(ds_comm *c, ds_status mine);

/* Rank 0's text on all ranks, to be freed; NULL (also rank 0's) is NULL. Fails with the communicator
 * alone. */
ds_status dsi_broadcast_text(ds_comm *c, const char *text, char **out);

/* Rank 0's number on all ranks. */
ds_status dsi_broadcast_count(ds_comm *c, int64_t *n);

uint64_t dsi_text_hash(const char *text); /* texts that differ are taken to have different ones */

/* Whether the text is the same on all ranks. */
ds_status dsi_sync_same_text(ds_comm *c, const char *text, bool *same);

#endif
