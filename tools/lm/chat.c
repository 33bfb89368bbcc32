/* tools/lm/chat.c: prompts that are chats.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "lm.h"

#include <stdlib.h>
#include <string.h>

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

void lm_chat_add(json_t *messages, const char *role, const char *content)
{
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", content));
}

char *lm_chat_prompt(const LmOptions *o)
{
    const char *user = o->prompt ? o->prompt : "";
    if (!dsi_is_utf8(user, strlen(user)) ||
        (o->system && !dsi_is_utf8(o->system, strlen(o->system))))
        return dsi_refuse("--prompt and --system: expected UTF-8");
    json_t *messages = json_array();
    if (o->system) lm_chat_add(messages, "system", o->system);
    lm_chat_add(messages, "user", user);
    ds_chat_template *t = lm_chat_template(o);
    char *json = json_dumps(messages, JSON_COMPACT);
    char *text = t ? ds_chat_apply(t, json, true) : NULL;
    free(json);
    json_decref(messages);
    ds_chat_template_free(t);
    return text;
}
