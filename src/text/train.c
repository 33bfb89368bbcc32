/* text/train.c: a tokenizer of a user's own: byte-level byte pair encoding;
 * Sennrich et al., arXiv:1508.07909, with GPT-2's bytes and words.
 *
 * Words and how often they occur are counted once. A merge changes only words
 * that have its pair; each pair knows how often it occurs and in which words it
 * may. The most frequent pair is found by a scan of the pairs, of which there
 * are some tens of thousands.
 *
 * Invariant: count[pair] is exact; words[pair] may name words that have lost it.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/text.h"
#include "pre_tokenizer.h"
#include "regex.h"

#include <deepspeed/text.h>

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* GPT-2's words. */
static const char word_pattern[] =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct Word {
    uint32_t *id;
    int n;
    int64_t count;
} Word;

typedef struct Pair {
    uint32_t left, right;
    int64_t count;
    struct {
        DSI_LIST(int)
    } words;
} Pair;

typedef struct Train {
    dsi_map map; /* of words: name -> 1 + index; of pairs: see pair_of */
    dsi_map pair_map;
    struct {
        DSI_LIST(Word)
    } words;
    struct {
        DSI_LIST(Pair)
    } pairs;
    char **token; /* [vocab] bytes as GPT-2's characters */
    int64_t n_tokens;
} Train;

/* ---- words ---- */

static ds_status word_count(void *arg, const char *word, size_t n)
{
    Train *t = arg;
    char name[3 * 64 + 1] = ""; /* in hexadecimal: words may hold any byte */
    if (n > 64) return DS_OK;   /* no word that is worth a token */
    for (size_t i = 0; i < n; i++) snprintf(name + 2 * i, 3, "%02x", (unsigned char)word[i]);
    intptr_t at = (intptr_t)dsi_map_get(&t->map, name);
    if (!at) {
        Word w = {.id = dsi_alloc(n * sizeof *w.id), .n = (int)n};
        for (size_t i = 0; i < n; i++) w.id[i] = (unsigned char)word[i];
        dsi_list_add(&t->words, w);
        at = t->words.n;
        dsi_map_set(&t->map, name, (void *)at);
    }
    t->words.at[at - 1].count++;
    return DS_OK;
}

static ds_status words_read(Train *t, const char *path, const dsi_pre_tokenizer *split)
{
    size_t n;
    char *text = dsi_file_read(path, &n);
    if (!text) return ds_error_status();
    ds_status status = DS_OK;
    if (!dsi_is_utf8(text, n))
        status = dsi_fail(DS_EFORMAT, "tokenizer_train: %s is not UTF-8", path);
    else if (n)
        status = dsi_pre_tokenize(split, text, n, true, word_count, t);
    dsi_free(text);
    return status;
}

/* ---- pairs ---- */

static Pair *pair_of(Train *t, uint32_t left, uint32_t right)
{
    char name[24];
    snprintf(name, sizeof name, "%x %x", left, right);
    intptr_t at = (intptr_t)dsi_map_get(&t->pair_map, name);
    if (!at) {
        dsi_list_add(&t->pairs, (Pair){.left = left, .right = right});
        at = t->pairs.n;
        dsi_map_set(&t->pair_map, name, (void *)at);
    }
    return &t->pairs.at[at - 1];
}

/* Adds sign times the pairs of word w. */
static void pairs_add(Train *t, int w, int sign)
{
    const Word *word = &t->words.at[w];
    for (int i = 0; i + 1 < word->n; i++) {
        Pair *p = pair_of(t, word->id[i], word->id[i + 1]);
        p->count += sign * word->count;
        if (sign > 0 && (!p->words.n || p->words.at[p->words.n - 1] != w))
            dsi_list_add(&p->words, w);
    }
}

/* The most frequent pair, of equals the first by its tokens; NULL: none occurs
 * twice. */
static Pair *pair_best(const Train *t)
{
    Pair *best = NULL;
    for (int i = 0; i < t->pairs.n; i++) {
        Pair *p = &t->pairs.at[i];
        if (p->count < 2 || (best && p->count < best->count)) continue;
        bool first = !best || p->count > best->count || p->left < best->left ||
                     (p->left == best->left && p->right < best->right);
        if (first) best = p;
    }
    return best;
}

/* Replaces the pair in all words by token `to`. */
static void pair_merge(Train *t, Pair *best, uint32_t to)
{
    uint32_t left = best->left, right = best->right;
    struct {
        DSI_LIST(int)
    } words = {best->words.at, best->words.n, best->words.room};
    best->words.at = NULL, best->words.n = best->words.room = 0;
    for (int i = 0; i < words.n; i++) {
        Word *w = &t->words.at[words.at[i]];
        int n = 0;
        pairs_add(t, words.at[i], -1);
        for (int k = 0; k < w->n; k++) {
            bool here = k + 1 < w->n && w->id[k] == left && w->id[k + 1] == right;
            w->id[n++] = here ? to : w->id[k];
            k += here;
        }
        w->n = n;
        pairs_add(t, words.at[i], 1);
    }
    dsi_list_free(&words);
}

/* ---- tokens as text ---- */

/* GPT-2's character of a byte, as UTF-8. */
static void byte_text(int byte, char out[3])
{
    bool same = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    int code = byte, shift = 0;
    for (int b = 0; b < byte && !same; b++)
        shift += !((b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae);
    if (!same) code = 256 + shift;
    if (code < 128) {
        out[0] = (char)code, out[1] = '\0';
        return;
    }
    out[0] = (char)(0xc0 | code >> 6), out[1] = (char)(0x80 | (code & 0x3f)), out[2] = '\0';
}

/* ids: end token, bytes, merges; words count bytes from 0. */
static ds_status train_merges(Train *t, int64_t vocab, const char *end, json_t *ids, json_t *merges)
{
    t->token = dsi_alloc((size_t)vocab * sizeof *t->token);
    json_object_set_new(ids, end, json_integer(0));
    for (int b = 0; b < 256; b++) {
        char text[3];
        byte_text(b, text);
        t->token[b] = dsi_strdup(text);
        json_object_set_new(ids, text, json_integer(1 + b));
    }
    for (int w = 0; w < t->words.n; w++) pairs_add(t, w, 1);
    for (t->n_tokens = 256; t->n_tokens + 1 < vocab; t->n_tokens++) {
        Pair *best = pair_best(t);
        if (!best) break;
        const char *pair[] = {t->token[best->left], t->token[best->right]};
        dsi_text both = {0};
        dsi_text_add(&both, "%s%s", pair[0], pair[1]);
        json_array_append_new(merges, json_pack("[ss]", pair[0], pair[1]));
        if (!json_object_get(ids, both.s))
            json_object_set_new(ids, both.s, json_integer(1 + t->n_tokens));
        t->token[t->n_tokens] = both.s;
        pair_merge(t, best, (uint32_t)t->n_tokens);
    }
    return DS_OK;
}

static ds_status tokenizer_write(const char *path, const char *end, json_t *ids, json_t *merges)
{
    json_t *j = json_pack(
        "{s:s, s:n, s:n, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:n, s:{s:s, s:b, s:b, s:b}, "
        "s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:n, s:n, s:s, s:s, s:b, s:b, s:b, s:O, s:O}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "id", 0, "content", end,
        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer",
        "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
        1, "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets",
        1, "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0, "byte_fallback",
        0, "ignore_merges", 0, "vocab", ids, "merges", merges);
    char *text = j ? json_dumps(j, JSON_INDENT(1)) : NULL;
    dsi_file *f = text ? dsi_file_replace(path) : NULL;
    ds_status status = f ? DS_OK : ds_error() ? ds_error_status() : DS_ENOMEM;
    if (f) dsi_file_write(f, text, strlen(text)), status = dsi_file_commit(f);
    dsi_free(text);
    json_decref(j);
    return status;
}

static void train_free(Train *t)
{
    for (int i = 0; i < t->words.n; i++) dsi_free(t->words.at[i].id);
    for (int i = 0; i < t->pairs.n; i++) dsi_free(t->pairs.at[i].words.at);
    for (int64_t i = 0; t->token && i < t->n_tokens; i++) dsi_free(t->token[i]);
    dsi_free(t->token);
    dsi_list_free(&t->words), dsi_list_free(&t->pairs);
    dsi_map_free(&t->map), dsi_map_free(&t->pair_map);
}

ds_status ds_tokenizer_train_with(const char *out, ds_tokenizer_train_opts o)
{
    if (!out || !o.files) return dsi_null_argument("tokenizer_train");
    const char *end = o.end_token ? o.end_token : "<|endoftext|>";
    if (o.vocab_size < 257 || o.vocab_size > 1 << 24)
        return dsi_fail(DS_EINVAL, "tokenizer_train: vocab_size is %lld: expected 257 to %d",
                        (long long)o.vocab_size, 1 << 24);
    dsi_pre_tokenizer split = {0};
    dsi_regex *words = dsi_regex_new("tokenizer_train", word_pattern, false);
    if (!words) return ds_error_status();
    dsi_list_add(&split,
                 (dsi_pre_tokenizer_step){.pattern = words, .behavior = DSI_SPLIT_ISOLATED});
    Train t = {0};
    json_t *ids = json_object(), *merges = json_array();
    ds_status status = DS_OK;
    for (int i = 0; i < o.n_files && status == DS_OK; i++)
        status = words_read(&t, o.files[i], &split);
    if (status == DS_OK) status = train_merges(&t, o.vocab_size, end, ids, merges);
    if (status == DS_OK) status = tokenizer_write(out, end, ids, merges);
    json_decref(ids), json_decref(merges);
    dsi_pre_tokenizer_free(&split);
    train_free(&t);
    return status;
}
