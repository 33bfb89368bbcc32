/* tests/text/gpt2_files.c: folders with vocab.json and merges.txt in place of
 * tokenizer.json (text/tokenizer_gpt2.c).
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/text.h"
#include "check.h"
#include "folder.h"
#include "reference.h"

#include <deepspeed/text.h>
#include <unistd.h>

#define ALL "tokenizers/gpt2/tokenizer.json"

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(folder_path(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* The two files of GPT-2's tokenizer.json. */
static void files_write(void)
{
    json_t *all = json_load_file(DS_GOLDEN "/lm/" ALL, JSON_ALLOW_NUL, NULL), *merge;
    json_t *model = json_object_get(all, "model"), *merges = json_object_get(model, "merges");
    dsi_text lines = dsi_text_of("#version: 0.2\n");
    size_t i;
    json_array_foreach(merges, i, merge)
    {
        const char *both = json_string_value(merge);
        dsi_text_add(&lines, "%s", both ? both : json_string_value(json_array_get(merge, 0)));
        if (!both) dsi_text_add(&lines, " %s", json_string_value(json_array_get(merge, 1)));
        dsi_text_add(&lines, "\n");
    }
    CHECK_INT(json_dump_file(json_object_get(model, "vocab"), folder_path("vocab.json"), 0), 0);
    write_file("merges.txt", lines.s);
    dsi_text_free(&lines);
    json_decref(all);
}

/* ids of text by the tokenizer in the folder are `want`, up to a 0. */
static void check_ids(const char *text, const uint32_t *want)
{
    ds_tokenizer *t = ds_tokenizer_load(folder_path(""));
    ds_tokens got = {0};
    CHECK(t);
    CHECK_INT(ds_encode(t, text, strlen(text), &got, (ds_encode_opts){0}), DS_OK);
    for (int64_t i = 0; i < got.n; i++) CHECK_INT(got.ids[i], want[i]);
    CHECK_INT(want[got.n], 0);
    ds_tokens_free(&got);
    ds_tokenizer_free(t);
}

static void the_same_ids(void **state)
{
    (void)state;
    folder_make();
    files_write();
    ds_tokenizer *whole = ds_tokenizer_load(DS_GOLDEN "/lm/" ALL);
    ds_tokenizer *parts = ds_tokenizer_load(folder_path(""));
    json_t *file = json_load_file(DS_GOLDEN "/lm/tokenizers/strings.json", JSON_ALLOW_NUL, NULL);
    json_t *strings = json_is_array(file) ? file : json_object_get(file, "strings"), *s;
    size_t i;
    CHECK(whole && parts && json_array_size(strings));
    json_array_foreach(strings, i, s)
    {
        ds_tokens a = {0}, b = {0};
        CHECK_INT(
            ds_encode(whole, json_string_value(s), json_string_length(s), &a, (ds_encode_opts){0}),
            DS_OK);
        CHECK_INT(
            ds_encode(parts, json_string_value(s), json_string_length(s), &b, (ds_encode_opts){0}),
            DS_OK);
        CHECK_INT(a.n, b.n);
        for (int64_t k = 0; k < a.n; k++) CHECK_INT(a.ids[k], b.ids[k]);
        ds_tokens_free(&a), ds_tokens_free(&b);
    }
    json_decref(file);
    ds_tokenizer_free(whole), ds_tokenizer_free(parts);
    folder_remove();
}

/* Ids are those of transformers 5.24. The vocabulary has 900 tokens, so that
 * special tokens without an id get those behind. */
static void special_tokens(void **state)
{
    (void)state;
    folder_make();
    files_write();
    write_file("tokenizer_config.json",
               "{\"bos_token\": {\"content\": \"</s>\", \"normalized\": true}, \"eos_token\": "
               "\"</s>\", \"unk_token\": \"</s>\", \"add_bos_token\": true}");
    write_file("special_tokens_map.json", "{\"pad_token\": \"<pad>\", \"bos_token\": \"no\"}");
    check_ids("Hello world, it's 12",
              (uint32_t[]){900, 39, 332, 374, 305, 271, 75, 67, 11, 419, 702, 343, 17, 0});
    check_ids("<pad></s>", (uint32_t[]){900, 901, 900, 0});
    write_file("added_tokens.json", "{\"<extra>\": 900}");
    check_ids("<extra></s>", (uint32_t[]){901, 900, 901, 0});
    folder_remove();
}

static void bad_files(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"vocab.json", "[]", "vocab.json: expected a JSON object"},
        {"vocab.json", "{\"a\": ", "vocab.json: line 1"},
        {"vocab.json", "{\"a\": -1}", "vocab.json: a token without an id"},
        {"merges.txt", "a b c\n", "merge 0 is not two tokens"},
        {"merges.txt", "a \xFF\n", "merges.txt: a line is not UTF-8"},
        {"merges.txt", "zz qq\n", "merge 0, zz and qq: no such token"},
        {"added_tokens.json", "{\"<extra>\": \"1\"}", "a token without an id"},
        {"tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}",
         "has no tokenizer.json, and vocab.json of a Qwen2Tokenizer: expected those of a "
         "GPT2Tokenizer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_make();
        files_write();
        write_file(cases[i][0], cases[i][1]);
        if (ds_tokenizer_load(folder_path(""))) fail_msg("not refused: %s", cases[i][1]);
        CHECK_ERROR(cases[i][2]);
        folder_remove();
    }
    folder_make();
    files_write();
    CHECK_INT(remove(folder_path("merges.txt")), 0);
    CHECK(!ds_tokenizer_load(folder_path("")));
    CHECK_ERROR("merges.txt");
    CHECK_INT(remove(folder_path("vocab.json")), 0);
    CHECK(!ds_tokenizer_load(folder_path("")));
    CHECK_ERROR("tokenizer.json");
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(the_same_ids), cmocka_unit_test(special_tokens),
          cmocka_unit_test(bad_files))
