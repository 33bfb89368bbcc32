/* tests/reference.c: finds, reads and compares reference cases.
 * SPDX-License-Identifier: MIT */
#include "reference.h"

#include "base/half.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- reporting --------------------------------------------------------------------------------------- */

void reference_fail(Reference *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", r->id);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    r->failures++;
}

void reference_skip(Reference *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: skipped: ", r->id);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    r->skipped = true;
}

/* ---- JSON -------------------------------------------------------------------------------------------- */

double reference_number(const json_t *value, double absent)
{
    if (json_is_number(value)) return json_number_value(value);
    if (json_is_boolean(value)) return json_is_true(value);
    const char *text = json_string_value(value);
    if (!text) return absent;
    return strtod(text, NULL); /* "nan", "inf", "-inf" */
}

double reference_double(const json_t *object, const char *key, double absent)
{
    return reference_number(json_object_get(object, key), absent);
}

int64_t reference_int(const json_t *object, const char *key, int64_t absent)
{
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) ? json_integer_value(v) : absent;
}

bool reference_bool(const json_t *object, const char *key, bool absent)
{
    const json_t *v = json_object_get(object, key);
    return json_is_boolean(v) ? json_is_true(v) : absent;
}

const char *reference_text(const json_t *object, const char *key, const char *absent)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : absent;
}

ds_dims reference_dims(const json_t *object, const char *key)
{
    ds_dims dims = {0};
    const json_t *v = json_object_get(object, key);
    if (json_is_integer(v)) return ds_shape(json_integer_value(v));
    for (size_t i = 0; i < json_array_size(v) && i < DS_MAX_DIMS; i++)
        dims.d[dims.n++] = json_integer_value(json_array_get(v, i));
    return dims;
}

ds_tensor *reference_integers(const json_t *list)
{
    bool nested = json_is_array(json_array_get(list, 0));
    size_t n = json_array_size(list), m = nested ? json_array_size(json_array_get(list, 0)) : 1;
    int64_t *p = malloc((n * m + 1) * sizeof *p);
    for (size_t i = 0; i < n * m; i++) {
        const json_t *x = json_array_get(list, i / m);
        p[i] = json_integer_value(nested ? json_array_get(x, i % m) : x);
    }
    ds_dims shape = {.n = 1 + nested, .d = {(int64_t)n, (int64_t)m}};
    ds_tensor *x = ds_from_data(DS_I64, shape, p);
    free(p);
    return x;
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

ds_tensor *reference_tensor(const Reference *r, const char *name)
{
    return r->tensors ? ds_state_get(r->tensors, name) : NULL;
}

ds_state *reference_load(Reference *r, const char *file)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", r->folder, file);
    ds_state *state = ds_safetensors_load(path);
    ds_device device = ds_current_device();
    if (!state) reference_fail(r, "%s", ds_error());
    for (int i = 0; state && device.kind != DS_CPU && i < ds_state_len(state); i++) {
        ds_tensor *x = ds_state_at(state, i);
        ds_state_set(state, ds_state_name(state, i), ds_to(x, device, ds_dtype_of(x)));
    }
    return state;
}

static double element(const void *p, ds_dtype dtype, int64_t i)
{
    switch (dtype) {
    case DS_F32:
        return ((const float *)p)[i];
    case DS_F64:
        return ((const double *)p)[i];
    case DS_F16:
        return dsi_f16_to_f32(((const uint16_t *)p)[i]);
    case DS_BF16:
        return dsi_bf16_to_f32(((const uint16_t *)p)[i]);
    case DS_I64:
        return (double)((const int64_t *)p)[i];
    case DS_I32:
        return ((const int32_t *)p)[i];
    case DS_I16:
        return ((const int16_t *)p)[i];
    case DS_I8:
        return ((const int8_t *)p)[i];
    case DS_U8:
    case DS_BOOL:
        return ((const uint8_t *)p)[i];
    }
    return NAN;
}

/* "[2, 0, 5]": element i of a row-major tensor. */
static void place(ds_dims shape, int64_t i, char *text, size_t room)
{
    int64_t at[DS_MAX_DIMS];
    for (int k = shape.n - 1; k >= 0; k--) {
        at[k] = i % shape.d[k];
        i /= shape.d[k];
    }
    size_t n = (size_t)snprintf(text, room, "[");
    for (int k = 0; k < shape.n; k++)
        n += (size_t)snprintf(text + n, room - n, "%s%lld", k ? ", " : "", (long long)at[k]);
    snprintf(text + n, room - n, "]");
}

static void shape_text(ds_dims shape, char *text, size_t room)
{
    size_t n = (size_t)snprintf(text, room, "[");
    for (int k = 0; k < shape.n; k++)
        n += (size_t)snprintf(text + n, room - n, "%s%lld", k ? ", " : "", (long long)shape.d[k]);
    snprintf(text + n, room - n, "]");
}

/* By how much got misses, beyond the tolerance; 0 or less if it does not. */
static double excess(double got, double want, double atol, double rtol)
{
    if (got == want || (isnan(got) && isnan(want))) return 0;
    double off = fabs(got - want) - (atol + rtol * fabs(want));
    return isnan(off) ? INFINITY : off;
}

static bool same_kind(Reference *r, const char *what, ds_tensor *got, ds_tensor *want)
{
    char g[200], w[200];
    ds_dims a = ds_shape_of(got), b = ds_shape_of(want);
    shape_text(a, g, sizeof g);
    shape_text(b, w, sizeof w);
    if (!strcmp(g, w) && ds_dtype_of(got) == ds_dtype_of(want)) return true;
    reference_fail(r, "%s: got %s %s, want %s %s", what, ds_dtype_name(ds_dtype_of(got)), g,
                   ds_dtype_name(ds_dtype_of(want)), w);
    return false;
}

bool reference_within(Reference *r, const char *what, ds_tensor *got, ds_tensor *want, double atol,
                      double rtol)
{
    if (!got || !want) {
        reference_fail(r, "%s: there is no %s: %s", what, got ? "reference value" : "result",
                       ds_error() ? ds_error() : "no message");
        return false;
    }
    if (!same_kind(r, what, got, want)) return false;
    const char *g = ds_data(got), *w = ds_data(want);
    if (!g || !w) {
        reference_fail(r, "%s: %s", what, ds_error());
        return false;
    }
    ds_dtype dtype = ds_dtype_of(want);
    size_t size = ds_dtype_size(dtype);
    int64_t bad = 0, worst = -1;
    double most = -1;
    for (int64_t i = 0, n = ds_numel(want); i < n; i++) {
        double a = element(g, dtype, i), b = element(w, dtype, i);
        double off = excess(a, b, atol, rtol);
        if (atol == 0 && rtol == 0 && !(isnan(a) && isnan(b)) &&
            memcmp(g + (size_t)i * size, w + (size_t)i * size, size) != 0 && !(off > 0))
            off = 1e-300; /* equal values of other bits: zeros of different signs */
        if (!(off > 0)) continue;
        bad++;
        if (off > most) {
            most = off;
            worst = i;
        }
    }
    if (!bad) return true;
    char at[200];
    place(ds_shape_of(want), worst, at, sizeof at);
    double a = element(g, dtype, worst), b = element(w, dtype, worst);
    reference_fail(r, "%s%s: got %.9g, want %.9g within %.3g (off by %.3g; %lld of %lld are off)",
                   what, at, a, b, atol + rtol * fabs(b), fabs(a - b), (long long)bad,
                   (long long)ds_numel(want));
    return false;
}

bool reference_close(Reference *r, const char *name, ds_tensor *got)
{
    double atol = reference_double(json_object_get(r->json, "atol"), name, 0);
    double rtol = reference_double(json_object_get(r->json, "rtol"), name, 0);
    return reference_within(r, name, got, reference_tensor(r, name), atol, rtol);
}

bool reference_number_within(Reference *r, const char *what, double got, double want, double atol,
                             double rtol)
{
    if (!(excess(got, want, atol, rtol) > 0)) return true;
    reference_fail(r, "%s: got %.17g, want %.17g within %.3g (off by %.3g)", what, got, want,
                   atol + rtol * fabs(want), fabs(got - want));
    return false;
}

/* ---- files ------------------------------------------------------------------------------------------- */

static int is_json(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 5 && !strcmp(e->d_name + n - 5, ".json");
}

static void run_file(Reference *r, const char *file, void (*run)(Reference *r))
{
    char path[1024];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", r->folder, file);
    r->id = file;
    r->json = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!r->json &&
        json_error_code(&error) == json_error_numeric_overflow) /* Python's integers are longer */
        r->json = json_load_file(
            path, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!r->json) {
        reference_fail(r, "line %d: %s", error.line, error.text);
        return;
    }
    r->id = reference_text(r->json, "id", file);
    const char *tensors = reference_text(r->json, "tensors", NULL);
    ds_scope *scope = ds_scope_open();
    if (tensors) r->tensors = reference_load(r, tensors);
    if (!tensors || r->tensors) run(r);
    ds_error_clear();
    ds_state_free(r->tensors);
    ds_scope_close(scope);
    json_decref(r->json);
}

/* Sets r->folder to that of the family: in $DS_REFERENCE, or in tests/golden if
 * that is not set or a folder without the family. */
static void find_family(Reference *r, const char *family)
{
    const char *root = getenv("DS_REFERENCE");
    if (!root || !*root) root = DS_GOLDEN;
    snprintf(r->folder, sizeof r->folder, "%s/%s", root, family);
    if (access(r->folder, F_OK) != 0 && access(root, F_OK) == 0)
        snprintf(r->folder, sizeof r->folder, "%s/%s", DS_GOLDEN, family);
}

int reference_each(const char *family, void (*run)(Reference *r))
{
    Reference base = {.id = family};
    find_family(&base, family);
    struct dirent **files = NULL;
    int n = scandir(base.folder, &files, is_json, alphasort), failed = 0, skipped = 0;
    int elsewhere = 0;
    if (n <= 0) {
        reference_fail(&base, "no cases in %s", base.folder);
        n = 0;
        failed = 1;
    }
    for (int i = 0; i < n; i++) {
        Reference r = base;
        run_file(&r, files[i]->d_name, run);
        failed += r.failures > 0;
        skipped += r.skipped;
        elsewhere += r.elsewhere;
        free(files[i]);
    }
    free(files);
    fprintf(stderr, "%s: %d files, %d failed, %d skipped\n", base.folder, n - elsewhere, failed,
            skipped);
    return failed;
}
