/* tools/lm/chat.c: prompts that are chats.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/text.h"
#include "lm.h"

#include <stdlib.h>
#include <string.h>

ds_chat_template *lm_chat_template(const LmOptions *o)
{
    return ds_chat_template_load(o->tokenizer ? o->tokenizer : o->model);
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
