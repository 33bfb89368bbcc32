/* models/generate.c: tokens one by one, with a cache of keys and values, or
 * several that are likely at once, of which those that are right are kept. Two
 * kinds of drafts say what is likely: what followed the same words before
 * (prompt lookup), and what the model with 8-bit matrices chooses
 * (assistant.c).
 *
 * Invariants: all rows of a batch have the same length; shorter prompts have
 * padding on the left, which no position attends to, and positions count
 * without it. A row that ended continues with padding until all have ended.
 *
 * The first step runs the prompt and fills the cache, every later one a single
 * position, and those of a draft behind it. Between steps the cache has all
 * columns but the last. Column i of `ids` is position i of the row with padding
 * counted; positions that the model is given do not count it. A Run is on the
 * stack of one call; cache, ids and pads are the session's, which the model
 * keeps (session.c); o and lm are borrowed.
 * SPDX-License-Identifier: MIT */
#include "beam.h"
#include "choose.h"
#include "session.h"
#include "stop_strings.h"

#include "base/error.h"
#include "base/file.h"
#include "base/int.h"
#include "base/mem.h"
#include "base/option.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one position of all rows ---- */

#define LOOKUP_MOST    3 /* tokens in common that a draft's place is looked up by */
#define LOOKUP_LEAST   2 /* one alone is right too seldom to be worth its time */
#define LOOKUP_TOKENS  7 /* of a draft, if the caller names no number */
#define STEP_ROWS      DSI_LM_STEP_ROWS
#define STEP_ROWS_HALF 4
#define ASSIST_TOKENS  7  /* of a draft, at most */
#define ASSIST_NEW     32 /* new tokens from which copying the matrices pays */

typedef struct Run {
    dsi_lm *lm;
    ds_device device; /* of the model; ids and choices are in host memory */
    const ds_generate_opts *o;
    dsi_lm_session *session;
    dsi_lm_cache *cache;               /* of the session */
    int64_t rows, prompt, vocab;       /* prompt: columns */
    int64_t times;                     /* rows of each prompt: beams, or sequences */
    dsi_beams *beams;                  /* NULL: none */
    int64_t room, end;                 /* columns of ids; prompt + max_new_tokens */
    int64_t *ids;                      /* [rows, columns], of the session */
    int64_t *pads;                     /* [rows]: padding on the left, of the session */
    int64_t drafts;                    /* tokens of a looked-up draft, at most */
    dsi_assistant *assistant;          /* NULL: none */
    int64_t assist_most;               /* tokens of its draft, at most */
    double assist_right;               /* about how probably one of them is right */
    int64_t lookup[STEP_ROWS], looked; /* what was looked up for this step, [rows, looked] */
    bool lookup_right;                 /* the last that was looked up was what came */
    dsi_lm_decoder *decoder;           /* NULL: none */
    bool on_device;                    /* it chooses the tokens */
    bool padded;
    int64_t *ended; /* [rows]: columns with the token that ended the row; 0: it has not */
    dsi_lm_choice *choices;
} Run;

/* bool [B,1,n,past + n]: query i of this step, at position past + i, sees key j
 * if pads <= j <= past + i and j is at most `window` keys back. NULL after a
 * failure. */
static ds_tensor *step_mask(const Run *r, int64_t n, int64_t window)
{
    int64_t past = r->cache->length, all = past + n;
    ds_tensor *mask = dsi_fill(dsi_new_host(DS_BOOL, ds_shape(r->rows, 1, n, all)), 0);
    uint8_t *p = ds_data_mut(mask);
    for (int64_t row = 0; p && row < r->rows; row++)
        for (int64_t i = 0; i < n; i++, p += all) {
            int64_t from = past + i + 1 - window > r->pads[row] ? past + i + 1 - window
                                                                : r->pads[row];
            for (int64_t j = from < 0 ? 0 : from; j <= past + i; j++) p[j] = 1;
        }
    return ds_to(mask, r->device, DS_BOOL);
}

/* int64 [B,n]: positions, which padding does not count in, as transformers
 * derives them from the attention mask. */
static ds_tensor *step_positions(const Run *r, int64_t n)
{
    ds_tensor *t = dsi_new_host(DS_I64, ds_shape(r->rows, n));
    int64_t *p = ds_data_mut(t);
    for (int64_t i = 0; p && i < r->rows * n; i++) {
        int64_t at = r->cache->length + i % n - r->pads[i / n];
        p[i] = at > 0 ? at : 0;
    }
    return ds_to(t, r->device, DS_I64);
}

/* float32 logits [B,wanted,V] of the last of n positions that follow the
 * cache. The first step takes the whole prompt, later ones a token each and a
 * draft. Masks are made only where causal attention with a window would be
 * wrong: with padding, or behind earlier positions. The model reads them from
 * lm, and they are gone after the call. */
static ds_tensor *run_step(Run *r, int64_t n, int64_t wanted)
{
    dsi_lm *lm = r->lm;
    int64_t window = lm->config.window;
    ds_tensor *in = dsi_new_host(DS_I64, ds_shape(r->rows, n));
    int64_t *p = ds_data_mut(in);
    for (int64_t i = 0; p && i < r->rows * n; i++)
        p[i] = r->ids[i / n * r->room + r->cache->length + i % n];
    bool ok = p, behind = r->cache->length && n > STEP_ROWS;
    if (r->padded || behind) ok = ok && (lm->mask = step_mask(r, n, INT32_MAX));
    if (r->padded) ok = ok && (lm->positions = step_positions(r, n));
    if (window && r->cache->length + n > window && (r->padded || r->cache->length))
        ok = ok && (lm->window_mask = step_mask(r, n, window));
    lm->cache = r->cache;
    r->cache->wanted = wanted;
    ds_tensor *y = ok ? ds_call(ds_module_of(lm), ds_to(in, r->device, DS_I64)) : NULL;
    lm->cache = NULL, lm->mask = lm->positions = lm->window_mask = NULL;
    return ds_cast(y, DS_F32);
}

/* The first step where a prompt has several rows, which it is computed once
 * for: logits [B,1,V] of all rows, whose cache is filled then. */
static ds_tensor *run_prompt(Run *r)
{
    size_t layers = (size_t)r->lm->config.layers;
    dsi_lm_cache own = {.room = r->prompt,
                        .padding = r->cache->padding,
                        .k = dsi_alloc(layers * sizeof(ds_tensor *)),
                        .v = dsi_alloc(layers * sizeof(ds_tensor *))};
    Run one = *r;
    one.rows = r->rows / r->times, one.room = r->prompt, one.cache = &own;
    one.ids = dsi_alloc((size_t)(one.rows * r->prompt) * sizeof *one.ids);
    one.pads = dsi_alloc((size_t)one.rows * sizeof *one.pads);
    for (int64_t i = 0; i < one.rows; i++) {
        int64_t row = i * r->times;
        one.pads[i] = r->pads[row];
        memcpy(one.ids + i * r->prompt, r->ids + row * r->room,
               (size_t)r->prompt * sizeof *one.ids);
    }
    ds_tensor *y = run_step(&one, r->prompt, 1);
    if (y && dsi_lm_session_expand(r->session, &own, r->lm->config.layers, r->times) != DS_OK)
        y = NULL;
    for (size_t i = 0; i < layers; i++) ds_drop(own.k[i]), ds_drop(own.v[i]);
    dsi_free(own.k), dsi_free(own.v), dsi_free(one.ids), dsi_free(one.pads);
    r->cache->wanted = 1;
    return y ? ds_repeat_interleave(y, r->times, 0) : NULL;
}

/* Tokens that a draft behind column `at` - 1 may have: they fit, and turn by
 * the same frequencies as if they came alone. */
static int64_t draft_room(const Run *r, int64_t at)
{
    return dsi_min(r->end - at, dsi_lm_rope_together(r->lm, at - 1 - r->cache->padding)) - 1;
}

/* Writes up to `most` tokens behind the n of a row: those that followed its
 * last words where they were before. The copy may reach into its own tokens, so
 * that a text that repeats itself is continued. Of several such places
 * the one that has the most words in common is taken, up to LOOKUP_MOST, and of
 * those the last. Returns how many tokens it wrote: `most` or 0. Saxena,
 * Prompt lookup decoding, 2023. */
static int64_t draft_row(int64_t *ids, int64_t n, int64_t most)
{
    for (int64_t words = LOOKUP_MOST; words >= LOOKUP_LEAST; words--)
        for (int64_t end = n - 1; end >= words; end--) {
            if (memcmp(ids + end - words, ids + n - words, (size_t)words * sizeof *ids) != 0)
                continue;
            for (int64_t i = 0; i < most; i++) ids[n + i] = ids[end + i];
            return most;
        }
    return 0;
}

/* Looks drafts up for all rows that have not ended, behind column `at` - 1, and
 * returns their length; 0 if a row has none: rows stay of one length. */
static int64_t draft_lookup(Run *r, int64_t at, int64_t room)
{
    int64_t n = dsi_min(r->drafts, draft_room(r, at));
    for (int64_t row = 0; row < r->rows && n > 0; row++) {
        int64_t *ids = r->ids + row * room, pad = r->pads[row];
        if (!r->ended[row]) n = draft_row(ids + pad, at - pad, n);
        for (int64_t i = 0; i < n && r->ended[row]; i++) ids[at + i] = r->o->pad_token_id;
    }
    for (int64_t i = 0; i < r->rows * n; i++) r->lookup[i] = r->ids[i / n * room + at + i % n];
    return r->looked = n > 0 ? n : 0;
}

/* Tokens of the next draft: the number that gives most tokens in a time. A step
 * of n drafts gives 1 + p + ... + p^n of them, and takes about 1 + 0.45 n times
 * as long as one without (GPT-2 of 124 million parameters: 0.37 to draft a
 * token, 0.08 to check it). */
static int64_t assist_length(const Run *r)
{
    double tokens = 1, power = 1, best = 1;
    int64_t length = 0;
    for (int64_t n = 1; n <= r->assist_most; n++) {
        tokens += power *= r->assist_right;
        if (tokens / (1 + 0.45 * (double)n) <= best) continue;
        best = tokens / (1 + 0.45 * (double)n);
        length = n;
    }
    return length;
}

/* Drafts of the assistant behind column `at` - 1 of all rows: what it chooses
 * itself, by the same words of the generator. It puts its keys and values into
 * the cache, where the step that checks them replaces them. Returns their
 * number, -1 after a failure. */
static int64_t draft_assist(Run *r, int64_t at, int64_t room)
{
    int64_t n = 0, most = dsi_min(assist_length(r), draft_room(r, at)), length = r->cache->length;
    bool ok = true;
    dsi_assistant_use(r->assistant, true);
    for (; ok && n < most; n += ok) {
        ds_scope *scope = ds_scope_open();
        r->cache->length = length + n;
        ds_tensor *y = run_step(r, 1, 1);
        const float *logits = y ? ds_data(y) : NULL;
        ok = logits;
        for (int64_t row = 0; ok && row < r->rows; row++) {
            int64_t *ids = r->ids + row * room, pad = r->pads[row];
            ids[at + n] = r->ended[row] ? r->o->pad_token_id
                                        : dsi_lm_choose(logits + row * r->vocab, r->vocab,
                                                        ids + pad, at + n - pad, at + n - r->prompt,
                                                        r->o, row, r->choices);
        }
        ds_scope_close(scope);
    }
    dsi_assistant_use(r->assistant, false);
    r->cache->length = length;
    return ok ? n : -1;
}

/* Drafts behind column `at` - 1 of all rows; their number, -1 after a failure.
 * Looking up costs nothing, but is wrong more often: it has precedence over an
 * assistant only while it is right. */
static int64_t run_draft(Run *r, int64_t at)
{
    int64_t n = draft_lookup(r, at, r->room);
    if (!r->assistant || (n && r->lookup_right)) return n;
    return draft_assist(r, at, r->room);
}

/* After a step: whether what had been looked up came, and how often drafts of
 * the assistant are right. While it makes none, its chance comes back
 * slowly. */
static void draft_learn(Run *r, int64_t at, int64_t drafted, int64_t added)
{
    int64_t room = r->room;
    if (r->assistant && !drafted) r->assist_right += 0.02 * (0.6 - r->assist_right);
    if (r->assistant && !(r->looked && r->lookup_right)) {
        for (int64_t i = 0; i < dsi_min(drafted, added); i++)
            r->assist_right += 0.1 * ((i < added - 1) - r->assist_right);
    }
    if (r->looked) r->lookup_right = true;
    for (int64_t i = 0; i < r->rows * r->looked; i++)
        if (i % r->looked < added)
            r->lookup_right &= r->lookup[i] == r->ids[i / r->looked * room + at + i % r->looked];
    r->looked = 0;
}

/* Appends a token to each row, at column `at`: the padding token to rows that
 * have ended. A row ends with a stop token, which is kept, or when the caller's
 * functions say so. logits: [B,wanted,V], of which position i is taken; or
 * NULL, and tokens [B]. as_drafted: all tokens are those that the column had.
 * false: all rows have ended. */
static bool run_append(Run *r, const float *logits, const int64_t *tokens, int64_t i, int64_t at,
                       bool *as_drafted)
{
    int64_t room = r->room, left = 0;
    *as_drafted = true;
    for (int64_t row = 0; row < r->rows; row++) {
        int64_t *ids = r->ids + row * room, pad = r->pads[row], draft = ids[at];
        ids[at] = r->o->pad_token_id;
        if (r->ended[row]) continue;
        ids[at] = tokens
                      ? tokens[row]
                      : dsi_lm_choose(logits + (row * r->cache->wanted + i) * r->vocab, r->vocab,
                                      ids + pad, at - pad, at - r->prompt, r->o, row, r->choices);
        *as_drafted &= ids[at] == draft;
        bool ends = false;
        for (int k = 0; k < r->o->n_stop; k++) ends |= ids[at] == r->o->stop[k];
        ends |= r->o->n_stop_strings && dsi_lm_stop_string_ends(r->o, ids + pad, at + 1 - pad);
        ends |= r->o->on_token && !r->o->on_token(r->o->arg, row, ids[at]);
        ends |= r->o->stopping_criteria &&
                r->o->stopping_criteria(r->o->arg, row, ids + r->prompt, at + 1 - r->prompt);
        if (ends) r->ended[row] = at + 1;
        left += !ends;
    }
    return left > 0;
}

/* One step behind n new tokens, in a scope of its own, so that its memory is
 * free before the next; keys and values live in the cache. The logits behind a
 * drafted token count if all before it are what the model chose: then it chose
 * from the same past as without a draft. Returns the tokens that it appended,
 * -1 after a failure; *more: not all rows have ended. */
static int64_t run_tokens(Run *r, int64_t n, bool *more)
{
    int64_t at = r->prompt + n, drafted = n ? run_draft(r, at) : 0, added = 0;
    bool right = true;
    if (drafted < 0) return -1;
    if (n && dsi_lm_rope_restarts(r->lm, r->cache->length - r->cache->padding))
        r->cache->length = 0;
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = !n && r->times > 1 ? run_prompt(r)
                                      : run_step(r, at + drafted - r->cache->length, 1 + drafted);
    const float *logits = y ? ds_data(y) : NULL;
    for (; logits && right && *more && added <= drafted; added++)
        *more = run_append(r, logits, NULL, added, at + added, &right);
    r->cache->length = at + added - 1;
    draft_learn(r, at, drafted, added);
    ds_scope_close(scope);
    return logits ? added : -1;
}

/* The step behind n > 0 new tokens by the decoder, as run_tokens. */
static int64_t run_decoded(Run *r, int64_t n, bool *more)
{
    int64_t at = r->prompt + n;
    bool right;
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = dsi_lm_decoder_run(r->decoder, r->ids, at - 1);
    const void *values = y ? ds_data(y) : NULL;
    if (values)
        *more = r->on_device ? run_append(r, NULL, values, 0, at, &right)
                             : run_append(r, values, NULL, 0, at, &right);
    r->cache->length = at;
    ds_scope_close(scope);
    return values ? 1 : -1;
}

/* ---- beams ---- */

typedef struct BeamMemory {
    dsi_row_copy *copies; /* [rows] */
    int64_t *ids;         /* [rows,enough]; NULL: the host sees the logits of all tokens */
    int64_t enough;
} BeamMemory;

/* Logarithms of probabilities from logits [rows,1,V]; log_probs NULL: a
 * failure. */
static dsi_beam_scores beam_scores(const Run *r, ds_tensor *y, const BeamMemory *m)
{
    if (y) y = ds_log_softmax(ds_reshape(y, ds_shape(r->rows, r->vocab)), -1);
    if (m->ids)
        return (dsi_beam_scores){dsi_decode_largest(y, m->enough, m->ids), m->ids, m->enough};
    return (dsi_beam_scores){y ? ds_data(y) : NULL, NULL, r->vocab};
}

/* The step behind n new tokens of all beams. *more: the search continues. Rows
 * that became of others are copied in the cache from the first column on in
 * which they differ. */
static bool run_beam_step(Run *r, int64_t n, const BeamMemory *m, bool *more)
{
    int64_t at = r->prompt + n, count = 0;
    if (n && dsi_lm_rope_restarts(r->lm, r->cache->length - r->cache->padding))
        r->cache->length = 0;
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = !n           ? run_prompt(r)
                   : r->decoder ? dsi_lm_decoder_run(r->decoder, r->ids, at - 1)
                                : run_step(r, at - r->cache->length, 1);
    dsi_beam_scores scores = beam_scores(r, y, m);
    dsi_beam_rows rows = {r->ids, r->room, r->prompt, at, r->pads};
    r->cache->length = at;
    if (scores.log_probs) *more = dsi_beams_step(r->beams, scores, rows, m->copies, &count);
    bool ok = scores.log_probs;
    if (ok && *more && count)
        ok = dsi_lm_session_copy(r->session, r->lm->config.layers, m->copies, count) == DS_OK;
    ds_scope_close(scope);
    return ok;
}

/* All steps of a beam search. Returns how many, -1 after a failure. */
static int64_t run_beams(Run *r)
{
    BeamMemory m = {.copies = dsi_alloc((size_t)r->rows * sizeof *m.copies),
                    .enough = dsi_beams_enough(r->beams)};
    if (dsi_decode_finds_largest(r->lm, m.enough))
        m.ids = dsi_alloc((size_t)(r->rows * m.enough) * sizeof *m.ids);
    int64_t n = 0;
    bool more = true, ok = true;
    for (; ok && more; n++) ok = run_beam_step(r, n, &m, &more);
    dsi_free(m.copies), dsi_free(m.ids);
    return ok ? n : -1;
}

/* All steps. Returns the number of new tokens, -1 after a failure. */
static int64_t run_all(Run *r)
{
    if (r->beams) return run_beams(r);
    int64_t n = 0;
    for (bool more = true; more && n < r->o->max_new_tokens;) {
        int64_t added = n && r->decoder ? run_decoded(r, n, &more) : run_tokens(r, n, &more);
        if (added < 0) return -1;
        n += added;
    }
    return n;
}

/* ---- a call ---- */

/* Positions are limited only where they are learned (GPT-2): rotary ones are
 * computed. */
static bool generate_check(const dsi_lm *lm, ds_tensor *ids, const ds_generate_opts *o)
{
    if (!lm) return dsi_invalid("generate: expected a language model");
    if (ds_dtype_of(ids) != DS_I64 || ds_ndim(ids) != 2 || !ds_numel(ids))
        return dsi_invalid("generate: the ids are %s %s: expected int64 [B,L], not empty",
                           ds_dtype_name(ds_dtype_of(ids)), dsi_shape_text(ds_shape_of(ids)));
    ds_tensor *mask = o->attention_mask;
    if (mask &&
        (ds_dtype_of(mask) != DS_I64 || !dsi_same_shape(ds_shape_of(mask), ds_shape_of(ids))))
        return dsi_invalid("generate: attention_mask is %s %s: expected int64 %s, as ids",
                           ds_dtype_name(ds_dtype_of(mask)), dsi_shape_text(ds_shape_of(mask)),
                           dsi_shape_text(ds_shape_of(ids)));
    if (o->pad_token_id < 0)
        return dsi_invalid("generate: pad_token_id is %lld: expected a token",
                           (long long)o->pad_token_id);
    if (o->max_new_tokens < 1 || o->max_new_tokens > INT32_MAX)
        return dsi_invalid("generate: max_new_tokens is %lld: expected 1 to 2^31",
                           (long long)o->max_new_tokens);
    int64_t lookup = o->prompt_lookup_num_tokens, assist = o->num_assistant_tokens;
    if (lookup < -1 || lookup > INT32_MAX || assist < -1 || assist > INT32_MAX)
        return dsi_invalid("generate: prompt_lookup_num_tokens is %lld, num_assistant_tokens %lld: "
                           "expected -1 to 2^31",
                           (long long)lookup, (long long)assist);
    if (lm->position && ds_size(ids, 1) + o->max_new_tokens - 1 > lm->config.positions)
        return dsi_invalid("generate: %lld tokens and %lld new ones: the model has %lld positions",
                           (long long)ds_size(ids, 1), (long long)o->max_new_tokens,
                           (long long)lm->config.positions);
    return dsi_lm_check_choice("generate", o, lm->config.vocab) && dsi_lm_check_stop_strings(o) &&
           dsi_beams_check(o, lm->config.vocab);
}

/* Tokens of a draft, at most, of which `asked` were asked for. More rows in a
 * step would be summed in another order than one row (gemm.c), and could be
 * other tokens where two logits are nearly equal. */
static int64_t drafts_most(const Run *r, int64_t asked)
{
    bool half = ds_dtype_size(ds_dtype_of(dsi_lm_embedding_weight(r->lm->embed))) == 2;
    int64_t fit = (half ? STEP_ROWS_HALF : STEP_ROWS) / r->rows - 1;
    return asked < 0 || fit < 0 ? 0 : dsi_min(asked, fit);
}

/* Chooses the drafts. On a GPU a sum's order depends on the number of rows, so
 * there are drafts only if the caller gave their number. An assistant that the
 * caller did not request is left out where memory is short. False after a
 * failure. */
static bool run_drafts(Run *r)
{
    const ds_generate_opts *o = r->o;
    if (r->beams) return true;
    int64_t lookup = o->prompt_lookup_num_tokens, assist = o->num_assistant_tokens;
    bool host = r->device.kind == DS_CPU, pays = host && o->max_new_tokens >= ASSIST_NEW;
    r->drafts = drafts_most(r, lookup ? lookup : host ? LOOKUP_TOKENS : 0);
    r->assist_most = drafts_most(r, assist ? assist : pays ? ASSIST_TOKENS : 0);
    r->assist_right = 0.9;
    r->lookup_right = true;
    if (!r->assist_most || (!assist && !dsi_assistant_pays(r->lm))) return true;
    dsi_assistant **kept = &r->session->assistant;
    if (*kept && !dsi_assistant_is_current(*kept)) dsi_assistant_free(*kept), *kept = NULL;
    if (!*kept) *kept = dsi_assistant_new(r->lm);
    r->assistant = *kept;
    if (r->assistant || assist || ds_error_status() != DS_ENOMEM) return r->assistant;
    ds_error_clear();
    return true;
}

/* A decoder, where a step has no drafts and the device has its kernels. The
 * device chooses the most probable tokens itself; false after a failure. */
static bool run_decoder(Run *r)
{
    dsi_lm_decoder **kept = &r->session->decoder;
    if (r->drafts || r->assistant || !dsi_lm_decoder_fits(r->lm, r->cache, r->end)) return true;
    r->on_device = !r->beams && dsi_lm_is_plain(r->o);
    if (!*kept) *kept = dsi_lm_decoder_new(r->lm, r->cache, r->rows);
    r->decoder = *kept;
    return r->decoder && dsi_lm_decoder_begin(r->decoder, r->pads, r->on_device) == DS_OK;
}

/* How many columns of the row's cache have keys and values that its prompt
 * would have, at most n. */
static int64_t prompt_common(const Run *r, const int64_t *prompt, int64_t row, int64_t n)
{
    int64_t i = 0;
    while (i < n && r->ids[row * r->room + i] == prompt[i]) i++;
    return i;
}

/* Copies the prompts and counts their padding on the left: a row of nothing but
 * padding keeps its last token. The last token is always computed. */
static bool run_open(Run *r, ds_tensor *ids)
{
    const int64_t *from = ds_data(ids);
    const int64_t *mask = r->o->attention_mask ? ds_data(r->o->attention_mask) : NULL;
    if (!from || (r->o->attention_mask && !mask)) return false;
    int64_t common = dsi_min(r->session->filled, r->prompt - 1);
    for (int64_t row = 0; row < r->rows; row++) {
        const int64_t first = row / r->times * r->prompt, *prompt = from + first;
        int64_t pad = 0;
        while (mask && pad < r->prompt - 1 && !mask[first + pad]) pad++;
        for (int64_t i = pad; mask && i < r->prompt - 1; i++)
            if (mask[first + i] && !mask[first + i + 1])
                return dsi_invalid("generate: attention_mask: row %lld has padding behind token "
                                   "%lld: expected it on the left",
                                   (long long)(row / r->times), (long long)i);
        common = pad == r->pads[row] ? prompt_common(r, prompt, row, common) : 0;
        memcpy(r->ids + row * r->room, prompt, (size_t)r->prompt * sizeof *prompt);
        r->pads[row] = pad;
        r->padded |= pad > 0;
        r->cache->padding = row ? dsi_min(r->cache->padding, pad) : pad;
    }
    bool turns = dsi_lm_rope_together(r->lm, 0) < r->end - r->cache->padding;
    r->cache->length = turns ? 0 : common;
    return true;
}

/* A row's columns behind its end have keys of any token. Where the row's length
 * changes how keys turn, they are of this call alone. */
static void run_fill(Run *r)
{
    bool turns = dsi_lm_rope_together(r->lm, 0) < r->end - r->cache->padding;
    int64_t filled = turns ? 0 : r->cache->length;
    for (int64_t row = 0; row < r->rows; row++)
        if (r->ended[row]) filled = dsi_min(filled, r->ended[row]);
    r->session->filled = filled;
}

/* Row `row` of the result, of a call that made n tokens. */
static dsi_beam_sequence result_row(const Run *r, int64_t row, int64_t n)
{
    int64_t each = r->o->num_return_sequences ? r->o->num_return_sequences : 1;
    if (r->beams) return *dsi_beams_best(r->beams, row / each, row % each);
    return (dsi_beam_sequence){.ids = r->ids + row * r->room + r->prompt,
                               .n = r->ended[row] ? r->ended[row] - r->prompt : n};
}

static ds_tensor *run_result(const Run *r, int64_t n)
{
    int64_t each = r->o->num_return_sequences ? r->o->num_return_sequences : 1;
    int64_t rows = r->rows / r->times * each, width = 1;
    for (int64_t i = 0; i < rows; i++) width = dsi_max(width, result_row(r, i, n).n);
    ds_tensor *out = dsi_new_host(DS_I64, ds_shape(rows, width));
    int64_t *p = out ? ds_data_mut(out) : NULL;
    for (int64_t i = 0; p && i < rows; i++, p += width) {
        dsi_beam_sequence x = result_row(r, i, n);
        for (int64_t k = 0; k < width; k++) p[k] = k < x.n ? x.ids[k] : r->o->pad_token_id;
        if (r->o->sequences_scores) r->o->sequences_scores[i] = x.score;
        if (r->o->sequence_lengths) r->o->sequence_lengths[i] = x.n;
    }
    return out;
}

/* The model is in evaluation mode and records no graph during the call; both
 * are restored after it, also if it failed. */
ds_tensor *ds_generate_with(ds_module *model, ds_tensor *ids, ds_generate_opts o)
{
    if (!model || !ids) return dsi_null_operand("generate");
    dsi_lm *lm = dsi_lm_of(model);
    if (!o.max_new_tokens) o.max_new_tokens = 20;
    if (!generate_check(lm, ids, &o)) return NULL;
    int64_t prompts = ds_size(ids, 0);
    int64_t times = dsi_max(1, o.num_beams > 1 ? o.num_beams : o.num_return_sequences);
    Run r = {.lm = lm,
             .device = ds_device_of(dsi_lm_embedding_weight(lm->embed)),
             .o = &o,
             .rows = prompts * times,
             .times = times,
             .beams = o.num_beams > 1 ? dsi_beams_new(&o, prompts, lm->config.vocab) : NULL,
             .prompt = ds_size(ids, 1),
             .end = ds_size(ids, 1) + o.max_new_tokens,
             .vocab = lm->config.vocab};
    bool training = ds_module_training(model), recording = ds_set_grad(false);
    ds_module_train(model, false);
    r.session = dsi_lm_session_take(lm, r.rows, r.end, o.cache_prompt);
    r.cache = &r.session->cache, r.room = r.cache->room;
    r.ids = r.session->ids, r.pads = r.session->pads;
    r.ended = dsi_alloc((size_t)r.rows * sizeof *r.ended);
    r.choices = dsi_alloc((size_t)r.vocab * sizeof *r.choices);
    ds_scope *scope = ds_scope_open();
    bool opened = run_open(&r, ids);
    ds_scope_close(scope);
    dsi_lora_hold(lm, true);
    int64_t n = opened && run_drafts(&r) && run_decoder(&r) ? run_all(&r) : -1;
    dsi_lora_hold(lm, false);
    ds_tensor *out = n < 0 ? NULL : run_result(&r, n);
    run_fill(&r);
    dsi_lm_session_keep(lm, r.session, n >= 0, o.cache_prompt);
    dsi_free(r.ended), dsi_free(r.choices), dsi_beams_free(r.beams);
    ds_module_train(model, training);
    ds_set_grad(recording);
    return ds_to(out, ds_device_of(ids), DS_I64);
}
