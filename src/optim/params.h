/* optim/params.h: the "params" of an optimizer or a schedule in a configuration, read by a table.
 *
 *     const dsi_param table[] = {{"step_size", DSI_PARAM_INTEGER, &n, .range = DSI_POSITIVE}, ...};
 *     if (dsi_params_read(&from, json, table, n) != DS_OK) ...
 *
 * A parameter that is absent keeps what its variable held. Unknown names, wrong types and values out of
 * range are refused with the path in front: "scheduler.params.warmup_num_steps is 0: expected ...".
 * SPDX-License-Identifier: MIT */
#ifndef DSI_OPTIM_PARAMS_H
#define DSI_OPTIM_PARAMS_H

#include <deepspeed/types.h>

typedef enum dsi_param_kind {
    DSI_PARAM_NUMBER,  /* double */
    DSI_PARAM_RATES,   /* double [groups]: a number for all groups, or a list with one for each */
    DSI_PARAM_INTEGER, /* int64_t, written without point and exponent */
    DSI_PARAM_WHOLE,   /* int64_t; 1e3 and 1000.0 too */
    DSI_PARAM_WHOLES,  /* dsi_wholes: a list of whole numbers, not falling */
    DSI_PARAM_BOOL,    /* bool */
    DSI_PARAM_WORD,    /* int: which of `words` */
    DSI_PARAM_PAIR,    /* double [2]: a list of two numbers */
    DSI_PARAM_IGNORED  /* any value, without effect */
} dsi_param_kind;

typedef enum dsi_range {
    DSI_ANY = 0,      /* finite */
    DSI_NOT_NEGATIVE, /* 0 or more */
    DSI_POSITIVE,     /* more than 0 */
    DSI_UNIT,         /* 0 to 1 */
    DSI_BETA,         /* 0 or more, less than 1 */
    DSI_FACTOR,       /* more than 0, at most 1 */
    DSI_FROM_MINUS_1  /* -1 or more */
} dsi_range;

typedef struct dsi_wholes {
    int64_t *at; /* dsi_free it */
    int n;
} dsi_wholes;

typedef struct dsi_param {
    const char *name;
    dsi_param_kind kind;
    void *to;
    dsi_range range;
    bool required;
    bool nullable;            /* null is "absent" */
    const char *const *words; /* ends with NULL */
} dsi_param;

/* Who reads: the front of messages. */
typedef struct dsi_params_from {
    const char *path; /* "scheduler.params" */
    const char *type; /* "WarmupLR" */
    int groups;       /* how many rates a list of them has */
} dsi_params_from;

/* json: the text of an object; NULL is an empty one. Nothing is promised of the variables after a refusal. */
ds_status dsi_params_read(const dsi_params_from *from, const char *json, const dsi_param *table,
                          int n);

#endif
