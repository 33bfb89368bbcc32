/* engine/checkpoint/load_verify.c: whether a checkpoint is as it was written.
 * Each byte is read once, by one rank, before any of it is used; loading then
 * reads only what it needs, without check sums.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/file.h"
#include "folder.h"

#include <glob.h>
#include <string.h>

static ds_status verify_by_manifest(const char *manifest, const char *folder, int rank, int ranks)
{
    dsi_manifest m;
    ds_status status = dsi_manifest_read(&m, manifest);
    if (status == DS_OK) status = dsi_manifest_verify(&m, folder, rank, ranks);
    dsi_manifest_free(&m);
    return status;
}

/* DeepSpeed has no list of its files; each of them has the check sums of an
 * archive. */
static ds_status verify_by_archives(const char *folder, const char *names, int rank, int ranks)
{
    glob_t files = {0};
    char *pattern = dsi_path_in(folder, names);
    bool found = glob(pattern, 0, NULL, &files) == 0;
    ds_status status = DS_OK;
    for (size_t i = 0; found && status == DS_OK && i < files.gl_pathc; i++)
        if (dsi_manifest_verifier(strrchr(files.gl_pathv[i], '/') + 1, (int)i, ranks) == rank)
            status = dsi_pth_check(files.gl_pathv[i]);
    if (found) globfree(&files);
    dsi_free(pattern);
    return status;
}

static ds_status verify_universal(const char *folder, int rank, int ranks)
{
    static const char *const names[] = {"*_states.pt", DSI_FOLDER_UNIVERSAL "/*.pt",
                                        DSI_FOLDER_UNIVERSAL "/*/*.pt",
                                        DSI_FOLDER_AVERAGES "/*.pt"};
    ds_status status = DS_OK;
    for (size_t i = 0; status == DS_OK && i < sizeof names / sizeof *names; i++)
        status = verify_by_archives(folder, names[i], rank, ranks);
    return status;
}

/* A folder without a manifest that has a file of this library was copied
 * incompletely, unless it is a universal checkpoint. */
ds_status dsi_load_verify(const char *folder, int rank, int ranks)
{
    char *manifest = dsi_path_in(folder, DSI_MANIFEST),
         *ours = dsi_path_in(folder, DSI_FILE_RANK_0);
    ds_status status;
    if (dsi_file_exists(manifest))
        status = verify_by_manifest(manifest, folder, rank, ranks);
    else if (dsi_load_is_universal(folder))
        status = verify_universal(folder, rank, ranks);
    else if (!dsi_file_exists(ours))
        status = verify_by_archives(folder, "*_states.pt", rank, ranks);
    else
        status = dsi_fail(DS_EFORMAT, "%s is missing: the checkpoint was not copied whole",
                          manifest);
    dsi_free(manifest);
    dsi_free(ours);
    return status;
}
