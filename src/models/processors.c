/* models/processors.c: what changes the scores of tokens, greedy or drawn:
 * transformers' logits processors without its warpers, which are in choose.c.
 *
 * Source: generation/logits_process.py of transformers 5.24. The prompt stands
 * for its encoder_input_ids, as in models that have no encoder. Padding is no
 * part of a row.
 * SPDX-License-Identifier: MIT */
#include "processors.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/option.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A row: its scores, by id, and its tokens, of which the last `fresh` are
 * new. */
typedef struct Row {
    dsi_lm_choice *c; /* [vocab] */
    int64_t vocab;
    const int64_t *past; /* [n] */
    int64_t n, fresh;
    const ds_generate_opts *o;
} Row;

static bool is_token(const Row *r, int64_t id) { return id >= 0 && id < r->vocab; }

static void bar(const Row *r, int64_t id)
{
    if (is_token(r, id)) r->c[id].logit = -INFINITY;
}

static void bar_all(const Row *r, ds_token_ids list)
{
    for (int64_t i = 0; i < list.n; i++) bar(r, list.ids[i]);
}

static void bar_stop(const Row *r) { bar_all(r, (ds_token_ids){r->o->stop, r->o->n_stop}); }

static bool same_ids(const int64_t *x, const int64_t *y, int64_t n)
{
    return n <= 0 || !memcmp(x, y, (size_t)n * sizeof *x);
}

/* ---- tokens that the row has ---- */

/* Each of `among` tokens of the row counts once: positive scores are divided,
 * others multiplied, since dividing a negative one would make the token more
 * probable (Keskar et al., arXiv:1909.05858). An id is negative while its token
 * has been counted. */
static void penalise(const Row *r, int64_t among, double penalty)
{
    for (int64_t i = 0; i < among && penalty != 1; i++) {
        if (!is_token(r, r->past[i])) continue;
        dsi_lm_choice *c = &r->c[r->past[i]];
        if (c->id < 0) continue;
        c->logit = c->logit < 0 ? c->logit * (float)penalty : c->logit / (float)penalty;
        c->id = -1;
    }
    for (int64_t i = 0; i < among && penalty != 1; i++)
        if (is_token(r, r->past[i])) r->c[r->past[i]].id = r->past[i];
}

/* Where the last size - 1 tokens were among the first `among` of the row, the
 * one that followed them there cannot come. */
static void bar_ngrams(const Row *r, int64_t among, int64_t size)
{
    for (int64_t i = 0; size && i + size <= among; i++)
        if (same_ids(r->past + i, r->past + r->n - (size - 1), size - 1))
            bar(r, r->past[i + size - 1]);
}

/* ---- sequences ---- */

/* Whether the row ends with all tokens of a sequence but its last. */
static bool may_complete(const Row *r, ds_token_ids sequence)
{
    int64_t n = sequence.n - 1;
    return n <= r->n && same_ids(sequence.ids, r->past + r->n - n, n);
}

/* A sequence that is there again later has that bias: transformers' are the
 * keys of a dict. */
static bool is_replaced(const ds_generate_opts *o, int64_t i)
{
    ds_token_ids x = o->sequence_bias[i].sequence;
    for (int64_t k = i + 1; k < o->n_sequence_bias; k++) {
        ds_token_ids y = o->sequence_bias[k].sequence;
        if (y.n == x.n && same_ids(x.ids, y.ids, x.n)) return true;
    }
    return false;
}

/* Biases of single tokens, then those of longer sequences, are summed before
 * they are added. */
static void bias_sequences(const Row *r)
{
    const ds_generate_opts *o = r->o;
    if (!o->n_sequence_bias) return;
    float *bias = dsi_alloc((size_t)r->vocab * sizeof *bias);
    for (int64_t i = 0; i < o->n_sequence_bias; i++) {
        ds_token_ids x = o->sequence_bias[i].sequence;
        if (x.n == 1) bias[x.ids[0]] = (float)o->sequence_bias[i].bias;
    }
    for (int64_t i = 0; i < o->n_sequence_bias; i++) {
        ds_token_ids x = o->sequence_bias[i].sequence;
        if (x.n > 1 && may_complete(r, x) && !is_replaced(o, i))
            bias[x.ids[x.n - 1]] += (float)o->sequence_bias[i].bias;
    }
    for (int64_t i = 0; i < r->vocab; i++) r->c[i].logit += bias[i];
    dsi_free(bias);
}

/* A word that is a stop token alone does not count. */
static void bar_words(const Row *r)
{
    const ds_generate_opts *o = r->o;
    for (int64_t i = 0; i < o->n_bad_words_ids; i++) {
        ds_token_ids x = o->bad_words_ids[i];
        bool stops = false;
        for (int k = 0; k < o->n_stop && x.n == 1; k++) stops |= x.ids[0] == o->stop[k];
        if (!stops && may_complete(r, x)) r->c[x.ids[x.n - 1]].logit += -INFINITY;
    }
}

/* ---- lengths ---- */

static bool is_too_short(const Row *r)
{
    if (r->o->min_new_tokens) return r->fresh < r->o->min_new_tokens;
    return r->n < r->o->min_length;
}

static void force(const Row *r, ds_token_ids list)
{
    for (int64_t i = 0; i < r->vocab; i++) r->c[i].logit = -INFINITY;
    for (int64_t i = 0; i < list.n; i++) r->c[list.ids[i]].logit = 0;
}

/* Behind `start` new tokens, stop tokens gain |score| (factor^k - 1), k = 1, 2,
 * ... */
static void favour_stop(const Row *r)
{
    ds_length_decay d = r->o->exponential_decay_length_penalty;
    if (d.factor == 0 || r->fresh <= d.start) return;
    float gain = (float)(pow(dsi_option(d.factor, 0), (double)r->fresh - (double)d.start) - 1);
    for (int i = 0; i < r->o->n_stop; i++) {
        int64_t id = r->o->stop[i];
        bool again = false;
        for (int k = 0; k < i; k++) again |= r->o->stop[k] == id;
        if (again || !is_token(r, id) || !isfinite(r->c[id].logit)) continue;
        r->c[id].logit += fabsf(r->c[id].logit) * gain;
    }
}

static void remove_invalid(const Row *r)
{
    for (int64_t i = 0; i < r->vocab; i++) {
        float x = r->c[i].logit;
        if (!isfinite(x)) r->c[i].logit = isnan(x) ? 0 : x > 0 ? FLT_MAX : -FLT_MAX;
    }
}

/* ---- all of them ---- */

void dsi_lm_scores(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                   int64_t fresh, const ds_generate_opts *o, dsi_lm_choice *c)
{
    const Row r = {c, vocab, past, n, fresh, o};
    int64_t prompt = n - fresh, begin = prompt == 1 && o->forced_bos_token_id.n ? 1 : 0;
    for (int64_t i = 0; i < vocab; i++) c[i] = (dsi_lm_choice){logits[i], i};
    bias_sequences(&r);
    penalise(&r, prompt, 1 / dsi_option(o->encoder_repetition_penalty, 1));
    penalise(&r, n, dsi_option(o->repetition_penalty, 1));
    bar_ngrams(&r, n, o->no_repeat_ngram_size);
    bar_ngrams(&r, prompt, o->encoder_no_repeat_ngram_size);
    bar_words(&r);
    if (is_too_short(&r)) bar_stop(&r);
    if (n == 1 && o->forced_bos_token_id.n) force(&r, o->forced_bos_token_id);
    if (fresh == o->max_new_tokens - 1 && o->forced_eos_token_id.n)
        force(&r, o->forced_eos_token_id);
    if (o->remove_invalid_values) remove_invalid(&r);
    favour_stop(&r);
    bar_all(&r, o->suppress_tokens);
    if (fresh == begin) bar_all(&r, o->begin_suppress_tokens);
}

bool dsi_lm_processes(const ds_generate_opts *o)
{
    return o->n_sequence_bias || dsi_option(o->encoder_repetition_penalty, 1) != 1 ||
           dsi_option(o->repetition_penalty, 1) != 1 || o->no_repeat_ngram_size ||
           o->encoder_no_repeat_ngram_size || o->n_bad_words_ids || o->min_length ||
           o->min_new_tokens || o->forced_bos_token_id.n || o->forced_eos_token_id.n ||
           o->remove_invalid_values || o->exponential_decay_length_penalty.factor != 0 ||
           o->suppress_tokens.n || o->begin_suppress_tokens.n;
}

/* ---- what is refused ---- */

/* Whether there is a list of n elements, at least `least`; else false, with the
 * message. */
static bool list_check(const char *who, const char *key, const void *list, int64_t n, int64_t least)
{
    if (n > 0 && !list)
        return dsi_invalid("%s: %s is NULL: expected a list of %lld", who, key, (long long)n);
    if (n >= least) return true;
    return dsi_invalid("%s: %s has a list of %lld: expected %lld or more", who, key, (long long)n,
                       (long long)least);
}

/* The same of ids that are tokens of the model. */
static bool ids_check(const char *who, const char *key, ds_token_ids list, int64_t least,
                      int64_t vocab)
{
    if (!list_check(who, key, list.ids, list.n, least)) return false;
    for (int64_t i = 0; i < list.n; i++)
        if (list.ids[i] < 0 || list.ids[i] >= vocab)
            return dsi_invalid("%s: %s has %lld: expected tokens of the model, 0 to %lld", who, key,
                               (long long)list.ids[i], (long long)vocab - 1);
    return true;
}

static bool sequences_check(const char *who, const ds_generate_opts *o, int64_t vocab)
{
    if (!list_check(who, "bad_words_ids", o->bad_words_ids, o->n_bad_words_ids, 0) ||
        !list_check(who, "sequence_bias", o->sequence_bias, o->n_sequence_bias, 0))
        return false;
    for (int64_t i = 0; i < o->n_bad_words_ids; i++)
        if (!ids_check(who, "bad_words_ids", o->bad_words_ids[i], 1, vocab)) return false;
    for (int64_t i = 0; i < o->n_sequence_bias; i++) {
        if (!ids_check(who, "sequence_bias", o->sequence_bias[i].sequence, 1, vocab)) return false;
        if (isnan(o->sequence_bias[i].bias))
            return dsi_invalid("%s: sequence_bias has a bias that is no number", who);
    }
    return true;
}

/* Where all forced tokens are suppressed, no token is left. */
static bool force_check(const char *who, const char *key, ds_token_ids forced,
                        const ds_generate_opts *o, int64_t vocab)
{
    if (!ids_check(who, key, forced, 0, vocab)) return false;
    int64_t left = forced.n;
    for (int64_t i = 0; i < forced.n; i++) {
        bool suppressed = false;
        for (int64_t k = 0; k < o->suppress_tokens.n; k++)
            suppressed |= o->suppress_tokens.ids[k] == forced.ids[i];
        left -= suppressed;
    }
    if (!forced.n || left) return true;
    return dsi_invalid("%s: %s: all of its %lld tokens are suppress_tokens: expected another one",
                       who, key, (long long)forced.n);
}

bool dsi_lm_check_processors(const char *who, const ds_generate_opts *o, int64_t vocab)
{
    double penalty = dsi_option(o->repetition_penalty, 1),
           encoder = dsi_option(o->encoder_repetition_penalty, 1);
    const ds_length_decay *decay = &o->exponential_decay_length_penalty;
    if (!(penalty > 0 && encoder > 0))
        return dsi_invalid("%s: repetition_penalty %g, encoder_repetition_penalty %g: expected "
                           "more than 0",
                           who, penalty, encoder);
    if (o->no_repeat_ngram_size < 0 || o->encoder_no_repeat_ngram_size < 0 ||
        o->min_new_tokens < 0 || o->min_length < 0)
        return dsi_invalid("%s: no_repeat_ngram_size %lld, encoder_no_repeat_ngram_size %lld, "
                           "min_new_tokens %lld, min_length %lld: expected 0 or more",
                           who, (long long)o->no_repeat_ngram_size,
                           (long long)o->encoder_no_repeat_ngram_size, (long long)o->min_new_tokens,
                           (long long)o->min_length);
    if (!(decay->factor >= 0) || isinf(decay->factor))
        return dsi_invalid("%s: exponential_decay_length_penalty has the factor %g: expected 0 or "
                           "more",
                           who, decay->factor);
    ds_token_ids never = o->suppress_tokens, first = o->begin_suppress_tokens;
    return sequences_check(who, o, vocab) &&
           list_check(who, "suppress_tokens", never.ids, never.n, 0) &&
           list_check(who, "begin_suppress_tokens", first.ids, first.n, 0) &&
           force_check(who, "forced_bos_token_id", o->forced_bos_token_id, o, vocab) &&
           force_check(who, "forced_eos_token_id", o->forced_eos_token_id, o, vocab);
}
