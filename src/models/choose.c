/* models/choose.c: the token that follows a row: the distribution of the
 * logits, and the choice from it.
 *
 * Sampling has no state: word n of a row depends on seed, row and n alone, so
 * that a row's tokens depend neither on the other rows nor on their number.
 * SPDX-License-Identifier: MIT */
#include "choose.h"

#include "base/error.h"
#include "base/int.h"
#include "base/mem.h"
#include "base/option.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>

/* By falling logit; of equal ones the smaller id first, as a stable sort gives. */
static int choice_order(const void *a, const void *b)
{
    const dsi_lm_choice *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Each token of past counts once: positive logits are divided, others
 * multiplied. Keskar et al., arXiv:1909.05858, as transformers'
 * RepetitionPenaltyLogitsProcessor: dividing a negative logit would make the
 * token more probable. The value is computed from the logit itself, so a token
 * that occurs twice is not penalised twice. Ids outside of the vocabulary are
 * skipped. */
static void penalise(dsi_lm_choice *c, const float *logits, int64_t vocab, const int64_t *past,
                     int64_t n, double penalty)
{
    for (int64_t i = 0; i < n && penalty != 1; i++) {
        if (past[i] < 0 || past[i] >= vocab) continue;
        float x = logits[past[i]];
        c[past[i]].logit = x < 0 ? x * (float)penalty : x / (float)penalty;
    }
}

/* Where the last size - 1 tokens were in the row before, the one that followed
 * them cannot come again: transformers' NoRepeatNGramLogitsProcessor. */
static void bar_ngrams(dsi_lm_choice *c, int64_t vocab, const int64_t *past, int64_t n,
                       int64_t size)
{
    if (!size || n < size) return;
    const int64_t *last = past + n - (size - 1);
    for (int64_t i = 0; i + size <= n; i++) {
        int64_t id = past[i + size - 1];
        bool same = id >= 0 && id < vocab;
        for (int64_t k = 0; k < size - 1 && same; k++) same = past[i + k] == last[k];
        if (same) c[id].logit = -INFINITY;
    }
}

/* Stop tokens cannot come: transformers' MinNewTokensLengthLogitsProcessor. */
static void bar_stop(dsi_lm_choice *c, int64_t vocab, const ds_generate_opts *o)
{
    for (int i = 0; i < o->n_stop; i++)
        if (o->stop[i] >= 0 && o->stop[i] < vocab) c[o->stop[i]].logit = -INFINITY;
}

/* The logits that greedy choices see too, in the order of transformers. */
void dsi_lm_scores(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                   int64_t fresh, const ds_generate_opts *o, dsi_lm_choice *c)
{
    for (int64_t i = 0; i < vocab; i++) c[i] = (dsi_lm_choice){logits[i], i};
    penalise(c, logits, vocab, past, n, dsi_option(o->repetition_penalty, 1));
    bar_ngrams(c, vocab, past, n, o->no_repeat_ngram_size);
    if (fresh < o->min_new_tokens) bar_stop(c, vocab, o);
}

/* The k-th largest logit of n choices; 0 < k <= n. A heap of k takes n log k
 * comparisons, where sorting the vocabulary takes n log n. The root is the
 * least of the k, so one comparison rejects most logits. Equal logits at the
 * boundary are all kept by the caller, as in transformers, which removes only
 * those below it. */
static float logit_rank(const dsi_lm_choice *c, int64_t n, int64_t k)
{
    float *heap = dsi_alloc((size_t)k * sizeof *heap); /* the k largest, the least one first */
    int64_t filled = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = c[i].logit;
        int64_t at = 0;
        if (filled < k) {
            for (at = filled++; at && heap[(at - 1) / 2] > x; at = (at - 1) / 2)
                heap[at] = heap[(at - 1) / 2];
        } else if (x > heap[0]) {
            for (int64_t child; (child = 2 * at + 1) < k; at = child) {
                child += child + 1 < k && heap[child + 1] < heap[child];
                if (heap[child] >= x) break;
                heap[at] = heap[child];
            }
        } else {
            continue;
        }
        heap[at] = x;
    }
    float least = heap[0];
    dsi_free(heap);
    return least;
}

/* exp(logit - that of the first one): a choice's probability times a common
 * factor. The first logit is the largest, so it cannot overflow. */
static double term(const dsi_lm_choice *c, int64_t i)
{
    return exp((double)(c[i].logit - c[0].logit));
}

/* The sum of the terms of n sorted choices; *entropy, unless NULL: of their
 * distribution, in nats. */
static double terms(const dsi_lm_choice *c, int64_t n, double *entropy)
{
    double all = 0, weighted = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = term(c, i);
        all += e, weighted += e * (double)(c[i].logit - c[0].logit);
    }
    if (entropy) *entropy = log(all) - weighted / all;
    return all;
}

/* How many of n sorted choices have probability p together, at least one
 * (Holtzman et al., arXiv:1904.09751). Choices are sorted by falling logit. */
static int64_t nucleus(const dsi_lm_choice *c, int64_t n, double p)
{
    double all = terms(c, n, NULL), sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i && sum >= p * all) return i;
        sum += term(c, i);
    }
    return n;
}

/* How many of n sorted choices have at least p times the probability of the
 * first (Nguyen et al., arXiv:2407.01082). */
static int64_t probable(const dsi_lm_choice *c, int64_t n, double p)
{
    int64_t i = 1;
    while (i < n && term(c, i) >= p) i++;
    return i;
}

typedef struct Surprise {
    double distance, p; /* of the information -log p from the entropy */
} Surprise;

static int surprise_order(const void *a, const void *b)
{
    const Surprise *x = a, *y = b;
    return (x->distance > y->distance) - (x->distance < y->distance);
}

/* Of n sorted choices those whose information is nearest to the entropy, the
 * fewest that have probability `mass` together, and at least `least`, stay in
 * their order; how many (Meister et al., arXiv:2202.00666). */
static int64_t typical(dsi_lm_choice *c, int64_t n, double mass, int64_t least)
{
    double entropy, log_all = log(terms(c, n, &entropy)), first = c[0].logit, sum;
    Surprise *in_place = dsi_alloc(2 * (size_t)n * sizeof *in_place), *s = in_place + n;
    for (int64_t i = 0; i < n; i++) {
        double information = log_all - ((double)c[i].logit - first);
        s[i] = in_place[i] = (Surprise){fabs(information - entropy), exp(-information)};
    }
    qsort(s, (size_t)n, sizeof *s, surprise_order);
    int64_t last = 0, kept = 0;
    for (sum = s[0].p; sum < mass && last < n - 1; sum += s[last].p) last++;
    double farthest = s[dsi_max(last, least - 1)].distance;
    for (int64_t i = 0; i < n; i++)
        if (in_place[i].distance <= farthest) c[kept++] = c[i];
    dsi_free(in_place);
    return kept;
}

/* How many of n sorted choices have at least that probability: epsilon, or, if
 * eta, the smaller one of it and sqrt(epsilon) exp(-entropy) (Hewitt et al.,
 * arXiv:2210.15191). */
static int64_t above(const dsi_lm_choice *c, int64_t n, double epsilon, bool eta)
{
    double entropy, all = terms(c, n, &entropy);
    int64_t i = 0;
    if (eta) epsilon = fmin(epsilon, sqrt(epsilon) * exp(-entropy));
    while (i < n && term(c, i) / all >= epsilon) i++;
    return i;
}

/* The order of transformers: penalty, n-grams, stop tokens, temperature, top-k,
 * top-p, min-p, typical-p, epsilon, eta. top_k 0 is the default, 50, and below
 * 0 no limit. A beam keeps a token that does not end it, so one more than there
 * are stop tokens (min_tokens_to_keep). If no logit is a number, or all are
 * barred, the first choice is returned alone, so that a caller need not handle
 * zero choices. */
int64_t dsi_lm_choices(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                       int64_t fresh, const ds_generate_opts *o, dsi_lm_choice *c)
{
    double temperature = dsi_option(o->temperature, 1), top_p = dsi_option(o->top_p, 1);
    dsi_lm_scores(logits, vocab, past, n, fresh, o, c);
    for (int64_t i = 0; i < vocab; i++) c[i].logit /= (float)temperature;
    int64_t least_kept = o->num_beams > 1 ? dsi_max(o->n_stop, 1) + 1 : 1, kept = 0;
    int64_t k = o->top_k < 0 ? vocab : dsi_max(o->top_k ? o->top_k : 50, least_kept);
    float least = k < vocab ? logit_rank(c, vocab, k) : -INFINITY;
    for (int64_t i = 0; i < vocab; i++)
        if (c[i].logit >= least && c[i].logit > -INFINITY) c[kept++] = c[i];
    if (!kept) return 1;
    qsort(c, (size_t)kept, sizeof *c, choice_order);
    least_kept = dsi_min(least_kept, kept);
    if (top_p < 1) kept = dsi_max(nucleus(c, kept, top_p), least_kept);
    if (o->min_p > 0) kept = dsi_max(probable(c, kept, o->min_p), least_kept);
    if (o->typical_p > 0 && o->typical_p < 1) kept = typical(c, kept, o->typical_p, least_kept);
    if (o->epsilon_cutoff > 0) kept = dsi_max(above(c, kept, o->epsilon_cutoff, false), least_kept);
    if (o->eta_cutoff > 0) kept = dsi_max(above(c, kept, o->eta_cutoff, true), least_kept);
    return kept;
}

bool dsi_lm_check_choice(const ds_generate_opts *o)
{
    if (o->min_p < 0 || o->min_p > 1 || o->no_repeat_ngram_size < 0 || o->min_new_tokens < 0)
        return dsi_invalid("generate: min_p %g, no_repeat_ngram_size %lld, min_new_tokens %lld: "
                           "expected 0 to 1, 0 or more, 0 or more",
                           o->min_p, (long long)o->no_repeat_ngram_size,
                           (long long)o->min_new_tokens);
    if (!(o->typical_p >= 0 && o->typical_p <= 1 && o->epsilon_cutoff >= 0 &&
          o->epsilon_cutoff < 1 && o->eta_cutoff >= 0 && o->eta_cutoff < 1))
        return dsi_invalid("generate: typical_p %g, epsilon_cutoff %g, eta_cutoff %g: expected 0 "
                           "to 1, and at least 0 and below 1",
                           o->typical_p, o->epsilon_cutoff, o->eta_cutoff);
    if (o->temperature < 0 || o->top_p < 0 || o->top_p > 1 || o->repetition_penalty < 0 ||
        o->repetition_penalty == DS_ZERO || o->n_stop < 0 || o->n_stop > DS_MAX_STOP_TOKENS)
        return dsi_invalid("generate: temperature %g, top_p %g, repetition_penalty %g, %d stop "
                           "tokens: one is out of its range",
                           o->temperature, o->top_p, o->repetition_penalty, o->n_stop);
    return true;
}

/* The most probable token; the first of equals. */
static int64_t choose_greedy(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                             int64_t fresh, const ds_generate_opts *o, dsi_lm_choice *c)
{
    int64_t best = 0;
    dsi_lm_scores(logits, vocab, past, n, fresh, o, c);
    for (int64_t i = 1; i < vocab; i++)
        if (c[i].logit > c[best].logit) best = i;
    return best;
}

/* Logits divided by less than this may be infinite. It gives all probability to
 * the largest logit. */
#define LEAST_TEMPERATURE 1e-30

bool dsi_lm_samples(const ds_generate_opts *o)
{
    return o->do_sample && dsi_option(o->temperature, 1) >= LEAST_TEMPERATURE;
}

bool dsi_lm_is_plain(const ds_generate_opts *o)
{
    return !dsi_lm_samples(o) && dsi_option(o->repetition_penalty, 1) == 1 &&
           !o->no_repeat_ngram_size && !o->min_new_tokens;
}

/* Sampling draws word n of the row's own stream. The word becomes a number
 * within (0, 1), never 0 or 1; the first choice whose cumulated probability
 * exceeds it is drawn. */
int64_t dsi_lm_choose(const float *logits, int64_t vocab, const int64_t *past, int64_t n,
                      int64_t fresh, const ds_generate_opts *o, int64_t row, dsi_lm_choice *c)
{
    if (!dsi_lm_samples(o)) return choose_greedy(logits, vocab, past, n, fresh, o, c);
    int64_t kept = dsi_lm_choices(logits, vocab, past, n, fresh, o, c);
    uint32_t word = dsi_philox_word(o->seed, (uint64_t)row << 32, (uint64_t)n);
    double all = terms(c, kept, NULL), at = ((double)word + 0.5) / 4294967296.0, sum = 0;
    for (int64_t i = 0; i < kept; i++) {
        sum += term(c, i);
        if (at * all < sum) return c[i].id;
    }
    return c[kept - 1].id;
}
