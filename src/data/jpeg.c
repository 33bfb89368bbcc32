/* data/jpeg.c: JPEG by libturbojpeg (picture.h).
 *
 * The few functions of its stable interface (TurboJPEG 2.0) are declared here,
 * so that a build needs no header of it, and are found when the first image is
 * decoded. Its settings are Pillow's: exact integer DCT, smooth upsampling.
 *
 * Invariants: the library is opened once a process, by pthread_once, and never
 * closed; afterwards `jpeg` and `found` are only read. A decoder belongs to one
 * call, so that threads need not wait for each other.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/library.h"
#include "picture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PIXELS_RGB  0  /* TJPF_RGB */
#define PIXELS_CMYK 11 /* TJPF_CMYK */
#define COLORS_CMYK 3  /* TJCS_CMYK; TJCS_YCCK is the next one */

/* In the order of `names`. All return 0 if nothing is wrong. */
typedef struct turbojpeg {
    void *(*init_decompress)(void);
    int (*header)(void *decoder, const unsigned char *bytes, unsigned long n, int *w, int *h,
                  int *subsampling, int *colors);
    int (*decompress)(void *decoder, const unsigned char *bytes, unsigned long n,
                      unsigned char *out, int w, int row_bytes, int h, int pixels, int flags);
    char *(*error_text)(void *decoder);
    int (*error_code)(void *decoder); /* 0: there was a warning */
    int (*destroy)(void *decoder);
} turbojpeg;

static const char *const names[] = {"tjInitDecompress", "tjDecompressHeader3", "tjDecompress2",
                                    "tjGetErrorStr2",   "tjGetErrorCode",      "tjDestroy"};
static const char *const sonames[] = {"libturbojpeg.so.0", NULL};
static const char package[] = "libturbojpeg0 (Ubuntu: libturbojpeg)";

static turbojpeg jpeg;
static bool found;

static bool jpeg_find(turbojpeg *to)
{
    return dsi_library_open("JPEG images", sonames, package, names, sizeof names / sizeof names[0],
                            to);
}

static void jpeg_open_once(void) { found = jpeg_find(&jpeg); }

/* false, with the message: messages belong to a thread, and another one may
 * have made the attempt that failed. */
static bool jpeg_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    turbojpeg again;
    pthread_once(&once, jpeg_open_once);
    return found || jpeg_find(&again);
}

/* x * y / 255 for bytes, rounded. */
static unsigned multiply_bytes(unsigned x, unsigned y)
{
    unsigned z = x * y + 128;
    return (z + (z >> 8)) >> 8;
}

/* Inks to colours: bytes are 255 minus the ink, as Adobe's programs write
 * them. */
static void cmyk_to_rgb(const uint8_t *cmyk, int64_t pixels, uint8_t *rgb)
{
    for (int64_t i = 0; i < pixels; i++, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; c++) {
            int value = (int)cmyk[3] - (int)multiply_bytes(255u - cmyk[c], cmyk[3]);
            rgb[c] = (uint8_t)(value < 0 ? 0 : value);
        }
}

static ds_status jpeg_fail(const char *path, void *decoder)
{
    const char *text = jpeg.error_text(decoder), *colon = strstr(text, "(): ");
    return dsi_fail(DS_EFORMAT, "%s: not a whole JPEG file: %s", path, colon ? colon + 4 : text);
}

/* Whether the message is a warning that leaves the pixels as they were written:
 * photographs with stray bytes between segments are frequent, and Pillow reads
 * them. The code tells not enough, as it stays a warning if an error
 * follows. */
static bool jpeg_is_harmless(void *decoder)
{
    static const char *const harmless[] = {
        "extraneous bytes before marker", "unknown JFIF revision", "Unknown Adobe color transform"};
    if (jpeg.error_code(decoder) != 0) return false;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strstr(jpeg.error_text(decoder), harmless[i])) return true;
    return false;
}

/* Decodes to `to`, h x w pixels. */
static ds_status jpeg_pixels(const char *path, void *decoder, const uint8_t *bytes, size_t n,
                             const dsi_picture *size, int pixels, uint8_t *to)
{
    if (!jpeg.decompress(decoder, bytes, n, to, (int)size->w, 0, (int)size->h, pixels, 0) ||
        jpeg_is_harmless(decoder))
        return DS_OK;
    return jpeg_fail(path, decoder);
}

static ds_status jpeg_decode_by(void *decoder, const char *path, const uint8_t *bytes, size_t n,
                                dsi_picture *out)
{
    int w = 0, h = 0, subsampling, colors = 0;
    if (jpeg.header(decoder, bytes, n, &w, &h, &subsampling, &colors) && !jpeg_is_harmless(decoder))
        return jpeg_fail(path, decoder);
    if (!w) return dsi_fail(DS_EFORMAT, "%s: not a whole JPEG file: it has no image", path);
    ds_status status = dsi_picture_alloc(path, h, w, out);
    if (status != DS_OK) return status;
    if (colors < COLORS_CMYK)
        return jpeg_pixels(path, decoder, bytes, n, out, PIXELS_RGB, out->rgb);

    uint8_t *cmyk = malloc((size_t)4 * (size_t)h * (size_t)w);
    if (!cmyk) return dsi_fail(DS_ENOMEM, "%s: no memory for %d x %d pixels", path, w, h);
    status = jpeg_pixels(path, decoder, bytes, n, out, PIXELS_CMYK, cmyk);
    if (status == DS_OK) cmyk_to_rgb(cmyk, (int64_t)h * w, out->rgb);
    free(cmyk);
    return status;
}

ds_status dsi_jpeg_decode(const char *path, const uint8_t *bytes, size_t n, dsi_picture *out)
{
    if (!jpeg_open()) return dsi_fail(ds_error_status(), "%s: %s", path, dsi_error_latest());
    void *decoder = jpeg.init_decompress();
    if (!decoder) return dsi_fail(DS_ENOMEM, "%s: libturbojpeg cannot be started", path);
    ds_status status = jpeg_decode_by(decoder, path, bytes, n, out);
    jpeg.destroy(decoder);
    if (status == DS_OK) return DS_OK;
    free(out->rgb);
    *out = (dsi_picture){0};
    return status;
}
