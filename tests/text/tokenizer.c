/* tests/text/tokenizer.c: what the reference files do not show: other
 * pre-tokenizers, damaged and hostile files, long words.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "check.h"

#include <deepspeed/text.h>

/* A tokenizer.json of this model and these components. */
static ds_tokenizer *tokenizer(const char *model, const char *components)
{
    dsi_text json = {0};
    dsi_text_add(&json, "{\"model\": %s%s%s}", model, *components ? ", " : "", components);
    ds_tokenizer *t = ds_tokenizer_from_json(json.s, json.n, "t.json");
    dsi_text_free(&json);
    return t;
}

#define LETTERS \
    "{\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": true, \"vocab\": {\"?\": 0, \"a\": " \
    "1, " \
    "\"b\": 2, \"ab\": 3, \"abab\": 4, \" \": 5}, \"merges\": [\"a b\", [\"ab\", \"ab\"]]}"

/* The ids of text as "3,4"; valid until the next call. */
static const char *ids_of(ds_tokenizer *t, const char *text)
{
    static char out[512];
    ds_tokens ids = {0};
    CHECK_INT(ds_encode(t, text, strlen(text), &ids, (ds_encode_opts){0}), DS_OK);
    size_t n = 0;
    out[0] = 0;
    for (int64_t i = 0; i < ids.n && n < sizeof out; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%u", i ? "," : "", ids.ids[i]);
    ds_tokens_free(&ids);
    return out;
}

static void merges_by_rank(void **state)
{
    (void)state;
    ds_tokenizer *t = tokenizer(LETTERS, "");
    CHECK(t);
    assert_string_equal(ids_of(t, "abababa"), "4,3,1");
    assert_string_equal(ids_of(t, "axyzb"), "1,0,2"); /* unknown characters in a row are one */
    assert_string_equal(ids_of(t, ""), "");
    CHECK_INT(ds_tokenizer_vocab_size(t), 6);
    CHECK_INT(ds_token_to_id(t, "abab"), 4);
    CHECK_INT(ds_token_to_id(t, "nothing"), -1);
    assert_string_equal(ds_id_to_token(t, 3), "ab");
    CHECK(!ds_id_to_token(t, 6) && !ds_id_to_token(t, -1));
    ds_tokenizer_free(t);
}

/* The published file of GPT-2 has no type, and empty texts where later ones have
 * null. */
static void empty_texts_are_none(void **state)
{
    (void)state;
    ds_tokenizer *t = tokenizer(
        "{\"dropout\": null, \"unk_token\": \"\", \"continuing_subword_prefix\": \"\", "
        "\"end_of_word_suffix\": \"\", \"fuse_unk\": false, \"vocab\": {\"a\": 0, \"b\": 1, "
        "\"ab\": 2}, \"merges\": [\"a b\"]}",
        "");
    CHECK(t);
    assert_string_equal(ids_of(t, "abxa"), "2,0");
    ds_tokenizer_free(t);
}

/* Long words take another way than short ones, to the same ids. */
static void long_words(void **state)
{
    (void)state;
    enum { N = 100000 };
    ds_tokenizer *t = tokenizer(LETTERS, "");
    char *text = malloc(N);
    for (int i = 0; i < N; i++) text[i] = i % 2 ? 'b' : 'a';
    ds_tokens ids = {0};
    CHECK_INT(ds_encode(t, text, N, &ids, (ds_encode_opts){0}), DS_OK);
    CHECK_INT(ids.n, N / 4);
    for (int64_t i = 0; i < ids.n; i++) CHECK_INT(ids.ids[i], 4);
    ds_tokens_free(&ids);
    free(text);
    ds_tokenizer_free(t);
}

/* Each piece is a word, so merges do not cross its ends: pieces show as ids. */
static void splits(void **state)
{
    (void)state;
    static const struct {
        const char *behavior, *ids;
    } cases[] = {{"Removed", "1,4,4"},                  /* a cc cc, as tokenizers splits */
                 {"Isolated", "1,2,4,2,2,4"},           /* a b cc b b cc */
                 {"MergedWithPrevious", "3,7,7,2,2,4"}, /* ab ccb b cc */
                 {"MergedWithNext", "1,5,2,5"},         /* a bcc b bcc */
                 {"Contiguous", "1,2,4,6,4"}};          /* a b cc bb cc */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char split[160];
        snprintf(split, sizeof split,
                 "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"b\"}, "
                 "\"behavior\": \"%s\"}",
                 cases[i].behavior);
        ds_tokenizer *t = tokenizer(
            "{\"type\": \"BPE\", \"ignore_merges\": true, \"vocab\": {\"a\": 1, \"b\": 2, "
            "\"ab\": 3, \"cc\": 4, \"bcc\": 5, \"bb\": 6, \"c\": 7}, \"merges\": []}",
            split);
        CHECK(t);
        assert_string_equal(ids_of(t, "abccbbcc"), cases[i].ids);
        ds_tokenizer_free(t);
    }
}

/* Patterns are Oniguruma's: pieces of `text`, by the crate tokenizers. */
static void patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text, *pieces;
    } cases[] = {{"\\\\s+$", "a  \nb  ", "a;  ;\nb;  "}, /* at each line */
                 {"^a", "ab\nab", "a;b\n;a;b"},
                 {"(?m)a.b", "xa\nb", "x;a\nb"},
                 {"a{1,2}+", "aaaaab", "aaaaa;b"}, /* not possessive */
                 {"a{0,2}+b", "xaaab", "x;aaab"},
                 {"a{,2}", "aaab", "aa;a;b"},
                 {"(?=(\\\\d{3})+(?!\\\\d))", "x1234567", "x1;234;567"}, /* empty matches */
                 {"a*", "baab", "b;aa;b"},
                 {"\\\\b", "ab cd", "ab; ;cd"},
                 {"\\\\h+", "abg 12", "ab;g ;12"},
                 {"\\\\u0061", "xab", "x;a;b"},
                 {"[^\\\\W\\\\d]+", "ab1c", "ab;1;c"},
                 {"[\\\\W1]+", "a-1b", "a;-1;b"},
                 {"\\\\w+", "-\xe2\x93\x90\xcc\x81-", "-;\xe2\x93\x90\xcc\x81;-"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *c = cases[i].pieces;
        char split[300], want[64] = "";
        snprintf(split, sizeof split,
                 "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                 "\"Split\", \"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Isolated\"}, "
                 "{\"type\": \"Metaspace\", \"replacement\": \";\", \"split\": false}]}",
                 cases[i].pattern);
        ds_tokenizer *t = tokenizer("{\"type\": \"BPE\", \"vocab\": {\";\": 1, \"u\": 0}, "
                                    "\"unk_token\": \"u\", \"merges\": []}",
                                    split);
        if (!t) fail_msg("%s: %s", cases[i].pattern, ds_error());
        /* ";" begins each piece, and replaces its spaces */
        bool begins = true;
        for (; *c; c++) {
            bool mark = *c == ';', rest = (*c & 0xc0) == 0x80;
            if (begins && !mark) strcat(want, *want ? ",1" : "1");
            if (!mark && !rest && !(*c == ' ' && begins)) strcat(want, *c == ' ' ? ",1" : ",0");
            begins = mark;
        }
        if (strcmp(ids_of(t, cases[i].text), want))
            fail_msg("%s: %s, want %s", cases[i].pattern, ids_of(t, cases[i].text), want);
        ds_tokenizer_free(t);
    }
}

static void broken_utf8_is_replaced(void **state)
{
    (void)state;
    ds_tokenizer *t = tokenizer(
        "{\"type\": \"BPE\", \"vocab\": {\"\xEF\xBF\xBD\": 0, \"a\": 1}, \"merges\": []}", "");
    assert_string_equal(ids_of(t, "a\xFF"
                                  "a"),
                        "1,0,1");
    assert_string_equal(ids_of(t, "\xE2\x82"
                                  "a"),
                        "0,1");                              /* one maximal part */
    assert_string_equal(ids_of(t, "\xED\xA0\x80"), "0,0,0"); /* a surrogate: three */
    assert_string_equal(ids_of(t, "\xF0\x9F\x99"), "0");     /* the end of the text */
    ds_tokenizer_free(t);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json, *message;
    } bad[] = {
        {"", "tokenizer: t.json: line 1"},
        {"[]", "expected a tokenizer.json"},
        {"{}", "there is no \"model\""},
        {"{\"model\": {\"type\": \"WordPiece\"}}", "tokenizer: t.json: model of type \"WordPiece\" "
                                                   "is not implemented: expected a tokenizer of"},
        {"{\"model\": {\"type\": \"BPE\"}}", "no \"vocab\""},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "there are no tokens"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
         "a token without an id"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 4000000000}, \"merges\": []}}",
         "id 4000000000 of 1 tokens"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}}", "no \"merges\""},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}}",
         "merge 0 is not two tokens"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}",
         "merge 0, a and a: no such token"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"unk_token\": "
         "\"u\"}}",
         "unk_token u is not in the vocabulary"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": "
         "0.1}}",
         "dropout is not implemented"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, \"normalizer\": "
         "{\"type\": \"BertNormalizer\"}}",
         "normalizer of type \"BertNormalizer\" is not implemented"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, "
         "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": "
         "\"Isolated\"}}",
         "pre_tokenizer: the pattern (: missing closing parenthesis"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, "
         "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a-z&&[^b]]\"}, "
         "\"behavior\": \"Isolated\"}}",
         "sets of sets, && and {n,m}+ are not implemented"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, "
         "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
         "{\"id\": \"s\"}}, {\"Sequence\": {}}], \"special_tokens\": {\"s\": {\"ids\": [7]}}}}",
         "s has an id that no token has"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!ds_tokenizer_from_json(bad[i].json, strlen(bad[i].json), "t.json"));
        CHECK_ERROR(bad[i].message);
    }
    CHECK(!ds_tokenizer_load("/nowhere/tokenizer.json"));
    CHECK_ERROR("/nowhere/tokenizer.json");
    CHECK(!ds_tokenizer_load(NULL));
    CHECK_ERROR("tokenizer_load: an operand is NULL");
}

/* A pattern that backtracks without end is ended, and nothing is appended. */
static void hostile_patterns_end(void **state)
{
    (void)state;
    ds_tokenizer *t = tokenizer(LETTERS, "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": "
                                         "{\"Regex\": \"(a+)+$\"}, \"behavior\": \"Isolated\"}");
    char text[60];
    memset(text, 'a', sizeof text);
    text[59] = 'b';
    ds_tokens ids = {0};
    CHECK_INT(ds_encode(t, text, sizeof text, &ids, (ds_encode_opts){0}), DS_EFORMAT);
    CHECK_ERROR("tokenizer: splitting the text at byte 0: match limit exceeded");
    CHECK_INT(ids.n, 0);
    ds_tokens_free(&ids);
    ds_tokenizer_free(t);
}

/* Three steps that each make 1000 of a character: encoding fails early, and
 * decoding leaves the rest as it is. */
static void growing_texts_end(void **state)
{
    (void)state;
    char a[1001], components[9000];
    size_t n = 0;
    memset(a, 'a', 1000);
    a[1000] = 0;
    static const char *const part[] = {"normalizer", "normalizers", "decoder", "decoders"};
    for (int k = 0; k < 4; k += 2) {
        n += (size_t)snprintf(components + n, sizeof components - n,
                              "%s\"%s\": {\"type\": \"Sequence\", \"%s\": [", k ? ", " : "",
                              part[k], part[k + 1]);
        for (int i = 0; i < 3; i++)
            n += (size_t)snprintf(components + n, sizeof components - n,
                                  "%s{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, "
                                  "\"content\": \"%s\"}",
                                  i ? ", " : "", a);
        n += (size_t)snprintf(components + n, sizeof components - n, "]}");
    }
    ds_tokenizer *t = tokenizer(LETTERS, components);
    ds_tokens ids = {0};
    CHECK_INT(ds_encode(t, "a", 1, &ids, (ds_encode_opts){0}), DS_EFORMAT);
    CHECK_ERROR("tokenizer: replacing makes 1050000 bytes of a text: expected at most 1049600");
    size_t length = 0;
    char *text = ds_decode(t, (const uint32_t[]){1}, 1, (ds_decode_opts){.bytes = &length});
    CHECK(length > 1000000 && length < 3000000);
    CHECK_ERROR("replacing makes");
    free(text);
    ds_tokens_free(&ids);
    ds_tokenizer_free(t);
}

TEST_MAIN(cmocka_unit_test(growing_texts_end), cmocka_unit_test(merges_by_rank),
          cmocka_unit_test(empty_texts_are_none), cmocka_unit_test(long_words),
          cmocka_unit_test(splits), cmocka_unit_test(patterns),
          cmocka_unit_test(broken_utf8_is_replaced), cmocka_unit_test(damaged_files_are_refused),
          cmocka_unit_test(hostile_patterns_end))
