/* data/picture.h: the pixels of an image file.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

#define DSI_PICTURE_MOST 178956970 /* pixels; Pillow's limit, against files that fill the memory */

typedef struct dsi_picture {
    int64_t h, w;
    uint8_t *rgb; /* [h,w,3]; free() it */
} dsi_picture;

/* Reads a JPEG or PNG file, whatever its name ends with, as Pillow's
 * Image.open(path).convert("RGB") does: grey and palettes become RGB, alpha is
 * left out, and neither a gamma, a colour profile nor the orientation in Exif
 * changes a value. Of 16 bits the upper 8 count, also of grey. DS_EFORMAT: it
 * is none of these, damaged, cut short or too large; DS_EIO: the file. */
ds_status dsi_picture_read(const char *path, dsi_picture *out);

/* The same of n bytes; `path` is for messages. */
ds_status dsi_picture_decode(const char *path, const uint8_t *bytes, size_t n, dsi_picture *out);

/* Memory for h x w pixels in *out; DS_EFORMAT, DS_ENOMEM. For the decoders. */
ds_status dsi_picture_alloc(const char *path, int64_t h, int64_t w, dsi_picture *out);

/* JPEG, by libturbojpeg, which is opened by the first such image; DS_EIO: it is
 * not installed. */
ds_status dsi_jpeg_decode(const char *path, const uint8_t *bytes, size_t n, dsi_picture *out);
