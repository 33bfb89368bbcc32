/* config/parts.h: what the files of the configuration share while one is read.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CONFIG_PARTS_H
#define DSI_CONFIG_PARTS_H

#include "config.h"
#include "row.h"
#include "syntax.h"

struct dsi_config_trees {
    json_t *given;    /* the user's, with whole numbers as integers */
    json_t *resolved; /* every key of the table that is not GONE or another name */
    struct {
        DSI_LIST(char *)
    } warnings;
};

typedef struct dsi_config_reader {
    dsi_config *c;
    const char *name; /* of the file, for messages */
    dsi_syntax syntax;
    dsi_text errors, ignored, unknown;
    int n_errors, n_more; /* n_more: not in errors, for want of room */
    bool soft;            /* unknown keys are warnings: DS_CONFIG_UNKNOWN=warn */
} dsi_config_reader;

/* Adds 'line 7: "fp16.enabled": ...' to the errors. */
void dsi_config_wrong(dsi_config_reader *r, const char *path, const char *format, ...)
    DS_PRINTF(3, 4);
void dsi_config_warn(dsi_config_reader *r, const char *format, ...) DS_PRINTF(2, 3);

/* What stands at the end of "..., found ": 'the string "yes"', 'a list', '1.5'. */
void dsi_config_describe(dsi_text *t, const json_t *value);

/* The text of a configuration, and its name for messages; NULL with the message. Free both. */
char *dsi_config_load(const char *path_or_text, size_t *n, char **name);

/* Every key of the table: its value from given, checked, or its default. Fills c and resolved. */
void dsi_config_resolve(dsi_config_reader *r);

/* Batch sizes, and what one key says about another. */
void dsi_config_batch(dsi_config_reader *r);
void dsi_config_rules(dsi_config_reader *r);

/* The value at a path of a tree ("zero_optimization.stage"), or NULL; and setting one that is there. */
json_t *dsi_config_at(const json_t *tree, const char *path);
void dsi_config_put(json_t *tree, const char *path, json_t *value);

#endif
