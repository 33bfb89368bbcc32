/* text/chat.h: the template of a model's chats, for JSON values.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "jinja/jinja.h"

#include <deepspeed/text.h>

/* The messages, and what else the template sees. */
typedef struct dsi_chat {
    const json_t *messages;  /* a list of objects */
    const json_t *tools;     /* a list; NULL: none */
    const json_t *variables; /* an object; NULL: none */
    bool add_generation_prompt;
    const char *what; /* begins messages: "rows.jsonl: line 3" */
} dsi_chat;

/* Appends the text of the chat, and the spans of its generation blocks, unless
 * spans is NULL. */
DSI_SHARED ds_status dsi_chat_render(const ds_chat_template *t, const dsi_chat *chat, dsi_text *out,
                                     dsi_jinja_spans *spans);
/* Whether the template that a chat with or without tools uses has {% generation
 * %}. */
DSI_SHARED bool dsi_chat_has_generation(const ds_chat_template *t, bool tools);
