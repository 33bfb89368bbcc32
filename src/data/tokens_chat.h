/* data/tokens_chat.h: conversations of JSON lines as tokens.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/text.h>

#include <jansson.h>

/* The rows of a pack that are conversations. */
typedef struct dsi_chat_rows {
    ds_tokenizer *tokenizer;    /* borrowed */
    const char *folder;         /* of the template; NULL: no such rows */
    ds_chat_template *template; /* loaded for the first row; the owner frees it */
    bool assistant_only;
} dsi_chat_rows;

/* Whether a row has messages: "messages", or lists as "prompt" or "completion". */
bool dsi_is_chat_row(const json_t *row);

/* Appends the ids of a row. *masks receives a byte for each, 1 if it counts in
 * the loss; dsi_free it. `what` begins messages. */
ds_status dsi_chat_row_tokens(dsi_chat_rows *rows, const json_t *row, const char *what,
                              ds_tokens *ids, char **masks);
