/* engine/checkpoint/folder.h: checkpoints in a folder: one that is written
 * becomes visible as a whole, or not at
 * all.
 *
 * Note [Whole checkpoints]
 *
 *     DIR/latest              the tag of the newest one: DeepSpeed's file
 *     DIR/latest_universal    the same for universal checkpoints (load_universal.c)
 *     DIR/global_step120/     a checkpoint: DeepSpeed's files, and `manifest` (manifest.h)
 *     DIR/.saving-TAG/        one that is being written
 *     DIR/.loading-TAG.tmp.X/ one that a load is making, to receive files of other hosts
 *     DIR/.old-TAG/           one that is being replaced, where a file system cannot exchange two names
 *     DIR/.exchanging-TAG/    there, DIR/TAG while it changes places with .old-TAG
 *     DIR/.removing-TAG/      one that is being removed
 *
 * Files are written to .saving-TAG and synced to the disk one by one; each rank
 * but rank 0 then writes the list of its own, manifest.RANK. When all ranks have,
 * rank 0 merges them into `manifest`, syncs the folder and renames it to DIR/TAG: the
 * one step that either happened or did not. `latest` is replaced after it, in
 * the same manner.
 *
 * Invariants: at any moment, DIR/TAG has a manifest and all of its files, or
 * does not exist; `latest` names a tag that was complete when it was written.
 * The functions that write are called on rank 0 only, except that each rank
 * writes its own files into .saving-TAG. The locks are held from dsi_folder_begin
 * until the files are written; .saving-TAG without a lock is a killed save's. Hidden folders of these names, and temporary files of
 * processes that are gone, are what a killed save or load left; the next save
 * removes them. With node-local storage each host has such a
 * folder of its own, whose names are changed by the host's first rank; a folder
 * that was replaced stays as .old-TAG until all hosts have replaced theirs:
 * Note [Node-local storage] in hosts.h.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "manifest.h"

#define DSI_LATEST           "latest"
#define DSI_LATEST_UNIVERSAL "latest_universal"

#define DSI_SAVING ".saving-" /* begins the name of a checkpoint that is being written */
#define DSI_PROBE  ".rank-" /* begins the names of files by which ranks see each other (hosts.c) */

#define DSI_MOST_TAG 200 /* bytes: names of files are made of it */

DSI_SHARED char *dsi_path_in(const char *folder, const char *name); /* folder/name, to be freed */
char *dsi_folder_saving(const char *dir, const char *tag);
char *dsi_folder_rank_manifest(const char *saving, int rank); /* manifest.RANK */

/* Files that are open and locked while a save runs; -1: none, or the file system has
 * no locks. */
typedef struct dsi_folder_locks {
    int dir;    /* excludes others from the folder */
    int saving; /* .saving-TAG: by it others know a living save */
} dsi_folder_locks;
#define DSI_UNLOCKED ((dsi_folder_locks){-1, -1})

/* Makes dir, removes what killed saves left, makes .saving-TAG. Refuses to
 * replace a folder that is no checkpoint of this library, and a dir to which
 * another job is saving: *locks exclude others until dsi_folder_unlock. keep_old:
 * .old-TAG stays beside DIR/TAG. */
ds_status dsi_folder_begin(const char *dir, const char *tag, bool keep_old,
                           dsi_folder_locks *locks);
/* Removes from the checkpoints what killed loads left. */
ds_status dsi_folder_sweep_checkpoints(const char *dir);
/* All ranks have written: adds the lists of ranks 1 and up to all, which is rank
 * 0's, and removes them. */
ds_status dsi_folder_merge_manifests(const char *dir, const char *tag, dsi_manifest *all);
/* The manifest of all ranks, then the name. keep_old: a checkpoint of that tag
 * becomes .old-TAG, until dsi_folder_end_old. */
ds_status dsi_folder_publish(const char *dir, const char *tag, const dsi_manifest *all,
                             bool keep_old);
/* Removes .old-TAG, or all of them. None is no failure. */
ds_status dsi_folder_end_old(const char *dir, const char *tag);
ds_status dsi_folder_end_all_old(const char *dir);
/* Gives .old-TAG its name back; DIR/TAG becomes .old-TAG. None is no failure. Where
 * that is killed, dsi_folder_finish_exchanges does the rest, for all tags. */
ds_status dsi_folder_restore_old(const char *dir, const char *tag);
ds_status dsi_folder_finish_exchanges(const char *dir);
/* The same for a universal checkpoint, which has no manifest, and replaces
 * none: DIR/TAG must not exist. Then `latest_universal` names it. */
ds_status dsi_folder_publish_universal(const char *dir, const char *tag);
/* which: DSI_LATEST or DSI_LATEST_UNIVERSAL. */
ds_status dsi_folder_set_latest(const char *dir, const char *which, const char *tag);
/* Makes DIR/TAG with m alone in it, to receive files (version_complete.c). Another
 * checkpoint of that tag becomes .old-TAG; that of m is left as it is, for several
 * jobs may load. */
ds_status dsi_folder_make(const char *dir, const char *tag, const dsi_manifest *m);

/* folder_lock.c: excludes others that save to dir, or load from it, until
 * dsi_folder_close_lock; -1: the file system has no locks. Waits for loads; a save of another job
 * is a failure. */
ds_status dsi_folder_lock(const char *dir, int *lock);
/* The same, or, not exclusive, beside other loads; does not wait. *taken: it cannot
 * be had now. */
ds_status dsi_folder_try_lock(const char *dir, bool exclusive, int *lock, bool *taken);
/* Whether a save that lives has begun in dir: a load that recovers versions excludes
 * others too, and is waited for. */
bool dsi_folder_is_saved_to(const char *dir);
/* Locks .saving-TAG, which was just made. */
void dsi_folder_mark_saving(const char *saving, int *lock);
void dsi_folder_unlock(dsi_folder_locks *locks);
void dsi_folder_close_lock(int *lock); /* also if it is -1, which it becomes */
/* Removes .saving-TAG of a save that did not succeed. */
void dsi_folder_abandon(const char *dir, const char *tag);

/* The tag in DIR/WHICH, to be freed; NULL with the message. The text is what n
 * bytes of the file say. */
DSI_SHARED char *dsi_folder_latest(const char *dir, const char *which);
char *dsi_latest_parse(const char *text, size_t n, const char *name);
/* The folder of a tag, to be freed: DIR/TAG, or where a killed save left it;
 * NULL with the message. */
char *dsi_folder_find(const char *dir, const char *tag);
char *dsi_folder_old(const char *dir, const char *tag); /* DIR/.old-TAG */

/* Checkpoints of ours in dir, newest first; old: those at .old-TAG instead, and those
 * that are to have that name. Free
 * with dsi_folders_free. None is no failure. */
typedef struct dsi_folders {
    DSI_LIST(struct dsi_folder_entry {
        char *tag;
        int64_t serial;
        uint32_t sum; /* of its manifest */
    })
} dsi_folders;
dsi_folders dsi_folder_list(const char *dir, bool old);
void dsi_folders_free(dsi_folders *f);
/* The serial of the oldest checkpoint to keep, if `keep` are kept: that of tag,
 * which was published, and the newest of `before`, which dir had then. */
int64_t dsi_folder_oldest_to_keep(const dsi_folders *before, int64_t keep, const char *tag);
/* Removes those of `before` that are older; never that of tag, or that of
 * `latest`. */
ds_status dsi_folder_prune(const char *dir, int64_t oldest, const char *tag,
                           const dsi_folders *before);
