/* device/cpu/gemm/gemm.c: matrix products: y [B,M,N] = a [B,M,K] b [B,K,N] +
 * bias [N], any strides.
 *
 * float32 is computed in register tiles (tile.h). A tile reads a one number at
 * a time and b by vectors along N. So a row-major b and any a (products NN and
 * TN) need no packing while both fit into the caches. Other operands are packed
 * first (gemm_pack.c), K_BLOCK elements of k at a time. A product NT of few
 * rows is computed by dot products instead (dots.h), one NN of very few along
 * the rows of b (few_rows.h).
 *
 *     b -> panels of TILE_COLS columns [K_BLOCK][TILE_COLS]     they fill a quarter of the second cache
 *     a -> groups of TILE_ROWS rows    [K_BLOCK][TILE_ROWS]     only if its rows do not lie along k
 *
 *     for K_BLOCK of k:                    pack a, SIDE rows at a time
 *         for the columns of those panels: pack b
 *             for ROW_BLOCK rows, for each panel: tiles, one below the other
 *
 * Source: Goto and van de Geijn, Anatomy of High-Performance Matrix
 * Multiplication, 2008. A panel of b is read again for each group of rows of an
 * item, so it is what stays in the first cache; a group of a is a tenth of it.
 * The lines of y, and of an a whose rows lie along k, are prefetched while the
 * tile above is computed.
 *
 * Up to 8 rows of bfloat16 times a large matrix, which memory limits, are
 * multiplied without packing (few_half.c). Else the processor's instructions
 * for bfloat16, if it has them, multiply bfloat16; its matrix unit float32 and
 * float16 too, where m, n and k are at least 64 (gemm_bf16.c). Of other 16-bit
 * matrices, small ones are copied to float32. Large ones become float32 while
 * they are packed, so there is never a float32 copy of a large matrix. Their
 * block of y is kept in float32 until its sums are complete; then each item is
 * rounded while it is in the first cache. float64 serves gradient checks and
 * takes plain loops.
 *
 * Invariants: each element of y is summed in the order of k, by one thread, in
 * blocks of k that depend on K alone. So results depend neither on the number
 * of threads nor on the sizes of caches. Indices: i counts rows of a and y (m
 * of them), j columns of b and y (n), k what is summed. An *item* is what one
 * iteration of the parallel loop computes.
 * SPDX-License-Identifier: MIT */
#include "base/int.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"
#include "dots.h"
#include "few_half.h"
#include "few_rows.h"
#include "gemm_bf16.h"
#include "gemm_pack.h"
#include "tile.h"

/* Elements of k in a block. A panel of b [K_BLOCK][TILE_COLS] has 64 KB for
 * avx512, of which 48 fit into the first cache, and 24 KB for avx2. */
#define K_BLOCK 256
/* Rows of an item. With K_BLOCK of k they have 120 KB for avx512: they stay in
 * the second cache while all panels are multiplied with them. */
#define ROW_BLOCK (20 * TILE_ROWS)
/* Rows of a that are packed at a time; at K_BLOCK of k they have 1 MB for
 * avx512, half of the second cache. */
#define SIDE         (8 * ROW_BLOCK)
#define HALF_COLUMNS 1024 /* columns of a block of 16-bit y */
/* A column-major a is packed if K of its columns span more floats than this:
 * they would not stay in the caches. */
#define SPARSE 65536
/* Bytes of y beyond which its lines are prefetched. */
#define FAR_BYTES 262144
/* Multiplications and additions of an iteration of a parallel loop, at least. */
#define GRAIN_FLOPS 1e6

/* Element (i, j) is p[i row + j col], of float32 unless dtype says that it has
 * 16 bits. */
typedef struct Matrix {
    void *p;
    ds_dtype dtype;
    int64_t batch, row, col;
} Matrix;

typedef struct Product {
    int64_t batch, m, n, k;
    Matrix a, b, y;
    const float *bias; /* [n], unit stride; or NULL */
    bool add;          /* y += the product, else y = */
    /* Unless p is NULL: 16 bits, unit stride along n, into which complete sums
     * are rounded. */
    Matrix rounded;
    bool one_block; /* of k, and rounded: sums are only in the first cache, y is not used */
} Product;

/* x from matrix `batch`, row i, column j on. */
static Matrix gemm_moved(Matrix x, int64_t batch, int64_t i, int64_t j)
{
    int64_t by = batch * x.batch + i * x.row + j * x.col;
    x.p = (char *)x.p + by * (is_half(x.dtype) ? 2 : 4);
    return x;
}

static Matrix rounded_moved(Matrix x, int64_t batch, int64_t i, int64_t j)
{
    return x.p ? gemm_moved(x, batch, i, j) : x;
}

/* ---- a block of the product -------------------------------------------------------------------------- */

typedef struct Block {
    Product of;                 /* m, n, k and pointers are those of the block */
    float *packed_a, *packed_b; /* NULL: read in place */
    int64_t rows, panels;       /* rows, and panels of columns, of an item: one, or more if `few` */
    int64_t down, across;       /* number of items along m, along n */
    bool dots;                  /* by dot products, not by tiles */
    bool few;                   /* by few_rows */
    bool far;                   /* y is too large for the caches: prefetch it, and a */
} Block;

/* A 16-bit a whose rows lie along k is only upcast where it is packed. */
static bool a_stays_rows(const Product *p) { return is_half(p->a.dtype) && p->a.col == 1; }

/* y[row .. row + rows - 1] of the columns from j on: the operands of its tiles,
 * or of few_rows. */
static tile_operands panel_operands(const Block *x, int64_t batch, int64_t row, int64_t j)
{
    const Product *p = &x->of;
    tile_operands t = {.a = (const float *)p->a.p + batch * p->a.batch + row * p->a.row,
                       .am = p->a.row,
                       .ak = p->a.col,
                       .b = (const float *)p->b.p + batch * p->b.batch + j * p->b.col,
                       .bk = p->b.row,
                       .k = p->k,
                       .bias = p->bias ? p->bias + j : NULL,
                       .y = (float *)p->y.p + batch * p->y.batch + row * p->y.row + j * p->y.col,
                       .ym = p->y.row,
                       .add = p->add};
    if (x->packed_b) t.b = x->packed_b + j * p->k, t.bk = TILE_COLS;
    if (x->packed_a) { /* row is a multiple of TILE_ROWS */
        bool rows = a_stays_rows(p);
        t.a = x->packed_a + row * p->k, t.am = rows ? p->k : 1, t.ak = rows ? 1 : TILE_ROWS;
    }
    t.a_tile = TILE_ROWS * (x->packed_a ? p->k : p->a.row);
    t.far_y = x->far;
    if (x->far && j == 0 && t.ak == 1) t.a_lines = p->k / 16;
    return t;
}

/* An item of one panel, whose sums are rounded while they are in the first
 * cache. */
static void run_rounded_item(const Block *x, tile_operands t, Matrix to, int64_t rows, int64_t cols)
{
    float sums[ROW_BLOCK * TILE_COLS];
    if (x->of.one_block) t.y = sums, t.ym = TILE_COLS, t.far_y = false;
    tile(t, rows, (int)cols);
    for (int64_t i = 0; i < rows; i++)
        floats_to_half(to.dtype, t.y + i * t.ym, (uint16_t *)to.p + i * to.row, cols);
}

/* Computes one item: all its rows with one panel, which stays in the first
 * cache. */
static void run_item(const Block *x, int64_t batch, int64_t row, int64_t col)
{
    int64_t rows = dsi_min(x->rows, x->of.m - row);
    int64_t cols = dsi_min(x->panels * TILE_COLS, x->of.n - col);
    tile_operands t = panel_operands(x, batch, row, col);
    if (x->dots)
        dots((dot_operands){t.a, t.b, t.am, x->of.b.col, t.k, t.bias, t.y, t.ym}, rows, cols);
    else if (x->few)
        few_rows(t, rows, cols);
    else if (x->of.rounded.p)
        run_rounded_item(x, t, gemm_moved(x->of.rounded, batch, row, col), rows, cols);
    else
        tile(t, rows, (int)cols);
}

/* Items begin .. end-1, in the order [batch][down][across]: `across` counts
 * fastest, so neighbours share rows of a. */
static void run_items(void *arg, int64_t begin, int64_t end)
{
    const Block *x = arg;
    int64_t down = begin / x->across, across = begin % x->across;
    int64_t batch = down / x->down;
    down %= x->down;
    for (int64_t item = begin; item < end; item++) {
        run_item(x, batch, down * x->rows, across * x->panels * TILE_COLS);
        if (++across == x->across) across = 0, down++;
        if (down == x->down) down = 0, batch++;
    }
}

static void gemm_multiply(Block *x)
{
    const Product *p = &x->of;
    x->down = dsi_div_up(p->m, x->rows);
    x->across = dsi_div_up(p->n, x->panels * TILE_COLS);
    double flops = 2.0 * (double)(dsi_min(p->m, x->rows) * x->panels * TILE_COLS) * (double)p->k;
    dsi_parallel(p->batch * x->down * x->across, 1 + (int64_t)(GRAIN_FLOPS / flops), run_items, x);
}

/* ---- the product: blocks over k, and over m and n where they are packed ------------------------------ */

/* Sets `part` to the terms of `whole` from index `from` of k on, at most k of
 * them. All but the first part add to y. */
static void set_k(Product *part, const Product *whole, int64_t from, int64_t k)
{
    part->k = dsi_min(k, whole->k - from);
    part->a = gemm_moved(whole->a, 0, 0, from);
    part->b = gemm_moved(whole->b, 0, from, 0);
    part->add = whole->add || from > 0;
    part->rounded.p = from + part->k == whole->k ? whole->rounded.p : NULL;
}

static bool is_far(const Product *p) { return p->m * p->n * (int64_t)sizeof(float) > FAR_BYTES; }

/* Elements of each block of k: equal blocks of at most K_BLOCK, so that the
 * last one is not short. Depends on k alone, because it decides the order of
 * sums. */
static int64_t gemm_depth(int64_t k)
{
    return k > K_BLOCK ? dsi_div_up(k, dsi_div_up(k, K_BLOCK)) : k;
}

/* A product whose operands are read as they are. */
static void run_in_place(const Product *p, bool dots)
{
    int64_t each = dots ? p->k : gemm_depth(p->k), k = 0;
    Block x = {.of = *p, .rows = ROW_BLOCK, .panels = 1, .dots = dots, .far = !dots && is_far(p)};
    x.few = !dots && p->m <= FEW_ROWS && p->n >= 2 * TILE_COLS;
    if (x.few) x.far = false, x.panels = dsi_div_up(dsi_div_up(p->n, TILE_COLS), ds_threads());
    do {
        set_k(&x.of, p, k, each);
        gemm_multiply(&x);
        k += each;
    } while (k < p->k);
}

/* One block of k: packs all rows of a (at most SIDE), then `width` columns of b
 * at a time, the columns that packed_b has memory for, and multiplies them. */
static void run_k(const Product *p, int64_t width, float *packed_a, float *packed_b)
{
    int width_a = a_stays_rows(p) ? 1 : TILE_ROWS;
    Packing a = {p->a.p, p->a.dtype, p->a.row, p->a.col, p->m, p->k, width_a, packed_a};
    if (packed_a) pack_vectors(&a);
    for (int64_t j = 0; j < p->n; j += width) {
        Block x = {
            .of = *p, .packed_a = packed_a, .packed_b = packed_b, .rows = ROW_BLOCK, .panels = 1};
        x.of.n = dsi_min(width, p->n - j);
        x.far = is_far(p);
        x.of.b = gemm_moved(p->b, 0, 0, j);
        x.of.y = gemm_moved(p->y, 0, 0, j);
        x.of.rounded = rounded_moved(p->rounded, 0, 0, j);
        if (p->bias) x.of.bias += j;
        Packing b = {x.of.b.p, p->b.dtype, p->b.col, p->b.row, x.of.n, p->k, TILE_COLS, packed_b};
        pack_vectors(&b);
        gemm_multiply(&x);
    }
}

/* Bytes of the second cache that packed panels may fill. The other three
 * quarters remain for a and y, which stream through it. */
static int64_t quarter_of_l2(void) { return dsi_cpu_l2_bytes() / 4; }

/* Columns whose panels fill quarter_of_l2(); at least two panels. */
static int64_t gemm_panel_columns(void)
{
    int64_t panels = quarter_of_l2() / (K_BLOCK * TILE_COLS * (int64_t)sizeof(float));
    return (panels < 2 ? 2 : panels) * TILE_COLS;
}

/* A product whose b is packed, and whose a is too if pack_a. */
static ds_status run_packed(dsi_stream *s, const Product *p, bool pack_a)
{
    int64_t each = gemm_depth(p->k), m = pack_a ? dsi_min(p->m, SIDE) : p->m,
            width = dsi_min(p->n, gemm_panel_columns());
    int64_t b_size = dsi_div_up(width, TILE_COLS) * TILE_COLS * each;
    int64_t a_size = pack_a ? dsi_div_up(m, TILE_ROWS) * TILE_ROWS * each : 0;
    float *packed = dsi_scratch(s, (size_t)(a_size + b_size) * sizeof *packed);
    if (!packed) return DS_ENOMEM;
    for (int64_t batch = 0; batch < p->batch; batch++)
        for (int64_t i = 0; i < p->m; i += m) {
            Product x = *p;
            x.m = dsi_min(m, p->m - i);
            x.batch = 1;
            x.a = gemm_moved(p->a, batch, i, 0);
            x.b = gemm_moved(p->b, batch, 0, 0);
            x.y = gemm_moved(p->y, batch, i, 0);
            x.rounded = rounded_moved(p->rounded, batch, i, 0);
            Product part = x;
            int64_t k = 0;
            do {
                set_k(&part, &x, k, each);
                run_k(&part, width, pack_a ? packed + b_size : NULL, packed);
                k += each;
            } while (k < p->k);
        }
    dsi_scratch_release(s, packed);
    return DS_OK;
}

/* Chooses between dot products, tiles in place and packed tiles. y has unit
 * stride along n. */
static ds_status gemm_run(dsi_stream *s, const Product *p)
{
    bool one = p->n == 1, few = p->m <= dsi_min(8 + p->k / 8, 64);
    if (p->b.row == 1 && p->a.col == 1 && !p->add && (one || (few && p->b.col != 1))) {
        run_in_place(p, true);
        return DS_OK;
    }
    /* Packing pays for a b that is read more than once (m > TILE_ROWS) and does
     * not stay in the second cache, and for an a that is read more than once (n
     * > TILE_COLS) in steps of whole rows. */
    bool far_b = p->m > TILE_ROWS && p->k * p->n * (int64_t)sizeof(float) > quarter_of_l2();
    bool far_a = p->a.col != 1 && p->n > TILE_COLS && p->k * p->a.col > SPARSE;
    bool very_few = p->m <= FEW_ROWS && p->n >= 2 * TILE_COLS;
    if (p->b.col == 1 && (!far_b || very_few) && !far_a) {
        run_in_place(p, false);
        return DS_OK;
    }
    return run_packed(s, p, p->a.col != 1);
}

/* ---- y that has no unit stride along n ---------------------------------------------------------------- */

/* y = rows of `from`: element (b, i, j) is from[b from_batch + i from_row + j]. */
static void gemm_copy_rows(const Product *p, const float *from, int64_t from_batch,
                           int64_t from_row)
{
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                ((float *)p->y.p)[b * p->y.batch + i * p->y.row + j * p->y.col] =
                    from[b * from_batch + i * from_row + j];
}

/* For a column-major y: y^T = b^T a^T is row-major. A bias belongs to its rows
 * then, which tiles cannot add; so y is set to the bias, and the product
 * added. */
static ds_status run_transposed(dsi_stream *s, const Product *p)
{
    Product t = {p->batch, p->n, p->m, p->k, p->b, p->a, p->y, NULL, .add = p->bias != NULL};
    t.a.row = p->b.col, t.a.col = p->b.row;
    t.b.row = p->a.col, t.b.col = p->a.row;
    t.y.row = p->y.col, t.y.col = 1;
    if (p->bias) gemm_copy_rows(p, p->bias, 0, 0);
    return gemm_run(s, &t);
}

/* For a y without a unit stride: into a dense copy, then to its strides. */
static ds_status run_copied(dsi_stream *s, const Product *p)
{
    float *dense = dsi_scratch(s, (size_t)(p->batch * p->m * p->n) * sizeof *dense);
    if (!dense) return DS_ENOMEM;
    Product d = *p;
    d.y = (Matrix){dense, DS_F32, p->m * p->n, p->n, 1};
    ds_status status = gemm_run(s, &d);
    if (status == DS_OK) gemm_copy_rows(p, dense, p->m * p->n, p->n);
    dsi_scratch_release(s, dense);
    return status;
}

static ds_status matmul_f32(dsi_stream *s, Product *p)
{
    /* a batch with one b, whose rows follow each other, is one matrix of B M
     * rows */
    if (p->b.batch == 0 && p->a.batch == p->m * p->a.row && p->y.batch == p->m * p->y.row) {
        p->m *= p->batch;
        p->batch = 1;
    }
    if (p->y.col == 1 || p->n == 1) {
        p->y.col = 1;
        return gemm_run(s, p);
    }
    return p->y.row == 1 ? run_transposed(s, p) : run_copied(s, p);
}

/* ---- 16 bits ------------------------------------------------------------------------------------------- */

/* Elements of a, b and y together, up to which they are copied to float32. */
#define SMALL_HALF 131072

/* A product of large 16-bit matrices, in blocks of SIDE x HALF_COLUMNS outputs:
 * sums all of k in float32, then rounds once into y. */
static ds_status matmul_half(dsi_stream *s, const Product *p)
{
    int64_t m = dsi_min(p->m, SIDE), n = dsi_min(p->n, HALF_COLUMNS);
    bool rows = is_half(p->y.dtype) && p->y.col == 1, one_block = rows && p->k <= K_BLOCK;
    float *sums = one_block ? NULL : dsi_scratch(s, (size_t)(m * n) * sizeof *sums);
    if (!sums && !one_block) return DS_ENOMEM;
    ds_status status = DS_OK;
    for (int64_t batch = 0; batch < p->batch; batch++)
        for (int64_t j = 0; j < p->n; j += HALF_COLUMNS)
            for (int64_t i = 0; i < p->m && status == DS_OK; i += SIDE) {
                Product x = *p;
                x.batch = 1;
                x.m = dsi_min(SIDE, p->m - i);
                x.n = dsi_min(HALF_COLUMNS, p->n - j);
                x.a = gemm_moved(p->a, batch, i, 0);
                x.b = gemm_moved(p->b, batch, 0, j);
                Matrix y = gemm_moved(p->y, batch, i, j);
                if (rows) x.rounded = y;
                x.y = (Matrix){sums, DS_F32, 0, x.n, 1};
                if (one_block) x.one_block = true, x.y = (Matrix){y.p, DS_F32, 0, 0, 0};
                if (p->bias) x.bias += j;
                status = run_packed(s, &x, true);
                if (rows || status) continue;
                KERNEL(copy)
                (s, (dsi_view){sums, DS_F32, 2, {x.m, x.n}, {x.n, 1}},
                 (dsi_view){y.p, y.dtype, 2, {x.m, x.n}, {y.row, y.col}});
            }
    if (sums) dsi_scratch_release(s, sums);
    return status;
}

/* ---- float64 ------------------------------------------------------------------------------------------- */

typedef struct Plain {
    dsi_view a, b, bias, y;
} Plain;

/* Rows begin .. end-1 of y, counted over [batch][m]. */
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

static Matrix gemm_matrix(const dsi_view *v)
{
    return (Matrix){v->p, v->dtype, v->s[0], v->s[1], v->s[2]};
}

/* p has 16-bit or float32 operands, and a dense bias. */
static ds_status matmul_any(dsi_stream *s, Product *p)
{
    return is_half(p->a.dtype) ? matmul_half(s, p) : matmul_f32(s, p);
}

/* A small float16 product is copied to float32 first. */
static bool takes_parts(const dsi_view *a, const dsi_view *b, const dsi_view *y)
{
    int64_t m = y->d[1] * (is_one_matrix(a, b, y) ? y->d[0] : 1), n = y->d[2], k = a->d[2];
    bool large = m * n + m * k + k * n > SMALL_HALF;
    return y->d[0] && (a->dtype == DS_F32 || (a->dtype == DS_F16 && large)) &&
           b->dtype == a->dtype && bf16_takes_parts(m, n, k);
}

ds_status KERNEL(matmul)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y)
{
    int64_t m = y.d[1], n = y.d[2], k = a.d[2];
    if (few_half_takes(&a, &b, &y)) return few_half(s, a, b, bias, y);
    /* one row is computed as a few are, so that it has the same bits among
     * them */
    int64_t rows = y.d[0] == 1 ? dsi_max(m, FEW_HALF_ROWS) : m;
    if (a.dtype == DS_BF16 && y.d[0] && bf16_takes(rows, n, k))
        return bf16_matmul(s, a, b, bias, y);
    if (takes_parts(&a, &b, &y)) {
        bool exact;
        ds_status status = bf16_matmul_parts(s, a, b, bias, y, &exact);
        if (status != DS_OK || exact) return status;
    }
    if (is_half(a.dtype) && rows * n + rows * k + k * n <= SMALL_HALF)
        IN_F32(s, 1, KERNEL(matmul)(s, a, b, bias, y), &y, &a, &b, &bias);
    if (!is_half(a.dtype) && y.dtype != DS_F32 && y.dtype != DS_F64)
        return no_dtype("matmul", y.dtype);
    if (!y.d[0] || !m || !n) return DS_OK;
    if (y.dtype == DS_F64) {
        Plain x = {a, b, bias, y};
        dsi_parallel(y.d[0] * m, 1 + (int64_t)(GRAIN_FLOPS / 8 / (double)(n * k + 1)), plain_rows,
                     &x);
        return DS_OK;
    }
    Product p = {y.d[0],          m,      n,           k, gemm_matrix(&a), gemm_matrix(&b),
                 gemm_matrix(&y), bias.p, .add = false};
    if (!bias.p || (bias.dtype == DS_F32 && (bias.s[0] == 1 || n == 1))) return matmul_any(s, &p);

    float *dense = dsi_scratch(s, (size_t)n * sizeof *dense);
    if (!dense) return DS_ENOMEM;
    KERNEL(copy)(s, bias, (dsi_view){dense, DS_F32, 1, {n}, {1}});
    p.bias = dense;
    ds_status status = matmul_any(s, &p);
    dsi_scratch_release(s, dense);
    return status;
}
