/* text/tokenizer_load.h: what the files that read a tokenizer.json share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tokenizer.h"

#include <jansson.h>

/* The file while it is read. */
typedef struct dsi_tokenizer_reader {
    const char *name; /* begins messages */
    ds_tokenizer *t;
    bool byte_level; /* the vocabulary is in the byte-level alphabet */
} dsi_tokenizer_reader;

/* Fails with "tokenizer: NAME: ..." (DS_EFORMAT: the file is damaged). */
ds_status dsi_tokenizer_damaged(const dsi_tokenizer_reader *r, const char *format, ...)
    DS_PRINTF(2, 3);
/* The same for what is valid, but not implemented here (DS_EINVAL). */
ds_status dsi_tokenizer_unsupported(const dsi_tokenizer_reader *r, const char *part,
                                    const json_t *component);

/* *to receives the object of a JSON file, to be released, or NULL if it is not
 * there and `needed` is false. */
ds_status dsi_json_object_read(const char *folder, const char *file, bool needed, json_t **to);
/* Members of an object, or the default if they are missing or null. */
const char *dsi_json_text(const json_t *object, const char *key, const char *otherwise);
bool dsi_json_bool(const json_t *object, const char *key, bool otherwise);
int64_t dsi_json_int(const json_t *object, const char *key, int64_t otherwise);
/* The component's "type", or "". */
const char *dsi_json_type(const json_t *component);
/* Its "pattern", {"String": ..} or {"Regex": ..}, compiled; NULL with a
 * message. */
dsi_regex *dsi_json_pattern(const dsi_tokenizer_reader *r, const char *part,
                            const json_t *component);

/* tokenizer_steps.c: each reads one component, or a "Sequence" of them; null
 * and NULL are none. */
ds_status dsi_read_normalizer(dsi_tokenizer_reader *r, const json_t *component);
ds_status dsi_read_pre_tokenizer(dsi_tokenizer_reader *r, const json_t *component);
ds_status dsi_read_post_processor(dsi_tokenizer_reader *r, const json_t *component);
ds_status dsi_read_decoder(dsi_tokenizer_reader *r, const json_t *component);

/* tokenizer_gpt2.c: what a tokenizer.json would hold, of the vocab.json and
 * merges.txt in a folder, to be freed with dsi_free. NULL with the message. */
char *dsi_tokenizer_of_gpt2(const char *folder);
