/* device/cpu/gemm.c: matrix products: y [B,M,N] = a [B,M,K] b [B,K,N] + bias [N], any strides.
 *
 * float32 goes tile by tile (tile.h). A tile reads a number by number and b along N, so a row-major b
 * and any a (products NN and TN) need no packing while b fits a cache. What does not lie so, or is
 * large, is packed first, a block of K_BLOCK x SIDE at a time (few rows of NT: dot products instead):
 *
 *     b -> panels of TILE_COLS columns [K_BLOCK][TILE_COLS]     one panel stays in the first cache
 *     a -> groups of TILE_ROWS rows    [K_BLOCK][TILE_ROWS]     ROW_BLOCK rows stay in the second
 *
 * (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.) Each element of y
 * is a sum in the order of k within one thread: results do not depend on the number of threads.
 *
 * Of 16-bit matrices, small ones are copied to float32 as they are; others become float32 on their way
 * into packed blocks, so that no copy of them is ever whole. A block of outputs is kept in float32 until
 * its sums are complete. float64 serves gradient checks and takes plain loops.
 * SPDX-License-Identifier: MIT */
#include "table.h"
#include "tile.h"
#include "wide.h"

#include <string.h>

#define K_BLOCK     (TILE_COLS > 24 ? 192 : 384)
#define ROW_BLOCK   (10 * TILE_ROWS)
#define SIDE        2048   /* rows, and columns, that are packed at a time */
#define LARGE_BYTES 524288 /* of b: beyond it, unpacked reads miss the second cache */
#define GRAIN_FLOPS 1e6    /* of a part of a parallel loop */

/* Element (i, j) is p[i row + j col]. */
typedef struct Matrix {
    float *p;
    int64_t batch, row, col;
} Matrix;

typedef struct Product {
    int64_t batch, m, n, k;
    Matrix a, b, y;
    const float *bias; /* unit stride; or NULL */
    bool add;          /* to what y holds */
} Product;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- packing -------------------------------------------------------------------------------------- */

/* n vectors of k elements, `across` apart, their elements `along` apart -> panels of `width` vectors. */
typedef struct Packing {
    const float *from;
    int64_t across, along, n, k;
    int width;
    float *to;            /* [panels][k][width] */
    const uint16_t *half; /* in from's place, of 16 bits; or NULL */
    ds_dtype dtype;       /* of these */
} Packing;

typedef float Quad __attribute__((__vector_size__(16)));

/* Elements of a (0 to 3) and b (4 to 7): clang's word for it, which gcc has from version 12 on. */
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef SHUFFLE
typedef int Lanes __attribute__((__vector_size__(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Lanes){__VA_ARGS__})
#endif

/* 4 vectors of 4 elements -> 4 rows of the panel. */
ALWAYS_INLINE void pack_4x4(const float *from, int64_t across, float *to, int width)
{
    Quad r[4];
    for (int i = 0; i < 4; i++) memcpy(&r[i], from + i * across, sizeof r[i]);
    Quad lo01 = SHUFFLE(r[0], r[1], 0, 4, 1, 5);
    Quad hi01 = SHUFFLE(r[0], r[1], 2, 6, 3, 7);
    Quad lo23 = SHUFFLE(r[2], r[3], 0, 4, 1, 5);
    Quad hi23 = SHUFFLE(r[2], r[3], 2, 6, 3, 7);
    r[0] = SHUFFLE(lo01, lo23, 0, 1, 4, 5);
    r[1] = SHUFFLE(lo01, lo23, 2, 3, 6, 7);
    r[2] = SHUFFLE(hi01, hi23, 0, 1, 4, 5);
    r[3] = SHUFFLE(hi01, hi23, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++) memcpy(to + i * width, &r[i], sizeof r[i]);
}

static void pack_panel(const Packing *x, const float *from, float *to, int n)
{
    int64_t k = 0;
    if (x->across == 1) {
        for (; k < x->k; k++)
            memcpy(to + k * x->width, from + k * x->along, (size_t)n * sizeof *to);
        return;
    }
    if (x->along == 1)
        for (; k + 4 <= x->k; k += 4) {
            int i = 0;
            for (; i + 4 <= n; i += 4)
                pack_4x4(from + i * x->across + k, x->across, to + k * x->width + i, x->width);
            for (; i < n; i++)
                for (int j = 0; j < 4; j++)
                    to[(k + j) * x->width + i] = from[i * x->across + k + j];
        }
    for (; k < x->k; k++)
        for (int i = 0; i < n; i++) to[k * x->width + i] = from[i * x->across + k * x->along];
}

#define HALF_K 64 /* elements of a vector that are made float at a time */

static void pack_half_panel(const Packing *x, const uint16_t *from, float *to, int n)
{
    float wide[TILE_COLS * HALF_K]; /* [n][HALF_K] */
    if (x->across == 1) {
        for (int64_t k = 0; k < x->k; k++)
            half_to_floats(x->dtype, from + k * x->along, to + k * x->width, n);
        return;
    }
    for (int64_t k = 0; k < x->k; k += HALF_K) {
        Packing part = {wide, HALF_K, 1, n, min(HALF_K, x->k - k), x->width, NULL, NULL, DS_F32};
        for (int i = 0; i < n; i++) {
            const uint16_t *vector = from + i * x->across + k * x->along;
            uint16_t dense[HALF_K];
            for (int64_t j = 0; j < part.k && x->along != 1; j++) dense[j] = vector[j * x->along];
            half_to_floats(x->dtype, x->along == 1 ? vector : dense, wide + i * HALF_K, part.k);
        }
        pack_panel(&part, wide, to + k * x->width, n);
    }
}

static void pack_panels(void *arg, int64_t begin, int64_t end)
{
    const Packing *x = arg;
    for (int64_t p = begin; p < end; p++) {
        int n = (int)min(x->width, x->n - p * x->width);
        int64_t at = p * x->width * x->across;
        float *to = x->to + p * x->width * x->k;
        if (x->half)
            pack_half_panel(x, x->half + at, to, n);
        else
            pack_panel(x, x->from + at, to, n);
    }
}

static void pack(Packing x)
{
    int64_t panels = ceil_div(x.n, x.width);
    dsi_parallel(panels, 1 + 16384 / (x.width * x.k + 1), pack_panels, &x);
}

/* ---- a block of the product: k elements of SIDE x SIDE outputs ------------------------------------- */

typedef struct Block {
    Product of;                 /* m, n, k and pointers are those of the block */
    float *packed_a, *packed_b; /* NULL: read in place */
    bool dots;
} Block;

/* `rows` rows from `row` on, of the panel of columns from j on. */
static void run_panel(const Block *x, const Product *p, int64_t row, int64_t rows, int64_t j)
{
    int cols = (int)min(TILE_COLS, p->n - j);
    const float *a = p->a.p + row * p->a.row, *bias = p->bias ? p->bias + j : NULL;
    float *y = p->y.p + row * p->y.row + j;
    if (x->dots) {
        const float *b = p->b.p + j * p->b.col;
        dots((dot_operands){a, b, p->a.row, p->b.col, p->k, bias, y, p->y.row}, rows, cols);
        return;
    }
    tile_operands t = {a, p->a.row, p->a.col, p->b.p + j,          p->b.row, p->k, bias,
                       y, p->y.row, p->add,   TILE_ROWS * p->a.row};
    if (x->packed_b) t.b = x->packed_b + j * p->k, t.bk = TILE_COLS;
    if (x->packed_a) {
        t.a = x->packed_a + row * p->k; /* row is a multiple of TILE_ROWS */
        t.am = 1, t.ak = TILE_ROWS;
        t.a_tile = TILE_ROWS * p->k;
    }
    tile(t, rows, cols);
}

/* Item: a panel of one block of rows of one batch, panels fastest, so that the rows stay in cache. */
static void run_items(void *arg, int64_t begin, int64_t end)
{
    const Block *x = arg;
    const Product *p = &x->of;
    int64_t panels = ceil_div(p->n, TILE_COLS), blocks = ceil_div(p->m, ROW_BLOCK);
    for (int64_t item = begin; item < end; item++) {
        int64_t batch = item / (panels * blocks);
        int64_t row = item / panels % blocks * ROW_BLOCK, j = item % panels * TILE_COLS;
        Product one = *p;
        one.a.p += batch * p->a.batch;
        one.b.p += batch * p->b.batch;
        one.y.p += batch * p->y.batch;
        run_panel(x, &one, row, min(ROW_BLOCK, p->m - row), j);
    }
}

static void multiply(Block *x)
{
    const Product *p = &x->of;
    int64_t items = p->batch * ceil_div(p->n, TILE_COLS) * ceil_div(p->m, ROW_BLOCK);
    double flops = 2.0 * (double)min(p->m, ROW_BLOCK) * TILE_COLS * (double)p->k;
    dsi_parallel(items, 1 + (int64_t)(GRAIN_FLOPS / flops), run_items, x);
}

static void run_block(Block *x)
{
    const Product *p = &x->of;
    if (x->packed_b)
        pack((Packing){.from = p->b.p,
                       .across = p->b.col,
                       .along = p->b.row,
                       .n = p->n,
                       .k = p->k,
                       .width = TILE_COLS,
                       .to = x->packed_b});
    if (x->packed_a)
        pack((Packing){.from = p->a.p,
                       .across = p->a.row,
                       .along = p->a.col,
                       .n = p->m,
                       .k = p->k,
                       .width = TILE_ROWS,
                       .to = x->packed_a});
    multiply(x);
}

/* ---- the product: blocks over k, and over m and n where they are packed ------------------------------ */

static void run_k(const Product *p, float *packed_a, float *packed_b)
{
    int64_t blocks = p->k > 0 ? ceil_div(p->k, K_BLOCK) : 1, each = ceil_div(p->k, blocks);
    for (int64_t k = 0, first = 1; k < p->k || first; k += each, first = 0) {
        Block x = {*p, packed_a, packed_b, false};
        x.of.k = min(each, p->k - k);
        x.of.a.p += k * p->a.col;
        x.of.b.p += k * p->b.row;
        x.of.add = p->add || !first;
        run_block(&x);
    }
}

static ds_status run_packed(dsi_stream *s, const Product *p, bool pack_a)
{
    int64_t k = min(p->k, K_BLOCK), m = min(p->m, SIDE), n = min(p->n, SIDE);
    int64_t b_size = ceil_div(n, TILE_COLS) * TILE_COLS * k;
    int64_t a_size = pack_a ? ceil_div(m, TILE_ROWS) * TILE_ROWS * k : 0;
    float *packed = dsi_scratch(s, (size_t)(a_size + b_size) * sizeof *packed);
    if (!packed) return DS_ENOMEM;
    for (int64_t batch = 0; batch < p->batch; batch++)
        for (int64_t j = 0; j < p->n; j += SIDE)
            for (int64_t i = 0; i < p->m; i += SIDE) {
                Product x = *p;
                x.batch = 1;
                x.m = min(SIDE, p->m - i);
                x.n = min(SIDE, p->n - j);
                x.a.p += batch * p->a.batch + i * p->a.row;
                x.b.p += batch * p->b.batch + j * p->b.col;
                x.y.p += batch * p->y.batch + i * p->y.row + j;
                if (p->bias) x.bias += j;
                run_k(&x, pack_a ? packed + b_size : NULL, packed);
            }
    dsi_scratch_release(s, packed);
    return DS_OK;
}

/* y has unit stride along n here. */
static ds_status run(dsi_stream *s, const Product *p)
{
    bool large = p->k * p->n * (int64_t)sizeof(float) > LARGE_BYTES && p->m > TILE_ROWS;
    if (p->b.col == 1 && !large) {
        run_k(p, NULL, NULL);
    } else if (p->b.row == 1 && p->a.col == 1 && !p->add && p->m <= 8 + p->k / 8) {
        Block x = {*p, NULL, NULL, true};
        run_block(&x);
    } else {
        return run_packed(s, p, large);
    }
    return DS_OK;
}

/* ---- y that has no unit stride along n ---------------------------------------------------------------- */

static void copy_rows(const Product *p, const float *from, int64_t from_batch, int64_t from_row)
{
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                p->y.p[b * p->y.batch + i * p->y.row + j * p->y.col] =
                    from[b * from_batch + i * from_row + j];
}

/* y^T = b^T a^T, which adds a bias of rows: it is written first. */
static ds_status run_transposed(dsi_stream *s, const Product *p)
{
    Product t = {p->batch, p->n, p->m, p->k, p->b, p->a, p->y, NULL, p->bias != NULL};
    t.a.row = p->b.col, t.a.col = p->b.row;
    t.b.row = p->a.col, t.b.col = p->a.row;
    t.y.row = p->y.col, t.y.col = 1;
    if (p->bias) copy_rows(p, p->bias, 0, 0);
    return run(s, &t);
}

static ds_status run_copied(dsi_stream *s, const Product *p)
{
    float *dense = dsi_scratch(s, (size_t)(p->batch * p->m * p->n) * sizeof *dense);
    if (!dense) return DS_ENOMEM;
    Product d = *p;
    d.y = (Matrix){dense, p->m * p->n, p->n, 1};
    ds_status status = run(s, &d);
    if (status == DS_OK) copy_rows(p, dense, p->m * p->n, p->n);
    dsi_scratch_release(s, dense);
    return status;
}

static ds_status matmul_f32(dsi_stream *s, Product p)
{
    /* one matrix of B M rows, where that is the same */
    if (p.b.batch == 0 && p.a.batch == p.m * p.a.row && p.y.batch == p.m * p.y.row) {
        p.m *= p.batch;
        p.batch = 1;
    }
    if (p.y.col == 1 || p.n == 1) {
        p.y.col = 1;
        return run(s, &p);
    }
    return p.y.row == 1 ? run_transposed(s, &p) : run_copied(s, &p);
}

/* ---- 16 bits ------------------------------------------------------------------------------------------- */

#define SMALL_HALF \
    131072 /* elements of the matrices of one product, that are copied to float32 whole */

/* Rows row .. row + n - 1 (columns, if they are b's) of k elements from k0 on, packed. */
static void pack_half(const dsi_view *v, int vectors, int64_t batch, int64_t first, int64_t n,
                      int64_t k0, int64_t k, int width, float *to)
{
    int along = 3 - vectors;
    pack((Packing){.half = (const uint16_t *)v->p + batch * v->s[0] + first * v->s[vectors] +
                           k0 * v->s[along],
                   .dtype = v->dtype,
                   .across = v->s[vectors],
                   .along = v->s[along],
                   .n = n,
                   .k = k,
                   .width = width,
                   .to = to});
}

/* y [m, n] from (batch, i, j) on: all of its sums in float32 in `sums`, then rounded to its place. */
static void half_block(dsi_stream *s, const dsi_view *a, const dsi_view *b, const float *bias,
                       dsi_view y, const int64_t at[3], float *packed_a, float *packed_b,
                       float *sums)
{
    int64_t m = y.d[1], n = y.d[2], k = a->d[2];
    int64_t blocks = k > 0 ? ceil_div(k, K_BLOCK) : 1, each = ceil_div(k, blocks);
    for (int64_t k0 = 0, first = 1; k0 < k || first; k0 += each, first = 0) {
        int64_t part = min(each, k - k0);
        Block x = {{.batch = 1,
                    .m = m,
                    .n = n,
                    .k = part,
                    .y = {sums, 0, n, 1},
                    .bias = bias,
                    .add = !first},
                   packed_a,
                   packed_b,
                   false};
        pack_half(b, 2, at[0], at[2], n, k0, part, TILE_COLS, packed_b);
        pack_half(a, 1, at[0], at[1], m, k0, part, TILE_ROWS, packed_a);
        multiply(&x);
    }
    dsi_view done = {sums, DS_F32, 3, {1, m, n}, {0, n, 1}};
    KERNEL(copy)(s, done, y);
}

static ds_status matmul_half(dsi_stream *s, const dsi_view *a, const dsi_view *b,
                             const dsi_view *bias, const dsi_view *y)
{
    int64_t m = min(y->d[1], SIDE), n = min(y->d[2], SIDE), k = min(a->d[2], K_BLOCK);
    int64_t a_size = ceil_div(m, TILE_ROWS) * TILE_ROWS * k;
    int64_t b_size = ceil_div(n, TILE_COLS) * TILE_COLS * k;
    size_t room = (size_t)(a_size + b_size + m * n + y->d[2]);
    float *packed = dsi_scratch(s, room * sizeof *packed);
    if (!packed) return DS_ENOMEM;
    float *sums = packed + a_size + b_size, *terms = bias->p ? sums + m * n : NULL;
    if (terms) KERNEL(copy)(s, *bias, (dsi_view){terms, DS_F32, 1, {y->d[2]}, {1}});
    for (int64_t batch = 0; batch < y->d[0]; batch++)
        for (int64_t j = 0; j < y->d[2]; j += SIDE)
            for (int64_t i = 0; i < y->d[1]; i += SIDE) {
                dsi_view part = *y;
                part.p = (char *)y->p + (batch * y->s[0] + i * y->s[1] + j * y->s[2]) *
                                            (int64_t)ds_dtype_size(y->dtype);
                part.d[0] = 1;
                part.d[1] = min(SIDE, y->d[1] - i);
                part.d[2] = min(SIDE, y->d[2] - j);
                half_block(s, a, b, terms ? terms + j : NULL, part, (int64_t[]){batch, i, j},
                           packed, packed + a_size, sums);
            }
    dsi_scratch_release(s, packed);
    return DS_OK;
}

/* ---- float64 ------------------------------------------------------------------------------------------- */

typedef struct Plain {
    dsi_view a, b, bias, y;
} Plain;

static void plain_rows(void *arg, int64_t begin, int64_t end)
{
    const Plain *x = arg;
    const int64_t *as = x->a.s, *bs = x->b.s, *ys = x->y.s;
    int64_t m = x->y.d[1], n = x->y.d[2], depth = x->a.d[2];
    for (int64_t r = begin; r < end; r++) {
        const double *a = (const double *)x->a.p + r / m * as[0] + r % m * as[1];
        const double *b = (const double *)x->b.p + r / m * bs[0], *bias = x->bias.p;
        double *y = (double *)x->y.p + r / m * ys[0] + r % m * ys[1];
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++) sum += a[k * as[2]] * b[k * bs[1] + j * bs[2]];
            y[j * ys[2]] = bias ? sum + bias[j * x->bias.s[0]] : sum;
        }
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------ */

static Matrix matrix(const dsi_view *v) { return (Matrix){v->p, v->s[0], v->s[1], v->s[2]}; }

ds_status KERNEL(matmul)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y)
{
    int64_t m = y.d[1], n = y.d[2], k = a.d[2];
    if (is_half(a.dtype)) {
        if (m * n + m * k + k * n <= SMALL_HALF)
            IN_F32(s, 1, KERNEL(matmul)(s, a, b, bias, y), &y, &a, &b, &bias);
        return matmul_half(s, &a, &b, &bias, &y);
    }
    if (y.dtype != DS_F32 && y.dtype != DS_F64) return no_dtype("matmul", y.dtype);
    if (!y.d[0] || !m || !n) return DS_OK;
    if (y.dtype == DS_F64) {
        Plain x = {a, b, bias, y};
        dsi_parallel(y.d[0] * m, 1 + (int64_t)(GRAIN_FLOPS / 8 / (double)(n * k + 1)), plain_rows,
                     &x);
        return DS_OK;
    }
    Product p = {y.d[0], m, n, k, matrix(&a), matrix(&b), matrix(&y), bias.p, false};
    if (!bias.p || bias.s[0] == 1 || n == 1) return matmul_f32(s, p);

    float *dense = dsi_scratch(s, (size_t)n * sizeof *dense);
    if (!dense) return DS_ENOMEM;
    for (int64_t j = 0; j < n; j++) dense[j] = ((const float *)bias.p)[j * bias.s[0]];
    p.bias = dense;
    ds_status status = matmul_f32(s, p);
    dsi_scratch_release(s, dense);
    return status;
}
