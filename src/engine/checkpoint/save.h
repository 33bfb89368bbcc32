/* engine/checkpoint/save.h: what the files of ds_engine_save share.
 *
 *   ds_engine_save   save.c          order among the ranks, and failures
 *     values         save_state.c    a rank's files as nested values
 *                    save_shard.c    its shard of the optimizer's state
 *                    save_experts.c  experts, each in its own file
 *                    save_tensor.c   tensors of these values
 *     writing        save_write.c    files to the disk, now or on a thread
 *                    folder.c        a checkpoint becomes visible as a whole
 *     by host        save_local.c    node-local storage, with copies on other hosts
 *
 * Invariants: until its files are written, a dsi_save_files refers to the
 * engine's memory, which must not change; dsi_save_tensors_copy ends that. A
 * dsi_save_job owns its files and the folder's lock; the thread of an
 * asynchronous save owns the job, and sends nothing to other ranks, but with
 * node-local storage. An engine has at most one asynchronous save, and each save waits for the one before.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "engine/engine.h"
#include "folder.h"
#include "hosts.h"
#include "manifest.h"
#include "state_keys.h"

#define DSI_FORMAT 1

/* DeepSpeed's version whose files these are, as its readers parse it. */
#define DSI_DS_VERSION "0.19.8+deepspeed.c"

/* ---- tensors as chunks of memory --- ----------------------------------------------------------------------- */

/* A tensor that is written without being assembled: the parameters of a unit,
 * end to end, from the memory that has them; or from a copy of that. */
typedef struct dsi_save_chunk {
    ds_tensor *x; /* counted; NULL: zeros */
    size_t bytes;
    int param; /* number in the model, released after it is read (dsi_zero_release);
                * -1: none */
} dsi_save_chunk;

typedef struct dsi_save_tensor {
    DSI_LIST(dsi_save_chunk)
    size_t bytes;
    dsi_zero *zero; /* which releases them; or NULL */
    char *copy;     /* in the engine's copy_buffer; NULL: none */
} dsi_save_tensor;

typedef struct dsi_save_tensors {
    DSI_LIST(dsi_save_tensor *)
    dsi_zero *zero;
} dsi_save_tensors;

dsi_save_tensor *dsi_save_tensor_new(dsi_save_tensors *all);
/* Adds the elements of row-major x, which must not change until the tensor has
 * been copied or written. */
ds_status dsi_save_tensor_add(dsi_save_tensor *s, ds_tensor *x, int param);
void dsi_save_tensor_add_zeros(dsi_save_tensor *s, size_t bytes);
ds_value *dsi_save_tensor_value(dsi_save_tensor *s, ds_dtype dtype, ds_dims shape);
/* x as a tensor of one chunk. x NULL: NULL. */
ds_value *dsi_save_tensor_of(dsi_save_tensors *all, ds_tensor *x, int param);

/* Copies all of them into *buffer, which grows as needed: the memory they came
 * from may change then. The tensors are read from there until they are freed. */
ds_status dsi_save_tensors_copy(dsi_save_tensors *all, dsi_copy_buffer *buffer);
void dsi_save_tensors_free(dsi_save_tensors *all);

/* ---- the files of a rank ------------------------------------------------------------------------------- */

typedef struct dsi_save_file {
    char *name;
    ds_value *value;
} dsi_save_file;

typedef struct dsi_save_files {
    DSI_LIST(dsi_save_file)
    dsi_save_tensors tensors;
} dsi_save_files;

/* The files that this rank writes. Not collective. */
ds_status dsi_save_files_make(dsi_save_files *f, ds_engine *e, const ds_save_opts *o);
void dsi_save_files_free(dsi_save_files *f);

/* Whether the optimizer's state is in shards, one file each; else one file has
 * all of it. */
bool dsi_save_is_sharded(const ds_engine *e);

/* ---- writing ------------------------------------------------------------------------------------------- */

/* The writing of one checkpoint on one rank. */
typedef struct dsi_save_job {
    char *dir, *tag, *saving;
    int rank, ranks;
    dsi_hosts *hosts; /* the engine's: node-local storage; NULL: all share the folder */
    int64_t step, keep_last;
    bool latest;            /* to be named in `latest` */
    dsi_folder_locks locks; /* on the rank that begins it */
    dsi_progress *progress; /* the engine's, which outlives the job */
    dsi_save_files files;
} dsi_save_job;

void dsi_save_job_free(dsi_save_job *j);
/* Writes this rank's files, and lists them in *own, to be freed; ranks other
 * than rank 0 write that list, too. */
ds_status dsi_save_write(const dsi_save_job *j, dsi_manifest *own);
/* On rank 0, after all ranks have written: makes the checkpoint visible. */
ds_status dsi_save_publish(const dsi_save_job *j, dsi_manifest *own);
/* Removes checkpoints of `before` that are older than the serial `oldest`. */
void dsi_save_prune(const dsi_save_job *j, int64_t oldest, const dsi_folders *before);
/* All of that with node-local storage. Collective over j->hosts->comm. */
ds_status dsi_save_local(const dsi_save_job *j);

/* Does both on a thread, which takes j; rank 0's waits for the manifests of the
 * other ranks. */
typedef struct dsi_async_save dsi_async_save;
dsi_async_save *dsi_async_save_start(dsi_save_job *j);
/* Whether it has ended; then *cpu is its thread's processor time in seconds. */
bool dsi_async_save_ended(const dsi_async_save *b, double *cpu);
/* The message of a save that has ended and failed; else NULL. */
const char *dsi_async_save_error(const dsi_async_save *b);
void dsi_async_save_wait(dsi_async_save *b);
const char *dsi_async_save_folder(const dsi_async_save *b); /* where it writes */
void dsi_async_save_free(dsi_async_save *b);

/* ---- at the engine's other calls --------------------------------------------------------------------------- */

/* In ds_engine_step: prints the failure of an asynchronous save, once. */
void dsi_engine_poll_async_save(ds_engine *e);
/* Before the engine is freed: waits for the save, and leaves the hosts. */
void dsi_engine_end_async_save(ds_engine *e);
/* e->hosts for dir, this rank's, after recovery; NULL with DS_OK: to load, there
 * is no such folder, or no rank may write to it. Collective. */
ds_status dsi_engine_open_hosts(ds_engine *e, const char *dir, bool to_load);
