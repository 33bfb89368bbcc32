/* fuzz/jinja.c: any bytes as a template of chats: it is refused with one line,
 * or renders UTF-8 within its limits.
 *
 * scripts/fuzz jinja 300
 * SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": "
    "[{\"type\": \"text\", \"text\": \"\\u00e9 <b>\"}]}, {\"role\": \"assistant\", \"content\": "
    "\"\", "
    "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.5}}}]}], "
    "\"tools\": "
    "null, \"bos_token\": \"<s>\", \"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ds_error_clear();
    dsi_text out = {0};
    dsi_jinja_spans spans = {0};
    json_t *values = json_loads(variables, 0, NULL);
    dsi_jinja *t = dsi_jinja_parse((const char *)data, n, "fuzz");
    ds_status status = t ? dsi_jinja_render(t, values, &out, &spans) : DS_EFORMAT;
    if (status != DS_OK && (!ds_error() || strpbrk(ds_error(), "\n\r"))) abort();
    if (status == DS_OK && out.n && !dsi_is_utf8(out.s, out.n)) abort();
    dsi_jinja_free(t);
    json_decref(values);
    dsi_text_free(&out);
    dsi_list_free(&spans);
    return 0;
}
