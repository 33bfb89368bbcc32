/* tools/lm/chat.c: prompts that are chats, and conversations.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "lm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A tokenizer.json has its template beside it. */
char *lm_chat_folder(const LmOptions *o)
{
    const char *path = o->tokenizer ? o->tokenizer : o->model, *end = strrchr(path, '/');
    if (dsi_is_folder(path)) return dsi_text_of("%s", path).s;
    return end ? dsi_text_of("%.*s", (int)(end - path), path).s : dsi_text_of(".").s;
}

ds_chat_template *lm_chat_template(const LmOptions *o)
{
    char *folder = lm_chat_folder(o);
    ds_chat_template *t = ds_chat_template_load(folder);
    free(folder);
    return t;
}

/* Appends a message; DS_EINVAL if it is not UTF-8. */
static ds_status message_add(json_t *messages, const char *role, const char *content)
{
    if (!dsi_is_utf8(content, strlen(content)))
        return dsi_fail(DS_EINVAL, "chat: the message of the %s is not UTF-8", role);
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", content));
    return DS_OK;
}

/* The messages as one text, up to the answer; to be freed with free(). */
static char *messages_text(const ds_chat_template *t, const json_t *messages)
{
    char *json = json_dumps(messages, JSON_COMPACT), *text = ds_chat_apply(t, json, true);
    free(json);
    return text;
}

char *lm_chat_prompt(const LmOptions *o)
{
    json_t *messages = json_array();
    ds_status status = o->system ? message_add(messages, "system", o->system) : DS_OK;
    if (status == DS_OK) status = message_add(messages, "user", o->prompt ? o->prompt : "");
    ds_chat_template *t = status == DS_OK ? lm_chat_template(o) : NULL;
    char *text = t ? messages_text(t, messages) : NULL;
    json_decref(messages);
    ds_chat_template_free(t);
    return text;
}

/* ---- a conversation ---- */

typedef struct Conversation {
    const LmOptions *o;
    ds_module *model;
    ds_tokenizer *tokenizer;
    ds_chat_template *template;
    ds_generate_opts opts;
    json_t *messages;
} Conversation;

/* The next line that is not empty, without its end; NULL at the end of stdin,
 * or for /exit. */
static char *line_read(char **line, size_t *room)
{
    bool asks = isatty(STDIN_FILENO) == 1;
    for (ssize_t n;;) {
        if (asks) fputs("> ", stdout), fflush(stdout);
        n = getline(line, room, stdin);
        if (n < 0) {
            if (asks) putchar('\n');
            return NULL;
        }
        while (n > 0 && strchr("\r\n", (*line)[n - 1])) (*line)[--n] = 0;
        if (!strcmp(*line, "/exit")) return NULL;
        if (n > 0) return *line;
    }
}

/* The answer to the messages, printed as it is written, becomes one of them.
 * Each answer draws from a seed of its own. */
static ds_status answer(Conversation *c)
{
    char *prompt = messages_text(c->template, c->messages);
    dsi_text text = {0};
    ds_status status = prompt ? lm_write(c->model, c->tokenizer, c->opts, prompt, true, &text)
                              : ds_error_status();
    if (status == DS_OK) status = message_add(c->messages, "assistant", text.s ? text.s : "");
    c->opts.seed++;
    free(prompt);
    dsi_text_free(&text);
    return status;
}

static ds_status converse(Conversation *c)
{
    char *line = NULL;
    size_t room = 0;
    ds_status status = DS_OK;
    if (c->o->system) status = message_add(c->messages, "system", c->o->system);
    while (status == DS_OK && line_read(&line, &room)) {
        status = message_add(c->messages, "user", line);
        if (status == DS_OK) status = answer(c);
    }
    free(line);
    return status;
}

int lm_chat(LmOptions *o)
{
    dsi_log_set_stream(stderr); /* stdout has the answers alone */
    Conversation c = {.o = o, .template = lm_chat_template(o), .messages = json_array()};
    if (c.template) c.model = ds_pretrained_load(o->model, .dtype = o->bf16 ? DS_BF16 : DS_F32);
    if (c.model && lm_adapter(c.model, o) == DS_OK) c.tokenizer = lm_tokenizer_load(o);
    ds_status status = c.tokenizer ? lm_generation(o, c.model, &c.opts) : ds_error_status();
    c.opts.cache_prompt = c.opts.num_beams <= 1;
    if (status == DS_OK) status = converse(&c);
    json_decref(c.messages);
    ds_chat_template_free(c.template);
    ds_module_free(c.model);
    ds_tokenizer_free(c.tokenizer);
    return status != DS_OK;
}
