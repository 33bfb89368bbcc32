/* models/stop_strings.c: texts that end a row: those that end in the bytes of
 * its last token, as transformers' StopStringCriteria finds them.
 * SPDX-License-Identifier: MIT */
#include "stop_strings.h"

#include "base/error.h"
#include "base/int.h"
#include "text/tokenizer.h"

#include <string.h>

bool dsi_lm_check_stop_strings(const ds_generate_opts *o)
{
    if (!o->n_stop_strings) return true;
    if (o->n_stop_strings < 0 || !o->stop_strings)
        return dsi_invalid("generate: %d stop_strings: expected a list of 0 or more",
                           o->n_stop_strings);
    if (!o->tokenizer)
        return dsi_invalid("generate: stop_strings \"%s\" ...: expected a tokenizer beside them",
                           o->stop_strings[0]);
    for (int i = 0; i < o->n_stop_strings; i++)
        if (!o->stop_strings[i] || !*o->stop_strings[i])
            return dsi_invalid("generate: a text of stop_strings is empty");
    return true;
}

/* Whether a stop string of length n is in the text and ends behind `before`
 * bytes. */
static bool text_has(const dsi_text *text, size_t before, const char *stop, size_t n)
{
    for (size_t at = before < n ? 0 : before - n + 1; at + n <= text->n; at++)
        if (!memcmp(text->s + at, stop, n)) return true;
    return false;
}

/* A token has one byte at least, so as many tokens as the longest stop string
 * has bytes are enough. */
bool dsi_lm_stop_string_ends(const ds_generate_opts *o, const int64_t *ids, int64_t n)
{
    int64_t longest = 0;
    for (int i = 0; i < o->n_stop_strings; i++)
        longest = dsi_max(longest, (int64_t)strlen(o->stop_strings[i]));
    dsi_text text = {0};
    size_t before = 0; /* bytes of the tokens before the last */
    for (int64_t i = dsi_max(0, n - longest); i < n; i++) {
        before = text.n;
        dsi_token_add_text(o->tokenizer, ids[i], &text);
    }
    bool ends = false;
    for (int i = 0; i < o->n_stop_strings && !ends; i++)
        ends = text_has(&text, before, o->stop_strings[i], strlen(o->stop_strings[i]));
    dsi_text_free(&text);
    return ends;
}
