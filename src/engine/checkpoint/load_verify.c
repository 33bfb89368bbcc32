/* engine/checkpoint/load_verify.c: whether a checkpoint is what was written: each byte of it is read once, by one rank, before
 * anything is believed; who loads then reads only what it needs, and no check sums again.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/file.h"
#include "base/mem.h"
#include "folder.h"

#include <glob.h>
#include <string.h>

static ds_status verify_ours(const char *manifest, const char *folder, int part, int parts)
{
    dsi_manifest m;
    ds_status status = dsi_manifest_read(&m, manifest);
    if (status == DS_OK) status = dsi_manifest_verify(&m, folder, part, parts);
    dsi_manifest_free(&m);
    return status;
}

/* DeepSpeed has no list of its files; each of them has the check sums of an archive. */
static ds_status verify_others(const char *folder, int part, int parts)
{
    glob_t files = {0};
    char *pattern = dsi_path_in(folder, "*_states.pt");
    bool found = glob(pattern, 0, NULL, &files) == 0;
    ds_status status = DS_OK;
    for (size_t i = 0; found && status == DS_OK && i < files.gl_pathc; i++)
        if (dsi_manifest_share(strrchr(files.gl_pathv[i], '/') + 1, (int)i, parts) == part)
            status = dsi_pth_check(files.gl_pathv[i]);
    if (found) globfree(&files);
    dsi_free(pattern);
    return status;
}

ds_status dsi_load_verify(const char *folder, int part, int parts)
{
    char *manifest = dsi_path_in(folder, DSI_MANIFEST),
         *ours = dsi_path_in(folder, "rank_0_states.pt");
    ds_status status = dsi_file_exists(manifest) ? verify_ours(manifest, folder, part, parts)
                       : !dsi_file_exists(ours)
                           ? verify_others(folder, part, parts)
                           : dsi_fail(DS_EFORMAT,
                                      "%s is missing: the checkpoint was not copied whole",
                                      manifest);
    dsi_free(manifest);
    dsi_free(ours);
    return status;
}
