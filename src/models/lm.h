/* models/lm.h: what language models share: their root module, parameters that
 * come from a file, positions, attention with a cache of keys and values.
 *
 * Shapes: B rows of a batch, L positions, T positions of the table, H heads of
 * queries, G heads of keys and values, D elements of a head, V tokens.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "config.h"

#include <deepspeed/autograd.h>
#include <deepspeed/models.h>

/* ---- building ---------------------------------------------------------------- */

/* Where parameters get their first values: from a state dict, or at random.
 * Lives on the stack of the loader for the time of one dsi_lm_new; modules do
 * not keep it. weights is borrowed; a parameter may share the memory of the
 * file that it is mapped from. */
typedef struct dsi_lm_builder {
    const ds_state *weights; /* NULL: at random */
    const char *prefix;      /* that names in weights may lack: "model." */
    ds_dtype dtype;
    bool stored_dtype; /* as in weights, in place of dtype */
    double std;        /* of random values */
    int64_t zero_row;  /* of a table that is drawn: 1 + its row of zeros; 0: none */
    char path[256];    /* of the module that is being made: "model.layers.0." */
    int used;          /* entries of weights that became parameters */
} dsi_lm_builder;

/* A module at b's path; dsi_lm_leave(b, was) ends it. Calls nest like
 * brackets: *was is the length of the path before. A root (parent NULL) adds
 * nothing to the path. The module belongs to its parent. */
ds_module *dsi_lm_enter(dsi_lm_builder *b, ds_module *parent, const char *name,
                        const ds_module_type *type, size_t *was);
void dsi_lm_leave(dsi_lm_builder *b, size_t was);
/* The value of b's weights that has this name below b's path; NULL: none. The
 * result is borrowed from the weights. */
ds_tensor *dsi_lm_stored(const dsi_lm_builder *b, const char *name);
/* Whether x has another shape than `want`; then also a failure:
 * "context: name is [2, 3]: said [2, 4]". */
bool dsi_lm_dims_differ(const char *context, const char *name, const ds_tensor *x, ds_dims want,
                        const char *said);
/* A parameter of m: of that name in the weights, else normal with std, or,
 * with std < 0, all -std - 1 (so -1: zeros, -2: ones). NULL after a failure,
 * also an earlier one of this thread: then nothing is read or drawn. */
ds_tensor *dsi_lm_param(dsi_lm_builder *b, ds_module *m, const char *name, ds_dims shape,
                        double std);

/* ---- layers, with transformers' names -------------------------------------------- */

/* Matrices of two layouts: weight [out,in] (nn.Linear), or [in,out] (GPT-2's
 * Conv1D). An adapter changes what they compute (lora.c). */
typedef struct dsi_lm_linear {
    ds_tensor *weight, *bias;           /* bias: NULL, or [out] */
    bool transposed;                    /* Conv1D */
    const struct dsi_int8_matrix *int8; /* products are those of this copy, dsi_assistant_use */
    ds_tensor *lora_a, *lora_b;         /* [r,in], [out,r]; NULL: no adapter */
    ds_tensor *lora_magnitude;          /* [out]; NULL: not DoRA */
    double lora_scale, lora_dropout;
    bool lora_hold;       /* keep DoRA's factors from call to call: dsi_lora_hold */
    ds_tensor *lora_held; /* those: kept [out], or NULL */
} dsi_lm_linear;

/* std < 0: b->std. */
ds_module *dsi_lm_linear_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t in,
                             int64_t out, bool bias, bool conv1d, double std);
/* The same of a matrix [out,in] with b->std. */
ds_module *dsi_lm_projection_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t in,
                                 int64_t out, bool bias);
/* x [..,in] -> [..,out]: the layer without its adapter, with this bias or NULL. */
ds_tensor *dsi_lm_product(const dsi_lm_linear *l, ds_tensor *x, ds_tensor *bias);
/* Whether m was made by dsi_lm_linear_new, so that its struct is a
 * dsi_lm_linear: these are the layers that an adapter may change. */
bool dsi_lm_is_linear(const ds_module *m);
/* A table [count,dim], of tokens or of positions; a new one is normal with
 * b->std. Rows that are looked up are multiplied by scale, rounded to their
 * dtype (0: not at all). Row `padding` is 0 in a new table and gets no gradient
 * from look-ups; outside of the table: there is no such row. */
ds_module *dsi_lm_embedding_new(dsi_lm_builder *b, ds_module *parent, const char *name,
                                int64_t count, int64_t dim, double scale, int64_t padding);
ds_tensor *dsi_lm_embedding_weight(ds_module *m);
/* Layer norm with a bias, or without any parameters, RMS norm, or RMS norm that
 * multiplies by 1 + weight, in float32. It is over the last dimension, of size
 * dim. A new one multiplies by 1 and adds 0. eps 0 is meant as 0, and not as an
 * op's default. */
typedef enum dsi_lm_norm {
    DSI_LAYER_NORM,
    DSI_LAYER_NORM_BARE,
    DSI_RMS_NORM,
    DSI_RMS_NORM_PLUS_1
} dsi_lm_norm;
ds_module *dsi_lm_norm_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t dim,
                           dsi_lm_norm kind, double eps);
ds_tensor *dsi_lm_activate(dsi_lm_activation a, ds_tensor *x);

/* ---- the root ---------------------------------------------------------------------- */

/* Positions of all rows of a call behind earlier ones, at most. */
#define DSI_LM_STEP_ROWS 8

/* Keys and values of the positions so far, `[B,G,room,D]` of each layer. length
 * is the number of positions that are filled, the same for all layers and
 * rows; a layer's tensors are made by its first call. */
typedef struct dsi_lm_cache {
    int64_t length, room;
    int64_t padding;    /* positions on the left that are padding in all rows */
    int64_t wanted;     /* positions at the end of a call whose logits it returns */
    ds_tensor **k, **v; /* kept; of `layers` layers */
} dsi_lm_cache;

/* Where the one position of each row is that a call computes, in the memory of
 * the device (decode.c). */
typedef struct dsi_lm_places {
    ds_tensor *at;   /* int64 [B]: its row of the cache */
    ds_tensor *pads; /* int64 [B]: rows of the cache that are padding; NULL: none are */
} dsi_lm_places;

typedef struct dsi_lm dsi_lm;

/* Which experts the tokens of a forward with labels chose (experts.c). */
typedef struct dsi_lm_balance {
    /* [layers with experts] kept [experts]; NULL: not counted */
    ds_tensor **chosen; /* int64: by how many tokens */
    ds_tensor **probs;  /* sums of the gate's probabilities */
    int layers;         /* that were called */
    int64_t rows;       /* tokens, over all layers */
} dsi_lm_balance;

/* A family: makes its modules below the root and leaves their roles in lm.
 * build makes modules under the builder's path; a failure is that of ds_error.
 * hidden is called by the root's forward, whose inputs are checked by then,
 * and returns NULL after a failure. */
typedef struct dsi_lm_type {
    ds_tensor *(*hidden)(dsi_lm *lm, ds_tensor *ids); /* [B,L] -> [B,L,embedding] */
    void (*build)(dsi_lm *lm, ds_module *root, dsi_lm_builder *b);
    const char *prefix;       /* that published files leave out */
    const char *head, *table; /* paths of the head, and of the embeddings below `prefix` */
} dsi_lm_type;

/* cos and sin [T,R/2] of positions from `first` on. `rope` is its index in the
 * configuration; length: of the rows that it serves (rope.c). */
typedef struct dsi_lm_table {
    ds_tensor *cos, *sin;
    int rope;
    int64_t first, length;
} dsi_lm_table;

enum { DSI_LM_TABLES = 64 };

/* The struct of a root module. The modules are borrowed: the tree owns them. */
struct dsi_lm {
    dsi_lm_config config;
    const dsi_lm_type *type;
    json_t *json;                                     /* config.json */
    char *folder;                                     /* from which it was loaded; NULL */
    bool recompute;                                   /* blocks are activation checkpoints */
    ds_module *body, *embed, *position, *norm, *head; /* head: NULL if tied */
    ds_module *project_in, *project_out;              /* NULL except in opt-350m */
    ds_module **blocks;                               /* [layers] */
    void *lora;                                       /* dsi_lora, or NULL */
    dsi_lm_balance balance;
    void *session;    /* dsi_lm_session that no call uses, or NULL */
    void *generation; /* what generation_config.c read, or NULL */

    dsi_lm_table table[DSI_LM_TABLES]; /* kept; the newest last (rope.c) */
    int n_tables;
    dsi_lm_table step_table; /* of this call with a cache, whose length needs its own */
    const struct dsi_int8_matrix *head_int8; /* of a tied head, as in dsi_lm_linear */

    /* of a call of generate.c; NULL in training */
    dsi_lm_cache *cache;
    const dsi_lm_places *places; /* of one of decode.c */
    ds_tensor *positions;        /* int64 [B,L]; NULL: 0 to L - 1 */
    ds_tensor *mask;             /* bool [B,1,L,S]; NULL: causal */
    ds_tensor *window_mask;
};

extern const dsi_lm_type dsi_lm_gpt2, dsi_lm_opt, dsi_lm_gpt_neox, dsi_lm_llama;
const dsi_lm_type *dsi_lm_type_of(const dsi_lm_config *c);

/* A model of c, which the root keeps (and json, taken). NULL after a failure. */
ds_module *dsi_lm_new(const dsi_lm_config *c, json_t *json, const char *folder, dsi_lm_builder *b);
/* The list `name` of c.layers blocks below lm->body, which are lm->blocks and
 * have their numbers as names. block_new makes block `layer` below the list. */
typedef ds_module *dsi_lm_block_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *list,
                                    const char *name, int64_t layer);
void dsi_lm_blocks_new(dsi_lm *lm, dsi_lm_builder *b, const char *name,
                       dsi_lm_block_new *block_new);
void dsi_lora_free(void *lora);                /* lm->lora; NULL: nothing */
void dsi_lm_generation_free(void *generation); /* lm->generation; NULL: nothing */
void dsi_lm_session_drop(dsi_lm *lm);          /* frees lm->session; NULL: nothing */
void dsi_lm_session_train(dsi_lm *lm); /* the same for a step of training, where it can be */
/* x [..,in] through a layer that has an adapter: [..,out]. */
ds_tensor *dsi_lora_forward(dsi_lm_linear *l, ds_tensor *x, bool training);
/* Between on and off, parameters do not change, so what DoRA computes from them
 * alone is computed once. */
void dsi_lora_hold(dsi_lm *lm, bool on);
/* m's struct if m is such a model, else NULL. */
dsi_lm *dsi_lm_of(const ds_module *m);

/* x [B,L,H D] -> [B,L,H,D], of H heads; NULL passes. */
ds_tensor *dsi_lm_heads(ds_tensor *x, int64_t heads);
/* An MLP with a gate below parent: [..,hidden] -> inner twice -> [..,hidden].
 * names: of gate, up and down (llama.c). */
ds_module *dsi_lm_mlp_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *parent, const char *name,
                          int64_t inner, const char *const *names);
/* x [R,hidden], of which rows begin[i] .. begin[i + 1] - 1 are of MLP i of n ->
 * *y [R,hidden], as calls of each with its rows, which the host need not know;
 * begin int64 [n + 1] on x's device. *y NULL: a failure. False: an MLP is more
 * than matrices in memory (adapters, 8 bits, partitions, hooks). */
bool dsi_lm_mlps_grouped(ds_module *const *mlps, int64_t n, ds_tensor *x, ds_tensor *begin,
                         ds_tensor **y);
/* A layer's experts in place of an MLP, with the family's name (experts.c). */
ds_module *dsi_lm_experts_new(dsi_lm *lm, dsi_lm_builder *b, ds_module *parent);
/* Begins to count, if the configuration has a load-balancing loss; and returns
 * that loss, [] float32 with its weight, or NULL: none, or a failure. Each
 * begin has an end. */
void dsi_lm_balance_begin(dsi_lm *lm);
ds_tensor *dsi_lm_balance_end(dsi_lm *lm);
/* Attention of layer `layer`: q [B,L,H,D], k, v [B,L,G,D] -> [B,L,H D], with
 * rotary positions and the cache if lm has them. */
ds_tensor *dsi_lm_attend(dsi_lm *lm, int64_t layer, ds_tensor *q, ds_tensor *k, ds_tensor *v);
/* The same of qkv [B,L,3 H D], q's, k's and v's heads side by side. */
ds_tensor *dsi_lm_attend_packed(dsi_lm *lm, int64_t layer, ds_tensor *qkv);
/* Rotary positions (rope.c). dsi_lm_rope_begin makes the tables of a call of n
 * positions on the device of ids, dsi_lm_rope_end ends what is of this call
 * alone. Between them, x [B,H,L,D] turns by the positions of the call in layer
 * `layer`. */
ds_status dsi_lm_rope_begin(dsi_lm *lm, int64_t n, const ds_tensor *ids);
void dsi_lm_rope_end(dsi_lm *lm);
ds_tensor *dsi_lm_rotate(dsi_lm *lm, int64_t layer, ds_tensor *x);
/* The kept table by which layer `layer` turns positions 0 to n - 1, of rows of
 * that length, on the device of `beside`; NULL with the message. */
const dsi_lm_table *dsi_lm_rope_table(dsi_lm *lm, int64_t layer, int64_t n,
                                      const ds_tensor *beside);
/* How many positions may follow `past` earlier ones in one call, so that each
 * turns as if it came alone; at least 1. */
int64_t dsi_lm_rope_together(const dsi_lm *lm, int64_t past);
/* Whether the position behind `past` earlier ones changes how those turn, so
 * that the model's class computes their keys again. */
bool dsi_lm_rope_restarts(const dsi_lm *lm, int64_t past);
/* int64 [L], or [B,L] with padding: what position embeddings are looked up by. */
ds_tensor *dsi_lm_position_ids(dsi_lm *lm, ds_tensor *ids);
/* x through all blocks, each a checkpoint if lm->recompute; NULL passes. */
ds_tensor *dsi_lm_blocks(dsi_lm *lm, ds_tensor *x);
/* [..,hidden] -> [..,V] */
ds_tensor *dsi_lm_logits(dsi_lm *lm, ds_tensor *hidden);
ds_tensor *dsi_lm_dropout(dsi_lm *lm, ds_tensor *x, double p);
