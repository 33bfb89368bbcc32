/* engine/checkpoint/hosts.h: which ranks share a checkpoint folder, where each
 * host has its own; and files that hosts send each other.
 *
 * Note [Node-local storage]
 * With "checkpoint": {"use_node_local_storage": true} each host has a folder of
 * its own: on its disk, or in its memory. A save writes there, in this order:
 *
 *   each          its files to .saving-TAG of its host                    sync
 *   each          the lists of all ranks' files
 *   each          its files to a rank of the next host, which writes them
 *                 to its own .saving-TAG, and compares the check sums      sync
 *   first ranks   the manifest of all ranks, then the name; a checkpoint of
 *                 that tag becomes .old-TAG                               sync
 *   first ranks   all .old-* are removed; latest                             sync
 *   first ranks   remove old checkpoints: the same on all hosts
 *
 * So DIR/TAG of a host has the manifest of the whole checkpoint, the files of
 * its own ranks, and those of the host before it: whatever one host loses, the
 * others have. A version is a tag, and the serial and check sum of its
 * manifest. Hosts may have different versions of a tag if they were killed
 * between their renames: then no host has passed the sync after them, or else
 * all have the new one. Before the next save or load, recovery takes the new
 * version if all its files are somewhere, and else gives .old-TAG its name
 * back. The version that is taken is completed on all hosts: only after that is
 * .old-TAG removed, for the loss of a host may leave the new version without a
 * file. A new one that is not whole becomes .old-TAG, since hosts that are away
 * may make it whole, until a newer version is whole on all hosts.
 *
 * A load takes the newest version of which each file is on some host with its
 * size and check sum; what a host needs and lacks is sent to it, and so are the
 * copies for which it is the next host. On another number of ranks each host
 * gets all files.
 *
 * Invariants: when a first save has ended, some version is complete from then
 * on: each host has its own files and those of the host before; or, after the
 * loss of a host, until a load has made the copies again, each file is on some
 * host. A host is the ranks that see each other's files in the folder, whatever
 * the machine; hosts are numbered in the order of their first ranks. The
 * communicator is of all ranks: it belongs to the thread of an asynchronous
 * save while there is one, and else to the rank's own. All functions with a
 * dsi_hosts are collective over it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "manifest.h"

#include <deepspeed/comm.h>

typedef struct dsi_hosts {
    char *dir; /* this rank's */
    ds_comm *comm;
    int rank, ranks, n; /* n: hosts */
    int *host;          /* [ranks] of each rank */
    const char *caller; /* the public function: begins messages */
    bool recovered;     /* what each host has of a tag is the newest whole version */
    bool swept;         /* dsi_folder_sweep_checkpoints, on the first rank of a host */
} dsi_hosts;

/* Makes dir, unless it is to load and no rank has it. *out NULL with DS_OK:
 * that, or to load from a folder to which no rank may write: then the folder is
 * taken for a shared one. */
ds_status dsi_hosts_open(dsi_hosts **out, ds_comm *comm, const char *dir, bool to_load);
void dsi_hosts_free(dsi_hosts *h); /* NULL is ignored */

/* ds_comm_sync_status, with h->caller before this rank's message. */
ds_status dsi_hosts_sync(const dsi_hosts *h, ds_status status);

/* Not collective: whether this rank is the first one of its host; how many
 * ranks a host has; its i-th one, from the first one again after the last. */
bool dsi_hosts_is_first(const dsi_hosts *h);
int dsi_hosts_size(const dsi_hosts *h, int host);
int dsi_hosts_rank(const dsi_hosts *h, int host, int i);
int dsi_hosts_place(const dsi_hosts *h, int rank); /* its i */

/* The texts of all ranks: that of rank r at p + r * stride; p is to be freed. */
typedef struct dsi_texts {
    char *p;
    size_t stride;
} dsi_texts;
ds_status dsi_hosts_gather(const dsi_hosts *h, const char *mine, dsi_texts *all);

/* Files that one rank sends to another. */
typedef struct dsi_sending {
    int from, to;
    DSI_LIST(const dsi_manifest_file *)
} dsi_sending;

typedef struct dsi_sendings {
    DSI_LIST(dsi_sending)
} dsi_sendings;

/* Adds f to the files from one rank to another. */
void dsi_sendings_add(dsi_sendings *all, int from, int to, const dsi_manifest_file *f);
void dsi_sendings_free(dsi_sendings *all);

/* Sends and receives what is this rank's of them, between `folder` of either.
 * At the receiver each file has its name when it is whole (replace), or at
 * once. Returns this rank's status; DS_ECOMM if the ranks cannot go on. */
ds_status dsi_hosts_send(const dsi_hosts *h, const dsi_sendings *all, const char *folder,
                         bool replace);
