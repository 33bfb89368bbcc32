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

ds_status lm_write(ds_module *model, ds_tokenizer *t, const LmOptions *o, ds_generate_opts opts,
                   const char *prompt, bool chat, dsi_text *written)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *in = prompt_ids(t, prompt, chat);
    Sample s = {.o = o, .stream = ds_decode_stream_new(t, false)};
    bool first = ds_comm_rank(NULL) == 0;
    if (opts.temperature == 0) opts.temperature = 0.8;
    opts.on_token = print_token, opts.arg = &s;
    if (in && first && !chat) fputs(prompt, stdout);
    ds_tensor *y = ds_generate_with(model, in, opts);
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
    ds_status status = prompt ? lm_write(model, t, o, opts, prompt, o->chat, NULL)
                              : ds_error_status();
    free(chat);
    return status;
}
