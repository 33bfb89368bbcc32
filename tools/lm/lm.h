/* tools/lm/lm.h: the options of ds_lm, and its parts.
 * SPDX-License-Identifier: MIT */
#ifndef TOOLS_LM_H
#define TOOLS_LM_H

#include "base/text.h"

#include <deepspeed.h>
#include <jansson.h>

#define LM_FILES 64
#define LM_NAMES 32
#define LM_STOPS 16

typedef struct LmOptions {
    const char *command;
    const char *model, *tokenizer, *output, *config, *adapter, *eval_data, *prompt, *system;
    const char *load_dir, *save_dir, *tensorboard, *device;
    const char *lora_targets, *lora_bias, *modules_to_save, *early_stopping;
    const char *data[LM_FILES], *stops[LM_STOPS]; /* stops: texts that end a sample */
    char *demo_paths[3]; /* owned: paths that --demo made, to which others point */
    int64_t n_data, n_stops, context, batch, grad_accum, epochs, max_steps, warmup, seed, threads;
    int64_t log_interval, eval_interval, sample_interval, save_interval, max_new_tokens, top_k;
    int64_t vocab_size, lora_r, local_rank, patience, prompt_lookup, num_assistant_tokens;
    int64_t no_repeat_ngram_size, min_new_tokens, num_beams, num_return_sequences;
    int64_t hidden, end_token; /* of the model, lm_read_model; end_token -1: none */
    double lr, weight_decay, clip, eval_split, temperature, top_p, repetition_penalty, lora_alpha;
    double min_p, length_penalty;
    uint64_t given;                                /* bit i: option MODEL + i of ds_lm.c */
    bool given_lr, given_weight_decay, given_clip; /* by the user, not by lm_defaults */
    bool given_length_penalty;
    bool bf16, checkpointing, greedy, demo, no_save, resume, use_dora, ensure_weight_tying, chat,
        assistant_only_loss;
} LmOptions;

/* Fills what is 0 in o with defaults, and with those of --demo. */
void lm_defaults(LmOptions *o);

/* The commands: 0, or 1 after a failure, whose message main prints. */
int lm_train(LmOptions *o);
int lm_eval(LmOptions *o);
int lm_generate(LmOptions *o);
int lm_chat(LmOptions *o);
int lm_tokenize(LmOptions *o);
int lm_tokenizer(LmOptions *o);
int lm_merge(LmOptions *o);

/* The numbers with which a training fills "auto" in a configuration. */
typedef struct LmPlan {
    const LmOptions *o;
    int64_t windows, ranks;
    int64_t batch, grad_accum, steps, warmup; /* results */
    int stage;
    bool checkpointing;       /* the configuration has activation_checkpointing */
    char *optimizer, *params; /* of the configuration: type, and params as JSON */
} LmPlan;

/* The configuration's JSON with each "auto" filled, to be freed with free();
 * NULL after a failure. */
char *lm_config(LmPlan *p);

/* Reads config.json of --model, a folder or that file: hidden, end_token, and
 * --context if it is not given; refuses one beyond the model's positions. */
ds_status lm_read_model(LmOptions *o);

/* A tokenizer of --tokenizer, or of the model's folder. */
ds_tokenizer *lm_tokenizer_load(const LmOptions *o);
/* The file with the tokens of `files`, at least --context of them: files[0] if
 * it is one, else `out`, into which the `first` of the ranks that read it packs
 * them; `end` is the token behind each document. All ranks call it; NULL after
 * a failure. */
const char *lm_tokens(const LmOptions *o, ds_tokenizer *t, const char *const *files, int n,
                      const char *out, bool first, const char *end);
/* Tokenizes files into `out`; `end` as above; *tokens, unless NULL, receives
 * their number. */
ds_status lm_tokens_write(const LmOptions *o, ds_tokenizer *t, const char *const *files, int n,
                          const char *out, const char *end, int64_t *tokens);
/* Whether a file of tokens has some that do not count in the loss. */
bool lm_tokens_masked(const char *path);
/* Writes OUTPUT's text, tokenizer and config.json for --demo. */
ds_status lm_demo_prepare(LmOptions *o);
/* Adds --adapter's adapters to a model. */
ds_status lm_adapter(ds_module *model, const LmOptions *o);
/* The template of chats of --tokenizer, or of the model's folder (chat.c). */
ds_chat_template *lm_chat_template(const LmOptions *o);
/* Its folder, to be freed with free(). */
char *lm_chat_folder(const LmOptions *o);
/* The model's options of generation, with those of o; DS_EINVAL if one of o
 * would have no effect (sample.c). */
ds_status lm_generation(const LmOptions *o, ds_module *m, ds_generate_opts *g);
/* The text of a chat that has --system and --prompt, up to the answer; to be
 * freed with free(). */
char *lm_chat_prompt(const LmOptions *o);
/* Prints the prompt, unless it is a chat's, and what the model writes after it,
 * up to a stop string, on rank 0; of several texts each with the prompt, below
 * a line with its number and its score. *written, unless NULL, receives the
 * text alone; free it. */
ds_status lm_write(ds_module *model, ds_tokenizer *t, ds_generate_opts opts, const char *prompt,
                   bool chat, dsi_text *written);
/* Prints the prompt of o, unless it is a chat's, and what the model writes
 * after it, up to a stop string, on rank 0; the others compute it with it
 * where parameters are gathered (sample.c). */
ds_status lm_sample(ds_module *model, ds_tokenizer *t, const LmOptions *o, ds_generate_opts opts);

/* The micro batches of an update (update.c). */
typedef struct LmUpdate {
    ds_loader *loader;  /* borrowed */
    int64_t n;          /* micro batches */
    ds_tensor **x, **y; /* [n] ids and labels, kept; NULL: labels are not counted */
    ds_tensor *items;   /* kept: the model's third input */
} LmUpdate;

/* counts: micro batches may have different numbers of labels. */
void lm_update_begin(LmUpdate *u, ds_loader *loader, int64_t n, bool counts);
/* Begins the next update. Collective if labels are counted. */
ds_status lm_update_next(LmUpdate *u);
/* The model's inputs for micro batch i, in order: ids, labels, and the number
 * of items if labels are counted. They live until the next call. Returns how
 * many; 0 after a failure. */
int lm_update_batch(LmUpdate *u, int64_t i, ds_tensor *in[3]);
void lm_update_end(LmUpdate *u);
/* Labels [B,L] of the first rows that count in the loss. */
int64_t lm_count_labels(ds_tensor *labels, int64_t rows);

#endif
