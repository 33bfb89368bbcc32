/* text/offsets.h: the bytes of a text that its ids are of.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "jinja/jinja.h"

#include <deepspeed/text.h>

/* at[i] receives the bytes of text[0..n) of ids[i], as Encoding.offsets of the
 * package tokenizers, which counts characters. ids [count] are those of
 * ds_encode without special tokens. DS_EINVAL if the tokenizer changes the text
 * so that the bytes of an id are not known. */
ds_status dsi_token_offsets(const ds_tokenizer *t, const char *text, size_t n, const uint32_t *ids,
                            int64_t count, dsi_jinja_span *at);
