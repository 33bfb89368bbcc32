/* ops/shape.c: other shapes of the same elements, as views if possible, and
 * their
 * gradients.
 *
 * A view is a handle with other strides on the same storage. Its gradient is
 *
 *     reshape, permute   the inverse view of dy
 *     slice              dy, added to its place in a gradient of x's shape
 *     expand             dy, summed over the dimensions that were repeated
 *     cat                slices of dy
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include "base/mem.h"

/* ---- reshape ----------------------------------------------------------------------------------------- */

/* Sets stride to strides by which x's elements, in row-major order, have
 * `shape`; false if there are none. Dimensions of x that are contiguous to each
 * other form a group, innermost first; the new dimensions must divide each
 * group exactly. */
static bool strides_for(const ds_tensor *x, ds_dims shape, int64_t *stride)
{
    if (dsi_is_contiguous(x) || !dsi_numel(shape)) {
        dsi_row_major(shape, stride);
        return true;
    }
    int k = shape.n - 1;
    for (int i = x->shape.n - 1; i >= 0;) {
        int64_t step, size = x->shape.d[i], part = 1;
        int from = i;
        while (from > 0 && dsi_merged(x, from - 1, i + 1, &step)) size *= x->shape.d[--from];
        dsi_merged(x, from, i + 1, &step);
        for (; k >= 0 && (part < size || shape.d[k] == 1); k--) {
            stride[k] = step * part;
            part *= shape.d[k];
        }
        if (part != size) return false;
        i = from - 1;
    }
    return true;
}

/* x with another shape outside of the graph: a view, or a row-major copy.
 * shape has x's number of elements. x NULL is passed on. */
static ds_tensor *reshape_view(ds_tensor *x, ds_dims shape)
{
    int64_t stride[DS_MAX_DIMS];
    if (!x) return NULL;
    if (strides_for(x, shape, stride)) return dsi_view_of(x, shape, stride, x->offset);
    ds_tensor *copy = dsi_new(x, x->shape);
    if (dsi_copy(copy, x) != DS_OK) return NULL;
    dsi_row_major(shape, stride);
    return dsi_view_of(copy, shape, stride, 0);
}

/* dy may have any strides, so this is a view or a copy too. */
static void reshape_backward(dsi_node *n, ds_tensor *dy)
{
    const ds_dims *x_shape = dsi_attr(n);
    dsi_accumulate_grad(n, 0, reshape_view(dy, *x_shape));
}

const dsi_op dsi_op_reshape = {.name = "reshape", .backward = reshape_backward};

/* Records that y has x's elements in x's order, and returns y. */
static ds_tensor *record_reshape(ds_tensor *y, ds_tensor *x)
{
    dsi_set_attr(dsi_record(&dsi_op_reshape, y, x), &x->shape, sizeof x->shape);
    return y;
}

/* Replaces a -1 in `shape` by the size that is missing; false, with the
 * message, if the sizes do not give x's number of elements. */
static bool reshape_solve(const ds_tensor *x, ds_dims *shape)
{
    int64_t have = dsi_numel(x->shape), want = 1;
    int unknown = -1;
    ds_dims given = *shape;
    if (shape->n < 0 || shape->n > DS_MAX_DIMS)
        return dsi_refuse("reshape: %d dimensions: expected 0 to %d", shape->n, DS_MAX_DIMS);
    for (int i = 0; i < shape->n; i++) {
        if (shape->d[i] < -1 || (shape->d[i] == -1 && unknown >= 0))
            return dsi_refuse("reshape: to %s: expected sizes and at most one -1",
                              dsi_shape_text(given));
        if (shape->d[i] == -1)
            unknown = i;
        else if (__builtin_mul_overflow(want, shape->d[i], &want))
            return dsi_refuse("reshape: to %s: more elements than any memory has",
                              dsi_shape_text(given));
    }
    if (unknown >= 0 && want > 0 && have % want == 0) {
        shape->d[unknown] = have / want;
        return true;
    }
    if (unknown < 0 && want == have) return true;
    return dsi_refuse("reshape: x is %s: its %lld elements do not make %s",
                      dsi_shape_text(x->shape), (long long)have, dsi_shape_text(given));
}

/* shape: sizes, of which one may be -1 and is computed from the others. The
 * result shares x's memory where strides allow it, so that writing to one
 * changes the other, as in PyTorch. */
ds_tensor *ds_reshape(ds_tensor *x, ds_dims shape)
{
    if (!dsi_live(x, "reshape")) return dsi_null_operand("reshape");
    if (!reshape_solve(x, &shape)) return NULL;
    ds_tensor *y = reshape_view(x, shape);
    return y ? record_reshape(y, x) : NULL;
}

/* A view where strides allow it, else a copy. */
ds_tensor *ds_flatten_range(ds_tensor *x, int from_dim, int to_dim)
{
    if (!dsi_live(x, "flatten")) return dsi_null_operand("flatten");
    int from = dsi_want_dim("flatten", x, from_dim), to = dsi_want_dim("flatten", x, to_dim);
    if (from < 0 || to < 0) return NULL;
    if (from > to)
        return dsi_refuse("flatten: from dimension %d to %d of x %s", from_dim, to_dim,
                          dsi_shape_text(x->shape));
    ds_dims shape = {.n = 0};
    for (int i = 0; i < x->shape.n; i++) {
        if (i > from && i <= to)
            shape.d[shape.n - 1] *= x->shape.d[i];
        else
            shape.d[shape.n++] = x->shape.d[i];
    }
    if (!shape.n) shape = ds_shape(1); /* a scalar becomes one element, as in PyTorch */
    return ds_reshape(x, shape);
}

ds_tensor *ds_flatten(ds_tensor *x, int from_dim) { return ds_flatten_range(x, from_dim, -1); }

ds_tensor *ds_unflatten(ds_tensor *x, int dim, ds_dims sizes)
{
    if (!dsi_live(x, "unflatten")) return dsi_null_operand("unflatten");
    if ((dim = dsi_want_dim("unflatten", x, dim)) < 0) return NULL;
    int n = x->shape.n ? x->shape.n : 1;
    if (sizes.n < 1 || n + sizes.n - 1 > DS_MAX_DIMS)
        return dsi_refuse("unflatten: x is %s, sizes are %s: expected 1 size or more, and at most "
                          "%d dimensions",
                          dsi_shape_text(x->shape), dsi_shape_text(sizes), DS_MAX_DIMS);
    ds_dims shape = {.n = n + sizes.n - 1};
    for (int i = 0; i < shape.n; i++)
        shape.d[i] = i < dim             ? x->shape.d[i]
                     : i < dim + sizes.n ? sizes.d[i - dim]
                                         : x->shape.d[i - sizes.n + 1];
    ds_tensor *y = ds_reshape(x, shape);
    return y ? y : (dsi_fail_in("unflatten", ds_error_status()), NULL);
}

/* ---- dimensions of size 1 ---------------------------------------------------------------------------- */

/* A view with a dimension of 1 before `dim`; -1: at the end. */
ds_tensor *ds_unsqueeze(ds_tensor *x, int dim)
{
    if (!dsi_live(x, "unsqueeze")) return dsi_null_operand("unsqueeze");
    int n = x->shape.n, at = dsi_dim(dim, n + 1);
    if (at < 0 || n == DS_MAX_DIMS)
        return dsi_refuse("unsqueeze: dimension %d for x %s: expected %d to %d, of at most %d "
                          "dimensions",
                          dim, dsi_shape_text(x->shape), -n - 1, n, DS_MAX_DIMS);
    ds_dims shape = {.n = n + 1};
    int64_t stride[DS_MAX_DIMS];
    for (int i = 0, k = 0; i <= n; i++) {
        shape.d[i] = i == at ? 1 : x->shape.d[k];
        stride[i] = i == at ? (k < n ? x->stride[k] * x->shape.d[k] : 1) : x->stride[k];
        if (i != at) k++;
    }
    return record_reshape(dsi_view_of(x, shape, stride, x->offset), x);
}

/* A view without dimension `dim`, which must be 1. */
ds_tensor *ds_squeeze(ds_tensor *x, int dim)
{
    if (!dsi_live(x, "squeeze")) return dsi_null_operand("squeeze");
    int at = dsi_want_dim("squeeze", x, dim);
    if (at < 0) return NULL;
    if (!x->shape.n || x->shape.d[at] != 1) return x; /* as in PyTorch: nothing to do */
    ds_dims shape = {.n = 0};
    int64_t stride[DS_MAX_DIMS];
    for (int i = 0; i < x->shape.n; i++) {
        if (i == at) continue;
        stride[shape.n] = x->stride[i];
        shape.d[shape.n++] = x->shape.d[i];
    }
    return record_reshape(dsi_view_of(x, shape, stride, x->offset), x);
}

/* ---- permute ----------------------------------------------------------------------------------------- */

/* Dimension i of y is dimension order[i] of x. */
static ds_tensor *permuted(const ds_tensor *x, ds_dims order)
{
    ds_dims shape = {.n = order.n};
    int64_t stride[DS_MAX_DIMS];
    for (int i = 0; i < order.n; i++) {
        shape.d[i] = x->shape.d[order.d[i]];
        stride[i] = x->stride[order.d[i]];
    }
    return dsi_view_of(x, shape, stride, x->offset);
}

/* Attribute: order. dx is a view of dy in the inverse order. */
static void permute_backward(dsi_node *n, ds_tensor *dy)
{
    const ds_dims *order = dsi_attr(n);
    ds_dims back = {.n = order->n}; /* the inverse order */
    for (int i = 0; i < order->n; i++) back.d[order->d[i]] = i;
    dsi_accumulate_grad(n, 0, permuted(dy, back));
}

const dsi_op dsi_op_permute = {.name = "permute", .backward = permute_backward};

/* A view: order.d[i] is the dimension of x that becomes the i-th. */
ds_tensor *ds_permute(ds_tensor *x, ds_dims order)
{
    if (!dsi_live(x, "permute")) return dsi_null_operand("permute");
    bool fits = order.n == x->shape.n, seen[DS_MAX_DIMS] = {false};
    ds_dims given = order;
    for (int i = 0; fits && i < order.n; i++) {
        bool small = order.d[i] >= -order.n && order.d[i] < order.n;
        if (small && order.d[i] < 0) order.d[i] += order.n;
        fits = small && !seen[order.d[i]];
        if (fits) seen[order.d[i]] = true;
    }
    if (!fits)
        return dsi_refuse("permute: x is %s: %s is no order of its dimensions",
                          dsi_shape_text(x->shape), dsi_shape_text(given));
    ds_tensor *y = permuted(x, order);
    dsi_set_attr(dsi_record(&dsi_op_permute, y, x), &order, sizeof order);
    return y;
}

/* A view with two dimensions exchanged. */
ds_tensor *ds_transpose(ds_tensor *x, int dim0, int dim1)
{
    if (!dsi_live(x, "transpose")) return dsi_null_operand("transpose");
    int a = dsi_want_dim("transpose", x, dim0), b = dsi_want_dim("transpose", x, dim1);
    if (a < 0 || b < 0) return NULL;
    ds_dims order = {.n = x->shape.n};
    for (int i = 0; i < order.n; i++) order.d[i] = i == a ? b : i == b ? a : i;
    return ds_permute(x, order);
}

/* ---- slice ------------------------------------------------------------------------------------------- */

typedef struct Slice {
    ds_dims x; /* shape */
    int dim;
    int64_t begin;
} Slice;

/* Elements begin..end-1 of dimension dim, as a view. */
static ds_tensor *sliced(const ds_tensor *x, int dim, int64_t begin, int64_t end)
{
    ds_dims shape = x->shape;
    shape.d[dim] = end - begin;
    return dsi_view_of(x, shape, x->stride, x->offset + begin * x->stride[dim]);
}

/* Adds dy to its place in the gradient of x, which all slices of x share. */
static void slice_backward(dsi_node *n, ds_tensor *dy)
{
    const Slice *s = dsi_attr(n);
    ds_tensor *dx = dsi_grad_buffer(n, 0, dy, s->x);
    ds_tensor *part = dx ? sliced(dx, s->dim, s->begin, s->begin + dy->shape.d[s->dim]) : NULL;
    if (!dsi_run_op(part, binary, DSI_ADD, 1.0, dsi_v(part), dsi_v(dy), dsi_v(part)))
        dsi_accumulate_grad(n, 0, NULL);
}

const dsi_op dsi_op_slice = {.name = "slice", .backward = slice_backward};

/* Where a Python slice's bound is: from the end if it is negative, within 0 and
 * size. */
static int64_t slice_bound(int64_t at, int64_t size)
{
    if (at < 0) at = at < -size ? 0 : at + size;
    return at < size ? at : size;
}

/* A view of begin .. end - 1 along dim. Its gradient is added into that of x,
 * without a copy of x's size. */
ds_tensor *ds_slice(ds_tensor *x, int dim, int64_t begin, int64_t end)
{
    if (!dsi_live(x, "slice")) return dsi_null_operand("slice");
    if (!x->shape.n) return dsi_refuse("slice: x is [], which has no dimension to cut");
    Slice s = {.x = x->shape, .dim = dsi_want_dim("slice", x, dim)};
    if (s.dim < 0) return NULL;
    s.begin = slice_bound(begin, x->shape.d[s.dim]);
    end = slice_bound(end, x->shape.d[s.dim]);
    ds_tensor *y = sliced(x, s.dim, s.begin, end > s.begin ? end : s.begin);
    dsi_set_attr(dsi_record(&dsi_op_slice, y, x), &s, sizeof s);
    return y;
}

/* A view at `index` along dim, without that dimension; negative ones count from
 * the end. */
ds_tensor *ds_select(ds_tensor *x, int dim, int64_t index)
{
    if (!dsi_live(x, "select")) return dsi_null_operand("select");
    if (!x->shape.n) return dsi_refuse("select: x is [], which has no dimension to choose from");
    int at = dsi_want_dim("select", x, dim);
    if (at < 0) return NULL;
    int64_t size = x->shape.d[at], i = index < 0 ? index + size : index;
    if (i < 0 || i >= size)
        return dsi_refuse("select: index %lld in dimension %d of x %s: expected %lld to %lld",
                          (long long)index, dim, dsi_shape_text(x->shape), (long long)-size,
                          (long long)size - 1);
    return ds_squeeze(ds_slice(x, at, i, i + 1), at);
}

/* ---- expand ------------------------------------------------------------------------------------------ */

/* The gradient of a repeated element is the sum over its copies. */
static void expand_backward(dsi_node *n, ds_tensor *dy)
{
    const ds_dims *x_shape = dsi_attr(n);
    dsi_accumulate_grad(n, 0, dsi_sum_to(dy, *x_shape));
}

const dsi_op dsi_op_expand = {.name = "expand", .backward = expand_backward};

/* A view that repeats dimensions of 1 with stride 0; its gradient is summed
 * over them. */
ds_tensor *ds_expand(ds_tensor *x, ds_dims shape)
{
    if (!dsi_live(x, "expand")) return dsi_null_operand("expand");
    int missing = shape.n - x->shape.n;
    ds_dims given = shape;
    int64_t elements = 1;
    bool fits = missing >= 0 && shape.n <= DS_MAX_DIMS;
    for (int i = 0; fits && i < shape.n; i++) {
        int64_t have = i < missing ? 1 : x->shape.d[i - missing];
        if (shape.d[i] == -1 && i >= missing) shape.d[i] = have;
        fits = shape.d[i] >= 0 && (have == 1 || have == shape.d[i]);
        if (__builtin_mul_overflow(elements, shape.d[i], &elements))
            return dsi_refuse("expand: %s has more than 2^63 - 1 elements", dsi_shape_text(given));
    }
    if (!fits)
        return dsi_refuse("expand: x is %s, which does not broadcast to %s",
                          dsi_shape_text(x->shape), dsi_shape_text(given));
    if (!dsi_acquire(x)) return NULL;
    dsi_view v = dsi_v_expand(x, shape);
    ds_tensor *y = dsi_view_of(x, shape, v.s, x->offset);
    dsi_set_attr(dsi_record(&dsi_op_expand, y, x), &x->shape, sizeof x->shape);
    return y;
}

/* ---- concatenate ------------------------------------------------------------------------------------- */

typedef struct Cat {
    int dim, n;
    int64_t begin[]; /* [n + 1] of each part in y */
} Cat;

/* Each part's gradient is a view of dy: its own slice. */
static void cat_backward(dsi_node *n, ds_tensor *dy)
{
    const Cat *c = dsi_attr(n);
    for (int i = 0; i < c->n; i++)
        if (dsi_needs_input_grad(n, i))
            dsi_accumulate_grad(n, i, sliced(dy, c->dim, c->begin[i], c->begin[i + 1]));
}

const dsi_op dsi_op_cat = {.name = "cat", .backward = cat_backward};

/* True if all operands have one device, and one shape except in dimension
 * dim. */
static bool cat_check(ds_tensor **x, int n, int dim)
{
    for (int i = 1; i < n; i++) {
        if (!dsi_same_device("cat", x[0], x[i])) return false;
        ds_dims a = x[0]->shape, b = x[i]->shape;
        if (a.n == b.n) a.d[dim] = b.d[dim] = 0;
        if (!dsi_same_shape(a, b))
            return dsi_refuse(
                "cat: operand 0 is %s, operand %d is %s: only dimension %d may differ",
                dsi_shape_text(x[0]->shape), i, dsi_shape_text(x[i]->shape), dim);
    }
    return true;
}

/* Copies the parts to their places in y. */
static bool shape_join(ds_tensor *y, ds_tensor **x, const Cat *c)
{
    for (int i = 0; y && i < c->n; i++)
        if (dsi_copy(sliced(y, c->dim, c->begin[i], c->begin[i + 1]), x[i]) != DS_OK) return false;
    return y;
}

/* The dtype that all operands promote to. */
static ds_dtype cat_dtype(ds_tensor **x, int n)
{
    ds_tensor one = {.dtype = x[0]->dtype, .shape = {.n = 1}};
    for (int i = 1; i < n; i++) one.dtype = dsi_promoted(&one, x[i]);
    return one.dtype;
}

/* ds_cat of x in that dtype. */
static ds_tensor *cat_cast(ds_tensor **x, int n, int dim, ds_dtype dtype)
{
    ds_tensor **cast = dsi_alloc((size_t)n * sizeof *cast), *y = NULL;
    int done = 0;
    while (done < n && (cast[done] = ds_cast(x[done], dtype))) done++;
    if (done == n) y = ds_cat(cast, n, dim);
    dsi_free(cast);
    return y;
}

/* A copy; all tensors have the same shape except in dim. The gradient of each
 * is a slice of dy. */
ds_tensor *ds_cat(ds_tensor **x, int n, int dim)
{
    if (n < 1) return dsi_refuse("cat: %d operands: expected at least one", n);
    if (!dsi_live(x, "cat")) return dsi_null_operand("cat");
    for (int i = 0; i < n; i++)
        if (!x[i]) return dsi_null_operand("cat");
    if (!x[0]->shape.n) return dsi_refuse("cat: operand 0 is []: expected at least one dimension");
    dim = dsi_want_dim("cat", x[0], dim);
    if (dim < 0 || !cat_check(x, n, dim)) return NULL;
    ds_dtype dtype = cat_dtype(x, n);
    for (int i = 0; i < n; i++)
        if (x[i]->dtype != dtype) return cat_cast(x, n, dim, dtype);

    size_t bytes = sizeof(Cat) + (size_t)(n + 1) * sizeof(int64_t);
    Cat *c = dsi_alloc(bytes);
    c->dim = dim, c->n = n;
    for (int i = 0; i < n; i++) c->begin[i + 1] = c->begin[i] + x[i]->shape.d[dim];
    ds_dims shape = x[0]->shape;
    shape.d[dim] = c->begin[n];
    ds_tensor *y = dsi_new(x[0], shape);

    if (!shape_join(y, x, c)) y = NULL;

    dsi_set_attr(dsi_record_n(&dsi_op_cat, y, x, n), c, bytes);
    dsi_free(c);
    return y;
}

/* ds_cat along a new dimension. */
ds_tensor *ds_stack(ds_tensor **x, int n, int dim)
{
    if (n < 1) return dsi_refuse("stack: %d operands: expected at least one", n);
    if (!dsi_live(x, "stack")) return dsi_null_operand("stack");
    ds_tensor **tall = dsi_alloc((size_t)n * sizeof *tall), *y = NULL;
    bool right = true;
    for (int i = 0; i < n && right; i++) {
        right = x[i] && (i == 0 || dsi_same_shape(x[0]->shape, x[i]->shape));
        if (!x[i])
            dsi_null_operand("stack");
        else if (!right)
            dsi_refuse("stack: operand 0 is %s, operand %d is %s: expected the same",
                       dsi_shape_text(x[0]->shape), i, dsi_shape_text(x[i]->shape));
        else
            right = (tall[i] = ds_unsqueeze(x[i], dim));
    }
    /* unsqueeze counts the new dimension too, as the result does */
    if (right) y = ds_cat(tall, n, dim);
    dsi_free(tall);
    return y;
}
