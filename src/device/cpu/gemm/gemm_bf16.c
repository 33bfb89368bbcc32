/* device/cpu/gemm/gemm_bf16.c: matrix products of bfloat16: y [B,M,N] = a
 * [B,M,K] b [B,K,N] + bias [N].
 *
 * By the matrix unit or by vectors: tiles.h says how they work, bf16_pack.c how
 * operands are packed. As in gemm.c, panels that fill half of the second cache,
 * a width, are multiplied with one group of rows after another. If all panels
 * fit there, threads share them and divide the groups, each of which is packed
 * right before. Else each thread packs widths of its own: what another one has
 * packed comes from its cache, at a third of the speed. A long k is cut into
 * blocks; between them, the sums are in memory.
 *
 * The unit multiplies bfloat16 alone. There, a float32 is the sum of three such
 * numbers, a = a0 + a1 + a2 with 8 bits each, and
 *
 *     a b = a0 b0 + (a0 b1 + a1 b0) + (a1 b1 + a0 b2 + a2 b0) + terms below 2^-23 |a b|
 *
 * Six products of bfloat16 take less time here than one of float32. Within an
 * instruction 16 terms are summed before they meet the sum of a block of k, so
 * there are fewer roundings: errors to float64 are 0.4 to 0.8 times those of
 * MKL's sgemm, for k from 64 to 3072. A float16 is the sum of two, and has four
 * products.
 *
 * Invariants: each element is a float32 sum in the order of k, in blocks that
 * depend on K alone, not on threads, caches, M or N. Subnormal operands and
 * sums are 0. So numbers in parts that come near its ends are refused
 * (parts.h), and gemm.c computes the product in vectors.
 *
 * Source: Intel, Architectures Optimization Reference Manual, chapters on AMX and
 * AVX512_BF16;
 * Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence
 * Datatype For Higher-Precision Computations, arXiv:1904.06376.
 * SPDX-License-Identifier: MIT */
#include "gemm_bf16.h"
#include "parts.h"

#include "base/int.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/slots.h"
#include "device/cpu/table.h"

#include <string.h>

#ifdef HAS_TILES

/* Elements of k in a block; a multiple of DEEP. */
#define K_BLOCK   2048
#define K_VECTORS 1024 /* by vectors: more panels share a group of rows */
#define K_SPLIT   768  /* of numbers in several parts */
/* Elements of k up to which a group of rows stays in the first cache beside the
 * panels that pass it. Longer ones evict each other, so both are read from the
 * second cache, past the first, if that holds much of a. */
#define FIRST_K 320
/* Elements of a page of memory. */
#define PAGE 2048
/* Rows, and columns, of a block of y whose sums are kept in memory. */
#define BLOCK 2048
/* Panels of a thread from which it packs its own. */
#define LEAST_PANELS 3
/* Items of a block of y, so that threads can share it evenly. */
#define ITEMS       32
#define GRAIN_FLOPS 4e6
/* m n k from which packing pays; of float32, also the least m, n and k. Fewer
 * rows have the same bits among them as alone (gemm.c). */
#define WORTH       16384
#define SPLIT_WORTH 2097152
#define SPLIT_LEAST 64

/* ---- a square of y -------------------------------------------------------------------------------------- */

typedef struct Product {
    int64_t batch, m, n, k;
    dsi_view a, b, y;
    const float *bias; /* dense, SIDE zeros behind its end; or NULL */
    bool bias_of_rows; /* one bias a row of y (it is transposed), else a column */
    int parts;         /* of each element of a and b (tiles.h) */
} Product;

/* A block of y, and a block of k of its sums. */
typedef struct Block {
    Product of; /* m, n, k and pointers are those of the block */
    const uint16_t *a, *packed_b;
    const Packing *rows; /* if not NULL, a is packed by groups, to rows->to [slots][SIDE][vector] */
    Slots *taken;        /* of these */
    int64_t vector;      /* elements of a packed row or column */
    /* elements of a from row to row, to the next DEEP of k, to the lower LINES
     * rows */
    int64_t a_line, a_step, a_lower;
    float *sums;      /* [groups][panels] squares; NULL if there is one block of k */
    bool direct;      /* a is read in place */
    bool stream;      /* a and b are read past the first cache */
    bool first, last; /* block of k: starts from 0; writes y */
    int64_t sums_row; /* panels of a group */
    int64_t panels;   /* panels of an item */
    int64_t across;   /* number of items along n */
} Block;

static __m512i to_f16(__m512 low, __m512 high)
{
    __m256i first = _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT),
            second = _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT);
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

/* Stores n sums of a row of y, rounded to y's dtype, at element offset `at`.
 * low and high are columns 0 .. 15 and 16 .. 31. */
USES_TILES static void put_line(const dsi_view *y, int64_t at, __m512 low, __m512 high, int n)
{
    __mmask32 wide = n < SIDE ? (1u << n) - 1 : ~0u;
    if (y->dtype == DS_F32 && y->s[2] == 1) {
        float *to = (float *)y->p + at;
        _mm512_mask_storeu_ps(to, (__mmask16)wide, low);
        _mm512_mask_storeu_ps(to + 16, (__mmask16)(wide >> 16), high);
        return;
    }
    __m512i half = y->dtype == DS_F16 ? to_f16(low, high) : (__m512i)_mm512_cvtne2ps_pbh(high, low);
    if (y->dtype != DS_F32 && y->s[2] == 1) {
        _mm512_mask_storeu_epi16((uint16_t *)y->p + at, wide, half);
        return;
    }
    float floats[SIDE];
    uint16_t halves[SIDE];
    _mm512_storeu_ps(floats, low), _mm512_storeu_ps(floats + 16, high);
    _mm512_storeu_si512(halves, half);
    for (int j = 0; j < n; j++)
        if (y->dtype == DS_F32)
            ((float *)y->p)[at + j * y->s[2]] = floats[j];
        else
            ((uint16_t *)y->p)[at + j * y->s[2]] = halves[j];
}

/* Stores a square of sums, plus bias, into y at (row, col). */
USES_TILES static void put_square(const Product *p, int64_t row, int64_t col, const float *sums)
{
    int rows = (int)dsi_min(SIDE, p->m - row), cols = (int)dsi_min(SIDE, p->n - col);
    __m512 low = _mm512_setzero_ps(), high = low;
    if (p->bias && !p->bias_of_rows) {
        low = _mm512_loadu_ps(p->bias + col);
        high = _mm512_loadu_ps(p->bias + col + 16);
    }
    for (int i = 0; i < rows; i++) {
        if (p->bias_of_rows) low = high = _mm512_set1_ps(p->bias[row + i]);
        __m512 left = _mm512_loadu_ps(sums + i * SIDE),
               right = _mm512_loadu_ps(sums + i * SIDE + 16);
        if (p->bias) left = _mm512_add_ps(left, low), right = _mm512_add_ps(right, high);
        put_line(&p->y, (row + i) * p->y.s[1] + col * p->y.s[2], left, right, cols);
    }
}

/* Cache lines of the next group of rows that are to be fetched after each
 * product of parts of the square at (row, col), from *next on: its panels share
 * the group. */
static int64_t fetched_lines(const Block *x, const uint16_t *a, int64_t row, int64_t col,
                             int64_t steps, const char **next)
{
    if (x->rows || row + SIDE >= x->of.m) return 0;
    int64_t group = steps * STEP * x->of.parts * 2 / 64, item = x->panels * SIDE;
    int64_t products = steps * products_of(x->of.parts),
            columns = dsi_min(item, x->of.n - col / item * item);
    int64_t panels = dsi_div_up(columns, SIDE), each = dsi_div_up(group, panels * products);
    *next = (const char *)a + (group + col % item / SIDE * products * each) * 64;
    return each;
}

/* One block of k of the square of y at (row, col). */
USES_TILES static void run_square(const Block *x, const uint16_t *a, int64_t row, int64_t col)
{
    int64_t steps = dsi_div_up(x->of.k, DEEP);
    const uint16_t *b = x->packed_b + col * x->vector;
    float local[SIDE * SIDE], *sums = local;
    if (x->sums) sums = x->sums + (row / SIDE * x->sums_row + col / SIDE) * SIDE * SIDE;
    /* else the second half of the rows, or columns, is zeros */
    int64_t rows = dsi_min(SIDE, x->of.m - row);
    bool lower = rows > LINES, right = x->of.n - col > LINES;
    bool split = x->of.parts > 1, more = !x->first && split;
    Square q = square_begin(more ? local : sums, SIDE, x->first || split);
    const char *next = NULL;
    int64_t lines = split ? fetched_lines(x, a, row, col, steps, &next) : 0;
    if (x->of.parts == 3)
        square_parts(3, a, b, steps, lower, right, next, lines);
    else if (split)
        square_parts(2, a, b, steps, lower, right, next, lines);
    else if (x->stream)
        square_stream(&q, a, x->a_line, x->a_step, x->a_lower, b, x->of.k, rows, right);
    else
        square_add(&q, a, x->a_line, x->a_step, x->a_lower, b, x->of.k, rows, right);
    square_end(&q);
    for (int i = 0; more && i < SIDE * SIDE; i += VF)
        vf_store(sums + i, vf_add(vf_load(sums + i), vf_load(local + i)));
    if (x->last) put_square(&x->of, row, col, sums);
}

/* Packs the group of rows from `row` on. */
static const uint16_t *pack_group(const Block *x, int64_t row, uint16_t *to)
{
    Packing group = *x->rows;
    group.from = (const char *)group.from +
                 row * group.across * (int64_t)ds_dtype_size(group.dtype);
    group.n = dsi_min(SIDE, group.n - row), group.to = to;
    bf16_pack(&group);
    return to;
}

/* Items begin .. end-1: x->panels panels of one group of rows each, in the
 * order [group][across]. */
USES_TILES static void run_items(void *arg, int64_t begin, int64_t end)
{
    const Block *x = arg;
    int slot = x->rows ? slot_take(x->taken) : 0;
    tiles_begin();
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / x->across * SIDE, col = item % x->across * x->panels * SIDE;
        int64_t last = dsi_min(col + x->panels * SIDE, x->of.n);
        const uint16_t *a = x->a + row * (x->direct ? x->a_line : x->vector);
        if (x->rows) a = pack_group(x, row, x->rows->to + slot * SIDE * x->vector);
        for (; col < last; col += SIDE) run_square(x, a, row, col);
    }
    tiles_end();
    if (x->rows) slot_release(x->taken, slot);
}

static void bf16_multiply(Block *x)
{
    int64_t groups = dsi_div_up(x->of.m, SIDE), panels = dsi_div_up(x->of.n, SIDE);
    x->panels = groups < ITEMS && !x->rows ? dsi_div_up(panels * groups, ITEMS) : panels;
    x->across = dsi_div_up(panels, x->panels);
    double flops = 2.0 * (double)(SIDE * x->panels * SIDE) * (double)x->of.k;
    dsi_parallel(groups * x->across, 1 + (int64_t)(GRAIN_FLOPS / flops), run_items, x);
}

/* ---- the product ---------------------------------------------------------------------------------------- */

static dsi_view bf16_moved(dsi_view v, int64_t batch, int64_t i, int64_t j)
{
    int64_t by = batch * v.s[0] + i * v.s[1] + j * v.s[2];
    v.p = (char *)v.p + by * (int64_t)ds_dtype_size(v.dtype);
    return v;
}

/* Elements of each block of k: equal blocks, which depend on k alone. */
static int64_t bf16_depth(int64_t k, int parts)
{
    int64_t most = parts > 1 ? K_SPLIT : dsi_cpu_amx() ? K_BLOCK : K_VECTORS;
    return dsi_round_up(dsi_div_up(k, dsi_div_up(k, most)), DEEP);
}

typedef struct Buffers {
    int64_t each, width; /* elements of a block of k; columns of packed_b */
    uint16_t *b, *a;     /* packed operands */
    bool direct;         /* a is read in place */
    bool by_group;       /* a is packed by groups: a for each slot */
    bool by_width;       /* each thread packs and multiplies widths of its own: b for each slot */
    Slots taken;
    float *sums;                           /* of a block of y; NULL if k has one block */
    _Atomic uint32_t largest_a, largest_b; /* magnitudes, of numbers in parts */
} Buffers;

/* Chooses the columns of a width, of n: their panels, `each` elements of k
 * deep, fill up to half of the second cache. If there are several, threads get
 * equal shares. */
static void choose_width(Buffers *buffers, int64_t n, int parts)
{
    int64_t panel = buffers->each * parts * SIDE * (int64_t)sizeof(uint16_t),
            panels = dsi_div_up(n, SIDE), threads = ds_threads(),
            widths = dsi_div_up(panels, dsi_max(1, dsi_cpu_l2_bytes() / 2 / panel));
    buffers->by_width = widths > 1 && threads > 1 && panels >= LEAST_PANELS * threads;
    if (buffers->by_width) widths = dsi_round_up(widths, threads);
    buffers->width = dsi_div_up(panels, widths) * SIDE;
}

/* One block of k from `k` on, for one width of columns from j on, packed to b. */
static void run_width(const Product *p, Buffers *buffers, uint16_t *b_to, int64_t k, int64_t j)
{
    Block x = {.of = *p,
               .a = buffers->a,
               .packed_b = b_to,
               .a_line = DEEP,
               .a_step = STEP,
               .a_lower = STEP / 2,
               .direct = buffers->direct,
               .taken = &buffers->taken};
    dsi_view a = bf16_moved(p->a, 0, 0, k), b = bf16_moved(p->b, 0, k, j);
    x.first = k == 0, x.last = k + buffers->each >= p->k;
    x.of.k = dsi_min(buffers->each, p->k - k), x.of.n = dsi_min(buffers->width, p->n - j);
    if (x.direct) {
        x.a = a.p;
        x.a_line = p->a.s[1], x.a_step = DEEP, x.a_lower = LINES * p->a.s[1];
    }
    x.stream = x.of.k > FIRST_K && p->m * x.of.k <= dsi_cpu_l2_bytes();
    x.of.y = bf16_moved(p->y, 0, 0, j);
    if (p->bias && !p->bias_of_rows) x.of.bias = p->bias + j;
    x.sums_row = dsi_div_up(p->n, SIDE);
    if (buffers->sums) x.sums = buffers->sums + j * SIDE;
    x.vector = dsi_round_up(x.of.k, DEEP) * p->parts;
    Packing rows = {
        a.p, a.dtype, a.s[1], a.s[2], p->m, x.of.k, false, buffers->a, &buffers->largest_a};
    if (buffers->by_group) x.rows = &rows;
    bf16_pack(
        &(Packing){b.p, b.dtype, b.s[2], b.s[1], x.of.n, x.of.k, true, b_to, &buffers->largest_b});
    bf16_multiply(&x);
}

typedef struct Widths {
    const Product *of;
    Buffers *buffers;
    int64_t first, last; /* elements of k */
} Widths;

/* Widths begin .. end-1. */
static void run_widths(void *arg, int64_t begin, int64_t end)
{
    const Widths *x = arg;
    Buffers *buffers = x->buffers;
    int slot = buffers->by_width ? slot_take(&buffers->taken) : 0;
    uint16_t *b = buffers->b + slot * buffers->width * buffers->each * x->of->parts;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = x->first; k < x->last; k += buffers->each)
            run_width(x->of, buffers, b, k, i * buffers->width);
    if (buffers->by_width) slot_release(&buffers->taken, slot);
}

static void run_all_widths(const Product *p, Buffers *buffers, int64_t first, int64_t last)
{
    Widths x = {p, buffers, first, last};
    int64_t widths = dsi_div_up(p->n, buffers->width);
    if (buffers->by_width)
        dsi_parallel(widths, 1, run_widths, &x);
    else
        run_widths(&x, 0, widths);
}

/* One block of y. An a that is packed as a whole is packed once; else the sums
 * of a width stay in the second cache. */
static void run_block(const Product *p, Buffers *buffers)
{
    if (buffers->direct || buffers->by_group) {
        run_all_widths(p, buffers, 0, p->k);
        return;
    }
    for (int64_t k = 0; k < p->k; k += buffers->each) {
        int64_t deep = dsi_min(buffers->each, p->k - k);
        dsi_view a = bf16_moved(p->a, 0, 0, k);
        bf16_pack(&(Packing){a.p, a.dtype, a.s[1], a.s[2], p->m, deep, false, buffers->a,
                             &buffers->largest_a});
        run_all_widths(p, buffers, k, k + deep);
    }
}

/* True if tile loads can read a in place: no zeros are needed, and its rows are
 * not a multiple of a page apart. Such rows would fall into the same sets of
 * the first cache and evict each other, so an a that many panels use is
 * packed. */
static bool reads_in_place(const Product *p)
{
    bool full = p->a.s[2] == 1 && p->m % SIDE == 0 && p->k % DEEP == 0;
    return full && (p->n <= 4 * SIDE || p->a.s[1] % PAGE);
}

static ds_status bf16_run(dsi_stream *s, const Product *p, bool *exact)
{
    Buffers buffers = {.each = bf16_depth(p->k, p->parts)};
    bool one = buffers.each >= p->k; /* block of k: no sums are kept */
    int64_t across = one ? p->n : BLOCK, threads = ds_threads(),
            m = dsi_round_up(dsi_min(p->m, BLOCK), SIDE),
            n = dsi_round_up(dsi_min(p->n, across), SIDE), vector = buffers.each * p->parts;
    choose_width(&buffers, n, p->parts);
    buffers.direct = p->parts == 1 && reads_in_place(p);
    buffers.by_group = p->parts > 1 && p->n <= buffers.width && m >= 2 * SIDE * threads;
    int64_t rows = buffers.direct     ? 0
                   : buffers.by_group ? threads * SIDE
                                      : m,
            columns = buffers.width * (buffers.by_width ? threads : 1),
            halves = (rows + columns) * vector, sums = one ? 0 : m * n;
    buffers.b = dsi_scratch(s, (size_t)halves * sizeof *buffers.b +
                                   (size_t)sums * sizeof *buffers.sums);
    if (!buffers.b) return DS_ENOMEM;
    buffers.a = buffers.b + columns * vector;
    if (sums) buffers.sums = (float *)(buffers.b + halves);
    for (int64_t batch = 0; batch < p->batch; batch++)
        for (int64_t j = 0; j < p->n; j += across)
            for (int64_t i = 0; i < p->m; i += BLOCK) {
                Product x = *p;
                x.m = dsi_min(BLOCK, p->m - i), x.n = dsi_min(across, p->n - j);
                x.a = bf16_moved(p->a, batch, i, 0);
                x.b = bf16_moved(p->b, batch, 0, j);
                x.y = bf16_moved(p->y, batch, i, j);
                if (p->bias) x.bias += p->bias_of_rows ? i : j;
                run_block(&x, &buffers);
            }
    dsi_scratch_release(s, buffers.b);
    *exact = p->parts == 1 || parts_in_range(buffers.largest_a, buffers.largest_b);
    return DS_OK;
}

bool bf16_takes(int64_t m, int64_t n, int64_t k)
{
    return k && m * n * k >= WORTH && dsi_cpu_bf16();
}

bool bf16_takes_parts(int64_t m, int64_t n, int64_t k)
{
    bool wide = m >= SPLIT_LEAST && n >= SPLIT_LEAST && k >= SPLIT_LEAST;
    return wide && m * n * k >= SPLIT_WORTH && dsi_cpu_amx();
}

ds_status bf16_matmul_parts(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y,
                            bool *exact)
{
    if (is_one_matrix(&a, &b, &y)) y.d[1] *= y.d[0], y.d[0] = 1;
    Product p = {y.d[0], y.d[1], y.d[2], a.d[2], a, b, y, NULL, false, parts_of(a.dtype)};
    if (y.s[2] != 1 && y.s[1] == 1) /* y^T = b^T a^T has dense rows */
        p = (Product){y.d[0],
                      y.d[2],
                      y.d[1],
                      a.d[2],
                      view_transposed(b),
                      view_transposed(a),
                      view_transposed(y),
                      NULL,
                      true,
                      p.parts};
    p.bias_of_rows = p.bias_of_rows && bias.p;
    if (!bias.p) return bf16_run(s, &p, exact);

    int64_t n = y.d[2];
    float *dense = dsi_scratch(s, (size_t)(n + SIDE) * sizeof *dense);
    if (!dense) return DS_ENOMEM;
    memset(dense + n, 0, SIDE * sizeof *dense);
    KERNEL(copy)(s, bias, (dsi_view){dense, DS_F32, 1, {n}, {1}});
    p.bias = dense;
    ds_status status = bf16_run(s, &p, exact);
    dsi_scratch_release(s, dense);
    return status;
}

ds_status bf16_matmul(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y)
{
    bool exact;
    return bf16_matmul_parts(s, a, b, bias, y, &exact);
}

#else /* another processor, system or an older compiler */

bool bf16_takes(int64_t m, int64_t n, int64_t k)
{
    (void)m, (void)n, (void)k;
    return false;
}

bool bf16_takes_parts(int64_t m, int64_t n, int64_t k) { return bf16_takes(m, n, k); }

ds_status bf16_matmul(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y)
{
    (void)s, (void)a, (void)b, (void)bias;
    return no_dtype("matmul", y.dtype);
}

ds_status bf16_matmul_parts(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y,
                            bool *exact)
{
    *exact = false;
    return bf16_matmul(s, a, b, bias, y);
}

#endif
