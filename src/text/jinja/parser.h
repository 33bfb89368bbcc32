/* text/jinja/parser.h: the expressions of a template's tags, for statements.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "node.h"

/* A failure sticks: `failed` is set, and all further calls return NULL. */
typedef struct dsi_jparser {
    dsi_jinja *t;
    const dsi_jtoken *at; /* the next token; the last is DSI_JT_END */
    bool failed;
    int depth, loops;
    int uses; /* DSI_JUSES_...: names that were read since a macro's begin */
} dsi_jparser;

dsi_jnode *dsi_jparse_node(dsi_jparser *p, dsi_jnode_kind kind);
void *dsi_jparse_fail(dsi_jparser *p, const char *format, ...) DS_PRINTF(2, 3); /* NULL */
/* Enters one level of nesting; false, with the message, if there are too many. */
bool dsi_jparse_enter(dsi_jparser *p);

/* Whether the next token is this operator, or this name. */
bool dsi_jparse_is_op(const dsi_jparser *p, int op);
bool dsi_jparse_is_name(const dsi_jparser *p, const char *name);
/* The same; one that is there is read. */
bool dsi_jparse_skip_op(dsi_jparser *p, int op);
bool dsi_jparse_skip_name(dsi_jparser *p, const char *name);
/* The same, a failure if it is not there. */
void dsi_jparse_expect_op(dsi_jparser *p, int op);
dsi_jvalue dsi_jparse_expect_name(dsi_jparser *p);

/* An expression; several, separated by commas, are a tuple. */
dsi_jnode *dsi_jparse_expression(dsi_jparser *p);
dsi_jnode *dsi_jparse_or(dsi_jparser *p); /* without if and else */
dsi_jnode *dsi_jparse_tuple(dsi_jparser *p, bool with_if);
dsi_jnode *dsi_jparse_primary(dsi_jparser *p);
/* name(arguments), and those behind further |, of `node`. */
dsi_jnode *dsi_jparse_filters(dsi_jparser *p, dsi_jnode *node, bool begins_with_name);
