/* base/file.h: whole files: read, map, and replace without ever leaving half of
 * one.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <deepspeed/types.h>

/* The file's bytes plus a final 0, to be freed with dsi_free; NULL with the
 * message. A FIFO that has no writer for 10 s is empty. */
DSI_SHARED char *dsi_file_read(const char *path, size_t *bytes);
/* The same for files that must not make the caller wait: a FIFO, a terminal or
 * another device is an error. */
DSI_SHARED char *dsi_file_read_regular(const char *path, size_t *bytes);

/* A copy of a regular file in another folder, whole or not at all, if the folder
 * `from` has one of that name. */
DSI_SHARED ds_status dsi_file_copy_if_there(const char *from, const char *to, const char *name);
/* The same of all files of from/folder, if there is one, whose names end with
 * `end`; to/folder is made for them. */
DSI_SHARED ds_status dsi_file_copy_all(const char *from, const char *to, const char *folder,
                                       const char *end);

/* path.tmp.<pid>-<random>, to be freed: processes of two containers may have
 * the same number. */
char *dsi_temporary_name(const char *path);
/* Writes to such a name, and at dsi_file_commit syncs and renames the file to
 * path, so that path always holds the old file or the whole new one. Errors
 * stick: check the one of commit. */
typedef struct dsi_file dsi_file;
DSI_SHARED dsi_file *dsi_file_replace(const char *path);
/* Tries dsi_file_replace and removes the temporary file again; path itself is
 * not touched. Fails with the message of a write that cannot begin: no such
 * folder, no permission, path is a folder. */
ds_status dsi_file_check_replace(const char *path);
/* The same, but writes path itself: for a folder that is renamed as a whole. */
dsi_file *dsi_file_create(const char *path);
DSI_SHARED void dsi_file_write(dsi_file *f, const void *data, size_t bytes);
bool dsi_file_failed(const dsi_file *f);           /* no more need be written */
DSI_SHARED ds_status dsi_file_commit(dsi_file *f); /* frees f */
/* The same without the syncs: for a file that another process reads now, and
 * that may be lost when the power fails. */
ds_status dsi_file_commit_unsynced(dsi_file *f);
void dsi_file_abandon(dsi_file *f); /* removes what was written; frees f */

DSI_SHARED ds_status dsi_mkdirs(const char *path); /* mkdir -p */
DSI_SHARED bool dsi_file_exists(const char *path);
DSI_SHARED bool dsi_is_folder(const char *path);
/* Something else has the name: a folder, a FIFO, a device. To open it may wait. */
bool dsi_is_no_file(const char *path);
