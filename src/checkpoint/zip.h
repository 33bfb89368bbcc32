/* checkpoint/zip.h: the zip archives that a .pth is: written as PyTorch writes
 * them, read with suspicion.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CHECKPOINT_ZIP_H
#define DSI_CHECKPOINT_ZIP_H

#include "base/file.h"
#include "base/list.h"
#include "base/map.h"

/* ---- write: stored entries, whose data begin at multiples of 64 bytes of the file --------------------- */

typedef struct dsi_zip_writer dsi_zip_writer;

dsi_zip_writer *dsi_zip_write_begin(dsi_file *f); /* f stays the caller's */
/* An entry of exactly so many bytes, which follow in any number of pieces. */
void dsi_zip_entry_begin(dsi_zip_writer *w, const char *name, size_t bytes);
void dsi_zip_entry_data(dsi_zip_writer *w, const void *data, size_t bytes);
void dsi_zip_entry_end(dsi_zip_writer *w);
void dsi_zip_entry(dsi_zip_writer *w, const char *name, const void *data, size_t bytes);
/* The directory; frees w -> CRC-32 of all that was written. */
uint32_t dsi_zip_write_end(dsi_zip_writer *w);

/* ---- read: an archive that lies in memory -------------------------------------------------------------- */

typedef struct dsi_zip_entry_at {
    const char *name; /* the archive's */
    const uint8_t *data;
    size_t bytes, packed; /* as it is, and in the archive: they differ if it is deflated */
    uint32_t crc;
    bool deflated, unchecked; /* unchecked: there is no check sum */
} dsi_zip_entry_at;

typedef struct dsi_zip {
    DSI_LIST(dsi_zip_entry_at)
    dsi_map names; /* -> 1 + number */
} dsi_zip;

/* Whether these bytes begin as an archive of files does. */
bool dsi_zip_is_archive(const uint8_t *file, size_t bytes);

/* The archive's entries; false, with the message that begins with `what`, if it
 * is damaged. file stays the caller's. Data are not looked at. */
bool dsi_zip_open(dsi_zip *z, const char *what, const uint8_t *file, size_t bytes);
void dsi_zip_close(dsi_zip *z);
/* NULL if there is none */
const dsi_zip_entry_at *dsi_zip_find(const dsi_zip *z, const char *name);

/* Whether crc, of the data of e, is its check sum; false with the message. */
bool dsi_zip_check(const char *what, const dsi_zip_entry_at *e, uint32_t crc);
/* The bytes of e unpacked, to be freed; NULL with the message. */
uint8_t *dsi_zip_unpack(const char *what, const dsi_zip_entry_at *e);

#endif
