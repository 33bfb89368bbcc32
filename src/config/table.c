/* config/table.c: the rows of table.h and table_inactive.h, and questions about
 * one of them.
 *
 * A key is found by comparing its path with all rows. There are about 200, a
 * configuration has 30 keys and is read once: an index would be more to read
 * than it saves.
 * SPDX-License-Identifier: MIT */
#include "key.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

/* ---- words --------------------------------------------------------------------------------------- */

/* Several spellings of a value may occur: the resolved tree keeps the one that
 * the user wrote. */
#define F32_NAMES \
    {"fp32", DS_F32}, {"float32", DS_F32}, { "float", DS_F32 }
#define F16_NAMES \
    {"fp16", DS_F16}, {"float16", DS_F16}, { "half", DS_F16 }
#define BF16_NAMES \
    {"bf16", DS_BF16}, { "bfloat16", DS_BF16 }

static const dsi_config_word comm_dtypes[] = {
    {"fp16", DS_F16}, {"bf16", DS_BF16}, {"fp32", DS_F32}, {0}};
static const dsi_config_word dtypes[] = {F32_NAMES, F16_NAMES, BF16_NAMES, {"int8", DS_I8}, {0}};
static const dsi_config_word reductions[] = {{"mean", 0}, {"sum", 1}, {0}};
static const dsi_config_word on_nan[] = {
    {"error", DSI_NAN_ERROR}, {"continue", DSI_NAN_CONTINUE}, {0}};
static const dsi_config_word devices[] = {
    {"none", DSI_OFFLOAD_NONE}, {"cpu", DSI_OFFLOAD_CPU}, {"nvme", DSI_OFFLOAD_NVME}, {0}};
static const dsi_config_word validations[] = {
    {"IGNORE", DSI_TAG_IGNORE}, {"WARN", DSI_TAG_WARN}, {"FAIL", DSI_TAG_FAIL}, {0}};

/* ---- rows ---- */

/* Types are lists of initialisers, to be read in a row: INT_FROM(1),
 * WORD(devices). */
#define LIMITS(low, high)    .min = (low), .max = (high)
#define INT                  .type = DSI_KEY_INT, LIMITS(-INFINITY, INFINITY)
#define INT_FROM(low)        .type = DSI_KEY_INT, LIMITS(low, INFINITY)
#define INT_IN(low, high)    .type = DSI_KEY_INT, LIMITS(low, high)
#define COUNT_FROM(low)      INT_IN(low, INT32_MAX) /* of things: the reader's is an int */
#define NUMBER               .type = DSI_KEY_NUMBER, LIMITS(-INFINITY, INFINITY)
#define NUMBER_FROM(low)     .type = DSI_KEY_NUMBER, LIMITS(low, INFINITY)
#define NUMBER_ABOVE(low)    .type = DSI_KEY_NUMBER, LIMITS(low, INFINITY), .open_min = true
#define NUMBER_IN(low, high) .type = DSI_KEY_NUMBER, LIMITS(low, high)
#define BOOL                 .type = DSI_KEY_BOOL
#define TEXT                 .type = DSI_KEY_TEXT
#define LIST                 .type = DSI_KEY_LIST
#define OBJECT               .type = DSI_KEY_OBJECT
#define WORD(list)           .type = DSI_KEY_WORD, .words = list
#define ANY_CASE(list)       .type = DSI_KEY_WORD, .words = list, .any_case = true
#define NULL_NO              .def = "{}"
#define NULL_EMPTY           .def = "{}", .nullable = true
#define NULL_FIRST           .def = "null", .nullable = true

#define ROW(p, m, h, ...) {.path = (p), .mark = (m), .help = (h), __VA_ARGS__},
#define AT(f)             .field = offsetof(dsi_config, f)
#define INACTIVE          .type = DSI_KEY_ANY, .field = DSI_NO_FIELD
#define NO_FIELD          .field = DSI_NO_FIELD

#define SUPPORTED(p, t, d, f, h) ROW(p, DSI_KEY_SUPPORTED, h, t, .def = (d), AT(f))
#define EXTENSION(p, t, d, f, h) \
    ROW(p, DSI_KEY_SUPPORTED, h, t, .def = (d), AT(f), .extension = true)
#define IGNORED(p, d, h)     ROW(p, DSI_KEY_IGNORED, h, INACTIVE, .def = (d))
#define UNSUPPORTED(p, d, h) ROW(p, DSI_KEY_UNSUPPORTED, h, INACTIVE, .def = (d))
#define UNSUPPORTED_ABOVE(p, d, n, h) \
    ROW(p, DSI_KEY_UNSUPPORTED, h, INACTIVE, .def = (d), .max = (n))
#define REMOVED(p, h)             ROW(p, DSI_KEY_REMOVED, h, INACTIVE)
#define ALIAS(p, name)            ROW(p, DSI_KEY_ALIAS, "", .target = (name), NO_FIELD)
#define DEPRECATED(p, name)       ROW(p, DSI_KEY_DEPRECATED, "", .target = (name), NO_FIELD)
#define GROUP(p, null, h)         ROW(p, DSI_KEY_SUPPORTED, h, null, .auto_value = true, NO_FIELD)
#define GROUP_NO_AUTO(p, null, h) ROW(p, DSI_KEY_SUPPORTED, h, null, NO_FIELD)
#define IGNORED_GROUP(p, null, h) ROW(p, DSI_KEY_IGNORED, h, null, NO_FIELD)

static const dsi_config_key keys[] = {
#include "table.h"
#include "table_inactive.h"
};

#define KEYS (int)(sizeof keys / sizeof *keys)

int dsi_config_key_count(void) { return KEYS; }
const dsi_config_key *dsi_config_key_at(int i) { return &keys[i]; }

/* By the key's own path, not by an alias. */
const dsi_config_key *dsi_config_key_find(const char *path)
{
    for (int i = 0; i < KEYS; i++)
        if (!strcmp(keys[i].path, path)) return &keys[i];
    return NULL;
}

/* A part of the path, borrowed: rows are never freed. */
const char *dsi_config_key_name(const dsi_config_key *key)
{
    const char *dot = strrchr(key->path, '.');
    return dot ? dot + 1 : key->path;
}

bool dsi_config_key_in_group(const dsi_config_key *key, const char *group)
{
    size_t n = (size_t)(dsi_config_key_name(key) - key->path);
    if (!n) return !*group;
    return strlen(group) == n - 1 && !strncmp(key->path, group, n - 1);
}

/* Batch keys derive from one another; other keys take their default if their
 * group says so. */
dsi_config_auto dsi_config_key_auto(const dsi_config_key *key)
{
    if (key->field == offsetof(dsi_config, train_batch_size) ||
        key->field == offsetof(dsi_config, train_micro_batch_size_per_gpu) ||
        key->field == offsetof(dsi_config, gradient_accumulation_steps))
        return DSI_AUTO_BATCH;
    for (int i = 0; i < KEYS; i++)
        if (keys[i].auto_value && dsi_config_key_in_group(key, keys[i].path))
            return DSI_AUTO_DEFAULT;
    return DSI_AUTO_ERROR;
}

/* ---- expected values ----------------------------------------------------------------------------- */

/* " from 0 to 3", " of at least 1", " above 0", or nothing. */
static void key_add_limits(dsi_text *t, const dsi_config_key *r)
{
    if (isfinite(r->min) && isfinite(r->max))
        dsi_text_add(t, " from %.17g to %.17g", r->min, r->max);
    else if (isfinite(r->min))
        dsi_text_add(t, r->open_min ? " above %.17g" : " of at least %.17g", r->min);
}

/* By type, range and words of the row, so that messages cannot differ from the
 * checks. */
char *dsi_config_key_expects(const dsi_config_key *key)
{
    static const char *const names[] = {"an object",         "true or false", "an integer",
                                        "a number",          "a string",      "one of ",
                                        "a list of strings", "an object",     "anything"};
    dsi_text t = dsi_text_of("%s", names[key->type]);
    if (key->type == DSI_KEY_INT || key->type == DSI_KEY_NUMBER) key_add_limits(&t, key);
    for (const dsi_config_word *w = key->words; w && w->word; w++)
        dsi_text_add(&t, "%s%s", w == key->words ? "" : ", ", w->word);
    if (key->type != DSI_KEY_ANY && (!strcmp(key->def, "null") || key->nullable))
        dsi_text_add(&t, " or null");
    return t.s;
}
