/* tools/lm/sample.c: text of a model, printed as it comes.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "lm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Sample {
    const LmOptions *o;
    ds_decode_stream *stream;
    dsi_text text; /* behind the prompt */
} Sample;

/* Whether a stop string ends in the last `added` bytes of the text. */
static bool is_stopped(const Sample *s, size_t added)
{
    for (int64_t i = 0; i < s->o->n_stops; i++) {
        size_t n = strlen(s->o->stops[i]) + added;
        const char *from = s->text.n > n ? s->text.s + s->text.n - n : s->text.s;
        if (s->text.n && strstr(from, s->o->stops[i])) return true;
    }
    return false;
}

/* All ranks decode, so that all stop at the same token. */
static bool print_token(void *arg, int64_t row, int64_t id)
{
    Sample *s = arg;
    (void)row;
    const char *piece = ds_decode_stream_step(s->stream, (uint32_t)id);
    dsi_text_add(&s->text, "%s", piece);
    if (ds_comm_rank(NULL) == 0) fputs(piece, stdout), fflush(stdout);
    return !is_stopped(s, strlen(piece));
}

ds_status lm_sample(ds_module *model, ds_tokenizer *t, const LmOptions *o, ds_generate_opts opts)
{
    ds_tokens ids = {0};
    char *chat = o->chat ? lm_chat_prompt(o) : NULL;
    const char *prompt = chat ? chat : o->prompt ? o->prompt : "\n";
    ds_status status = o->chat && !chat ? ds_error_status() : DS_OK;
    if (status == DS_OK)
        status = ds_encode(t, prompt, strlen(prompt), &ids,
                           (ds_encode_opts){.no_special_tokens = o->chat});
    if (status != DS_OK) {
        free(chat);
        return status;
    }
    ds_scope *scope = ds_scope_open();
    int64_t n = ids.n ? ids.n : 1, *prompt_ids = dsi_alloc((size_t)n * sizeof *prompt_ids);
    for (int64_t i = 0; i < ids.n; i++) prompt_ids[i] = ids.ids[i];
    ds_tensor *in = ds_from_data(DS_I64, ds_shape(1, n), prompt_ids);
    dsi_free(prompt_ids);
    Sample s = {.o = o, .stream = ds_decode_stream_new(t, false)};
    bool first = ds_comm_rank(NULL) == 0;
    if (opts.temperature == 0) opts.temperature = 0.8;
    opts.on_token = print_token, opts.arg = &s;
    if (first && !o->chat) fputs(prompt, stdout);
    ds_tensor *y = ds_generate_with(model, in, opts);
    if (first) putchar('\n');
    ds_decode_stream_free(s.stream);
    dsi_text_free(&s.text);
    ds_tokens_free(&ids);
    free(chat);
    ds_scope_close(scope);
    return y ? DS_OK : ds_error_status();
}
