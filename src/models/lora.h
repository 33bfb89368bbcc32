/* models/lora.h: what the adapters of a model are, as in PEFT's
 * adapter_config.json.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

#include <jansson.h>

#define DSI_LORA_MAX_NAMES 32

/* Names of layers: whole paths, or ends of them. */
typedef struct dsi_lora_names {
    int n;
    char name[DSI_LORA_MAX_NAMES][64];
} dsi_lora_names;

/* Which biases are trained: none, all of the model, those of layers with an
 * adapter. */
typedef enum dsi_lora_bias { DSI_BIAS_NONE, DSI_BIAS_ALL, DSI_BIAS_LORA_ONLY } dsi_lora_bias;

/* lm->lora. The root of the model owns it. */
typedef struct dsi_lora {
    json_t *config; /* adapter_config.json, if they come from files; else NULL */
    /* Of files: which layers have adapters is known from the weights alone, as
     * target_modules is a pattern, or other keys leave layers out. */
    bool by_weights;
    int64_t r;             /* rank: A is [r,in], B is [out,r] */
    double alpha, dropout; /* scale: see dsi_lora_scale; dropout of x before A */
    bool rslora;           /* rank-stabilised: Kalajdzievski, arXiv:2312.03732 */
    bool dora;             /* a magnitude for each output: Liu et al., arXiv:2402.09353 */
    dsi_lora_bias bias;
    dsi_lora_names targets, saved; /* target_modules, modules_to_save */
    bool tying;                    /* ensure_weight_tying: saved embeddings stay tied */
    bool keep_dtype;               /* adapters of a 16-bit model are not float32 */
    bool merged;                   /* nothing is computed from them any more */
} dsi_lora;

/* Whether a name of target_modules or of a pattern's keys means the layer: its
 * whole path, or the end of it after a dot, as in PEFT. */
bool dsi_lora_name_fits(const char *name, const char *path);
/* The rank of the layer, and what its update counts: alpha / r, or
 * alpha / sqrt(r); both by the patterns of the file, if there are any. */
int64_t dsi_lora_rank(const dsi_lora *l, const char *path);
double dsi_lora_scale(const dsi_lora *l, const char *path);

/* The bias of that name ("none", "all", "lora_only"; NULL: none); fails with
 * DS_EINVAL for another one. */
ds_status dsi_lora_bias_of(const char *name, dsi_lora_bias *bias);
/* Appends a name; fails for an empty or long one, or one too many. what: the
 * key, for the message. */
ds_status dsi_lora_name_add(dsi_lora_names *names, const char *what, const char *name);

/* Reads folder/adapter_config.json into l, which is zero. Keys that change the
 * result and are not implemented are refused by name. l->config is set in any
 * case in which the file was JSON. */
ds_status dsi_lora_config_read(const char *folder, dsi_lora *l);
/* Writes folder/adapter_config.json: the keys of the file that was loaded, or
 * new ones. base: the folder of the model, or NULL. conv1d: it is GPT-2's. */
ds_status dsi_lora_config_write(const char *folder, const dsi_lora *l, const char *base,
                                bool conv1d);
/* "folder/file", which the caller frees with dsi_free. */
char *dsi_lora_path(const char *folder, const char *file);
