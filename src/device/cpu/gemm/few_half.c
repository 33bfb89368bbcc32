/* device/cpu/gemm/few_half.c: few rows times a large bfloat16 matrix b, which
 * is read once, as it is in memory: packing it would take as long as the
 * product.
 *
 * Elements of k are multiplied in pairs, as AVX512_BF16 does it: to each sum of
 * a vector, a pair of a times a pair of b is added. If b has unit stride along
 * k (NT, x W^T), a vector has pairs of one column, and its sums are added at
 * the end. Else (NN) pairs of two rows of b are put together, and FEW_PAIRS
 * pairs of rows are read from end to end, while the sums of their columns are
 * in the first cache. Rows are computed by 1, 2, 4 or 8: some may be zeros.
 *
 * Order of a sum: it depends on the instruction set and on the layout of b, not
 * on the number of rows or threads.
 * SPDX-License-Identifier: MIT */
#include "few_half.h"
#include "tiles.h"

#include "base/int.h"
#include "device/cpu/table.h"

#include <string.h>

#define FEW_PAIRS 4    /* of rows of b at a time, NN */
#define FEW_COLS  4    /* at most at a time, NT */
#define FEW_AHEAD 8192 /* elements of b, NT: its rows are one stream, fetched to the second cache */
#define FEW_CHUNK 8192 /* sums of a chunk of columns, NN: 32 KB */
#define FEW_LEAST 131072 /* elements of b: fewer are copied to float32, or packed */

#if defined(DSI_ISA_avx512)
#define FEW_SUMS 16 /* in registers, NT */
#else
#define FEW_SUMS 8
#endif

typedef uint32_t Pairs __attribute__((vector_size(VF * 4))); /* of bfloat16 */

typedef struct FewHalf {
    int64_t m, n, k;
    const uint16_t *a; /* [m, a_line], zeros behind k */
    const uint16_t *b; /* [n, b_line] if NT, else [k, b_line] */
    const float *bias; /* [n]; NULL: none */
    float *y;          /* [m, y_line] */
    int64_t a_line, b_line, y_line;
    bool nt;
    int64_t cols; /* of an item */
} FewHalf;

ALWAYS_INLINE Pairs load_pairs(const uint16_t *p)
{
    Pairs v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The first `rest` elements of C columns -> [C][2 VF], zeros behind them. */
static void few_copy_rest(const uint16_t *from, int64_t line, int C, int64_t rest, uint16_t *to)
{
    memset(to, 0, (size_t)(C * 2 * VF) * sizeof *to);
    for (int j = 0; j < C; j++) memcpy(to + j * 2 * VF, from + j * line, (size_t)rest * sizeof *to);
}

/* VF numbers, each the first of a pair. */
ALWAYS_INLINE Pairs load_line(const uint16_t *p)
{
#if defined(DSI_ISA_avx512)
    return (Pairs)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
#elif defined(DSI_ISA_avx2)
    return (Pairs)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
#else
    return (Pairs){p[0], p[1], p[2], p[3]};
#endif
}

ALWAYS_INLINE vf add_pairs(vf sum, Pairs a, Pairs b)
{
    sum = vf_fma((vf)(a << 16), (vf)(b << 16), sum);
    return vf_fma((vf)(a & 0xffff0000), (vf)(b & 0xffff0000), sum);
}

#define FEW(name) name##_fused
#define FEW_TARGET
#define ADD_PAIRS(s, a, b) add_pairs(s, a, b)
#include "few_half.inc"

#ifdef HAS_TILES
#define FEW(name)          name##_dots
#define FEW_TARGET         __attribute__((target("avx512bf16")))
#define ADD_PAIRS(s, a, b) _mm512_dpbf16_ps(s, (__m512bh)(a), (__m512bh)(b))
#include "few_half.inc"
#else
#define few_columns_dots few_columns_fused
#endif

/* Items begin .. end-1 of x->cols columns. */
static void few_items(void *arg, int64_t begin, int64_t end)
{
    const FewHalf *x = arg;
    for (int64_t item = begin; item < end; item++) {
        int64_t from = item * x->cols, to = dsi_min(from + x->cols, x->n);
        if (dsi_cpu_bf16())
            few_columns_dots(x, from, to);
        else
            few_columns_fused(x, from, to);
    }
}

/* NN: the columns behind whole vectors, fewer than VF, from a copy of them. */
static void few_last_columns(const FewHalf *x, uint16_t *copy)
{
    int64_t whole = x->n / VF * VF, rest = x->n - whole;
    FewHalf last = *x;
    memset(copy, 0, (size_t)(x->k * VF) * sizeof *copy);
    for (int64_t k = 0; k < x->k; k++)
        memcpy(copy + k * VF, x->b + k * x->b_line + whole, (size_t)rest * sizeof *copy);
    last.b = copy, last.b_line = VF, last.y += whole, last.n = last.cols = VF;
    if (x->bias) last.bias += whole;
    few_items(&last, 0, 1);
}

bool few_half_takes(const dsi_view *a, const dsi_view *b, const dsi_view *y)
{
    bool nn = b->s[2] == 1 && b->d[2] > 1, nt = b->s[1] == 1;
    return a->dtype == DS_BF16 && b->dtype == DS_BF16 && y->d[0] == 1 && y->d[1] > 0 &&
           y->d[1] <= FEW_HALF_ROWS && a->d[2] > 0 && y->d[2] * a->d[2] > FEW_LEAST && (nn || nt);
}

ds_status few_half(dsi_stream *s, dsi_view a, dsi_view b, dsi_view bias, dsi_view y)
{
    int64_t m = y.d[1], n = y.d[2], k = a.d[2];
    FewHalf x = {.m = m > 4 ? 8 : m > 2 ? 4 : m, .n = n, .k = k, .b = b.p, .nt = b.s[1] == 1};
    x.b_line = x.nt ? b.s[2] : b.s[1];
    x.a_line = dsi_round_up(k, 2 * VF), x.y_line = dsi_round_up(n, VF);
    int64_t floats = (x.m + 1) * x.y_line, halves = x.m * x.a_line + k * VF;
    float *sums = dsi_scratch(s, (size_t)(2 * floats + halves) * sizeof(uint16_t));
    if (!sums) return DS_ENOMEM;
    float *bias32 = sums + x.m * x.y_line;
    uint16_t *rows = (uint16_t *)(sums + floats);
    memset(bias32, 0, (size_t)x.y_line * sizeof *bias32);
    memset(rows, 0, (size_t)(x.m * x.a_line) * sizeof *rows);
    KERNEL(copy)(s, a, (dsi_view){rows, DS_BF16, 3, {1, m, k}, {m * x.a_line, x.a_line, 1}});
    if (bias.p) KERNEL(copy)(s, bias, (dsi_view){bias32, DS_F32, 1, {n}, {1}});
    x.a = rows, x.y = sums, x.bias = bias.p ? bias32 : NULL;
    int64_t each = dsi_div_up(n, ds_threads());
    if (!x.nt) {
        if (n % VF) few_last_columns(&x, rows + x.m * x.a_line);
        x.n = n / VF * VF, each = dsi_min(each, FEW_CHUNK / x.m);
    }
    x.cols = dsi_round_up(each, VF);
    dsi_parallel(dsi_div_up(x.n, x.cols), 1, few_items, &x);
    KERNEL(copy)(s, (dsi_view){sums, DS_F32, 3, {1, m, n}, {m * x.y_line, x.y_line, 1}}, y);
    dsi_scratch_release(s, sums);
    return DS_OK;
}
