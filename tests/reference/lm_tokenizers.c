/* tests/reference/lm_tokenizers.c: ids and texts of Hugging Face's tokenizers,
 * exact: 400 strings and 1 MB of text for each tokenizer.json of the folder.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "check.h"
#include "reference.h"

#include <deepspeed/text.h>
#include <openssl/evp.h>

/* strings.json of the case's folder; the caller frees it. */
static json_t *strings_read(Reference *r)
{
    char path[700];
    json_error_t error;
    snprintf(path, sizeof path, "%s/strings.json", r->folder);
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!file) reference_fail(r, "%s: %s", path, error.text);
    return file;
}

static void check_ids(Reference *r, const char *what, size_t i, const ds_tokens *got,
                      const json_t *want)
{
    size_t n = json_array_size(want);
    bool same = (int64_t)n == got->n;
    for (size_t k = 0; same && k < n; k++)
        same = got->ids[k] == (uint32_t)json_integer_value(json_array_get(want, k));
    if (same) return;
    char *text = json_dumps(want, JSON_COMPACT);
    dsi_text ids = {0};
    for (int64_t k = 0; k < got->n; k++) dsi_text_add(&ids, "%s%u", k ? "," : "", got->ids[k]);
    reference_fail(r, "%s of string %zu: got [%s], want %s", what, i, ids.s ? ids.s : "", text);
    dsi_text_free(&ids);
    free(text);
}

/* null in the file: the text is the string itself. */
static void check_decoded(Reference *r, const char *key, size_t i, const ds_tokenizer *t,
                          const ds_tokens *ids, bool keep, const json_t *string)
{
    const json_t *want = json_array_get(json_object_get(r->json, key), i);
    if (json_is_null(want)) want = string;
    size_t n;
    char *got = ds_decode(t, ids->ids, ids->n, (ds_decode_opts){&n, keep});
    if (n != json_string_length(want) || memcmp(got, json_string_value(want), n) != 0)
        reference_fail(r, "%s of string %zu: got \"%s\", want \"%s\"", key, i, got,
                       json_string_value(want));
    free(got);
}

/* A stream returns the text, except an incomplete character at the end. */
static void check_stream(Reference *r, size_t i, const ds_tokenizer *t, const ds_tokens *ids)
{
    ds_decode_stream *s = ds_decode_stream_new(t, true);
    dsi_text all = {0};
    dsi_text_add_bytes(&all, "", 0);
    for (int64_t k = 0; k < ids->n; k++)
        dsi_text_add(&all, "%s", ds_decode_stream_step(s, ids->ids[k]));
    size_t n;
    char *want = ds_decode(t, ids->ids, ids->n, (ds_decode_opts){&n, true});
    bool whole = strlen(want) == n && !strstr(want, "\xEF\xBF\xBD");
    if (whole && strcmp(want, all.s) != 0)
        reference_fail(r, "stream of string %zu: got \"%s\", want \"%s\"", i, all.s, want);
    free(want);
    dsi_text_free(&all);
    ds_decode_stream_free(s);
}

static void check_strings(Reference *r, ds_tokenizer *t, const json_t *strings)
{
    size_t i;
    const json_t *string;
    json_array_foreach(strings, i, string)
    {
        ds_tokens ids = {0}, special = {0};
        const char *s = json_string_value(string);
        size_t n = json_string_length(string);
        CHECK_INT(ds_encode(t, s, n, &ids, (ds_encode_opts){.no_special_tokens = true}), DS_OK);
        CHECK_INT(ds_encode(t, s, n, &special, (ds_encode_opts){0}), DS_OK);
        check_ids(r, "ids", i, &ids, json_array_get(json_object_get(r->json, "ids"), i));
        check_ids(r, "ids_special", i, &special,
                  json_array_get(json_object_get(r->json, "ids_special"), i));
        check_decoded(r, "decoded", i, t, &special, true, string);
        check_decoded(r, "decoded_skip", i, t, &special, false, string);
        check_stream(r, i, t, &special);
        ds_tokens_free(&ids);
        ds_tokens_free(&special);
    }
}

static void check_long_text(Reference *r, ds_tokenizer *t, const json_t *file)
{
    static const char *const between[] = {" ", "\n", "", ". "};
    const json_t *strings = json_object_get(file, "strings");
    uint64_t x = (uint64_t)reference_int(json_object_get(file, "long_text"), "seed", 0);
    dsi_text text = {0};
    while (text.n < 1048576) {
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF;
        const json_t *s = json_array_get(strings, (x >> 8) % json_array_size(strings));
        dsi_text_add_bytes(&text, json_string_value(s), json_string_length(s));
        dsi_text_add(&text, "%s", between[(x >> 4) % 4]);
    }
    ds_tokens ids = {0};
    CHECK_INT(ds_encode(t, text.s, text.n, &ids, (ds_encode_opts){.no_special_tokens = true}),
              DS_OK);
    const json_t *want = json_object_get(r->json, "long_text");
    unsigned char sum[32];
    char hex[65];
    EVP_Digest(ids.ids, (size_t)ids.n * 4, sum, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    if (ids.n != reference_int(want, "count", -1) ||
        strcmp(hex, reference_text(want, "ids_sha256", "")) != 0)
        reference_fail(r, "long text: %lld ids with sum %s", (long long)ids.n, hex);
    ds_tokens_free(&ids);
    dsi_text_free(&text);
}

static void check_tokenizer(Reference *r)
{
    char path[700];
    if (!json_object_get(r->json, "ids")) return; /* strings.json */
    snprintf(path, sizeof path, "%s/%s", r->folder, reference_text(r->json, "tokenizer", ""));
    ds_tokenizer *t = ds_tokenizer_load(path);
    if (!t) {
        reference_fail(r, "%s", ds_error());
        return;
    }
    CHECK_INT(ds_tokenizer_vocab_size(t), reference_int(r->json, "vocab_size", -1));
    json_t *file = strings_read(r);
    check_strings(r, t, json_object_get(file, "strings"));
    check_long_text(r, t, file);
    json_decref(file);
    ds_tokenizer_free(t);
}

static void tokenizers(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lm/tokenizers", check_tokenizer), 0);
}

TEST_MAIN(cmocka_unit_test(tokenizers))
