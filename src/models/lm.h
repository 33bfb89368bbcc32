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

/* Where parameters get their first values: from a state dict, or at random. */
typedef struct dsi_lm_builder {
    const ds_state *weights; /* NULL: at random */
    const char *prefix;      /* that names in weights may lack: "model." */
    ds_dtype dtype;
    bool stored_dtype; /* as in weights, in place of dtype */
    double std;        /* of random values */
    char path[256];    /* of the module that is being made: "model.layers.0." */
    int used;          /* entries of weights that became parameters */
} dsi_lm_builder;

/* A module at b's path; dsi_lm_leave(b, was) ends it. */
ds_module *dsi_lm_enter(dsi_lm_builder *b, ds_module *parent, const char *name,
                        const ds_module_type *type, size_t *was);
void dsi_lm_leave(dsi_lm_builder *b, size_t was);
/* The value of b's weights that has this name below b's path; NULL: none. */
ds_tensor *dsi_lm_stored(const dsi_lm_builder *b, const char *name);
/* A parameter of m: of that name in the weights, else normal with std, or, with
 * std < 0, all -std - 1 (so -1: zeros, -2: ones). */
ds_tensor *dsi_lm_param(dsi_lm_builder *b, ds_module *m, const char *name, ds_dims shape,
                        double std);

/* ---- layers, with transformers' names -------------------------------------------- */

/* Matrices of two layouts: weight [out,in] (nn.Linear), or [in,out] (GPT-2's
 * Conv1D). A LoRA adapter adds scaling B A x (lora.c). */
typedef struct dsi_lm_linear {
    ds_tensor *weight, *bias;   /* bias: NULL, or [out] */
    bool transposed;            /* Conv1D */
    ds_tensor *lora_a, *lora_b; /* [r,in], [out,r]; NULL: no adapter */
    double lora_scale, lora_dropout;
} dsi_lm_linear;

/* std < 0: b->std. */
ds_module *dsi_lm_linear_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t in,
                             int64_t out, bool bias, bool conv1d, double std);
bool dsi_lm_is_linear(const ds_module *m);
ds_module *dsi_lm_embedding_new(dsi_lm_builder *b, ds_module *parent, const char *name,
                                int64_t count, int64_t dim);
ds_tensor *dsi_lm_embedding_weight(ds_module *m);
/* Layer norm with a bias, or RMS norm. */
ds_module *dsi_lm_norm_new(dsi_lm_builder *b, ds_module *parent, const char *name, int64_t dim,
                           bool rms, double eps);
ds_tensor *dsi_lm_activate(dsi_lm_activation a, ds_tensor *x);

/* ---- the root ---------------------------------------------------------------------- */

/* Keys and values of the positions so far, [B,G,room,D] of each layer. */
typedef struct dsi_lm_cache {
    int64_t length, room;
    ds_tensor **k, **v; /* kept; of `layers` layers */
} dsi_lm_cache;

typedef struct dsi_lm dsi_lm;

/* A family: makes its modules below the root and leaves their roles in lm. */
typedef struct dsi_lm_type {
    ds_tensor *(*hidden)(dsi_lm *lm, ds_tensor *ids); /* [B,L] -> [B,L,hidden] */
    void (*build)(dsi_lm *lm, ds_module *root, dsi_lm_builder *b);
    const char *prefix; /* that published files leave out */
} dsi_lm_type;

/* The struct of a root module. */
struct dsi_lm {
    dsi_lm_config config;
    const dsi_lm_type *type;
    json_t *json;                                     /* config.json */
    char *folder;                                     /* from which it was loaded; NULL */
    bool recompute;                                   /* blocks are activation checkpoints */
    ds_module *body, *embed, *position, *norm, *head; /* head: NULL if tied */
    ds_module **blocks;                               /* [layers] */
    double lora_scale;                                /* of adapters; see lora.c */
    void *lora;

    ds_tensor *cos, *sin; /* kept [T,D/2]; NULL without rotary positions */

    /* of a call of dsi_lm_step; NULL in training */
    dsi_lm_cache *cache;
    ds_tensor *positions; /* int64 [B,L]; NULL: 0 to L - 1 */
    ds_tensor *mask;      /* bool [B,1,L,S]; NULL: causal */
    ds_tensor *window_mask;
};

extern const dsi_lm_type dsi_lm_gpt2, dsi_lm_llama;

/* A model of c, which the root keeps (and json, taken). NULL after a failure. */
ds_module *dsi_lm_new(const dsi_lm_config *c, json_t *json, const char *folder, dsi_lm_builder *b);
/* m's struct if m is such a model, else NULL. */
dsi_lm *dsi_lm_of(const ds_module *m);

/* Attention of layer `layer`: q [B,L,H,D], k, v [B,L,G,D] -> [B,L,H D], with
 * rotary positions and the cache if lm has them. */
ds_tensor *dsi_lm_attend(dsi_lm *lm, int64_t layer, ds_tensor *q, ds_tensor *k, ds_tensor *v);
/* int64 [L], or [B,L] with padding: what position embeddings are looked up by. */
ds_tensor *dsi_lm_position_ids(dsi_lm *lm, ds_tensor *ids);
/* x through block i, as a checkpoint if lm->recompute. */
ds_tensor *dsi_lm_block(dsi_lm *lm, int64_t i, ds_tensor *x);
/* [..,hidden] -> [..,V] */
ds_tensor *dsi_lm_logits(dsi_lm *lm, ds_tensor *hidden);
ds_tensor *dsi_lm_dropout(dsi_lm *lm, ds_tensor *x, double p);
