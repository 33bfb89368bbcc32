/* tests/text/offsets.c: the bytes of a text that its ids are of: those of the
 * package tokenizers, whose Encoding.offsets count characters.
 * SPDX-License-Identifier: MIT */
#include "text/offsets.h"
#include "base/text.h"
#include "check.h"

static ds_tokenizer *tokenizer(const char *name)
{
    dsi_text path = dsi_text_of("%s/lm/tokenizers/%s", DS_GOLDEN, name);
    ds_tokenizer *t = ds_tokenizer_load(path.s);
    if (!t) fail_msg("%s", ds_error());
    dsi_text_free(&path);
    return t;
}

static void offsets_are_those_of_tokenizers(void **state)
{
    static const struct {
        const char *tokenizer, *text;
        size_t want[64]; /* begin and end of each id */
        int64_t n;
    } cases[] = {
        {"llama3",
         " Hi  you é🎉<|eot_id|>\n x",
         {0,  2,  2,  3,  4,  4,  5,  8,  9,  9,  9,  11, 9,  11,
          11, 15, 11, 15, 11, 15, 11, 15, 15, 25, 25, 26, 27, 28},
         14},
        {"llama2",
         " Hi  you é🎉</s>\n x",
         {0,  1,  0,  2,  2,  3,  3,  4,  4,  6,  6,  8,  8,  9,  9,  11,
          11, 15, 11, 15, 11, 15, 11, 15, 15, 19, 19, 20, 19, 20, 20, 22},
         16},
        {"gemma",
         "Hi  you é🎉<eos> \n x",
         {0,  1,  1,  2,  2,  3,  3,  5,  5,  7,  7,  8,  8,  10, 10,
          14, 10, 14, 10, 14, 10, 14, 14, 19, 19, 20, 20, 21, 21, 23},
         15},
        {"qwen2", "Hi  you<|im_end|> x", {0, 1, 1, 2, 2, 3, 3, 7, 7, 17, 17, 19}, 6},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ds_tokenizer *t = tokenizer(cases[c].tokenizer);
        ds_tokens ids = {0};
        dsi_jinja_span at[32];
        const char *text = cases[c].text;
        CHECK_INT(
            ds_encode(t, text, strlen(text), &ids, (ds_encode_opts){.no_special_tokens = true}),
            DS_OK);
        CHECK_INT(ids.n, cases[c].n);
        CHECK_INT(dsi_token_offsets(t, text, strlen(text), ids.ids, ids.n, at), DS_OK);
        for (int64_t i = 0; i < ids.n; i++) {
            CHECK_INT(at[i].begin, cases[c].want[2 * i]);
            CHECK_INT(at[i].end, cases[c].want[2 * i + 1]);
        }
        ds_tokens_free(&ids);
        ds_tokenizer_free(t);
    }
}

/* NFC joins the letter and its accent. */
static void a_changed_text_is_refused(void **state)
{
    (void)state;
    ds_tokenizer *t = tokenizer("qwen2");
    ds_tokens ids = {0};
    dsi_jinja_span at[8];
    const char *text = "e\xCC\x81";
    CHECK_INT(ds_encode(t, text, 3, &ids, (ds_encode_opts){.no_special_tokens = true}), DS_OK);
    CHECK(ids.n < 8);
    CHECK_INT(dsi_token_offsets(t, text, 3, ids.ids, ids.n, at), DS_EINVAL);
    CHECK_ERROR("the tokenizer changes the text");
    ds_tokens_free(&ids);
    ds_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(offsets_are_those_of_tokenizers),
                                       cmocka_unit_test(a_changed_text_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
