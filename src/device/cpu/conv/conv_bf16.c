/* device/cpu/conv/conv_bf16.c: convolutions of bfloat16 as products
 * (gemm_bf16.c). Unfolding (PyTorch's unfold, im2col) copies all
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
 * once, a kernel row or a pixel, has at least FEW elements, 16 bytes. Where
 * vectors multiply bfloat16, most need no lines either (conv_taps.c,
 * conv_taps_dw.c).
 *
 * Threads share blocks, so that each reads the lines that it has made; or the
 * lines and tiles of one block, where blocks are few.
 *
 * Invariants: a block of pixels depends on shapes alone, and blocks are summed
 * in order, so no result depends on threads or caches.
 * SPDX-License-Identifier: MIT */
#include "conv_taps.h"
#include "device/cpu/gemm/gemm_bf16.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/strided.h"
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
/* Bytes of sums of blocks that wait to be added; elements that are added at a
 * time. */
#define SUMS_BYTES 16777216
#define CHUNK      4096
/* Elements of a line of a tile register, and lines of two registers. A matrix
 * of whole ones needs no packing. */
#define WHOLE 32

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

/* Products of lines, block by block. */
typedef struct Products {
    dsi_stream *s;
    Unfolding lines;
    int64_t most;        /* rows of pixels of a block */
    _Atomic bool failed; /* a thread had no memory */
    /* y and dx: channel `c` on of the image `to`; dw: of dy */
    dsi_view weights, bias, to;
    int64_t c;
    bool taps; /* without lines (conv_taps.h) */
    /* dw */
    dsi_view dy;
    int64_t size, first; /* elements of dw; the first block of a round */
    float *sums;         /* dw, then those of the blocks of a round */
    int64_t count;       /* sums to add to the first */
} Products;

static int64_t blocks_of(const Products *o) { return dsi_div_up(o->lines.N * o->lines.P, o->most); }

/* Runs body over n blocks; threads share them, or else each of them. */
static ds_status run_blocks(Products *o, int64_t n, bool shared,
                            void (*body)(void *arg, int64_t begin, int64_t end))
{
    atomic_init(&o->failed, false);
    dsi_parallel(n, shared ? 1 : n, body, o);
    if (!o->failed) return DS_OK;
    return ds_error() ? ds_error_status()
                      : dsi_fail(DS_ENOMEM, "no memory for lines of images on cpu");
}

/* Memory of this thread for the lines of a block; released as the last. */
static uint16_t *lines_begin(Products *o)
{
    int64_t n = o->most * o->lines.Q;
    uint16_t *to = dsi_scratch(o->s, (size_t)(n * o->lines.depth) * sizeof *to);
    if (to)
        end_lines(&o->lines, to, n);
    else
        o->failed = true;
    return to;
}

/* The lines of a block, which begins at `row` and has `rows`. */
static dsi_view lines_of_block(const Products *o, int64_t block, uint16_t *to, int64_t *row,
                               int64_t *rows)
{
    Unfolding u = o->lines;
    u.to = to;
    *row = block * o->most, *rows = dsi_min(o->most, u.N * u.P - *row);
    return unfold(&u, *row, *rows);
}

/* Blocks begin .. end-1 of y or dx. */
static void correlate_blocks(void *arg, int64_t begin, int64_t end)
{
    Products *o = arg;
    uint16_t *lines = lines_begin(o);
    for (int64_t i = begin, row, rows; i < end && lines; i++) {
        dsi_view a = lines_of_block(o, i, lines, &row, &rows);
        dsi_view to = matrix_of_rows(&o->to, row, rows, o->c, o->weights.d[1]);
        if (bf16_matmul(o->s, a, view_transposed(o->weights), o->bias, to)) o->failed = true;
    }
    dsi_scratch_release(o->s, lines);
}

/* Group g of o->to, a dense image, = lines of that of x times its weights + b. */
static ds_status correlate_group(dsi_stream *s, Products *o, dsi_view x, const Weights *w,
                                 int64_t g, dsi_view b)
{
    void *spare;
    int64_t out = w->w.d[0], blocks = blocks_of(o);
    dsi_view from;
    o->bias = b, o->bias.d[0] = out, o->c = g * out;
    if (b.p) o->bias = moved(o->bias, g * out * b.s[0]);
    ds_status status = copied_group(s, x, o->lines.C, g, &from, &spare);
    o->lines.x = from.p;
    if (!status) status = copy_taps(s, moved(w->w, g * w->step), w->flipped, o->weights, false);
    if (!status && o->taps)
        status = taps_correlate(s, &o->lines, o->weights.p, out, o->bias, &o->to, o->c);
    else if (!status)
        status = run_blocks(o, blocks, shares_evenly(blocks), correlate_blocks);
    dsi_scratch_release(s, spare);
    return status;
}

/* y = lines of x times weights + b. */
static ds_status correlate(dsi_stream *s, Unfolding *u, dsi_view x, const Weights *w, dsi_view b,
                           dsi_view y)
{
    void *spare;
    int64_t out = w->w.d[0];
    Products o = {.s = s, .lines = *u, .most = rows_of_block(u, BLOCK_BYTES, out * u->depth * 2)};
    o.taps = taps_take(u);
    ds_status status = DS_ENOMEM;
    o.to = in_dense(s, y, &spare);
    uint16_t *m = dsi_scratch(s, (size_t)(out * u->depth) * sizeof *m);
    o.weights = (dsi_view){m, DS_BF16, 3, {1, out, u->depth}, {0, u->depth, 1}};
    if (o.to.p && m) {
        end_lines(u, m, out);
        status = DS_OK;
    }
    for (int64_t g = 0; g < w->groups && !status; g++) status = correlate_group(s, &o, x, w, g, b);
    if (!status && spare) status = KERNEL(copy)(s, o.to, y);
    dsi_scratch_release(s, m);
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
static bool conv_bf16_takes(const dsi_conv2d *c, const dsi_view *x, const dsi_view *w,
                            const dsi_view *y, int64_t from, int64_t to)
{
    int64_t pixels = y->d[0] * y->d[2] * y->d[3], S = w->d[3];
    bool rows = c->dilation[1] == 1 && c->groups == 1; /* whole kernel rows are copied at once */
    return x->dtype == DS_BF16 && w->dtype == DS_BF16 && y->dtype == DS_BF16 &&
           (rows ? S * from : from) >= FEW && to >= FEW &&
           bf16_takes(pixels, w->d[0] / c->groups, w->d[2] * S * w->d[1]);
}

bool bf16_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                  dsi_view y, ds_status *status)
{
    int64_t K = w.d[0] / c->groups;
    if (!conv_bf16_takes(c, &x, &w, &y, w.d[1], K)) return false;
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

bool bf16_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view b, dsi_view dx,
             ds_status *status)
{
    if (!conv_bf16_takes(c, &dx, &w, &dy, w.d[0] / c->groups, w.d[1])) return false;
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

/* The sums of blocks begin .. end-1 of a round. */
static void gradient_blocks(void *arg, int64_t begin, int64_t end)
{
    Products *o = arg;
    int64_t length = o->lines.length, K = o->size / length;
    uint16_t *lines = lines_begin(o);
    for (int64_t i = begin, row, rows; i < end && lines; i++) {
        float *sum = o->sums + (i + (o->first > 0)) * o->size;
        dsi_view a = lines_of_block(o, o->first + i, lines, &row, &rows);
        dsi_view gradient = view_transposed(matrix_of_rows(&o->dy, row, rows, o->c, K));
        dsi_view to = {sum, DS_F32, 3, {1, K, length}, {0, length, 1}};
        a.d[2] = length;
        if (bf16_matmul(o->s, gradient, a, (dsi_view){0}, to)) o->failed = true;
    }
    dsi_scratch_release(o->s, lines);
}

/* Adds the sums of the blocks of a round in their order, in chunks begin ..
 * end-1 of dw. */
static void add_chunks(void *arg, int64_t begin, int64_t end)
{
    const Products *o = arg;
    for (int64_t at = begin * CHUNK; at < dsi_min(end * CHUNK, o->size); at += CHUNK) {
        int64_t n = dsi_min(CHUNK, o->size - at);
        float *sum = o->sums + at;
        for (int64_t i = 1; i <= o->count; i++) {
            const float *part = sum + i * o->size;
            INDEPENDENT
            for (int64_t j = 0; j < n; j++) sum[j] += part[j];
        }
    }
}

/* Blocks whose sums wait until they are added: for threads that share them. */
static int64_t blocks_of_round(int64_t blocks, int64_t size)
{
    int64_t most = dsi_min(blocks, SUMS_BYTES / (size * (int64_t)sizeof(float)));
    return ds_threads() > 1 && most > 1 && shares_evenly(most) ? most : 1;
}

/* dw of group g = its channels of dy^T times the lines of those of x, summed
 * over blocks in float32. */
static ds_status sum_group(dsi_stream *s, Products *o, int64_t g, dsi_view x, dsi_view dw,
                           int64_t round)
{
    void *spare;
    dsi_view from;
    int64_t K = dw.d[0], length = o->lines.length, blocks = blocks_of(o);
    ds_status status = copied_group(s, x, o->lines.C, g, &from, &spare);
    o->lines.x = from.p, o->c = g * K;
    if (o->taps && !status) status = taps_dw(s, &o->lines, &o->dy, o->c, K, o->sums);
    for (o->first = 0; o->first < blocks && !status && !o->taps; o->first += round) {
        int64_t n = dsi_min(round, blocks - o->first);
        status = run_blocks(o, n, round > 1, gradient_blocks);
        o->count = o->first ? n : n - 1;
        if (o->count) dsi_parallel(dsi_div_up(o->size, CHUNK), 1 + 16 / o->count, add_chunks, o);
    }
    dsi_scratch_release(s, spare);
    dsi_view sum = {o->sums, DS_F32, 3, {1, K, length}, {0, length, 1}};
    return status ? status : copy_taps(s, moved(dw, g * K * dw.s[0]), false, sum, true);
}

bool bf16_dw(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view x, dsi_view dw,
             ds_status *status)
{
    int64_t K = dw.d[0] / c->groups;
    if (!conv_bf16_takes(c, &x, &dw, &dy, dw.d[1], K)) return false;
    if (point_dw(s, c, dy, x, dw, status)) return true;
    void *spare;
    Products o = {.s = s, .lines = lines_of_x(c, &x, &dw, &dy)};
    *status = copied_dense(s, dy, &o.dy, &spare);
    const Unfolding *u = &o.lines;
    o.size = K * u->length;
    int64_t least = dsi_max(BLOCK_BYTES, dsi_min(DW_BYTES, 32 * o.size * 4));
    o.most = rows_of_block(u, least, o.size * 4);
    o.taps = taps_take_dw(u->N, u->C, K);
    int64_t round = o.taps ? 0 : blocks_of_round(blocks_of(&o), o.size);
    o.sums = dsi_scratch(s, (size_t)((1 + round) * o.size) * sizeof *o.sums);
    if (!o.sums) *status = DS_ENOMEM;
    dw.d[0] = K;
    for (int64_t i = 0; i < c->groups && !*status; i++) *status = sum_group(s, &o, i, x, dw, round);
    dsi_scratch_release(s, o.sums);
    dsi_scratch_release(s, spare);
    return true;
}
