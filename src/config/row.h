/* config/row.h: what is known about a key of ds_config.json; the rows are in table.h.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CONFIG_ROW_H
#define DSI_CONFIG_ROW_H

#include "config.h"

typedef enum dsi_config_type {
    DSI_KEY_GROUP, /* an object whose keys have rows */
    DSI_KEY_BOOL,
    DSI_KEY_INT,
    DSI_KEY_NUMBER,
    DSI_KEY_TEXT,
    DSI_KEY_WORD,   /* one of words */
    DSI_KEY_LIST,   /* of texts */
    DSI_KEY_OBJECT, /* an object that others read */
    DSI_KEY_ANY
} dsi_config_type;

typedef enum dsi_config_mark {
    DSI_KEY_ACTED,   /* has a field that some part of the library reads */
    DSI_KEY_IGNORED, /* accepted, without effect: nothing that is computed would differ */
    DSI_KEY_REFUSED, /* refused unless it is the default */
    DSI_KEY_GONE,    /* refused wherever it stands, as by DeepSpeed */
    DSI_KEY_ALIAS,   /* another name of the key in target */
    DSI_KEY_OLD      /* the same, with a warning */
} dsi_config_mark;

/* How a key takes "auto". */
typedef enum dsi_config_auto {
    DSI_AUTO_NAMED, /* refuses, by name */
    DSI_AUTO_DEFAULT,
    DSI_AUTO_BATCH /* from the other batch keys */
} dsi_config_auto;

typedef struct dsi_config_word {
    const char *word; /* NULL ends the list */
    int value;        /* of the field */
} dsi_config_word;

typedef struct dsi_config_row {
    const char *path; /* "fp16.enabled"; "*" is a name that the user chooses */
    const char *def;  /* default, as JSON */
    const char *help, *target;
    const dsi_config_word *words;
    double min, max;
    size_t field; /* in dsi_config; or DSI_NO_FIELD */
    dsi_config_type type;
    dsi_config_mark mark;
    bool open_min;   /* min itself is out of range */
    bool any_case;   /* of words */
    bool auto_value; /* group: its keys take "auto" for their default */
    bool nullable;   /* group: null is an empty group */
    bool ours;       /* DeepSpeed does not have it */
} dsi_config_row;

#define DSI_NO_FIELD ((size_t)-1)

int dsi_config_rows(void);
const dsi_config_row *dsi_config_row_at(int i); /* in the order of docs: a group, then its keys */

/* The row of the key at that path, or NULL. */
const dsi_config_row *dsi_config_find(const char *path);
/* Whether the row's key stands directly in that group ("" is the top). */
bool dsi_config_in_group(const dsi_config_row *row, const char *group);
const char *dsi_config_last(const dsi_config_row *row); /* "enabled" of "fp16.enabled" */
dsi_config_auto dsi_config_auto_of(const dsi_config_row *row);

/* "an integer of at least 1", "one of none, cpu, nvme": to be freed with dsi_free. */
char *dsi_config_expects(const dsi_config_row *row);

#endif
