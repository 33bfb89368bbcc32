/* ops/sort.c: sort, topk and multinomial, whose order the host finds.
 *
 * For a tensor on another device its values are copied to the host, and the
 * indices back, but where the device finds the few largest of short lines
 * itself; the results are gathered on the device, with gradients. Sorting
 * is stable: equal elements keep their order. NaN is larger than all numbers.
 *
 * An element's key is an unsigned integer of the same order: of a float its
 * bits, all of them flipped below 0, else the sign alone. 16-bit floats are
 * sorted as float32, whose key is the upper half of 64 bits.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

typedef struct Keyed {
    uint64_t key;
    int64_t index;
} Keyed;

#define SIGN (UINT64_C(1) << 63)
#define FEW  32 /* elements that are sorted by insertion */

/* Positive numbers get the highest bit, so they follow negative ones, whose
 * order of bits is reversed by flipping them. All NaN are one key, the
 * largest. */
static uint64_t key_of_double(double x)
{
    uint64_t bits;
    x += 0.0; /* -0 equals 0 */
    memcpy(&bits, &x, sizeof bits);
    bits ^= (0 - (bits >> 63)) | SIGN;
    return x != x ? UINT64_MAX : bits;
}

static uint64_t key_of_float(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    bits ^= (0 - (bits >> 31)) | UINT32_C(1) << 31;
    return (uint64_t)(x != x ? UINT32_MAX : bits) << 32;
}

/* Two's complement with the sign flipped has the order of the numbers. */
static uint64_t key_of_integer(int64_t x) { return (uint64_t)x ^ SIGN; }

/* Inserts one by one: for a few. */
static void insert_keyed(Keyed *a, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        Keyed x = a[i];
        int64_t at = i;
        for (; at > 0 && a[at - 1].key > x.key; at--) a[at] = a[at - 1];
        a[at] = x;
    }
}

/* Byte by byte from the lowest, without bytes that all keys share (the lower
 * four of a float32). */
static void sort_by_bytes(Keyed *a, Keyed *b, int64_t n)
{
    int64_t count[8][256] = {{0}};
    Keyed *from = a, *to = b;
    for (int64_t i = 0; i < n; i++)
        for (int byte = 0; byte < 8; byte++) count[byte][a[i].key >> 8 * byte & 255]++;
    for (int byte = 0; byte < 8; byte++) {
        int64_t *next = count[byte], begin = 0;
        if (next[a[0].key >> 8 * byte & 255] == n) continue;
        for (int value = 0; value < 256; value++) {
            int64_t end = begin + next[value];
            next[value] = begin, begin = end;
        }
        for (int64_t i = 0; i < n; i++) to[next[from[i].key >> 8 * byte & 255]++] = from[i];
        Keyed *t = from;
        from = to, to = t;
    }
    if (from != a) memcpy(a, from, (size_t)n * sizeof *a);
}

/* Sorts a[0..n-1] by key, stable; b is as large, and used if n > FEW. */
static void sort_keyed(Keyed *a, Keyed *b, int64_t n)
{
    if (n <= FEW)
        insert_keyed(a, n);
    else
        sort_by_bytes(a, b, n);
}

static bool keyed_after(Keyed a, Keyed b)
{
    return a.key > b.key || (a.key == b.key && a.index > b.index);
}

/* Restores the order of a heap, whose last element is at 0, after at has got
 * another one. */
static void heap_sink(Keyed *heap, int64_t n, int64_t at)
{
    Keyed x = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && keyed_after(heap[child + 1], heap[child])) child++;
        if (!keyed_after(heap[child], x)) break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* heap[0..k-1], a heap of the first k so far, k >= 1: takes a later element.
 * One of the same key as the heap's last one has the larger index, so it is
 * left out. */
static void heap_offer(Keyed *heap, int64_t k, uint64_t key, int64_t index)
{
    if (key >= heap[0].key) return;
    heap[0] = (Keyed){key, index};
    heap_sink(heap, k, 0);
}

static void heap_make(Keyed *heap, int64_t k)
{
    for (int64_t i = k / 2; i-- > 0;) heap_sink(heap, k, i);
}

/* The heap's elements in order. */
static void heap_sort(Keyed *heap, int64_t k)
{
    for (int64_t end = k - 1; end > 0; end--) {
        Keyed last = heap[0];
        heap[0] = heap[end], heap[end] = last;
        heap_sink(heap, end, 0);
    }
}

#define BLOCK 16 /* floats that are compared together */

/* Whether a key of BLOCK floats is below a bound: the upper halves as signed
 * numbers, for which there are vectors. */
static bool floats_below(const float *x, uint32_t turned, int32_t bound)
{
    int32_t below = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits;
        float v = x[i] + 0.0f;
        memcpy(&bits, &v, sizeof bits);
        uint32_t key = v != v ? (uint32_t)INT32_MAX : bits ^ (0 - (bits >> 31)) >> 1;
        below |= (int32_t)(key ^ turned) < bound;
    }
    return below;
}

/* first[0..k-1], k >= 1, becomes the first k of n floats; turned: as in
 * line_keys. */
static void select_floats(const float *x, int64_t n, int64_t k, uint64_t turned, Keyed *first)
{
    for (int64_t i = 0; i < k; i++) first[i] = (Keyed){turned ^ key_of_float(x[i]), i};
    heap_make(first, k);
    for (int64_t i = k; i < n;) {
        int64_t end = i + BLOCK <= n ? i + BLOCK : n;
        int32_t bound = (int32_t)((first[0].key ^ SIGN) >> 32);
        if (end - i == BLOCK && !floats_below(x + i, (uint32_t)turned, bound)) i = end;
        for (; i < end; i++) heap_offer(first, k, turned ^ key_of_float(x[i]), i);
    }
    heap_sort(first, k);
}

/* As sort_keyed, of the first k of n keys, k >= 1. */
static void select_keyed(const uint64_t *keys, int64_t n, int64_t k, Keyed *first)
{
    for (int64_t i = 0; i < k; i++) first[i] = (Keyed){keys[i], i};
    heap_make(first, k);
    for (int64_t i = k; i < n; i++) heap_offer(first, k, keys[i], i);
    heap_sort(first, k);
}

/* Whether a heap finds the first k of n sooner than sorting all. */
static bool few_are_wanted(int64_t k, int64_t n) { return k > 0 && k < n / 4; }

/* first[0..k-1] becomes the first k of n keys; first has memory for 2 n. */
static void order_keys(const uint64_t *keys, int64_t n, int64_t k, Keyed *first)
{
    if (few_are_wanted(k, n)) {
        select_keyed(keys, n, k, first);
        return;
    }
    for (int64_t i = 0; i < n; i++) first[i] = (Keyed){keys[i], i};
    sort_keyed(first, first + n, n);
}

/* The elements of x, row-major in host memory, as dtype. */
static const void *sort_values(ds_tensor *x, ds_dtype dtype)
{
    return ds_data(ds_cast(ds_detach(x), dtype));
}

/* The dtype that elements of x are sorted as: float32, float64 or int64. */
static ds_dtype sort_dtype(const ds_tensor *x)
{
    return !dsi_is_float(x) ? DS_I64 : x->dtype == DS_F64 ? DS_F64 : DS_F32;
}

/* keys[0..n-1] of every step-th of values from `at` on; turned: all bits of a
 * descending order. */
static void line_keys(const void *values, ds_dtype dtype, int64_t at, int64_t step, int64_t n,
                      uint64_t turned, uint64_t *restrict keys)
{
    const float *f32 = (const float *)values + at;
    const double *f64 = (const double *)values + at;
    const int64_t *i64 = (const int64_t *)values + at;
    if (dtype == DS_F32 && step == 1)
        for (int64_t c = 0; c < n; c++) keys[c] = turned ^ key_of_float(f32[c]);
    else if (dtype == DS_F32)
        for (int64_t c = 0; c < n; c++) keys[c] = turned ^ key_of_float(f32[c * step]);
    else if (dtype == DS_F64)
        for (int64_t c = 0; c < n; c++) keys[c] = turned ^ key_of_double(f64[c * step]);
    else
        for (int64_t c = 0; c < n; c++) keys[c] = turned ^ key_of_integer(i64[c * step]);
}

/* int64 of x's shape with k elements along dim: which element of each line
 * is the first, the second, ...; on x's device. */
static ds_tensor *sort_order(ds_tensor *x, int dim, bool descending, int64_t k)
{
    ds_dims shape = x->shape, lines = {3, {1, 1, 1}};
    for (int i = 0; i < shape.n; i++) lines.d[i < dim ? 0 : i == dim ? 1 : 2] *= shape.d[i];
    int64_t outer = lines.d[0], n = lines.d[1], inner = lines.d[2];
    if (shape.n) shape.d[dim] = k;
    ds_dtype dtype = sort_dtype(x);
    const void *values = sort_values(x, dtype);
    ds_tensor *order = dsi_new_host(DS_I64, shape);
    int64_t *p = ds_data_mut(order);
    if (!values || !p) return NULL;
    Keyed *line = dsi_alloc((size_t)(2 * n + 1) * sizeof *line);
    uint64_t *keys = dsi_alloc((size_t)(n + 1) * sizeof *keys),
             turned = descending ? UINT64_MAX : 0;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t at = o * n * inner + i;
            if (dtype == DS_F32 && inner == 1 && few_are_wanted(k, n)) {
                select_floats((const float *)values + at, n, k, turned, line);
            } else {
                line_keys(values, dtype, at, inner, n, turned, keys);
                order_keys(keys, n, k, line);
            }
            for (int64_t c = 0; c < k; c++) p[(o * k + c) * inner + i] = line[c].index;
        }
    dsi_free(keys);
    dsi_free(line);
    return dsi_beside(order, x, DS_I64);
}

/* Whether x's device finds the k largest of lines along dim itself: a pass over
 * the line for each of a few. */
static bool topk_on_device(const ds_tensor *x, int dim, int64_t k)
{
    return dsi_fusion(x->device, topk) && dsi_is_float(x) && x->dtype != DS_F64 && k <= 64 &&
           dim == x->shape.n - 1 && x->shape.d[dim] <= DSI_TOPK_ROW;
}

static ds_tensor *topk_order(ds_tensor *x, int64_t k)
{
    ds_dims shape = x->shape, rows = x->shape;
    int64_t n = shape.d[shape.n - 1];
    shape.d[shape.n - 1] = k, rows.n--;
    int64_t m = dsi_numel(rows);
    if (!(x = ds_contiguous(x)) || !dsi_acquire(x)) return NULL;
    ds_tensor *order = dsi_new_dtype(x, DS_I64, shape);
    return dsi_result_if(order && dsi_run_fusion(x, topk, dsi_v_shape(x, ds_shape(m, n)),
                                                 dsi_v_shape(order, ds_shape(m, k))),
                         order);
}

/* The first k of each line in that order; *indices, if wanted, becomes their
 * places. */
static ds_tensor *sorted(ds_tensor *x, int dim, bool descending, int64_t k, ds_tensor **indices)
{
    ds_dims shape = x->shape;
    ds_tensor *line = shape.n ? x : ds_reshape(x, ds_shape(1));
    bool there = line && descending && topk_on_device(line, dim, k);
    ds_tensor *order = there  ? topk_order(line, k)
                       : line ? sort_order(line, dim, descending, k)
                              : NULL;
    ds_tensor *y = order ? ds_gather(line, dim, order) : NULL;
    if (!shape.n && y) y = ds_reshape(y, shape), order = ds_reshape(order, shape);
    if (indices) *indices = y ? order : NULL;
    return y;
}

ds_tensor *ds_sort(ds_tensor *x, int dim, bool descending, ds_tensor **indices)
{
    if (indices) *indices = NULL;
    if (!dsi_live(x, "sort")) return dsi_null_operand("sort");
    if ((dim = dsi_want_dim("sort", x, dim)) < 0) return NULL;
    return sorted(x, dim, descending, x->shape.n ? x->shape.d[dim] : 1, indices);
}

ds_tensor *ds_topk(ds_tensor *x, int64_t k, int dim, bool smallest, ds_tensor **indices)
{
    if (indices) *indices = NULL;
    if (!dsi_live(x, "topk")) return dsi_null_operand("topk");
    if ((dim = dsi_want_dim("topk", x, dim)) < 0) return NULL;
    int64_t size = x->shape.n ? x->shape.d[dim] : 1;
    if (!x->shape.n && k == 0) k = 1; /* as in PyTorch: x itself */
    if (k < 0 || k > size)
        return dsi_refuse("topk: k is %lld, dimension %d of x %s has %lld elements: expected at "
                          "most as many",
                          (long long)k, dim, dsi_shape_text(x->shape), (long long)size);
    return sorted(x, dim, !smallest, k, indices);
}

/* ---- drawing ----------------------------------------------------------------------------------------- */

/* The weights of a row are finite, none is below 0, and enough are above. */
static bool weights_check(const double *w, int64_t n, int64_t row, int64_t wanted)
{
    int64_t bad, positive = dsi_rng_weights(w, n, &bad);
    if (positive < 0)
        return dsi_refuse("multinomial: weight %lld of row %lld is %g: expected finite ones that "
                          "are not below 0",
                          (long long)bad, (long long)row, w[bad]);
    if (positive >= wanted) return true;
    return dsi_refuse("multinomial: row %lld has %lld weights above 0: expected at least %lld",
                      (long long)row, (long long)positive, (long long)wanted);
}

/* Without, and for one draw. */
static void draw_without(const double *w, int64_t n, int64_t draws, bool narrow, Keyed *first,
                         uint64_t *keys, int64_t *out)
{
    double *place = (double *)(first + n);
    dsi_rng_race(dsi_rng_default(), w, n, narrow, place);
    for (int64_t i = 0; i < n; i++) keys[i] = ~key_of_double(place[i]);
    order_keys(keys, n, draws, first);
    for (int64_t d = 0; d < draws; d++) out[d] = first[d].index;
}

static bool multinomial_check(const ds_tensor *x, int64_t draws, bool replacement)
{
    if (!dsi_want_float("multinomial", x)) return false;
    if (x->shape.n < 1 || x->shape.n > 2 || !x->shape.d[x->shape.n - 1])
        return dsi_refuse("multinomial: x is %s: expected [C] or [N,C], C at least 1",
                          dsi_shape_text(x->shape));
    int64_t classes = x->shape.d[x->shape.n - 1];
    if (draws < 1 || (!replacement && draws > classes))
        return dsi_refuse("multinomial: %lld draws from %lld classes: expected at least 1%s",
                          (long long)draws, (long long)classes,
                          replacement ? "" : ", and no more without replacement");
    return true;
}

ds_tensor *ds_multinomial(ds_tensor *x, int64_t draws, bool replacement)
{
    if (!dsi_live(x, "multinomial")) return dsi_null_operand("multinomial");
    if (!multinomial_check(x, draws, replacement)) return NULL;
    ds_dims shape = x->shape;
    int64_t n = shape.d[shape.n - 1], rows = shape.n == 2 ? shape.d[0] : 1;
    shape.d[shape.n - 1] = draws;
    const double *w = sort_values(x, DS_F64);
    bool narrow = x->dtype != DS_F64;
    ds_tensor *y = dsi_new_host(DS_I64, shape);
    int64_t *out = ds_data_mut(y);
    for (int64_t r = 0; r < rows; r++)
        if (!w || !out || !weights_check(w + r * n, n, r, replacement ? 1 : draws)) return NULL;
    Keyed *first = dsi_alloc((size_t)(2 * n) * sizeof *first);
    uint64_t *keys = dsi_alloc((size_t)n * sizeof *keys);
    for (int64_t r = 0; r < rows; r++)
        if (replacement && draws > 1)
            dsi_rng_draw(dsi_rng_default(), w + r * n, n, narrow, out + r * draws, draws);
        else
            draw_without(w + r * n, n, draws, narrow, first, keys, out + r * draws);
    dsi_free(keys);
    dsi_free(first);
    return dsi_beside(y, x, DS_I64);
}
