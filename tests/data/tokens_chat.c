/* tests/data/tokens_chat.c: conversations of JSON lines: ids and what counts.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "check.h"
#include "data/tokens.h"
#include "folder.h"

#include <deepspeed/data.h>
#include <deepspeed/text.h>

static void file_write(const char *name, const char *text)
{
    FILE *f = fopen(folder_path(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A folder with a tokenizer of bytes, id 1 + byte's place, and a template. */
static ds_tokenizer *tokenizer_make(void)
{
    folder_make();
    file_write("text.txt", "x");
    const char *files[] = {folder_path("text.txt")};
    CHECK_INT(ds_tokenizer_train(folder_path("tokenizer.json"), 257, .files = files, .n_files = 1),
              DS_OK);
    file_write("chat_template.jinja",
               "{% for m in messages %}{{ m.role[0] }}{% generation %}{{ m.content }}"
               "{% endgeneration %}.{% endfor %}{{ tools[0] if tools }}"
               "{{ 'a' if add_generation_prompt }}{{ k }}");
    ds_tokenizer *t = ds_tokenizer_load(folder_path("tokenizer.json"));
    CHECK(t);
    return t;
}

static ds_status pack(ds_tokenizer *t, const char *rows, bool assistant_only, int64_t *n)
{
    file_write("rows.jsonl", rows);
    const char *files[] = {folder_path("rows.jsonl")};
    char *folder = dsi_strdup(folder_path(""));
    ds_error_clear();
    ds_status status = ds_tokens_pack(t, folder_path("out.tokens"), files, .n_files = 1,
                                      .end_token = "<|endoftext|>", .tokens = n,
                                      .chat_folder = folder, .assistant_only_loss = assistant_only);
    dsi_free(folder);
    return status;
}

/* The text of the row's ids, and a 1 for each that counts. */
static void check_row(const char *row, bool assistant_only, const char *text, const char *counts)
{
    ds_tokenizer *t = tokenizer_make();
    int64_t n = 0;
    if (pack(t, row, assistant_only, &n) != DS_OK) fail_msg("%s", ds_error());
    CHECK_INT(n, strlen(text));
    size_t bytes;
    char *file = dsi_file_read(folder_path("out.tokens"), &bytes);
    dsi_tokens_header h;
    memcpy(&h, file, sizeof h);
    CHECK_INT(h.masked, strchr(counts, '0') != NULL);
    for (int64_t i = 0; i < n; i++) {
        uint16_t id;
        memcpy(&id, file + sizeof h + 2 * i, 2);
        assert_string_equal(ds_id_to_token(t, id), ((char[]){text[i], 0}));
        if (h.masked) CHECK_INT(file[sizeof h + 2 * (size_t)n + (size_t)i], counts[i] - '0');
    }
    dsi_free(file);
    ds_tokenizer_free(t);
    folder_remove();
}

#define U "{\"role\": \"user\", \"content\": \"hi\"}"
#define A "{\"role\": \"assistant\", \"content\": \"yo\"}"

static void rows_are_those_of_the_template(void **state)
{
    (void)state;
    check_row("{\"messages\": [" U ", " A "]}", false, "uhi.ayo.", "11111111");
    check_row("{\"messages\": [" U ", " A "]}", true, "uhi.ayo.", "01100110");
    check_row("{\"prompt\": [" U "], \"completion\": [" A "]}", false, "uhi.ayo.", "00000111");
    check_row("{\"prompt\": [" U "], \"completion\": [" A "]}", true, "uhi.ayo.", "00000110");
    check_row("{\"messages\": [" U "], \"tools\": [{}], \"chat_template_kwargs\": {\"k\": 7}}",
              false, "uhi.{}7", "1111111");
    check_row("{\"messages\": [" U "], \"tools\": \"[{}]\"}", false, "uhi.{}", "111111");
}

static void refused(ds_tokenizer *t, const char *row, bool assistant_only, const char *message)
{
    CHECK(pack(t, row, assistant_only, NULL) != DS_OK);
    CHECK_ERROR(message);
}

static void bad_rows_are_refused(void **state)
{
    (void)state;
    ds_tokenizer *t = tokenizer_make();
    refused(t, "{\"text\": \"a\", \"messages\": [" U "]}", false,
            "rows.jsonl: line 1: expected one of");
    refused(t, "{\"prompt\": \"a\", \"messages\": [" U "]}", false, "line 1: expected one of");
    refused(t, "\n{\"prompt\": \"a\", \"completion\": [" U "]}", false,
            "line 2: expected \"prompt\"");
    refused(t, "{\"messages\": \"a\"}", false, "line 1: \"messages\": expected a list");
    refused(t, "{\"messages\": []}", false,
            "line 1: expected a list of messages, with one or more");
    refused(t, "{\"messages\": [{\"role\": \"user\"}]}", false, "message 1: expected \"content\"");
    refused(t, "{\"messages\": [" U "], \"tools\": \"x\"}", false, "\"tools\" is not JSON");
    refused(t, "{\"messages\": [" U "], \"tools\": {}}", false, "line 1: tools: expected a list");
    refused(t, "{\"messages\": [" U "], \"chat_template_kwargs\": 1}", false,
            "\"chat_template_kwargs\": expected an object");
    refused(t, "{\"text\": \"a\"}", true, "line 1: assistant_only_loss is for rows with messages");
    refused(t, "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}]}", true,
            "line 1: assistant_only_loss: no token of the assistant");
    file_write("chat_template.jinja", "{{ messages[0].content }}");
    refused(t, "{\"messages\": [" U "]}", true, "the template of chats has no {% generation %}");
    const char *files[] = {folder_path("rows.jsonl")};
    ds_error_clear();
    CHECK(ds_tokens_pack(t, folder_path("out.tokens"), files, .n_files = 1) != DS_OK);
    CHECK_ERROR("line 1: messages need a model's template of chats");
    ds_tokenizer_free(t);
    folder_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_those_of_the_template),
                                       cmocka_unit_test(bad_rows_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
