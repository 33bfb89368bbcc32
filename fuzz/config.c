/* fuzz/config.c: any text as a configuration, for any number of ranks: no
 * crash, no hang, no leak; and what is accepted is resolved to a text that
 * resolves to itself.
 *
 * The first byte chooses the number of ranks, and whether unknown keys are
 * errors; the rest is the text. scripts/fuzz config 300
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "config/reader.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool x)
{
    if (!x) abort();
}

/* The text as it is; and, where a second reading must agree, what it resolves
 * to. */
static void whole(const char *text, int ranks)
{
    dsi_config *c = dsi_config_read(text, ranks);
    must(c || (ds_error() && !strpbrk(ds_error(), "\n\r")));
    if (!c) return;
    must(c->train_batch_size ==
         c->train_micro_batch_size_per_gpu * c->gradient_accumulation_steps * ranks);
    char *once = dsi_config_json(c), *twice;
    dsi_config *again = dsi_config_read(once, ranks);
    must(again != NULL);
    twice = dsi_config_json(again);
    must(!strcmp(once, twice));
    dsi_config_free(c);
    dsi_config_free(again);
    dsi_free(once);
    dsi_free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!n) return 0;
    int ranks = 1 + (data[0] & 7);
    if (data[0] & 8)
        setenv("DS_CONFIG_UNKNOWN", "warn", 1);
    else
        unsetenv("DS_CONFIG_UNKNOWN");

    /* Bytes with zeros among them reach the parser only as a file does: with
     * their length. */
    dsi_syntax s;
    dsi_text error = {0};
    json_t *parsed = dsi_syntax_parse(&s, (const char *)data + 1, n - 1, &error);
    must(parsed || error.n);
    json_decref(parsed);
    dsi_syntax_free(&s);
    dsi_text_free(&error);

    /* a blank in front and a line's end behind: never the path of a file */
    char *text = dsi_alloc(n + 2);
    text[0] = '\n';
    memcpy(text + 1, data + 1, n - 1);
    whole(text, ranks);
    dsi_free(text);
    return 0;
}
