/* deepspeed/models.h: language models of Hugging Face's folders: loaded, made,
 * trained as any module, saved again.
 *
 *     ds_module *model = ds_pretrained_load("SmolLM2-135M");
 *     ds_tensor *loss = ds_call(model, ids, labels);     training: [] float32
 *     ds_tensor *logits = ds_call(model, ids);           [B,L,vocab]
 *     ds_status status = ds_pretrained_save(model, "mine");
 *
 * ids: int64 [B,L]. labels: int64 [B,L], as in transformers: the same ids, not
 * shifted; position t predicts label t + 1, and a label of -100 does not count.
 * The loss is the mean over all labels that count, in float32 whatever the
 * dtype of the model. The logits of the whole batch are never in memory
 * (ds_linear_cross_entropy).
 *
 * Where a batch is divided into parts (micro batches, ranks) that have
 * different numbers of labels, the mean of their losses is not that of the
 * batch. A third input says how many there are: items, int64 [2], the labels
 * that count in the whole batch, without those of first positions, and its
 * number of parts. The loss is then sum / (items[0] / items[1]), and the mean
 * over the parts is that of the batch: num_items_in_batch of transformers'
 * Trainer.
 *
 *     ds_tensor *loss = ds_engine_forward(engine, ids, labels, items);
 *
 * Architectures: GPT2LMHeadModel, OPTForCausalLM, GPTNeoXForCausalLM,
 * LlamaForCausalLM, Qwen2ForCausalLM, MistralForCausalLM, Qwen3ForCausalLM,
 * Phi3ForCausalLM, MixtralForCausalLM, Qwen2MoeForCausalLM,
 * Qwen3MoeForCausalLM, SmolLM3ForCausalLM, Olmo2ForCausalLM, Olmo3ForCausalLM,
 * GraniteForCausalLM, GemmaForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_MODELS_H
#define DEEPSPEED_MODELS_H

#include <deepspeed/nn.h>
#include <deepspeed/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- folders ------------------------------------------------------------------- */

typedef struct ds_pretrained_opts {
    const char *folder;
    ds_dtype dtype;    /* of the parameters; 0: float32 */
    bool stored_dtype; /* as in the file, in place of dtype */
    bool no_weights;   /* a new model of config.json alone, drawn at random from
                               this thread's generator as transformers does */
    /* The configuration that ds_initialize will get: parameters are made inside
     * ds_zero_init_with(.config), in its dtype and one after the other where
     * they will be kept, so that the model may be larger than memory. NULL:
     * none */
    const char *config;
} ds_pretrained_opts;

/* AutoModelForCausalLM.from_pretrained, from a folder on disk: config.json and
 * model.safetensors, or model.safetensors.index.json with its shards, or where
 * these are missing pytorch_model.bin, or its index.json with its shards.
 * folder may also be a config.json, for .no_weights. Weights of the right dtype
 * are the mapped file, so do not overwrite it in place while the model lives.
 * Tied weights are one parameter. Names are those of transformers. Returns NULL
 * if the folder is not complete or damaged (DS_EIO, DS_EFORMAT), or has an
 * architecture or a key that is not implemented and changes the result
 * (DS_EINVAL). Inside ds_zero_init each parameter is partitioned as soon as it
 * is made. */
#define ds_pretrained_load(...) ds_pretrained_load_with((ds_pretrained_opts){.folder = __VA_ARGS__})
DS_API ds_module *ds_pretrained_load_with(ds_pretrained_opts opts);

typedef struct ds_pretrained_save_opts {
    const char *folder;      /* made if it does not exist */
    const ds_state *weights; /* with the model's names, as ds_engine_state returns them;
                                  NULL: the model's own */
    int64_t max_shard_size;  /* bytes; 0: 5 GB */
} ds_pretrained_save_opts;

/* save_pretrained: config.json, the weights in the model's dtype as
 * safetensors, and copies of the tokenizer's files and the templates of chats,
 * if the model was loaded from a folder that has them. */
#define ds_pretrained_save(model, ...) \
    ds_pretrained_save_with(model, (ds_pretrained_save_opts){.folder = __VA_ARGS__})
DS_API ds_status ds_pretrained_save_with(ds_module *model, ds_pretrained_save_opts opts);

/* ---- such a model ---------------------------------------------------------------- */

/* model.config: sizes, and ids of tokens (-1: none). All 0 for another module. */
typedef struct ds_lm_info {
    const char *architecture;
    int64_t vocab_size, hidden_size, layers, positions;
    int64_t bos_token_id, eos_token_id, pad_token_id;
} ds_lm_info;
DS_API ds_lm_info ds_lm_info_of(const ds_module *model);

/* model.gradient_checkpointing_enable: backward runs each layer's forward again
 * in place of keeping its activations. */
DS_API ds_status ds_lm_set_checkpointing(ds_module *model, bool on);

/* ---- generation ------------------------------------------------------------------------ */

#define DS_MAX_STOP_TOKENS 16

/* When a beam search ends, before max_new_tokens: early_stopping of
 * transformers. A running beam's possible score is its sum of logarithms /
 * length^length_penalty. */
typedef enum ds_early_stopping {
    DS_EARLY_STOPPING_FALSE, /* if no possible score, at its length, is above the worst sequence's */
    DS_EARLY_STOPPING_TRUE,  /* also as soon as there are num_beams sequences */
    DS_EARLY_STOPPING_NEVER  /* as false, but at the length max_new_tokens if length_penalty > 0 */
} ds_early_stopping;

/* Lists are borrowed for the time of a call. */
typedef struct ds_token_ids {
    const int64_t *ids; /* [n] */
    int64_t n;
} ds_token_ids;

typedef struct ds_sequence_bias {
    ds_token_ids sequence; /* at least one token */
    double bias;
} ds_sequence_bias;

typedef struct ds_length_decay {
    int64_t start; /* new tokens */
    double factor; /* 0: none; DS_ZERO: 0 */
} ds_length_decay;

typedef struct ds_generate_opts {
    int64_t max_new_tokens;           /* 0: 20 */
    bool do_sample;                   /* draw tokens; else the most probable one (greedy) */
    double temperature;               /* logits are divided by it; 0: 1; DS_ZERO: greedy */
    int64_t top_k;                    /* draw among the k most probable tokens; 0: 50, -1: all */
    double top_p;                     /* draw among the fewest that have this probability; 0: 1 */
    double repetition_penalty;        /* of tokens that the row has already, above 0; 0: 1 */
    int64_t stop[DS_MAX_STOP_TOKENS]; /* ids of the vocabulary that end a row, its last one */
    int n_stop;
    int64_t pad_token_id; /* fills rows that ended, and marks padding of ids */
    uint64_t seed;        /* equal seeds draw equal tokens, row by row */
    /* Where the last tokens were in the row before, up to this many that
     * followed them there are tried at once, and those that are right are kept:
     * the tokens are the same, and a text that repeats itself comes faster. 0:
     * 7, on a GPU none; -1: none. All rows of a step together are at most 8
     * positions, in 16 bits 4; so a large batch tries none. */
    int64_t prompt_lookup_num_tokens;
    /* The model is its own assistant: with 8-bit copies of its matrices, which
     * are read in a quarter of the time, it drafts up to this many tokens,
     * which are tried as those of prompt_lookup_num_tokens, so that the tokens
     * are the same. Copies are made by the first call, and stay with the model
     * until a step of training; they take a quarter of the float32 weights'
     * memory. 0: 7 where that is the faster way: more than 64 MB of float32
     * matrices in the host's memory, 32 new tokens or more, few rows; else
     * none. -1: none. */
    int64_t num_assistant_tokens;
    /* Keys and values of this call's tokens stay with the model, and where a
     * later prompt of the same number of rows begins as this one and the tokens
     * that followed, only the rest of it is computed: a conversation. Its sums
     * are then in another order, and its tokens may be others where two are
     * nearly as probable. Between such calls parameters do not change, except
     * by a training step of the model, which ends what is kept. */
    bool cache_prompt;
    double min_p; /* draw tokens that have this share of the largest probability; 0: all */
    /* draw tokens whose information is near the entropy, the fewest that have
     * this probability: locally typical sampling; 0, 1: all */
    double typical_p;
    double epsilon_cutoff; /* draw tokens of at least this probability; 0: all */
    double eta_cutoff;     /* the same, of less if the entropy is large: eta sampling; 0: all */
    int64_t no_repeat_ngram_size; /* N tokens in a row come once; 0: any number of times */
    int64_t min_new_tokens;       /* tokens that come before a stop token, at least */
    /* Beam search: each step keeps the num_beams most probable rows of each
     * prompt; with do_sample they are drawn from the distribution that top_k,
     * top_p and min_p leave (beam sampling). 0: 1. Scores are sums of
     * logarithms of probabilities / length^length_penalty; above 0 it favours
     * longer sequences. 0: 1; DS_ZERO: 0. Beams have no drafts. */
    int64_t num_beams;
    double length_penalty;
    ds_early_stopping early_stopping;
    /* Rows of the result for each prompt, next to each other: the best of
     * num_beams, in order; or as many that are drawn. 0: 1 */
    int64_t num_return_sequences;
    float *sequences_scores;   /* receives the score of each row of the result, of beams; or NULL */
    int64_t *sequence_lengths; /* receives the tokens of each row, without padding; or NULL */
    double top_h;              /* draw tokens that have this share of the entropy (top-H); 0: all */
    int64_t min_length;        /* as min_new_tokens, which replaces it, with the prompt's tokens */
    /* Tokens that never come, that are not the first new one, and sequences
     * that never come. One of a single stop token does not count. */
    ds_token_ids suppress_tokens, begin_suppress_tokens;
    const ds_token_ids *bad_words_ids; /* [n_bad_words_ids] */
    int64_t n_bad_words_ids;
    const ds_sequence_bias *sequence_bias; /* added to the logit of a sequence's last token */
    int64_t n_sequence_bias;               /* behind the others; of equal ones the last counts */
    double encoder_repetition_penalty;     /* above 1 favours tokens of the prompt; 0: 1 */
    int64_t encoder_no_repeat_ngram_size;  /* N tokens in a row of the prompt do not come again */
    /* The first new token behind a prompt of one token, and the last one of
     * max_new_tokens, are among these. */
    ds_token_ids forced_bos_token_id, forced_eos_token_id;
    /* Behind `start` new tokens, the logit x of a stop token gains
     * |x| (factor^k - 1), k = 1, 2, ... */
    ds_length_decay exponential_decay_length_penalty;
    /* Texts that end a row with the token that completes one of them: it may
     * begin in the prompt, and end within that token. With the tokenizer. */
    const ds_tokenizer *tokenizer;   /* borrowed; NULL: none */
    const char *const *stop_strings; /* [n_stop_strings] */
    int n_stop_strings;
    bool remove_invalid_values; /* a logit of NaN counts as 0, an infinite one as finite */
    bool renormalize_logits;    /* scores of beams are probabilities of the tokens that are left */
    /* int64 [B,L], 0 where ids have padding, which is on the left; NULL: none */
    ds_tensor *attention_mask;
    /* Called for each token of each row that has not ended; false: the row ends
     * with it. Not for beams. */
    bool (*on_token)(void *arg, int64_t row, int64_t id);
    /* Called for each token of each row that has not ended, with all n new ids
     * of the row; true: the row ends with the last one. For beams: of each row
     * that may go on, and `row` is its prompt. */
    bool (*stopping_criteria)(void *arg, int64_t row, const int64_t *ids, int64_t n);
    void *arg;
} ds_generate_opts;

/* model.generate: ids int64 [B,L], the prompts, on any device -> int64 [B,N] on
 * the same, the tokens that follow, N <= max_new_tokens: ds_generate(model,
 * ids, 100, .do_sample = true). With num_return_sequences R: [B R,N]. Keys and
 * values of earlier positions are kept (in the model's dtype), so that a token
 * costs one position at most. On a GPU the model keeps them, and the graph of a
 * token, for the next call; they are given up for an allocation that would
 * fail, by a step of training, and with the model. Greedy tokens, and those of
 * beam search and their scores, are those of transformers. Order:
 * sequence_bias, encoder_repetition_penalty, repetition_penalty,
 * no_repeat_ngram_size, encoder_no_repeat_ngram_size, bad_words_ids,
 * min_length, min_new_tokens, forced_bos_token_id, forced_eos_token_id,
 * remove_invalid_values, exponential_decay_length_penalty, suppress_tokens,
 * begin_suppress_tokens, temperature, top_h, top_k, top_p, min_p, typical_p,
 * epsilon_cutoff, eta_cutoff, renormalize_logits. Padding of ids counts in none
 * of them. */
#define ds_generate(model, ids, ...) \
    ds_generate_with(model, ids, (ds_generate_opts){.max_new_tokens = __VA_ARGS__})
DS_API ds_tensor *ds_generate_with(ds_module *model, ds_tensor *ids, ds_generate_opts opts);

/* The options in generation_config.json of the model's folder, and
 * config.json's end and padding tokens; other options are 0. Lists belong to
 * the model, and are valid until the next call that finds another file.
 * stop_strings need a tokenizer, which the caller adds. A line of the log names
 * the keys of the file that change the tokens in transformers and have no
 * option here ("guidance_scale"). A value of another kind, or outside of its
 * range, is a failure (DS_EFORMAT): n_stop is then -1, which ds_generate
 * refuses. */
DS_API ds_generate_opts ds_generation_config(const ds_module *model);

/* ---- LoRA: Hu et al., arXiv:2106.09685; PEFT's files ---------------------------------- */

typedef struct ds_lora_opts {
    int64_t r;                  /* rank of the update; 0: 8 */
    double alpha;               /* the update counts alpha / r; 0: 8 */
    bool use_rslora;            /* alpha / sqrt(r) */
    double dropout;             /* of the adapter's input, in training */
    const char *const *targets; /* ends of layers' paths ("q_proj"), n_targets; NULL: PEFT's for
                                   the architecture: c_attn, or q_proj and v_proj, also
                                   where PEFT has none; for Phi-3 qkv_proj and o_proj */
    int n_targets;
    bool use_dora;    /* DoRA, Liu et al., arXiv:2402.09353: each output has a magnitude */
    const char *bias; /* biases that are trained too: "all" of the model, "lora_only" those of
                         layers with an adapter; NULL: "none" */
    /* Ends of modules' paths ("lm_head", "norm"), n_modules_to_save: their
     * parameters are trained too, and saved with the adapters. */
    const char *const *modules_to_save;
    int n_modules_to_save;
    bool ensure_weight_tying;       /* a saved embedding of a tied model is the head, too; else the
                                 head becomes a module of its own */
    bool no_autocast_adapter_dtype; /* adapters of a 16-bit model have its dtype; else float32 */
} ds_lora_opts;

/* get_peft_model: freezes all parameters and adds trained matrices A [r,in]
 * (drawn at random) and B [out,r] (zeros) to the named layers:
 * y = W x + scale B (A x). DoRA: y = m / |W + scale B A| (W x + scale B (A x)),
 * where the norm is that of each output's row, a constant in backward, and m
 * [out] is trained from |W|. Before ds_initialize, which converts them to the
 * configuration's dtype; all ranks call it.
 * DS_EINVAL: a name that no layer has, or a model that has adapters.
 * ds_lora(model, .r = 16). */
#define ds_lora(model, ...) ds_lora_with(model, (ds_lora_opts){__VA_ARGS__})
DS_API ds_status ds_lora_with(ds_module *model, ds_lora_opts opts);

/* PeftModel.from_pretrained: adapters from a folder with adapter_config.json
 * and adapter_model.safetensors; trained ones, as ds_lora makes them. Refuses
 * what changes the result and is not implemented (target_parameters, lora_bias,
 * ...). target_modules may be a pattern; rank_pattern and alpha_pattern name
 * layers. A failure leaves the model without adapters. All ranks call it. */
DS_API ds_status ds_lora_load(ds_module *model, const char *folder);

/* save_pretrained of the adapters, in the same files. weights: a state dict of
 * the model, as ds_engine_state returns it, or NULL: the model's own. */
DS_API ds_status ds_lora_save(ds_module *model, const char *folder, const ds_state *weights);

/* merge_and_unload: adds the updates to the layers' weights and removes the
 * adapters from the computation. A model whose head became a module of its own
 * is saved as one that is not tied. */
DS_API ds_status ds_lora_merge(ds_module *model);

#ifdef __cplusplus
}
#endif
#endif
