/* checkpoint/pth_write.c: a nested value as the archive that torch.save writes.
 *
 *     archive/data.pkl              the value; tensors are views of storages, which are named by numbers
 *     archive/.format_version       1
 *     archive/.storage_alignment    64
 *     archive/byteorder             little
 *     archive/data/0, 1, ...        the storages
 *     archive/version               3
 *
 * The bytes of tensors are written from the tensors' memory, in chunks, and
 * their checksums are computed at the same time. Equal values make equal files:
 * nothing in them depends on time, path or addresses.
 * SPDX-License-Identifier: MIT */
#include "pickle.h"
#include "zip.h"

#include <stdio.h>

/* The sink of dsi_save_plan_write; arg is the dsi_zip_writer. */
static void write_one_chunk(void *arg, const void *data, size_t bytes)
{
    dsi_zip_entry_data(arg, data, bytes);
}

/* Writes storage i as entry data/i. */
static ds_status write_storages(dsi_zip_writer *w, const dsi_file *f, const dsi_save_plan *stored)
{
    ds_status status = DS_OK;
    for (int i = 0; i < stored->storages.n && status == DS_OK && !dsi_file_failed(f); i++) {
        const dsi_planned_storage *s = &stored->storages.at[i];
        char name[40];
        snprintf(name, sizeof name, "archive/data/%d", i);
        dsi_zip_entry_begin(w, name, (size_t)s->numel * ds_dtype_size(s->dtype));
        status = dsi_save_plan_write(stored, i, write_one_chunk, w);
        dsi_zip_entry_end(w);
    }
    return status;
}

/* Writes all entries to f. *crc (or NULL): CRC-32 of the whole file. */
static ds_status write_archive(dsi_file *f, const dsi_text *pickle, const dsi_save_plan *stored,
                               uint32_t *crc)
{
    dsi_zip_writer *w = dsi_zip_write_begin(f);
    dsi_zip_entry(w, "archive/data.pkl", pickle->s, pickle->n);
    dsi_zip_entry(w, "archive/.format_version", "1", 1);
    dsi_zip_entry(w, "archive/.storage_alignment", "64", 2);
    dsi_zip_entry(w, "archive/byteorder", "little", 6);
    ds_status status = write_storages(w, f, stored);
    dsi_zip_entry(w, "archive/version", "3\n", 2);
    uint32_t all = dsi_zip_write_end(w);
    if (crc) *crc = all;
    return status;
}

/* Saves v to a file that `open` makes: dsi_file_replace for one that appears
 * whole under its name, dsi_file_create for path itself. */
static ds_status save_pth(const ds_value *v, const char *path, dsi_file *(*open)(const char *path),
                          uint32_t *crc)
{
    if (!v) return dsi_null_argument("save");
    if (!path) return dsi_fail(DS_EINVAL, "save: path is NULL");
    dsi_save_plan stored;
    dsi_text what = dsi_text_of("save: %s", path), pickle = {0};
    ds_status status = DS_OK;
    dsi_file *f = NULL;
    if (!dsi_save_plan_make(&stored, what.s, (ds_value *)(uintptr_t)v)) {
        dsi_text_free(&what);
        return ds_error_status();
    }
    if (dsi_pickle_write(&pickle, what.s, v, &stored)) f = open(path);
    if (!f) status = ds_error_status();
    if (f) status = write_archive(f, &pickle, &stored, crc);
    if (status == DS_OK)
        status = dsi_file_commit(f);
    else
        dsi_file_abandon(f);
    dsi_save_plan_free(&stored);
    dsi_text_free(&pickle);
    dsi_text_free(&what);
    return status;
}

/* The file appears under its name when it is complete. */
ds_status ds_value_save(const ds_value *v, const char *path)
{
    return save_pth(v, path, dsi_file_replace, NULL);
}

/* The engine renames the folder around it, so the file itself is not
 * renamed. */
ds_status dsi_pth_write(const ds_value *v, const char *path, uint32_t *crc)
{
    return save_pth(v, path, dsi_file_create, crc);
}
