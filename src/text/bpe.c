/* text/bpe.c: byte pair encoding of one word.
 *
 * Short words are merged by looking at all pairs for each merge: O(n^2), and
 * fastest up to about 60 symbols. Long words use a heap of pairs: O(n log n). A
 * text without a pre-tokenizer is one long word.
 *
 * Invariants: merges is an open-addressing hash table of pairs, at most half
 * full, so each search meets a free slot. symbols and heap are scratch memory
 * of one call of dsi_bpe_encode: two threads may not share a dsi_bpe. In a
 * long word a symbol keeps its index; merged ones are unlinked from the list
 * that prev and next form.
 * SPDX-License-Identifier: MIT */
#include "bpe.h"

#include "base/mem.h"
#include "unicode.h"

#include <string.h>

#define SHORT_WORD 64 /* symbols */

/* Appends id. Doubles the memory when it is full; ds_tokens_free releases
 * it. */
void dsi_tokens_add(ds_tokens *tokens, uint32_t id)
{
    if (tokens->n == tokens->room) {
        tokens->room = tokens->room ? 2 * tokens->room : 64;
        tokens->ids = dsi_realloc(tokens->ids, (size_t)tokens->room * sizeof *tokens->ids);
    }
    tokens->ids[tokens->n++] = id;
}

/* ---- merges ---- */

/* The slot of the pair, or the free one where it would be: linear probing. The
 * multiplier is 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4); bits 20
 * and up of the product depend on all bits of both ids. */
static size_t merge_slot(const dsi_bpe *b, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    size_t i = (h >> 20) & (b->n_merge_slots - 1);
    while (b->merges[i].left != DSI_NO_TOKEN &&
           (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & (b->n_merge_slots - 1);
    return i;
}

/* At least 16 slots, also for no merges: a search always ends at a free one. */
void dsi_bpe_init_merges(dsi_bpe *b, size_t n)
{
    b->n_merge_slots = 16;
    while (b->n_merge_slots < 2 * n) b->n_merge_slots *= 2;
    b->merges = dsi_alloc(b->n_merge_slots * sizeof *b->merges);
    for (size_t i = 0; i < b->n_merge_slots; i++) b->merges[i].left = DSI_NO_TOKEN;
}

/* A pair that occurs twice has the later rank, as in a map that is filled in
 * order. */
void dsi_bpe_add_merge(dsi_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    b->merges[merge_slot(b, left, right)] = (dsi_merge){left, right, rank, id};
}

void dsi_bpe_free(dsi_bpe *b)
{
    dsi_vocab_free(&b->vocab);
    dsi_free(b->merges);
    dsi_list_free(&b->symbols);
    dsi_list_free(&b->heap);
    *b = (dsi_bpe){0};
}

/* Stores in s the merge of s with the symbol `right` that follows it, if
 * any. */
static inline void symbol_set_merge(const dsi_bpe *b, dsi_symbol *s, uint32_t right)
{
    const dsi_merge *m = &b->merges[merge_slot(b, s->id, right)];
    s->rank = m->left == DSI_NO_TOKEN ? DSI_NO_TOKEN : m->rank;
    s->merged = m->id;
}

/* ---- first symbols ---- */

/* Appends a symbol without a merge. */
static void symbol_add(dsi_bpe *b, uint32_t id)
{
    dsi_list_add(&b->symbols, (dsi_symbol){.id = id});
}

/* A character that is no token: its bytes as <0xNN>, or unk. *unk_before:
 * whether the symbol before it is an unk that may take this one in. */
static void symbol_add_unknown(dsi_bpe *b, const char *c, size_t n, bool *unk_before)
{
    bool bytes = b->byte_fallback;
    for (size_t i = 0; bytes && i < n; i++)
        bytes = b->byte_token[(unsigned char)c[i]] != DSI_NO_TOKEN;
    if (bytes) {
        for (size_t i = 0; i < n; i++) symbol_add(b, b->byte_token[(unsigned char)c[i]]);
        *unk_before = false;
    } else if (b->unk != DSI_NO_TOKEN) {
        if (!(b->fuse_unk && *unk_before)) symbol_add(b, b->unk);
        *unk_before = true;
    }
}

/* The word as its first symbols, before any merge: bytes, or characters. */
static void word_split(dsi_bpe *b, const char *word, size_t n)
{
    b->symbols.n = 0;
    bool unk_before = false;
    for (size_t i = 0; i < n;) {
        size_t length = b->byte_level ? 1 : dsi_utf8_length(word + i);
        if (length > n - i) length = n - i;
        uint32_t id = b->byte_level ? b->byte_token[(unsigned char)word[i]]
                                    : dsi_vocab_find(&b->vocab, word + i, length);
        if (id != DSI_NO_TOKEN)
            symbol_add(b, id), unk_before = false;
        else
            symbol_add_unknown(b, word + i, length, &unk_before);
        i += length;
    }
}

/* ---- merging ---- */

/* Looks at all pairs for each merge: n^2, but in one piece of memory. */
static void merge_short(dsi_bpe *b)
{
    dsi_symbol *s = b->symbols.at;
    int n = b->symbols.n;
    for (int i = 0; i + 1 < n; i++) symbol_set_merge(b, &s[i], s[i + 1].id);
    for (;;) {
        int best = -1;
        uint32_t rank = DSI_NO_TOKEN;
        for (int i = 0; i + 1 < n; i++)
            if (s[i].rank < rank) rank = s[best = i].rank;
        if (best < 0) break;
        s[best].id = s[best].merged;
        memmove(s + best + 1, s + best + 2, (size_t)(n - best - 2) * sizeof *s);
        n--;
        if (best > 0) symbol_set_merge(b, &s[best - 1], s[best].id);
        if (best + 1 < n) symbol_set_merge(b, &s[best], s[best + 1].id);
    }
    b->symbols.n = n;
}

/* The heap holds rank << 32 | index of the left symbol, the least on top. An
 * entry is out of date if that symbol's rank is another one by now. */
static void heap_push(dsi_bpe *b, uint64_t x)
{
    dsi_list_add(&b->heap, x);
    uint64_t *h = b->heap.at;
    int i = b->heap.n - 1;
    for (; i > 0 && h[(i - 1) / 2] > x; i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = x;
}

/* Takes the least entry out; the heap is not empty. */
static uint64_t heap_pop(dsi_bpe *b)
{
    uint64_t *h = b->heap.at, top = h[0], x = h[--b->heap.n];
    int n = b->heap.n, i = 0;
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1] < h[child]) child++;
        if (h[child] >= x) break;
        h[i] = h[child];
    }
    h[i] = x;
    return top;
}

/* Computes the merge of symbol i with its right neighbour, and pushes it.
 * Called when i has a new neighbour or a new id. */
static void long_update(dsi_bpe *b, uint32_t i)
{
    dsi_symbol *s = &b->symbols.at[i];
    s->rank = DSI_NO_TOKEN;
    if (s->next == DSI_NO_TOKEN) return;
    symbol_set_merge(b, s, b->symbols.at[s->next].id);
    if (s->rank != DSI_NO_TOKEN) heap_push(b, (uint64_t)s->rank << 32 | i);
}

/* The symbols are a list linked by index; one that was merged into its left
 * neighbour drops out of it. An entry of the heap that is out of date is
 * recognised by its rank and skipped, which is cheaper than removing it. */
static void merge_long(dsi_bpe *b)
{
    uint32_t n = (uint32_t)b->symbols.n;
    b->heap.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        b->symbols.at[i].prev = i ? i - 1 : DSI_NO_TOKEN;
        b->symbols.at[i].next = i + 1 < n ? i + 1 : DSI_NO_TOKEN;
    }
    for (uint32_t i = 0; i < n; i++) long_update(b, i);
    while (b->heap.n) {
        uint64_t top = heap_pop(b);
        uint32_t i = (uint32_t)top;
        dsi_symbol *s = b->symbols.at;
        /* An older entry: the symbol was merged away or has another merge
         * now. */
        if (s[i].rank != top >> 32) continue;
        uint32_t gone = s[i].next;
        s[i].id = s[i].merged;
        s[i].next = s[gone].next;
        s[gone].rank = DSI_NO_TOKEN;
        if (s[i].next != DSI_NO_TOKEN) s[s[i].next].prev = i;
        long_update(b, i);
        if (s[i].prev != DSI_NO_TOKEN) long_update(b, s[i].prev);
    }
}

/* ignore_merges: a word that is a token as a whole needs no merges. Both ways
 * of merging give the same ids; only their time differs. */
void dsi_bpe_encode(dsi_bpe *b, const char *word, size_t n, ds_tokens *out)
{
    if (b->ignore_merges) {
        uint32_t id = dsi_vocab_find(&b->vocab, word, n);
        if (id != DSI_NO_TOKEN) {
            dsi_tokens_add(out, id);
            return;
        }
    }
    word_split(b, word, n);
    if (b->symbols.n <= SHORT_WORD) {
        merge_short(b);
        for (int i = 0; i < b->symbols.n; i++) dsi_tokens_add(out, b->symbols.at[i].id);
        return;
    }
    merge_long(b);
    for (uint32_t i = 0; i != DSI_NO_TOKEN; i = b->symbols.at[i].next)
        dsi_tokens_add(out, b->symbols.at[i].id);
}
