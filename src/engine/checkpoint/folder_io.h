/* engine/checkpoint/folder_io.h: what the files that change folders share: names, and
 * calls of the file system that return a status. They are called on the rank that
 * has the folder's lock.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "folder.h"

#define SAVING   ".saving-"
#define LOADING  ".loading-"
#define OLD      ".old-"
#define REMOVING ".removing-"

char *dsi_path_with_mark(const char *dir, const char *mark, const char *tag); /* dir/MARKtag */
ds_status dsi_folder_io_error(const char *doing, const char *path);           /* errno's text */
bool dsi_folder_is_checkpoint(const char *folder); /* others are never replaced or removed */

ds_status dsi_folder_sync(const char *path); /* names that were made or changed in it */
ds_status dsi_folder_rename(const char *from, const char *to);
ds_status dsi_folder_remove(const char *path); /* with all it contains; none is no failure */
/* Removes a checkpoint that has another name already. A small one becomes the spare
 * for the next save, if there is none. */
ds_status dsi_folder_drop(const char *dir, const char *path, bool small);
/* DIR/NAME, which path is: first its name, so that it is never visible in part. */
ds_status dsi_folder_remove_checkpoint(const char *dir, const char *name, const char *path,
                                       bool small);
ds_status dsi_folder_write_manifest(const char *folder, const dsi_manifest *all);
