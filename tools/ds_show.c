/* tools/ds_show.c: the content of a file of weights or of a checkpoint's
 * folder, as a short list (show/short.c) or as JSON. Nothing in it is executed.
 *
 *     ds_show FILE|FOLDER [-t TAG] [--objects] [--json [--no_sums]]
 *
 * JSON: a file (.pth, .pt, .bin, .safetensors, an index of shards) is {"file",
 * "contents"}, a folder {"folder", "files"}. Contents are leaves with their
 * path: a tensor with dtype, shape, the sum of its elements and the first of
 * them; or a value with its class. Sums are in double, element after element in
 * row-major order, so that they say whether two files are equal. Tensors stay
 * in the mapped file and are read a few MiB at a time. The text is printed once
 * all of it is known: with status 2, one line on stderr is all there is.
 * SPDX-License-Identifier: MIT */
#include "argv.h"
#include "base/error.h"
#include "base/file.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save_plan.h"
#include "engine/checkpoint/folder.h"
#include "parse_options.h"
#include "show/show.h"
#include "tensor/tensor.h"

#include <deepspeed.h>

#include <argp.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FIRST = 8, MOST_TEXT = 1 << 16, DEEPEST_FOLDER = 3 };

/* ---- JSON ------------------------------------------------------------------------------------------------ */

static void add_number(dsi_text *t, double x)
{
    if (isfinite(x))
        dsi_text_add_double(t, x);
    else
        dsi_text_add(t, isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"");
}

/* The next item of a list, on a line of its own. */
static void next_item(Show *s, int indent)
{
    dsi_text_add(&s->out, "%s\n%*s", s->first ? "" : ",", indent, "");
    s->first = false;
}

void show_add_shape(dsi_text *t, ds_dims shape)
{
    dsi_text_add(t, "[");
    for (int i = 0; i < shape.n; i++) dsi_text_add(t, "%s%" PRId64, i ? ", " : "", shape.d[i]);
    dsi_text_add(t, "]");
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

typedef struct Sum {
    ds_dtype dtype;
    double sum, first[FIRST];
    int64_t n;
    bool only_first;
} Sum;

#define ELEMENT(type, value) \
    { \
        type x; \
        memcpy(&x, p, sizeof x); \
        return value; \
    }

static double element_value(ds_dtype dtype, const char *p)
{
    switch (dtype) {
    case DS_F32:
        ELEMENT(float, (double)x)
    case DS_F64:
        ELEMENT(double, x)
    case DS_F16:
        ELEMENT(uint16_t, (double)dsi_f16_to_f32(x))
    case DS_BF16:
        ELEMENT(uint16_t, (double)dsi_bf16_to_f32(x))
    case DS_I64:
        ELEMENT(int64_t, (double)x)
    case DS_I32:
        ELEMENT(int32_t, (double)x)
    case DS_I16:
        ELEMENT(int16_t, (double)x)
    case DS_I8:
        ELEMENT(int8_t, (double)x)
    default: /* uint8, bool */
        return (double)(unsigned char)*p;
    }
}

static void add_elements(void *arg, const void *data, size_t bytes)
{
    Sum *s = arg;
    size_t size = ds_dtype_size(s->dtype);
    for (size_t i = 0; i < bytes && !(s->only_first && s->n >= FIRST); i += size) {
        double x = element_value(s->dtype, (const char *)data + i);
        if (s->n < FIRST) s->first[s->n] = x;
        s->sum += x;
        s->n++;
    }
}

static ds_status show_add_tensor(Show *s, const ds_value *v)
{
    Sum sum = {.dtype = dsi_value_dtype(v), .only_first = s->no_sums};
    ds_dims shape = dsi_value_shape(v);
    ds_status status = dsi_value_bytes(v, add_elements, &sum);
    if (status != DS_OK) return status;
    dsi_text_add(&s->out, "\"dtype\": \"%s\", \"shape\": ", ds_dtype_name(sum.dtype));
    show_add_shape(&s->out, shape);
    if (!s->no_sums) {
        dsi_text_add(&s->out, ", \"sum\": ");
        add_number(&s->out, sum.sum);
    }
    dsi_text_add(&s->out, ", \"first_values\": [");
    for (int i = 0; i < FIRST && i < dsi_numel(shape); i++) {
        if (i) dsi_text_add(&s->out, ", ");
        add_number(&s->out, sum.first[i]);
    }
    dsi_text_add(&s->out, "], \"class\": \"%s\"", ds_value_class(v));
    return DS_OK;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* As Python's repr: b'\x00\xff'. */
static void add_bytes(dsi_text *t, const ds_value *v)
{
    dsi_text text = dsi_text_of("b'");
    for (int64_t i = 0; i < ds_value_len(v) && i < MOST_TEXT; i++) {
        unsigned char c = (unsigned char)ds_value_text(v)[i];
        bool plain = c >= ' ' && c < 127 && c != '\'' && c != '\\';
        dsi_text_add(&text, plain ? "%c" : "\\x%02x", c);
    }
    dsi_text_add(&text, "'");
    text_add_json(t, text.s);
    dsi_text_free(&text);
}

void show_add_value(Show *s, const ds_value *v)
{
    int64_t i = 0;
    double x = 0;
    bool b = false;
    switch (ds_value_kind_of(v)) {
    case DS_VALUE_BOOL:
        if (ds_value_read_bool(v, "", &b) == DS_OK)
            dsi_text_add(&s->out, "%s", b ? "true" : "false");
        break;
    case DS_VALUE_INT:
        if (ds_value_read_int(v, "", &i) == DS_OK) dsi_text_add(&s->out, "%" PRId64, i);
        break;
    case DS_VALUE_BIG_INT:
        dsi_text_add(&s->out, "%s", ds_value_text(v));
        break;
    case DS_VALUE_FLOAT:
        if (ds_value_read_float(v, "", &x) == DS_OK) add_number(&s->out, x);
        break;
    case DS_VALUE_BYTES:
        add_bytes(&s->out, v);
        break;
    case DS_VALUE_STRING:
    case DS_VALUE_NAME:
        text_add_json(&s->out, ds_value_text(v));
        break;
    default:
        dsi_text_add(&s->out, "null");
    }
}

/* As Python's repr, of what may be a key or lie in a set: numbers, text, tuples
 * of them; an object by what it was made
 * of. */
void show_add_repr(dsi_text *t, const ds_value *v, int depth)
{
    Show plain = {0};
    ds_value_kind kind = ds_value_kind_of(v);
    bool object = kind == DS_VALUE_OBJECT, tuple = object || kind == DS_VALUE_TUPLE,
         text = kind == DS_VALUE_STRING;
    if (object) dsi_text_add(t, "%s", ds_value_class(v));
    if (!tuple && kind != DS_VALUE_SET) {
        show_add_value(&plain, v);
        dsi_text_add(t, text ? "'%s'" : "%s", text ? ds_value_text(v) : plain.out.s);
        dsi_text_free(&plain.out);
        return;
    }
    dsi_text_add(t, tuple ? "(" : "{");
    for (int64_t i = 0; i < ds_value_len(v) && depth < 3; i++) {
        if (i) dsi_text_add(t, ", ");
        show_add_repr(t, ds_value_at(v, i), depth + 1);
    }
    dsi_text_add(t, tuple ? ")" : "}");
}

/* Whether v is printed as one value: torch.Size([4, 5]), a complex number, a
 * set. */
bool show_is_whole(const ds_value *v)
{
    ds_value_kind kind = ds_value_kind_of(v);
    return kind == DS_VALUE_SET ||
           (kind == DS_VALUE_TUPLE && strcmp(ds_value_class(v), "tuple") != 0);
}

static bool add_whole(Show *s, const ds_value *v)
{
    bool size = !strcmp(ds_value_class(v), "Size");
    if (!show_is_whole(v)) return false;
    dsi_text text = {0}, json = {0};
    show_add_repr(&text, v, 0);
    if (size) dsi_text_add(&json, "torch.Size([%.*s])", (int)text.n - 2, text.s + 1);
    dsi_text_add(&s->out, "\"value\": ");
    text_add_json(&s->out, size ? json.s : text.s);
    dsi_text_add(&s->out, ", \"class\": \"%s\"", ds_value_class(v));
    dsi_text_free(&text);
    dsi_text_free(&json);
    return true;
}

bool show_is_parent(const ds_value *v)
{
    ds_value_kind kind = ds_value_kind_of(v);
    return kind == DS_VALUE_LIST || kind == DS_VALUE_TUPLE || kind == DS_VALUE_DICT ||
           kind == DS_VALUE_OBJECT;
}

static void add_plain(Show *s, const ds_value *v)
{
    const char *class = ds_value_class(v);
    if (show_is_parent(v)) {
        dsi_text_add(&s->out, "\"empty\": \"%s\"", class);
        return;
    }
    dsi_text_add(&s->out, "\"value\": ");
    show_add_value(s, v);
    dsi_text_add(&s->out, ", \"class\": \"%s\"", class);
}

static ds_status add_leaf(Show *s, const ds_value *v, const char *path, int indent)
{
    ds_status status = DS_OK;
    next_item(s, indent);
    dsi_text_add(&s->out, "{\"path\": ");
    text_add_json(&s->out, path);
    dsi_text_add(&s->out, ", ");
    if (ds_value_kind_of(v) == DS_VALUE_TENSOR)
        status = show_add_tensor(s, v);
    else if (!add_whole(s, v))
        add_plain(s, v);
    dsi_text_add(&s->out, "}");
    return status;
}

/* Its attributes follow. */
static void add_object(Show *s, const ds_value *v, const char *path, int indent)
{
    next_item(s, indent);
    dsi_text_add(&s->out, "{\"path\": ");
    text_add_json(&s->out, path);
    dsi_text_add(&s->out, ", \"object\": ");
    text_add_json(&s->out, ds_value_class(v));
    dsi_text_add(&s->out, "}");
}

/* "/key" behind the path: keys as they are, positions of a list's items. */
void show_add_key(dsi_text *path, const ds_value *v, int64_t i)
{
    const ds_value *key = ds_value_key_at(v, i);
    if (!key)
        dsi_text_add(path, "/%" PRId64, i);
    else if (ds_value_text(key))
        dsi_text_add(path, "/%s", ds_value_text(key));
    else
        show_add_repr((dsi_text_add(path, "/"), path), key, 0);
}

/* Not deeper than DSI_VALUE_DEPTH: the reader sees to that. */
static ds_status add_contents(Show *s, const ds_value *v, dsi_text *path, int indent)
{
    ds_status status = DS_OK;
    if (ds_value_kind_of(v) == DS_VALUE_OBJECT) add_object(s, v, path->s ? path->s : "", indent);
    if (ds_value_kind_of(v) == DS_VALUE_OBJECT && !ds_value_len(v)) return DS_OK;
    if (!show_is_parent(v) || !ds_value_len(v) || show_is_whole(v))
        return add_leaf(s, v, path->s ? path->s : "", indent);
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(v); i++) {
        size_t n = path->n;
        show_add_key(path, v, i);
        status = add_contents(s, ds_value_at(v, i), path, indent);
        path->n = n;
        path->s[n] = 0;
    }
    return status;
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static bool is_state(const char *path)
{
    return dsi_ends_with(path, ".safetensors") || dsi_shards_is_index(path);
}

ds_value *show_load(const Show *s, const char *path, ds_state **state)
{
    if (!is_state(path)) return ds_value_load(path, .objects = s->objects);
    *state = ds_load(path);
    return *state ? ds_value_of_state(*state) : NULL;
}

static ds_status add_file(Show *s, const char *path, int indent)
{
    ds_scope *scope = ds_scope_open();
    ds_state *state = NULL;
    ds_value *v = show_load(s, path, &state);
    dsi_text at = {0};
    dsi_text_add(&s->out, "\"contents\": [");
    s->first = true;
    ds_status status = v ? add_contents(s, v, &at, indent + 1) : ds_error_status();
    dsi_text_add(&s->out, "]");
    dsi_text_free(&at);
    ds_value_free(v);
    ds_state_free(state);
    ds_scope_close(scope);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------------------- */

static ds_status add_latest(Show *s, const char *path)
{
    size_t n;
    char *text = dsi_file_read_regular(path, &n);
    if (!text) return ds_error_status();
    if (n > MOST_TEXT) text[MOST_TEXT] = 0;
    dsi_text_add(&s->out, "\"text\": ");
    text_add_json(&s->out, text);
    dsi_free(text);
    return DS_OK;
}

/* name: below the folder that was asked for. */
static ds_status add_file_of_folder(void *arg, const char *path, const char *name, int64_t bytes)
{
    Show *s = arg;
    ds_status status = DS_OK;
    next_item(s, 1);
    dsi_text_add(&s->out, "{\"name\": ");
    text_add_json(&s->out, name);
    dsi_text_add(&s->out, ", \"bytes\": %" PRId64, bytes);
    if (!strcmp(name, "latest")) {
        dsi_text_add(&s->out, ", ");
        status = add_latest(s, path);
    } else if (dsi_is_pth(path) || dsi_ends_with(path, ".safetensors")) {
        dsi_text_add(&s->out, ", ");
        status = add_file(s, path, 2);
    }
    dsi_text_add(&s->out, "}");
    s->first = false;
    return status;
}

/* Files in the order of their names, hidden ones left out: they are of saves
 * that did not end. */
static ds_status each_file_below(const Show *s, const char *folder, const char *below, int depth,
                                 show_file_fn *fn, void *arg)
{
    struct dirent **entry = NULL;
    int n = scandir(folder, &entry, NULL, alphasort);
    if (n < 0) return dsi_fail(DS_EIO, "%s: no folder that can be read", folder);
    ds_status status = DS_OK;
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        struct stat st;
        char *path = dsi_path_in(folder, name),
             *shown = *below ? dsi_path_in(below, name) : dsi_strdup(name);
        bool wanted = status == DS_OK && *name != '.' && stat(path, &st) == 0;
        bool other = s->tag && !*below && strcmp(name, s->tag) != 0;
        if (wanted && S_ISREG(st.st_mode) && !other)
            status = fn(arg, path, shown, (int64_t)st.st_size);
        else if (wanted && S_ISDIR(st.st_mode) && !other && depth < DEEPEST_FOLDER)
            status = each_file_below(s, path, shown, depth + 1, fn, arg);
        dsi_free(path), dsi_free(shown);
        free(entry[i]);
    }
    free(entry);
    return status;
}

ds_status show_each_file(const Show *s, show_file_fn *fn, void *arg)
{
    return each_file_below(s, s->path, "", 0, fn, arg);
}

ds_status show_no_file(const Show *s)
{
    return dsi_fail(DS_EIO, "%s%s%s: there is no file in it", s->path, s->tag ? "/" : "",
                    s->tag ? s->tag : "");
}

static ds_status show_folder(Show *s)
{
    dsi_text_add(&s->out, "{\"folder\": ");
    text_add_json(&s->out, s->path);
    dsi_text_add(&s->out, ", \"files\": [");
    s->first = true;
    ds_status status = show_each_file(s, add_file_of_folder, s);
    if (status == DS_OK && s->first) status = show_no_file(s);
    dsi_text_add(&s->out, "]}\n");
    return status;
}

static ds_status show_path(Show *s)
{
    struct stat st;
    if (stat(s->path, &st) == 0 && S_ISDIR(st.st_mode))
        return s->json ? show_folder(s) : short_folder(s);
    if (s->tag)
        return dsi_fail(DS_EINVAL, "%s is no folder of checkpoints: --tag %s is not for it",
                        s->path, s->tag);
    if (!s->json) return short_file(s, s->path);
    dsi_text_add(&s->out, "{\"file\": ");
    text_add_json(&s->out, s->path);
    dsi_text_add(&s->out, ", ");
    ds_status status = add_file(s, s->path, 1);
    dsi_text_add(&s->out, "}\n");
    return status;
}

/* ---- options --------------------------------------------------------------------------------------------- */

enum { NO_SUMS = 256, OBJECTS, JSON };

static error_t show_parse_option(int key, char *arg, struct argp_state *state)
{
    Show *s = state->input;
    switch (key) {
    case NO_SUMS:
        s->no_sums = true;
        return 0;
    case OBJECTS:
        s->objects = true;
        return 0;
    case JSON:
        s->json = true;
        return 0;
    case 't':
        s->tag = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (s->path) argp_error(state, "\"%s\": one path is expected, and this is the second", arg);
        s->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!s->path) argp_error(state, "expected FILE or FOLDER");
        if (s->no_sums && !s->json) argp_error(state, "--no_sums belongs to --json");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"tag", 't', "TAG", 0, "Of a folder, only the checkpoint of this name", 0},
        {"json", JSON, NULL, 0,
         "As JSON: every value whole, tensors with the sum and the first of their elements", 0},
        {"no_sums", NO_SUMS, NULL, 0,
         "With --json: only the first elements of each tensor: quick on large files", 0},
        {"objects", OBJECTS, NULL, 0,
         "Objects of classes that are not known too: their names and attributes, as they are in "
         "the file",
         0},
        {0}};
    const struct argp argp = {
        options,
        show_parse_option,
        "FILE|FOLDER",
        "Lists what a .pth, .safetensors or checkpoint folder holds, executing nothing.\v"
        "FILE may be an index of shards too. The status is 2 where something cannot be read.",
        NULL,
        NULL,
        NULL};
    Show s = {0};
    argp_program_version = "ds_show (deepspeed.c) " DS_VERSION;
    if (parse_options(&argp, argc, argv, 0, &s)) return 2;
    ds_status status = show_path(&s);
    if (status != DS_OK) ds_perror("ds_show");
    if (status == DS_OK) fputs(s.out.s, stdout);
    dsi_text_free(&s.out);
    return status == DS_OK ? EXIT_SUCCESS : 2;
}
