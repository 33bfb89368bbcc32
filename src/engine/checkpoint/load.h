/* engine/checkpoint/load.h: what the files of ds_engine_load share.
 *
 *   ds_engine_load   load.c            which checkpoint; order among the ranks
 *     verify         load_verify.c     check sums of all files
 *     read           load_files.c      files -> parameters, as chunks
 *                    load_deepspeed.c  the same from what DeepSpeed itself saved
 *                    load_universal.c  the same from a universal checkpoint
 *     check          load_check.c      names, shapes, elements, moments
 *     apply          load_apply.c      into the engine
 *
 * Note [Chunks] Every tensor of a parameter (its float32 weights, each moment,
 * its average) is a set of chunks: elements [begin, end) of the parameter are
 * at position `at` in a tensor of some file. Each rank that saved, on N ranks
 * and in any stage, wrote which chunk it had; each rank that loads, on M ranks
 * and in any stage, copies what it needs of them out of mapped files. So no
 * state is assembled as a whole, a rank needs only the memory of its own shard,
 * and reads no other bytes: files of shards are opened from the most likely one
 * on, until the rank's shard is complete.
 *
 * Invariants: a dsi_loaded owns its mapped files; chunks, `model`, `own`,
 * `rank` and the values of `params` and `experts` point into them and live as
 * long. Nothing of the engine changes before dsi_load_check has succeeded on
 * all ranks. Ranges are in elements of the whole parameter, row-major; byte
 * offsets occur only in dsi_load_copy_range. Verifying and reading are not
 * collective; load.c synchronizes the status of all ranks after each.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/map.h"
#include "base/shared.h"
#include "checkpoint/value.h"
#include "save.h"

#define DSI_LOAD_WEIGHTS "fp32" /* the kind of the weights; moments have their optimizer's names */
#define DSI_LOAD_AVERAGE "average"

typedef struct dsi_load_chunk {
    const char *kind;
    int64_t begin, end; /* elements of the parameter */
    const ds_tensor *x; /* row-major, in a file */
    int64_t at;         /* index in x of element `begin` */
} dsi_load_chunk;

typedef struct dsi_load_param {
    ds_dims shape;
    int64_t step; /* of the optimizer */
    DSI_LIST(dsi_load_chunk)
} dsi_load_param;

typedef struct dsi_load_file {
    char *path;
    ds_value *value;
} dsi_load_file;

typedef struct dsi_loaded {
    const char *folder; /* borrowed */
    bool partly;        /* of its files' tensors only some are read */
    struct {
        DSI_LIST(dsi_load_file)
    } files;
    const ds_value *model; /* model states: this rank's, or rank 0's */
    const ds_value *own;   /* what is ours in it; NULL: DeepSpeed saved it */
    const ds_value *rank;  /* rank_R_states.pt of this rank; NULL: there is none */
    /* optimizer_state.pt of a universal checkpoint; NULL: it is none */
    const ds_value *universal;
    int64_t universal_step; /* of parameters without a step.pt */
    int64_t ranks;          /* it was saved on */
    dsi_map params;         /* names -> dsi_load_param */
    dsi_map experts;        /* names -> tensors in files of experts: Note [Expert files] */
    bool has_optimizer;
} dsi_loaded;

/* The rank that reads. */
typedef struct dsi_load_reader {
    int rank, ranks;
    bool optimizer; /* its state is wanted */
    /* only its shard of the parameters is wanted; NULL: all of them */
    const ds_engine *engine;
} dsi_load_reader;

/* Whether the files that rank `rank` of `ranks` verifies are as they were
 * written: each file is verified by one rank. */
DSI_SHARED ds_status dsi_load_verify(const char *folder, int rank, int ranks);

/* The files of a folder that was verified, mapped. On failure what was read is
 * in l, to be freed too. */
DSI_SHARED ds_status dsi_load_files(dsi_loaded *l, const char *folder, const dsi_load_reader *who);
DSI_SHARED void dsi_loaded_free(dsi_loaded *l);

DSI_SHARED dsi_load_param *dsi_load_find_param(const dsi_loaded *l,
                                               const char *name); /* NULL: none */
/* The parameter of that name, made if it is new; NULL, with the message, if it
 * has another shape
 * already. */
dsi_load_param *dsi_load_add_param(dsi_loaded *l, const char *name, ds_dims shape);

/* Tensors of one group of parameters in a file; each may be absent. */
typedef struct dsi_load_group {
    const ds_value *weights, *state, *averages; /* state: {"exp_avg": tensor, ..., "step": ...} */
} dsi_load_group;

/* Adds elements [begin, end) of p as a chunk of each tensor of g, from index
 * `at` on. Elements that p has already are skipped: files of several ranks may
 * have the same. */
ds_status dsi_load_add_chunks(dsi_load_param *p, const dsi_load_group *g, int64_t begin,
                              int64_t end, int64_t at);
/* The step of states that have none, such as those of torch's SGD: the updates
 * so far. */
ds_status dsi_load_updates(const dsi_loaded *l, int64_t *updates);
/* A parameter or buffer as the model file has it, or an expert's file; NULL:
 * none has. */
const ds_value *dsi_load_model_value(const dsi_loaded *l, const char *name);

/* A file of the folder; NULL with the message. */
DSI_SHARED const ds_value *dsi_load_open_file(dsi_loaded *l, const char *name);
bool dsi_load_has_file(const dsi_loaded *l, const char *name);
const char *dsi_load_file_path(const dsi_loaded *l, const ds_value *file);
/* Prefixes the message of a failure with the file's path; returns status. */
ds_status dsi_load_fail_in(const dsi_loaded *l, const ds_value *file, ds_status status);
/* The tensor there, row-major, in the current scope; NULL with the message. */
const ds_tensor *dsi_load_read_tensor(const ds_value *v, const char *path);
DSI_SHARED ds_status dsi_load_read_shape(const ds_value *v, ds_dims *shape);

DSI_SHARED bool dsi_load_is_buffer(const dsi_loaded *l,
                                   const char *name); /* as the model file says */

/* load_deepspeed.c: parameters and chunks of a checkpoint of DeepSpeed.
 * optimizer: false leaves its state out, where the weights are in the model
 * file. */
ds_status dsi_load_deepspeed(dsi_loaded *l, bool optimizer);

/* load_universal.c: whether the folder is a universal checkpoint; its
 * parameters and chunks. */
bool dsi_load_is_universal(const char *folder);
ds_status dsi_load_universal(dsi_loaded *l, const dsi_load_reader *who);

/* Copies elements [at, at + n) of row-major x, in a mapped file, to row-major
 * `to`; pages that were read are released. */
ds_status dsi_load_copy_range(const ds_tensor *x, int64_t at, int64_t n, ds_tensor *to);
/* How many elements of [begin, end) are in chunks of that kind. */
DSI_SHARED int64_t dsi_load_count(const dsi_load_param *p, const char *kind, int64_t begin,
                                  int64_t end);
/* Copies elements [begin, end) to row-major `to` of as many elements. */
ds_status dsi_load_copy_param(const dsi_load_param *p, const char *kind, int64_t begin, int64_t end,
                              ds_tensor *to);

/* Whether all that e's shard needs has been read: weights; with `optimizer`
 * moments, and averages if it has some. */
bool dsi_load_is_complete(const dsi_loaded *l, const ds_engine *e, bool optimizer);
/* The attributes of DeepSpeed's loss scaler (cur_scale, ...), wherever they are;
 * NULL: there are none. */
const ds_value *dsi_load_scaler(const dsi_loaded *l);
/* Whether the checkpoint fits the engine; changes nothing. */
ds_status dsi_load_check(const dsi_loaded *l, const ds_engine *e, const ds_load_opts *o);
/* Copies what was read into the engine. Collective where ZeRO publishes. */
ds_status dsi_load_apply(const dsi_loaded *l, ds_engine *e, const ds_load_opts *o);
