/* checkpoint/pth_read.c: reads a file of torch.save: its pickle, and the bytes
 * of its storages.
 *
 * Since PyTorch 1.6 the file is a zip archive (pth_write.c). Before, it was:
 *
 *     pickle    the number 0x1950a86a20f9469cfc6c
 *     pickle    the number 1001
 *     pickle    {"little_endian": True, ...}
 *     pickle    the value
 *     pickle    the keys of its storages, a list
 *     for each storage in the list's order: how many elements (8 bytes), the elements
 *
 * Tensors of a large file use the mapping of the file as their memory, if their
 * elements are aligned there, as in archives that PyTorch wrote; the others are
 * copies. Checksums of the entries that the value uses are compared.
 *
 * Invariants: a Reader lives during one load. Each tensor that uses the mapping
 * holds a count of it, so the file stays mapped after reader_close. The pickle
 * is read first; it makes u.storages, whose `flat` this file fills, and
 * dsi_resolve_tensors then makes the tensors.
 * SPDX-License-Identifier: MIT */
#include "base/mapping.h"
#include "checkpoint.h"
#include "resolve.h"
#include "zip.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC        "119547037146038801333356"
#define BORROW_BYTES 4096 /* storages of at least this size stay in the mapped file */

typedef struct Reader {
    char *what; /* "load: net.pth" */
    dsi_mapping *file;
    int fd; /* of the file, while it is read */
    dsi_unpickler u;
    bool swapped; /* elements have their highest byte first */
    bool glance;  /* the file is read for its checksums alone */
    bool trusted; /* checksums of tensors were compared before */
} Reader;

/* ---- storages ------------------------------------------------------------------------------------------------ */

/* Reverses the bytes of each of n elements. */
static void swap_elements(unsigned char *p, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++, p += size)
        for (size_t k = 0; k < size / 2; k++) {
            unsigned char c = p[k];
            p[k] = p[size - 1 - k];
            p[size - 1 - k] = c;
        }
}

/* Makes s->flat of the storage's bytes: a tensor on the mapping if they are
 * part of a mapped file (in_file), aligned and many, else a copy. False with
 * the
 * message. */
static bool storage_fill(const Reader *r, dsi_pickle_storage *s, ds_dtype dtype,
                         const uint8_t *bytes, bool in_file)
{
    size_t size = ds_dtype_size(dtype), n = (size_t)s->numel * size;
    if (dtype == DS_BOOL && !dsi_are_bools(bytes, (size_t)s->numel))
        return dsi_wrong("%s: storage %.40s: a bool is neither 0 nor 1", r->what, s->key);
    ds_scope *scope = ds_scope_open();
    bool borrow = in_file && r->file->mapped && !r->swapped && n >= BORROW_BYTES &&
                  (uintptr_t)bytes % size == 0;
    if (borrow) {
        r->file->refs++;
        s->flat = dsi_ref(
            dsi_from_blob(dtype, s->numel, (void *)(uintptr_t)bytes, dsi_mapping_unref, r->file));
    } else {
        ds_tensor *x = dsi_new_host(dtype, ds_shape(s->numel));
        if (x && n) memcpy(ds_data_mut(x), bytes, n);
        if (r->trusted) dsi_count_read(n);
        if (x && r->swapped) swap_elements(ds_data_mut(x), s->numel, size);
        s->flat = dsi_ref(x);
    }
    ds_scope_close(scope);
    return s->flat != NULL;
}

/* Checks that a storage of that many bytes has s->numel elements. *known: its
 * dtype is one of ds_dtype, *dtype; others are not checked. */
static bool storage_check_size(const Reader *r, const dsi_pickle_storage *s, uint64_t bytes,
                               ds_dtype *dtype, bool *known)
{
    *dtype = DS_U8;
    *known = s->dtype ? dsi_torch_dtype_named(s->dtype, dtype) : !r->swapped;
    if (!*known) return true; /* dsi_resolve_tensors refuses the tensor, with its path */
    size_t size = ds_dtype_size(*dtype);
    if (bytes % size == 0 && bytes / size == (uint64_t)s->numel) return true;
    return dsi_wrong("%s: storage %.40s has %" PRIu64 " bytes, %" PRId64
                     " elements of %s are expected",
                     r->what, s->key, bytes, s->numel, s->dtype ? s->dtype : "bytes");
}

/* ---- archives ------------------------------------------------------------------------------------------------ */

/* The entry folder/name; NULL if there is none. */
static const dsi_zip_entry_at *archive_entry(const dsi_zip *z, const char *folder, const char *name)
{
    dsi_text path = dsi_text_of("%s/%s", folder, name);
    const dsi_zip_entry_at *e = dsi_zip_find(z, path.s);
    dsi_text_free(&path);
    return e;
}

/* Returns the archive's folder, the one that has data.pkl, for dsi_free; NULL
 * with the message. torch.save calls it "archive" or like the file. */
static char *archive_find_folder(const Reader *r, const dsi_zip *z)
{
    for (int i = 0; i < z->n; i++) {
        const char *slash = strchr(z->at[i].name, '/');
        if (!slash || strcmp(slash, "/data.pkl") != 0) continue;
        char *folder = dsi_strdup(z->at[i].name);
        folder[slash - z->at[i].name] = 0;
        if (!archive_entry(z, folder, "constants.pkl")) return folder;
        dsi_fail(
            DS_EFORMAT,
            "%s: a program of TorchScript (torch.jit.save): save its state_dict() with torch.save",
            r->what);
        dsi_free(folder);
        return NULL;
    }
    return dsi_refuse_with(
        DS_EFORMAT, "%s: a zip archive, but not of torch.save: there is no FOLDER/data.pkl in it",
        r->what);
}

/* Refuses entries outside of the folder, as PyTorch does: with two folders it
 * is unknown which one is meant. */
static bool archive_is_one_folder(const Reader *r, const dsi_zip *z, const char *folder)
{
    size_t n = strlen(folder);
    for (int i = 0; i < z->n; i++)
        if (strncmp(z->at[i].name, folder, n) != 0 || z->at[i].name[n] != '/')
            return dsi_wrong("%s: entry %.100s of the archive is not in its folder %.100s", r->what,
                             z->at[i].name, folder);
    return true;
}

/* Reads the entries version and byteorder. */
static bool archive_read_form(Reader *r, const dsi_zip *z, const char *folder)
{
    const dsi_zip_entry_at *version = archive_entry(z, folder, "version"),
                           *order = archive_entry(z, folder, "byteorder");
    if (!version)
        return dsi_wrong("%s: there is no %.100s/version in the archive", r->what, folder);
    uint8_t *text = dsi_zip_unpack(r->what, version);
    if (!text) return false;
    text[version->bytes] = 0;
    long number = strtol((char *)text, NULL, 10);
    free(text);
    if (number < 1 || number > 10)
        return dsi_wrong("%s: version %ld of the format: 1 to 10 are known", r->what, number);
    if (!order) return true; /* older files have none: little-endian */
    text = dsi_zip_unpack(r->what, order);
    if (!text) return false;
    r->swapped = order->bytes == 3 && !memcmp(text, "big", 3);
    bool ok = r->swapped || (order->bytes == 6 && !memcmp(text, "little", 6));
    free(text);
    return ok || dsi_wrong("%s: the byte order is neither little nor big", r->what);
}

/* Computes the CRC-32 of the entry's data; false with the message. */
static bool archive_entry_sum(const Reader *r, const dsi_zip_entry_at *e, uint32_t *crc)
{
    if (dsi_mapping_sum(r->file, r->fd, (size_t)(e->data - r->file->p), e->bytes, r->glance, crc))
        return true;
    return dsi_refuse_with(DS_EIO, "%s: entry %.100s: %s", r->what, e->name,
                           errno ? strerror(errno) : "the file became shorter while it was read");
}

/* Compares the checksum of a stored entry; false with the message. */
static bool archive_check_entry(const Reader *r, const dsi_zip_entry_at *e)
{
    uint32_t crc;
    return e->unchecked || (archive_entry_sum(r, e, &crc) && dsi_zip_check(r->what, e, crc));
}

/* Fills the storage s from its entry data/KEY. One of an unknown dtype stays
 * without `flat`. */
static bool archive_read_storage(Reader *r, const dsi_zip *z, const char *folder,
                                 dsi_pickle_storage *s)
{
    dsi_text name = dsi_text_of("data/%s", s->key);
    const dsi_zip_entry_at *e = archive_entry(z, folder, name.s);
    dsi_text_free(&name);
    ds_dtype dtype = DS_F32;
    bool known = false;
    if (!e) return dsi_wrong("%s: storage data/%.40s is missing in the archive", r->what, s->key);
    if (!storage_check_size(r, s, e->bytes, &dtype, &known)) return false;
    if (!known) return true;
    if (!e->deflated)
        return (r->trusted || archive_check_entry(r, e)) &&
               storage_fill(r, s, dtype, e->data, true);
    uint8_t *bytes = dsi_zip_unpack(r->what, e);
    bool ok = bytes && storage_fill(r, s, dtype, bytes, false);
    free(bytes);
    return ok;
}

/* Reads the pickle and the storages that it names. Returns the value, whose
 * tensors are not resolved yet; NULL with the message. */
static ds_value *archive_read(Reader *r, const dsi_zip *z, const char *folder)
{
    const dsi_zip_entry_at *pickle = archive_entry(z, folder, "data.pkl");
    if (!archive_is_one_folder(r, z, folder) || !archive_read_form(r, z, folder)) return NULL;
    uint8_t *bytes = dsi_zip_unpack(r->what, pickle);
    if (!bytes) return NULL;
    r->u.p = bytes;
    r->u.bytes = pickle->bytes;
    dsi_count_read(pickle->bytes);
    ds_value *v = dsi_unpickle(&r->u);
    free(bytes);
    bool ok = v != NULL;
    for (int i = 0; ok && i < r->u.storages.n; i++)
        ok = archive_read_storage(r, z, folder, r->u.storages.at[i]);
    if (ok) return v;
    r->u.failed = true;
    ds_value_free(v);
    return NULL;
}

/* Reads the zip archive; its directory is freed when the value is complete. */
static ds_value *archive_load(Reader *r)
{
    dsi_zip z;
    if (!dsi_zip_open(&z, r->what, r->file->p, r->file->bytes)) return NULL;
    char *folder = archive_find_folder(r, &z);
    ds_value *v = folder ? archive_read(r, &z, folder) : NULL;
    dsi_free(folder);
    dsi_zip_close(&z);
    return v;
}

/* ---- files before PyTorch 1.6 ---------------------------------------------------------------------------------- */

/* Fails with a guess of what the file is instead. Returns NULL. */
static ds_value *refuse_file(const Reader *r)
{
    const uint8_t *p = r->file->p;
    size_t n = r->file->bytes;
    const char *other = dsi_file_not_downloaded(p, n);
    if (!n)
        dsi_fail(DS_EFORMAT, "%s: the file is empty", r->what);
    else if (other)
        dsi_fail(DS_EFORMAT, "%s: %s", r->what, other);
    else if (n > 262 && !memcmp(p + 257, "ustar", 5))
        dsi_fail(DS_EFORMAT,
                 "%s: a tar archive, as PyTorch 0.1 wrote: load it with a newer PyTorch and save "
                 "it again",
                 r->what);
    else if (n > 8 && p[8] == '{' && !p[7])
        dsi_fail(DS_EFORMAT,
                 "%s: it looks like safetensors: give it a name that ends in .safetensors",
                 r->what);
    else
        dsi_fail(
            DS_EFORMAT,
            "%s: not a file of torch.save: it begins neither as a zip archive nor as a pickle of "
            "PyTorch",
            r->what);
    return NULL;
}

static ds_value *refuse_version(const Reader *r)
{
    dsi_fail(DS_EFORMAT, "%s: a version of the old format that is not 1001", r->what);
    return NULL;
}

/* Whether the next pickle is an int of those digits; else false with the
 * message, which is that of `refuse` for another value. */
static bool old_expect_int(Reader *r, const char *digits, ds_value *(*refuse)(const Reader *r))
{
    ds_value *v = dsi_unpickle(&r->u);
    if (!v) return false;
    char small[24] = "";
    if (v->kind == DS_VALUE_INT) snprintf(small, sizeof small, "%" PRId64, v->i);
    const char *text = v->kind == DS_VALUE_BIG_INT ? v->text.s : small;
    bool ok = !strcmp(text, digits);
    ds_value_free(v);
    if (!ok) refuse(r);
    return ok;
}

/* The next pickle is a dict of the writing machine's properties: its byte
 * order. */
static bool old_read_system(Reader *r)
{
    ds_value *v = dsi_unpickle(&r->u);
    if (!v) return false;
    const ds_value *little = ds_value_get(v, "little_endian");
    r->swapped = little && little->kind == DS_VALUE_BOOL && !little->b;
    ds_value_free(v);
    return true;
}

/* Reads the storage called `key`, which comes next: the number of its elements
 * as 8 bytes, lowest first, and the elements. */
static bool old_next_storage(Reader *r, const ds_value *key)
{
    dsi_unpickler *u = &r->u;
    dsi_pickle_storage *s = key->kind == DS_VALUE_STRING ? dsi_map_get(&u->by_key, key->text.s)
                                                         : NULL;
    if (!s || s->flat)
        return dsi_wrong("%s: a storage that no tensor has named, or that came already", r->what);
    uint64_t numel = 0, left = u->bytes - u->at;
    for (int i = 8; left >= 8 && i-- > 0;) numel = numel << 8 | u->p[u->at + (size_t)i];
    if (left < 8 || numel != (uint64_t)s->numel)
        return left < 8 ? dsi_wrong("%s: it ends before storage %.40s", r->what, s->key)
                        : dsi_wrong("%s: storage %.40s: its size is not what its tensors say",
                                    r->what, s->key);
    ds_dtype dtype = DS_F32;
    if (!s->dtype || !dsi_torch_dtype_named(s->dtype, &dtype))
        return dsi_wrong("%s: storage %.40s is of %s, which there is not: convert it in Python",
                         r->what, s->key, s->dtype ? s->dtype : "untyped bytes");
    size_t size = ds_dtype_size(dtype);
    if (numel > (left - 8) / size)
        return dsi_wrong("%s: it ends within storage %.40s: it was cut off", r->what, s->key);
    u->at += 8;
    bool ok = storage_fill(r, s, dtype, u->p + u->at, true);
    u->at += (size_t)s->numel * size;
    return ok;
}

/* Reads the list of keys and the storages; each storage that the value uses
 * must be among them. */
static bool old_read_storages(Reader *r)
{
    ds_value *keys = dsi_unpickle(&r->u);
    if (!keys) return false;
    bool ok = keys->kind == DS_VALUE_LIST ||
              dsi_wrong("%s: the keys of its storages are of class %s", r->what,
                        ds_value_class(keys));
    for (int64_t i = 0; ok && i < ds_value_len(keys); i++)
        ok = old_next_storage(r, ds_value_at(keys, i));
    ds_value_free(keys);
    for (int i = 0; ok && i < r->u.storages.n; i++)
        if (!r->u.storages.at[i]->flat)
            ok = dsi_wrong("%s: storage %.40s is not in the file", r->what,
                           r->u.storages.at[i]->key);
    return ok;
}

/* Returns the value of a file of the old format, whose tensors are not resolved
 * yet; NULL with the message. */
static ds_value *old_load(Reader *r)
{
    r->u.p = r->file->p;
    r->u.bytes = r->file->bytes;
    if (r->u.bytes < 2 || r->u.p[0] != 0x80) return refuse_file(r);
    if (!old_expect_int(r, MAGIC, refuse_file) || !old_expect_int(r, "1001", refuse_version))
        return NULL;
    ds_value *v = old_read_system(r) ? dsi_unpickle(&r->u) : NULL;
    if (!v || old_read_storages(r)) return v;
    r->u.failed = true;
    ds_value_free(v);
    return NULL;
}

/* ---- load ------------------------------------------------------------------------------------------------------ */

/* Maps the file; false with the message. *what is the memory of r->what. */
static bool reader_open(Reader *r, const char *path, dsi_text *what)
{
    r->file = dsi_mapping_open("load", path, &r->fd);
    if (!r->file) return false;
    dsi_text_add(what, "load: %s", path);
    r->what = what->s;
    r->u.what = what->s;
    return true;
}

/* The mapping stays while tensors use it; the descriptor is not needed for
 * that. */
static void reader_close(Reader *r, dsi_text *what)
{
    dsi_unpickler_free(&r->u);
    dsi_mapping_unref(r->file);
    close(r->fd);
    dsi_text_free(what);
}

/* Returns the value in the file, for ds_value_free; NULL with the message.
 * trusted: checksums of tensors are not compared; partly: only parts of the
 * file will be accessed, so the system does not read ahead. */
static ds_value *load_pth(const char *path, bool trusted, bool partly, bool objects)
{
    Reader r = {.trusted = trusted, .u.objects = objects};
    dsi_text what = {0};
    if (!reader_open(&r, path, &what)) return NULL;
    if (partly) dsi_mapping_advise_random(r.file);
    bool archive = dsi_zip_is_archive(r.file->p, r.file->bytes);
    ds_value *v = archive ? archive_load(&r) : old_load(&r);
    if (v && !dsi_resolve_tensors(r.what, v, r.file->bytes, r.u.objects)) {
        r.u.failed = true;
        ds_value_free(v);
        v = NULL;
    }
    reader_close(&r, &what);
    return v;
}

/* Checksums are compared and all storages that the value names are read. */
ds_value *ds_value_load_with(ds_value_load_opts o)
{
    return o.path ? load_pth(o.path, false, false, o.objects) : dsi_refuse("load: path is NULL");
}

/* Objects of unknown classes are kept: DeepSpeed's checkpoints have some. */
ds_value *dsi_pth_open(const char *path, bool partly) { return load_pth(path, true, partly, true); }

/* The old format has no checksums: only its size would show damage. */
ds_status dsi_pth_check(const char *path)
{
    Reader r = {.glance = true};
    dsi_text what = {0};
    dsi_zip z = {0};
    if (!reader_open(&r, path, &what)) return ds_error_status();
    bool archive = dsi_zip_is_archive(r.file->p, r.file->bytes);
    bool ok = !archive || dsi_zip_open(&z, r.what, r.file->p, r.file->bytes);
    for (int i = 0; ok && i < z.n; i++) {
        uint8_t *bytes = z.at[i].deflated ? dsi_zip_unpack(r.what, &z.at[i]) : NULL;
        ok = z.at[i].deflated ? bytes != NULL : archive_check_entry(&r, &z.at[i]);
        free(bytes);
    }
    dsi_zip_close(&z);
    reader_close(&r, &what);
    return ok ? DS_OK : ds_error_status();
}
