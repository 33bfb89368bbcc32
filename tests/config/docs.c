/* tests/config/docs.c: docs/config.md has the keys of src/config/table.h, as
 * they are.
 *
 * This program makes the text between the two marks of the document from the
 * table. It fails if they differ; scripts/config_docs rewrites them.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "check.h"
#include "config/key.h"

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

static void add_other_names(dsi_text *t, const dsi_config_key *key)
{
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *other = dsi_config_key_at(i);
        if (other->target && !strcmp(other->target, key->path))
            dsi_text_add(t, ", %s `%s`", other->mark == DSI_KEY_DEPRECATED ? "deprecated" : "or",
                         dsi_config_key_name(other));
    }
}

static void add_supported(dsi_text *t, const dsi_config_key *key, const char *group)
{
    char *expects = dsi_config_key_expects(key);
    size_t skip = *group ? strlen(group) + 1 : 0;
    dsi_text_add(t, "| `%s`", key->path + skip);
    add_other_names(t, key);
    dsi_text_add(t, " | ");
    add_cell(t, expects);
    if (key->type != DSI_KEY_GROUP && dsi_config_key_auto(key) != DSI_AUTO_ERROR)
        dsi_text_add(t, " or auto");
    dsi_text_add(t, " | `%s` | %s", key->def, key->extension ? "(extension) " : "");
    add_cell(t, key->help);
    dsi_text_add(t, " |\n");
    dsi_free(expects);
}

static void add_inactive(dsi_text *t, const dsi_config_key *key)
{
    dsi_text_add(t, "| `%s`", key->path);
    add_other_names(t, key);
    if (key->mark == DSI_KEY_REMOVED)
        dsi_text_add(t, " | ");
    else if (key->type == DSI_KEY_GROUP)
        dsi_text_add(t, " | any keys | ");
    else
        dsi_text_add(t, " | `%s` | ", key->def);
    add_cell(t, key->help);
    dsi_text_add(t, " |\n");
}

/* ---- tables -------------------------------------------------------------------------------------- */

static bool is_top(const dsi_config_key *key) { return !strchr(key->path, '.'); }

static bool is_within(const dsi_config_key *key, const dsi_config_key *group)
{
    size_t n = strlen(group->path);
    return !strncmp(key->path, group->path, n) && key->path[n] == '.';
}

static void begin_supported(dsi_text *t)
{
    dsi_text_add(t, "\n| key | expects | default | |\n|---|---|---|---|\n");
}

static void add_group(dsi_text *t, const dsi_config_key *group)
{
    dsi_text_add(t, "\n### %s", group->path);
    add_other_names(t, group);
    dsi_text_add(t, "\n\n%c%s.\n", toupper((unsigned char)*group->help), group->help + 1);
    begin_supported(t);
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (is_within(key, group) && !key->target && key->mark == DSI_KEY_SUPPORTED)
            add_supported(t, key, group->path);
    }
}

static bool has_supported(const dsi_config_key *group)
{
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (is_within(key, group) && !key->target && key->mark == DSI_KEY_SUPPORTED) return true;
    }
    return false;
}

static void add_list(dsi_text *t, dsi_config_mark mark, const char *title, const char *columns)
{
    dsi_text_add(t, "\n### %s\n\n%s", title, columns);
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (key->mark == mark && *key->help) add_inactive(t, key);
    }
}

static void add_keys(dsi_text *t)
{
    dsi_text_add(t, "\n### At the top\n");
    begin_supported(t);
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        bool plain = key->type != DSI_KEY_GROUP && !key->target;
        if (is_top(key) && plain && key->mark == DSI_KEY_SUPPORTED) add_supported(t, key, "");
    }
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (is_top(key) && key->type == DSI_KEY_GROUP && !key->target && has_supported(key))
            add_group(t, key);
    }
    add_list(t, DSI_KEY_IGNORED, "Accepted without effect",
             "| key | default | why |\n|---|---|---|\n");
    add_list(t, DSI_KEY_UNSUPPORTED, "Accepted only at their default",
             "| key | default | why |\n|---|---|---|\n");
    add_list(t, DSI_KEY_REMOVED, "Removed from DeepSpeed, and refused",
             "| key | what it was, or what to use |\n|---|---|\n");
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

static void document_has_the_keys(void **state)
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

/* Properties that the library needs: defaults parse, groups exist, names are
 * unique. */
static void rows_are_valid(void **state)
{
    (void)state;
    for (int i = 0; i < dsi_config_key_count(); i++) {
        const dsi_config_key *key = dsi_config_key_at(i);
        if (dsi_config_key_find(key->path) != key) fail_msg("%s has two rows", key->path);
        if (key->target && !dsi_config_key_find(key->target)) fail_msg("%s", key->target);
        char group[200];
        size_t n = (size_t)(dsi_config_key_name(key) - key->path);
        if (!n || key->mark == DSI_KEY_REMOVED) continue;
        snprintf(group, sizeof group, "%.*s", (int)n - 1, key->path);
        const dsi_config_key *above = dsi_config_key_find(group);
        if (!above || above->type != DSI_KEY_GROUP) fail_msg("%s has no group", key->path);
    }
}

TEST_MAIN(cmocka_unit_test(rows_are_valid), cmocka_unit_test(document_has_the_keys))
