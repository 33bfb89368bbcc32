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
 *     DIR/.old-TAG/           one that is being replaced, where a file system cannot exchange two names
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
 * writes its own files into .saving-TAG. The lock is held from dsi_folder_begin
 * until the job is freed. Hidden folders of these names are what a killed save
 * left; the next save removes them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "manifest.h"

#define DSI_LATEST           "latest"
#define DSI_LATEST_UNIVERSAL "latest_universal"

#define DSI_MOST_TAG 200 /* bytes: names of files are made of it */

DSI_SHARED char *dsi_path_in(const char *folder, const char *name); /* folder/name, to be freed */
char *dsi_folder_saving(const char *dir, const char *tag);
char *dsi_folder_rank_manifest(const char *saving, int rank); /* manifest.RANK */

/* Makes dir, removes what killed saves left, makes .saving-TAG. Refuses to
 * replace a folder that is no checkpoint of this library, and a dir to which
 * another job is saving: *lock excludes others until it is closed (-1 if the
 * file system has no locks). */
ds_status dsi_folder_begin(const char *dir, const char *tag, int *lock);
/* All ranks have written: the manifest, then the name. all: rank 0's files,
 * which gets those of the others. */
ds_status dsi_folder_publish(const char *dir, const char *tag, dsi_manifest *all);
/* The same for a universal checkpoint, which has no manifest, and replaces
 * none: DIR/TAG must not exist. Then `latest_universal` names it. */
ds_status dsi_folder_publish_universal(const char *dir, const char *tag);
/* which: DSI_LATEST or DSI_LATEST_UNIVERSAL. */
ds_status dsi_folder_set_latest(const char *dir, const char *which, const char *tag);
/* Removes .saving-TAG of a save that did not succeed. */
void dsi_folder_abandon(const char *dir, const char *tag);

/* The tag in DIR/WHICH, to be freed; NULL with the message. The text is what n
 * bytes of the file say. */
DSI_SHARED char *dsi_folder_latest(const char *dir, const char *which);
char *dsi_latest_parse(const char *text, size_t n, const char *name);
/* The folder of a tag, to be freed: DIR/TAG, or where a killed save left it;
 * NULL with the message. */
char *dsi_folder_find(const char *dir, const char *tag);

/* Checkpoints of ours in dir, newest first; free with dsi_folders_free. None is
 * no failure. */
typedef struct dsi_folders {
    DSI_LIST(struct dsi_folder_entry {
        char *tag;
        int64_t serial;
    })
} dsi_folders;
dsi_folders dsi_folder_list(const char *dir);
void dsi_folders_free(dsi_folders *f);
/* After dsi_folder_publish of tag, before which dir had those of `before`:
 * removes the oldest until `keep` are left; never that of tag, or that of
 * `latest`. */
ds_status dsi_folder_prune(const char *dir, int64_t keep, const char *tag,
                           const dsi_folders *before);
