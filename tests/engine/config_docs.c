/* tests/engine/config_docs.c: docs/config.md has the keys of src/config/table.h, as they are.
 *
 * Between the two marks of the document stands what this program makes of the table. It fails if they
 * differ; scripts/config_docs writes them anew.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "check.h"
#include "config/row.h"

#include <ctype.h>

#define DOCUMENT DS_SOURCE_DIR "/docs/config.md"
#define BEGIN    "<!-- keys: scripts/config_docs writes them -->\n"
#define END      "<!-- end of keys -->\n"

/* ---- a row --------------------------------------------------------------------------------------- */

/* In a table's cell "|" would end it. */
static void add_cell(dsi_text *t, const char *s)
{
    for (; *s; s++) dsi_text_add(t, "%s%c", *s == '|' ? "\\" : "", *s);
}

static void add_other_names(dsi_text *t, const dsi_config_row *row)
{
    for (int i = 0; i < dsi_config_rows(); i++) {
        const dsi_config_row *other = dsi_config_row_at(i);
        if (other->target && !strcmp(other->target, row->path))
            dsi_text_add(t, ", %s `%s`", other->mark == DSI_KEY_OLD ? "old name" : "or",
                         dsi_config_last(other));
    }
}

static void add_row(dsi_text *t, const dsi_config_row *row, const char *group)
{
    static const char *const marks[] = {"acted on", "no effect", "default only", "refused"};
    char *expects = dsi_config_expects(row);
    size_t skip = *group ? strlen(group) + 1 : 0;
    dsi_text_add(t, "| `%s`", row->path + skip);
    add_other_names(t, row);
    dsi_text_add(t, " | ");
    add_cell(t, expects);
    if (row->type != DSI_KEY_GROUP && dsi_config_auto_of(row) != DSI_AUTO_NAMED)
        dsi_text_add(t, " or auto");
    dsi_text_add(t, " | `%s` | %s%s | ", row->def, row->ours ? "ours, " : "", marks[row->mark]);
    add_cell(t, row->help);
    dsi_text_add(t, " |\n");
    dsi_free(expects);
}

/* ---- groups -------------------------------------------------------------------------------------- */

static bool has_keys(const dsi_config_row *row)
{
    size_t n = strlen(row->path);
    for (int i = 0; i < dsi_config_rows(); i++) {
        const char *path = dsi_config_row_at(i)->path;
        if (!strncmp(path, row->path, n) && path[n] == '.') return true;
    }
    return false;
}

static bool is_top(const dsi_config_row *row) { return !strchr(row->path, '.'); }

static void begin_table(dsi_text *t)
{
    dsi_text_add(t, "\n| key | expects | default | here | |\n|---|---|---|---|---|\n");
}

static void add_group(dsi_text *t, const dsi_config_row *group)
{
    size_t n = strlen(group->path);
    bool gone = group->mark == DSI_KEY_GONE;
    dsi_text_add(t, "\n### %s", group->path);
    add_other_names(t, group);
    dsi_text_add(t, "\n\n%s%c%s.\n", gone ? "Refused, as by DeepSpeed. " : "",
                 toupper((unsigned char)*group->help), group->help + 1);
    begin_table(t);
    for (int i = 0; i < dsi_config_rows(); i++) {
        const dsi_config_row *row = dsi_config_row_at(i);
        bool within = !strncmp(row->path, group->path, n) && row->path[n] == '.';
        if (within && !row->target) add_row(t, row, group->path);
    }
}

static void add_keys(dsi_text *t)
{
    dsi_text_add(t, "\n### At the top\n");
    begin_table(t);
    for (int i = 0; i < dsi_config_rows(); i++) {
        const dsi_config_row *row = dsi_config_row_at(i);
        if (is_top(row) && !row->target && !has_keys(row)) add_row(t, row, "");
    }
    for (int gone = 0; gone < 2; gone++)
        for (int i = 0; i < dsi_config_rows(); i++) {
            const dsi_config_row *row = dsi_config_row_at(i);
            if (is_top(row) && has_keys(row) && (row->mark == DSI_KEY_GONE) == gone)
                add_group(t, row);
        }
    dsi_text_add(t, "\n");
}

/* ---- the document -------------------------------------------------------------------------------- */

static void write_document(const dsi_text *t)
{
    dsi_file *f = dsi_file_replace(DOCUMENT);
    CHECK(f != NULL);
    dsi_file_write(f, t->s, t->n);
    CHECK_INT(dsi_file_commit(f), DS_OK);
}

static void keys_are_the_tables(void **state)
{
    (void)state;
    char *is = dsi_file_read(DOCUMENT, NULL);
    CHECK(is != NULL);
    char *begin = strstr(is, BEGIN), *end = strstr(is, END);
    CHECK(begin && end && begin < end);
    dsi_text should = {0};
    dsi_text_add_bytes(&should, is, (size_t)(begin - is) + strlen(BEGIN));
    add_keys(&should);
    dsi_text_add(&should, "%s", end);
    if (getenv("DS_RENEW"))
        write_document(&should);
    else if (strcmp(is, should.s) != 0)
        fail_msg(
            "docs/config.md is not what src/config/table.h says; renew it: scripts/config_docs");
    dsi_text_free(&should);
    dsi_free(is);
}

/* ---- the table ----------------------------------------------------------------------------------- */

/* What other tests take for granted: defaults parse, groups exist, names stand once. */
static void rows_are_sound(void **state)
{
    (void)state;
    for (int i = 0; i < dsi_config_rows(); i++) {
        const dsi_config_row *row = dsi_config_row_at(i);
        if (dsi_config_find(row->path) != row) fail_msg("%s has two rows", row->path);
        if (row->target && !dsi_config_find(row->target)) fail_msg("%s", row->target);
        char group[200];
        size_t n = (size_t)(dsi_config_last(row) - row->path);
        if (!n || row->mark == DSI_KEY_GONE) continue;
        snprintf(group, sizeof group, "%.*s", (int)n - 1, row->path);
        const dsi_config_row *above = dsi_config_find(group);
        if (!above || above->type != DSI_KEY_GROUP) fail_msg("%s has no group", row->path);
    }
}

TEST_MAIN(cmocka_unit_test(rows_are_sound), cmocka_unit_test(keys_are_the_tables))
