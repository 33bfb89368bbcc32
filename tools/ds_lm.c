/* tools/ds_lm.c: trains, evaluates and runs language models of Hugging Face's
 * folders.
 *
 *     ds_lm train --model FOLDER --data book.txt --output mine
 *     ds_lm eval --model mine --data other.txt
 *     ds_lm generate --model mine --prompt "Once"
 *     ds_lm chat --model FOLDER
 *     ds_lm tokenizer --data book.txt --vocab-size 4096 --output mine
 *     ds_lm tokenize --model mine --data book.txt --output book.tokens
 *     ds_lm merge --model FOLDER --adapter lora --output merged
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "lm/lm.h"
#include "parse_options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MODEL = 256,
    TOKENIZER,
    DATA,
    EVAL_DATA,
    ASSISTANT_ONLY,
    EVAL_SPLIT,
    OUTPUT,
    CONFIG,
    CONTEXT,
    BATCH,
    GRAD_ACCUM,
    EPOCHS,
    MAX_STEPS,
    WARMUP,
    LR,
    WEIGHT_DECAY,
    CLIP,
    BF16,
    CHECKPOINTING,
    SEED,
    THREADS,
    DEVICE,
    LOG_INTERVAL,
    EVAL_INTERVAL,
    SAMPLE_INTERVAL,
    SAVE_INTERVAL,
    SAVE_DIR,
    LOAD_DIR,
    RESUME,
    TENSORBOARD,
    NO_SAVE,
    DEMO,
    PROMPT,
    CHAT,
    SYSTEM,
    MAX_NEW_TOKENS,
    GREEDY,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    REPETITION_PENALTY,
    MIN_P,
    NO_REPEAT_NGRAM,
    MIN_NEW_TOKENS,
    NUM_BEAMS,
    LENGTH_PENALTY,
    EARLY_STOPPING,
    PROMPT_LOOKUP,
    ASSISTANT,
    STOP_STRINGS,
    NUM_RETURN,
    VOCAB_SIZE,
    ADAPTER,
    LORA_R,
    LORA_ALPHA,
    LORA_TARGETS,
    LORA_BIAS,
    USE_DORA,
    MODULES_TO_SAVE,
    ENSURE_WEIGHT_TYING,
    PATIENCE,
    LOCAL_RANK
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Model and data:", 1},
    {"model", MODEL, "FOLDER", 0, "config.json, weights, tokenizer; train also takes a config.json",
     0},
    {"tokenizer", TOKENIZER, "PATH", 0, "tokenizer.json, or its folder (that of the model)", 0},
    {"data", DATA, "FILE", 0,
     "text, JSON lines (.jsonl: text, prompt and completion, or messages), or tokens; may be "
     "repeated",
     0},
    {"assistant-only-loss", ASSISTANT_ONLY, 0, 0,
     "of messages only the assistant's count: the template's {% generation %} blocks", 0},
    {"eval-data", EVAL_DATA, "FILE", 0, "the same, to evaluate on", 0},
    {"eval-split", EVAL_SPLIT, "X", 0, "the last part of the data, to evaluate on (0.05)", 0},
    {"output", OUTPUT, "PATH", 0, "folder, or file of tokens, that is written", 0},
    {0, 0, 0, 0, "Training:", 2},
    {"deepspeed-config", CONFIG, "FILE", 0,
     "configuration; its \"auto\" takes the values of these options", 0},
    {"context", CONTEXT, "N", 0, "tokens of a window (256)", 0},
    {"batch", BATCH, "N", 0, "windows of a micro batch (8)", 0},
    {"grad-accum", GRAD_ACCUM, "N", 0, "micro batches of an update (1)", 0},
    {"epochs", EPOCHS, "N", 0, "passes over the data (1)", 0},
    {"max-steps", MAX_STEPS, "N", 0, "updates, in place of --epochs", 0},
    {"lr", LR, "X", 0, "highest learning rate (5e-5; adapters 2e-4; a new model 3e-3)", 0},
    {"warmup", WARMUP, "N", 0, "updates until the learning rate is --lr (5 % of all)", 0},
    {"weight-decay", WEIGHT_DECAY, "X", 0, "of matrices (0.1)", 0},
    {"clip", CLIP, "X", 0, "largest norm of the gradients (1)", 0},
    {"bf16", BF16, 0, 0, "compute in bfloat16", 0},
    {"gradient-checkpointing", CHECKPOINTING, 0, 0, "less memory: layers run again in backward", 0},
    {"seed", SEED, "N", 0, "of initial weights, order and samples (42)", 0},
    {"threads", THREADS, "N", 0, "threads of the kernels (1)", 0},
    {"device", DEVICE, "NAME", 0, "cpu, cuda or cuda:N (cpu)", 0},
    {"demo", DEMO, 0, 0, "train a small model on The Devil's Dictionary, in minutes", 0},
    {0, 0, 0, 0, "Adapters (LoRA, in PEFT's files):", 3},
    {"lora-r", LORA_R, "N", 0, "train adapters of this rank in place of the weights", 0},
    {"lora-alpha", LORA_ALPHA, "X", 0, "factor X / r of the adapters (2 r)", 0},
    {"lora-targets", LORA_TARGETS, "NAMES", 0, "layers, separated by commas (those of PEFT)", 0},
    {"use-dora", USE_DORA, 0, 0, "train a magnitude for each output, too (DoRA)", 0},
    {"lora-bias", LORA_BIAS, "KIND", 0,
     "train biases, too: all, or lora_only, those of layers with adapters (none)", 0},
    {"modules-to-save", MODULES_TO_SAVE, "NAMES", 0,
     "modules that are trained and saved beside adapters, separated by commas", 0},
    {"ensure-weight-tying", ENSURE_WEIGHT_TYING, 0, 0,
     "a saved embedding of a tied model stays its head, too", 0},
    {"adapter", ADAPTER, "FOLDER", 0, "of eval, generate, merge: adapters that were trained", 0},
    {0, 0, 0, 0, "Results:", 4},
    {"log-interval", LOG_INTERVAL, "N", 0, "print a line every N updates (10)", 0},
    {"eval-interval", EVAL_INTERVAL, "N", 0,
     "evaluate every N updates, and at the end (0: at the end)", 0},
    {"patience", PATIENCE, "N", 0,
     "stop after N evaluations without a smaller loss, and save the weights of the smallest", 0},
    {"sample-interval", SAMPLE_INTERVAL, "N", 0, "print text of the model every N updates", 0},
    {"save-dir", SAVE_DIR, "DIR", 0, "write checkpoints; --load-dir resumes from them", 0},
    {"save-interval", SAVE_INTERVAL, "N", 0, "save every N updates (at the end)", 0},
    {"load-dir", LOAD_DIR, "DIR", 0, "resume from the newest checkpoint", 0},
    {"resume", RESUME, 0, 0, "resume from the newest checkpoint in --save-dir, if there is one", 0},
    {"tensorboard", TENSORBOARD, "DIR", 0, "write TensorBoard's events", 0},
    {"no-save", NO_SAVE, 0, 0, "do not write the model", 0},
    {0, 0, 0, 0, "Generation:", 5},
    {"prompt", PROMPT, "TEXT", 0, "what the text begins with", 0},
    {"chat", CHAT, 0, 0,
     "the prompt is a user's message: the model's template of chats makes the text", 0},
    {"system", SYSTEM, "TEXT", 0, "the system's message of a chat", 0},
    {"max-new-tokens", MAX_NEW_TOKENS, "N", 0, "how many tokens at most (100; chat: 512)", 0},
    {"greedy", GREEDY, 0, 0, "always the most probable token", 0},
    {"temperature", TEMPERATURE, "X", 0, "of sampling (0.8); 0: as --greedy", 0},
    {"top-k", TOP_K, "N", 0, "sample from the N most probable tokens (50)", 0},
    {"top-p", TOP_P, "X", 0, "sample from the fewest tokens of this probability (1: all)", 0},
    {"repetition-penalty", REPETITION_PENALTY, "X", 0,
     "above 1: tokens that occurred before are less probable (1)", 0},
    {"min-p", MIN_P, "X", 0, "sample from tokens that have X times the largest probability (0)", 0},
    {"no-repeat-ngram-size", NO_REPEAT_NGRAM, "N", 0, "N tokens in a row come once (0: any)", 0},
    {"min-new-tokens", MIN_NEW_TOKENS, "N", 0, "tokens that come before the end, at least (0)", 0},
    {"num-beams", NUM_BEAMS, "N", 0,
     "beam search: keep the N most probable texts; drawn with --temperature, --top-k, --top-p or "
     "--min-p (1: none)",
     0},
    {"length-penalty", LENGTH_PENALTY, "X", 0,
     "of beams: above 0 favours longer texts, below 0 shorter ones (1)", 0},
    {"early-stopping", EARLY_STOPPING, "KIND", 0,
     "of beams: true ends with N texts that ended, false when no better one is likely, never when "
     "none is possible (false)",
     0},
    {"num-return-sequences", NUM_RETURN, "N", 0,
     "print N texts: the best of --num-beams, or N that are drawn (1)", 0},
    {"stop-strings", STOP_STRINGS, "TEXT", 0,
     "end behind this text, if the model writes it; may be repeated", 0},
    {"prompt-lookup-num-tokens", PROMPT_LOOKUP, "N", 0,
     "try at once N tokens that followed the same words before; the text is the same (7)", 0},
    {"num-assistant-tokens", ASSISTANT, "N", 0,
     "try at once up to N tokens that 8-bit copies of the weights draft; the text is the same (7 "
     "if the weights are more than 64 MB of float32)",
     0},
    {0, 0, 0, 0, "Tokenizer:", 6},
    {"vocab-size", VOCAB_SIZE, "N", 0, "tokens of a new tokenizer (4096)", 0},
    {"local-rank", LOCAL_RANK, "N", OPTION_HIDDEN, 0, 0},
    {0}};

static const ArgsField fields[] = {
    ARGS_TEXT(MODEL, LmOptions, model),
    ARGS_TEXT(TOKENIZER, LmOptions, tokenizer),
    ARGS_TEXT(EVAL_DATA, LmOptions, eval_data),
    ARGS_TEXT(OUTPUT, LmOptions, output),
    ARGS_TEXT(CONFIG, LmOptions, config),
    ARGS_TEXT(ADAPTER, LmOptions, adapter),
    ARGS_TEXT(LORA_TARGETS, LmOptions, lora_targets),
    ARGS_TEXT(LORA_BIAS, LmOptions, lora_bias),
    ARGS_TEXT(MODULES_TO_SAVE, LmOptions, modules_to_save),
    ARGS_FLAG(USE_DORA, LmOptions, use_dora),
    ARGS_FLAG(ENSURE_WEIGHT_TYING, LmOptions, ensure_weight_tying),
    ARGS_WHOLE(LORA_R, LmOptions, lora_r, 1, 1 << 20),
    ARGS_REAL(LORA_ALPHA, LmOptions, lora_alpha),
    ARGS_TEXT(DEVICE, LmOptions, device),
    ARGS_TEXT(PROMPT, LmOptions, prompt),
    ARGS_TEXT(SYSTEM, LmOptions, system),
    ARGS_FLAG(CHAT, LmOptions, chat),
    ARGS_FLAG(ASSISTANT_ONLY, LmOptions, assistant_only_loss),
    ARGS_TEXT(SAVE_DIR, LmOptions, save_dir),
    ARGS_TEXT(LOAD_DIR, LmOptions, load_dir),
    ARGS_TEXT(TENSORBOARD, LmOptions, tensorboard),
    ARGS_WHOLE(CONTEXT, LmOptions, context, 2, 1 << 24),
    ARGS_WHOLE(BATCH, LmOptions, batch, 1, 1 << 20),
    ARGS_WHOLE(GRAD_ACCUM, LmOptions, grad_accum, 1, 1 << 20),
    ARGS_WHOLE(EPOCHS, LmOptions, epochs, 1, ARGS_COUNT),
    ARGS_WHOLE(MAX_STEPS, LmOptions, max_steps, 1, ARGS_COUNT),
    ARGS_WHOLE(WARMUP, LmOptions, warmup, 0, ARGS_COUNT),
    ARGS_WHOLE(SEED, LmOptions, seed, 0, INT64_MAX),
    ARGS_WHOLE(THREADS, LmOptions, threads, 1, 64),
    ARGS_WHOLE(LOG_INTERVAL, LmOptions, log_interval, 1, ARGS_COUNT),
    ARGS_WHOLE(EVAL_INTERVAL, LmOptions, eval_interval, 0, ARGS_COUNT),
    ARGS_WHOLE(PATIENCE, LmOptions, patience, 1, ARGS_COUNT),
    ARGS_WHOLE(SAMPLE_INTERVAL, LmOptions, sample_interval, 0, ARGS_COUNT),
    ARGS_WHOLE(SAVE_INTERVAL, LmOptions, save_interval, 1, ARGS_COUNT),
    ARGS_WHOLE(MAX_NEW_TOKENS, LmOptions, max_new_tokens, 1, 1 << 24),
    ARGS_WHOLE(TOP_K, LmOptions, top_k, 1, 1 << 30),
    ARGS_WHOLE(NO_REPEAT_NGRAM, LmOptions, no_repeat_ngram_size, 0, 1 << 24),
    ARGS_WHOLE(MIN_NEW_TOKENS, LmOptions, min_new_tokens, 0, 1 << 24),
    ARGS_WHOLE(NUM_BEAMS, LmOptions, num_beams, 1, 1 << 20),
    ARGS_WHOLE(NUM_RETURN, LmOptions, num_return_sequences, 1, 1 << 20),
    ARGS_TEXT(EARLY_STOPPING, LmOptions, early_stopping),
    ARGS_WHOLE(PROMPT_LOOKUP, LmOptions, prompt_lookup, 0, 1 << 20),
    ARGS_WHOLE(ASSISTANT, LmOptions, num_assistant_tokens, 0, 1 << 20),
    ARGS_WHOLE(VOCAB_SIZE, LmOptions, vocab_size, 257, 1 << 24),
    ARGS_WHOLE(LOCAL_RANK, LmOptions, local_rank, 0, 1 << 20),
    ARGS_REAL(LR, LmOptions, lr),
    ARGS_REAL(WEIGHT_DECAY, LmOptions, weight_decay),
    ARGS_REAL(CLIP, LmOptions, clip),
    ARGS_REAL(EVAL_SPLIT, LmOptions, eval_split),
    ARGS_REAL(TEMPERATURE, LmOptions, temperature),
    ARGS_REAL(REPETITION_PENALTY, LmOptions, repetition_penalty),
    ARGS_FLAG(BF16, LmOptions, bf16),
    ARGS_FLAG(CHECKPOINTING, LmOptions, checkpointing),
    ARGS_FLAG(RESUME, LmOptions, resume),
    ARGS_FLAG(NO_SAVE, LmOptions, no_save),
    ARGS_FLAG(GREEDY, LmOptions, greedy),
    ARGS_FLAG(DEMO, LmOptions, demo),
    {0}};

_Static_assert(LOCAL_RANK - MODEL < 64, "LmOptions.given has a bit for each option");

#define COMMANDS "train, eval, generate, chat, tokenize, tokenizer or merge"

enum { NEEDS_MODEL = 1, NEEDS_ADAPTER = 2, NEEDS_DATA = 4, NEEDS_OUTPUT = 8 };

typedef struct Command {
    const char *name;
    int (*run)(LmOptions *o);
    bool on_all_ranks; /* else it is the work of one process, rank 0 */
    int needs;
    const char *needed; /* the same in words */
} Command;

static const Command commands[] = {
    {"train", lm_train, true, NEEDS_MODEL | NEEDS_DATA | NEEDS_OUTPUT,
     "--model, --data and --output, or --demo"},
    {"eval", lm_eval, true, NEEDS_MODEL | NEEDS_DATA, "--model and --data"},
    {"generate", lm_generate, false, NEEDS_MODEL, "--model"},
    {"chat", lm_chat, false, NEEDS_MODEL, "--model"},
    {"tokenize", lm_tokenize, false, NEEDS_DATA | NEEDS_OUTPUT, "--data and --output"},
    {"tokenizer", lm_tokenizer, false, NEEDS_DATA | NEEDS_OUTPUT, "--data and --output"},
    {"merge", lm_merge, false, NEEDS_MODEL | NEEDS_ADAPTER | NEEDS_OUTPUT,
     "--model, --adapter and --output"}};

/* NULL: there is no such command. */
static const Command *command_find(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

static bool has_needed(const Command *c, const LmOptions *o)
{
    int given = (o->model ? NEEDS_MODEL : 0) | (o->adapter ? NEEDS_ADAPTER : 0) |
                (o->n_data ? NEEDS_DATA : 0) | (o->output ? NEEDS_OUTPUT : 0);
    return (given & c->needs) == c->needs || (o->demo && c->run == lm_train);
}

/* Options that some commands alone have, from `first` to `last`. */
static const struct {
    int first, last;
    const char *commands;
} limits[] = {{EVAL_DATA, EVAL_DATA, "train"},
              {ASSISTANT_ONLY, ASSISTANT_ONLY, "train, eval, tokenize"},
              {EVAL_SPLIT, EVAL_SPLIT, "train"},
              {CONFIG, CONFIG, "train"},
              {CONTEXT, BATCH, "train, eval"},
              {GRAD_ACCUM, CLIP, "train"},
              {BF16, BF16, "train, eval, generate, chat"},
              {CHECKPOINTING, CHECKPOINTING, "train"},
              {LOG_INTERVAL, DEMO, "train"},
              {PROMPT, CHAT, "generate"},
              {SYSTEM, SYSTEM, "generate, chat"},
              {MAX_NEW_TOKENS, STOP_STRINGS, "train, generate, chat"},
              {NUM_RETURN, NUM_RETURN, "generate"},
              {VOCAB_SIZE, VOCAB_SIZE, "tokenizer"},
              {LORA_R, PATIENCE, "train"}};

static bool is_given(const LmOptions *o, int key) { return o->given >> (key - MODEL) & 1; }

/* Refuses an option that the command would not look at. */
static void check_given(struct argp_state *state, const LmOptions *o)
{
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (int key = limits[i].first; key <= limits[i].last; key++) {
            if (!is_given(o, key)) continue;
            if (dsi_has_word(limits[i].commands, o->command, strlen(o->command))) continue;
            const struct argp_option *option = options;
            while (option->key != key) option++;
            argp_error(state, "--%s is for %s, not for %s", option->name, limits[i].commands,
                       o->command);
        }
}

static void check_samples(struct argp_state *state, const LmOptions *o)
{
    if (strcmp(o->command, "train") != 0 || o->sample_interval || o->demo) return;
    for (const struct argp_option *option = options; option->name || option->doc; option++)
        if (option->key >= MAX_NEW_TOKENS && option->key <= STOP_STRINGS &&
            is_given(o, option->key))
            argp_error(state, "--%s is for samples: give --sample-interval N, too", option->name);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    LmOptions *o = state->input;
    bool chats;
    if (key >= MODEL && key <= LOCAL_RANK) o->given |= 1ull << (key - MODEL);
    switch (key) {
    case DATA:
        if (o->n_data == LM_FILES) argp_error(state, "--data: at most %d files", LM_FILES);
        o->data[o->n_data++] = arg;
        return 0;
    case STOP_STRINGS:
        if (o->n_stops == LM_STOPS || !*arg)
            argp_error(state, "--stop-strings: expected up to %d texts, none empty", LM_STOPS);
        o->stops[o->n_stops++] = arg;
        return 0;
    case TOP_P:
        o->top_p = args_double(state, "top-p", arg, 0, 1);
        return 0;
    case MIN_P:
        o->min_p = args_double(state, "min-p", arg, 0, 1);
        return 0;
    case LENGTH_PENALTY:
        o->length_penalty = args_double(state, "length-penalty", arg, -1e6, 1e6);
        o->given_length_penalty = true;
        return 0;
    case ARGP_KEY_ARG:
        if (o->command)
            argp_error(state, "\"%s\" after the command %s: options follow it, such as --model %s",
                       arg, o->command, arg);
        if (!command_find(arg))
            argp_error(state, "there is no command \"%s\": expected " COMMANDS, arg);
        o->command = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->command) argp_error(state, "no command: expected " COMMANDS);
        if (o->eval_split >= 1)
            argp_error(state, "--eval-split: %g: expected less than 1", o->eval_split);
        if (o->demo && (o->n_data || o->model || o->tokenizer))
            argp_error(state, "--demo and --%s: the demo has its own, give only one",
                       o->n_data  ? "data"
                       : o->model ? "model"
                                  : "tokenizer");
        chats = o->command && !strcmp(o->command, "chat");
        if (chats && o->prompt)
            argp_error(state, "chat reads messages from stdin: --prompt is for generate");
        check_given(state, o);
        check_samples(state, o);
        if (o->system && !o->chat && !chats)
            argp_error(state, "--system is for --chat, and the command chat");
        if (o->early_stopping &&
            !dsi_has_word("true, false, never", o->early_stopping, strlen(o->early_stopping)))
            argp_error(state, "--early-stopping: \"%s\": expected true, false or never",
                       o->early_stopping);
        if (o->num_beams && o->num_return_sequences > o->num_beams && o->num_beams > 1)
            argp_error(state, "--num-return-sequences: %lld: expected at most --num-beams, %lld",
                       (long long)o->num_return_sequences, (long long)o->num_beams);
        if (!has_needed(command_find(o->command), o))
            argp_error(state, "%s needs %s", o->command, command_find(o->command)->needed);
        return 0;
    default:
        return args_store(state, options, fields, key, arg, o);
    }
}

void lm_defaults(LmOptions *o)
{
    bool fresh = o->demo || (o->model && !dsi_is_folder(o->model));
    o->given_lr = is_given(o, LR);
    o->given_weight_decay = is_given(o, WEIGHT_DECAY);
    o->given_clip = is_given(o, CLIP);
    if (o->demo) {
        if (!o->output) o->output = "lm-demo";
        if (!o->context) o->context = 128;
        if (!o->batch && !o->config) o->batch = 16;
        if (!o->max_steps && !o->epochs) o->max_steps = 600;
        if (o->lr == 0) o->lr = 4e-3;
        if (!o->sample_interval) o->sample_interval = 300;
        if (!o->log_interval) o->log_interval = 50;
    }
    if (!o->log_interval) o->log_interval = 10;
    if (!o->max_new_tokens) o->max_new_tokens = strcmp(o->command, "chat") != 0 ? 100 : 512;
    if (o->lr == 0) o->lr = fresh ? 3e-3 : o->lora_r ? 2e-4 : 5e-5;
    if (!o->vocab_size) o->vocab_size = 4096;
    if (o->temperature == 0) o->greedy = true;
    if (o->temperature < 0) o->temperature = 0; /* not given: that of the model's folder */
    if (!o->threads) o->threads = 1;
    if (o->lora_alpha == 0) o->lora_alpha = 2 * (double)o->lora_r;
}

/* ---- small commands ---- */

int lm_generate(LmOptions *o)
{
    dsi_log_set_stream(stderr); /* stdout has the text alone */
    ds_module *m = ds_pretrained_load(o->model, .dtype = o->bf16 ? DS_BF16 : DS_F32);
    ds_tokenizer *t = m && lm_adapter(m, o) == DS_OK ? lm_tokenizer_load(o) : NULL;
    ds_generate_opts g;
    ds_status status = t ? lm_generation(o, m, &g) : ds_error_status();
    if (status == DS_OK) status = lm_sample(m, t, o, g);
    ds_module_free(m);
    ds_tokenizer_free(t);
    return status != DS_OK;
}

ds_status lm_adapter(ds_module *model, const LmOptions *o)
{
    return o->adapter ? ds_lora_load(model, o->adapter) : DS_OK;
}

int lm_merge(LmOptions *o)
{
    ds_module *m = ds_pretrained_load(o->model);
    ds_status status = m ? lm_adapter(m, o) : ds_error_status();
    if (status == DS_OK) status = ds_lora_merge(m);
    if (status == DS_OK) status = ds_pretrained_save(m, o->output);
    if (status == DS_OK) printf("saved %s\n", o->output);
    ds_module_free(m);
    return status != DS_OK;
}

int lm_tokenizer(LmOptions *o)
{
    dsi_text path = {0};
    bool file = dsi_ends_with(o->output, ".json");
    dsi_text_add(&path, file ? "%s" : "%s/tokenizer.json", o->output);
    ds_status status = file ? DS_OK : dsi_mkdirs(o->output);
    if (status == DS_OK)
        status = ds_tokenizer_train(path.s, o->vocab_size, .files = o->data,
                                    .n_files = (int)o->n_data);
    if (status == DS_OK) printf("saved %s\n", path.s);
    dsi_text_free(&path);
    return status != DS_OK;
}

int lm_tokenize(LmOptions *o)
{
    ds_tokenizer *t = lm_tokenizer_load(o);
    int64_t n = 0;
    ds_status status = t ? lm_tokens_write(o, t, o->data, (int)o->n_data, o->output, NULL, &n)
                         : ds_error_status();
    if (status == DS_OK) printf("%s: %lld tokens\n", o->output, (long long)n);
    ds_tokenizer_free(t);
    return status != DS_OK;
}

/* Before long work on data. */
static ds_status model_check(const Command *c, const LmOptions *o)
{
    if (!o->model || !(c->needs & NEEDS_MODEL)) return DS_OK;
    bool folder = dsi_is_folder(o->model);
    dsi_text path = dsi_text_of("%s%s", o->model, folder ? "/config.json" : "");
    ds_status status = DS_OK;
    if (access(path.s, R_OK) != 0)
        status = dsi_fail(DS_EIO, "--model %s: %s", path.s, strerror(errno));
    dsi_text_free(&path);
    return status;
}

static ds_status device_set(const LmOptions *o)
{
    ds_device device;
    ds_status status = o->device ? ds_device_parse(o->device, &device) : DS_OK;
    return status == DS_OK && o->device ? ds_set_device(device) : status;
}

/* A failure that all ranks have is said by the first. */
static int command_run(const Command *c, LmOptions *o)
{
    ds_status status = c->on_all_ranks ? ds_init_distributed() : DS_OK;
    ds_status alone = device_set(o);
    if (alone == DS_OK) alone = model_check(c, o);
    if (status == DS_OK) status = ds_comm_sync_status(NULL, alone);
    ds_set_threads((int)o->threads);
    int failed = status == DS_OK ? c->run(o) : 1;
    if (failed && failed != DS_EXIT_REQUEUE &&
        (!ds_error_is_collective() || ds_comm_rank(ds_world()) == 0))
        fprintf(stderr, "ds_lm: %s\n", ds_error() ? ds_error() : "failed");
    ds_destroy_process_group();
    for (int k = 0; k < 3; k++) dsi_free(o->demo_paths[k]);
    return failed;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse,
        "COMMAND",
        "Trains, evaluates and runs language models of Hugging Face's folders.\v"
        "Commands: train, eval, generate, chat (a conversation, line by line), tokenize (text into "
        "a file of tokens), tokenizer (a new "
        "byte-level BPE), merge (adapters into a model). Several ranks train and evaluate: "
        "deepspeed --num_devs N ds_lm train ...",
        NULL,
        NULL,
        NULL};
    LmOptions o = {.warmup = -1,
                   .seed = 42,
                   .weight_decay = 0.1,
                   .clip = 1,
                   .eval_split = 0.05,
                   .temperature = -1,
                   .prompt_lookup = -1,
                   .num_assistant_tokens = -1,
                   .min_p = -1,
                   .no_repeat_ngram_size = -1,
                   .min_new_tokens = -1};
    argp_program_version = "ds_lm (deepspeed.c) " DS_VERSION;
    args_parse(&argp, argc, argv, &o);
    lm_defaults(&o);
    const Command *c = command_find(o.command);
    return c->on_all_ranks || parse_is_first_rank() ? command_run(c, &o) : 0;
}
