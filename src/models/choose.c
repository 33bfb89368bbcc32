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

/* Tokens that top-h looks at, as in transformers. */
#define TOP_H_MOST 100

/* By falling logit; of equal ones the smaller id first, as a stable sort gives. */
static int choice_order(const void *a, const void *b)
{
    const dsi_lm_choice *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
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
        all += e;
        if (e > 0) weighted += e * (double)(c[i].logit - c[0].logit);
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

/* How many of n sorted choices have `share` of the entropy, at least one
 * (top-H, arXiv:2509.02510). */
static int64_t informative(const dsi_lm_choice *c, int64_t n, double share)
{
    double all = terms(c, n, NULL), entropy = 0, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n; i++) {
            double p = term(c, i) / all, h = p > 0 ? -p * log(p) : 0;
            if (!pass) entropy += h;
            if (pass && (sum += h) > share * entropy && i) return i;
        }
    }
    return n;
}

/* The choices that the largest logits leave, sorted to the front: top-h, then
 * top-k of at least k. */
static int64_t choices_largest(dsi_lm_choice *c, int64_t vocab, double top_h, int64_t k)
{
    int64_t most = top_h > 0 ? TOP_H_MOST : k, kept = 0;
    float least = most < vocab ? logit_rank(c, vocab, most) : -INFINITY;
    for (int64_t i = 0; i < vocab; i++)
        if (c[i].logit >= least && c[i].logit > -INFINITY) c[kept++] = c[i];
    qsort(c, (size_t)kept, sizeof *c, choice_order);
    if (top_h <= 0 || !kept) return kept;
    int64_t n = informative(c, dsi_min(kept, TOP_H_MOST), top_h);
    for (kept = dsi_min(k, n); kept < n && c[kept].logit == c[k - 1].logit;) kept++;
    return kept;
}

/* The order of transformers: processors, temperature, top-h, top-k, top-p,
 * min-p, typical-p, epsilon, eta. top_k 0 is the default, 50, and below
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
    int64_t least_kept = o->num_beams > 1 ? dsi_max(o->n_stop, 1) + 1 : 1, kept;
    int64_t k = o->top_k < 0 ? vocab : dsi_max(o->top_k ? o->top_k : 50, least_kept);
    if (!(kept = choices_largest(c, vocab, o->top_h, k))) return 1;
    least_kept = dsi_min(least_kept, kept);
    if (top_p < 1) kept = dsi_max(nucleus(c, kept, top_p), least_kept);
    if (o->min_p > 0) kept = dsi_max(probable(c, kept, o->min_p), least_kept);
    if (o->typical_p > 0 && o->typical_p < 1) kept = typical(c, kept, o->typical_p, least_kept);
    if (o->epsilon_cutoff > 0) kept = dsi_max(above(c, kept, o->epsilon_cutoff, false), least_kept);
    if (o->eta_cutoff > 0) kept = dsi_max(above(c, kept, o->eta_cutoff, true), least_kept);
    return kept;
}

void dsi_lm_renormalize(dsi_lm_choice *c, int64_t n)
{
    float most = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, c[i].logit);
    for (int64_t i = 0; i < n; i++) sum += exp((double)(c[i].logit - most));
    for (int64_t i = 0; i < n && most > -INFINITY; i++) c[i].logit -= most + (float)log(sum);
}

bool dsi_lm_check_choice(const char *who, const ds_generate_opts *o, int64_t vocab)
{
    if (!(o->min_p >= 0 && o->min_p <= 1 && o->typical_p >= 0 && o->typical_p <= 1 &&
          o->top_h >= 0 && o->top_h <= 1))
        return dsi_invalid("%s: min_p %g, typical_p %g, top_h %g: expected 0 to 1", who, o->min_p,
                           o->typical_p, o->top_h);
    if (!(o->epsilon_cutoff >= 0 && o->epsilon_cutoff < 1 && o->eta_cutoff >= 0 &&
          o->eta_cutoff < 1))
        return dsi_invalid("%s: epsilon_cutoff %g, eta_cutoff %g: expected at least 0 and below 1",
                           who, o->epsilon_cutoff, o->eta_cutoff);
    if (o->top_k < -1)
        return dsi_invalid("%s: top_k is %lld: expected -1 or more", who, (long long)o->top_k);
    if (!(o->temperature >= 0 && o->top_p >= 0 && o->top_p <= 1) || o->n_stop < 0 ||
        o->n_stop > DS_MAX_STOP_TOKENS)
        return dsi_invalid("%s: temperature %g, top_p %g, %d stop tokens: expected 0 or more, 0 to "
                           "1, 0 to %d",
                           who, o->temperature, o->top_p, o->n_stop, DS_MAX_STOP_TOKENS);
    for (int i = 0; i < o->n_stop; i++)
        if (o->stop[i] < 0 || o->stop[i] >= vocab)
            return dsi_invalid("%s: stop token %d is %lld: expected 0 to %lld, the last of the "
                               "vocabulary",
                               who, i, (long long)o->stop[i], (long long)vocab - 1);
    return dsi_lm_check_processors(who, o, vocab);
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
    return !dsi_lm_samples(o) && !dsi_lm_processes(o);
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
