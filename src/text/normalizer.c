/* text/normalizer.c: steps that change the text before it is split.
 *
 * Source: the normalizers of the crate tokenizers (tokenizers/src/normalizers);
 * forms are those of Unicode Standard Annex 15.
 *
 * Invariants: a text is valid UTF-8 before and after each step. A step that
 * makes it empty ends the normalization.
 * SPDX-License-Identifier: MIT */
#include "normalizer.h"

#include "base/error.h"
#include "libraries.h"
#include "unicode.h"

#include <stdlib.h>
#include <string.h>

void dsi_normalizer_free(dsi_normalizer *n)
{
    for (int i = 0; i < n->n; i++) {
        dsi_free(n->at[i].content);
        dsi_regex_free(n->at[i].pattern);
    }
    dsi_list_free(n);
}

static ds_status text_too_long(size_t n, size_t most)
{
    return dsi_fail(DS_EFORMAT,
                    "tokenizer: replacing makes %zu bytes of a text: expected at "
                    "most %zu",
                    n, most);
}

/* After a failure the rest is appended as it is. */
ds_status dsi_replace_all(const dsi_regex *pattern, const char *content, const char *s, size_t n,
                          size_t most, dsi_text *to)
{
    size_t at = 0;
    ds_status status;
    dsi_match m = {0};
    while (dsi_regex_next(pattern, s, n, &m, &status)) {
        if (to->n > most) {
            status = text_too_long(to->n, most);
            break;
        }
        dsi_text_add_bytes(to, s + at, m.begin - at);
        dsi_text_add_bytes(to, content, strlen(content));
        at = m.end;
    }
    dsi_text_add_bytes(to, s + at, n - at);
    return status;
}

/* Branch-free, so that it runs at the speed of memory. */
static bool is_ascii(const char *s, size_t n)
{
    unsigned char all = 0;
    for (size_t i = 0; i < n; i++) all |= (unsigned char)s[i];
    return all < 0x80;
}

/* *text becomes *other, which the caller must not use any more. */
static void text_take(dsi_text *text, dsi_text *other)
{
    dsi_text_free(text);
    *text = *other;
}

/* NFC and the others: utf8proc allocates its result by malloc. */
static ds_status normalize_form(int form, dsi_text *text)
{
    if (is_ascii(text->s, text->n)) return DS_OK; /* every form leaves ASCII as it is */
    const dsi_utf8proc *lib = dsi_utf8proc_open();
    if (!lib) return ds_error_status();
    utf8proc_uint8_t *result = NULL;
    utf8proc_ssize_t n = lib->map((const utf8proc_uint8_t *)text->s, (utf8proc_ssize_t)text->n,
                                  &result, (utf8proc_option_t)form);
    if (n < 0) return dsi_fail(DS_ENOMEM, "tokenizer: no memory to normalize %zu bytes", text->n);
    text->n = 0;
    dsi_text_add_bytes(text, result, (size_t)n);
    free(result);
    return DS_OK;
}

/* Strip: white space at the chosen ends, character by character. */
static void normalize_strip(const dsi_normalizer_step *step, dsi_text *text)
{
    uint32_t c;
    size_t begin = 0, end = text->n;
    while (step->left && begin < end) {
        int length = dsi_utf8_decode(text->s + begin, end - begin, &c);
        if (!dsi_is_space(c)) break;
        begin += (size_t)length;
    }
    while (step->right && end > begin) {
        size_t last = end - 1;
        /* Back to the first byte of the last character. */
        while (last > begin && ((unsigned char)text->s[last] & 0xC0) == 0x80) last--;
        dsi_utf8_decode(text->s + last, end - last, &c);
        if (!dsi_is_space(c)) break;
        end = last;
    }
    dsi_text stripped = {0};
    dsi_text_add_bytes(&stripped, text->s + begin, end - begin);
    text_take(text, &stripped);
}

/* Lowercase and StripAccents, character by character. */
static void normalize_chars(dsi_normalizer_kind kind, dsi_text *text)
{
    dsi_text changed = {0};
    uint32_t c;
    dsi_text_add_bytes(&changed, "", 0);
    for (size_t i = 0; i < text->n; i += (size_t)dsi_utf8_length(text->s + i)) {
        dsi_utf8_decode(text->s + i, text->n - i, &c);
        if (kind == DSI_NORMALIZE_LOWERCASE)
            dsi_append_lower(&changed, c);
        else if (!dsi_is_mark(c))
            dsi_utf8_append(&changed, c);
    }
    text_take(text, &changed);
}

/* One step, in place. A text that changes is written to new memory, which then
 * replaces the old. */
static ds_status normalizer_step_apply(const dsi_normalizer_step *step, size_t most, dsi_text *text)
{
    dsi_text changed = {0};
    ds_status status;
    switch (step->kind) {
    case DSI_NORMALIZE_FORM:
        return normalize_form(step->form, text);
    case DSI_NORMALIZE_STRIP:
        normalize_strip(step, text);
        return DS_OK;
    case DSI_NORMALIZE_LOWERCASE:
    case DSI_NORMALIZE_STRIP_ACCENTS:
        normalize_chars(step->kind, text);
        return DS_OK;
    case DSI_NORMALIZE_PREPEND:
        dsi_text_add(&changed, "%s", step->content);
        dsi_text_add_bytes(&changed, text->s, text->n);
        text_take(text, &changed);
        return DS_OK;
    case DSI_NORMALIZE_REPLACE:
        status = dsi_replace_all(step->pattern, step->content, text->s, text->n, most, &changed);
        text_take(text, &changed);
        return status;
    }
    return DS_OK;
}

ds_status dsi_normalize(const dsi_normalizer *n, dsi_text *text)
{
    ds_status status = DS_OK;
    size_t most = dsi_text_most(text->n);
    for (int i = 0; i < n->n && status == DS_OK && text->n; i++) {
        status = normalizer_step_apply(&n->at[i], most, text);
        if (status == DS_OK && text->n > most) status = text_too_long(text->n, most);
    }
    return status;
}
