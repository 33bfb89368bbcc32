/* data/extract.h: unpacking an archive that came from elsewhere.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* Unpacks the folder `name`, which holds plain files only, from a tar archive
 * (bare, gzip, xz, zstd) to into/name; into exists. Refuses archives with
 * anything else in them: other paths, absolute ones, `..`, links, devices, more
 * than 32 files, files over 32 MiB. Files that were written before a failure
 * stay. */
ds_status dsi_extract(const char *archive, const char *into, const char *name);

void dsi_remove_tree(const char *path); /* rm -rf; links are removed, not followed */
