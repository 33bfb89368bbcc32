/* data/image.c: a grid of images as a PNG file.
 *
 * The layout is torchvision.utils.make_grid's: images in rows, a border of 2
 * around each, shared by neighbours; a single image has none. Values in [-1, 1]
 * are converted to bytes as PyTorch's tutorial shows them: x / 2 + 0.5, cut to
 * [0, 1]. With .scale each pixel becomes a square; with .labels and .predictions
 * a line of text each is below an image.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "image_text.h"
#include "tensor/tensor.h"

#include <deepspeed/data.h>

#include <png.h>
#include <string.h>
#include <strings.h>

#define BORDER     2
#define MAX_PIXELS ((int64_t)1 << 26) /* of the grid */
#define MAX_SCALE  64
#define LETTERS    10 /* of a label, at least: they choose the size of the text */

/* The sizes of a grid, in pixels, and its memory. */
typedef struct grid {
    int64_t n, channels, h, w; /* of the images */
    int64_t columns, border;
    int64_t scale;         /* pixels of a pixel */
    int64_t text, caption; /* size of the letters; pixels below an image */
    int64_t height, width; /* of the grid */
    uint8_t *rgb;          /* [height,width,3] */
} grid;

/* x in [-1, 1] to 0 .. 255, rounded. */
static uint8_t pixel_to_byte(float x)
{
    float y = (x / 2 + 0.5f) * 255 + 0.5f;
    return !(y > 0) ? 0 : y > 255 ? 255 : (uint8_t)y; /* NaN: 0 */
}

/* Checks the arguments and computes the sizes of the grid. */
static ds_status grid_plan(grid *g, const ds_tensor *images, int columns,
                           const ds_image_grid_opts *o)
{
    ds_dims s = ds_shape_of(images);
    bool ok = s.n == 4 && (s.d[1] == 1 || s.d[1] == 3) && ds_dtype_of(images) == DS_F32;
    for (int k = 0; k < s.n; k++) ok = ok && s.d[k] > 0 && s.d[k] <= MAX_PIXELS;
    if (!ok)
        return dsi_fail(
            DS_EINVAL, "save_image_grid: images are %s %s, expected float32 [n,3,h,w] or [n,1,h,w]",
            ds_dtype_name(ds_dtype_of(images)), dsi_shape_text(s));
    if (columns < 1)
        return dsi_fail(DS_EINVAL, "save_image_grid: %d columns, expected 1 or more", columns);

    if (o->scale < 0 || o->scale > MAX_SCALE)
        return dsi_fail(DS_EINVAL, "save_image_grid: the scale is %d, expected 1 to %d", o->scale,
                        MAX_SCALE);
    *g = (grid){.n = s.d[0], .channels = s.d[1], .scale = o->scale ? o->scale : 1};
    g->h = s.d[2] * g->scale;
    g->w = s.d[3] * g->scale;
    int lines = !!o->labels + !!o->predictions;
    g->text = g->w / (LETTERS * DSI_GLYPH_WIDTH) > 1 ? g->w / (LETTERS * DSI_GLYPH_WIDTH) : 1;
    g->caption = lines ? (lines * (DSI_GLYPH_HEIGHT + 1) + 1) * g->text : 0;
    g->columns = columns < g->n ? columns : g->n;
    g->border = g->n > 1 ? BORDER : 0;
    int64_t rows = (g->n + g->columns - 1) / g->columns;
    g->height = rows * (g->h + g->caption + g->border) + g->border;
    g->width = g->columns * (g->w + g->border) + g->border;
    if (g->height > MAX_PIXELS / g->width)
        return dsi_fail(
            DS_EINVAL,
            "save_image_grid: the grid has %lld x %lld pixels, expected at most %lld in all",
            (long long)g->width, (long long)g->height, (long long)MAX_PIXELS);
    return DS_OK;
}

/* The top left pixel of image i. */
static uint8_t *grid_place(const grid *g, int64_t i)
{
    int64_t top = i / g->columns * (g->h + g->caption + g->border) + g->border;
    int64_t left = i % g->columns * (g->w + g->border) + g->border;
    return g->rgb + 3 * (top * g->width + left);
}

/* Copies x [n,channels,h/scale,w/scale] into g->rgb, whose borders are 0, black
 * already. */
static void grid_paint(grid *g, const float *x)
{
    int64_t scale = g->scale > 1 ? g->scale : 1, w = g->w / scale, plane = g->h / scale * w;
    for (int64_t i = 0; i < g->n; i++) {
        const float *image = x + i * g->channels * plane;
        uint8_t *out = grid_place(g, i);
        for (int64_t p = 0; p < g->h * g->w; p++) {
            int64_t row = p / g->w, column = p % g->w, from = row / scale * w + column / scale;
            for (int c = 0; c < 3; c++)
                out[3 * (row * g->width + column) + c] = pixel_to_byte(
                    image[(g->channels == 3 ? c : 0) * plane + from]);
        }
    }
}

/* One line below image i; letters that do not fit are cut. */
static void grid_write(const grid *g, int64_t i, int line, const char *text, const uint8_t color[3])
{
    if (!text) return;
    int64_t most = g->w / (DSI_GLYPH_WIDTH * g->text), width = dsi_image_text_width(text, g->text);
    int64_t left = width < g->w ? (g->w - width) / 2 : 0;
    int64_t top = g->h + (line * (DSI_GLYPH_HEIGHT + 1) + 1) * g->text;
    dsi_image_text(grid_place(g, i) + 3 * (top * g->width + left), g->width, text, most, g->text,
                   color);
}

/* Labels are white; predictions green where they are equal to the label, red
 * where not. */
static void grid_write_captions(const grid *g, const ds_image_grid_opts *o)
{
    static const uint8_t white[3] = {255, 255, 255}, green[3] = {96, 220, 96},
                         red[3] = {255, 96, 80};
    for (int64_t i = 0; i < g->n; i++) {
        const char *label = o->labels ? o->labels[i] : NULL,
                   *guess = o->predictions ? o->predictions[i] : NULL;
        bool wrong = label && guess && strcmp(label, guess) != 0;
        grid_write(g, i, 0, label, white);
        grid_write(g, i, o->labels != NULL, guess, !label ? white : wrong ? red : green);
    }
}

/* Encodes the grid in memory and replaces the file path, so that path is never
 * half a file. */
static ds_status write_png(const grid *g, const char *path)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)g->width,
                     .height = (png_uint_32)g->height,
                     .format = PNG_FORMAT_RGB};
    png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png);
    void *packed = dsi_alloc(bytes);
    ds_status status;
    if (!png_image_write_to_memory(&png, packed, &bytes, 0, g->rgb, 0, NULL)) {
        status = dsi_fail(DS_EFORMAT, "save_image_grid: %s: %s", path, png.message);
    } else {
        dsi_file *f = dsi_file_replace(path);
        dsi_file_write(f, packed, bytes);
        status = f ? dsi_file_commit(f) : ds_error_status();
    }
    dsi_free(packed);
    return status;
}

/* A copy from another device, if x is there, belongs to this scope. */
ds_status ds_save_image_grid_with(ds_tensor *images, int columns, ds_image_grid_opts o)
{
    grid g = {0};
    if (!images) return dsi_null_argument("save_image_grid");
    if (!o.path) return dsi_fail(DS_EINVAL, "save_image_grid: the path is NULL");
    const char *end = strrchr(o.path, '.');
    if (!end || strcasecmp(end, ".png") != 0)
        return dsi_fail(DS_EINVAL, "save_image_grid: %s: expected a name that ends with .png",
                        o.path);
    ds_status status = grid_plan(&g, images, columns, &o);
    if (status != DS_OK) return status;

    ds_scope *scope = ds_scope_open();
    const float *x = ds_data(images);
    if (!x) status = ds_error_status();
    if (x) {
        g.rgb = dsi_alloc((size_t)(3 * g.height * g.width));
        grid_paint(&g, x);
        grid_write_captions(&g, &o);
        status = write_png(&g, o.path);
        dsi_free(g.rgb);
    }
    ds_scope_close(scope);
    return status;
}
