/* tests/reference/lm_beams.c: beam search and beam sampling of transformers:
 * tokens and scores.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

/* make_lm_beams.py's stopping criteria. */
static bool ends_by(void *arg, int64_t row, const int64_t *ids, int64_t n)
{
    const int64_t *by = arg;
    (void)row;
    return (ids[n - 1] * 31 + n * 7) % *by == 0;
}

static double option(const json_t *c, const char *key)
{
    double x = reference_double(c, key, 0);
    return x == 0 && json_object_get(c, key) ? DS_ZERO : x;
}

static ds_generate_opts options_of(const json_t *c, int64_t most)
{
    const json_t *early = json_object_get(c, "early_stopping");
    const json_t *stops = json_object_get(c, "eos_token_id");
    ds_generate_opts o = {.max_new_tokens = most,
                          .pad_token_id = 3,
                          .seed = (uint64_t)reference_int(c, "seed", 0),
                          .num_beams = reference_int(c, "num_beams", 0),
                          .num_return_sequences = reference_int(c, "num_return_sequences", 0),
                          .length_penalty = option(c, "length_penalty"),
                          .repetition_penalty = option(c, "repetition_penalty"),
                          .no_repeat_ngram_size = reference_int(c, "no_repeat_ngram_size", 0),
                          .min_new_tokens = reference_int(c, "min_new_tokens", 0),
                          .do_sample = json_is_true(json_object_get(c, "do_sample")),
                          .temperature = option(c, "temperature"),
                          .top_k = reference_int(c, "top_k", 0),
                          .top_p = option(c, "top_p"),
                          .min_p = reference_double(c, "min_p", 0)};
    if (json_object_get(c, "top_k") && !o.top_k) o.top_k = -1;
    if (json_is_true(early)) o.early_stopping = DS_EARLY_STOPPING_TRUE;
    if (json_is_string(early)) o.early_stopping = DS_EARLY_STOPPING_NEVER;
    for (size_t i = 0; i < json_array_size(stops); i++)
        o.stop[o.n_stop++] = json_integer_value(json_array_get(stops, i));
    return o;
}

static void check_case(Reference *r, ds_module *m, const json_t *c)
{
    float scores[64];
    int64_t lengths[64], ends = reference_int(c, "ends", 0);
    ds_generate_opts o = options_of(c, reference_int(r->json, "new_tokens", 0));
    ds_tensor *mask = reference_integers(json_object_get(c, "attention_mask"));
    ds_tensor *ids = reference_integers(json_object_get(c, "input_ids"));
    o.attention_mask = mask, o.sequences_scores = scores, o.sequence_lengths = lengths;
    if (ends) o.stopping_criteria = ends_by, o.arg = &ends;
    ds_tensor *y = ds_generate_with(m, ids, o);
    const int64_t *got = y ? ds_data(y) : NULL;
    const json_t *rows = json_object_get(c, "generated"), *want = json_object_get(c, "scores");
    if (!got || ds_size(y, 0) != (int64_t)json_array_size(rows)) {
        reference_fail(r, "beams: %s", y ? "another number of rows" : ds_error());
        return;
    }
    int64_t width = ds_size(y, 1);
    for (size_t i = 0; i < json_array_size(rows); i++, got += width) {
        const json_t *row = json_array_get(rows, i);
        int64_t n = (int64_t)json_array_size(row);
        double score = reference_number(json_array_get(want, i), 0);
        reference_number_within(r, "score", (double)scores[i], score, 1e-5, 1e-5);
        if (lengths[i] != n)
            reference_fail(r, "row %zu has %lld tokens, want %lld", i, (long long)lengths[i],
                           (long long)n);
        for (int64_t k = 0; k < width && lengths[i] == n; k++) {
            int64_t id = k < n ? json_integer_value(json_array_get(row, (size_t)k)) : 3;
            if (got[k] != id)
                reference_fail(r, "token %lld of row %zu is %lld, want %lld", (long long)k, i,
                               (long long)got[k], (long long)id);
        }
    }
}

static void check_beams(Reference *r)
{
    char folder[700];
    const json_t *cases = json_object_get(r->json, "cases");
    snprintf(folder, sizeof folder, "%s/%s", r->folder, reference_text(r->json, "base", ""));
    ds_module *m = ds_pretrained_load(folder);
    if (!m) reference_fail(r, "load: %s", ds_error());
    for (size_t i = 0; m && i < json_array_size(cases); i++)
        check_case(r, m, json_array_get(cases, i));
    ds_module_free(m);
}

static void beams(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lm/beams", check_beams), 0);
}

TEST_MAIN(cmocka_unit_test(beams))
