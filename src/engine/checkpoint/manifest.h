/* engine/checkpoint/manifest.h: the list of a checkpoint's files with
 * their sizes and check sums, written last. A folder without it is incomplete.
 *
 *     deepspeed.c checkpoint 1
 *     serial 7
 *     ranks 4
 *     step 120
 *     file 1a2b3c4d 123456 mp_rank_00_model_states.pt
 *     end 5e6f7a8b
 *
 * Sums are CRC-32, eight hexadecimal digits; the last one is that of the lines
 * before it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/text.h"

#define DSI_MANIFEST "manifest"

typedef struct dsi_manifest_file {
    char *name;
    int64_t bytes;
    uint32_t crc;
} dsi_manifest_file;

typedef struct dsi_manifest {
    int64_t serial; /* of the checkpoints of a folder: grows from one to the next */
    int64_t ranks, step;
    uint32_t sum; /* of the lines, once they were read */
    DSI_LIST(dsi_manifest_file)
} dsi_manifest;

void dsi_manifest_add(dsi_manifest *m, const char *name, int64_t bytes, uint32_t crc);
void dsi_manifest_free(dsi_manifest *m);

dsi_text dsi_manifest_text(const dsi_manifest *m); /* the lines; free it */
/* Writes path, which is synced, in a folder that will be renamed. */
ds_status dsi_manifest_write(const dsi_manifest *m, const char *path);
/* For rank 0, which reads path as soon as it is there: complete, not synced. */
ds_status dsi_manifest_pass_on(const dsi_manifest *m, const char *path);
/* Checks every field; name is for messages. On failure m is empty. */
ds_status dsi_manifest_parse(dsi_manifest *m, const char *text, size_t n, const char *name);
ds_status dsi_manifest_read(dsi_manifest *m, const char *path);

/* Whether f is in folder, with the size and the check sum that it had. */
ds_status dsi_manifest_verify_file(const dsi_manifest_file *f, const char *folder);
/* The same of the files of m that rank `rank` of `ranks` verifies. */
ds_status dsi_manifest_verify(const dsi_manifest *m, const char *folder, int rank, int ranks);

/* The rank that verifies the i-th file: the one that wrote it, if there are as
 * many
 * ranks. */
int dsi_manifest_verifier(const char *name, int i, int ranks);
