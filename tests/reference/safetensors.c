/* tests/reference/safetensors.c: files of the safetensors package, good and
 * broken, beside what its own reader says of them (family "pth").
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

/* The tensor that a row of "contents" describes: dtype, shape, sum and first
 * values. */
static void compare(Reference *r, const json_t *row, const ds_state *state)
{
    const char *path = reference_text(row, "path", "/");
    ds_tensor *x = ds_state_get(state, path + 1); /* "/name" */
    if (!x) {
        reference_fail(r, "no tensor %s", path);
        return;
    }
    const char *dtype = reference_text(row, "tensor", "");
    if (strcmp(dtype, ds_dtype_name(ds_dtype_of(x))) != 0)
        reference_fail(r, "%s is %s, want %s", path, ds_dtype_name(ds_dtype_of(x)), dtype);
    ds_dims shape = reference_dims(row, "shape");
    if (shape.n != ds_ndim(x))
        reference_fail(r, "%s has %d dimensions, want %d", path, ds_ndim(x), shape.n);
    for (int i = 0; i < shape.n; i++)
        if (shape.d[i] != ds_size(x, i))
            reference_fail(r, "%s: size %d is %lld, want %lld", path, i, (long long)ds_size(x, i),
                           (long long)shape.d[i]);

    const double *values = ds_data(ds_cast(x, DS_F64));
    double sum = 0;
    for (int64_t i = 0; i < ds_numel(x); i++) sum += values[i];
    reference_number_within(r, path, sum, reference_double(row, "sum", NAN), 0, 1e-12);
    const json_t *first = json_object_get(row, "first_values");
    for (size_t i = 0; i < json_array_size(first); i++)
        reference_number_within(r, path, values[i], reference_number(json_array_get(first, i), NAN),
                                0, 0);
}

static void run(Reference *r)
{
    const char *file = reference_text(r->json, "file", "(several files)"),
               *end = strrchr(file, '.');
    if (!end || strcmp(end, ".safetensors") != 0) {
        reference_skip(r, "%s: read by reference/pth", file);
        return;
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", r->folder, file);
    ds_state *state = ds_load(path);
    const json_t *contents = json_object_get(r->json, "contents");
    bool loads = reference_bool(r->json, "loads", false);
    if (loads && !state) reference_fail(r, "does not load: %s", ds_error());
    if (!loads && state) reference_fail(r, "loads, but is broken");
    if (!loads && !state && ds_error_status() != DS_EFORMAT)
        reference_fail(r, "wrong status: %s", ds_error());
    ds_error_clear();
    for (size_t i = 0; state && i < json_array_size(contents); i++)
        compare(r, json_array_get(contents, i), state);
    if (state && ds_state_len(state) != (int)json_array_size(contents))
        reference_fail(r, "%d tensors, want %d", ds_state_len(state),
                       (int)json_array_size(contents));
    ds_state_free(state);
}

static void files(void **unused)
{
    (void)unused;
    CHECK_INT(reference_each("pth", run), 0);
}

TEST_MAIN(cmocka_unit_test(files))
