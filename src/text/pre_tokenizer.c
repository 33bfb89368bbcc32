/* text/pre_tokenizer.c: splits a text into words.
 *
 * Steps are nested, not run one after another over lists of pieces: each piece
 * passes all steps before the next one is cut off, so a text of any size needs
 * no memory for its pieces.
 *
 * Source: the Split, ByteLevel and Metaspace pre-tokenizers of the crate
 * tokenizers (tokenizers/src/pre_tokenizers) and SplitDelimiterBehavior
 * (src/tokenizer/normalizer.rs).
 * SPDX-License-Identifier: MIT */
#include "pre_tokenizer.h"

#include "base/text.h"
#include "normalizer.h"
#include "unicode.h"

#include <string.h>

void dsi_pre_tokenizer_free(dsi_pre_tokenizer *p)
{
    for (int i = 0; i < p->n; i++) {
        dsi_regex_free(p->at[i].pattern);
        dsi_free(p->at[i].replacement);
    }
    dsi_list_free(p);
}

/* Arguments of one call of dsi_pre_tokenize, which all steps need. */
typedef struct Splitter {
    const dsi_pre_tokenizer *p;
    dsi_word_fn *fn;
    void *arg;
} Splitter;

static ds_status step_run(const Splitter *sp, int step, const char *s, size_t n, bool at_start);

/* The piece that is not handed on yet, as the next item may still be merged
 * with it: [begin, end) of s. */
typedef struct Pending {
    const Splitter *sp;
    int step;
    const char *s;
    bool at_start;
    size_t begin, end;
    bool is_match, any;
} Pending;

/* Hands the pending piece to the next step. Empty pieces are dropped, as in
 * tokenizers. */
static ds_status pending_emit(Pending *p)
{
    bool emit = p->any && p->end > p->begin;
    p->any = false;
    if (!emit) return DS_OK;
    return step_run(p->sp, p->step + 1, p->s + p->begin, p->end - p->begin,
                    p->at_start && p->begin == 0);
}

/* Tells whether an item, a match or the text between matches, is joined to the
 * pending piece. */
static bool pending_takes(const Pending *p, dsi_split_behavior behavior, bool is_match)
{
    if (!p->any) return false;
    switch (behavior) {
    case DSI_SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !p->is_match;
    case DSI_SPLIT_MERGED_WITH_NEXT:
        return !is_match && p->is_match;
    case DSI_SPLIT_CONTIGUOUS:
        return is_match == p->is_match;
    case DSI_SPLIT_REMOVED:
    case DSI_SPLIT_ISOLATED:
        break;
    }
    return false;
}

/* The next item in order: a match, which may be empty, or what is between two
 * matches. */
static ds_status pending_add(Pending *p, size_t begin, size_t end, bool is_match)
{
    const dsi_pre_tokenizer_step *step = &p->sp->p->at[p->step];
    if (begin == end && !is_match) return DS_OK;
    if (step->invert) is_match = !is_match;
    if (pending_takes(p, step->behavior, is_match)) {
        p->end = end;
        /* A merged piece is complete: it takes nothing more. */
        p->is_match = step->behavior == DSI_SPLIT_CONTIGUOUS
                          ? is_match
                          : step->behavior == DSI_SPLIT_MERGED_WITH_PREVIOUS;
        return DS_OK;
    }
    ds_status status = pending_emit(p);
    p->any = !(is_match && step->behavior == DSI_SPLIT_REMOVED);
    p->begin = begin;
    p->end = end;
    p->is_match = is_match;
    return status;
}

/* Splits s by the step's pattern and runs the steps after it on each piece. */
static ds_status split_run(const Splitter *sp, int step, const char *s, size_t n, bool at_start)
{
    Pending pending = {sp, step, s, at_start, 0, 0, false, false};
    size_t at = 0;
    dsi_match m = {0};
    ds_status found = DS_OK, status = DS_OK;
    while (status == DS_OK && dsi_regex_next(sp->p->at[step].pattern, s, n, &m, &found)) {
        status = pending_add(&pending, at, m.begin, false);
        if (status == DS_OK) status = pending_add(&pending, m.begin, m.end, true);
        at = m.end;
    }
    if (status == DS_OK) status = found;
    if (status == DS_OK) status = pending_add(&pending, at, n, false);
    return status == DS_OK ? pending_emit(&pending) : status;
}

/* Metaspace: appends s with `replacement` in place of each space, and one
 * before it if the scheme wants that and s does not begin with a space or with
 * one. */
static void replace_spaces(const dsi_pre_tokenizer_step *step, const char *s, size_t n,
                           bool at_start, dsi_text *to)
{
    const char *r = step->replacement;
    size_t length = strlen(r);
    bool there = *s == ' ' || (n >= length && !memcmp(s, r, length));
    bool wanted = step->scheme == DSI_PREPEND_ALWAYS ||
                  (step->scheme == DSI_PREPEND_FIRST && at_start);
    if (wanted && !there) dsi_text_add_bytes(to, r, length);
    for (size_t i = 0, from = 0; i <= n; i++) {
        if (i < n && s[i] != ' ') continue;
        dsi_text_add_bytes(to, s + from, i - from);
        if (i < n) dsi_text_add_bytes(to, r, length);
        from = i + 1;
    }
}

/* Passes on a word, which may be in the byte-level alphabet. Characters outside
 * of it, which a Metaspace behind ByteLevel makes, stay as they are. */
static ds_status word_emit(const Splitter *sp, const char *s, size_t n)
{
    if (!sp->p->alphabet_from) return sp->fn(sp->arg, s, n);
    dsi_text word = {0};
    for (size_t i = 0; i < n; i += dsi_utf8_length(s + i)) {
        uint32_t c;
        dsi_utf8_decode(s + i, n - i, &c);
        int byte = dsi_char_to_byte(c);
        if (byte >= 0)
            dsi_text_add_bytes(&word, &(char){(char)byte}, 1);
        else
            dsi_utf8_append(&word, c);
    }
    ds_status status = sp->fn(sp->arg, word.s, word.n);
    dsi_text_free(&word);
    return status;
}

/* Runs step i on one piece, and those after it on what it is split into. */
static ds_status piece_run(const Splitter *sp, int i, const char *s, size_t n, bool at_start)
{
    const dsi_pre_tokenizer_step *step = &sp->p->at[i];
    dsi_text changed = {0};
    if (step->replacement) {
        replace_spaces(step, s, n, at_start, &changed);
    } else if (step->prefix_space && *s != ' ') {
        dsi_text_add_bytes(&changed, " ", 1);
        dsi_text_add_bytes(&changed, s, n);
    }
    if (changed.n) s = changed.s, n = changed.n;
    ds_status status = step->pattern ? split_run(sp, i, s, n, at_start)
                                     : step_run(sp, i + 1, s, n, at_start);
    dsi_text_free(&changed);
    return status;
}

/* Runs step i on a piece whose bytes become characters before it. */
static ds_status alphabet_run(const Splitter *sp, int i, const char *s, size_t n, bool at_start)
{
    dsi_text text = {0};
    for (size_t k = 0; k < n; k++) dsi_utf8_append(&text, dsi_byte_to_char((unsigned char)s[k]));
    ds_status status = piece_run(sp, i, n ? text.s : "", text.n, at_start);
    dsi_text_free(&text);
    return status;
}

/* Runs step i and those after it on one piece; behind the last step the piece
 * is a word. */
static ds_status step_run(const Splitter *sp, int i, const char *s, size_t n, bool at_start)
{
    if (i == sp->p->n) return word_emit(sp, s, n);
    if (i && i == sp->p->alphabet_from) return alphabet_run(sp, i, s, n, at_start);
    return piece_run(sp, i, s, n, at_start);
}

/* Steps are nested calls: as deep as there are steps, for a text of any
 * length. */
ds_status dsi_pre_tokenize(const dsi_pre_tokenizer *p, const char *s, size_t n, bool at_start,
                           dsi_word_fn *fn, void *arg)
{
    Splitter sp = {p, fn, arg};
    return step_run(&sp, 0, s, n, at_start);
}
