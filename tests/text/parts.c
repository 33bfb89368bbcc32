/* tests/text/parts.c: normalizers, pre-tokenizers and decoders, each in place of
 * that of a tokenizer.json: sums of ids and texts of the package tokenizers
 * (tests/golden/lm/parts.json), of the reference's 387 strings and more.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "check.h"

#include <deepspeed/text.h>
#include <jansson.h>
#include <openssl/evp.h>

static json_t *golden_read(const char *name)
{
    dsi_text path = dsi_text_of("%s/lm/%s", DS_GOLDEN, name);
    json_t *j = json_load_file(path.s, JSON_ALLOW_NUL, NULL);
    CHECK(j);
    dsi_text_free(&path);
    return j;
}

/* The base's tokenizer.json with the case's components in place of its own. */
static ds_tokenizer *case_tokenizer(const json_t *c)
{
    dsi_text name = dsi_text_of("tokenizers/%s/tokenizer.json",
                                json_string_value(json_object_get(c, "base")));
    json_t *file = golden_read(name.s);
    json_object_update(file, json_object_get(c, "parts"));
    char *text = json_dumps(file, 0);
    ds_tokenizer *t = ds_tokenizer_from_json(text, strlen(text), name.s);
    if (!t) fail_msg("%s", ds_error());
    free(text);
    json_decref(file);
    dsi_text_free(&name);
    return t;
}

/* Bytes of all ids, of all texts. */
typedef struct Sums {
    dsi_text ids, texts;
    int64_t n;
} Sums;

static void strings_add(Sums *sums, ds_tokenizer *t, const json_t *strings)
{
    size_t i;
    const json_t *s;
    json_array_foreach(strings, i, s)
    {
        ds_tokens ids = {0};
        size_t n;
        CHECK_INT(
            ds_encode(t, json_string_value(s), json_string_length(s), &ids, (ds_encode_opts){0}),
            DS_OK);
        char *text = ds_decode(t, ids.ids, ids.n, (ds_decode_opts){&n, true});
        if (ids.n) dsi_text_add_bytes(&sums->ids, ids.ids, (size_t)ids.n * 4);
        dsi_text_add_bytes(&sums->ids, "\xFF\xFF\xFF\xFF", 4);
        dsi_text_add_bytes(&sums->texts, text, n);
        dsi_text_add_bytes(&sums->texts, "\n", 1);
        sums->n += ids.n;
        free(text);
        ds_tokens_free(&ids);
    }
}

static bool sum_is(const dsi_text *text, const json_t *want)
{
    unsigned char sum[32];
    char hex[65];
    EVP_Digest(text->s, text->n, sum, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return !strcmp(hex, json_string_value(want));
}

static void parts_are_those_of_tokenizers(void **state)
{
    (void)state;
    json_t *golden = golden_read("parts.json"), *file = golden_read("tokenizers/strings.json");
    const json_t *c;
    size_t i;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        Sums sums = {0};
        ds_tokenizer *t = case_tokenizer(c);
        strings_add(&sums, t, json_object_get(file, "strings"));
        strings_add(&sums, t, json_object_get(golden, "strings"));
        bool ids = sum_is(&sums.ids, json_object_get(c, "ids_sha256"));
        if (!ids || !sum_is(&sums.texts, json_object_get(c, "text_sha256")))
            fail_msg("case %zu: other %s (%lld ids, want %lld)", i, ids ? "texts" : "ids",
                     (long long)sums.n, (long long)json_integer_value(json_object_get(c, "count")));
        dsi_text_free(&sums.ids);
        dsi_text_free(&sums.texts);
        ds_tokenizer_free(t);
    }
    json_decref(golden);
    json_decref(file);
}

TEST_MAIN(cmocka_unit_test(parts_are_those_of_tokenizers))
