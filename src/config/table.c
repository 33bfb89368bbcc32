/* config/table.c: the rows of table.h and table_unsupported.h, and what can be asked about one.
 *
 * Rows are found by walking over all of them. There are five hundred, a configuration has thirty keys and is
 * read once: an index would be more to read than it saves.
 * SPDX-License-Identifier: MIT */
#include "row.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

/* ---- words --------------------------------------------------------------------------------------- */

/* The first of several spellings of a value is not preferred: what the user wrote is kept. */
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
static const dsi_config_word writers[] = {{"MOCK", 0}, {"PYTHON", 1}, {"FAST", 2}, {0}};
static const dsi_config_word write_units[] = {{"REPLICA", 0}, {"SOCKET", 1}, {"MACHINE", 2}, {0}};
static const dsi_config_word backends[] = {{"torch", 0}, {"liger", 1}, {0}};
static const dsi_config_word metrics[] = {{"latency", 0}, {"throughput", 1}, {"flops", 2}, {0}};
static const dsi_config_word tuners[] = {{"gridsearch", 0}, {"random", 1}, {"model_based", 2}, {0}};

/* ---- rows ---------------------------------------------------------------------------------------- */

#define CURRICULUM  "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*"
#define RANDOM_LTD  "data_efficiency.data_routing.random_ltd"
#define COMPRESSION "compression_training"

/* Types are lists of initialisers, so that a row reads as prose: INT_FROM(1), WORD(devices). */
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
#define ANY                  .type = DSI_KEY_ANY
#define WORD(list)           .type = DSI_KEY_WORD, .words = list
#define ANY_CASE(list)       .type = DSI_KEY_WORD, .words = list, .any_case = true
#define NULL_NO              .def = "{}"
#define NULL_EMPTY           .def = "{}", .nullable = true
#define NULL_FIRST           .def = "null", .nullable = true

#define ROW(p, m, h, ...) {.path = (p), .mark = (m), .help = (h), __VA_ARGS__},
#define AT(f)             .field = offsetof(dsi_config, f)
#define NOWHERE           .field = DSI_NO_FIELD

#define ACT(p, t, d, f, h)  ROW(p, DSI_KEY_ACTED, h, t, .def = (d), AT(f))
#define OURS(p, t, d, f, h) ROW(p, DSI_KEY_ACTED, h, t, .def = (d), AT(f), .ours = true)
#define NOP(p, t, d, h)     ROW(p, DSI_KEY_IGNORED, h, t, .def = (d), NOWHERE)
#define NOT(p, t, d, h)     ROW(p, DSI_KEY_REFUSED, h, t, .def = (d), NOWHERE)
#define GONE(p, t, d, h)    ROW(p, DSI_KEY_GONE, h, t, .def = (d), NOWHERE)
#define ALSO(p, name)       ROW(p, DSI_KEY_ALIAS, "", .target = (name), NOWHERE)
#define OLD(p, name)        ROW(p, DSI_KEY_OLD, "", .target = (name), NOWHERE)
#define GROUP(p, null, h)   ROW(p, DSI_KEY_ACTED, h, null, .auto_value = true, NOWHERE)
#define PICKY(p, null, h)   ROW(p, DSI_KEY_ACTED, h, null, NOWHERE)

static const dsi_config_row rows[] = {
#include "table.h"
#include "table_unsupported.h"
};

int dsi_config_rows(void) { return (int)(sizeof rows / sizeof *rows); }
const dsi_config_row *dsi_config_row_at(int i) { return &rows[i]; }

/* Whether path is the row's: a "*" in the row stands for any one name. */
static bool matches(const char *row, const char *path)
{
    while (*row && *path) {
        if (*row == '*') {
            row++;
            path += strcspn(path, ".");
        } else if (*row++ != *path++) {
            return false;
        }
    }
    return *row == *path;
}

const dsi_config_row *dsi_config_find(const char *path)
{
    for (int i = 0; i < dsi_config_rows(); i++)
        if (matches(rows[i].path, path)) return &rows[i];
    return NULL;
}

const char *dsi_config_last(const dsi_config_row *row)
{
    const char *dot = strrchr(row->path, '.');
    return dot ? dot + 1 : row->path;
}

bool dsi_config_in_group(const dsi_config_row *row, const char *group)
{
    size_t n = (size_t)(dsi_config_last(row) - row->path);
    if (!n) return !*group;
    return strlen(group) == n - 1 && !strncmp(row->path, group, n - 1);
}

dsi_config_auto dsi_config_auto_of(const dsi_config_row *row)
{
    if (row->field == offsetof(dsi_config, train_batch_size) ||
        row->field == offsetof(dsi_config, train_micro_batch_size_per_gpu) ||
        row->field == offsetof(dsi_config, gradient_accumulation_steps))
        return DSI_AUTO_BATCH;
    for (int i = 0; i < dsi_config_rows(); i++)
        if (rows[i].auto_value && dsi_config_in_group(row, rows[i].path)) return DSI_AUTO_DEFAULT;
    return DSI_AUTO_NAMED;
}

/* ---- what a row expects -------------------------------------------------------------------------- */

static void add_limits(dsi_text *t, const dsi_config_row *r)
{
    if (isfinite(r->min) && isfinite(r->max)) {
        if (r->min < r->max)
            dsi_text_add(t, " from %.17g to %.17g", r->min, r->max);
        else
            dsi_text_add(t, " that is %.17g", r->min);
    } else if (isfinite(r->min)) {
        dsi_text_add(t, r->open_min ? " above %.17g" : " of at least %.17g", r->min);
    }
}

char *dsi_config_expects(const dsi_config_row *row)
{
    static const char *const names[] = {"an object",         "true or false", "an integer",
                                        "a number",          "a string",      "one of ",
                                        "a list of strings", "an object",     "anything"};
    dsi_text t = {0};
    dsi_text_add(&t, "%s", names[row->type]);
    if (row->type == DSI_KEY_INT || row->type == DSI_KEY_NUMBER) add_limits(&t, row);
    for (const dsi_config_word *w = row->words; w && w->word; w++)
        dsi_text_add(&t, "%s%s", w == row->words ? "" : ", ", w->word);
    if (row->type != DSI_KEY_ANY && (!strcmp(row->def, "null") || row->nullable))
        dsi_text_add(&t, " or null");
    return t.s;
}
