/* tools/show/short.c: ds_show as people read it: a line for each tensor or
 * value of a file, a line for each file of a folder.
 * SPDX-License-Identifier: MIT */
#include "show.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save_plan.h"
#include "engine/checkpoint/folder.h"

#include <string.h>

enum { MOST_ITEMS = 8, MOST_VALUE = 60, WIDEST_NAME = 60 };

typedef struct Totals {
    int64_t tensors, elements, bytes, values;
} Totals;

/* ---- numbers and names ----------------------------------------------------------------------------------- */

/* "512 B", "248.0 KB", "1.2 GB" */
static void add_bytes(dsi_text *t, int64_t bytes)
{
    static const char *const units[] = {"KB", "MB", "GB", "TB"};
    double x = (double)bytes / 1000;
    int i = 0;
    if (bytes < 1000) {
        dsi_text_add(t, "%lld B", (long long)bytes);
        return;
    }
    while (x >= 999.95 && i < 3) x /= 1000, i++;
    dsi_text_add(t, "%.1f %s", x, units[i]);
}

static void add_count(dsi_text *t, int64_t n, const char *what)
{
    dsi_text_add(t, "%lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

static void add_totals(dsi_text *t, const Totals *n)
{
    if (n->tensors) {
        add_count(t, n->tensors, "tensor");
        dsi_text_add(t, ", ");
        add_count(t, n->elements, "element");
        dsi_text_add(t, ", ");
        add_bytes(t, n->bytes);
    }
    if (n->values) dsi_text_add(t, "%s", n->tensors ? ", " : "");
    if (n->values || !n->tensors) add_count(t, n->values, "value");
}

/* Cut at MOST_VALUE characters; line ends become blanks. */
static void add_cut(dsi_text *t, const char *text)
{
    size_t n = strlen(text), most = n > MOST_VALUE ? MOST_VALUE - 3 : n;
    while (most < n && ((unsigned char)text[most] & 0xc0) == 0x80) most--; /* whole UTF-8 */
    for (size_t i = 0; i < most; i++)
        dsi_text_add(t, "%c", (unsigned char)text[i] < ' ' ? ' ' : text[i]);
    if (most < n) dsi_text_add(t, "...");
}

/* ---- a value --------------------------------------------------------------------------------------------- */

/* A value without items; an empty container, an object, torch.Size as Python
 * shows them. */
static void add_leaf(dsi_text *t, const ds_value *v)
{
    Show plain = {0};
    ds_value_kind kind = ds_value_kind_of(v);
    if (show_is_whole(v))
        show_add_repr(&plain.out, v, 0);
    else if (kind == DS_VALUE_OBJECT)
        dsi_text_add(&plain.out, "%s(...)", ds_value_class(v));
    else if (show_is_parent(v))
        dsi_text_add(&plain.out, "%s",
                     kind == DS_VALUE_DICT    ? "{}"
                     : kind == DS_VALUE_TUPLE ? "()"
                                              : "[]");
    else
        show_add_value(&plain, v);
    add_cut(t, plain.out.s ? plain.out.s : "");
    dsi_text_free(&plain.out);
}

static bool is_number(const ds_value *v)
{
    ds_value_kind kind = ds_value_kind_of(v);
    return kind == DS_VALUE_INT || kind == DS_VALUE_FLOAT || kind == DS_VALUE_BOOL;
}

/* Lists of numbers are one line: [0.9, 0.999]. */
static bool is_numbers(const ds_value *v)
{
    ds_value_kind kind = ds_value_kind_of(v);
    bool numbers = (kind == DS_VALUE_LIST || kind == DS_VALUE_TUPLE) && ds_value_len(v);
    for (int64_t i = 0; numbers && i < ds_value_len(v); i++) numbers = is_number(ds_value_at(v, i));
    return numbers;
}

static void add_numbers(dsi_text *t, const ds_value *v)
{
    int64_t n = ds_value_len(v), most = n > MOST_ITEMS ? MOST_ITEMS : n;
    dsi_text_add(t, "[");
    for (int64_t i = 0; i < most; i++) {
        if (i) dsi_text_add(t, ", ");
        add_leaf(t, ds_value_at(v, i));
    }
    if (most < n) dsi_text_add(t, ", ... %lld more", (long long)(n - most));
    dsi_text_add(t, "]");
}

/* ---- a file ---------------------------------------------------------------------------------------------- */

/* width: of the widest path; 0: nothing is written, it is found. */
typedef struct List {
    dsi_text *out;
    dsi_text path;
    size_t width;
    Totals totals;
    size_t widest;
} List;

static void list_leaf(List *l, const ds_value *v)
{
    const char *name = l->path.n ? l->path.s + 1 : "(all)"; /* without the slash */
    size_t n = strlen(name);
    bool tensor = ds_value_kind_of(v) == DS_VALUE_TENSOR;
    if (n > l->widest) l->widest = n;
    if (tensor) {
        l->totals.tensors++;
        l->totals.elements += dsi_numel(dsi_value_shape(v));
        l->totals.bytes += dsi_numel(dsi_value_shape(v)) *
                           (int64_t)ds_dtype_size(dsi_value_dtype(v));
    } else {
        l->totals.values++;
    }
    if (!l->width) return;
    size_t at = l->out->n;
    dsi_text_add(l->out, "  %-*s  ", (int)l->width, name);
    dsi_make_printable(l->out->s + at);
    if (tensor) {
        dsi_text_add(l->out, "%-8s ", ds_dtype_name(dsi_value_dtype(v)));
        show_add_shape(l->out, dsi_value_shape(v));
    } else if (is_numbers(v)) {
        add_numbers(l->out, v);
    } else {
        add_leaf(l->out, v);
    }
    dsi_text_add(l->out, "\n");
}

/* Not deeper than DSI_VALUE_DEPTH, which the reader limits. */
static void list_value(List *l, const ds_value *v)
{
    bool items = show_is_parent(v) && ds_value_len(v) && !show_is_whole(v) && !is_numbers(v);
    if (!items || ds_value_kind_of(v) == DS_VALUE_OBJECT) list_leaf(l, v);
    for (int64_t i = 0; items && i < ds_value_len(v); i++) {
        size_t n = l->path.n;
        show_add_key(&l->path, v, i);
        list_value(l, ds_value_at(v, i));
        l->path.n = n;
        l->path.s[n] = 0;
    }
}

/* Totals alone, if out is NULL. */
static ds_status list_file(const Show *s, const char *path, dsi_text *out, Totals *totals)
{
    ds_scope *scope = ds_scope_open();
    ds_state *state = NULL;
    ds_value *v = show_load(s, path, &state);
    List l = {.out = out};
    if (v) list_value(&l, v);
    *totals = l.totals;
    if (v && out) {
        dsi_text_add(out, "%s: ", path);
        add_totals(out, totals);
        dsi_text_add(out, "\n");
        l.width = l.widest < WIDEST_NAME ? l.widest : WIDEST_NAME;
        list_value(&l, v);
    }
    dsi_text_free(&l.path);
    ds_value_free(v);
    ds_state_free(state);
    ds_scope_close(scope);
    return v ? DS_OK : ds_error_status();
}

ds_status short_file(Show *s, const char *path)
{
    Totals totals;
    return list_file(s, path, &s->out, &totals);
}

/* ---- a folder -------------------------------------------------------------------------------------------- */

typedef struct Folder {
    Show *s;
    dsi_text lines;
    int64_t files, bytes;
} Folder;

static ds_status folder_add_file(void *arg, const char *path, const char *name, int64_t bytes)
{
    Folder *f = arg;
    dsi_text size = {0};
    Totals totals;
    ds_status status = DS_OK;
    f->files++;
    f->bytes += bytes;
    add_bytes(&size, bytes);
    dsi_text_add(&f->lines, "  %-56s %10s", name, size.s);
    dsi_text_free(&size);
    size_t n = 0;
    char *text = !strncmp(name, DSI_LATEST, strlen(DSI_LATEST)) ? dsi_file_read_regular(path, &n)
                                                                : NULL;
    if (text) {
        dsi_text_add(&f->lines, "  ");
        add_cut(&f->lines, text);
    } else if (dsi_is_pth(path) || dsi_ends_with(path, ".safetensors")) {
        status = list_file(f->s, path, NULL, &totals);
        dsi_text_add(&f->lines, "  ");
        add_totals(&f->lines, &totals);
    }
    dsi_free(text);
    dsi_text_add(&f->lines, "\n");
    return status;
}

ds_status short_folder(Show *s)
{
    Folder f = {.s = s};
    ds_status status = show_each_file(s, folder_add_file, &f);
    if (status == DS_OK && !f.files) status = show_no_file(s);
    if (status == DS_OK) {
        dsi_text_add(&s->out, "%s: ", s->path);
        add_count(&s->out, f.files, "file");
        dsi_text_add(&s->out, ", ");
        add_bytes(&s->out, f.bytes);
        dsi_text_add(&s->out, "\n%s", f.lines.s);
    }
    dsi_text_free(&f.lines);
    return status;
}
