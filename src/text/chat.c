/* text/chat.c: a model's template of chats: where it is, and what it sees.
 *
 * Source: transformers 5, PreTrainedTokenizerBase.apply_chat_template and
 * render_jinja_template.
 * SPDX-License-Identifier: MIT */
#include "chat.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "tokenizer_load.h"

#include <stdlib.h>
#include <string.h>

struct ds_chat_template {
    dsi_jinja *plain, *with_tools; /* with_tools NULL: plain is for both; one is not NULL */
    json_t *special;               /* bos_token and so on, as texts */
};

void ds_chat_template_free(ds_chat_template *t)
{
    if (!t) return;
    dsi_jinja_free(t->plain);
    dsi_jinja_free(t->with_tools);
    json_decref(t->special);
    dsi_free(t);
}

/* ---- files ---- */

/* A template in a file of its own; *t stays NULL if there is none. */
static ds_status template_of_file(const char *folder, const char *name, dsi_jinja **t)
{
    dsi_text path = dsi_text_of("%s/%s", folder, name);
    ds_status status = DS_OK;
    if (dsi_file_exists(path.s)) {
        size_t n = 0;
        char *text = dsi_file_read_regular(path.s, &n);
        *t = text ? dsi_jinja_parse(text, n, path.s) : NULL;
        if (!*t) status = ds_error_status();
        dsi_free(text);
    }
    dsi_text_free(&path);
    return status;
}

static dsi_jinja *template_of_json(const json_t *text, const char *folder)
{
    dsi_text name = dsi_text_of("%s/tokenizer_config.json: chat_template", folder);
    dsi_jinja *t = json_is_string(text)
                       ? dsi_jinja_parse(json_string_value(text), json_string_length(text), name.s)
                       : dsi_refuse_with(DS_EFORMAT,
                                         "%s: expected a text, or a list of names and texts",
                                         name.s);
    dsi_text_free(&name);
    return t;
}

/* "chat_template" of tokenizer_config.json: a text, or [{"name", "template"}]. */
static ds_status templates_of_config(ds_chat_template *t, const json_t *config, const char *folder)
{
    const json_t *value = json_object_get(config, "chat_template"), *item;
    size_t i;
    if (!value || json_is_null(value)) return DS_OK;
    if (!json_is_array(value)) {
        t->plain = template_of_json(value, folder);
        return t->plain ? DS_OK : ds_error_status();
    }
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        bool plain = name && !strcmp(name, "default");
        if (!plain && !(name && !strcmp(name, "tool_use"))) continue;
        dsi_jinja **to = plain ? &t->plain : &t->with_tools;
        dsi_jinja_free(*to);
        *to = template_of_json(json_object_get(item, "template"), folder);
        if (!*to) return ds_error_status();
    }
    return DS_OK;
}

/* The special tokens that transformers gives to templates, with their texts. */
static json_t *special_tokens(const json_t *config, const json_t *map)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *all = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *token = json_object_get(config, names[i]);
        if (!token) token = json_object_get(map, names[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (json_is_string(token)) json_object_set_new(all, names[i], json_deep_copy(token));
    }
    return all;
}

ds_chat_template *ds_chat_template_load(const char *folder)
{
    if (!folder) return dsi_null_operand("chat_template_load");
    if (!dsi_is_folder(folder))
        return dsi_refuse("%s: expected a model's folder, which has the template of chats", folder);
    ds_chat_template *t = dsi_alloc(sizeof *t);
    json_t *config = NULL, *map = NULL;
    ds_status status = dsi_json_object_read(folder, "tokenizer_config.json", false, &config);
    if (status == DS_OK)
        status = dsi_json_object_read(folder, "special_tokens_map.json", false, &map);
    if (status == DS_OK) status = template_of_file(folder, "chat_template.jinja", &t->plain);
    if (status == DS_OK)
        status = template_of_file(folder, "additional_chat_templates/tool_use.jinja",
                                  &t->with_tools);
    if (status == DS_OK && !t->plain && !t->with_tools)
        status = templates_of_config(t, config, folder);
    if (status == DS_OK && !t->plain && !t->with_tools)
        status = dsi_fail(DS_EINVAL,
                          "%s has no template of chats: neither chat_template.jinja, nor "
                          "\"chat_template\" in tokenizer_config.json",
                          folder);
    if (status == DS_OK) t->special = special_tokens(config, map);
    json_decref(config);
    json_decref(map);
    if (status == DS_OK) return t;
    ds_chat_template_free(t);
    return NULL;
}

/* ---- messages ---- */

/* A message as the template sees it: without what is null; what a model thought
 * has the names of older templates, too. NULL after a failure. */
static json_t *message_of(const json_t *from, const char *what, size_t i)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const json_t *role = json_object_get(from, "role"), *reasoning = NULL;
    const char *key;
    json_t *value, *m = json_object();
    json_object_foreach((json_t *)(uintptr_t)from, key, value) if (!json_is_null(value))
        json_object_set(m, key, value);
    for (size_t k = 3; k-- > 0;)
        if (json_object_get(m, names[k])) reasoning = json_object_get(m, names[k]);
    if (reasoning) {
        json_t *first = json_object();
        json_object_set(first, "thinking", (json_t *)(uintptr_t)reasoning);
        json_object_update(first, m);
        json_object_set(first, "reasoning_content", (json_t *)(uintptr_t)reasoning);
        json_decref(m);
        m = first;
    }
    bool said = json_object_get(m, "content") || json_object_get(m, "tool_calls") || reasoning;
    if (json_is_string(role) && said) return m;
    dsi_refuse("%s: message %zu: expected %s", what, i + 1,
               !json_is_object(from)   ? "an object with \"role\" and \"content\""
               : !json_is_string(role) ? "\"role\" with a text, such as \"user\""
                                       : "\"content\"");
    json_decref(m);
    return NULL;
}

static json_t *messages_of(const json_t *list, const char *what)
{
    const json_t *item;
    size_t i;
    json_t *all = json_array();
    if (!json_array_size(list)) {
        json_decref(all);
        return dsi_refuse("%s: expected a list of messages, with one or more", what);
    }
    json_array_foreach(list, i, item)
    {
        json_t *m = message_of(item, what, i);
        if (m) {
            json_array_append_new(all, m);
            continue;
        }
        json_decref(all);
        return NULL;
    }
    return all;
}

static const dsi_jinja *template_for(const ds_chat_template *t, bool tools)
{
    return tools && t->with_tools ? t->with_tools : t->plain;
}

bool dsi_chat_has_generation(const ds_chat_template *t, bool tools)
{
    const dsi_jinja *j = template_for(t, tools);
    return j && dsi_jinja_has_generation(j);
}

ds_status dsi_chat_render(const ds_chat_template *t, const dsi_chat *chat, dsi_text *out,
                          dsi_jinja_spans *spans)
{
    const dsi_jinja *j = template_for(t, chat->tools != NULL);
    const json_t *item;
    size_t i;
    if (!j) return dsi_fail(DS_EINVAL, "%s: the model has a template for tools alone", chat->what);
    if (chat->tools && !json_is_array(chat->tools))
        return dsi_fail(DS_EINVAL, "%s: tools: expected a list", chat->what);
    json_array_foreach(chat->tools, i, item)
    {
        if (!json_is_object(item))
            return dsi_fail(DS_EINVAL, "%s: tool %zu: expected an object", chat->what, i + 1);
    }
    json_t *messages = messages_of(chat->messages, chat->what);
    if (!messages) return ds_error_status();
    json_t *all = json_copy(t->special);
    if (chat->variables) json_object_update(all, (json_t *)(uintptr_t)chat->variables);
    json_object_set_new(all, "messages", messages);
    json_object_set_new(all, "tools",
                        chat->tools ? json_incref((json_t *)(uintptr_t)chat->tools) : json_null());
    if (!json_object_get(all, "documents")) json_object_set_new(all, "documents", json_null());
    json_object_set_new(all, "add_generation_prompt", json_boolean(chat->add_generation_prompt));
    ds_status status = dsi_jinja_render(j, all, out, spans);
    json_decref(all);
    return status == DS_OK ? DS_OK : dsi_fail_in(chat->what, status);
}

/* The value of an option's JSON, NULL if it is not given; false after a
 * failure. */
static bool json_of_option(const char *text, const char *name, json_t **value)
{
    json_error_t error;
    *value = text ? json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error) : NULL;
    if (text && !*value)
        dsi_refuse("chat: %s: line %d: %s: expected JSON", name, error.line, error.text);
    return !text || *value;
}

char *ds_chat_apply_with(const ds_chat_template *t, const char *messages, ds_chat_opts opts)
{
    if (!t || !messages) return dsi_null_operand("chat_apply");
    json_t *list = NULL, *tools = NULL, *variables = NULL;
    bool read = json_of_option(messages, "messages", &list) &&
                json_of_option(opts.tools, "tools", &tools) &&
                json_of_option(opts.variables, "variables", &variables);
    if (read && variables && !json_is_object(variables))
        read = dsi_invalid("chat: variables: expected an object");
    dsi_chat chat = {list, tools, variables, opts.add_generation_prompt, "chat"};
    dsi_text text = {0};
    ds_status status = read ? dsi_chat_render(t, &chat, &text, NULL) : DS_EINVAL;
    json_decref(list);
    json_decref(tools);
    json_decref(variables);
    if (opts.bytes) *opts.bytes = text.n;
    if (status == DS_OK) return text.s ? text.s : dsi_strdup("");
    dsi_text_free(&text);
    return NULL;
}
