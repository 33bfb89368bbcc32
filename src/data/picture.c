/* data/picture.c: the pixels of an image file (picture.h): PNG by libpng; JPEG
 * is in jpeg.c.
 *
 * libpng's simplified interface converts gammas and blends alpha with a
 * background, which changes values; so this is its older one, whose errors are
 * long jumps. They end in png_decode_rows, whose caller owns all memory.
 * SPDX-License-Identifier: MIT */
#include "picture.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
    const char *path;
    const uint8_t *at;
    size_t left;
    char why[128]; /* libpng's message */
    dsi_picture picture;
    png_bytep *row; /* [h], malloc */
    ds_status status;
} source;

static void png_take(png_structp png, png_bytep out, size_t n)
{
    source *s = png_get_io_ptr(png);
    if (n > s->left) png_error(png, "the file is cut short");
    memcpy(out, s->at, n);
    s->at += n;
    s->left -= n;
}

static void png_give_up(png_structp png, png_const_charp why)
{
    source *s = png_get_error_ptr(png);
    snprintf(s->why, sizeof s->why, "%s", why);
    png_longjmp(png, 1);
}

static void png_ignore(png_structp png, png_const_charp why) { (void)png, (void)why; }

/* Makes every kind of PNG rows of RGB bytes. */
static void png_want_rgb(png_structp png, png_infop info)
{
    int color = png_get_color_type(png, info);
    if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
    if (!(color & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    (void)png_set_interlace_handling(png);
    png_read_update_info(png, info);
}

/* Fills s->picture; false with s->why, or with s->status and the message.
 * Chunks behind the last row are not read. */
static bool png_decode_rows(png_structp png, png_infop info, source *s)
{
    if (setjmp(png_jmpbuf(png))) return false;
    png_set_read_fn(png, s, png_take);
    png_read_info(png, info);
    int64_t h = png_get_image_height(png, info), w = png_get_image_width(png, info);
    s->status = dsi_picture_alloc(s->path, h, w, &s->picture);
    if (s->status != DS_OK) return false;
    png_want_rgb(png, info);
    if (png_get_rowbytes(png, info) != (size_t)(3 * w)) png_error(png, "its rows are not RGB");
    s->row = malloc((size_t)h * sizeof *s->row);
    if (!s->row) png_error(png, "there is no memory for its rows");
    for (int64_t y = 0; y < h; y++) s->row[y] = s->picture.rgb + 3 * w * y;
    png_read_image(png, s->row);
    return true;
}

static ds_status png_decode(const char *path, const uint8_t *bytes, size_t n, dsi_picture *out)
{
    source s = {.path = path, .at = bytes, .left = n};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &s, png_give_up, png_ignore);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    bool ok = info && png_decode_rows(png, info, &s);
    png_destroy_read_struct(&png, &info, NULL);
    free(s.row);
    *out = s.picture;
    if (ok) return DS_OK;
    free(s.picture.rgb);
    *out = (dsi_picture){0};
    if (s.status != DS_OK) return s.status;
    return dsi_fail(DS_EFORMAT, "%s: not a whole PNG file: %s", path,
                    s.why[0] ? s.why : "libpng cannot be started");
}

ds_status dsi_picture_alloc(const char *path, int64_t h, int64_t w, dsi_picture *out)
{
    *out = (dsi_picture){h, w, NULL};
    if (h < 1 || w < 1 || h > DSI_PICTURE_MOST / w)
        return dsi_fail(DS_EFORMAT, "%s: it has %lld x %lld pixels, expected 1 to %d in all", path,
                        (long long)w, (long long)h, DSI_PICTURE_MOST);
    out->rgb = malloc((size_t)(3 * h * w));
    if (out->rgb) return DS_OK;
    return dsi_fail(DS_ENOMEM, "%s: no memory for %lld x %lld pixels", path, (long long)w,
                    (long long)h);
}

ds_status dsi_picture_decode(const char *path, const uint8_t *bytes, size_t n, dsi_picture *out)
{
    *out = (dsi_picture){0};
    if (n >= 8 && !png_sig_cmp(bytes, 0, 8)) return png_decode(path, bytes, n, out);
    if (n >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3)) return dsi_jpeg_decode(path, bytes, n, out);
    return dsi_fail(DS_EFORMAT, "%s: %s, expected a JPEG or PNG image", path,
                    n ? "it begins like neither JPEG nor PNG" : "the file is empty");
}

ds_status dsi_picture_read(const char *path, dsi_picture *out)
{
    size_t n;
    *out = (dsi_picture){0};
    char *bytes = dsi_file_read_regular(path, &n);
    if (!bytes) return ds_error_status();
    ds_status status = dsi_picture_decode(path, (const uint8_t *)bytes, n, out);
    dsi_free(bytes);
    return status;
}
