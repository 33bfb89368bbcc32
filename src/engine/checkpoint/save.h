/* engine/checkpoint/save.h: what the files of ds_engine_save share.
 *
 *     ds_engine_save     save.c          the order of things among ranks, and what goes wrong
 *       what is written  save_state.c    a rank's files as nested values, under DeepSpeed's names
 *                        save_experts.c  experts, each in a file of its own
 *                        save_extent.c   tensors of these values: pieces of memory, or a copy of it
 *       how              save_write.c    files to the disk, on this thread or on one of its own
 *                        folder.c        a checkpoint becomes visible as a whole
 *
 * SPDX-License-Identifier: MIT */
#ifndef DSI_ENGINE_CHECKPOINT_SAVE_H
#define DSI_ENGINE_CHECKPOINT_SAVE_H

#include "base/list.h"
#include "engine/engine.h"

#include <deepspeed/checkpoint.h>

#define DSI_OWN_KEY "deepspeed_c" /* all that DeepSpeed has no name for stands below it */
#define DSI_FORMAT  1

/* DeepSpeed's version whose files these are, as its readers parse it. */
#define DSI_DS_VERSION "0.19.8+deepspeed.c"

/* ---- tensors as pieces of memory ----------------------------------------------------------------------- */

/* A tensor that is written from where its elements lie: the parameters of a unit end to end, without a
 * copy; or, once it was copied, from that. */
typedef struct dsi_piece {
    ds_tensor *x; /* counted; NULL: zeros */
    size_t bytes;
    int param; /* of ds_module_param_at: to be let go when it was read (dsi_zero_release); -1: none */
} dsi_piece;

typedef struct dsi_extent {
    DSI_LIST(dsi_piece)
    size_t bytes;
    dsi_zero *zero; /* whose parts they are; or NULL */
    char *copy;     /* NULL: none */
} dsi_extent;

typedef struct dsi_extents {
    DSI_LIST(dsi_extent *)
    dsi_zero *zero;
} dsi_extents;

dsi_extent *dsi_extent_new(dsi_extents *all);
/* The elements of row-major x, which stays as it is until the extent was copied, or written. */
ds_status dsi_extent_add(dsi_extent *s, ds_tensor *x, int param);
void dsi_extent_add_zeros(dsi_extent *s, size_t bytes);
ds_value *dsi_extent_value(dsi_extent *s, ds_dtype dtype, ds_dims shape);
/* x as one extent. NULL passes. */
ds_value *dsi_extent_of(dsi_extents *all, ds_tensor *x, int param);

/* From now on the extents are copies: what they were made of may change. */
ds_status dsi_extents_copy(dsi_extents *all);
void dsi_extents_free(dsi_extents *all);

/* ---- the files of a rank ------------------------------------------------------------------------------- */

typedef struct dsi_save_file {
    char *name;
    ds_value *value;
} dsi_save_file;

typedef struct dsi_save_files {
    DSI_LIST(dsi_save_file)
    dsi_extents extents; /* the tensors in them */
} dsi_save_files;

/* The files that this rank writes. Nothing is sent to other ranks. */
ds_status dsi_save_files_make(dsi_save_files *f, ds_engine *e, const ds_save_opts *o);
void dsi_save_files_free(dsi_save_files *f);

/* Whether the state of the optimizer is cut into shards, one a file; else one file has all of it. */
bool dsi_save_sharded(const ds_engine *e);

/* ---- writing ------------------------------------------------------------------------------------------- */

/* One checkpoint, from the begin of its writing to its end, on one rank. */
typedef struct dsi_save_job {
    char *dir, *tag, *saving;
    int rank, ranks;
    int64_t step, keep_last;
    bool latest; /* to be named in `latest` */
    int lock;    /* of the folder, on rank 0; -1: none */
    dsi_save_files files;
} dsi_save_job;

void dsi_save_job_free(dsi_save_job *j);
/* This rank's files and the list of them. */
ds_status dsi_save_write(const dsi_save_job *j);
/* Rank 0, when all ranks have written: the checkpoint becomes visible. */
ds_status dsi_save_publish(const dsi_save_job *j);

/* The same on a thread of its own, which takes j; rank 0's waits for the lists of the others. */
typedef struct dsi_async_save dsi_async_save;
dsi_async_save *dsi_async_save_start(dsi_save_job *j);
/* it has ended, and failed: why; else NULL */
const char *dsi_async_save_error(const dsi_async_save *b);
void dsi_async_save_wait(dsi_async_save *b);
void dsi_async_save_free(dsi_async_save *b);

/* ---- at the engine's other calls --------------------------------------------------------------------------- */

/* In ds_engine_step: prints the failure of an asynchronous save, once. */
void dsi_engine_poll_async_save(ds_engine *e);
/* Before the engine is freed: waits for the save. */
void dsi_engine_end_async_save(ds_engine *e);

#endif
