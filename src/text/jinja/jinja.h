/* text/jinja/jinja.h: Jinja templates, as models' chat templates use them.
 *
 *     dsi_jinja *t = dsi_jinja_parse(source, bytes, "chat_template.jinja");
 *     dsi_jinja_render(t, variables, &text, NULL);
 *     dsi_jinja_free(t);
 *
 * The language is jinja2's, set up as transformers does: a sandbox that changes
 * no list and no dict, trim_blocks and lstrip_blocks, {% break %}, {% continue
 * %}, {% generation %}, its tojson, raise_exception and strftime_now. A
 * construction that is not implemented is refused with the template's name and
 * line.
 *
 * A template is untrusted: depth, steps and memory of a render have limits.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/text.h"

#include <jansson.h>

typedef struct dsi_jinja dsi_jinja;

/* Text of a {% generation %} block: bytes [begin, end) of what is rendered. */
typedef struct dsi_jinja_span {
    size_t begin, end;
} dsi_jinja_span;

typedef struct dsi_jinja_spans {
    DSI_LIST(dsi_jinja_span)
} dsi_jinja_spans;

/* A template; NULL with a message that names `name` and a line (DS_EFORMAT). */
DSI_SHARED dsi_jinja *dsi_jinja_parse(const char *source, size_t bytes, const char *name);
DSI_SHARED void dsi_jinja_free(dsi_jinja *t);
/* Whether the template has a {% generation %} block. */
DSI_SHARED bool dsi_jinja_has_generation(const dsi_jinja *t);

/* Appends the template's text for `variables`, an object, to *out, and the
 * spans of generation blocks to *spans, unless that is NULL. DS_EINVAL: the
 * template called raise_exception; DS_EFORMAT: it failed. */
DSI_SHARED ds_status dsi_jinja_render(const dsi_jinja *t, const json_t *variables, dsi_text *out,
                                      dsi_jinja_spans *spans);
