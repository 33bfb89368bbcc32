/* checkpoint/zip_write.c: a zip archive as PyTorch writes it.
 *
 * Entries are stored, not compressed. Each one is a local header, the data, and
 * a data descriptor with checksum and size, as the checksum is known only after
 * the data. The header's extra field "FB" pads it so that the data begin at a
 * multiple of 64 bytes and can be used in the mapped file. The directory
 * follows. Sizes and places from 2^32 - 1 on are in zip64 fields; the zip64 end
 * record is always written.
 *
 * Invariants: at and crc are those of all bytes that were written so far,
 * except that crc lacks the data of the current entry until dsi_zip_entry_end.
 * entries.at[n-1] is the current entry; entry_left bytes of it are missing.
 * Source: PKWARE's APPNOTE.TXT 6.3.10, 4.3 and 4.5.3; caffe2/serialize of PyTorch.
 * SPDX-License-Identifier: MIT */
#include "base/crc.h"
#include "base/error.h"
#include "base/text.h"
#include "zip.h"

#include <string.h>

#define ALIGN   64
#define MAX_32  0xffffffffu
#define VERSION 45 /* of the format: the one with zip64 */
/* the sizes follow the data; the name is UTF-8 */
#define FLAGS 0x0808

/* An entry that was written, for its row of the directory. */
typedef struct Written {
    char *name;
    uint64_t at, bytes; /* of the header; of the data */
    uint32_t crc;
} Written;

struct dsi_zip_writer {
    dsi_file *f;
    uint64_t at;  /* bytes written so far */
    uint32_t crc; /* of them */
    struct {
        DSI_LIST(Written)
    } entries;
    uint64_t entry_left; /* of the entry that is being written */
};

/* Writes bytes that are no entry's data. */
static void zip_write_bytes(dsi_zip_writer *w, const void *data, size_t bytes)
{
    dsi_file_write(w->f, data, bytes);
    w->crc = dsi_crc32(w->crc, data, bytes);
    w->at += bytes;
}

/* ---- fields, little-endian, in a growing text ---------------------------------------------------------- */

/* Appends the lowest `bytes` bytes of value, little-endian. */
static void record_add(dsi_text *t, uint64_t value, int bytes)
{
    char field[16];
    for (int i = 0; i < bytes; i++, value >>= 8) field[i] = (char)value;
    dsi_text_add_bytes(t, field, (size_t)bytes);
}

/* A 32-bit field of 2^32 - 1 refers the reader to the zip64 field. */
static uint32_t saturate_u32(uint64_t x) { return x < MAX_32 ? (uint32_t)x : MAX_32; }

/* The archive may begin only at byte 0 of f: places count from there. */
dsi_zip_writer *dsi_zip_write_begin(dsi_file *f)
{
    dsi_zip_writer *w = dsi_alloc(sizeof *w);
    w->f = f;
    return w;
}

/* Time and date are 0, so that equal contents are equal files. */
void dsi_zip_entry_begin(dsi_zip_writer *w, const char *name, size_t bytes)
{
    bool wide = bytes >= MAX_32;
    size_t fixed = 30 + strlen(name) + (wide ? 20 : 0) + 4;
    size_t padding = (ALIGN - (w->at + fixed) % ALIGN) % ALIGN;
    dsi_text t = {0};
    dsi_text_add_bytes(&t, "PK\3\4", 4);
    record_add(&t, wide ? VERSION : 0, 2);
    record_add(&t, FLAGS, 2);
    record_add(&t, 0, 2 + 4 + 4);         /* stored; time and date; check sum: later */
    record_add(&t, wide ? MAX_32 : 0, 4); /* sizes: later, but this says how wide they are */
    record_add(&t, wide ? MAX_32 : 0, 4);
    record_add(&t, strlen(name), 2);
    record_add(&t, (wide ? 20 : 0) + 4 + padding, 2);
    dsi_text_add_bytes(&t, name, strlen(name));
    if (wide) {
        record_add(&t, 1, 2); /* zip64 */
        record_add(&t, 16, 2);
        record_add(&t, 0, 8 + 8);
    }
    dsi_text_add_bytes(&t, "FB", 2);
    record_add(&t, padding, 2);
    char z[ALIGN];
    memset(z, 'Z', padding);
    dsi_text_add_bytes(&t, z, padding);

    dsi_list_add(&w->entries, (Written){dsi_strdup(name), w->at, bytes, 0});
    w->entry_left = bytes;
    zip_write_bytes(w, t.s, t.n);
    DSI_ASSERT(w->at % ALIGN == 0);
    dsi_text_free(&t);
}

/* The checksum of the data is computed once, for the entry; dsi_zip_entry_end
 * combines it with that of the file. */
void dsi_zip_entry_data(dsi_zip_writer *w, const void *data, size_t bytes)
{
    Written *e = &w->entries.at[w->entries.n - 1];
    DSI_ASSERT(bytes <= w->entry_left);
    dsi_file_write(w->f, data, bytes);
    e->crc = dsi_crc32(e->crc, data, bytes);
    w->entry_left -= bytes;
    w->at += bytes;
}

/* Writes the data descriptor: signature, checksum, size twice (packed,
 * unpacked). */
void dsi_zip_entry_end(dsi_zip_writer *w)
{
    const Written *e = &w->entries.at[w->entries.n - 1];
    bool wide = e->bytes >= MAX_32;
    w->crc = dsi_crc32_combine(w->crc, e->crc, e->bytes - w->entry_left);
    dsi_text t = {0};
    dsi_text_add_bytes(&t, "PK\7\10", 4);
    record_add(&t, e->crc, 4);
    record_add(&t, e->bytes, wide ? 8 : 4);
    record_add(&t, e->bytes, wide ? 8 : 4);
    zip_write_bytes(w, t.s, t.n);
    dsi_text_free(&t);
}

/* For small entries, whose bytes are in one place. */
void dsi_zip_entry(dsi_zip_writer *w, const char *name, const void *data, size_t bytes)
{
    dsi_zip_entry_begin(w, name, bytes);
    dsi_zip_entry_data(w, data, bytes);
    dsi_zip_entry_end(w);
}

/* ---- the directory --------------------------------------------------------------------------------------- */

/* A row of the directory: central header, name, and zip64 fields if needed. */
static void record_add_entry(dsi_text *t, const Written *e)
{
    bool wide_size = e->bytes >= MAX_32, wide_at = e->at >= MAX_32;
    int extra = (wide_size ? 16 : 0) + (wide_at ? 8 : 0);
    dsi_text_add_bytes(t, "PK\1\2", 4);
    record_add(t, 0, 2);
    record_add(t, extra ? VERSION : 0, 2);
    record_add(t, FLAGS, 2);
    record_add(t, 0, 2 + 4); /* stored; time and date */
    record_add(t, e->crc, 4);
    record_add(t, saturate_u32(e->bytes), 4);
    record_add(t, saturate_u32(e->bytes), 4);
    record_add(t, strlen(e->name), 2);
    record_add(t, extra ? (uint64_t)extra + 4 : 0, 2);
    record_add(t, 0, 2 + 2 + 2 + 4); /* comment, disk, attributes */
    record_add(t, saturate_u32(e->at), 4);
    dsi_text_add_bytes(t, e->name, strlen(e->name));
    if (!extra) return;
    record_add(t, 1, 2);
    record_add(t, (uint64_t)extra, 2);
    if (wide_size) {
        record_add(t, e->bytes, 8);
        record_add(t, e->bytes, 8);
    }
    if (wide_at) record_add(t, e->at, 8);
}

/* The zip64 end record, its locator, and the end record: a directory of `bytes`
 * bytes at byte `at`. */
static void record_add_end(dsi_text *t, uint64_t entries, uint64_t bytes, uint64_t at)
{
    dsi_text_add_bytes(t, "PK\6\6", 4); /* zip64's end of the directory */
    record_add(t, 44, 8);
    record_add(t, VERSION, 2);
    record_add(t, VERSION, 2);
    record_add(t, 0, 4 + 4);
    record_add(t, entries, 8);
    record_add(t, entries, 8);
    record_add(t, bytes, 8);
    record_add(t, at, 8);
    dsi_text_add_bytes(t, "PK\6\7", 4); /* where that is */
    record_add(t, 0, 4);
    record_add(t, at + bytes, 8);
    record_add(t, 1, 4);
    dsi_text_add_bytes(t, "PK\5\6", 4); /* the old end */
    record_add(t, 0, 2 + 2);
    record_add(t, entries < 0xffff ? entries : 0xffff, 2);
    record_add(t, entries < 0xffff ? entries : 0xffff, 2);
    record_add(t, saturate_u32(bytes), 4);
    record_add(t, saturate_u32(at), 4);
    record_add(t, 0, 2);
}

/* Frees the names on the way: the writer has no other owner of them. */
uint32_t dsi_zip_write_end(dsi_zip_writer *w)
{
    dsi_text t = {0};
    for (int i = 0; i < w->entries.n; i++) {
        record_add_entry(&t, &w->entries.at[i]);
        dsi_free(w->entries.at[i].name);
    }
    record_add_end(&t, (uint64_t)w->entries.n, t.n, w->at);
    zip_write_bytes(w, t.s, t.n);
    uint32_t crc = w->crc;
    dsi_text_free(&t);
    dsi_list_free(&w->entries);
    dsi_free(w);
    return crc;
}
