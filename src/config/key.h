/* config/key.h: what is known about a key of ds_config.json; the rows are in
 * table.h.
 *
 * Invariants: rows are const, and the same for all configurations. A path is
 * unique; its groups, except the top level, have rows too, before it. An alias
 * or a deprecated key has a target and no field. min, max and words are read by
 * the check, the message and docs/config.md alike, which therefore cannot
 * differ; rules that depend on another key are in batch.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "config.h"

typedef enum dsi_config_type {
    DSI_KEY_GROUP, /* an object whose keys have rows */
    DSI_KEY_BOOL,
    DSI_KEY_INT,
    DSI_KEY_NUMBER,
    DSI_KEY_TEXT,
    DSI_KEY_WORD,   /* one of words */
    DSI_KEY_LIST,   /* of texts */
    DSI_KEY_OBJECT, /* an object that another part of the library reads */
    DSI_KEY_ANY     /* of keys that never act */
} dsi_config_type;

/* See the head of table.h. */
typedef enum dsi_config_mark {
    DSI_KEY_SUPPORTED,
    DSI_KEY_IGNORED,
    DSI_KEY_UNSUPPORTED,
    DSI_KEY_REMOVED,
    DSI_KEY_ALIAS,     /* another name of the key in target */
    DSI_KEY_DEPRECATED /* likewise, with a warning */
} dsi_config_mark;

/* The meaning of "auto" as the value of a key. */
typedef enum dsi_config_auto {
    DSI_AUTO_ERROR,
    DSI_AUTO_DEFAULT,
    DSI_AUTO_BATCH /* derived from the other batch keys */
} dsi_config_auto;

typedef struct dsi_config_word {
    const char *word; /* NULL ends the list */
    int value;        /* of the field */
} dsi_config_word;

typedef struct dsi_config_key {
    const char *path; /* "fp16.enabled" */
    const char *def;  /* default, as JSON; NULL of other names and removed keys */
    const char *help, *target;
    const dsi_config_word *words;
    double min, max;
    size_t field; /* in dsi_config; or DSI_NO_FIELD */
    dsi_config_type type;
    dsi_config_mark mark;
    bool open_min;   /* min itself is out of range */
    bool any_case;   /* words match in any case of letters */
    bool auto_value; /* group: its keys take "auto" for their default */
    bool nullable;   /* group: null is an empty group */
    bool extension;  /* DeepSpeed does not have it */
} dsi_config_key;

#define DSI_NO_FIELD ((size_t)-1)

/* Keys in the order of the documents: a group comes before its keys. */
int dsi_config_key_count(void);
const dsi_config_key *dsi_config_key_at(int i);

/* The key at that path, or NULL. */
const dsi_config_key *dsi_config_key_find(const char *path);
/* Whether the key is directly in that group ("" is the top level). */
bool dsi_config_key_in_group(const dsi_config_key *key, const char *group);
/* The last name of its path: "enabled" of "fp16.enabled". */
const char *dsi_config_key_name(const dsi_config_key *key);
dsi_config_auto dsi_config_key_auto(const dsi_config_key *key);

/* "an integer of at least 1", "one of none, cpu, nvme": to be freed with
 * dsi_free. */
char *dsi_config_key_expects(const dsi_config_key *key);
