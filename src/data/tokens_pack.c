/* data/tokens_pack.c: text and JSON lines become a file of tokens.
 *
 * The documents follow each other, each with the tokenizer's begin and end
 * tokens and the end token `eos` behind it. Ids are collected in memory (4 bytes
 * each) and written at the end, so that a file is whole or not there.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "tokens.h"
#include "tokens_chat.h"

#include <deepspeed/text.h>

#include <jansson.h>
#include <string.h>

typedef struct Pack {
    ds_tokenizer *tokenizer;
    int64_t eos;
    ds_tokens ids;
    dsi_text counted; /* a byte for each id; used if some id does not count */
    bool masked;
    dsi_chat_rows chats;
} Pack;

/* Appends a text; its ids count in the loss or not. */
static ds_status pack_add(Pack *p, const char *text, size_t n, bool counts, bool plain)
{
    int64_t before = p->ids.n;
    ds_status status = ds_encode(p->tokenizer, text, n, &p->ids,
                                 (ds_encode_opts){.no_special_tokens = plain});
    for (int64_t i = before; i < p->ids.n; i++)
        dsi_text_add_bytes(&p->counted, counts ? "\1" : "\0", 1);
    p->masked |= !counts;
    return status;
}

/* Ends a document with `eos`, which counts in the loss, unless the tokenizer's
 * template has done it. eos -1: none was asked for. */
static void pack_end(Pack *p)
{
    if (p->eos < 0) return;
    uint32_t last = (uint32_t)p->eos;
    if (p->ids.n && p->ids.ids[p->ids.n - 1] == last) return; /* the tokenizer adds it */
    if (p->ids.n == p->ids.room) {
        p->ids.room = p->ids.room ? 2 * p->ids.room : 64;
        p->ids.ids = dsi_realloc(p->ids.ids, (size_t)p->ids.room * sizeof *p->ids.ids);
    }
    p->ids.ids[p->ids.n++] = last;
    dsi_text_add_bytes(&p->counted, "\1", 1);
}

/* A conversation; its template ends it. */
static ds_status pack_chat(Pack *p, const char *path, int64_t line, const json_t *row)
{
    dsi_text what = dsi_text_of("tokens: %s: line %lld", path, (long long)line);
    int64_t before = p->ids.n;
    char *masks = NULL;
    ds_status status = dsi_chat_row_tokens(&p->chats, row, what.s, &p->ids, &masks);
    size_t n = (size_t)(p->ids.n - before);
    if (status == DS_OK) dsi_text_add_bytes(&p->counted, masks, n);
    p->masked |= n && memchr(masks, 0, n);
    dsi_free(masks);
    dsi_text_free(&what);
    return status;
}

/* {"text": ..}, {"prompt": .., "completion": ..}, of which the prompt does not
 * count, or a conversation. */
static ds_status pack_json(Pack *p, const char *path, int64_t line, const char *text, size_t n)
{
    json_error_t error;
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, &error);
    const json_t *whole = json_object_get(j, "text"), *prompt = json_object_get(j, "prompt"),
                 *answer = json_object_get(j, "completion");
    ds_status status = DS_OK;
    if (dsi_is_chat_row(j)) {
        status = pack_chat(p, path, line, j);
        json_decref(j);
        return status;
    }
    if (!j)
        status = dsi_fail(DS_EFORMAT, "tokens: %s: line %lld: %s", path, (long long)line,
                          error.text);
    else if (p->chats.assistant_only)
        status = dsi_fail(DS_EINVAL,
                          "tokens: %s: line %lld: assistant_only_loss is for rows with messages",
                          path, (long long)line);
    else if (json_is_string(whole))
        status = pack_add(p, json_string_value(whole), json_string_length(whole), true, false);
    else if (json_is_string(prompt) && json_is_string(answer)) {
        status = pack_add(p, json_string_value(prompt), json_string_length(prompt), false, false);
        if (status == DS_OK)
            status = pack_add(p, json_string_value(answer), json_string_length(answer), true, true);
    } else {
        status = dsi_fail(DS_EFORMAT,
                          "tokens: %s: line %lld: expected \"text\", or \"prompt\" and "
                          "\"completion\", with strings, or \"messages\"",
                          path, (long long)line);
    }
    if (status == DS_OK) pack_end(p);
    json_decref(j);
    return status;
}

/* A JSON value a line (JSON Lines); empty lines are skipped, and counted for
 * messages. A byte order mark in front of the first is skipped. */
static ds_status pack_lines(Pack *p, const char *path, const char *text, size_t n)
{
    ds_status status = DS_OK;
    int64_t line = 1, mark = n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
    for (const char *at = text + mark, *end = text + n; at < end && status == DS_OK; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        if (strspn(at, " \t\r") < length) status = pack_json(p, path, line, at, length);
        at += length + 1;
    }
    return status;
}

/* One file: its lines if its name ends with .jsonl or .json, else the whole
 * text as one document. */
static ds_status pack_file(Pack *p, const char *path)
{
    size_t n;
    char *text = dsi_file_read(path, &n);
    if (!text) return ds_error_status();
    ds_status status;
    if (dsi_ends_with(path, ".jsonl") || dsi_ends_with(path, ".json")) {
        status = pack_lines(p, path, text, n);
    } else {
        if (p->chats.assistant_only)
            status = dsi_fail(DS_EINVAL, "tokens: %s: assistant_only_loss is for JSON lines", path);
        else
            status = pack_add(p, text, n, true, false);
        if (status == DS_OK) pack_end(p);
    }
    dsi_free(text);
    return status;
}

/* Ids have 2 bytes if the vocabulary fits them. The file appears under its name
 * when it is complete; dsi_file_commit reports what any write before it met. */
static ds_status pack_write(const Pack *p, const char *out, int64_t vocab)
{
    dsi_tokens_header h = {.width = vocab <= 65536 ? 2 : 4,
                           .masked = p->masked,
                           .n = (uint64_t)p->ids.n,
                           .vocab = (uint64_t)vocab};
    memcpy(h.magic, DSI_TOKENS_MAGIC, sizeof h.magic);
    dsi_file *f = dsi_file_replace(out);
    if (!f) return ds_error_status();
    dsi_file_write(f, &h, sizeof h);
    uint16_t narrow[4096];
    for (int64_t i = 0; i < p->ids.n && h.width == 2; i += 4096) {
        int64_t m = p->ids.n - i < 4096 ? p->ids.n - i : 4096;
        for (int64_t k = 0; k < m; k++) narrow[k] = (uint16_t)p->ids.ids[i + k];
        dsi_file_write(f, narrow, (size_t)m * sizeof *narrow);
    }
    if (h.width == 4) dsi_file_write(f, p->ids.ids, (size_t)p->ids.n * sizeof *p->ids.ids);
    if (h.masked) dsi_file_write(f, p->counted.s, p->counted.n);
    return dsi_file_commit(f);
}

ds_status ds_tokens_pack_with(ds_tokenizer *t, const char *out, ds_tokens_pack_opts o)
{
    if (!t || !out || !o.files) return dsi_null_argument("tokens_pack");
    Pack p = {.tokenizer = t,
              .eos = o.end_token ? ds_token_to_id(t, o.end_token) : -1,
              .chats = {t, o.chat_folder, NULL, o.assistant_only_loss}};
    int64_t vocab = ds_tokenizer_vocab_size(t);
    if (o.end_token && p.eos < 0)
        return dsi_fail(DS_EINVAL, "tokens: the tokenizer has no token \"%s\"", o.end_token);
    ds_status status = DS_OK;
    for (int i = 0; i < o.n_files && status == DS_OK; i++) status = pack_file(&p, o.files[i]);
    if (status == DS_OK && !p.ids.n)
        status = dsi_fail(DS_EFORMAT, "tokens: %s%s: expected text, found none",
                          o.n_files ? o.files[0] : "no file", o.n_files > 1 ? " and others" : "");
    if (status == DS_OK) status = pack_write(&p, out, vocab);
    if (o.tokens) *o.tokens = p.ids.n;
    ds_chat_template_free(p.chats.template);
    ds_tokens_free(&p.ids);
    dsi_text_free(&p.counted);
    return status;
}
