/* device/cpu/conv_pack.c: one sample rearranged for the convolution's tiles, and back.
 * SPDX-License-Identifier: MIT */
#include "conv.h"

#include <string.h>

int64_t planes_pitch(Rect r, int64_t phases) { return round_up(r.cols, phases); }

/* One row of r: what lies inside x, zeros around it. */
static void pack_row(const float *x, int64_t step, int64_t W, Rect r, int64_t phases, float *to)
{
    int64_t first = max64(0, -r.col0), last = max64(first, min64(r.cols, W - r.col0));
    if (phases == 1 && step == 1) {
        for (int64_t j = 0; j < first; j++) to[j] = 0;
        if (last > first)
            memcpy(to + first, x + r.col0 + first, (size_t)(last - first) * sizeof *to);
        for (int64_t j = last; j < r.cols; j++) to[j] = 0;
        return;
    }
    int64_t each = planes_pitch(r, phases) / phases;
    for (int64_t f = 0; f < phases; f++)
        for (int64_t i = 0, j = f; i < each; i++, j += phases)
            to[f * each + i] = j >= first && j < last ? x[(r.col0 + j) * step] : 0;
}

void pack_planes(const dsi_view *x, int64_t n, Rect r, int64_t phases, float *to, int64_t plane)
{
    int64_t pitch = planes_pitch(r, phases);
    for (int64_t c = 0; c < x->d[1]; c++)
        for (int64_t i = 0; i < r.rows; i++) {
            int64_t h = r.row0 + i;
            float *row = to + c * plane + i * pitch;
            const float *from = (const float *)x->p + n * x->s[0] + c * x->s[1] + h * x->s[2];
            if (h >= 0 && h < x->d[2])
                pack_row(from, x->s[3], x->d[3], r, phases, row);
            else
                memset(row, 0, (size_t)pitch * sizeof *row);
        }
}

/* The part of r inside of a plane of H x W, counted from r's corner. */
typedef struct {
    int64_t row, rows, col, cols;
} Inside;

static Inside inside(const dsi_view *x, Rect r)
{
    Inside i = {max64(0, -r.row0), 0, max64(0, -r.col0), 0};
    i.rows = max64(0, min64(r.rows, x->d[2] - r.row0) - i.row);
    i.cols = max64(0, min64(r.cols, x->d[3] - r.col0) - i.col);
    return i;
}

void pack_pixels(const dsi_view *x, int64_t n, Rect r, float *to)
{
    Inside in = inside(x, r);
    int64_t C = x->d[1];
    if (in.rows < r.rows || in.cols < r.cols)
        memset(to, 0, (size_t)(r.rows * r.cols * C) * sizeof *to);
    for (int64_t i = in.row; i < in.row + in.rows; i++) {
        float *row = to + (i * r.cols + in.col) * C;
        const float *from = (const float *)x->p + n * x->s[0] + (r.row0 + i) * x->s[2] +
                            (r.col0 + in.col) * x->s[3];
        if (x->s[1] == 1 && x->s[3] == C) {
            memcpy(row, from, (size_t)(in.cols * C) * sizeof *row);
            continue;
        }
        for (int64_t c = 0; c < C; c++)
            for (int64_t j = 0; j < in.cols; j++) row[j * C + c] = from[c * x->s[1] + j * x->s[3]];
    }
}

void unpack_pixels(const float *from, Rect r, const dsi_view *x, int64_t n)
{
    Inside in = inside(x, r);
    int64_t C = x->d[1];
    for (int64_t i = in.row; i < in.row + in.rows; i++) {
        const float *row = from + (i * r.cols + in.col) * C;
        float *to = (float *)x->p + n * x->s[0] + (r.row0 + i) * x->s[2] +
                    (r.col0 + in.col) * x->s[3];
        if (x->s[1] == 1 && x->s[3] == C) {
            memcpy(to, row, (size_t)(in.cols * C) * sizeof *row);
            continue;
        }
        for (int64_t c = 0; c < C; c++)
            for (int64_t j = 0; j < in.cols; j++) to[c * x->s[1] + j * x->s[3]] = row[j * C + c];
    }
}

Lines lines_of(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w, int64_t P, int64_t Q)
{
    int64_t R = w->d[2], S = w->d[3], C = w->d[1];
    bool merge = c->groups == 1 && c->dilation[1] == 1;
    Lines o = {.count = merge ? R : R * S,
               .length = merge ? S * C : C,
               .merged = merge ? S : 1,
               .R = R,
               .S = S,
               .C = C};
    o.padded = round_up(o.length, VF);
    o.rect.row0 = -c->padding[0], o.rect.col0 = -c->padding[1];
    o.rect.rows = max64((P - 1) * c->stride[0] + (R - 1) * c->dilation[0] + 1,
                        x->d[2] + c->padding[0]);
    o.rect.cols = max64((Q - 1) * c->stride[1] + (S - 1) * c->dilation[1] + 1,
                        x->d[3] + c->padding[1]);
    o.pixel = c->stride[1] * x->d[1];
    o.row = c->stride[0] * o.rect.cols * x->d[1];
    o.step[0] = c->dilation[0] * o.rect.cols * x->d[1];
    o.step[1] = c->dilation[1] * x->d[1];
    return o;
}
