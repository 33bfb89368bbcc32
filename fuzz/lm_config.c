/* fuzz/lm_config.c: any bytes as a config.json of a language model: a refusal of
 * one line, or sizes that a model can be made of.
 *
 * scripts/fuzz lm_config 300
 * SPDX-License-Identifier: MIT */
#include "models/config.h"

#include <stdlib.h>
#include <string.h>

static void must(bool x)
{
    if (!x) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static dsi_lm_config c;
    json_t *json;
    ds_error_clear();
    if (dsi_lm_config_read((const char *)data, n, "config.json", &c, &json) != DS_OK) {
        must(ds_error() && !strpbrk(ds_error(), "\n\r") && !json);
        return 0;
    }
    must(json && c.vocab > 0 && c.hidden > 0 && c.inner > 0 && c.layers > 0);
    must(c.layers <= DSI_LM_MAX_LAYERS && c.heads > 0 && c.heads % c.kv_heads == 0);
    must(c.head_dim > 0 && c.positions > 0);
    for (int i = 0; i < c.ropes; i++)
        must(c.rope[i].dim > 0 && c.rope[i].dim % 2 == 0 && c.rope[i].dim <= c.head_dim &&
             c.rope[i].magnitude >= 0);
    json_decref(json);
    return 0;
}
