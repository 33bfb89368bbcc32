/* data/tokens_chat.c: conversations of JSON lines as tokens, in TRL's formats:
 * {"messages": [...]}, and {"prompt": [...], "completion": [...]}.
 *
 * Source: tokenize_fn of TRL's SFTTrainer.
 * SPDX-License-Identifier: MIT */
#include "tokens_chat.h"

#include "base/error.h"
#include "base/mem.h"
#include "text/bpe.h"
#include "text/chat.h"
#include "text/offsets.h"

#include <string.h>

bool dsi_is_chat_row(const json_t *row)
{
    return json_object_get(row, "messages") || json_is_array(json_object_get(row, "prompt")) ||
           json_is_array(json_object_get(row, "completion"));
}

/* A row's chat, and what is freed behind it. */
typedef struct Row {
    dsi_chat chat;
    json_t *messages, *tools;
    const json_t *prompt; /* NULL: all messages count */
} Row;

/* The list `more` behind `from`, which is `from` itself if there is no `more`;
 * a new reference. */
static json_t *joined(const json_t *from, const json_t *more)
{
    json_t *all = (json_t *)(uintptr_t)from;
    if (!more) return json_incref(all);
    all = json_copy(all);
    json_array_extend(all, (json_t *)(uintptr_t)more);
    return all;
}

/* The tools of a row, a list or its JSON as a text; a new reference. */
static ds_status tools_read(const json_t *value, const char *what, json_t **tools)
{
    bool text = json_is_string(value);
    if (!value || json_is_null(value)) return DS_OK;
    *tools = text ? json_loads(json_string_value(value), JSON_ALLOW_NUL, NULL)
                  : json_incref((json_t *)(uintptr_t)value);
    if (json_is_null(*tools)) json_decref(*tools), *tools = NULL;
    if (text && !*tools) return dsi_fail(DS_EFORMAT, "%s: \"tools\" is not JSON", what);
    return DS_OK;
}

static ds_status row_read(const json_t *j, const char *what, Row *row)
{
    const json_t *messages = json_object_get(j, "messages"), *prompt = json_object_get(j, "prompt"),
                 *completion = json_object_get(j, "completion"),
                 *variables = json_object_get(j, "chat_template_kwargs");
    if (json_object_get(j, "text") || (messages && (prompt || completion)))
        return dsi_fail(DS_EFORMAT,
                        "%s: expected one of \"text\", \"messages\", and \"prompt\" with "
                        "\"completion\", found several",
                        what);
    if (!messages && (!json_is_array(prompt) || !json_is_array(completion)))
        return dsi_fail(DS_EFORMAT,
                        "%s: expected \"prompt\" and \"completion\" with two texts, or two lists "
                        "of messages",
                        what);
    if (messages && !json_is_array(messages))
        return dsi_fail(DS_EFORMAT, "%s: \"messages\": expected a list", what);
    if (variables && !json_is_object(variables))
        return dsi_fail(DS_EFORMAT, "%s: \"chat_template_kwargs\": expected an object", what);
    ds_status status = tools_read(json_object_get(j, "tools"), what, &row->tools);
    row->prompt = messages ? NULL : prompt;
    row->messages = messages ? joined(messages, NULL) : joined(prompt, completion);
    row->chat = (dsi_chat){row->messages, row->tools, variables, false, what};
    return status;
}

/* Sets the masks of ids that a generation block has a part of. */
static ds_status assistant_mask(const dsi_chat_rows *rows, const dsi_text *text,
                                const ds_tokens *ids, const dsi_jinja_spans *spans,
                                const char *what, char *mask)
{
    dsi_jinja_span *at = dsi_alloc((size_t)ids->n * sizeof *at + 1);
    ds_status status = dsi_token_offsets(rows->tokenizer, text->s, text->n, ids->ids, ids->n, at);
    bool some = false;
    for (int64_t i = 0, s = 0; status == DS_OK && i < ids->n; i++) {
        while (s < spans->n && at[i].begin >= spans->at[s].end) s++;
        bool in_block = s < spans->n && at[i].end > spans->at[s].begin;
        mask[i] = (char)(mask[i] && in_block);
        some |= in_block;
    }
    dsi_free(at);
    if (status != DS_OK) return dsi_fail(status, "%s: assistant_only_loss: %s", what, ds_error());
    if (some) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "%s: assistant_only_loss: no token of the assistant is in a "
                    "{%% generation %%} block",
                    what);
}

/* How many first ids are those of the prompt alone, with what begins an answer. */
static ds_status prompt_length(const dsi_chat_rows *rows, const Row *row, const ds_tokens *ids,
                               int64_t *length)
{
    dsi_chat chat = row->chat;
    chat.messages = row->prompt;
    chat.add_generation_prompt = true;
    dsi_text text = {0};
    ds_tokens prompt = {0};
    ds_status status = dsi_chat_render(rows->template, &chat, &text, NULL);
    if (status == DS_OK && text.n)
        status = ds_encode(rows->tokenizer, text.s, text.n, &prompt,
                           (ds_encode_opts){.no_special_tokens = true});
    *length = 0;
    while (*length < prompt.n && *length < ids->n && prompt.ids[*length] == ids->ids[*length])
        ++*length;
    dsi_text_free(&text);
    ds_tokens_free(&prompt);
    return status;
}

/* The row's ids alone, in *ids, and their masks. */
static ds_status row_tokens(const dsi_chat_rows *rows, const Row *row, ds_tokens *ids, char **mask)
{
    dsi_text text = {0};
    dsi_jinja_spans spans = {0};
    int64_t prompt = 0;
    ds_status status = dsi_chat_render(rows->template, &row->chat, &text, &spans);
    if (status == DS_OK && text.n)
        status = ds_encode(rows->tokenizer, text.s, text.n, ids,
                           (ds_encode_opts){.no_special_tokens = true});
    if (status == DS_OK && row->prompt) status = prompt_length(rows, row, ids, &prompt);
    *mask = dsi_alloc((size_t)ids->n + 1);
    for (int64_t i = prompt; i < ids->n; i++) (*mask)[i] = 1;
    if (status == DS_OK && rows->assistant_only)
        status = assistant_mask(rows, &text, ids, &spans, row->chat.what, *mask);
    dsi_text_free(&text);
    dsi_list_free(&spans);
    return status;
}

ds_status dsi_chat_row_tokens(dsi_chat_rows *rows, const json_t *j, const char *what,
                              ds_tokens *ids, char **masks)
{
    Row row = {0};
    ds_tokens own = {0};
    *masks = NULL;
    ds_status status = row_read(j, what, &row);
    if (status == DS_OK && !rows->folder)
        status = dsi_fail(DS_EINVAL, "%s: messages need a model's template of chats", what);
    if (status == DS_OK && !rows->template) rows->template = ds_chat_template_load(rows->folder);
    if (status == DS_OK && !rows->template)
        status = dsi_fail(ds_error_status(), "%s: messages: %s", what, ds_error());
    if (status == DS_OK && rows->assistant_only &&
        !dsi_chat_has_generation(rows->template, row.tools != NULL))
        status = dsi_fail(DS_EINVAL,
                          "%s: assistant_only_loss: the template of chats has no {%% generation "
                          "%%} block, which says what the assistant's text is",
                          what);
    if (status == DS_OK) status = row_tokens(rows, &row, &own, masks);
    for (int64_t i = 0; status == DS_OK && i < own.n; i++) dsi_tokens_add(ids, own.ids[i]);
    ds_tokens_free(&own);
    json_decref(row.messages);
    json_decref(row.tools);
    return status;
}
