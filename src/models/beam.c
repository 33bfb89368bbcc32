/* models/beam.c: beam search and beam sampling, with the results of
 * transformers' _beam_search.
 *
 * Each step looks at beams x V continuations of a prompt and takes K of them,
 * K = (stop tokens + 1, at least 2) x beams: those of the largest scores, or
 * drawn without replacement. A score is the sum of the logarithms of the
 * tokens' probabilities, after the processors of choose.c. Continuations that
 * end are sequences, if they are among the first `beams` of the K; the best of
 * the others are the beams of the next step.
 *
 * Drawing K without replacement by weights exp(s) is taking the K largest of
 * s + g, with g = -log(-log u) for each (Kool et al., arXiv:1903.06059).
 *
 * Invariants:
 * - Beams of a prompt are in order of falling scores, and beam i has its tokens
 *   in row slot[i] of the prompt's rows. A beam that continues keeps its row,
 *   and a second continuation of it takes the row of a beam that does not: so
 *   no row is both read and written.
 * - `best` of a prompt is in order of falling scores, those that ended first.
 * - Sums are float32, and -1e9 stands for "cannot be chosen", as in
 *   transformers: what is left where all continuations end at once follows from
 *   that.
 * SPDX-License-Identifier: MIT */
#include "beam.h"

#include "base/error.h"
#include "base/int.h"
#include "base/mem.h"
#include "base/option.h"
#include "base/philox.h"
#include "choose.h"
#include "stop_strings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEVER (-1e9f)

typedef struct Candidate {
    float score;
    double key; /* candidates are taken by it: the score, or the score and a random number */
    int64_t beam, id;
    bool ends;
} Candidate;

struct dsi_beams {
    const ds_generate_opts *o;
    int64_t prompts, beams, vocab, keep; /* keep: K */
    double length_penalty;
    float *running;          /* [prompts,beams]: scores of the beams */
    int64_t *slot;           /* [prompts,beams] */
    bool *open;              /* [prompts]: a running beam may become better than the worst */
    dsi_beam_sequence *best; /* [prompts,beams] */
    Candidate *c;            /* [keep], of one prompt */
    int64_t found;           /* candidates in c */
    dsi_lm_choice *choices;  /* [V] */
};

/* ---- life ---- */

bool dsi_beams_check(const ds_generate_opts *o, int64_t vocab)
{
    int64_t beams = o->num_beams ? o->num_beams : 1;
    int64_t rows = o->num_return_sequences ? o->num_return_sequences : 1;
    if (beams < 1 || beams > 1 << 20 || rows < 1 || rows > 1 << 20)
        return dsi_invalid("generate: num_beams %lld, num_return_sequences %lld: expected 1 or "
                           "more",
                           (long long)beams, (long long)rows);
    if ((int)o->early_stopping < 0 || o->early_stopping > DS_EARLY_STOPPING_NEVER)
        return dsi_invalid("generate: early_stopping is %d: expected a DS_EARLY_STOPPING_ value",
                           (int)o->early_stopping);
    if (rows > 1 && o->cache_prompt)
        return dsi_invalid("generate: cache_prompt keeps the tokens of one row a prompt: leave it "
                           "out, or num_return_sequences %lld",
                           (long long)rows);
    if (beams == 1 && rows > 1 && !dsi_lm_samples(o))
        return dsi_invalid("generate: num_return_sequences is %lld, and greedy tokens are one "
                           "sequence: set do_sample, or num_beams to %lld or more",
                           (long long)rows, (long long)rows);
    if (beams == 1 && o->sequences_scores)
        return dsi_invalid("generate: sequences_scores are those of beams: num_beams is 1");
    if (beams == 1) return true;
    if (rows > beams)
        return dsi_invalid("generate: num_return_sequences is %lld: expected at most num_beams, "
                           "%lld",
                           (long long)rows, (long long)beams);
    if (o->on_token || o->cache_prompt)
        return dsi_invalid("generate: %s with num_beams %lld: tokens of beams are known at the "
                           "end alone: use %s",
                           o->on_token ? "on_token" : "cache_prompt", (long long)beams,
                           o->on_token ? "stopping_criteria, and the result" : "one beam");
    if (!isfinite(o->length_penalty))
        return dsi_invalid("generate: length_penalty is %g", o->length_penalty);
    if (dsi_max(o->n_stop, 1) + 1 > vocab)
        return dsi_invalid("generate: beams need more than the %lld tokens of the vocabulary "
                           "beside %d stop tokens",
                           (long long)vocab, o->n_stop);
    return true;
}

dsi_beams *dsi_beams_new(const ds_generate_opts *o, int64_t prompts, int64_t vocab)
{
    int64_t beams = o->num_beams, rows = prompts * beams;
    dsi_beams *b = dsi_alloc(sizeof *b);
    *b = (dsi_beams){.o = o,
                     .prompts = prompts,
                     .beams = beams,
                     .vocab = vocab,
                     .keep = (dsi_max(o->n_stop, 1) + 1) * beams,
                     .length_penalty = dsi_option(o->length_penalty, 1)};
    b->running = dsi_alloc((size_t)rows * sizeof *b->running);
    b->slot = dsi_alloc((size_t)rows * sizeof *b->slot);
    b->open = dsi_alloc((size_t)prompts * sizeof *b->open);
    b->best = dsi_alloc((size_t)rows * sizeof *b->best);
    b->c = dsi_alloc((size_t)b->keep * sizeof *b->c);
    b->choices = dsi_alloc((size_t)vocab * sizeof *b->choices);
    for (int64_t i = 0; i < prompts; i++) b->open[i] = true;
    for (int64_t i = 0; i < rows; i++) {
        b->running[i] = i % beams ? NEVER : 0; /* the first step has one beam */
        b->slot[i] = i % beams;
        b->best[i] = (dsi_beam_sequence){.score = NEVER};
    }
    return b;
}

void dsi_beams_free(dsi_beams *b)
{
    if (!b) return;
    for (int64_t i = 0; i < b->prompts * b->beams; i++) dsi_free(b->best[i].ids);
    dsi_free(b->running), dsi_free(b->slot), dsi_free(b->open), dsi_free(b->best);
    dsi_free(b->c), dsi_free(b->choices);
    dsi_free(b);
}

int64_t dsi_beams_enough(const dsi_beams *b)
{
    return dsi_lm_is_plain(b->o) ? dsi_min(b->keep, b->vocab) : 0;
}

const dsi_beam_sequence *dsi_beams_best(const dsi_beams *b, int64_t prompt, int64_t i)
{
    return &b->best[prompt * b->beams + i];
}

/* ---- the continuations of a prompt ---- */

/* Keeps x if its key is among the K largest; of equal keys the earlier one. c
 * is in order of falling keys. */
static void candidate_add(dsi_beams *b, Candidate x)
{
    if (b->found == b->keep && !(x.key > b->c[b->found - 1].key)) return;
    int64_t i = b->found < b->keep ? b->found++ : b->found - 1;
    for (; i && x.key > b->c[i - 1].key; i--) b->c[i] = b->c[i - 1];
    b->c[i] = x;
}

/* Word i of a prompt's stream, as a Gumbel variable. */
static double gumbel(const dsi_beams *b, int64_t prompt, int64_t i)
{
    uint32_t word = dsi_philox_word(b->o->seed, (uint64_t)prompt << 32, (uint64_t)i);
    return -log(-log(((double)word + 0.5) / 4294967296.0));
}

static int candidate_order(const void *x, const void *y)
{
    const Candidate *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return (a->key < b->key) - (a->key > b->key);
}

/* Fills choices with the scores of a beam's tokens; how many. row: of all. */
static int64_t choices_of(dsi_beams *b, const dsi_beam_scores *scores, const dsi_beam_rows *rows,
                          int64_t row)
{
    const float *x = scores->log_probs + row * scores->n;
    const int64_t *past = rows->ids + row * rows->room + rows->pads[row];
    int64_t n = rows->at - rows->pads[row], fresh = rows->at - rows->prompt;
    int64_t kept = scores->n;
    for (int64_t i = 0; scores->ids && i < kept; i++)
        b->choices[i] = (dsi_lm_choice){x[i], scores->ids[row * kept + i]};
    if (scores->ids) return kept;
    if (dsi_lm_samples(b->o))
        kept = dsi_lm_choices(x, b->vocab, past, n, fresh, b->o, b->choices);
    else
        dsi_lm_scores(x, b->vocab, past, n, fresh, b->o, b->choices);
    if (b->o->renormalize_logits) dsi_lm_renormalize(b->choices, kept);
    return kept;
}

/* Fills c with K continuations of a prompt, by falling scores. */
static void candidates_find(dsi_beams *b, int64_t prompt, const dsi_beam_scores *scores,
                            const dsi_beam_rows *rows)
{
    bool draws = dsi_lm_samples(b->o);
    int64_t first = prompt * b->beams, fresh = rows->at - rows->prompt;
    b->found = 0;
    for (int64_t beam = 0; beam < b->beams; beam++) {
        int64_t kept = choices_of(b, scores, rows, first + b->slot[first + beam]);
        for (int64_t i = 0; i < kept; i++) {
            float score = b->choices[i].logit + b->running[first + beam];
            int64_t id = b->choices[i].id, word = (fresh * b->beams + beam) * b->vocab + id;
            double noise = draws ? gumbel(b, prompt, word) : 0;
            candidate_add(b, (Candidate){score, (double)score + noise, beam, id, false});
        }
    }
    while (b->found < b->keep) /* fewer can be drawn */
        b->c[b->found++] = (Candidate){-INFINITY, -INFINITY, 0, b->choices[0].id, false};
    if (draws) qsort(b->c, (size_t)b->keep, sizeof *b->c, candidate_order);
}

/* Whether a continuation is complete: a stop token, the last new one, or the
 * caller says so, who sees it in its beam's row. */
static bool candidate_ends(const dsi_beams *b, int64_t prompt, const dsi_beam_rows *rows,
                           const Candidate *c)
{
    const ds_generate_opts *o = b->o;
    int64_t fresh = rows->at - rows->prompt + 1;
    bool ends = fresh >= o->max_new_tokens;
    for (int i = 0; i < o->n_stop; i++) ends |= c->id == o->stop[i];
    if (ends || !(o->stopping_criteria || o->n_stop_strings)) return ends;
    int64_t row = prompt * b->beams + b->slot[prompt * b->beams + c->beam];
    int64_t *ids = rows->ids + row * rows->room, pad = rows->pads[row];
    ids[rows->at] = c->id;
    return (o->n_stop_strings && dsi_lm_stop_string_ends(o, ids + pad, rows->at + 1 - pad)) ||
           (o->stopping_criteria &&
            o->stopping_criteria(o->arg, prompt, ids + rows->prompt, fresh));
}

/* ---- sequences that ended ---- */

static bool all_ended(const dsi_beams *b, int64_t prompt)
{
    for (int64_t i = 0; i < b->beams; i++)
        if (!b->best[prompt * b->beams + i].ended) return false;
    return true;
}

/* Puts a sequence among the prompt's best, if it is better than the worst. */
static void best_add(dsi_beams *b, int64_t prompt, const dsi_beam_rows *rows, const Candidate *c)
{
    dsi_beam_sequence *best = b->best + prompt * b->beams;
    int64_t n = rows->at - rows->prompt, i = b->beams - 1;
    float score = c->score / (float)pow((double)n + 1, b->length_penalty);
    int64_t row = prompt * b->beams + b->slot[prompt * b->beams + c->beam];
    if (!(score > best[i].score)) return;
    int64_t *ids = best[i].ids;
    if (!ids) ids = dsi_alloc((size_t)b->o->max_new_tokens * sizeof *ids);
    for (; i && score > best[i - 1].score; i--) best[i] = best[i - 1];
    memcpy(ids, rows->ids + row * rows->room + rows->prompt, (size_t)n * sizeof *ids);
    ids[n] = c->id;
    best[i] = (dsi_beam_sequence){ids, n + 1, score, true};
}

/* Whether a running beam may still become better than the worst sequence:
 * transformers' _check_early_stop_heuristic. */
static bool may_improve(const dsi_beams *b, int64_t prompt, int64_t fresh)
{
    const dsi_beam_sequence *best = b->best + prompt * b->beams;
    bool never = b->o->early_stopping == DS_EARLY_STOPPING_NEVER && b->length_penalty > 0;
    double length = never ? (double)b->o->max_new_tokens : (double)fresh;
    float possible = b->running[prompt * b->beams] / (float)pow(length, b->length_penalty);
    return possible > (all_ended(b, prompt) ? best[b->beams - 1].score : NEVER);
}

/* ---- the beams of the next step ---- */

/* The `beams` best candidates, where those that ended count 1e9 less, stay in
 * c's front in that order, with such scores. */
static void candidates_select(dsi_beams *b)
{
    for (int64_t i = 0; i < b->keep; i++)
        if (b->c[i].ends) b->c[i].score += NEVER;
    for (int64_t i = 0; i < b->beams; i++) {
        int64_t first = i;
        for (int64_t k = i + 1; k < b->keep; k++)
            if (b->c[k].score > b->c[first].score) first = k;
        Candidate x = b->c[first];
        memmove(b->c + i + 1, b->c + i, (size_t)(first - i) * sizeof x);
        b->c[i] = x;
    }
}

/* The first column behind the prompt in which two rows differ. */
static int64_t first_difference(const dsi_beam_rows *rows, int64_t x, int64_t y)
{
    int64_t i = rows->prompt;
    while (i < rows->at && rows->ids[x * rows->room + i] == rows->ids[y * rows->room + i]) i++;
    return i;
}

/* The candidates in c's front become the prompt's beams. Returns how many rows
 * were copied. */
static int64_t beams_advance(dsi_beams *b, int64_t prompt, const dsi_beam_rows *rows,
                             dsi_row_copy *copies)
{
    int64_t base = prompt * b->beams, n = 0, free = 0;
    int64_t *slot = b->slot + base, *next = dsi_alloc((size_t)b->beams * sizeof *next);
    bool *used = dsi_alloc((size_t)b->beams * sizeof *used); /* a row that is kept */
    for (int64_t i = 0; i < b->beams; i++) {
        int64_t row = slot[b->c[i].beam];
        next[i] = used[row] ? -1 : row;
        used[row] = true;
    }
    for (int64_t i = 0; i < b->beams; i++) {
        if (next[i] >= 0) continue;
        while (used[free]) free++;
        used[free] = true;
        next[i] = free;
        int64_t to = base + free, source = base + slot[b->c[i].beam];
        int64_t from = first_difference(rows, to, source);
        memcpy(rows->ids + to * rows->room + from, rows->ids + source * rows->room + from,
               (size_t)(rows->at - from) * sizeof *rows->ids);
        if (from < rows->at) copies[n++] = (dsi_row_copy){to, source, from};
    }
    for (int64_t i = 0; i < b->beams; i++) {
        slot[i] = next[i];
        b->running[base + i] = b->c[i].score;
        rows->ids[(base + next[i]) * rows->room + rows->at] = b->c[i].id;
    }
    dsi_free(next), dsi_free(used);
    return n;
}

/* The search continues while a prompt may improve, one has not all its
 * sequences (if that ends it), and not all continuations ended. */
bool dsi_beams_step(dsi_beams *b, dsi_beam_scores scores, dsi_beam_rows rows, dsi_row_copy *copies,
                    int64_t *n)
{
    bool early = b->o->early_stopping == DS_EARLY_STOPPING_TRUE;
    bool improve = false, unfinished = false, valid = false;
    int64_t fresh = rows.at - rows.prompt;
    *n = 0;
    for (int64_t p = 0; p < b->prompts; p++) {
        candidates_find(b, p, &scores, &rows);
        bool closed = !b->open[p] || (early && all_ended(b, p));
        for (int64_t i = 0; i < b->keep; i++) {
            b->c[i].ends = candidate_ends(b, p, &rows, &b->c[i]);
            valid |= !b->c[i].ends;
        }
        for (int64_t i = 0; i < b->beams && !closed; i++)
            if (b->c[i].ends) best_add(b, p, &rows, &b->c[i]);
        candidates_select(b);
        *n += beams_advance(b, p, &rows, copies + *n);
        b->open[p] = b->open[p] && may_improve(b, p, fresh + 1);
        improve |= b->open[p];
        unfinished |= !all_ended(b, p);
    }
    return improve && (unfinished || !early) && valid;
}
