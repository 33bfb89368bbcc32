/* optim/params.h: the parameters of an optimizer or a schedule: one table says
 * what they are called, where their values belong, their defaults, their
 * ranges and what they do.
 *
 *     static const dsi_param params[] = {
 *XX
 *         {0}};
 *     if (dsi_params_read(&from, json, params, &step) != DS_OK) ...
 *
 * From a table come the values of a configuration's "params", its messages
 * ("scheduler.params.warmup_num_steps is 0: expected ..."), the checks of a
 * constructor's options, and docs/optimizers.md and docs/schedules.md.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

typedef enum dsi_param_kind {
    DSI_PARAM_NUMBER,         /* double */
    DSI_PARAM_PAIR,           /* double [2], or two in a row: a list of two numbers */
    DSI_PARAM_GROUPS,         /* double * [groups]: a number, or a list of one per group */
    DSI_PARAM_INTEGER,        /* int64_t; 1e3 and 1000.0 too */
    DSI_PARAM_STRICT_INTEGER, /* int64_t, written without point and exponent */
    DSI_PARAM_INTEGERS,       /* dsi_int_list: a list that does not fall */
    DSI_PARAM_BOOL,           /* bool */
    DSI_PARAM_NOT,            /* bool that holds the opposite: .no_bias_correction */
    DSI_PARAM_CHOICE,         /* int: index into `choices` */
    DSI_PARAM_IGNORED         /* any value, without effect */
} dsi_param_kind;

/* NaN is in none of them. */
typedef enum dsi_param_range {
    DSI_ANY = 0,      /* finite */
    DSI_NOT_NEGATIVE, /* 0 or more */
    DSI_POSITIVE,     /* more than 0 */
    DSI_FRACTION,     /* 0 to 1 */
    DSI_BETA,         /* 0 or more, less than 1 */
    DSI_FACTOR,       /* more than 0, at most 1 */
    DSI_FROM_MINUS_1  /* -1 or more */
} dsi_param_range;

typedef struct dsi_int_list {
    int64_t *at; /* dsi_free it */
    int n;
} dsi_int_list;

typedef struct dsi_param {
    const char *name; /* NULL: the end of the table */
    dsi_param_kind kind;
    dsi_param_range range;
    size_t offset;         /* of the variable, in the struct that is read into */
    double value[2];       /* the default; [1]: of a PAIR's second number */
    const char *help;      /* what it does, for docs; NULL: its name says so */
    const char *otherwise; /* the default in words, if it is no constant; GROUPS:
                            * the groups' learning rates */
    bool required;
    bool nullable;              /* null selects the default */
    bool exact;                 /* a constructor's option: 0 is 0, not the default */
    const char *const *choices; /* ends with NULL; the first is the default */
} dsi_param;

/* A row for `member` of struct `self`; then .value, .help ... */
#define DSI_PARAM(key, k, r, self, member, ...) \
    { \
        .name = key, .kind = DSI_PARAM_##k, .range = DSI_##r, .offset = offsetof(self, member), \
        __VA_ARGS__ \
    }

/* Where parameters are read for: the front of messages. */
typedef struct dsi_params_from {
    const char *path; /* "scheduler.params" */
    const char *type; /* "WarmupLR" */
    int groups;       /* elements of GROUPS */
    const double *lr; /* [groups]: the groups' learning rates */
} dsi_params_from;

/* Sets the variables of *self to their defaults, allocating GROUPS, and then to
 * the values in json, the text of an object; NULL is an empty one. Refuses
 * unknown names, wrong types and values out of range: then *self may hold some
 * of the values, and what it points to is still its own to free. */
ds_status dsi_params_read(const dsi_params_from *from, const char *json, const dsi_param *table,
                          void *self);

/* Options of a constructor, a struct of `size` bytes that the table's first
 * rows describe: replaces 0 by the default and DS_ZERO by 0. False, with a
 * message that begins with `name`, for numbers out of range. */
bool dsi_params_check(const char *name, const dsi_param *table, void *options, size_t size);

/* Numbers that were read, as options of a constructor: 0 becomes DS_ZERO. */
void dsi_params_to_options(const dsi_param *table, void *self);

/* The row of that name, or NULL. */
const dsi_param *dsi_params_find(const dsi_param *table, const char *name);
