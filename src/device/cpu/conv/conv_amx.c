/* device/cpu/conv/conv_amx.c: convolutions of bfloat16 as products by the
 * matrix unit (gemm_amx.c). Unfolding (PyTorch's unfold, im2col) copies all
 * inputs of one output pixel to a line of R S C numbers, channels fastest:
 *
 *     y [pixels, K] = lines of x [pixels, R S C] w [K, R S C]^T + bias
 *     dx [pixels, C] = lines of dy [pixels, R S K] w' [C, R S K]^T       w' is w turned around
 *     dw [K, R S C] = dy [pixels, K]^T lines of x, summed over blocks of pixels in float32, in their order
 * With a stride, dx is such a product for each phase, the pixels that are a
 * stride apart: only some taps reach them. Groups are one product each.
 * Lines are made for as many pixels at a time as the second cache holds, from
 * images in pixel order; others are copied first. 1x1 kernels need no lines
 * (conv_1x1.c). A line repeats an input up to R S times, so what is copied at
 * once, a kernel row or a pixel, has at least FEW elements, 16 bytes.
 *
 * Invariants: a block of pixels depends on shapes alone, and blocks are summed
 * in order, so no result depends on threads or caches.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "device/cpu/gemm/gemm_amx.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/table.h"

#include <string.h>

/* Bytes of lines that are made at a time; the same for dw, where it is larger
 * if dw is, because each block's dw is added in memory. A block has at least
 * twice the bytes of the weight (dw: its sums), which is packed or added for
 * each block, up to MOST_BYTES. */
#define BLOCK_BYTES 524288
#define DW_BYTES    2097152
#define MOST_BYTES  8388608
#define FEW         8
/* Elements of a line of a tile register, and lines of two registers. A matrix
 * of whole ones needs no packing. */
#define WHOLE 32

typedef struct Unfolding {
    const uint16_t *x; /* [N][H][W][C] */
    int64_t H, W, C;
    int64_t N, P, Q; /* output pixels; each has a line */
    int64_t R, S;
    int64_t stride[2], dilation[2], padding[2];
    int64_t length, depth; /* R S C, and from line to line: the same in whole lines of tiles */
    uint16_t *to;          /* [rows][Q][depth] lines of the current block */
    int64_t row0;          /* its first row, counted over [N][P] */
} Unfolding;

/* n elements to each of `count` lines, by `whole` vectors and the lanes `left`
 * of another. */
ALWAYS_INLINE void copy_vectors(const Unfolding *u, const uint16_t *from, int64_t count, int64_t n,
                                int64_t whole, uint16_t *to)
{
    const int64_t step = u->stride[1] * u->C;
    for (int64_t i = 0; i < count; i++, from += step, to += u->depth) {
#if defined(DSI_ISA_avx512)
        for (int64_t j = 0; j < whole; j++)
            _mm512_storeu_si512(to + 32 * j, _mm512_loadu_si512(from + 32 * j));
        const int64_t at = 32 * whole;
        const __mmask32 left = (1u << (n - at)) - 1;
        if (left)
            _mm512_mask_storeu_epi16(to + at, left, _mm512_maskz_loadu_epi16(left, from + at));
#else
        (void)whole;
        memcpy(to, from, (size_t)n * sizeof *to);
#endif
    }
}

/* n elements to each of `count` lines, from pixels that are a stride apart. */
static void copy_to_lines(const Unfolding *u, const uint16_t *from, int64_t count, int64_t n,
                          uint16_t *to)
{
    if (n < 32)
        copy_vectors(u, from, count, n, 0, to);
    else if (n < 64)
        copy_vectors(u, from, count, n, 1, to);
    else
        copy_vectors(u, from, count, n, n / 32, to);
}

/* A row of the kernel of one pixel, from column w0 of a source row on; zeros
 * outside. */
static void unfold_edge(const Unfolding *u, const uint16_t *row, int64_t w0, uint16_t *to)
{
    for (int64_t s = 0; s < u->S; s++) {
        int64_t w = w0 + s * u->dilation[1];
        if (w < 0 || w >= u->W)
            memset(to + s * u->C, 0, (size_t)u->C * sizeof *to);
        else
            copy_to_lines(u, row + w * u->C, 1, u->C, to + s * u->C);
    }
}

/* One row of the kernel of the lines of a row of pixels: source row h of sample
 * n. The columns of pixels first .. last - 1 are inside; a pixel's are one copy
 * if they are neighbours. */
static void unfold_kernel_row(const Unfolding *u, int64_t n, int64_t h, uint16_t *to)
{
    const int64_t across = u->S * u->C, stride = u->stride[1], padding = u->padding[1];
    if (h < 0 || h >= u->H) {
        for (int64_t q = 0; q < u->Q; q++)
            memset(to + q * u->depth, 0, (size_t)across * sizeof *to);
        return;
    }
    const uint16_t *row = u->x + (n * u->H + h) * u->W * u->C;
    int64_t first = padding > 0 ? dsi_min(dsi_div_up(padding, stride), u->Q) : 0;
    int64_t room = u->W - 1 - (u->S - 1) * u->dilation[1] + padding;
    int64_t last = room < 0 ? first : dsi_max(first, dsi_min(room / stride + 1, u->Q));
    const uint16_t *from = row + (first * stride - padding) * u->C;
    uint16_t *inside = to + first * u->depth;
    if (last > first && u->dilation[1] == 1)
        copy_to_lines(u, from, last - first, across, inside);
    else if (last > first)
        for (int64_t s = 0; s < u->S; s++)
            copy_to_lines(u, from + s * u->dilation[1] * u->C, last - first, u->C,
                          inside + s * u->C);
    for (int64_t q = 0; q < u->Q; q++) {
        if (q == first) q = last;
        if (q < u->Q) unfold_edge(u, row, q * stride - padding, to + q * u->depth);
    }
}

/* Rows begin .. end-1 of the current block. */
static void unfold_rows(void *arg, int64_t begin, int64_t end)
{
    const Unfolding *u = arg;
    for (int64_t row = begin; row < end; row++) {
        int64_t at = u->row0 + row, h = at % u->P * u->stride[0] - u->padding[0];
        uint16_t *to = u->to + row * u->Q * u->depth;
        for (int64_t r = 0; r < u->R; r++)
            unfold_kernel_row(u, at / u->P, h + r * u->dilation[0], to + r * u->S * u->C);
    }
}

/* Zeros behind the ends of n lines, which unfolding does not write. */
static void end_lines(const Unfolding *u, uint16_t *to, int64_t n)
{
    for (int64_t i = 0; i < n && u->length < u->depth; i++, to += u->depth)
        memset(to + u->length, 0, (size_t)(u->depth - u->length) * sizeof *to);
}

/* Makes the lines of `rows` rows of pixels from row0 on: a matrix [1, rows Q,
 * depth]. */
static dsi_view unfold(Unfolding *u, int64_t row0, int64_t rows)
{
    u->row0 = row0;
    dsi_parallel(rows, 1 + 65536 / (u->Q * u->depth), unfold_rows, u);
    return (dsi_view){u->to, DS_BF16, 3, {1, rows * u->Q, u->depth}, {0, u->depth, 1}};
}

/* Rows of pixels whose lines have `least` bytes, or 2 `weight` up to
 * MOST_BYTES; at least one. */
static int64_t rows_of_block(const Unfolding *u, int64_t least, int64_t weight)
{
    int64_t bytes = dsi_max(least, dsi_min(2 * weight, MOST_BYTES));
    int64_t rows = bytes / (u->Q * u->depth * (int64_t)sizeof *u->to), whole = WHOLE;
    while (whole > 1 && u->Q * whole / 2 % WHOLE == 0) whole /= 2; /* rows of whole tiles */
    if (rows > whole) rows -= rows % whole;
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

/* `rows` rows of pixels of a dense image as a matrix, `channels` from channel c
 * on. */
static dsi_view matrix_of_rows(const dsi_view *v, int64_t row0, int64_t rows, int64_t c,
                               int64_t channels)
{
    uint16_t *p = (uint16_t *)v->p + row0 * v->d[3] * v->d[1] + c;
    return (dsi_view){p, v->dtype, 3, {1, rows * v->d[3], channels}, {0, v->d[1], 1}};
}

/* v from element `at` on. */
static dsi_view moved(dsi_view v, int64_t at)
{
    if (v.p) v.p = (char *)v.p + at * (int64_t)ds_dtype_size(v.dtype);
    return v;
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

/* A dense copy of x in *spare, or x itself; the caller releases *spare. */
static ds_status copied_dense(dsi_stream *s, dsi_view x, dsi_view *dense, void **spare)
{
    *dense = in_dense(s, x, spare);
    if (!dense->p) return DS_ENOMEM;
    return *spare ? KERNEL(copy)(s, x, *dense) : DS_OK;
}

/* The same for the C channels of group g: then the inputs of a kernel row are
 * neighbours. */
static ds_status copied_group(dsi_stream *s, dsi_view x, int64_t C, int64_t g, dsi_view *dense,
                              void **spare)
{
    x.d[1] = C;
    return copied_dense(s, moved(x, g * C * x.s[1]), dense, spare);
}

/* ---- y and dx ------------------------------------------------------------------------------------------- */

/* The weights of the first group, [out, in, R, S], and elements to the next. */
typedef struct Weights {
    dsi_view w;
    bool flipped; /* turned by 180 degrees */
    int64_t groups, step;
} Weights;

/* Group g of `to`, a dense image, = lines of that of x times its weights + b,
 * block by block. u->to has memory for the lines of `most` rows, and for
 * weights. */
static ds_status correlate_group(dsi_stream *s, Unfolding *u, dsi_view x, const Weights *w,
                                 int64_t g, dsi_view b, const dsi_view *to, int64_t most)
{
    void *spare;
    int64_t out = w->w.d[0];
    dsi_view from,
        m = {u->to + most * u->Q * u->depth, DS_BF16, 3, {1, out, u->depth}, {0, u->depth, 1}};
    b.d[0] = out;
    if (b.p) b = moved(b, g * out * b.s[0]);
    ds_status status = copied_group(s, x, u->C, g, &from, &spare);
    u->x = from.p;
    if (!status) status = copy_taps(s, moved(w->w, g * w->step), w->flipped, m, false);
    for (int64_t row = 0, rows; row < u->N * u->P && !status; row += rows) {
        rows = dsi_min(most, u->N * u->P - row);
        dsi_view a = unfold(u, row, rows);
        status = amx_matmul(s, a, view_transposed(m), b,
                            matrix_of_rows(to, row, rows, g * out, out));
    }
    dsi_scratch_release(s, spare);
    return status;
}

/* y = lines of x times weights + b. */
static ds_status correlate(dsi_stream *s, Unfolding *u, dsi_view x, const Weights *w, dsi_view b,
                           dsi_view y)
{
    void *spare;
    ds_status status = DS_ENOMEM;
    int64_t out = w->w.d[0], most = rows_of_block(u, BLOCK_BYTES, out * u->depth * 2);
    int64_t lines = most * u->Q + out;
    dsi_view to = in_dense(s, y, &spare);
    u->to = dsi_scratch(s, (size_t)(lines * u->depth) * sizeof *u->to);
    if (to.p && u->to) {
        end_lines(u, u->to, lines);
        status = DS_OK;
    }
    for (int64_t g = 0; g < w->groups && !status; g++)
        status = correlate_group(s, u, x, w, g, b, &to, most);
    if (!status && spare) status = KERNEL(copy)(s, to, y);
    dsi_scratch_release(s, u->to);
    dsi_scratch_release(s, spare);
    return status;
}

/* Lines of images like x, of one of `groups` groups of channels, for pixels
 * like y's. */
static Unfolding lines_like(const dsi_view *x, const dsi_view *y, int64_t groups, int64_t R,
                            int64_t S)
{
    Unfolding u = {.H = x->d[2], .W = x->d[3], .C = x->d[1] / groups};
    u.N = y->d[0], u.P = y->d[2], u.Q = y->d[3], u.R = R, u.S = S;
    u.length = R * S * u.C, u.depth = dsi_round_up(u.length, WHOLE);
    u.stride[0] = u.stride[1] = 1;
    return u;
}

/* The unfolding of a group of x with a line for each pixel of y. */
static Unfolding lines_of_x(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                            const dsi_view *y)
{
    Unfolding u = lines_like(x, y, c->groups, w->d[2], w->d[3]);
    for (int i = 0; i < 2; i++)
        u.stride[i] = c->stride[i], u.dilation[i] = c->dilation[i], u.padding[i] = c->padding[i];
    return u;
}

/* from: channels of a group of what is unfolded; to: of the product. */
static bool conv_amx_takes(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                           const dsi_view *y, int64_t from, int64_t to)
{
    int64_t pixels = y->d[0] * y->d[2] * y->d[3], S = w->d[3];
    bool rows = c->dilation[1] == 1 && c->groups == 1; /* whole kernel rows are copied at once */
    return x->dtype == DS_BF16 && w->dtype == DS_BF16 && y->dtype == DS_BF16 &&
           (rows ? S * from : from) >= FEW && to >= FEW &&
           amx_takes(pixels, w->d[0] / c->groups, w->d[2] * S * w->d[1]);
}

bool amx_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b, dsi_view y,
                 ds_status *status)
{
    int64_t K = w.d[0] / c->groups;
    if (!conv_amx_takes(c, &x, &w, &y, w.d[1], K)) return false;
    if (point_forward(s, c, x, w, b, y, status)) return true;
    Unfolding u = lines_of_x(c, &x, &w, &y);
    Weights weights = {w, false, c->groups, K * w.s[0]};
    weights.w.d[0] = K;
    *status = correlate(s, &u, x, &weights, b, y);
    return true;
}

/* The taps of one axis that reach dx at a, a + stride, ...: first, first +
 * step, ...; the last reads dy at `at`, those before it `dilation` further on
 * each. */
typedef struct Reach {
    int64_t count, first, step, at, dilation;
} Reach;

static Reach reach_of(const dsi_conv2d *c, int axis, int64_t a, int64_t taps)
{
    Reach o = {.step = 1, .dilation = 1};
    int64_t stride = c->stride[axis], last = 0;
    for (int64_t r = 0; r < taps; r++) {
        int64_t d = a + c->padding[axis] - r * c->dilation[axis];
        if (d % stride) continue;
        if (!o.count) o.first = r;
        if (o.count) o.step = r - last, o.dilation = o.at - d / stride;
        last = r, o.at = d / stride, o.count++;
    }
    return o;
}

/* dx at rows begin[0], begin[0] + stride, ... and columns begin[1], ... */
static ds_status dx_phase(dsi_stream *s, const dsi_conv2d *c, const dsi_view *dy, dsi_view w,
                          dsi_view b, dsi_view dx, const int64_t begin[2])
{
    Reach v = reach_of(c, 0, begin[0], w.d[2]), h = reach_of(c, 1, begin[1], w.d[3]);
    int64_t offset = 0, K = w.d[0] / c->groups;
    for (int i = 0; i < 2; i++) {
        dx.d[2 + i] = (dx.d[2 + i] - begin[i] + c->stride[i] - 1) / c->stride[i];
        offset += begin[i] * dx.s[2 + i];
        dx.s[2 + i] *= c->stride[i];
    }
    if (dx.d[2] <= 0 || dx.d[3] <= 0) return DS_OK;
    dx = moved(dx, offset);
    if (!v.count || !h.count)
        return b.p ? KERNEL(copy)(s, bias_like(b, &dx), dx) : KERNEL(fill)(s, 0, dx);
    Unfolding u = lines_like(dy, &dx, c->groups, v.count, h.count);
    u.padding[0] = -v.at, u.padding[1] = -h.at;
    u.dilation[0] = v.dilation, u.dilation[1] = h.dilation;
    Weights turned = {moved(w, v.first * w.s[2] + h.first * w.s[3]), true, c->groups, K * w.s[0]};
    dsi_view *t = &turned.w; /* [C,K,taps,taps] */
    t->d[0] = w.d[1], t->s[0] = w.s[1], t->d[1] = K, t->s[1] = w.s[0];
    t->d[2] = v.count, t->s[2] = v.step * w.s[2], t->d[3] = h.count, t->s[3] = h.step * w.s[3];
    return correlate(s, &u, *dy, &turned, b, dx);
}

bool amx_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view b, dsi_view dx,
            ds_status *status)
{
    if (!conv_amx_takes(c, &dx, &w, &dy, w.d[0] / c->groups, w.d[1])) return false;
    if (!b.p && point_dx(s, c, dy, w, dx, status)) return true;
    dsi_view from;
    void *spare;
    *status = copied_dense(s, dy, &from, &spare);
    for (int64_t a = 0; a < c->stride[0]; a++)
        for (int64_t j = 0; j < c->stride[1] && !*status; j++)
            *status = dx_phase(s, c, &from, w, b, dx, (int64_t[2]){a, j});
    dsi_scratch_release(s, spare);
    return true;
}

/* ---- dw ----------------------------------------------------------------------------------------------------- */

/* dw of group g = its channels of dy^T times the lines of those of x, summed
 * over blocks in float32. `sums` has memory for two dw, and for the lines of
 * `most` rows. */
static ds_status sum_group(dsi_stream *s, Unfolding *u, int64_t g, dsi_view x, const dsi_view *dy,
                           dsi_view dw, int64_t most, float *sums)
{
    void *spare;
    dsi_view from;
    int64_t K = dw.d[0], size = K * u->length;
    dsi_view sum = {sums, DS_F32, 3, {1, K, u->length}, {0, u->length, 1}}, part = sum;
    ds_status status = copied_group(s, x, u->C, g, &from, &spare);
    part.p = sums + size;
    u->to = (uint16_t *)(sums + 2 * size);
    u->x = from.p;
    for (int64_t row = 0, rows; row < u->N * u->P && !status; row += rows) {
        rows = dsi_min(most, u->N * u->P - row);
        dsi_view a = unfold(u, row, rows),
                 gradient = view_transposed(matrix_of_rows(dy, row, rows, g * K, K));
        a.d[2] = u->length;
        status = amx_matmul(s, gradient, a, (dsi_view){0}, row ? part : sum);
        if (!status && row) status = KERNEL(binary)(s, DSI_ADD, 1, sum, part, sum);
    }
    dsi_scratch_release(s, spare);
    return status ? status : copy_taps(s, moved(dw, g * K * dw.s[0]), false, sum, true);
}

bool amx_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
            ds_status *status)
{
    int64_t K = dw.d[0] / c->groups;
    if (!conv_amx_takes(c, &x, &dw, &dy, dw.d[1], K)) return false;
    if (point_dw(s, c, dy, x, dw, status)) return true;
    void *spare;
    dsi_view g;
    *status = copied_dense(s, dy, &g, &spare);
    Unfolding u = lines_of_x(c, &x, &dw, &dy);
    int64_t size = K * u.length, least = dsi_max(BLOCK_BYTES, dsi_min(DW_BYTES, 32 * size * 4));
    int64_t most = rows_of_block(&u, least, size * 4);
    float *sums = dsi_scratch(s, (size_t)(2 * size) * sizeof *sums +
                                     (size_t)(most * u.Q * u.depth) * sizeof *u.to);
    if (!sums) *status = DS_ENOMEM;
    dw.d[0] = K;
    for (int64_t i = 0; i < c->groups && !*status; i++)
        *status = sum_group(s, &u, i, x, &g, dw, most, sums);
    dsi_scratch_release(s, sums);
    dsi_scratch_release(s, spare);
    return true;
}
