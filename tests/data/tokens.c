/* tests/data/tokens.c: text becomes tokens: windows, masked prompts, damaged
 * files; a tokenizer that was trained.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include <deepspeed/text.h>

static void file_write(const char *name, const char *text, size_t n)
{
    FILE *f = fopen(folder_path(name), "wb");
    assert_non_null(f);
    fwrite(text, 1, n, f);
    fclose(f);
}

static ds_tokenizer *trained(int64_t vocab)
{
    const char
        *text = "the cat sat on the mat, the cat that sat; caf\xc3\xa9 \xe2\x9c\x93 the end\n";
    file_write("text.txt", text, strlen(text));
    const char *files[] = {folder_path("text.txt")};
    CHECK_INT(
        ds_tokenizer_train(folder_path("tokenizer.json"), vocab, .files = files, .n_files = 1),
        DS_OK);
    ds_tokenizer *t = ds_tokenizer_load(folder_path("tokenizer.json"));
    CHECK(t);
    return t;
}

/* " the" is the most frequent word; all bytes are tokens, so any text comes
 * back. */
static void a_tokenizer_is_trained(void **state)
{
    (void)state;
    folder_make();
    ds_tokenizer *t = trained(263);
    CHECK_INT(ds_tokenizer_vocab_size(t), 263);
    CHECK_INT(ds_token_to_id(t, "<|endoftext|>"), 0);
    assert_string_equal(ds_id_to_token(t, 257), "at"); /* cat, sat, mat, that */
    CHECK(ds_token_to_id(t, "\xc4\xa0the") > 256);
    const char *text = "the cat \xf0\x9f\x90\x88 sat\t\x01 z\xc3\xbcge";
    ds_tokens ids = {0};
    CHECK_INT(ds_encode(t, text, strlen(text), &ids, (ds_encode_opts){0}), DS_OK);
    CHECK(ids.n < (int64_t)strlen(text));
    char *back = ds_decode(t, ids.ids, ids.n, (ds_decode_opts){0});
    assert_string_equal(back, text);
    free(back);
    ds_tokens_free(&ids);
    ds_tokenizer_free(t);
    CHECK_INT(ds_tokenizer_train(folder_path("x.json"), 100, .files = NULL), DS_EINVAL);
    ds_error_clear();
    const char *files[] = {folder_path("text.txt")};
    CHECK_INT(ds_tokenizer_train(folder_path("x.json"), 100, .files = files, .n_files = 1),
              DS_EINVAL);
    CHECK_ERROR("vocab_size is 100: expected 257");
    folder_remove();
}

static void windows_and_masks(void **state)
{
    (void)state;
    folder_make();
    ds_tokenizer *t = trained(257); /* bytes: id is 1 + byte's place */
    const char *lines =
        "\xef\xbb\xbf{\"prompt\": \"ab\", \"completion\": \"cd\"}\n\n{\"text\": \"xyz\"}\n";
    file_write("lines.jsonl", lines, strlen(lines));
    const char *files[] = {folder_path("lines.jsonl")};
    char out[1100];
    snprintf(out, sizeof out, "%s", folder_path("out.tokens"));
    int64_t n = 0;
    CHECK_INT(
        ds_tokens_pack(t, out, files, .n_files = 1, .end_token = "<|endoftext|>", .tokens = &n),
        DS_OK);
    CHECK_INT(n, 9); /* a b c d end x y z end */
    ds_dataset *d = ds_token_dataset(out, 4);
    CHECK_INT(ds_dataset_len(d), 2);
    int64_t ids[4], labels[4];
    CHECK_INT(ds_dataset_get(d, 0, (void *[]){ids, labels}), DS_OK);
    CHECK_INT(labels[0], -100);
    CHECK_INT(labels[1], -100);
    CHECK_INT(labels[2], ids[2]);
    CHECK_INT(ids[3], ids[0] + 3);
    CHECK_INT(ds_dataset_get(d, 1, (void *[]){ids, labels}), DS_OK);
    CHECK_INT(ids[0], 0);
    CHECK_INT(labels[0], 0);
    ds_dataset_free(d);
    d = ds_token_dataset(out, 2); /* a b, c d, end x, y z, of which the first is left out */
    CHECK_INT(ds_dataset_len(d), 3);
    CHECK_INT(ds_dataset_get(d, 0, (void *[]){ids, labels}), DS_OK);
    CHECK_INT(labels[0], ids[0]);
    CHECK_INT(ids[1], ids[0] + 1);
    ds_dataset_free(d);
    CHECK(!ds_token_dataset(out, 10));
    CHECK_ERROR("9 tokens");
    lines = "{\"prompt\": \"abcd\", \"completion\": \"\"}\n";
    file_write("lines.jsonl", lines, strlen(lines));
    CHECK_INT(ds_tokens_pack(t, out, files, .n_files = 1), DS_OK);
    CHECK(!ds_token_dataset(out, 2));
    CHECK_ERROR("no window of 2 has a token that counts");
    CHECK_INT(ds_tokens_pack(t, out, files, .n_files = 1, .end_token = "<eos>"), DS_EINVAL);
    CHECK_ERROR("no token \"<eos>\"");
    ds_tokenizer_free(t);
    folder_remove();
}

static void damaged_files(void **state)
{
    (void)state;
    folder_make();
    char head[64 + 8] = "DSTOKEN1";
    const uint32_t width = 2;
    const uint64_t sizes[] = {4, UINT64_MAX / 2, 3};
    memcpy(head + 8, &width, 4);
    for (int i = 0; i < 3; i++) {
        memcpy(head + 16, &sizes[i], 8);
        uint64_t vocab = i ? 9 : 0;
        memcpy(head + 24, &vocab, 8);
        file_write("t", head, sizeof head);
        ds_dataset *d = ds_token_dataset(folder_path("t"), 2);
        if (i) {
            CHECK(!d);
            CHECK_ERROR("do not fit its 72 bytes");
            continue;
        }
        int64_t ids[2], labels[2];
        CHECK_INT(ds_dataset_get(d, 0, (void *[]){ids, labels}), DS_EFORMAT);
        CHECK_ERROR(": token 0 is 0: the file says that there are 0");
        ds_dataset_free(d);
    }
    file_write("t", "short", 5);
    CHECK(!ds_token_dataset(folder_path("t"), 2));
    CHECK_ERROR("no file of tokens");
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(a_tokenizer_is_trained), cmocka_unit_test(windows_and_masks),
          cmocka_unit_test(damaged_files))
