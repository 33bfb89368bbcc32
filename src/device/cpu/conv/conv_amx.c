/* device/cpu/conv/conv_amx.c: convolutions of bfloat16 as products by the
 * matrix unit (gemm_amx.c). Unfolding (PyTorch's unfold, im2col) copies all
 * inputs of one output pixel to a line of R S C numbers, channels fastest:
 *
 *     y [pixels, K] = lines of x [pixels, R S C] w [K, R S C]^T + bias
 *     dx [pixels, C] = lines of dy [pixels, R S K] w' [C, R S K]^T       unit stride; w' is w turned around
 *     dw [K, R S C] = dy [pixels, K]^T lines of x, summed over blocks of pixels in float32, in their order
 * Lines are made for as many pixels at a time as the second cache holds, from
 * images in pixel order; others are copied first. 1x1 kernels need no lines
 * (conv_1x1.c). A line repeats an input up to R S times, so C is at least
 * FEW_CHANNELS: each copy is then at least 16 bytes.
 *
 * Invariants: a block of pixels depends on shapes alone, and blocks are summed
 * in order, so no result depends on threads or caches.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "device/cpu/gemm/gemm_amx.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/table.h"

#include <string.h>

/* Bytes of lines that are made at a time; the same for dw, where it is larger,
 * because each block's dw is added in memory. A block has at least twice the
 * bytes of the weight (dw: its sums), which is packed or added for each block, up
 * to MOST_BYTES. */
#define BLOCK_BYTES  524288
#define DW_BYTES     2097152
#define MOST_BYTES   8388608
#define FEW_CHANNELS 8

typedef struct Unfolding {
    const uint16_t *x; /* [N][H][W][C] */
    int64_t H, W, C;
    int64_t N, P, Q; /* output pixels; each has a line */
    int64_t R, S;
    int64_t stride[2], dilation[2], padding[2];
    int64_t depth; /* R S C: elements of a line */
    uint16_t *to;  /* [rows][Q][depth] lines of the current block */
    int64_t row0;  /* its first row, counted over [N][P] */
} Unfolding;

/* The line of one pixel: kernel row r reads source row h0 + r dilation from
 * column w0 on; zeros outside. If no column is outside, a kernel row is one
 * memcpy. */
static void unfold_pixel(const Unfolding *u, int64_t n, int64_t h0, int64_t w0, uint16_t *to)
{
    const size_t pixel = (size_t)u->C * sizeof *to;
    bool inside = u->dilation[1] == 1 && w0 >= 0 && w0 + u->S <= u->W;
    for (int64_t r = 0; r < u->R; r++, to += u->S * u->C) {
        int64_t h = h0 + r * u->dilation[0];
        const uint16_t *row = u->x + (n * u->H + h) * u->W * u->C;
        if (h < 0 || h >= u->H) {
            memset(to, 0, (size_t)u->S * pixel);
        } else if (inside) {
            memcpy(to, row + w0 * u->C, (size_t)u->S * pixel);
        } else {
            for (int64_t s = 0; s < u->S; s++) {
                int64_t w = w0 + s * u->dilation[1];
                if (w < 0 || w >= u->W)
                    memset(to + s * u->C, 0, pixel);
                else
                    memcpy(to + s * u->C, row + w * u->C, pixel);
            }
        }
    }
}

/* Rows begin .. end-1 of the current block. */
static void unfold_rows(void *arg, int64_t begin, int64_t end)
{
    const Unfolding *u = arg;
    uint16_t *to = u->to + begin * u->Q * u->depth;
    for (int64_t row = u->row0 + begin; row < u->row0 + end; row++)
        for (int64_t q = 0; q < u->Q; q++, to += u->depth)
            unfold_pixel(u, row / u->P, row % u->P * u->stride[0] - u->padding[0],
                         q * u->stride[1] - u->padding[1], to);
}

/* Makes the lines of `rows` rows of pixels from row0 on: a matrix [1, rows Q,
 * depth]. */
static dsi_view unfold(Unfolding *u, int64_t row0, int64_t rows)
{
    u->row0 = row0;
    dsi_parallel(rows, 1 + 65536 / (u->Q * u->depth), unfold_rows, u);
    return (dsi_view){u->to, DS_BF16, 3, {1, rows * u->Q, u->depth}, {0, u->depth, 1}};
}

/* Rows of pixels whose lines have `least` bytes, or 2 `weight` up to MOST_BYTES;
 * at least one. */
static int64_t rows_of_block(const Unfolding *u, int64_t least, int64_t weight)
{
    int64_t bytes = dsi_max(least, dsi_min(2 * weight, MOST_BYTES));
    int64_t rows = bytes / (u->Q * u->depth * (int64_t)sizeof *u->to);
    return dsi_min(dsi_max(rows, 1), u->N * u->P);
}

/* ---- images as matrices ---------------------------------------------------------------------------------- */

static bool is_dense(const dsi_view *v)
{
    dsi_view d = pixel_strides(*v);
    for (int i = 0; i < 4; i++)
        if (v->d[i] != 1 && v->s[i] != d.s[i]) return false;
    return true;
}

/* v if it is dense, otherwise a dense view of its shape in scratch memory
 * *spare, which the caller fills and releases. Without memory, the view's p is
 * NULL. */
static dsi_view in_dense(dsi_stream *s, dsi_view v, void **spare)
{
    bool dense = is_dense(&v);
    v = pixel_strides(v);
    *spare = NULL;
    if (!dense) v.p = *spare = dsi_scratch(s, (size_t)view_numel(&v) * sizeof(uint16_t));
    return v;
}

/* `rows` rows of pixels of a dense image, as a matrix. */
static dsi_view matrix_of_rows(const dsi_view *v, int64_t row0, int64_t rows)
{
    uint16_t *p = (uint16_t *)v->p + row0 * v->d[3] * v->d[1];
    return (dsi_view){p, v->dtype, 3, {1, rows * v->d[3], v->d[1]}, {0, v->d[1], 1}};
}

/* Copies w [out, in, R, S] to the matrix m [out][R][S][in], or m to w if
 * `back`. flipped: the kernel is turned by 180 degrees. All taps are copied at
 * once where their distances are equal, else a kernel row at a time. */
static ds_status copy_taps(dsi_stream *s, dsi_view w, bool flipped, dsi_view m, bool back)
{
    int64_t out = w.d[0], in = w.d[1], R = w.d[2], S = w.d[3], step = w.s[3];
    if (S == 1) step = w.s[2];
    if (w.s[2] == S * step || R == 1) S *= R, R = 1;
    ds_status status = DS_OK;
    for (int64_t r = 0; r < R && !status; r++) {
        int64_t first = flipped ? (R - 1 - r) * w.s[2] + (S - 1) * step : r * w.s[2];
        dsi_view of_w = {(char *)w.p + first * 2,
                         w.dtype,
                         3,
                         {out, S, in},
                         {w.s[0], flipped ? -step : step, w.s[1]}};
        dsi_view of_m = {(char *)m.p + r * S * in * (int64_t)ds_dtype_size(m.dtype),
                         m.dtype,
                         3,
                         {out, S, in},
                         {m.s[1], in, 1}};
        status = back ? KERNEL(copy)(s, of_m, of_w) : KERNEL(copy)(s, of_w, of_m);
    }
    return status;
}

/* ---- y, and dx of unit stride ---------------------------------------------------------------------------- */

/* y = lines of x times w + b, block by block. */
static ds_status correlate(dsi_stream *s, Unfolding *u, dsi_view x, dsi_view w, bool flipped,
                           dsi_view b, dsi_view y)
{
    void *spare_x, *spare_y;
    ds_status status = DS_ENOMEM;
    int64_t out = y.d[1], most = rows_of_block(u, BLOCK_BYTES, out * u->depth * 2);
    int64_t lines = most * u->Q * u->depth;
    dsi_view from = in_dense(s, x, &spare_x), to = in_dense(s, y, &spare_y);
    uint16_t *unfolded = dsi_scratch(s, (size_t)(lines + out * u->depth) * sizeof *unfolded);
    dsi_view m = {unfolded + lines, DS_BF16, 3, {1, out, u->depth}, {0, u->depth, 1}};
    u->x = from.p;
    u->to = unfolded;
    if (from.p && to.p && unfolded) status = spare_x ? KERNEL(copy)(s, x, from) : DS_OK;
    if (!status) status = copy_taps(s, w, flipped, m, false);
    for (int64_t row = 0, rows; row < u->N * u->P && !status; row += rows) {
        rows = dsi_min(most, u->N * u->P - row);
        dsi_view a = unfold(u, row, rows);
        status = amx_matmul(s, a, view_transposed(m), b, matrix_of_rows(&to, row, rows));
    }
    if (!status && spare_y) status = KERNEL(copy)(s, to, y);
    dsi_scratch_release(s, unfolded);
    dsi_scratch_release(s, spare_y);
    dsi_scratch_release(s, spare_x);
    return status;
}

/* The unfolding of x with a line for each pixel of y. */
static Unfolding lines_of_x(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                            const dsi_view *y)
{
    Unfolding u = {.H = x->d[2], .W = x->d[3], .C = x->d[1], .R = w->d[2], .S = w->d[3]};
    u.N = y->d[0], u.P = y->d[2], u.Q = y->d[3], u.depth = u.R * u.S * u.C;
    for (int i = 0; i < 2; i++)
        u.stride[i] = c->stride[i], u.dilation[i] = c->dilation[i], u.padding[i] = c->padding[i];
    return u;
}

static bool conv_amx_takes(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                           const dsi_view *y)
{
    int64_t pixels = y->d[0] * y->d[2] * y->d[3], C = w->d[1], K = w->d[0];
    return x->dtype == DS_BF16 && w->dtype == DS_BF16 && y->dtype == DS_BF16 && c->groups == 1 &&
           C >= FEW_CHANNELS && K >= FEW_CHANNELS && amx_takes(pixels, K, w->d[2] * w->d[3] * C);
}

bool amx_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b, dsi_view y,
                 ds_status *status)
{
    if (!conv_amx_takes(c, &x, &w, &y)) return false;
    if (point_forward(s, c, x, w, b, y, status)) return true;
    Unfolding u = lines_of_x(c, &x, &w, &y);
    *status = correlate(s, &u, x, w, false, b, y);
    return true;
}

bool amx_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
            ds_status *status)
{
    if (!conv_amx_takes(c, &dx, &w, &dy)) return false;
    if (point_dx(s, c, dy, w, dx, status)) return true;
    if (c->stride[0] != 1 || c->stride[1] != 1) return false;
    Unfolding u = lines_of_x(c, &dy, &w, &dx);
    for (int i = 0; i < 2; i++) u.padding[i] = (w.d[2 + i] - 1) * c->dilation[i] - c->padding[i];
    dsi_view turned = w; /* [C,K,R,S] */
    turned.d[0] = w.d[1], turned.s[0] = w.s[1], turned.d[1] = w.d[0], turned.s[1] = w.s[0];
    *status = correlate(s, &u, dy, turned, true, (dsi_view){0}, dx);
    return true;
}

/* ---- dw ----------------------------------------------------------------------------------------------------- */

/* dw = dy^T times the lines of x, summed over blocks in float32. */
static ds_status sum_products(dsi_stream *s, Unfolding *u, dsi_view x, dsi_view dy, dsi_view dw)
{
    void *spare_x, *spare_y;
    ds_status status = DS_ENOMEM;
    int64_t size = dw.d[0] * u->depth, most = rows_of_block(u, DW_BYTES, size * 4);
    int64_t lines = most * u->Q * u->depth;
    dsi_view from = in_dense(s, x, &spare_x), g = in_dense(s, dy, &spare_y);
    float *sums = dsi_scratch(s, (size_t)(2 * size) * sizeof *sums + (size_t)lines * sizeof *u->to);
    dsi_view sum = {sums, DS_F32, 3, {1, dw.d[0], u->depth}, {0, u->depth, 1}}, part = sum;
    part.p = sums + size;
    u->x = from.p;
    u->to = (uint16_t *)(sums + 2 * size);
    if (from.p && g.p && sums) status = spare_x ? KERNEL(copy)(s, x, from) : DS_OK;
    if (!status && spare_y) status = KERNEL(copy)(s, dy, g);
    for (int64_t row = 0, rows; row < u->N * u->P && !status; row += rows) {
        rows = dsi_min(most, u->N * u->P - row);
        dsi_view a = unfold(u, row, rows),
                 gradient = view_transposed(matrix_of_rows(&g, row, rows));
        status = amx_matmul(s, gradient, a, (dsi_view){0}, row ? part : sum);
        if (!status && row) status = KERNEL(binary)(s, DSI_ADD, 1, sum, part, sum);
    }
    if (!status) status = copy_taps(s, dw, false, sum, true);
    dsi_scratch_release(s, sums);
    dsi_scratch_release(s, spare_y);
    dsi_scratch_release(s, spare_x);
    return status;
}

bool amx_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
            ds_status *status)
{
    if (!conv_amx_takes(c, &x, &dw, &dy)) return false;
    if (point_dw(s, c, dy, x, dw, status)) return true;
    Unfolding u = lines_of_x(c, &x, &dw, &dy);
    *status = sum_products(s, &u, x, dy, dw);
    return true;
}
