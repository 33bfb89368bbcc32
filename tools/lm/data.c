/* tools/lm/data.c: text becomes files of tokens; the demo's text, tokenizer and
 * model.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/library.h"
#include "base/mem.h"
#include "base/text.h"
#include "data/tokens.h"
#include "lm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ds_tokenizer *lm_tokenizer_load(const LmOptions *o)
{
    const char *path = o->tokenizer ? o->tokenizer : o->model;
    if (path) return ds_tokenizer_load(path);
    return dsi_refuse("%s needs --tokenizer or --model", o->command);
}

/* False if it is no file of tokens. */
static bool read_header(const char *path, dsi_tokens_header *h)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(h, 1, sizeof *h, f) : 0;
    if (f) fclose(f);
    return dsi_tokens_is_file(h, n);
}

/* The tokens of a file of them; -1: it is none. */
static int64_t count_tokens(const char *path)
{
    dsi_tokens_header h = {0};
    return read_header(path, &h) ? (int64_t)h.n : -1;
}

bool lm_tokens_masked(const char *path)
{
    dsi_tokens_header h = {0};
    return read_header(path, &h) && h.masked;
}

ds_status lm_tokens_write(const LmOptions *o, ds_tokenizer *t, const char *const *files, int n,
                          const char *out, const char *end, int64_t *tokens)
{
    char *folder = lm_chat_folder(o);
    ds_status status = ds_tokens_pack(t, out, files, .n_files = n, .end_token = end,
                                      .tokens = tokens, .chat_folder = folder,
                                      .assistant_only_loss = o->assistant_only_loss);
    free(folder);
    return status;
}

static const char *pack(const LmOptions *o, ds_tokenizer *t, const char *const *files, int n,
                        const char *out, bool first, const char *end)
{
    if (n == 1 && count_tokens(files[0]) >= 0) return files[0];
    ds_status status = DS_OK;
    if (first) status = lm_tokens_write(o, t, files, n, out, end, NULL);
    return ds_comm_sync_status(NULL, status) == DS_OK ? out : NULL;
}

/* A text that is too short is the user's file, not the packed one. */
const char *lm_tokens(const LmOptions *o, ds_tokenizer *t, const char *const *files, int n,
                      const char *out, bool first, const char *end)
{
    const char *file = pack(o, t, files, n, out, first, end);
    int64_t tokens = file ? count_tokens(file) : -1;
    if (tokens >= 0 && tokens < o->context)
        return dsi_refuse("%s%s: %lld tokens are less than a window of %lld (--context)", files[0],
                          n > 1 ? " and the other files" : "", (long long)tokens,
                          (long long)o->context);
    return file;
}

/* ---- the demo ---- */

#define DEMO_TEXT "devils_dictionary.txt"

static const char demo_config[] =
    "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
    "  \"vocab_size\": 512,\n  \"hidden_size\": 128,\n  \"intermediate_size\": 344,\n"
    "  \"num_hidden_layers\": 4,\n  \"num_attention_heads\": 4,\n  \"num_key_value_heads\": 2,\n"
    "  \"max_position_embeddings\": 256,\n  \"tie_word_embeddings\": true,\n"
    "  \"bos_token_id\": 0,\n  \"eos_token_id\": 0\n}\n";

/* Near this program, in the build folder's link to the source tree, or where it
 * was installed; NULL with the message. */
static char *demo_find(void)
{
    static const char *const near[] = {"/assets", "/../share/deepspeed"};
    char *own = dsi_own_folder();
    dsi_text path = {0};
    for (int i = 0; i < 3 && !path.s; i++) {
        if (i < 2)
            dsi_text_add(&path, "%s%s/" DEMO_TEXT, own ? own : "", near[i]);
        else
            dsi_text_add(&path, DSI_DATA_DIR "/" DEMO_TEXT);
        if (!dsi_file_exists(path.s)) dsi_text_free(&path);
    }
    free(own);
    return path.s ? path.s : dsi_refuse("the text of the demo, " DEMO_TEXT ", is not installed");
}

static char *in_output(const LmOptions *o, const char *name)
{
    dsi_text t = {0};
    dsi_text_add(&t, "%s/%s", o->output, name);
    return t.s;
}

ds_status lm_demo_prepare(LmOptions *o)
{
    char *text = o->demo_paths[0] = demo_find();
    if (!text) return ds_error_status();
    o->demo_paths[1] = in_output(o, "config.json"),
    o->demo_paths[2] = in_output(o, "tokenizer.json");
    o->data[0] = text, o->n_data = 1;
    o->model = o->demo_paths[1], o->tokenizer = o->demo_paths[2];
    ds_status status = DS_OK;
    if (ds_comm_rank(ds_world()) == 0) {
        status = ds_tokenizer_train(o->tokenizer, 512, .files = o->data, .n_files = 1);
        dsi_file *f = status == DS_OK ? dsi_file_replace(o->model) : NULL;
        if (f) dsi_file_write(f, demo_config, strlen(demo_config)), status = dsi_file_commit(f);
    }
    return status == DS_OK ? ds_barrier(NULL) : status;
}
