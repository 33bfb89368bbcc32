/* checkpoint/zip.c: reads a zip archive in memory, which is not trusted.
 *
 *     header, name, extra field, data (, size of the data)     an entry, as often as there are some
 *     row, name, extra field, comment                          the directory, a row an entry
 *     zip64's end, where that is, the end                      found from the file's last byte backwards
 *
 * Every length is compared with the rest of the file before it is used, the two
 * names of an entry must agree, no name occurs twice, and no two entries share
 * a byte, so that all entries together are not larger than the file. Deflated
 * entries are unpacked by zlib: torch never writes them, but tools that repack
 * an archive do.
 *
 * Invariants: a dsi_zip points into the file, which the caller keeps until
 * dsi_zip_close. names maps an entry's name to 1 + its index in at, and owns
 * the name. Entries whose name ends in a slash, folders, are left out.
 * Source: PKWARE's APPNOTE.TXT 6.3.10, 4.3 and 4.5.3.
 * SPDX-License-Identifier: MIT */
#include "zip.h"

#include "base/crc.h"
#include "base/error.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define END_BYTES     22
#define LOCATOR_BYTES 20
#define END_64_BYTES  56
#define ROW_BYTES     46
#define HEADER_BYTES  30
#define MAX_32        0xffffffffu
#define MAX_RATIO     1032 /* of deflate: what a byte can become */

/* The file and its directory: at which byte it begins, how long it is, how many
 * rows it has. */
typedef struct Archive {
    const char *what;
    const uint8_t *p;
    size_t bytes;
    uint64_t entries, directory, directory_bytes;
} Archive;

/* A little-endian number of 1 to 8 bytes. */
static uint64_t zip_number(const uint8_t *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes; i-- > 0;) x = x << 8 | p[i];
    return x;
}

/* The signature of a local header, or of the end of an empty archive. */
bool dsi_zip_is_archive(const uint8_t *file, size_t bytes)
{
    return bytes >= 4 && (!memcmp(file, "PK\3\4", 4) || !memcmp(file, "PK\5\6", 4));
}

/* ---- the end ------------------------------------------------------------------------------------------- */

/* Returns the place of the end record, -1 if there is none. It has 22 bytes and
 * a comment, with which the file should end. If no such record ends the file,
 * bytes were appended to it, and the last record counts, as in PyTorch. */
static int64_t zip_find_end(const Archive *a)
{
    if (a->bytes < END_BYTES) return -1;
    size_t last = a->bytes - END_BYTES, first = last > 0xffff ? last - 0xffff : 0;
    int64_t followed = -1;
    for (size_t at = last + 1; at-- > first;) {
        if (memcmp(a->p + at, "PK\5\6", 4) != 0) continue;
        size_t comment = zip_number(a->p + at + 20, 2);
        if (comment == last - at) return (int64_t)at;
        if (followed < 0 && comment < last - at) followed = (int64_t)at;
    }
    return followed;
}

/* Reads the zip64 end record, which has the numbers that do not fit into the
 * end record's fields. A locator of 20 bytes before the end record points to
 * it. */
static bool zip_read_end_64(Archive *a, size_t end)
{
    if (end < LOCATOR_BYTES || memcmp(a->p + end - LOCATOR_BYTES, "PK\6\7", 4) != 0)
        return dsi_wrong("%s: the zip archive's directory is large, but its zip64 end is missing",
                         a->what);
    uint64_t at = zip_number(a->p + end - LOCATOR_BYTES + 8, 8);
    if (end - LOCATOR_BYTES < END_64_BYTES || at > end - LOCATOR_BYTES - END_64_BYTES ||
        memcmp(a->p + at, "PK\6\6", 4) != 0)
        return dsi_wrong("%s: the zip archive's zip64 end is not where it is said to be", a->what);
    a->entries = zip_number(a->p + at + 32, 8);
    a->directory_bytes = zip_number(a->p + at + 40, 8);
    a->directory = zip_number(a->p + at + 48, 8);
    return true;
}

/* Reads where the directory is and how many entries it has. */
static bool zip_read_end(Archive *a)
{
    int64_t found = zip_find_end(a);
    if (found < 0)
        return dsi_wrong(
            "%s: a zip archive without its end: the file was cut off, or is still being "
            "written (%zu bytes)",
            a->what, a->bytes);
    size_t end = (size_t)found;
    a->entries = zip_number(a->p + end + 10, 2);
    a->directory_bytes = zip_number(a->p + end + 12, 4);
    a->directory = zip_number(a->p + end + 16, 4);
    bool wide = a->entries == 0xffff || a->directory_bytes == MAX_32 || a->directory == MAX_32;
    if (wide && !zip_read_end_64(a, end)) return false;
    if (a->directory > end || a->directory_bytes > end - a->directory)
        return dsi_wrong("%s: the zip archive's directory is outside of the file: it was cut off, "
                         "or something was put in front of it",
                         a->what);
    if (a->entries > a->directory_bytes / ROW_BYTES)
        return dsi_wrong("%s: the zip archive's directory is too short for %" PRIu64 " entries",
                         a->what, a->entries);
    return true;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* An entry of the directory: bytes unpacked and packed, and the place of its
 * local header. */
typedef struct Row {
    const uint8_t *name;
    size_t name_bytes;
    unsigned flags, method;
    uint64_t bytes, packed, header;
    uint32_t crc;
} Row;

/* Reads those of the row's fields that are 2^32 - 1 from the zip64 extra field,
 * which has them, and only them, in this order. */
static bool zip_read_zip64(const char *what, Row *r, const uint8_t *extra, size_t n)
{
    bool wide = r->bytes == MAX_32 || r->packed == MAX_32 || r->header == MAX_32;
    for (size_t at = 0; wide && n - at >= 4;) {
        size_t id = zip_number(extra + at, 2), length = zip_number(extra + at + 2, 2);
        at += 4;
        if (length > n - at) break;
        if (id != 1) {
            at += length;
            continue;
        }
        uint64_t *const fields[] = {&r->bytes, &r->packed, &r->header};
        size_t used = 0;
        for (int i = 0; i < 3; i++) {
            if (*fields[i] != MAX_32) continue;
            if (used + 8 > length)
                return dsi_wrong("%s: a zip64 field of the archive is too short", what);
            *fields[i] = zip_number(extra + at + used, 8);
            used += 8;
        }
        return true;
    }
    return !wide || dsi_wrong("%s: an entry of the archive is large, but has no zip64 field", what);
}

/* The row at *at, which moves behind it. */
static bool zip_read_row(const Archive *a, size_t *at, Row *r)
{
    size_t left = a->directory + a->directory_bytes - *at;
    const uint8_t *p = a->p + *at;
    if (left < ROW_BYTES || memcmp(p, "PK\1\2", 4) != 0)
        return dsi_wrong("%s: the zip archive's directory is damaged at byte %zu", a->what, *at);
    size_t name = zip_number(p + 28, 2), extra = zip_number(p + 30, 2),
           comment = zip_number(p + 32, 2);
    if (name + extra + comment > left - ROW_BYTES)
        return dsi_wrong("%s: the zip archive's directory is damaged at byte %zu", a->what, *at);
    *r = (Row){.name = p + ROW_BYTES,
               .name_bytes = name,
               .flags = (unsigned)zip_number(p + 8, 2),
               .method = (unsigned)zip_number(p + 10, 2),
               .crc = (uint32_t)zip_number(p + 16, 4),
               .packed = zip_number(p + 20, 4),
               .bytes = zip_number(p + 24, 4),
               .header = zip_number(p + 42, 4)};
    *at += ROW_BYTES + name + extra + comment;
    if (memchr(r->name, 0, name))
        return dsi_wrong("%s: an entry's name has a zero byte in it", a->what);
    return zip_read_zip64(a->what, r, r->name + name, extra);
}

/* The data of row r, which the entry's own header says; its name is r's. */
static bool zip_read_local_header(const Archive *a, const Row *r, const char *name,
                                  dsi_zip_entry_at *e)
{
    uint64_t end = a->directory;
    if (end < HEADER_BYTES || r->header > end - HEADER_BYTES ||
        memcmp(a->p + r->header, "PK\3\4", 4) != 0)
        return dsi_wrong("%s: entry %.100s is not where the directory says", a->what, name);
    const uint8_t *p = a->p + r->header;
    uint64_t left = end - r->header - HEADER_BYTES;
    size_t name_bytes = zip_number(p + 26, 2), extra = zip_number(p + 28, 2);
    if (name_bytes != r->name_bytes || name_bytes + extra > left ||
        memcmp(p + HEADER_BYTES, r->name, name_bytes) != 0)
        return dsi_wrong("%s: entry %.100s has another name in its header", a->what, name);
    if (r->packed > left - name_bytes - extra)
        return dsi_wrong("%s: entry %.100s has %" PRIu64 " bytes, the file has %" PRIu64 " for it",
                         a->what, name, r->packed, left - name_bytes - extra);
    if (r->flags & 1) return dsi_wrong("%s: entry %.100s is encrypted", a->what, name);
    if (r->method != 0 && r->method != 8)
        return dsi_wrong("%s: entry %.100s is compressed by method %u: stored and deflated ones "
                         "are read",
                         a->what, name, r->method);
    if (r->method == 0 ? r->bytes != r->packed : r->bytes / MAX_RATIO > r->packed)
        return dsi_wrong("%s: entry %.100s cannot have %" PRIu64 " bytes: %" PRIu64 " are there",
                         a->what, name, r->bytes, r->packed);
    *e = (dsi_zip_entry_at){.name = name,
                            .data = p + HEADER_BYTES + name_bytes + extra,
                            .bytes = r->bytes,
                            .packed = r->packed,
                            .crc = r->crc,
                            .deflated = r->method == 8};
    return true;
}

/* For qsort: by the place of the data; empty entries first. */
static int entries_by_data(const void *a, const void *b)
{
    const dsi_zip_entry_at *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->packed > y->packed) - (x->packed < y->packed); /* empty ones first */
}

/* Refuses entries that share bytes: many entries that name the same bytes would
 * unpack to more than the file could hold. */
static bool entries_check_overlap(const dsi_zip *z, const char *what)
{
    dsi_zip_entry_at *sorted = dsi_alloc((size_t)z->n * sizeof *sorted);
    if (z->n) memcpy(sorted, z->at, (size_t)z->n * sizeof *sorted);
    qsort(sorted, (size_t)z->n, sizeof *sorted, entries_by_data);
    bool ok = true;
    for (int i = 1; ok && i < z->n; i++)
        if (sorted[i].data < sorted[i - 1].data + sorted[i - 1].packed)
            ok = dsi_wrong("%s: entries %.100s and %.100s overlap", what, sorted[i - 1].name,
                           sorted[i].name);
    dsi_free(sorted);
    return ok;
}

/* Adds the entry of a row of the directory; false with the message. */
static bool zip_add_entry(dsi_zip *z, const Archive *a, const Row *r)
{
    char *name = dsi_text_of("%.*s", (int)r->name_bytes, (const char *)r->name).s;
    dsi_zip_entry_at e;
    bool ok = zip_read_local_header(a, r, name, &e);
    if (ok && dsi_map_set(&z->names, name, (void *)(uintptr_t)(z->n + 1)))
        ok = dsi_wrong("%s: entry %.100s is there twice", a->what, name);
    if (ok) {
        e.name = z->names.at[z->names.n - 1].name;
        dsi_list_add(z, e);
    }
    dsi_free(name);
    return ok;
}

/* If all checksums are 0, none were computed when the file was written
 * (torch.serialization.set_crc32_options(False)), and none are compared. */
static void zip_find_unchecked(dsi_zip *z)
{
    uint32_t any = 0;
    for (int i = 0; i < z->n; i++) any |= z->at[i].crc;
    for (int i = 0; i < z->n; i++) z->at[i].unchecked = !any;
}

/* Rows are read one after the other; the first damage frees what was read. */
bool dsi_zip_open(dsi_zip *z, const char *what, const uint8_t *file, size_t bytes)
{
    Archive a = {.what = what, .p = file, .bytes = bytes};
    *z = (dsi_zip){0};
    bool ok = zip_read_end(&a);
    size_t at = a.directory;
    for (uint64_t i = 0; ok && i < a.entries; i++) {
        Row row = {.name = (const uint8_t *)""};
        ok = zip_read_row(&a, &at, &row);
        bool folder = ok && row.name_bytes && row.name[row.name_bytes - 1] == '/';
        if (ok && !folder) ok = zip_add_entry(z, &a, &row);
    }
    if (ok) ok = entries_check_overlap(z, what);
    if (ok) zip_find_unchecked(z);
    if (!ok) dsi_zip_close(z);
    return ok;
}

/* The names belong to the map. */
void dsi_zip_close(dsi_zip *z)
{
    dsi_list_free(z);
    dsi_map_free(&z->names);
}

/* The map has 1 + index, as 0 would look like a missing name. */
const dsi_zip_entry_at *dsi_zip_find(const dsi_zip *z, const char *name)
{
    uintptr_t i = (uintptr_t)dsi_map_get(&z->names, name);
    return i ? &z->at[i - 1] : NULL;
}

/* ---- data ------------------------------------------------------------------------------------------------ */

/* Archives without checksums pass. */
bool dsi_zip_check(const char *what, const dsi_zip_entry_at *e, uint32_t crc)
{
    if (crc == e->crc || e->unchecked) return true;
    return dsi_wrong("%s: entry %.100s is damaged: its CRC is %08x, the archive says %08x", what,
                     e->name, (unsigned)crc, (unsigned)e->crc);
}

/* Inflates the entry to exactly e->bytes bytes; false if it has fewer or
 * more. */
static bool entry_inflate(const dsi_zip_entry_at *e, uint8_t *to)
{
    z_stream s = {.next_in = (Bytef *)(uintptr_t)e->data, .next_out = to};
    if (inflateInit2(&s, -15) != Z_OK) return false;
    size_t in = e->packed, out = e->bytes;
    int status = Z_OK;
    while (status == Z_OK) { /* zlib counts in 32 bits */
        if (!s.avail_in) in -= s.avail_in = (uInt)(in < 1u << 30 ? in : 1u << 30);
        if (!s.avail_out) out -= s.avail_out = (uInt)(out < 1u << 30 ? out : 1u << 30);
        status = inflate(&s, Z_NO_FLUSH);
    }
    bool ok = status == Z_STREAM_END && !out && !s.avail_out;
    inflateEnd(&s);
    return ok;
}

/* Data are checked after they are unpacked: the checksum is that of the
 * contents. */
uint8_t *dsi_zip_unpack(const char *what, const dsi_zip_entry_at *e)
{
    uint8_t *p = malloc(e->bytes + 1);
    if (!p)
        return dsi_refuse_with(DS_ENOMEM, "%s: no memory for entry %.100s of %zu bytes", what,
                               e->name, e->bytes);
    bool ok = e->deflated ? entry_inflate(e, p) : (memcpy(p, e->data, e->bytes), true);
    if (!ok)
        dsi_fail(DS_EFORMAT, "%s: entry %.100s does not unpack to %zu bytes", what, e->name,
                 e->bytes);
    if (ok && dsi_zip_check(what, e, dsi_crc32(0, p, e->bytes))) return p;
    free(p);
    return NULL;
}
