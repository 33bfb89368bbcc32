/* deepspeed/config.h: a ds_config.json without training, and the values of its
 * "auto" keys.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_CONFIG_H
#define DEEPSPEED_CONFIG_H

#include <deepspeed/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values that replace "auto" in a ds_config.json: the arguments of
 * transformers' Trainer that its users put there, under the names of
 * TrainingArguments. 0 selects the Trainer's default, which the comments show;
 * DS_ZERO (deepspeed/types.h) requests zero. A value that is given must
 * equal what the file has in place of "auto", as in the Trainer: else the
 * configuration is refused. */
typedef struct ds_auto_values {
    int64_t per_device_train_batch_size; /* samples of a forward on one rank (8, or what
                                            the other two batch keys of the file give) */
    int64_t gradient_accumulation_steps; /* (1, or what the other two give) */
    double learning_rate;                /* (5e-5) */
    double adam_beta1, adam_beta2;       /* (0.9, 0.999) */
    double adam_epsilon;                 /* (1e-8) */
    double weight_decay;                 /* (0) */
    double max_grad_norm;                /* gradient_clipping (1) */
    int64_t warmup_steps;                /* steps of the optimizer (0) */
    double warmup_ratio;                 /* without warmup_steps: of max_steps, rounded up (0) */
    int64_t max_steps;                   /* of the whole run; no default */
    int64_t hidden_size;                 /* of the model; without it keys that depend on it get
                                            DeepSpeed's defaults */
    bool fp16, bf16;                     /* (false) */
} ds_auto_values;

/* Sets one value from the text "NAME=VALUE", as of a command line:
 * "learning_rate=1e-4", "bf16=true". DS_EINVAL for an unknown name, a value
 * that is no number, or one that is negative: *v stays as it was. */
DS_API ds_status ds_auto_values_set(ds_auto_values *v, const char *text);

/* Checks a configuration as an engine of world_size ranks would read it, with
 * the options of its optimizer and schedule (deepspeed --check_config).
 *
 * config: path of a ds_config.json, its JSON text, or base64 of that.
 * world_size: ranks, at least 1. resolved: NULL, or receives the whole
 * configuration as JSON, every key with its
 *     value and batch sizes derived; NULL on failure. The caller free()s it.
 * warnings: NULL, or receives a line for each thing that works but may not be
 *     meant, or ""; NULL on failure. The caller free()s it.
 * Returns DS_OK, or a failure whose message names every wrong key with its
 * line: DS_EINVAL for keys and values, DS_EFORMAT for text that is no JSON,
 * DS_EIO for a file that cannot be read. This thread's generator stays as it
 * is. */
DS_API ds_status ds_config_check(const char *config, int world_size, char **resolved,
                                 char **warnings);
/* The same with "auto" filled; auto_values: borrowed, NULL: "auto" stays. */
DS_API ds_status ds_config_check_auto(const char *config, const ds_auto_values *auto_values,
                                      int world_size, char **resolved, char **warnings);

#ifdef __cplusplus
}
#endif
#endif
