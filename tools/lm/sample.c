/* tools/lm/sample.c: text of a model, printed as it comes.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "lm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

/* An option that would have no effect is refused. */
static ds_status beams_check(const LmOptions *o, const ds_generate_opts *g)
{
    bool beams = g->num_beams > 1;
    if (!beams && (o->early_stopping || o->given_length_penalty))
        return dsi_fail(DS_EINVAL, "--%s is for beams: give --num-beams 2 or more",
                        o->early_stopping ? "early-stopping" : "length-penalty");
    if (beams && (o->prompt_lookup > 0 || o->num_assistant_tokens > 0))
        return dsi_fail(DS_EINVAL,
                        "--%s: beams have no drafts: leave it out, or give --num-beams 1",
                        o->prompt_lookup > 0 ? "prompt-lookup-num-tokens" : "num-assistant-tokens");
    if (!beams && g->num_return_sequences > 1 && o->greedy)
        return dsi_fail(DS_EINVAL,
                        "num_return_sequences is %lld, and the most probable tokens are one text: "
                        "give --num-beams %lld, or leave out --greedy",
                        (long long)g->num_return_sequences, (long long)g->num_return_sequences);
    return DS_OK;
}

/* Beams are drawn only if the model's folder or an option says so. */
static void beams_set(const LmOptions *o, ds_generate_opts *g)
{
    bool draws = o->temperature > 0 || o->top_k || o->top_p > 0 || o->min_p > 0;
    const char *early = o->early_stopping;
    if (o->num_beams) g->num_beams = o->num_beams;
    if (o->num_return_sequences) g->num_return_sequences = o->num_return_sequences;
    if (strcmp(o->command, "generate") != 0) g->num_return_sequences = 1;
    if (o->given_length_penalty)
        g->length_penalty = o->length_penalty == 0 ? DS_ZERO : o->length_penalty;
    if (early)
        g->early_stopping = !strcmp(early, "true")    ? DS_EARLY_STOPPING_TRUE
                            : !strcmp(early, "never") ? DS_EARLY_STOPPING_NEVER
                                                      : DS_EARLY_STOPPING_FALSE;
    g->do_sample = !o->greedy && (g->num_beams <= 1 || draws || g->do_sample);
}

ds_status lm_generation(const LmOptions *o, ds_module *m, ds_generate_opts *g)
{
    *g = ds_generation_config(m);
    if (g->n_stop < 0) return ds_error_status();
    beams_set(o, g);
    g->max_new_tokens = o->max_new_tokens;
    g->seed = (uint64_t)o->seed;
    if (o->temperature > 0) g->temperature = o->temperature;
    if (o->top_k) g->top_k = o->top_k;
    if (o->top_p > 0) g->top_p = o->top_p;
    if (o->repetition_penalty > 0) g->repetition_penalty = o->repetition_penalty;
    if (o->min_p >= 0) g->min_p = o->min_p;
    if (o->no_repeat_ngram_size >= 0) g->no_repeat_ngram_size = o->no_repeat_ngram_size;
    if (o->min_new_tokens >= 0) g->min_new_tokens = o->min_new_tokens;
    if (o->prompt_lookup >= 0)
        g->prompt_lookup_num_tokens = o->prompt_lookup ? o->prompt_lookup : -1;
    if (o->num_assistant_tokens >= 0)
        g->num_assistant_tokens = o->num_assistant_tokens ? o->num_assistant_tokens : -1;
    if (o->n_stops) g->stop_strings = o->stops, g->n_stop_strings = (int)o->n_stops;
    return beams_check(o, g);
}

/* ---- text ---- */

typedef struct Sample {
    const ds_tokenizer *tokenizer;
    ds_decode_stream *stream;
    dsi_text text; /* behind the prompt */
} Sample;

static bool print_token(void *arg, int64_t row, int64_t id)
{
    Sample *s = arg;
    (void)row;
    const char *piece = ds_decode_stream_step(s->stream, (uint32_t)id);
    dsi_text_add(&s->text, "%s", piece);
    if (ds_comm_rank(NULL) == 0) fputs(piece, stdout), fflush(stdout);
    return true;
}

/* The text of n new ids of a row; free it. */
static char *row_text(const Sample *s, const int64_t *ids, int64_t n)
{
    uint32_t *all = dsi_alloc((size_t)(n + 1) * sizeof *all);
    for (int64_t i = 0; i < n; i++) all[i] = (uint32_t)ids[i];
    char *text = ds_decode(s->tokenizer, all, n, (ds_decode_opts){0});
    dsi_free(all);
    return text;
}

/* Beams, and several sequences, which are known at the end: generates and
 * prints them. The text of the first is left in s->text. */
static ds_tensor *rows_write(Sample *s, ds_module *model, ds_tensor *in, ds_generate_opts opts,
                             const char *prompt)
{
    int64_t rows = opts.num_return_sequences > 1 ? opts.num_return_sequences : 1;
    int64_t *lengths = dsi_alloc((size_t)rows * sizeof *lengths);
    float *scores = dsi_alloc((size_t)rows * sizeof *scores);
    opts.sequence_lengths = lengths;
    if (opts.num_beams > 1) opts.sequences_scores = scores;
    ds_tensor *y = ds_generate_with(model, in, opts);
    const int64_t *ids = y ? ds_data(y) : NULL;
    bool first = ds_comm_rank(NULL) == 0;
    for (int64_t i = 0; ids && i < rows; i++) {
        char *text = row_text(s, ids + i * ds_size(y, 1), lengths[i]);
        if (!i) dsi_text_add(&s->text, "%s", text ? text : "");
        if (first && rows > 1)
            printf("%s[%lld of %lld", i ? "\n" : "", (long long)i + 1, (long long)rows);
        if (first && rows > 1 && opts.num_beams > 1) printf(", score %.4f", (double)scores[i]);
        if (first) printf("%s%s%s", rows > 1 ? "]\n" : "", prompt, text ? text : "");
        free(text);
    }
    dsi_free(lengths), dsi_free(scores);
    return y;
}

/* The ids of a text, [1,n], in the scope; NULL after a failure. */
static ds_tensor *prompt_ids(ds_tokenizer *t, const char *text, bool chat)
{
    ds_tokens ids = {0};
    ds_status status = ds_encode(t, text, strlen(text), &ids,
                                 (ds_encode_opts){.no_special_tokens = chat});
    int64_t n = ids.n ? ids.n : 1, *all = dsi_alloc((size_t)n * sizeof *all);
    for (int64_t i = 0; i < ids.n; i++) all[i] = ids.ids[i];
    ds_tensor *x = status == DS_OK ? ds_from_data(DS_I64, ds_shape(1, n), all) : NULL;
    dsi_free(all);
    ds_tokens_free(&ids);
    return x;
}

ds_status lm_write(ds_module *model, ds_tokenizer *t, ds_generate_opts opts, const char *prompt,
                   bool chat, dsi_text *written)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *in = prompt_ids(t, prompt, chat);
    Sample s = {.tokenizer = t, .stream = ds_decode_stream_new(t, false)};
    bool first = ds_comm_rank(NULL) == 0,
         rows = opts.num_beams > 1 || opts.num_return_sequences > 1;
    if (opts.temperature == 0) opts.temperature = 0.8;
    opts.tokenizer = t;
    if (!rows) opts.on_token = print_token, opts.arg = &s;
    if (in && first && !chat && !rows) fputs(prompt, stdout);
    ds_tensor *y = rows ? rows_write(&s, model, in, opts, chat ? "" : prompt)
                        : ds_generate_with(model, in, opts);
    if (in && first) putchar('\n'), fflush(stdout);
    ds_decode_stream_free(s.stream);
    if (written)
        *written = s.text;
    else
        dsi_text_free(&s.text);
    ds_scope_close(scope);
    return y ? DS_OK : ds_error_status();
}

ds_status lm_sample(ds_module *model, ds_tokenizer *t, const LmOptions *o, ds_generate_opts opts)
{
    char *chat = o->chat ? lm_chat_prompt(o) : NULL;
    const char *prompt = o->chat ? chat : o->prompt ? o->prompt : "\n";
    ds_status status = prompt ? lm_write(model, t, opts, prompt, o->chat, NULL) : ds_error_status();
    free(chat);
    return status;
}
