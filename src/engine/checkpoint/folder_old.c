/* engine/checkpoint/folder_old.c: two versions of a tag in a folder, one of them as
 * .old-TAG: Note [Node-local storage] in hosts.h.
 * SPDX-License-Identifier: MIT */
#include "folder_io.h"

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

ds_status dsi_folder_end_old(const char *dir, const char *tag, bool small)
{
    char *old = dsi_folder_old(dir, tag);
    ds_status status = DS_OK;
    if (dsi_is_folder(old)) status = dsi_folder_drop(dir, old, small);
    dsi_free(old);
    return status;
}

ds_status dsi_folder_end_all_old(const char *dir, bool small)
{
    dsi_folders all = dsi_folder_list(dir, true);
    ds_status status = DS_OK;
    for (int i = 0; i < all.n && status == DS_OK; i++)
        status = dsi_folder_end_old(dir, all.at[i].tag, small);
    dsi_folders_free(&all);
    return status;
}

ds_status dsi_folder_restore_old(const char *dir, const char *tag, bool keep)
{
    char *old = dsi_folder_old(dir, tag), *final = dsi_path_in(dir, tag),
         *between = dsi_path_with_mark(dir, REMOVING, tag);
    ds_status status = DS_OK;
    bool there = dsi_is_folder(old), both = there && dsi_is_folder(final);
    bool exchanged = both && renameat2(AT_FDCWD, old, AT_FDCWD, final, RENAME_EXCHANGE) == 0;
    if (both && !exchanged) status = dsi_folder_rename(final, between);
    if (there && !exchanged && status == DS_OK) status = dsi_folder_rename(old, final);
    if (both && !exchanged && status == DS_OK) status = dsi_folder_rename(between, old);
    if (both && !keep && status == DS_OK) status = dsi_folder_remove(old);
    if (there && status == DS_OK) status = dsi_folder_sync(dir);
    dsi_free(old);
    dsi_free(final);
    dsi_free(between);
    return status;
}

/* The serial of the checkpoint there, and the sum of its manifest; 0: none, or a
 * damaged one. */
static int64_t folder_serial(const char *folder, uint32_t *sum)
{
    dsi_manifest m = {0};
    char *path = dsi_path_in(folder, DSI_MANIFEST);
    int before = dsi_error_count();
    int64_t serial = dsi_manifest_read(&m, path) == DS_OK ? m.serial : 0;
    *sum = m.sum;
    dsi_error_forget(before);
    dsi_manifest_free(&m);
    dsi_free(path);
    return serial;
}

/* Frees the name of a checkpoint for one of serial `serial`: a newer one, which is
 * whole only with hosts that are away, becomes .old-TAG. */
static ds_status folder_put_aside(const char *dir, const char *tag, const char *final,
                                  int64_t serial)
{
    uint32_t ignored;
    char *old = dsi_folder_old(dir, tag);
    int64_t has = folder_serial(final, &ignored), kept = folder_serial(old, &ignored);
    ds_status status = DS_OK;
    if (has <= serial || has <= kept)
        status = dsi_folder_remove_checkpoint(dir, tag, final, false);
    else if ((status = dsi_folder_remove(old)) == DS_OK)
        status = dsi_folder_rename(final, old);
    dsi_free(old);
    return status;
}

/* Whether DIR/TAG is the checkpoint of m: another job that loads may have made it. */
static bool folder_is_of(const char *final, const dsi_manifest *m)
{
    uint32_t sum;
    return folder_serial(final, &sum) == m->serial && sum == m->sum;
}

ds_status dsi_folder_make(const char *dir, const char *tag, const dsi_manifest *m)
{
    char *loading = dsi_text_of(LOADING "%s.%ld", tag, (long)getpid()).s;
    char *made = dsi_path_in(dir, loading), *final = dsi_path_in(dir, tag);
    ds_status status = DS_OK;
    if (dsi_file_exists(final) && !dsi_folder_is_checkpoint(final))
        status = dsi_fail(DS_EINVAL, "%s is there and was not written by this library: remove it",
                          final);
    if (status == DS_OK) status = dsi_folder_remove(made);
    if (status == DS_OK) status = dsi_mkdirs(made);
    if (status == DS_OK) status = dsi_folder_write_manifest(made, m);
    if (status == DS_OK && dsi_is_folder(final) && !folder_is_of(final, m))
        status = folder_put_aside(dir, tag, final, m->serial);
    if (status == DS_OK && rename(made, final) && !folder_is_of(final, m))
        status = dsi_folder_io_error("rename", made);
    if (status == DS_OK) status = dsi_folder_sync(dir);
    int before = dsi_error_count();
    if (dsi_is_folder(made) && dsi_folder_remove(made) != DS_OK) dsi_error_forget(before);
    dsi_free(loading);
    dsi_free(made);
    dsi_free(final);
    return status;
}
