/* tests/reference/pth.c: files of torch.save, good and broken, and the .pt
 * files of DeepSpeed's checkpoint folders, beside what PyTorch says of them
 * (family "pth").
 *
 * "contents" is a flat list of leaves in the order of a walk over the value.
 * Where PyTorch's verdict is no fact about the file, ours may differ:
 * weights_only refuses protocols 4 and 5, NumPy's values and DeepSpeed's
 * classes, which are read here (the trusted contents say what is in them), and
 * it does not look at check sums.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include <unistd.h>

typedef struct Leaves {
    Reference *r;
    const json_t *rows;
    size_t next;
} Leaves;

static void compare_tensor(Leaves *l, const json_t *row, const char *path, const ds_value *v)
{
    ds_tensor *x = NULL;
    if (ds_value_read_tensor(v, "", &x) != DS_OK) {
        reference_fail(l->r, "%s: %s", path, ds_error());
        return;
    }
    const char *dtype = reference_text(row, "tensor", "");
    if (strcmp(dtype, ds_dtype_name(ds_dtype_of(x))) != 0)
        reference_fail(l->r, "%s is %s, want %s", path, ds_dtype_name(ds_dtype_of(x)), dtype);
    const json_t *shape = json_object_get(row, "shape");
    bool same = (int)json_array_size(shape) == ds_ndim(x);
    for (int i = 0; same && i < ds_ndim(x); i++)
        same = json_number_value(json_array_get(shape, (size_t)i)) == (double)ds_size(x, i);
    if (!same) reference_fail(l->r, "%s has another shape", path);

    ds_scope *scope = ds_scope_open();
    const double *values = ds_data(ds_cast(x, DS_F64));
    double sum = 0;
    for (int64_t i = 0; i < ds_numel(x); i++) sum += values[i];
    if (json_is_number(json_object_get(row, "sum")))
        reference_number_within(l->r, path, sum, reference_double(row, "sum", NAN), 1e-12, 1e-12);
    const json_t *first = json_object_get(row, "first_values");
    for (size_t i = 0; i < json_array_size(first) && same; i++)
        reference_number_within(l->r, path, values[i],
                                reference_number(json_array_get(first, i), NAN), 0, 0);
    ds_scope_close(scope);
}

static bool plain_value(const json_t *want, const ds_value *v)
{
    const char *text = json_string_value(want);
    switch (ds_value_kind_of(v)) {
    case DS_VALUE_NONE:
        return json_is_null(want);
    case DS_VALUE_BOOL: {
        bool b = false;
        return ds_value_read_bool(v, "", &b) == DS_OK && json_is_boolean(want) &&
               json_is_true(want) == b;
    }
    case DS_VALUE_INT: {
        int64_t i = 0;
        return ds_value_read_int(v, "", &i) == DS_OK && json_is_number(want) &&
               json_number_value(want) == (double)i; /* a file with larger ones has reals */
    }
    case DS_VALUE_FLOAT: {
        double f = 0, w = reference_number(want, NAN);
        return ds_value_read_float(v, "", &f) == DS_OK && (f == w || (isnan(f) && isnan(w)));
    }
    case DS_VALUE_BIG_INT: /* jansson reads it as a real */
        return json_is_real(want) ? strtod(ds_value_text(v), NULL) == json_real_value(want)
                                  : text && !strcmp(text, ds_value_text(v));
    case DS_VALUE_STRING:
    case DS_VALUE_NAME:
        return text && !strcmp(text, ds_value_text(v));
    default:
        return true; /* a repr of Python's: the class was compared */
    }
}

static void compare_leaf(Leaves *l, const json_t *row, const char *path, const ds_value *v)
{
    const json_t *value = json_object_get(row, "value");
    const char *class_name = reference_text(row, "class", NULL);
    const char *empty = reference_text(row, "empty", NULL);
    if (empty) {
        if (ds_value_len(v) || strcmp(empty, ds_value_class(v)) != 0)
            reference_fail(l->r, "%s: a %s of %lld items, want an empty %s", path,
                           ds_value_class(v), (long long)ds_value_len(v), empty);
        return;
    }
    if (class_name && strcmp(class_name, ds_value_class(v)) != 0) {
        reference_fail(l->r, "%s is of class %s, want %s", path, ds_value_class(v), class_name);
        return;
    }
    if (json_object_get(row, "tensor"))
        compare_tensor(l, row, path, v);
    else if (value && !plain_value(value, v))
        reference_fail(l->r, "%s has another value", path);
}

/* "/a/0/(1, 2)": a key as str() of it. */
static void add_key(char *path, size_t room, const ds_value *v, int64_t i)
{
    const ds_value *key = ds_value_key_at(v, i);
    size_t n = strlen(path);
    int64_t number = i;
    if (key && ds_value_kind_of(key) == DS_VALUE_STRING) {
        snprintf(path + n, room - n, "/%s", ds_value_text(key));
    } else if (key && ds_value_kind_of(key) == DS_VALUE_TUPLE) {
        snprintf(path + n, room - n, "/(");
        for (int64_t k = 0; k < ds_value_len(key); k++) {
            ds_value_read_int(ds_value_at(key, k), "", &number);
            n = strlen(path);
            snprintf(path + n, room - n, "%s%lld", k ? ", " : "", (long long)number);
        }
        n = strlen(path);
        snprintf(path + n, room - n, ")");
    } else {
        if (key) ds_value_read_int(key, "", &number);
        snprintf(path + n, room - n, "/%lld", (long long)number);
    }
}

static void walk(Leaves *l, const ds_value *v, char *path, size_t room)
{
    const json_t *row = json_array_get(l->rows, l->next);
    if (row && !strcmp(reference_text(row, "path", "?"), path)) {
        l->next++;
        compare_leaf(l, row, path, v);
        return;
    }
    ds_value_kind kind = ds_value_kind_of(v);
    bool list = kind == DS_VALUE_LIST || kind == DS_VALUE_TUPLE || kind == DS_VALUE_DICT;
    if (!list) {
        reference_fail(l->r, "%s is here, %s is wanted", path,
                       row ? reference_text(row, "path", "?") : "nothing");
        return;
    }
    for (int64_t i = 0; i < ds_value_len(v) && !l->r->failures; i++) {
        size_t n = strlen(path);
        add_key(path, room, v, i);
        walk(l, ds_value_at(v, i), path, room);
        path[n] = 0;
    }
}

static void compare(Reference *r, const ds_value *v, const json_t *contents)
{
    char path[2000] = "";
    Leaves l = {r, contents, 0};
    walk(&l, v, path, sizeof path);
    if (!r->failures && l.next != json_array_size(contents))
        reference_fail(r, "%zu leaves, want %zu", l.next, json_array_size(contents));
}

/* Saved and loaded again, it holds as much. */
static void compare_again(Reference *r, const ds_value *v)
{
    char path[] = "/tmp/ds_reference_XXXXXX";
    int fd = mkstemp(path);
    if (fd >= 0) close(fd);
    ds_value *again = ds_value_save(v, path) == DS_OK ? ds_value_load(path) : NULL;
    unlink(path);
    if (!again)
        reference_fail(r, "saved again: %s", ds_error());
    else if (ds_value_len(again) != ds_value_len(v) ||
             ds_value_kind_of(again) != ds_value_kind_of(v))
        reference_fail(r, "saved again it is something else");
    ds_value_free(again);
}

static void one_file(Reference *r, const char *path, const json_t *row)
{
    const json_t *contents = json_object_get(row, "contents");
    const json_t *trusted = json_object_get(row, "contents_when_trusted");
    bool loads = reference_bool(row, "loads", true);
    ds_value *v = ds_value_load(path);
    if (!v) {
        ds_status status = ds_error_status();
        bool sum = strstr(ds_error(), "its CRC is") != NULL;
        bool deep = reference_bool(row, "contents_too_deep_to_list", false);
        if (loads && !sum && !deep) reference_fail(r, "does not load: %s", ds_error());
        if (status != DS_EFORMAT) reference_fail(r, "wrong status: %s", ds_error());
        if (strpbrk(ds_error(), "\n\r")) reference_fail(r, "two lines: %s", ds_error());
        ds_error_clear();
        return;
    }
    if (loads && contents)
        compare(r, v, contents);
    else if (trusted)
        compare(r, v, trusted);
    else if (!loads)
        reference_fail(r, "loads, but PyTorch says: %s", reference_text(row, "message", "?"));
    compare_again(r, v);
    ds_value_free(v);
}

static void run(Reference *r)
{
    const char *file = reference_text(r->json, "file", NULL),
               *end = file ? strrchr(file, '.') : NULL;
    const json_t *files = json_object_get(r->json, "files"), *row;
    char path[1400];
    if (end && !strcmp(end, ".safetensors")) {
        reference_skip(r, "%s: read by reference/safetensors", file);
        return;
    }
    if (file) {
        snprintf(path, sizeof path, "%s/%s", r->folder, file);
        one_file(r, path, r->json);
        return;
    }
    size_t i;
    int found = 0;
    json_array_foreach(files, i, row)
    {
        const char *name = reference_text(row, "name", "");
        end = strrchr(name, '.');
        snprintf(path, sizeof path, "%s/%s/%s", r->folder, r->id, name);
        if (!end || strcmp(end, ".pt") != 0 || access(path, R_OK) != 0) continue;
        one_file(r, path, row);
        found++;
    }
    if (!found) reference_skip(r, "its files were not kept");
}

static void files(void **unused)
{
    (void)unused;
    CHECK_INT(reference_each("pth", run), 0);
}

TEST_MAIN(cmocka_unit_test(files))
