/* ops/arrange.c: the same elements in other places: split, flip, roll, repeat,
 * pad, and triangles of matrices.
 *
 *     pad    y = value, but y[before + i] = x[i]; dx = that part of dy
 * All others are made of slices, copies and index_select. Dimension i of x is
 * padded by before[i] and after[i] elements, which may be negative: cut off.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include "base/int.h"

/* ---- parts ------------------------------------------------------------------------------------------- */

int ds_split_sizes(ds_tensor *x, int n, const int64_t *sizes, int dim, ds_tensor **out)
{
    int64_t total = 0, begin = 0;
    if (!dsi_live_all("split", x, sizes, out)) return dsi_null_operand("split"), 0;
    if (!x->shape.n) return dsi_refuse("split: x is []: expected a dimension to split"), 0;
    if ((dim = dsi_want_dim("split", x, dim)) < 0) return 0;
    for (int i = 0; i < n; i++) {
        if (sizes[i] < 0 || sizes[i] > x->shape.d[dim])
            return dsi_refuse("split: size %d is %lld: expected 0 to %lld", i, (long long)sizes[i],
                              (long long)x->shape.d[dim]),
                   0;
        total += sizes[i];
    }
    if (total != x->shape.d[dim])
        return dsi_refuse("split: the %d sizes are %lld in all: expected %lld, x is %s", n,
                          (long long)total, (long long)x->shape.d[dim], dsi_shape_text(x->shape)),
               0;
    for (int i = 0; i < n; begin += sizes[i++])
        if (!(out[i] = ds_slice(x, dim, begin, begin + sizes[i]))) return 0;
    return n;
}

/* Parts of `size` along dim, the last one smaller; at least one. */
static int split_parts(const char *op, ds_tensor *x, int64_t size, int dim, ds_tensor **out,
                       int most)
{
    int64_t all = x->shape.d[dim], n = size > 0 && all ? (all - 1) / size + 1 : 1;
    if (n > most)
        return dsi_refuse("%s: x %s makes %lld parts of %lld in dimension %d: expected at most %d",
                          op, dsi_shape_text(x->shape), (long long)n, (long long)size, dim, most),
               0;
    for (int64_t i = 0; i < n; i++)
        if (!(out[i] = ds_slice(x, dim, i * size, (i + 1) * size))) return 0;
    return (int)n;
}

static bool split_check(const char *op, ds_tensor *x, ds_tensor **out, int *dim)
{
    if (!dsi_live_all(op, x, out)) return dsi_null_operand(op);
    if (!x->shape.n) return dsi_refuse("%s: x is []: expected a dimension to split", op);
    return (*dim = dsi_want_dim(op, x, *dim)) >= 0;
}

int ds_split_size(ds_tensor *x, int64_t size, int dim, ds_tensor **out, int most)
{
    if (!split_check("split", x, out, &dim)) return 0;
    if (size < 0 || (size == 0 && x->shape.d[dim]))
        return dsi_refuse("split: size is %lld: expected at least 1", (long long)size), 0;
    return split_parts("split", x, size, dim, out, most);
}

int ds_chunk(ds_tensor *x, int chunks, int dim, ds_tensor **out)
{
    if (!split_check("chunk", x, out, &dim)) return 0;
    if (chunks < 1) return dsi_refuse("chunk: %d chunks: expected at least 1", chunks), 0;
    if (!x->shape.d[dim]) { /* all of them are empty */
        for (int i = 0; i < chunks; i++)
            if (!(out[i] = ds_slice(x, dim, 0, 0))) return 0;
        return chunks;
    }
    return split_parts("chunk", x, (x->shape.d[dim] + chunks - 1) / chunks, dim, out, chunks);
}

/* ---- other orders ------------------------------------------------------------------------------------ */

/* y[i] = x[place(i - begin, size)] along dim, 0 <= i < n. */
static ds_tensor *rearranged(ds_tensor *x, int dim, int64_t n, int64_t (*place)(int64_t, int64_t),
                             int64_t begin)
{
    ds_tensor *host = dsi_new_host(DS_I64, ds_shape(n));
    int64_t *p = ds_data_mut(host);
    for (int64_t i = 0; p && i < n; i++) p[i] = place(i - begin, x->shape.d[dim]);
    ds_tensor *index = p ? dsi_beside(host, x, DS_I64) : NULL;
    return ds_index_select(x, dim, index);
}

/* A copy of x in which the dimensions whose bits are set run backwards. */
static ds_tensor *flipped(const ds_tensor *x, unsigned dims)
{
    if (!x || !dsi_acquire(x)) return NULL;
    ds_tensor *y = dsi_new_like(x);
    dsi_view v = dsi_v(x);
    for (int i = 0; i < v.n; i++)
        if (dims >> i & 1 && v.d[i]) {
            v.p = (char *)v.p + (v.d[i] - 1) * v.s[i] * (int64_t)ds_dtype_size(v.dtype);
            v.s[i] = -v.s[i];
        }
    return dsi_result_if(dsi_run(y, copy, v, dsi_v(y)), y);
}

static void flip_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_accumulate_grad(n, 0, flipped(dy, *(const unsigned *)dsi_attr(n)));
}

const dsi_op dsi_op_flip = {.name = "flip", .backward = flip_backward};

ds_tensor *ds_flip(ds_tensor *x, ds_dims dims)
{
    unsigned seen = 0;
    if (!dsi_live(x, "flip")) return dsi_null_operand("flip");
    for (int i = 0; i < dims.n; i++) {
        int dim = dsi_want_dim("flip", x, (int)dims.d[i]);
        if (dim < 0) return NULL;
        if (seen >> dim & 1)
            return dsi_refuse("flip: dimension %d occurs twice in %s", dim, dsi_shape_text(dims));
        seen |= 1u << dim;
    }

    ds_tensor *y = flipped(x, seen);

    dsi_set_attr(dsi_record(&dsi_op_flip, y, x), &seen, sizeof seen);
    return y;
}

typedef struct Roll {
    ds_dims shifts, dims; /* each shift is smaller than its dimension */
} Roll;

/* x with its last `shift` elements along dim in front. */
static ds_tensor *rolled(ds_tensor *x, int dim, int64_t shift)
{
    int64_t size = x->shape.d[dim], cut = size ? size - (shift % size + size) % size : 0;
    if (cut == size) return x;
    ds_tensor *parts[] = {ds_slice(x, dim, cut, size), ds_slice(x, dim, 0, cut)};
    return ds_cat(parts, 2, dim);
}

/* Without a record; backwards if sign is -1. x itself, if nothing moves. */
static ds_tensor *rolled_all(ds_tensor *x, const Roll *r, int sign)
{
    bool recording = ds_set_grad(false);
    for (int i = 0; i < r->dims.n && x; i++)
        x = rolled(x, (int)r->dims.d[i], sign * r->shifts.d[i]);
    ds_set_grad(recording);
    return x;
}

static void roll_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_accumulate_grad(n, 0, rolled_all(dy, dsi_attr(n), -1));
}

const dsi_op dsi_op_roll = {.name = "roll", .backward = roll_backward};

ds_tensor *ds_roll(ds_tensor *x, ds_dims shifts, ds_dims dims)
{
    if (!dsi_live(x, "roll")) return dsi_null_operand("roll");
    if (!dims.n && shifts.n == 1) {
        ds_tensor *flat = ds_reshape(x, ds_shape(dsi_numel(x->shape)));
        return flat ? ds_reshape(ds_roll(flat, shifts, ds_shape(0)), x->shape) : NULL;
    }
    if (shifts.n != dims.n || !dims.n)
        return dsi_refuse("roll: shifts are %s, dims %s: expected a shift for each dimension",
                          dsi_shape_text(shifts), dsi_shape_text(dims));
    Roll roll = {shifts, dims};
    for (int i = 0; i < dims.n; i++) {
        int dim = x->shape.n ? dsi_want_dim("roll", x, (int)dims.d[i]) : -1;
        if (dim < 0) return x->shape.n ? NULL : dsi_refuse("roll: x is []: expected dimensions");
        roll.dims.d[i] = dim;
        roll.shifts.d[i] %= dsi_max(x->shape.d[dim], 1);
    }
    ds_tensor *y = rolled_all(x, &roll, 1);
    if (!y || y == x) return y;
    dsi_set_attr(dsi_record(&dsi_op_roll, y, x), &roll, sizeof roll);
    return y;
}

/* ---- repetitions ------------------------------------------------------------------------------------- */

/* Dimension dim n times: the whole of it n times, or each element. */
static ds_tensor *repeated(ds_tensor *x, int dim, int64_t n, bool each)
{
    ds_dims wide = x->shape, shape = x->shape;
    if (n == 1) return x;
    int at = each ? dim + 1 : dim;
    for (int i = wide.n++; i > at; i--) wide.d[i] = wide.d[i - 1];
    wide.d[at] = n;
    shape.d[dim] *= n;
    return ds_reshape(ds_expand(ds_unsqueeze(x, at), wide), shape);
}

ds_tensor *ds_repeat(ds_tensor *x, ds_dims repeats)
{
    if (!dsi_live(x, "repeat")) return dsi_null_operand("repeat");
    bool good = repeats.n >= x->shape.n && repeats.n <= DS_MAX_DIMS;
    for (int i = 0; i < repeats.n && good; i++) good = repeats.d[i] >= 0;
    if (!good)
        return dsi_refuse("repeat: x is %s, repeats are %s: expected a number of repeats, 0 or "
                          "more, for each dimension",
                          dsi_shape_text(x->shape), dsi_shape_text(repeats));
    while (x && x->shape.n < repeats.n) x = ds_unsqueeze(x, 0);
    for (int i = 0; i < repeats.n && x; i++) x = repeated(x, i, repeats.d[i], false);
    return x;
}

ds_tensor *ds_repeat_interleave(ds_tensor *x, int64_t repeats, int dim)
{
    if (!dsi_live(x, "repeat_interleave")) return dsi_null_operand("repeat_interleave");
    if (repeats < 0)
        return dsi_refuse("repeat_interleave: %lld repeats: expected 0 or more",
                          (long long)repeats);
    if ((dim = dsi_want_dim("repeat_interleave", x, dim)) < 0) return NULL;
    if (!x->shape.n) x = ds_unsqueeze(x, 0);
    return x ? repeated(x, dim, repeats, true) : NULL;
}

/* The place in x of each slice of the result; NULL with the message. */
static ds_tensor *repeats_places(const ds_tensor *x, int dim, ds_tensor *repeats)
{
    int64_t size = x->shape.n ? x->shape.d[dim] : 1, total = 0, n = 0;
    if (repeats->dtype != DS_I64 || repeats->shape.n != 1 ||
        (repeats->shape.d[0] != size && repeats->shape.d[0] != 1))
        return dsi_refuse("repeat_interleave: repeats are %s %s, dimension %d of x %s has %lld "
                          "elements: expected int64 [%lld] or [1]",
                          ds_dtype_name(repeats->dtype), dsi_shape_text(repeats->shape), dim,
                          dsi_shape_text(x->shape), (long long)size, (long long)size);
    const int64_t *each = ds_data(repeats);
    if (!each) return NULL;
    int one = repeats->shape.d[0] == 1 ? 0 : 1;
    for (int64_t k = 0; k < size; total += each[one * k++])
        if (each[one * k] < 0)
            return dsi_refuse("repeat_interleave: %lld repeats: expected 0 or more",
                              (long long)each[one * k]);
    ds_tensor *places = dsi_new_host(DS_I64, ds_shape(total));
    int64_t *at = ds_data_mut(places);
    for (int64_t k = 0; at && k < size; k++)
        for (int64_t i = 0; i < each[one * k]; i++) at[n++] = k;
    return at ? dsi_beside(places, x, DS_I64) : NULL;
}

ds_tensor *ds_repeat_interleave_tensor(ds_tensor *x, ds_tensor *repeats, int dim)
{
    if (!dsi_live_all("repeat_interleave", x, repeats))
        return dsi_null_operand("repeat_interleave");
    if ((dim = dsi_want_dim("repeat_interleave", x, dim)) < 0) return NULL;
    repeats = dsi_wide_index(repeats);
    ds_tensor *places = repeats ? repeats_places(x, dim, repeats) : NULL;
    if (!x->shape.n) x = ds_unsqueeze(x, 0);
    return places && x ? ds_index_select(x, dim, places) : NULL;
}

/* ---- padding ----------------------------------------------------------------------------------------- */

typedef struct Pad {
    ds_dims x; /* shape */
    int64_t before[DS_MAX_DIMS];
} Pad;

/* The part of y in which x is. */
static ds_tensor *pad_inside(const ds_tensor *y, const Pad *p)
{
    int64_t offset = y->offset;
    for (int i = 0; i < p->x.n; i++) offset += p->before[i] * y->stride[i];
    return dsi_view_of(y, p->x, y->stride, offset);
}

static void pad_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_accumulate_grad(n, 0, pad_inside(dy, dsi_attr(n)));
}

const dsi_op dsi_op_pad = {.name = "pad", .backward = pad_backward};

/* Fills y around x: a slab on either side of each dimension. Those of the last
 * one would be many short lines, so y is filled as a whole. */
static bool pad_around(ds_tensor *y, const Pad *p, const int64_t *after, double value)
{
    int last = p->x.n - 1;
    if (last < 0 || p->before[last] || after[last]) return dsi_fill(y, value);
    ds_dims rest = y->shape;
    int64_t offset = y->offset;
    for (int i = 0; i < last; i++) {
        int64_t begin[2] = {0, p->before[i] + p->x.d[i]}, size[2] = {p->before[i], after[i]};
        for (int side = 0; side < 2; side++) {
            ds_dims slab = rest;
            int64_t at = offset + begin[side] * y->stride[i];
            slab.d[i] = size[side];
            if (size[side] && !dsi_fill(dsi_view_of(y, slab, y->stride, at), value)) return false;
        }
        rest.d[i] = p->x.d[i], offset += p->before[i] * y->stride[i];
    }
    return true;
}

ds_tensor *dsi_pad(ds_tensor *x, const int64_t *before, const int64_t *after, double value)
{
    Pad p = {.x = x->shape};
    ds_dims shape = x->shape;
    for (int i = 0; i < shape.n; i++) p.before[i] = before[i], shape.d[i] += before[i] + after[i];
    ds_tensor *y = dsi_new(x, shape);
    if (!y || !pad_around(y, &p, after, value) || dsi_copy(pad_inside(y, &p), x) != DS_OK)
        return NULL;
    if (dsi_is_float(x)) dsi_set_attr(dsi_record(&dsi_op_pad, y, x), &p, sizeof p);
    return y;
}

/* Which element of a dimension of `size` is i places from its begin. */
static int64_t place_reflected(int64_t i, int64_t size)
{
    return i < 0 ? -i : i < size ? i : 2 * (size - 1) - i;
}
static int64_t place_replicated(int64_t i, int64_t size)
{
    return i < 0 ? 0 : i < size ? i : size - 1;
}
static int64_t place_circular(int64_t i, int64_t size) { return (i + size) % size; }

/* Padding by elements of x: one dimension. */
static ds_tensor *pad_by_elements(ds_tensor *x, int dim, int64_t before, int64_t after,
                                  ds_pad_mode mode)
{
    static int64_t (*const place[])(int64_t, int64_t) = {[DS_PAD_REFLECT] = place_reflected,
                                                         [DS_PAD_REPLICATE] = place_replicated,
                                                         [DS_PAD_CIRCULAR] = place_circular};
    int64_t size = x->shape.d[dim], most = before > after ? before : after;
    int64_t limit = mode == DS_PAD_REFLECT ? size - 1 : mode == DS_PAD_CIRCULAR ? size : INT64_MAX;
    if (most > limit || (most > 0 && !size))
        return dsi_refuse("pad: by %lld and %lld in dimension %d of x %s: expected at most %lld",
                          (long long)before, (long long)after, dim, dsi_shape_text(x->shape),
                          (long long)(size ? limit : 0));
    return rearranged(x, dim, size + before + after, place[mode], before);
}

/* The pairs of `pad`, from the last dimension on, as before and after of each
 * dimension of x; what is negative is cut off x. Beside a reflection, which may
 * show what is cut off, it stays negative. */
static ds_tensor *pad_cut(ds_tensor *x, ds_dims pad, ds_pad_mode mode, int64_t *before,
                          int64_t *after)
{
    if (pad.n % 2 || pad.n / 2 > x->shape.n)
        return dsi_refuse("pad: x is %s, pad %s: expected a pair for each of the last dimensions",
                          dsi_shape_text(x->shape), dsi_shape_text(pad));
    for (int i = 0; i < pad.n / 2 && x; i++) {
        int dim = x->shape.n - 1 - i;
        int64_t size = x->shape.d[dim], low = pad.d[2 * i], high = pad.d[2 * i + 1];
        int64_t left = 0;
        if (low < -size || high < -size || __builtin_add_overflow(low, high, &left) ||
            __builtin_add_overflow(size, left, &left) || left < 0)
            return dsi_refuse("pad: by %lld and %lld in dimension %d of x %s: %s", (long long)low,
                              (long long)high, dim, dsi_shape_text(x->shape),
                              low > 0 && high > 0 ? "more is left than any memory holds"
                                                  : "less than nothing is left");
        int64_t begin = low < 0 ? -low : 0, end = high < 0 ? size + high : size;
        bool whole = mode == DS_PAD_REFLECT && (low > 0 || high > 0);
        before[dim] = low > 0 || whole ? low : 0, after[dim] = high > 0 || whole ? high : 0;
        if (!whole && (begin > 0 || end < size)) x = ds_slice(x, dim, begin, end);
    }
    return x;
}

ds_tensor *ds_pad_with(ds_tensor *x, ds_dims pad, ds_pad_opts o)
{
    int64_t before[DS_MAX_DIMS] = {0}, after[DS_MAX_DIMS] = {0};
    if (!dsi_live(x, "pad")) return dsi_null_operand("pad");
    if ((unsigned)o.mode > DS_PAD_CIRCULAR)
        return dsi_refuse("pad: there is no mode number %d", (int)o.mode);
    int pairs = pad.n / 2, n = x->shape.n;
    if (o.mode != DS_PAD_CONSTANT &&
        (o.value != 0 || pairs < 1 || (n != pairs + 1 && n != pairs + 2)))
        return dsi_refuse(
            "pad: x is %s, pad %s, value %g: without mode constant expected no value, "
            "and a pair for each dimension after [N,C] or [C]",
            dsi_shape_text(x->shape), dsi_shape_text(pad), o.value);
    if (!(x = pad_cut(x, pad, o.mode, before, after))) return NULL;
    if (o.mode == DS_PAD_CONSTANT) return dsi_pad(x, before, after, o.value);
    for (int i = x->shape.n - 1; i >= 0 && x; i--)
        if (before[i] || after[i]) x = pad_by_elements(x, i, before[i], after[i], o.mode);
    return x;
}

ds_tensor *ds_pad(ds_tensor *x, ds_dims pad) { return ds_pad_with(x, pad, (ds_pad_opts){0}); }

/* ---- triangles --------------------------------------------------------------------------------------- */

/* int64 begin .. begin + n - 1, of that shape, beside x */
static ds_tensor *count_beside(const ds_tensor *x, int64_t begin, int64_t n, ds_dims shape)
{
    ds_tensor *y = dsi_arange(x, begin, n, 1);
    return y ? ds_reshape(y, shape) : NULL;
}

/* x [...,M,N] with 0 above (or below) that diagonal. */
static ds_tensor *triangle(const char *op, ds_tensor *x, int64_t diagonal, bool lower)
{
    if (!dsi_live(x, op)) return dsi_null_operand(op);
    int n = x->shape.n;
    if (n < 2) return dsi_refuse("%s: x is %s: expected [...,M,N]", op, dsi_shape_text(x->shape));
    int64_t rows = x->shape.d[n - 2], columns = x->shape.d[n - 1], far = rows + columns;
    diagonal = diagonal < -far ? -far : diagonal > far ? far : diagonal;
    ds_tensor *last = count_beside(x, diagonal, rows, ds_shape(rows, 1)); /* column of a row */
    ds_tensor *column = count_beside(x, 0, columns, ds_shape(columns));
    ds_tensor *keep = lower ? ds_le(column, last) : ds_ge(column, last);
    return ds_where(keep, x, dsi_number_beside(x, 0));
}

ds_tensor *ds_tril(ds_tensor *x, int64_t diagonal) { return triangle("tril", x, diagonal, true); }
ds_tensor *ds_triu(ds_tensor *x, int64_t diagonal) { return triangle("triu", x, diagonal, false); }
