/* data/image_text.h: short texts in an image.
 *
 * All sizes are pixels; `size` is the edge of the square that a pixel of the
 * font becomes, 1 or more.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define DSI_GLYPH_WIDTH  6 /* pixels from one letter to the next, at size 1 */
#define DSI_GLYPH_HEIGHT 8

/* Pixels that a text takes. */
int64_t dsi_image_text_width(const char *text, int64_t size);
/* Writes the first `length` letters of text to rgb, the top left pixel, in rows
 * of `stride` pixels. The caller has made sure that they fit. */
void dsi_image_text(uint8_t *rgb, int64_t stride, const char *text, int64_t length, int64_t size,
                    const uint8_t color[3]);
