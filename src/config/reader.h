/* config/reader.h: what the files of the configuration share while one is read.
 *
 * Invariants: a reader lives as long as one call of dsi_config_read. Errors and
 * warnings are collected, so that one run names all mistakes; every function
 * leaves valid trees behind, with the default in place of a wrong value.
 * `resolved` is complete before batch sizes are derived and rules are checked,
 * and those run only if no value was wrong.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "key.h"
#include "syntax.h"

struct dsi_config_trees {
    char *name, *text; /* of the file, for messages; what it contains */
    dsi_syntax syntax; /* of text: the line of each key */
    json_t *given;     /* the user's, with whole numbers as integers, "auto" filled */
    json_t *resolved;  /* every key but removed ones, under its own name */
    dsi_text filled;   /* the keys whose "auto" has a value of the program: "a, b" */
    struct {
        DSI_LIST(char *)
    } warnings;
};

/* DS_CONFIG_UNKNOWN: what an unknown key is. */
typedef enum dsi_unknown {
    DSI_UNKNOWN_ERROR,
    DSI_UNKNOWN_WARN,
    DSI_UNKNOWN_NEAR /* unset: an error if it is near a known one, or where DeepSpeed refuses it */
} dsi_unknown;

typedef struct dsi_config_reader {
    dsi_config *c;
    const char *name; /* of the file, for messages */
    dsi_text errors, ignored, left_out;
    int n_errors, n_more; /* n_more: of those, left out of a long message */
    int unknown;          /* dsi_unknown */
    bool auto_filled;     /* dsi_config_fill_auto was called */
} dsi_config_reader;

/* Adds 'line 7: "fp16.enabled": ...' to the errors. path: NULL if the message
 * is about no key. */
void dsi_config_add_error(dsi_config_reader *r, const char *path, const char *format, ...)
    DS_PRINTF(3, 4);
void dsi_config_add_warning(dsi_config_reader *r, const char *format, ...) DS_PRINTF(2, 3);

/* The error of an "auto" that nothing filled; def: the key's default, as text. */
void dsi_config_add_auto_error(dsi_config_reader *r, const char *path, const char *def);

/* Adds what follows "found " in a message: 'the string "yes"', 'a list', '1.5'. */
void dsi_config_describe_value(dsi_text *t, const json_t *value);

/* dsi_syntax_parse, with whole numbers as integers; the text must be an object. */
DSI_SHARED json_t *dsi_config_parse(dsi_syntax *s, const char *text, size_t n, dsi_text *error);

/* The text of a configuration, its length in *n, its name for messages in
 * *name; NULL with the message. The caller frees both. */
char *dsi_config_load_text(const char *path_or_text, size_t *n, char **name);

bool dsi_config_is_auto(const json_t *value);
/* Puts values in place of "auto" in the given tree, and compares those that the
 * program gave with those of the file. Other keys stay "auto". */
void dsi_config_fill_auto(dsi_config_reader *r, const ds_auto_values *values);
/* The name of the value that fills the key at that path: "max_steps"; NULL:
 * none. */
const char *dsi_config_auto_name(const char *path);

/* Fills c and resolved: each key has its value from given, checked, or its
 * default. */
void dsi_config_resolve(dsi_config_reader *r);

/* Derives the batch sizes that are not given, and checks their product. */
void dsi_config_resolve_batch(dsi_config_reader *r);
/* Checks what one key requires of another. */
void dsi_config_check_rules(dsi_config_reader *r);

/* The value at a path of a tree ("zero_optimization.stage"), borrowed, or NULL. */
json_t *dsi_config_tree_get(const json_t *tree, const char *path);
/* Sets a value, whose reference is taken; the groups of its path must exist. */
void dsi_config_tree_set(json_t *tree, const char *path, json_t *value);
