/* checkpoint/zip.h: writes and reads the zip archive of a .pth file.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/file.h"
#include "base/list.h"
#include "base/map.h"

/* ---- write: stored entries, whose data begin at multiples of 64 bytes of the file --------------------- */

typedef struct dsi_zip_writer dsi_zip_writer;

dsi_zip_writer *dsi_zip_write_begin(dsi_file *f); /* f stays the caller's */
/* Begins an entry of exactly `bytes` bytes, which _data appends in any number
 * of chunks before _end. Errors of the file show in dsi_file_failed and in its
 * commit. */
void dsi_zip_entry_begin(dsi_zip_writer *w, const char *name, size_t bytes);
void dsi_zip_entry_data(dsi_zip_writer *w, const void *data, size_t bytes);
void dsi_zip_entry_end(dsi_zip_writer *w);
/* Writes a whole entry. */
void dsi_zip_entry(dsi_zip_writer *w, const char *name, const void *data, size_t bytes);
/* Writes the directory and frees w. Returns the CRC-32 of all that was
 * written. */
uint32_t dsi_zip_write_end(dsi_zip_writer *w);

/* ---- read: an archive in memory ------------------------------------------------------------------------ */

typedef struct dsi_zip_entry_at {
    const char *name; /* the archive's */
    const uint8_t *data;
    size_t bytes, packed; /* unpacked and in the archive: equal unless deflated */
    uint32_t crc;
    bool deflated, unchecked; /* unchecked: there is no check sum */
} dsi_zip_entry_at;

typedef struct dsi_zip {
    DSI_LIST(dsi_zip_entry_at)
    dsi_map names; /* -> 1 + number */
} dsi_zip;

/* Tells whether the bytes begin as a zip archive: with an entry, or empty. */
bool dsi_zip_is_archive(const uint8_t *file, size_t bytes);

/* Reads the archive's directory and local headers into *z; false, with a
 * message that begins with `what`, if they are damaged. file stays the
 * caller's. Data are not checked. */
bool dsi_zip_open(dsi_zip *z, const char *what, const uint8_t *file, size_t bytes);
void dsi_zip_close(dsi_zip *z);
/* Returns the entry of that name, which z owns; NULL if there is none. */
const dsi_zip_entry_at *dsi_zip_find(const dsi_zip *z, const char *name);

/* Compares crc, computed of the data of e, with its checksum; false with the
 * message. */
bool dsi_zip_check(const char *what, const dsi_zip_entry_at *e, uint32_t crc);
/* Returns the bytes of e, unpacked and checked, in memory of e->bytes + 1 bytes
 * that the caller frees by free(); NULL with the message. */
uint8_t *dsi_zip_unpack(const char *what, const dsi_zip_entry_at *e);
