/* text/added_tokens.h: tokens that are looked for in the text before it is
 * split, such as <|endoftext|>.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"

#include <deepspeed/types.h>

typedef struct dsi_added_token {
    char *content; /* as looked for; owned */
    size_t n;
    uint32_t id;
    bool single_word;    /* only where no letter or digit touches it */
    bool lstrip, rstrip; /* it takes in the white space on that side */
} dsi_added_token;

/* Tokens that are looked for in one form of the text: as it came, or
 * normalized. Invariant, after dsi_added_tokens_sort: tokens of the same first
 * byte are neighbours, longer ones first; first[c] is the first of byte c. */
typedef struct dsi_added_tokens {
    DSI_LIST(dsi_added_token)
    int first[256]; /* -1: no token begins with this byte */
    struct dsi_added_place {
        uint32_t id;
        int at;
    } * by_id; /* [n]: the tokens' places, by rising id */
} dsi_added_tokens;

/* Sorts the list and fills `first` and `by_id`. Call it once, after the last
 * token was added. */
void dsi_added_tokens_sort(dsi_added_tokens *a);
/* The token of that id, borrowed; NULL: there is none. */
const dsi_added_token *dsi_added_token_find(const dsi_added_tokens *a, uint32_t id);
void dsi_added_tokens_free(dsi_added_tokens *a);

/* A section of a text: [begin, end); id is DSI_NO_TOKEN for ordinary text. */
typedef struct dsi_section {
    size_t begin, end;
    uint32_t id;
} dsi_section;

/* Divides s, n bytes of valid UTF-8, into sections: added tokens and the text
 * between them. Set tokens, s and n, and leave the rest 0. The leftmost token
 * is taken; of several that begin there, the longest. */
typedef struct dsi_section_iterator {
    const dsi_added_tokens *tokens;
    const char *s;
    size_t n;
    size_t at;     /* where the next section begins */
    size_t search; /* where the next token is looked for */
    dsi_section token;
    bool has_token; /* token follows the section handed out last */
} dsi_section_iterator;
/* Puts the next section, never empty, into *out; false at the text's end. */
bool dsi_section_next(dsi_section_iterator *it, dsi_section *out);
