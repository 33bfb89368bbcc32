/* data/resize.c: images of another size (resize.h).
 *
 * The weights are whole numbers of 2^-22, as Pillow's are
 * (src/libImaging/Resample.c), so that the bytes are equal, not only near. Only
 * what the window needs is computed.
 * SPDX-License-Identifier: MIT */
#include "resize.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ONE_BITS 22 /* a weight of 1 is 1 << ONE_BITS */
#define HALF     (1 << (ONE_BITS - 1))

/* The weights of one direction: pixel i of the window is the
 * sum of in[begin[i] + k] * weight[i * most + k], k below count[i]. */
typedef struct axis {
    int64_t n, most;
    int64_t *begin, *count; /* [n] */
    int32_t *weight;        /* [n,most] */
} axis;

static double filter_bilinear(double x) { return x < 0 ? -x < 1 ? 1 + x : 0 : x < 1 ? 1 - x : 0; }

/* Keys (IEEE Trans. ASSP 29, 1981) with a = -1/2. */
static double filter_bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* The weights of pixel i, whose centre is at `center` of the box's `from`
 * pixels; `shrink` is how many of them a pixel of the result covers, at least
 * 1. */
static void axis_weigh(axis *a, int64_t i, double center, double shrink, int64_t from,
                       double support, double (*filter)(double), double *weight)
{
    int64_t begin = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    double sum = 0;
    if (begin < 0) begin = 0;
    if (end > from) end = from;
    for (int64_t k = 0; k < end - begin; k++) {
        weight[k] = filter(((double)(k + begin) - center + 0.5) * (1 / shrink));
        sum += weight[k];
    }
    for (int64_t k = 0; k < end - begin; k++) {
        double w = sum != 0 ? weight[k] / sum : weight[k];
        a->weight[i * a->most + k] = (int32_t)((w < 0 ? -0.5 : 0.5) + w * (1 << ONE_BITS));
    }
    a->begin[i] = begin;
    a->count[i] = end - begin;
}

/* Pixels first .. first + n - 1 of `to`, made of `from`; false: no memory. */
static bool axis_make(axis *a, int64_t from, int64_t to, int64_t first, int64_t n, bool bicubic)
{
    double scale = (double)from / (double)to, shrink = scale < 1 ? 1 : scale;
    double support = (bicubic ? 2 : 1) * shrink;
    a->n = n;
    a->most = 2 * (int64_t)ceil(support) + 1;
    a->begin = malloc((size_t)n * sizeof *a->begin);
    a->count = malloc((size_t)n * sizeof *a->count);
    a->weight = malloc((size_t)(n * a->most) * sizeof *a->weight);
    double *weight = malloc((size_t)a->most * sizeof *weight);
    bool ok = n > 0 && a->begin && a->count && a->weight && weight;
    for (int64_t i = 0; ok && i < n; i++)
        axis_weigh(a, i, ((double)(first + i) + 0.5) * scale, shrink, from, support,
                   bicubic ? filter_bicubic : filter_bilinear, weight);
    free(weight);
    return ok;
}

/* Behind the last input that any pixel needs; begin[0] is the first one. */
static int64_t axis_end(const axis *a) { return a->begin[a->n - 1] + a->count[a->n - 1]; }

static void axis_free(axis *a)
{
    free(a->begin);
    free(a->count);
    free(a->weight);
}

static uint8_t to_byte(int32_t sum)
{
    int32_t x = sum >> ONE_BITS;
    return x < 0 ? 0 : x > 255 ? 255 : (uint8_t)x;
}

/* A row of pixels, of which in is pixel `first`, -> out [x->n,3]. */
static void resize_row(const axis *x, const uint8_t *in, int64_t first, uint8_t *out)
{
    for (int64_t i = 0; i < x->n; i++, out += 3) {
        const uint8_t *from = in + 3 * (x->begin[i] - first);
        const int32_t *weight = x->weight + i * x->most;
        int32_t r = HALF, g = HALF, b = HALF;
        for (int64_t k = 0; k < x->count[i]; k++, from += 3) {
            r += from[0] * weight[k];
            g += from[1] * weight[k];
            b += from[2] * weight[k];
        }
        out[0] = to_byte(r);
        out[1] = to_byte(g);
        out[2] = to_byte(b);
    }
}

#define TILE 64 /* bytes whose sums stay in the nearest cache */

/* Row i of the window, n bytes, of rows that are `row` bytes apart, of which in
 * is row `first`. */
static void resize_column(const axis *y, int64_t i, const uint8_t *in, int64_t row, int64_t first,
                          int64_t n, uint8_t *out)
{
    const uint8_t *from = in + (y->begin[i] - first) * row;
    const int32_t *weight = y->weight + i * y->most;
    for (int64_t x = 0; x < n; x += TILE) {
        int32_t sum[TILE];
        int64_t tile = n - x < TILE ? n - x : TILE;
        for (int64_t j = 0; j < tile; j++) sum[j] = HALF;
        for (int64_t k = 0; k < y->count[i]; k++)
            for (int64_t j = 0; j < tile; j++) sum[j] += from[k * row + x + j] * weight[k];
        for (int64_t j = 0; j < tile; j++) out[x + j] = to_byte(sum[j]);
    }
}

/* Row i of the window [w,3] -> out [3,h,w]. */
static void split_row(const dsi_resize *r, int64_t i, const uint8_t *line, uint8_t *out)
{
    for (int c = 0; c < 3; c++) {
        uint8_t *to = out + (c * r->out_h + i) * r->out_w;
        for (int64_t x = 0; x < r->out_w; x++) to[x] = line[3 * x + c];
    }
}

/* Both need memory in `lines`: a line of the window, then what is scaled in the
 * first direction. */
static void rows_first(const dsi_resize *r, const axis *x, const axis *y, uint8_t *lines,
                       uint8_t *out)
{
    int64_t first = y->begin[0], n = 3 * r->out_w;
    uint8_t *line = lines, *rows = lines + n;
    for (int64_t i = first; i < axis_end(y); i++)
        resize_row(x, r->in + i * r->row, 0, rows + (i - first) * n);
    for (int64_t i = 0; i < y->n; i++) {
        resize_column(y, i, rows, n, first, n, line);
        split_row(r, i, line, out);
    }
}

static void columns_first(const dsi_resize *r, const axis *x, const axis *y, uint8_t *lines,
                          uint8_t *out)
{
    int64_t first = x->begin[0], n = 3 * (axis_end(x) - first);
    uint8_t *line = lines, *wide = lines + 3 * r->out_w;
    for (int64_t i = 0; i < y->n; i++) {
        resize_column(y, i, r->in + 3 * first, r->row, 0, n, wide);
        resize_row(x, wide, first, line);
        split_row(r, i, line, out);
    }
}

ds_status dsi_resize_run(const dsi_resize *r, uint8_t *out)
{
    axis x = {0}, y = {0};
    uint8_t *lines = NULL;
    bool down = r->h > r->to_h && r->h - r->to_h > 2 * (r->w - r->to_w); /* Pillow's rule */
    if (axis_make(&x, r->w, r->to_w, r->left, r->out_w, r->bicubic) &&
        axis_make(&y, r->h, r->to_h, r->top, r->out_h, r->bicubic)) {
        int64_t pixels = down ? axis_end(&x) - x.begin[0] : (axis_end(&y) - y.begin[0]) * r->out_w;
        lines = malloc((size_t)(3 * (r->out_w + pixels)));
    }
    bool ok = lines != NULL;
    if (ok) (down ? columns_first : rows_first)(r, &x, &y, lines, out);
    axis_free(&x);
    axis_free(&y);
    free(lines);
    if (ok) return DS_OK;
    return dsi_fail(DS_ENOMEM, "resize: no memory for an image of %lld x %lld pixels",
                    (long long)r->w, (long long)r->h);
}
