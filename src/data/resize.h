/* data/resize.h: images of another size, with Pillow's values.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

#define DSI_RESIZE_MOST 16384 /* pixels of a result, in each direction */

/* A box of an image, what it is scaled to, and the window of that which is
 * wanted. */
typedef struct dsi_resize {
    const uint8_t *in;               /* the box's first pixel, of three bytes */
    int64_t row;                     /* bytes from one of its rows to the next */
    int64_t h, w;                    /* of the box */
    int64_t to_h, to_w;              /* the box, scaled */
    int64_t top, left, out_h, out_w; /* the window */
    bool bicubic;                    /* else bilinear */
} dsi_resize;

/* PIL.Image.resize of RGB, then a crop -> out [3,out_h,out_w]. Every pixel is
 * the weighted mean of those within 1 (bicubic: 2, with a = -1/2) pixels of its
 * centre, or of the smaller image's pixels if that is smaller: so a smaller
 * image has no aliasing. Rows are scaled first, then columns, each to bytes; in
 * the other order if the height shrinks by more than twice as many pixels as
 * the width does (Pillow 13; before it never). DS_ENOMEM. */
ds_status dsi_resize_run(const dsi_resize *r, uint8_t *out);
