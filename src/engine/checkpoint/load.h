/* engine/checkpoint/load.h: what the files of ds_engine_load share.
 *
 *     ds_engine_load     load.c          which checkpoint; the order of things among ranks
 *       whole or not     load_verify.c
 *       what there is    load_files.c    files -> parameters, each with pieces of its tensors (Note [Pieces])
 *                        load_others.c   the same from what DeepSpeed itself saved
 *       whether it fits  load_check.c    nothing is changed before that is known, on all ranks
 *       what is taken    load_take.c     into the engine
 *
 * Note [Pieces] Every tensor of a parameter (its float32 weights, each moment, its average) is a set of
 * pieces: elements begin .. end lie from `at` on in a tensor of some file. Whoever saved, on N ranks and
 * in any stage, said which piece it had; whoever loads, on M ranks and in any stage, copies what it needs
 * of them, out of mapped files. So no state is put together anywhere, a rank needs the memory of its own
 * part alone, and reads no other bytes: shards are opened from that one on in which its part must lie, until all of
 * it is covered.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_ENGINE_CHECKPOINT_LOAD_H
#define DSI_ENGINE_CHECKPOINT_LOAD_H

#include "base/list.h"
#include "base/map.h"
#include "checkpoint/value.h"
#include "engine/engine.h"
#include "save.h"

#include <deepspeed/checkpoint.h>

#define DSI_LOAD_WEIGHTS "fp32" /* the kind of the weights; moments have their optimizer's names */
#define DSI_LOAD_AVERAGE "average"

typedef struct dsi_load_piece {
    const char *kind;
    int64_t begin, end; /* elements of the parameter */
    const ds_tensor *x; /* row-major, in a file */
    int64_t at;         /* where `begin` lies in it */
} dsi_load_piece;

typedef struct dsi_load_param {
    ds_dims shape;
    int64_t step; /* of the optimizer */
    DSI_LIST(dsi_load_piece)
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
    int64_t ranks;         /* it was saved on */
    dsi_map params;        /* names -> dsi_load_param */
    dsi_map experts;       /* names -> tensors in files of experts: Note [Expert files] */
    bool has_optimizer;
} dsi_loaded;

/* Who reads. */
typedef struct dsi_load_reader {
    int rank, ranks;
    bool optimizer; /* its state is wanted */
    /* its part of the parameters is enough; NULL: all of them are wanted */
    const ds_engine *engine;
} dsi_load_reader;

/* Whether the part-th of so many shares of a folder's files is as it was written. */
ds_status dsi_load_verify(const char *folder, int part, int parts);

/* The files of a folder that was verified, mapped. On failure what was read is in l, to be freed too. */
ds_status dsi_load_files(dsi_loaded *l, const char *folder, const dsi_load_reader *who);
void dsi_loaded_free(dsi_loaded *l);

dsi_load_param *dsi_load_param_of(const dsi_loaded *l, const char *name); /* NULL: none */
/* The parameter of that name, made if it is new; NULL, with the message, if it has another shape
 * already. */
dsi_load_param *dsi_load_add_param(dsi_loaded *l, const char *name, ds_dims shape);

/* Tensors of one group of parameters in a file; each may be absent. */
typedef struct dsi_load_group {
    const ds_value *weights, *state, *averages; /* state: {"exp_avg": tensor, ..., "step": ...} */
} dsi_load_group;

/* Elements begin .. end of p lie from `at` on in each tensor of g. What is there already is passed over:
 * files of several ranks may have the same. */
ds_status dsi_load_pieces(dsi_load_param *p, const dsi_load_group *g, int64_t begin, int64_t end,
                          int64_t at);
/* A parameter or buffer as the model file has it, or an expert's file; NULL: none has. */
const ds_value *dsi_load_whole(const dsi_loaded *l, const char *name);

/* A file of the folder; NULL with the message. */
const ds_value *dsi_load_open(dsi_loaded *l, const char *name);
bool dsi_load_has(const dsi_loaded *l, const char *name);
const char *dsi_load_path_of(const dsi_loaded *l, const ds_value *file);
/* Puts the file in front of a message about its content. */
ds_status dsi_load_in(const dsi_loaded *l, const ds_value *file, ds_status status);
/* The tensor there, row-major, in the current scope; NULL with the message. */
const ds_tensor *dsi_load_tensor(const ds_value *v, const char *path);
ds_status dsi_load_shape(const ds_value *v, ds_dims *shape);

bool dsi_load_is_buffer(const dsi_loaded *l, const char *name); /* as the model file says */

/* load_others.c: parameters and pieces of what DeepSpeed saved; without its optimizer, where the weights
 * are whole. */
ds_status dsi_load_deepspeed(dsi_loaded *l, bool optimizer);

/* Elements at .. at + n - 1 of row-major x, of a file, to row-major `to`; what was read is let go. */
ds_status dsi_load_range(const ds_tensor *x, int64_t at, int64_t n, ds_tensor *to);
/* Elements of [begin, end) that pieces of that kind have. */
int64_t dsi_load_covered(const dsi_load_param *p, const char *kind, int64_t begin, int64_t end);
/* Copies elements [begin, end) to row-major `to`, which has so many. */
ds_status dsi_load_copy(const dsi_load_param *p, const char *kind, int64_t begin, int64_t end,
                        ds_tensor *to);

/* Whether the part of e is covered: its weights, with `optimizer` its moments, and averages if it has some. */
bool dsi_load_enough(const dsi_loaded *l, const ds_engine *e, bool optimizer);
ds_status dsi_load_check(const dsi_loaded *l, const ds_engine *e, const ds_load_opts *o);
ds_status dsi_load_take(const dsi_loaded *l, ds_engine *e, const ds_load_opts *o);

#endif
