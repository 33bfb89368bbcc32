/* deepspeed/text.h: tokenizers of Hugging Face's tokenizer.json; templates of
 * chats.
 *
 *     ds_tokenizer *t = ds_tokenizer_load("gpt2");
 *     ds_tokens tokens = {0};
 *     ds_encode(t, text, strlen(text), &tokens, (ds_encode_opts){0});
 *     char *same = ds_decode(t, tokens.ids, tokens.n, (ds_decode_opts){0});
 *     free(same);
 *     ds_tokens_free(&tokens);
 *     ds_tokenizer_free(t);
 *
 * Ids and text are those of the Python package tokenizers, for models of type
 * BPE: byte-level (GPT-2, OPT, Pythia, Llama 3, Qwen2, SmolLM2) and with byte
 * fallback (Llama 2, Mistral, Phi-3, Gemma). A component of the file that would
 * change the result and is not implemented is refused by name when the file is
 * loaded.
 *
 * A tokenizer is used by one thread at a time: it remembers words.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_TEXT_H
#define DEEPSPEED_TEXT_H

#include <deepspeed/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_tokenizer ds_tokenizer;

/* Loads a tokenizer. path: tokenizer.json, or a folder that contains it, or
 * vocab.json and merges.txt of a GPT2Tokenizer in its place.
 * Returns NULL with a message if the file cannot be read (DS_EIO), is not what
 * it should be (DS_EFORMAT), or needs what is not implemented (DS_EINVAL). */
DS_API ds_tokenizer *ds_tokenizer_load(const char *path);

/* The same from the text of a tokenizer.json of `bytes` bytes; name begins
 * messages. */
DS_API ds_tokenizer *ds_tokenizer_from_json(const char *json, size_t bytes, const char *name);
DS_API void ds_tokenizer_free(ds_tokenizer *t); /* NULL: nothing */

/* Number of tokens, added ones included: one more than the highest id. */
DS_API int64_t ds_tokenizer_vocab_size(const ds_tokenizer *t);
/* The id of a token as it is written in tokenizer.json; -1: there is none. */
DS_API int64_t ds_token_to_id(const ds_tokenizer *t, const char *token);
/* The token of an id, as it is written in tokenizer.json; NULL: there is none.
 * Valid as long as t. */
DS_API const char *ds_id_to_token(const ds_tokenizer *t, int64_t id);

/* A growable list of ids; all 0 at first. */
typedef struct ds_tokens {
    uint32_t *ids; /* [n] */
    int64_t n, room;
} ds_tokens;
DS_API void ds_tokens_free(ds_tokens *tokens);

typedef struct ds_encode_opts {
    bool no_special_tokens; /* do not add begin and end tokens; special tokens
                               that the text contains are found all the same */
} ds_encode_opts;

/* Tokenizer.encode: appends the ids of text, `bytes` bytes of UTF-8, to *out.
 * Bytes that are not UTF-8 count as U+FFFD, as in Python's "replace". Fails
 * only if the file's pattern exceeds its limits on this text (DS_EFORMAT), or a
 * library is missing (DS_EIO); *out is then as before. */
DS_API ds_status ds_encode(ds_tokenizer *t, const char *text, size_t bytes, ds_tokens *out,
                           ds_encode_opts opts);

typedef struct ds_decode_opts {
    size_t *bytes;            /* if not NULL: receives the length */
    bool keep_special_tokens; /* the default leaves them out */
} ds_decode_opts;

/* Tokenizer.decode: the text of n ids, ended by a 0 byte, to be freed with
 * free(). Unknown ids are left out. */
DS_API char *ds_decode(const ds_tokenizer *t, const uint32_t *ids, int64_t n, ds_decode_opts opts);

/* DecodeStream of tokenizers: text of ids that come one by one. */
typedef struct ds_decode_stream ds_decode_stream;
/* t is borrowed until ds_decode_stream_free. */
DS_API ds_decode_stream *ds_decode_stream_new(const ds_tokenizer *t, bool keep_special_tokens);
/* The text that id completes: whole characters, "" while one is incomplete.
 * Valid until the next call. */
DS_API const char *ds_decode_stream_step(ds_decode_stream *s, uint32_t id);
DS_API void ds_decode_stream_free(ds_decode_stream *s);

/* ---- chats ---- */

/* A model's template of chats: what its messages are as one text. */
typedef struct ds_chat_template ds_chat_template;

/* Loads the template of a folder as transformers 5 does: chat_template.jinja
 * and additional_chat_templates, else "chat_template" of tokenizer_config.json,
 * a text or a list of names and texts; and the special tokens that templates
 * name (bos_token, eos_token ...). Returns NULL with a message if there is none
 * (DS_EINVAL), a file cannot be read (DS_EIO), or a template has what is not
 * implemented, with its line (DS_EFORMAT). Templates are Jinja's, in its
 * sandbox; time and memory of one are limited. */
DS_API ds_chat_template *ds_chat_template_load(const char *folder);
DS_API void ds_chat_template_free(ds_chat_template *t); /* NULL: nothing */

typedef struct ds_chat_opts {
    bool add_generation_prompt; /* end with what an answer of the model begins with */
    const char *tools;          /* JSON: a list of functions' schemas; NULL: none */
    const char *variables; /* JSON: an object with more variables of the template; NULL: none */
    size_t *bytes;         /* if not NULL: receives the length */
} ds_chat_opts;

/* tokenizer.apply_chat_template(messages, tokenize=False): messages is JSON,
 * [{"role": "user", "content": "Hello"}, ...]. Returns the text, to be freed
 * with free(); its ids are those of ds_encode with .no_special_tokens = true,
 * as the template writes the begin token itself. NULL with a message if JSON is
 * not what it should be (DS_EINVAL), the template refuses the conversation
 * (raise_exception, DS_EINVAL), or fails (DS_EFORMAT). */
#define ds_chat_apply(template, messages, ...) \
    ds_chat_apply_with(template, messages, (ds_chat_opts){.add_generation_prompt = __VA_ARGS__})
DS_API char *ds_chat_apply_with(const ds_chat_template *t, const char *messages, ds_chat_opts opts);

typedef struct ds_tokenizer_train_opts {
    int64_t vocab_size;       /* 257 or more: an end token, 256 bytes, merges */
    const char *const *files; /* n_files paths of UTF-8 text */
    int n_files;
    const char *end_token; /* NULL: "<|endoftext|>"; its id is 0 */
} ds_tokenizer_train_opts;

/* Trains a byte-level BPE on text and writes a tokenizer.json to `out`:
 * ds_tokenizer_train("tokenizer.json", 4096, .files = files, .n_files = 1). The
 * most frequent pair is merged until there are vocab_size tokens, or no pair
 * occurs twice. Words are GPT-2's. */
#define ds_tokenizer_train(out, ...) \
    ds_tokenizer_train_with(out, (ds_tokenizer_train_opts){.vocab_size = __VA_ARGS__})
DS_API ds_status ds_tokenizer_train_with(const char *out, ds_tokenizer_train_opts opts);

#ifdef __cplusplus
}
#endif
#endif
