/* tests/text/chat.c: where a model's template of chats is, what it sees, and
 * conversations that are not what they should be.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include <deepspeed/text.h>
#include <sys/stat.h>
#include <unistd.h>

static void file_write(const char *name, const char *text)
{
    FILE *f = fopen(folder_path(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static ds_chat_template *load(void)
{
    ds_error_clear();
    return ds_chat_template_load(folder_path(""));
}

static void check_text(const char *messages, ds_chat_opts opts, const char *want)
{
    ds_chat_template *t = load();
    if (!t) fail_msg("%s", ds_error());
    size_t n = 0;
    opts.bytes = &n;
    char *text = ds_chat_apply_with(t, messages, opts);
    if (!text) fail_msg("%s", ds_error());
    assert_string_equal(text, want);
    CHECK_INT(n, strlen(want));
    free(text);
    ds_chat_template_free(t);
}

#define HI "[{\"role\": \"user\", \"content\": \"hi\"}]"

static void templates_are_found(void **state)
{
    (void)state;
    folder_make();
    CHECK(!load());
    CHECK_ERROR("has no template of chats: neither chat_template.jinja, nor \"chat_template\" in");
    file_write(
        "tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null, "
        "\"chat_template\": \"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
        "{{ unk_token }}{{ pad_token is defined }}{{ tools is none }}\"}");
    file_write("special_tokens_map.json", "{\"unk_token\": \"<unk>\", \"bos_token\": \"other\"}");
    check_text(HI, (ds_chat_opts){0}, "<s>hi</s><unk>FalseTrue");
    file_write("tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"{% broken\"}, "
               "{\"name\": \"default\", \"template\": \"plain{{ add_generation_prompt }}\"}, "
               "{\"name\": \"tool_use\", \"template\": \"tools {{ tools[0].name }}\"}]}");
    check_text(HI, (ds_chat_opts){.add_generation_prompt = true}, "plainTrue");
    check_text(HI, (ds_chat_opts){.tools = "[{\"name\": \"f\"}]"}, "tools f");
    file_write("chat_template.jinja", "file {{ v | default(0) }}{{ bos_token }}\n");
    check_text(HI, (ds_chat_opts){.tools = "[]", .variables = "{\"v\": 2}"}, "file 2other");
    mkdir(folder_path("additional_chat_templates"), 0700);
    file_write("additional_chat_templates/tool_use.jinja", "file of tools");
    check_text(HI, (ds_chat_opts){.tools = "[]"}, "file of tools");
    folder_remove();
}

/* As transformers 5.24: what is null is not there, and what a model thought has
 * all names. */
static void messages_are_completed(void **state)
{
    (void)state;
    folder_make();
    file_write("chat_template.jinja", "{% for m in messages %}{{ m }}{% endfor %}");
    check_text("[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [1]}]",
               (ds_chat_opts){0}, "{'role': 'assistant', 'tool_calls': [1]}");
    check_text("[{\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": \"r\"}]",
               (ds_chat_opts){0},
               "{'thinking': 'r', 'role': 'assistant', 'content': 'a', 'reasoning': 'r', "
               "'reasoning_content': 'r'}");
    folder_remove();
}

static void refused(const char *messages, ds_chat_opts opts, const char *message)
{
    ds_chat_template *t = load();
    CHECK(t && !ds_chat_apply_with(t, messages, opts));
    CHECK_ERROR(message);
    ds_chat_template_free(t);
}

static void bad_input_is_refused(void **state)
{
    (void)state;
    folder_make();
    file_write("chat_template.jinja",
               "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}");
    refused("[", (ds_chat_opts){0}, "chat: messages: line 1");
    refused("{}", (ds_chat_opts){0}, "chat: expected a list of messages, with one or more");
    refused("[]", (ds_chat_opts){0}, "chat: expected a list of messages, with one or more");
    refused("[1]", (ds_chat_opts){0}, "chat: message 1: expected an object with \"role\"");
    refused("[{\"content\": \"x\"}]", (ds_chat_opts){0},
            "message 1: expected \"role\" with a text");
    refused("[{\"role\": 1, \"content\": \"x\"}]", (ds_chat_opts){0},
            "message 1: expected \"role\"");
    refused("[{\"role\": \"user\"}]", (ds_chat_opts){0}, "chat: message 1: expected \"content\"");
    refused("[{\"role\": \"tool\", \"content\": \"\"}]", (ds_chat_opts){0},
            "chat_template.jinja: line 1: the template refuses the conversation: no tools");
    refused(HI, (ds_chat_opts){.tools = "{}"}, "chat: tools: expected a list");
    refused(HI, (ds_chat_opts){.tools = "[1]"}, "chat: tool 1: expected an object");
    refused(HI, (ds_chat_opts){.variables = "[]"}, "chat: variables: expected an object");
    file_write("chat_template.jinja", "\n{% for %}");
    CHECK(!load());
    CHECK_ERROR("chat_template.jinja: line 2: expected a name");
    unlink(folder_path("chat_template.jinja"));
    file_write("tokenizer_config.json", "{\"chat_template\": 5}");
    CHECK(!load());
    CHECK_ERROR("tokenizer_config.json: chat_template: expected a text, or a list of names");
    file_write("tokenizer_config.json", "{");
    CHECK(!load());
    CHECK_ERROR("tokenizer_config.json: line 1: ");
    ds_error_clear();
    CHECK(!ds_chat_template_load(folder_path("nothing")));
    CHECK_ERROR("expected a model's folder");
    folder_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(templates_are_found),
                                       cmocka_unit_test(messages_are_completed),
                                       cmocka_unit_test(bad_input_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
