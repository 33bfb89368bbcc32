/* engine/checkpoint/folder.h: checkpoints in a folder: one that is written becomes visible as a whole, or not at
 * all.
 *
 * Note [Whole checkpoints]
 *
 *     DIR/latest              the tag of the newest one: DeepSpeed's file
 *     DIR/global_step120/     a checkpoint: DeepSpeed's files, and `manifest` (manifest.h)
 *     DIR/.saving-TAG/        one that is being written
 *     DIR/.old-TAG/           one that is being replaced, where a file system cannot exchange two names
 *     DIR/.removing-TAG/      one that is being removed
 *
 * Files are written to .saving-TAG and brought to the disk one by one; each rank then writes the list of
 * its own, manifest.RANK. When all ranks have, rank 0 makes one `manifest` of them, brings the folder to
 * the disk and gives it its name: that is the one step that either happened or did not. `latest` is
 * replaced after it, in the same manner. Whatever happens at any byte, DIR/TAG has a manifest and all of
 * its files, or is not there.
 *
 * Hidden folders of these names are left by a save that was killed; the next one removes them. The calls
 * that write are rank 0's alone.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_ENGINE_CHECKPOINT_FOLDER_H
#define DSI_ENGINE_CHECKPOINT_FOLDER_H

#include "manifest.h"

#define DSI_MOST_TAG 200 /* letters: names are made of it */

char *dsi_path_in(const char *folder, const char *name); /* folder/name, to be freed */
char *dsi_folder_saving(const char *dir, const char *tag);
char *dsi_folder_part(const char *saving, int rank); /* manifest.RANK */

/* Makes dir, removes what killed saves left, makes .saving-TAG. Refuses to replace a folder that is no
 * checkpoint of ours, and a dir to which another job saves now: *lock, to be closed when this save has ended,
 * keeps others out (-1 where the file system has no locks). */
ds_status dsi_folder_begin(const char *dir, const char *tag, int *lock);
/* All ranks have written: the manifest, then the name. */
ds_status dsi_folder_publish(const char *dir, const char *tag, int ranks, int64_t step);
ds_status dsi_folder_set_latest(const char *dir, const char *tag);
/* Removes the oldest checkpoints of ours until `keep` are left; never that of tag, or that of
 * `latest`. */
ds_status dsi_folder_prune(const char *dir, int64_t keep, const char *tag);
/* Removes .saving-TAG of a save that did not succeed. */
void dsi_folder_abandon(const char *dir, const char *tag);

/* The tag in DIR/latest, to be freed; NULL with the message. The text is what n bytes of the file say. */
char *dsi_folder_latest(const char *dir);
char *dsi_latest_parse(const char *text, size_t n, const char *name);
/* The folder of a tag, to be freed: DIR/TAG, or where a killed save left it; NULL with the message. */
char *dsi_folder_find(const char *dir, const char *tag);

/* Checkpoints of ours in dir, newest first; free with dsi_folders_free. None is no failure. */
typedef struct dsi_folders {
    DSI_LIST(struct dsi_folder_entry {
        char *tag;
        int64_t serial;
    })
} dsi_folders;
dsi_folders dsi_folder_list(const char *dir);
void dsi_folders_free(dsi_folders *f);

#endif
