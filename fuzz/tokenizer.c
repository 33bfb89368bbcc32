/* fuzz/tokenizer.c: any bytes as a tokenizer.json, then as a text for it: no
 * crash, no leak, ids within the vocabulary.
 *
 * scripts/fuzz tokenizer 300
 * SPDX-License-Identifier: MIT */
#include <deepspeed/text.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *s = (const char *)data;
    ds_error_clear();
    ds_tokenizer *t = ds_tokenizer_from_json(s, n, "fuzz");
    if (!t) {
        if (!ds_error()) abort();
        return 0;
    }
    ds_tokens ids = {0};
    if (ds_encode(t, s, n < 4096 ? n : 4096, &ids, (ds_encode_opts){0}) != DS_OK && !ds_error())
        abort();
    for (int64_t i = 0; i < ids.n; i++)
        if (ids.ids[i] >= ds_tokenizer_vocab_size(t)) abort();
    free(ds_decode(t, ids.ids, ids.n, (ds_decode_opts){0}));
    ds_tokens_free(&ids);
    ds_tokenizer_free(t);
    return 0;
}
