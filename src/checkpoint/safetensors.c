/* checkpoint/safetensors.c: the safetensors format, written and read with every
 * check.
 *
 *     8 bytes    n, length of the header, little-endian
 *     n bytes    JSON {"name": {"dtype": "F32", "shape": [6, 3, 5, 5], "data_offsets": [0, 1800]}, ...},
 *                filled up with spaces; "__metadata__" maps strings to strings
 *     the rest   the tensors, row-major, little-endian; offsets count from here
 *
 * A file is not trusted: a length is compared with the file's size before
 * memory is allocated, products of sizes are checked for overflow, and the
 * tensors must cover the data exactly, each byte once.
 *
 * Note [Check sum]. Our files have "deepspeed_crc32": "CCCCCCCC:NNNNNNNNN" in
 * their metadata: the CRC-32 of the whole file with zeros in place of these
 * eight digits, and n. A program that reads our file and writes its metadata
 * into another gives that another header; n tells the two apart, and the sum is
 * then not compared.
 *
 * Invariants: Entry.name points into the JSON of the header, which is freed
 * after the tensors were read. Each tensor that uses the mapping of the file
 * holds a count of it.
 * Source: huggingface.co/docs/safetensors.
 * SPDX-License-Identifier: MIT */
#include "base/crc.h"
#include "base/file.h"
#include "base/mapping.h"
#include "base/text.h"
#include "checkpoint.h"
#include "save_plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER 100000000 /* bytes; the format's own limit */
#define METADATA   "__metadata__"
#define CHECK_SUM  "deepspeed_crc32"
#define CRC_DIGITS 8
#define NO_CRC     "00000000" /* in place of it while it is computed */
#define ALIGN      64 /* of the data we write, for readers that map them; the format asks for 8 */

typedef struct Entry { /* what the header says of one tensor */
    const char *name;  /* the header's */
    ds_dtype dtype;
    ds_dims shape;
    int64_t begin, end; /* bytes, from the end of the header */
} Entry;

typedef struct Entries {
    DSI_LIST(Entry)
} Entries;

static const char *const dtype_names[DS_DTYPES] = {
    [DS_F32] = "F32", [DS_F64] = "F64", [DS_F16] = "F16", [DS_BF16] = "BF16", [DS_I64] = "I64",
    [DS_I32] = "I32", [DS_I16] = "I16", [DS_I8] = "I8",   [DS_U8] = "U8",     [DS_BOOL] = "BOOL"};

/* Fails with "safetensors: path: tensor name: ..."; name may be NULL. Returns
 * false. */
static void *safetensors_wrong(const char *path, const char *name, const char *format, ...)
    DS_PRINTF(3, 4);
static void *safetensors_wrong(const char *path, const char *name, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!name) return dsi_refuse_with(DS_EFORMAT, "safetensors: %s: %s", path, text);
    return dsi_refuse_with(DS_EFORMAT, "safetensors: %s: tensor %.100s: %s", path, name, text);
}

/* Returns the size of a tensor in bytes; -1 if that, or any stride of the
 * shape, exceeds an int64. */
static int64_t shape_bytes(ds_dtype dtype, ds_dims shape)
{
    int64_t n = (int64_t)ds_dtype_size(dtype);
    bool empty = false;
    for (int i = 0; i < shape.n; i++) {
        if (shape.d[i] == 0)
            empty = true; /* strides are products of the other dimensions */
        else if (__builtin_mul_overflow(n, shape.d[i], &n))
            return -1;
    }
    return empty ? 0 : n;
}

/* ---- write ---------------------------------------------------------------------------------------- */

/* Adds {"key": "value", ...} of key, value, ..., NULL (which may be NULL) and
 * the check sum to header. */
static ds_status header_add_metadata(json_t *header, const char *path, const char *const *metadata)
{
    json_t *map = json_object();
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && metadata && metadata[i]; i += 2) {
        const char *key = metadata[i], *value = metadata[i + 1];
        bool ours = !strcmp(key, CHECK_SUM);
        if (!value || ours || json_object_get(map, key))
            status = dsi_fail(DS_EINVAL, "safetensors: %s: metadata key %s %s", path, key,
                              !value ? "has no value"
                              : ours ? "is the library's own"
                                     : "is there twice");
        else if (json_object_set_new(map, key, json_string(value)) != 0)
            status = dsi_fail(DS_EINVAL, "safetensors: %s: metadata %s is not UTF-8", path, key);
    }
    if (status == DS_OK &&
        json_object_set_new(map, CHECK_SUM, json_string(NO_CRC ":000000000")) != 0)
        status = dsi_fail(DS_ENOMEM, "safetensors: %s: no memory for the header", path);
    if (status == DS_OK) json_object_set(header, METADATA, map);
    json_decref(map);
    return status;
}

/* Adds the entry of x, whose bytes begin at *at of the data, to the header, and
 * moves *at behind them. */
static ds_status header_add_tensor(json_t *header, const char *path, const char *name,
                                   const ds_value *x, int64_t *at)
{
    ds_dims shape = dsi_value_shape(x);
    int64_t end = *at + dsi_value_size(x);
    json_t *dims = json_array();
    for (int i = 0; i < shape.n; i++) json_array_append_new(dims, json_integer(shape.d[i]));
    json_t *row = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype_names[dsi_value_dtype(x)],
                            "shape", dims, "data_offsets", (json_int_t)*at, (json_int_t)end);
    if (strcmp(name, METADATA) == 0) {
        json_decref(row);
        return dsi_fail(DS_EINVAL, "safetensors: %s: a tensor cannot be named " METADATA, path);
    }
    if (json_object_set_new(header, name, row) != 0)
        return dsi_fail(DS_EINVAL, "safetensors: %s: tensor %s: its name is not UTF-8", path, name);
    *at = end;
    return DS_OK;
}

/* Returns the header as text, to be freed by free(); NULL with the message. */
static char *header_text(const ds_value *dict, const char *path, const char *const *metadata)
{
    json_t *header = json_object();
    int64_t at = 0;
    ds_status status = header_add_metadata(header, path, metadata);
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(dict); i++)
        status = header_add_tensor(header, path, ds_value_text(ds_value_key_at(dict, i)),
                                   ds_value_at(dict, i), &at);

    char *text = status == DS_OK ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (status == DS_OK && !text)
        dsi_fail(DS_ENOMEM, "safetensors: %s: no memory for the header", path);
    if (text && strlen(text) > MAX_HEADER - ALIGN) {
        dsi_fail(DS_EINVAL,
                 "safetensors: %s: the header of %" PRId64
                 " tensors has %zu bytes, the format takes %d",
                 path, ds_value_len(dict), strlen(text), MAX_HEADER);
        free(text);
        return NULL;
    }
    return text;
}

/* The length and the header of that text, with spaces that make the data begin
 * at a multiple of ALIGN. */
static dsi_text header_bytes(const char *text)
{
    size_t n = strlen(text), padding = (ALIGN - (n + 8) % ALIGN) % ALIGN;
    unsigned char length[8];
    dsi_text t = {0};
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((n + padding) >> 8 * i);
    dsi_text_add_bytes(&t, length, sizeof length);
    dsi_text_add_bytes(&t, text, n);
    while (padding--) dsi_text_add_bytes(&t, " ", 1);
    return t;
}

/* Where the value of CHECK_SUM begins in a header without needless blanks, as
 * we write it; NULL: it has none. Within a string of JSON the quotes would
 * follow backslashes. */
static const char *header_find_check_sum(const char *header, size_t n)
{
    static const char key[] = "\"" CHECK_SUM "\":\"";
    const char *at = memmem(header, n, key, sizeof key - 1);
    size_t left = at ? n - (size_t)(at - header) : 0;
    return left > sizeof key + CRC_DIGITS ? at + sizeof key - 1 : NULL;
}

/* The sink of dsi_value_bytes. */
static void add_to_crc(void *crc, const void *data, size_t bytes)
{
    *(uint32_t *)crc = dsi_crc32(*(uint32_t *)crc, data, bytes);
}

/* Writes the check sum into the header. */
static ds_status header_set_check_sum(dsi_text *header, const ds_value *dict)
{
    char value[CRC_DIGITS + 11];
    char *at = (char *)header_find_check_sum(header->s, header->n);
    int n = snprintf(value, sizeof value, NO_CRC ":%09zu", header->n - 8);
    memcpy(at, value, (size_t)n);
    uint32_t crc = dsi_crc32(0, header->s, header->n);
    ds_status status = DS_OK;
    for (int64_t i = 0; i < ds_value_len(dict) && status == DS_OK; i++)
        status = dsi_value_bytes(ds_value_at(dict, i), add_to_crc, &crc);
    snprintf(value, sizeof value, "%08" PRIx32, crc);
    memcpy(at, value, CRC_DIGITS);
    return status;
}

/* The sink of dsi_value_bytes. Errors show in dsi_file_failed and the
 * commit. */
static void write_tensor_chunk(void *f, const void *data, size_t bytes)
{
    dsi_file_write(f, data, bytes);
}

/* The header comes first, as sizes are known; then the tensors in the dict's
 * order, without gaps. */
ds_status dsi_safetensors_save_dict(const ds_value *dict, const char *path,
                                    const char *const *metadata)
{
    char *text = header_text(dict, path, metadata);
    if (!text) return ds_error_status();
    dsi_text header = header_bytes(text);
    free(text);
    ds_status status = header_set_check_sum(&header, dict);
    dsi_file *f = status == DS_OK ? dsi_file_replace(path) : NULL;
    if (f) dsi_file_write(f, header.s, header.n);
    dsi_text_free(&header);
    if (!f) return ds_error_status();
    for (int64_t i = 0; i < ds_value_len(dict) && status == DS_OK && !dsi_file_failed(f); i++)
        status = dsi_value_bytes(ds_value_at(dict, i), write_tensor_chunk, f);
    if (status == DS_OK) return dsi_file_commit(f);
    dsi_file_abandon(f);
    return status;
}

/* A state dict becomes a value that shares its tensors; nothing is copied. */
ds_status ds_safetensors_save(const ds_state *state, const char *path, const char *const *metadata)
{
    if (!path) return dsi_fail(DS_EINVAL, "safetensors: path is NULL");
    if (!state) {
        dsi_null_operand("safetensors");
        return ds_error_status();
    }
    ds_value *dict = ds_value_of_state(state);
    ds_status status = dsi_safetensors_save_dict(dict, path, metadata);
    ds_value_free(dict);
    return status;
}

/* ---- read: the header ----------------------------------------------------------------------------- */

/* "F32" and the others; false with the message. */
static bool parse_dtype(const char *path, Entry *e, const json_t *value)
{
    const char *name = json_string_value(value);
    for (int i = 0; name && i < DS_DTYPES; i++) {
        if (strcmp(name, dtype_names[i]) == 0) {
            e->dtype = (ds_dtype)i;
            return true;
        }
    }
    return safetensors_wrong(path, e->name,
                             "dtype is %s%.40s; known are F32 F64 F16 BF16 I64 I32 I16 I8 U8 BOOL",
                             name ? "" : "not a string", name ? name : "");
}

/* A list of up to DS_MAX_DIMS sizes; false with the message. */
static bool parse_shape(const char *path, Entry *e, const json_t *value)
{
    if (!json_is_array(value)) return safetensors_wrong(path, e->name, "shape is not a list");
    size_t n = json_array_size(value);
    if (n > DS_MAX_DIMS)
        return safetensors_wrong(path, e->name, "has %zu dimensions, at most %d work", n,
                                 DS_MAX_DIMS);
    e->shape.n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(value, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return safetensors_wrong(path, e->name, "shape[%zu] is not a whole number from 0 up",
                                     i);
        e->shape.d[i] = json_integer_value(d);
    }
    return true;
}

/* [begin, end) in bytes of the data; false with the message. */
static bool parse_offsets(const char *path, Entry *e, const json_t *value)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return safetensors_wrong(path, e->name, "data_offsets is not a list of two whole numbers");
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (e->begin < 0 || e->end < e->begin)
        return safetensors_wrong(path, e->name,
                                 "data_offsets [%" PRId64 ", %" PRId64 "] do not go up from 0",
                                 e->begin, e->end);
    return true;
}

/* Parses the object of one tensor, which must have exactly three members and as
 * many bytes as dtype and shape need. */
static bool parse_entry(const char *path, Entry *e, json_t *row)
{
    const char *key;
    json_t *value;
    int known = 0;
    json_object_foreach(row, key, value)
    {
        bool ok;
        if (strcmp(key, "dtype") == 0)
            ok = parse_dtype(path, e, value);
        else if (strcmp(key, "shape") == 0)
            ok = parse_shape(path, e, value);
        else if (strcmp(key, "data_offsets") == 0)
            ok = parse_offsets(path, e, value);
        else
            ok = safetensors_wrong(path, e->name, "unknown field \"%.40s\"", key);
        if (!ok) return false;
        known++;
    }
    if (known != 3) return safetensors_wrong(path, e->name, "wants dtype, shape and data_offsets");

    int64_t bytes = shape_bytes(e->dtype, e->shape);
    if (bytes < 0)
        return safetensors_wrong(path, e->name, "its shape has more elements than any memory");
    if (bytes != e->end - e->begin)
        return safetensors_wrong(
            path, e->name, "%s%s takes %" PRId64 " bytes, data_offsets give %" PRId64,
            dtype_names[e->dtype], dsi_shape_text(e->shape), bytes, e->end - e->begin);
    return true;
}

/* "__metadata__" must map strings to strings; its content is not used. */
static bool check_metadata_text(const char *path, json_t *map)
{
    const char *key;
    json_t *value;
    if (!json_is_object(map)) return safetensors_wrong(path, NULL, METADATA " is not a map");
    json_object_foreach(map, key, value) if (!json_is_string(value)) return safetensors_wrong(
        path, NULL, METADATA ": %.100s is not a string", key);
    return true;
}

/* For qsort: by place; an empty tensor before one that begins there. */
static int entries_by_offset(const void *a, const void *b)
{
    const Entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* empty ones first */
}

/* Checks that each of the data_bytes bytes belongs to exactly one tensor. */
static bool check_entries_cover(const char *path, const Entries *all, int64_t data_bytes)
{
    Entry *sorted = dsi_alloc((size_t)all->n * sizeof *sorted);
    if (all->n) memcpy(sorted, all->at, (size_t)all->n * sizeof *sorted);
    qsort(sorted, (size_t)all->n, sizeof *sorted, entries_by_offset);
    int64_t at = 0;
    bool ok = true;
    for (int i = 0; ok && i < all->n; i++) {
        const Entry *e = &sorted[i];
        if (e->begin < at)
            ok = safetensors_wrong(path, e->name, "overlaps tensor %.100s", sorted[i - 1].name);
        else if (e->begin > at)
            ok = safetensors_wrong(path, e->name, "%" PRId64 " bytes before it belong to no tensor",
                                   e->begin - at);
        else if (e->end > data_bytes)
            ok = safetensors_wrong(path, e->name,
                                   "ends at byte %" PRId64 " of the data, which has %" PRId64,
                                   e->end, data_bytes);
        at = e->end;
    }
    dsi_free(sorted);
    if (ok && at != data_bytes)
        return safetensors_wrong(path, NULL, "%" PRId64 " bytes after the last tensor",
                                 data_bytes - at);
    return ok;
}

/* Appends the entries of the header, in its order, to *all; false with the
 * message. */
static bool parse_header(const char *path, json_t *header, int64_t data_bytes, Entries *all)
{
    const char *name;
    json_t *row;
    json_object_foreach(header, name, row)
    {
        if (strcmp(name, METADATA) == 0) {
            if (!check_metadata_text(path, row)) return false;
            continue;
        }
        if (!*name) return safetensors_wrong(path, NULL, "a tensor has no name: expected one");
        Entry e = {.name = name};
        if (!json_is_object(row)) return safetensors_wrong(path, name, "is not a map");
        if (!parse_entry(path, &e, row)) return false;
        dsi_list_add(all, e);
    }
    return check_entries_cover(path, all, data_bytes);
}

/* Parses the header; *data: the byte at which the tensors' data begin. NULL
 * with the message. */
static json_t *header_read(const dsi_mapping *file, const char *path, size_t *data)
{
    uint64_t n = 0;
    if (file->bytes < 8)
        return safetensors_wrong(path, NULL, "has %zu bytes, too short for a header", file->bytes);
    for (int i = 0; i < 8; i++) n |= (uint64_t)file->p[i] << 8 * i;
    const char *other = dsi_file_not_downloaded(file->p, file->bytes);
    bool beyond = n > MAX_HEADER || n > file->bytes - 8;
    if (beyond && other) return safetensors_wrong(path, NULL, "%s", other);
    if (beyond)
        return safetensors_wrong(path, NULL,
                                 "claims a header of %" PRIu64
                                 " bytes, has %zu behind its length (at most %d)",
                                 n, file->bytes - 8, MAX_HEADER);
    *data = 8 + (size_t)n;
    json_t *header = NULL;
    json_error_t error;
    const char *text = (const char *)file->p + 8;
    if (!n || text[0] != '{')
        safetensors_wrong(path, NULL, "its header does not begin with {");
    else if (!(header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error)))
        safetensors_wrong(path, NULL, "its header is not JSON: %s at byte %d", error.text,
                          error.position);
    return header;
}

/* Compares the check sum, if the file has one of ours; false with the
 * message. */
static bool file_check_sum(const dsi_mapping *file, const char *path, size_t data)
{
    const char *header = (const char *)file->p, *at = header_find_check_sum(header, data);
    unsigned long long n;
    uint32_t want, crc;
    if (!at || sscanf(at, "%8" SCNx32 ":%9llu\"", &want, &n) != 2 || n != data - 8) return true;
    size_t front = (size_t)(at - header), rest = front + CRC_DIGITS;
    crc = dsi_crc32(0, header, front);
    crc = dsi_crc32(crc, NO_CRC, CRC_DIGITS);
    crc = dsi_crc32(crc, header + rest, file->bytes - rest);
    if (crc == want) return true;
    return safetensors_wrong(path, NULL,
                             "its check sum (" CHECK_SUM ") is %08" PRIx32 ", its bytes give "
                             "%08" PRIx32 ": it is damaged, or changed by another program",
                             want, crc);
}

/* ---- read: the data ------------------------------------------------------------------------------- */

/* Returns the tensor of e, whose bytes are at p, in the current scope: on the
 * file's mapping if it is aligned there, else a copy. NULL with the message. */
static ds_tensor *read_tensor(dsi_mapping *file, const char *path, const Entry *e, unsigned char *p)
{
    size_t bytes = (size_t)(e->end - e->begin), size = ds_dtype_size(e->dtype);
    if (e->dtype == DS_BOOL && !dsi_are_bools(p, bytes))
        return safetensors_wrong(path, e->name, "a BOOL is neither 0 nor 1");
    if (file->mapped && bytes && (uintptr_t)p % size == 0) {
        int64_t stride[DS_MAX_DIMS];
        dsi_row_major(e->shape, stride);
        file->refs++;
        ds_tensor *flat = dsi_from_blob(e->dtype, (int64_t)(bytes / size), p, dsi_mapping_unref,
                                        file);
        return dsi_view_of(flat, e->shape, stride, 0);
    }
    ds_tensor *x = dsi_new_host(e->dtype, e->shape);
    if (x && bytes) memcpy(ds_data_mut(x), p, bytes);
    return x;
}

/* Returns the tensors as a state dict, whose data begin at byte `data` of the
 * file; NULL with the message. */
static ds_state *read_tensors(dsi_mapping *file, const char *path, const Entries *all, size_t data)
{
    ds_state *state = ds_state_new();
    bool ok = true;
    for (int i = 0; ok && i < all->n; i++) {
        const Entry *e = &all->at[i];
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = read_tensor(file, path, e, file->p + data + e->begin);
        ok = x && ds_state_set(state, e->name, x) == DS_OK;
        ds_scope_close(scope);
    }
    if (ok) return state;
    ds_state_free(state);
    return NULL;
}

/* Unmapping waits for the last tensor that uses the mapping. */
ds_state *ds_safetensors_load(const char *path)
{
    if (!path) return dsi_refuse("safetensors: path is NULL");
    dsi_mapping *file = dsi_mapping_open("safetensors", path, NULL);
    if (!file) return NULL;
    ds_state *state = NULL;
    Entries all = {0};
    size_t data = 0;
    json_t *header = header_read(file, path, &data);
    if (header && parse_header(path, header, (int64_t)(file->bytes - data), &all) &&
        file_check_sum(file, path, data))
        state = read_tensors(file, path, &all, data);
    dsi_list_free(&all);
    json_decref(header);
    dsi_mapping_unref(file);
    return state;
}
