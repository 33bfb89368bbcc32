/* device/cpu/pointwise/copy.c: copies between any dtypes and strides, and fill.
 * A conversion passes through one of four middle types, in pieces that stay in
 * the first cache:
 *   float16, bfloat16, float32 -> float;  float64 -> double;  int64 -> int64;  smaller -> int32
 * so that 10 x 10 pairs need 6 loops that load and 4 x 10 that store, each
 * vectorised.
 *
 * Floats become integers as on x86 in PyTorch: truncated; NaN and what does not
 * fit gives the smallest integer of the conversion (int32 for int32 and below,
 * int64 for int64 and uint8), then wraps. A transposed copy (NCHW to NHWC, a
 * matrix) is made in square tiles: reads are contiguous in the input, writes in
 * the output, and both sides of a tile fit into the first cache. Otherwise each
 * element would cost a cache line.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/transpose.h"
#include "device/cpu/table.h"

#include <string.h>

#define PIECE 512 /* elements that are converted at a time: 4 KB of the middle type */
#define TILE  32  /* rows, and columns, of a tile of a transposed copy */

enum { MID_F32, MID_F64, MID_I64, MID_I32, MIDS };

static const uint8_t mid_of[DS_DTYPES] = {
    [DS_F32] = MID_F32, [DS_F64] = MID_F64,  [DS_F16] = MID_F32, [DS_BF16] = MID_F32,
    [DS_I64] = MID_I64, [DS_I32] = MID_I32,  [DS_I16] = MID_I32, [DS_I8] = MID_I32,
    [DS_U8] = MID_I32,  [DS_BOOL] = MID_I32,
};

static const uint8_t dtype_of_mid[MIDS] = {
    [MID_F32] = DS_F32, [MID_F64] = DS_F64, [MID_I64] = DS_I64, [MID_I32] = DS_I32};

typedef void convert_fn(int64_t n, const void *from, void *to);

/* ---- one element ---------------------------------------------------------------------------------- */

/* The bounds are powers of two, exact in float and double; a NaN is not inside. */
#define WHOLE_32(x) ((x) >= -0x1p31 && (x) < 0x1p31 ? (int32_t)(x) : INT32_MIN)
#define WHOLE_64(x) ((x) >= -0x1p63 && (x) < 0x1p63 ? (int64_t)(x) : INT64_MIN)

#define SAME(x)     (x)
#define TO_F16(x)   dsi_f32_to_f16((float)(x))
#define TO_BF16(x)  dsi_f32_to_bf16((float)(x))
#define TO_BOOL(x)  ((x) != 0)
#define TO_U8_F(x)  ((uint8_t)WHOLE_64(x))
#define TO_I8_F(x)  ((int8_t)WHOLE_32(x))
#define TO_I16_F(x) ((int16_t)WHOLE_32(x))

/* ---- loops ---------------------------------------------------------------------------------------- */

#define CONVERT(name, from_type, to_type, expr) \
    static void name(int64_t n, const void *from, void *to) \
    { \
        const from_type *restrict x = from; \
        to_type *restrict y = to; \
        for (int64_t i = 0; i < n; i++) y[i] = (to_type)expr(x[i]); \
    }

CONVERT(load_i16, int16_t, int32_t, SAME)
CONVERT(load_i8, int8_t, int32_t, SAME)
CONVERT(load_u8, uint8_t, int32_t, SAME)

/* The nine stores of a middle type; its own dtype is a memcpy. */
#define STORES_TO_FLOAT(mid, type) \
    CONVERT(mid##_to_f32, type, float, SAME) \
    CONVERT(mid##_to_f64, type, double, SAME) \
    CONVERT(mid##_to_bool, type, uint8_t, TO_BOOL)
#define STORES_TO_INT(mid, type, i64, i32, i16, i8, u8) \
    CONVERT(mid##_to_i64, type, int64_t, i64) \
    CONVERT(mid##_to_i32, type, int32_t, i32) \
    CONVERT(mid##_to_i16, type, int16_t, i16) \
    CONVERT(mid##_to_i8, type, int8_t, i8) \
    CONVERT(mid##_to_u8, type, uint8_t, u8)

STORES_TO_FLOAT(f32, float)
STORES_TO_FLOAT(f64, double)
STORES_TO_FLOAT(i64, int64_t)
STORES_TO_FLOAT(i32, int32_t)
STORES_TO_INT(f32, float, WHOLE_64, WHOLE_32, TO_I16_F, TO_I8_F, TO_U8_F)
STORES_TO_INT(f64, double, WHOLE_64, WHOLE_32, TO_I16_F, TO_I8_F, TO_U8_F)
STORES_TO_INT(i64, int64_t, SAME, SAME, SAME, SAME, SAME)
STORES_TO_INT(i32, int32_t, SAME, SAME, SAME, SAME, SAME)

/* Floats and their halves go by the processor's own conversions. */
#define CONVERT_HALF(name, from_type, to_type, line) \
    static void name(int64_t n, const void *from, void *to) \
    { \
        line((const from_type *)from, (to_type *)to, n); \
    }
CONVERT_HALF(load_f16, uint16_t, float, f16_to_floats)
CONVERT_HALF(load_bf16, uint16_t, float, bf16_to_floats)
CONVERT_HALF(f32_to_f16, float, uint16_t, floats_to_f16)
CONVERT_HALF(f32_to_bf16, float, uint16_t, floats_to_bf16)

#define STORES_TO_HALF(mid, type) \
    CONVERT(mid##_to_f16, type, uint16_t, TO_F16) \
    CONVERT(mid##_to_bf16, type, uint16_t, TO_BF16)
STORES_TO_HALF(f64, double)
STORES_TO_HALF(i64, int64_t)
STORES_TO_HALF(i32, int32_t)

static convert_fn *const loads[DS_DTYPES] = {
    /* those without a row are of their middle type */
    [DS_F16] = load_f16, [DS_BF16] = load_bf16, [DS_I16] = load_i16,
    [DS_I8] = load_i8,   [DS_U8] = load_u8,     [DS_BOOL] = load_u8,
};

#define STORE_ROW(mid) \
    { \
        [DS_F32] = mid##_to_f32, [DS_F64] = mid##_to_f64, [DS_F16] = mid##_to_f16, \
        [DS_BF16] = mid##_to_bf16, [DS_I64] = mid##_to_i64, [DS_I32] = mid##_to_i32, \
        [DS_I16] = mid##_to_i16, [DS_I8] = mid##_to_i8, [DS_U8] = mid##_to_u8, \
        [DS_BOOL] = mid##_to_bool, \
    }
static convert_fn *const stores[MIDS][DS_DTYPES] = {
    [MID_F32] = STORE_ROW(f32),
    [MID_F64] = STORE_ROW(f64),
    [MID_I64] = STORE_ROW(i64),
    [MID_I32] = STORE_ROW(i32),
};

/* ---- dense lines ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t from_size, to_size; /* bytes of an element */
    convert_fn *load, *store;   /* load NULL: x is of its middle type */
    bool same;                  /* one dtype: bytes are moved */
    bool loaded;                /* y is of the middle type: load does it all */
} conversion;

/* Chooses the loops that convert `from` to `to`. */
static conversion conversion_of(ds_dtype from, ds_dtype to)
{
    return (conversion){
        .from_size = (int64_t)ds_dtype_size(from),
        .to_size = (int64_t)ds_dtype_size(to),
        .load = loads[from],
        .store = stores[mid_of[from]][to],
        .same = from == to,
        .loaded = loads[from] && to == dtype_of_mid[mid_of[from]],
    };
}

/* Converts n contiguous elements. */
static void copy_convert(const conversion *c, int64_t n, const char *x, char *y)
{
    int64_t mid[PIECE]; /* large enough for the widest dtype */
    if (c->same) {
        memcpy(y, x, (size_t)(n * c->to_size));
    } else if (c->loaded) {
        c->load(n, x, y);
    } else if (!c->load) {
        c->store(n, x, y);
    } else {
        for (int64_t i = 0; i < n; i += PIECE) {
            int64_t m = n - i < PIECE ? n - i : PIECE;
            c->load(m, x + i * c->from_size, mid);
            c->store(m, mid, y + i * c->to_size);
        }
    }
}

static void copy_line(const void *arg, int64_t n, void *const *p)
{
    copy_convert(arg, n, p[0], p[1]);
}

/* ---- transposed copies ---------------------------------------------------------------------------- */

/* y[r, c] = x[c, r] for a tile of rows x cols; strides in elements; x's columns
 * and y's rows are dense. The longer side is the inner loop. */
#define TRANSPOSE(bytes, type) \
    case bytes: { \
        const type *restrict from = x; \
        type *restrict to = y; \
        if (cols < rows) \
            for (int64_t c = 0; c < cols; c++) \
                for (int64_t r = 0; r < rows; r++) to[r * sy + c] = from[c * sx + r]; \
        else \
            for (int64_t r = 0; r < rows; r++) \
                for (int64_t c = 0; c < cols; c++) to[r * sy + c] = from[c * sx + r]; \
    } break
static void copy_transpose(int64_t size, int64_t rows, int64_t cols, const void *x, int64_t sx,
                           void *y, int64_t sy)
{
    switch (size) {
        TRANSPOSE(1, uint8_t);
        TRANSPOSE(2, uint16_t);
        TRANSPOSE(4, uint32_t);
        TRANSPOSE(8, uint64_t);
    }
}

#ifdef __SSE2__
/* to[r, c] = from[c, r] for 8 x 8: rows i and i + 4, interleaved, are rows 2 i
 * and 2 i + 1 of the next round; of three. */
static void transpose_8x8(const uint16_t *from, int64_t sx, uint16_t *to, int64_t sy)
{
    __m128i a[8], b[8];
    UNROLL for (int i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const void *)(from + i * sx));
    UNROLL for (int round = 0; round < 3; round++)
    {
        UNROLL for (int i = 0; i < 4; i++)
        {
            b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]);
            b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
        }
        UNROLL for (int i = 0; i < 8; i++) a[i] = b[i];
    }
    UNROLL for (int i = 0; i < 8; i++) _mm_storeu_si128((void *)(to + i * sy), a[i]);
}

/* copy_transpose of 16 bits, by squares of 8 x 8 in registers. */
static void copy_transpose_16(int64_t rows, int64_t cols, const uint16_t *x, int64_t sx,
                              uint16_t *y, int64_t sy)
{
    int64_t r = rows / 8 * 8, c = cols / 8 * 8;
    for (int64_t i = 0; i < r; i += 8)
        for (int64_t j = 0; j < c; j += 8) transpose_8x8(x + j * sx + i, sx, y + i * sy + j, sy);
    if (c < cols) copy_transpose(2, r, cols - c, x + c * sx, sx, y + c, sy);
    if (r < rows) copy_transpose(2, rows - r, cols, x + r, sx, y + r * sy, sy);
}
#else
static void copy_transpose_16(int64_t rows, int64_t cols, const uint16_t *x, int64_t sx,
                              uint16_t *y, int64_t sy)
{
    copy_transpose(2, rows, cols, x, sx, y, sy);
}
#endif

/* copy_transpose of 32 bits, by squares of VF x VF in registers. */
static void copy_transpose_32(int64_t rows, int64_t cols, const float *x, int64_t sx, float *y,
                              int64_t sy)
{
    int64_t r = rows / VF * VF, c = cols / VF * VF;
    for (int64_t i = 0; i < r; i += VF)
        for (int64_t j = 0; j < c; j += VF) transpose(x + j * sx + i, sx, VF, y + i * sy + j, sy);
    if (c < cols) copy_transpose(4, r, cols - c, x + c * sx, sx, y + c, sy);
    if (r < rows) copy_transpose(4, rows - r, cols, x + r, sx, y + r * sy, sy);
}

static void copy_square(int64_t size, int64_t rows, int64_t cols, const void *x, int64_t sx,
                        void *y, int64_t sy)
{
    if (size == 2)
        copy_transpose_16(rows, cols, x, sx, y, sy);
    else if (size == 4)
        copy_transpose_32(rows, cols, x, sx, y, sy);
    else
        copy_transpose(size, rows, cols, x, sx, y, sy);
}

typedef struct {
    const conversion *c;
    int n; /* outer dimensions */
    int64_t d[DS_MAX_DIMS], sx[DS_MAX_DIMS], sy[DS_MAX_DIMS];
    int64_t rows, cols;             /* of y: along rows x is dense, along cols y is */
    int64_t row_stride, col_stride; /* elements: y's from row to row, x's from column to column */
    const char *x;
    char *y;
} transposition;

/* Copies one tile; if dtypes differ, converts its columns into a buffer first. */
static void copy_tile(const transposition *t, int64_t rows, int64_t cols, const char *x, char *y)
{
    const conversion *c = t->c;
    int64_t tile[TILE * TILE]; /* large enough for the widest dtype */

    if (c->same) {
        copy_square(c->to_size, rows, cols, x, t->col_stride, y, t->row_stride);
        return;
    }
    for (int64_t i = 0; i < cols; i++)
        copy_convert(c, rows, x + i * t->col_stride * c->from_size,
                     (char *)tile + i * TILE * c->to_size);
    copy_square(c->to_size, rows, cols, tile, TILE, y, t->row_stride);
}

/* Moves *x and *y, which have strides sx and sy, to line `line` of n
 * dimensions, of which the last counts fastest. */
static void move_to_line(int n, const int64_t *d, const int64_t *sx, const int64_t *sy,
                         int64_t line, const char **x, char **y)
{
    for (int i = n - 1; i >= 0; i--) {
        *x += line % d[i] * sx[i];
        *y += line % d[i] * sy[i];
        line /= d[i];
    }
}

/* Bands of TILE rows, begin .. end-1, counted over the outer dimensions too. */
static void copy_bands(void *arg, int64_t begin, int64_t end)
{
    const transposition *t = arg;
    int64_t bands = (t->rows + TILE - 1) / TILE;

    for (int64_t k = begin; k < end; k++) {
        const char *x = t->x;
        char *y = t->y;
        int64_t r = k % bands * TILE;
        move_to_line(t->n, t->d, t->sx, t->sy, k / bands, &x, &y);
        x += r * t->c->from_size;
        y += r * t->row_stride * t->c->to_size;
        int64_t rows = t->rows - r < TILE ? t->rows - r : TILE;
        for (int64_t c = 0; c < t->cols; c += TILE)
            copy_tile(t, rows, t->cols - c < TILE ? t->cols - c : TILE,
                      x + c * t->col_stride * t->c->from_size, y + c * t->c->to_size);
    }
}

/* If y is dense along its inner dimension and x along another one, copies by
 * tiles and returns true. */
static bool copy_transposed(const strided *w, const conversion *c)
{
    int in = w->n - 1, rows = -1;
    int64_t lines = 1;
    transposition t = {.c = c, .x = w->p[0], .y = w->p[1]};

    if (w->s[1][in] != c->to_size || w->s[0][in] == c->from_size || w->s[0][in] == 0) return false;
    for (int i = 0; i < in; i++)
        if (w->s[0][i] == c->from_size) rows = i;
    if (rows < 0) return false;

    t.rows = w->d[rows], t.row_stride = w->s[1][rows] / c->to_size;
    t.cols = w->d[in], t.col_stride = w->s[0][in] / c->from_size;
    for (int i = 0; i < in; i++) {
        if (i == rows) continue;
        t.d[t.n] = w->d[i], t.sx[t.n] = w->s[0][i], t.sy[t.n] = w->s[1][i];
        lines *= t.d[t.n++];
    }
    if (t.rows == 0 || t.cols == 0) return true;
    int64_t bands = (t.rows + TILE - 1) / TILE, band = t.rows / bands * t.cols;
    if (lines) dsi_parallel(lines * bands, PARALLEL_ELEMENTS / band + 1, copy_bands, &t);
    return true;
}

/* ---- repeated elements ---------------------------------------------------------------------------- */

#define REPEAT(bytes, type) \
    case bytes: { \
        const type *restrict from = x; \
        type *restrict to = y; \
        if (times == 2) \
            for (int64_t i = 0; i < n; i++) to[2 * i] = to[2 * i + 1] = from[i]; \
        else \
            for (int64_t i = 0; i < n; i++) \
                for (int64_t k = 0; k < times; k++) to[i * times + k] = from[i]; \
    } break
/* y = each of n elements of x `times` times. */
static void copy_repeat(int64_t size, int64_t n, int64_t times, const void *x, void *y)
{
    switch (size) {
        REPEAT(1, uint8_t);
        REPEAT(2, uint16_t);
        REPEAT(4, uint32_t);
        REPEAT(8, uint64_t);
    }
}

/* A plan whose inner dimension repeats dense elements, in pieces of `each` of
 * them; a line has `pieces`. */
typedef struct {
    const strided *plan;
    int64_t each, pieces;
} repeats;

static void copy_repeats(void *arg, int64_t begin, int64_t end)
{
    const repeats *r = arg;
    const strided *w = r->plan;
    int line = w->n - 2;
    int64_t times = w->d[line + 1], size = w->size[1];
    for (int64_t k = begin; k < end; k++) {
        int64_t first = k % r->pieces * r->each;
        const char *x = (const char *)w->p[0] + first * size;
        char *y = (char *)w->p[1] + first * times * size;
        move_to_line(line, w->d, w->s[0], w->s[1], k / r->pieces, &x, &y);
        copy_repeat(size, dsi_min(r->each, w->d[line] - first), times, x, y);
    }
}

/* If y's lines are short runs of one element of x each, side by side, copies
 * them and returns true: the strided iterator would call a function for
 * each. */
static bool copy_repeated(strided *w, const conversion *c)
{
    int in = w->n - 1;
    if (!c->same || in < 1 || !w->d[in] || !w->d[in - 1] || w->s[0][in] != 0 ||
        w->s[0][in - 1] != c->to_size || w->s[1][in] != c->to_size ||
        w->s[1][in - 1] != w->d[in] * c->to_size)
        return false;
    repeats r = {w, dsi_min(w->d[in - 1], PARALLEL_ELEMENTS / w->d[in] + 1), 0};
    r.pieces = dsi_div_up(w->d[in - 1], r.each);
    int64_t items = r.pieces;
    for (int i = 0; i < in - 1; i++) items *= w->d[i];
    dsi_parallel(items, PARALLEL_ELEMENTS / (r.each * w->d[in] + 1) + 1, copy_repeats, &r);
    return true;
}

/* ---- short lines ---------------------------------------------------------------------------------- */

#define SHORT 2048 /* bytes of a line up to which calls of copy_line and memcpy cost time */

typedef struct {
    char bytes[16];
} quarter;
typedef struct {
    quarter part[4];
} whole;

/* Lines begin .. end-1 of a plan, counted over its outer dimensions. */
static void copy_lines(void *arg, int64_t begin, int64_t end)
{
    const strided *w = arg;
    int in = w->n - 1;
    int64_t bytes = w->d[in] * w->size[1], run;
    for (int64_t line = begin; line < end; line += run) {
        const char *x = w->p[0];
        char *y = w->p[1];
        move_to_line(in, w->d, w->s[0], w->s[1], line, &x, &y);
        run = dsi_min(end - line, w->d[in - 1] - line % w->d[in - 1]);
        for (int64_t i = 0; i < run; i++, x += w->s[0][in - 1], y += w->s[1][in - 1]) {
            int64_t at = 0;
            for (; at + 64 <= bytes; at += 64) *(whole *)(y + at) = *(const whole *)(x + at);
            for (; at + 16 <= bytes; at += 16) *(quarter *)(y + at) = *(const quarter *)(x + at);
            for (; at < bytes; at++) y[at] = x[at];
        }
    }
}

/* If the plan has short dense lines to move, moves them and returns true. */
static bool copy_short(strided *w, const conversion *c)
{
    int in = w->n - 1;
    if (!c->same || in < 1 || w->d[in - 1] < 4 || w->d[in] * c->to_size > SHORT ||
        w->s[0][in] != c->to_size || w->s[1][in] != c->to_size)
        return false;
    int64_t lines = w->d[in] > 0;
    for (int i = 0; i < in; i++) lines *= w->d[i];
    if (lines) dsi_parallel(lines, PARALLEL_ELEMENTS / w->d[in] + 1, copy_lines, w);
    return true;
}

/* ---- reversed lines ------------------------------------------------------------------------------- */

#define REVERSE(bytes, type) \
    case bytes: \
        for (int64_t k = 0; k < lines; k++, x += sx, y += sy) \
            for (int64_t i = 0; i < n; i++) ((type *)y)[i] = ((const type *)x)[-i]; \
        break
/* y = x backwards, of lines sx and sy bytes apart; x is the last of its line. */
static void copy_reverse(int64_t size, int64_t lines, int64_t n, const char *x, int64_t sx,
                         char *restrict y, int64_t sy)
{
    switch (size) {
        REVERSE(1, uint8_t);
        REVERSE(2, uint16_t);
        REVERSE(4, uint32_t);
        REVERSE(8, uint64_t);
    }
}

/* Groups begin .. end-1 of lines: the lines along the dimension before the
 * last. */
static void copy_reverses(void *arg, int64_t begin, int64_t end)
{
    const strided *w = arg;
    int line = w->n - 2;
    for (int64_t k = begin; k < end; k++) {
        const char *x = w->p[0];
        char *y = w->p[1];
        move_to_line(line, w->d, w->s[0], w->s[1], k, &x, &y);
        copy_reverse(w->size[1], w->d[line], w->d[line + 1], x, w->s[0][line], y, w->s[1][line]);
    }
}

/* If x's lines run backwards where y's are dense, copies without the buffer of
 * the strided iterator and returns true. */
static bool copy_reversed(strided *w, const conversion *c)
{
    int in = w->n - 1;
    if (!c->same || in < 1 || w->s[0][in] != -c->to_size || w->s[1][in] != c->to_size) return false;
    int64_t items = 1;
    for (int i = 0; i < in - 1; i++) items *= w->d[i];
    dsi_parallel(items, PARALLEL_ELEMENTS / (w->d[in - 1] * w->d[in] + 1) + 1, copy_reverses, w);
    return true;
}

ds_status KERNEL(copy)(dsi_stream *s, dsi_view x, dsi_view y)
{
    const dsi_view *const views[] = {&x, &y};
    conversion c = conversion_of(x.dtype, y.dtype);
    strided w;

    (void)s;
    strided_plan(&w, 2, views);
    if (!copy_transposed(&w, &c) && !copy_repeated(&w, &c) && !copy_short(&w, &c) &&
        !copy_reversed(&w, &c))
        strided_run(&w, copy_line, &c);
    return DS_OK;
}

/* ---- fill ----------------------------------------------------------------------------------------- */

typedef struct {
    int64_t size;
    bool zero;      /* all bits */
    uint64_t value; /* in the first bytes, as in memory */
} pattern;

#define FILL(bytes, type) \
    case bytes: { \
        type v, *y = p[0]; \
        memcpy(&v, &f->value, sizeof v); \
        for (int64_t i = 0; i < n; i++) y[i] = v; \
    } break
static void fill_line(const void *arg, int64_t n, void *const *p)
{
    const pattern *f = arg;
    if (f->zero) {
        memset(p[0], 0, (size_t)(n * f->size));
        return;
    }
    switch (f->size) {
        FILL(1, uint8_t);
        FILL(2, uint16_t);
        FILL(4, uint32_t);
        FILL(8, uint64_t);
    }
}

ds_status KERNEL(fill)(dsi_stream *s, double value, dsi_view y)
{
    pattern f = {.size = (int64_t)ds_dtype_size(y.dtype)};

    (void)s;
    conversion c = conversion_of(DS_F64, y.dtype);
    copy_convert(&c, 1, (const char *)&value, (char *)&f.value);
    f.zero = f.value == 0;
    STRIDED_RUN(fill_line, &f, &y);
    return DS_OK;
}
