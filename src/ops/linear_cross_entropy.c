/* ops/linear_cross_entropy.c: the loss of a language model's head, without the
 * logits of all positions in memory.
 *
 *     logits = x w^T [N,V]; loss = sum over n of lse[n] - logits[n,label[n]], / used
 *
 * where used is the number of labels that count, or .items.
 *
 * Forward computes the logits of some rows at a time and keeps their log sums
 * lse [N]. Backward computes them again, some columns at a time, so that each
 * part of dw is written once and no second dw is needed; d is made by one
 * kernel:
 *
 *     d = (e^(logits - lse) - onehot(label)) dloss / used
 *     dw[v] = d[:,v]^T x, dx = sum over v of d[:,v] w[v]
 *
 * Logits, d's sums and the loss are float32 beside 16-bit x and w; d is rounded
 * to 16 bits before the two products. Logits that are small are kept, and
 * backward need not repeat the first product.
 *
 * With a cap c, logits = c t with t = tanh(x w^T / c), and d is multiplied by
 * 1 - t^2 before the products.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <math.h>

#define FORWARD_ELEMENTS  (8 << 20)  /* of logits at a time, on the CPU: 32 MiB */
#define BACKWARD_ELEMENTS (2 << 20)  /* the same, beside d's */
#define GPU_ELEMENTS      (16 << 20) /* both, where small parts would be launches alone */
#define WHOLE_ELEMENTS    (4 << 20)  /* logits up to here are kept for backward */
#define COLUMNS           64         /* of logits at a time, at least, and a multiple */
#define VECTOR            8          /* columns: of 16 bits in 16 bytes */
#define FEW_COLUMNS       1024       /* a product is small, whatever its columns */
#define IGNORED           (-100)

static bool on_host(const ds_tensor *x) { return x->device->type->kind == DS_CPU; }

/* Products on a GPU are slow unless their columns and rows are whole vectors:
 * the last few columns of many are a product of their own, and a row of logits
 * has a gap behind it. */
static int64_t whole_columns(const ds_tensor *x, int64_t v)
{
    return on_host(x) || v < FEW_COLUMNS ? v : v / VECTOR * VECTOR;
}
static int64_t line_of(const ds_tensor *x, int64_t columns)
{
    return on_host(x) ? columns : (columns + VECTOR - 1) / VECTOR * VECTOR;
}

/* x [N,D] contiguous, rows begin .. end-1, as [1,rows,D] or, turned,
 * [1,D,rows]. The kernels' products take three dimensions; the first is a
 * batch of one. */
static dsi_view matrix_rows(const ds_tensor *x, int64_t begin, int64_t end, bool turned)
{
    dsi_view v = dsi_v(x);
    int64_t depth = v.d[1], rows = end - begin;
    v.p = (char *)v.p + (size_t)(begin * depth) * ds_dtype_size(v.dtype);
    v.n = 3;
    v.s[0] = rows * depth, v.d[0] = 1;
    v.d[1] = turned ? depth : rows, v.d[2] = turned ? rows : depth;
    v.s[1] = turned ? 1 : depth, v.s[2] = turned ? depth : 1;
    return v;
}

/* The first rows, and of each the columns begin .. end-1, of t [N,M], as
 * [1,rows,columns] or, turned, [1,columns,rows]. */
static dsi_view part_of(const ds_tensor *t, int64_t rows, int64_t begin, int64_t end, bool turned)
{
    dsi_view v = dsi_v(t);
    int64_t step = t->shape.d[1], columns = end - begin;
    v.p = (char *)v.p + (size_t)begin * ds_dtype_size(v.dtype);
    v.n = 3;
    v.d[0] = 1, v.d[1] = turned ? columns : rows, v.d[2] = turned ? rows : columns;
    v.s[0] = rows * step, v.s[1] = turned ? 1 : step, v.s[2] = turned ? step : 1;
    return v;
}

/* The same as [rows,columns]. */
static dsi_view part_lines(const ds_tensor *t, int64_t rows, int64_t begin, int64_t end)
{
    dsi_view v = part_of(t, rows, begin, end, false);
    v.n = 2;
    for (int i = 0; i < 2; i++) v.d[i] = v.d[i + 1], v.s[i] = v.s[i + 1];
    return v;
}

static dsi_view line_part(const ds_tensor *t, int64_t begin, int64_t end)
{
    dsi_view v = dsi_v(t);
    v.p = (char *)v.p + (size_t)begin * ds_dtype_size(v.dtype);
    v.n = 1, v.d[0] = end - begin, v.s[0] = 1;
    return v;
}

/* ignored bool [N] = label == -100 */
static ds_tensor *labels_ignored(ds_tensor *label)
{
    ds_tensor *mark = dsi_number_beside(label, IGNORED);
    ds_tensor *y = dsi_new_dtype(label, DS_BOOL, label->shape);
    bool done = mark && y &&
                dsi_run_op(y, compare, DSI_EQ, dsi_v(label), dsi_v_expand(mark, label->shape),
                           dsi_v(y));
    return dsi_result_if(done, y);
}

/* [] the number of labels that count. */
static ds_tensor *labels_count(ds_tensor *ignored, const ds_tensor *like)
{
    ds_tensor *as_numbers = dsi_new(like, ignored->shape), *sum = dsi_new(like, ds_shape(1));
    bool done = as_numbers && sum && dsi_run(sum, copy, dsi_v(ignored), dsi_v(as_numbers)) &&
                dsi_run_op(sum, reduce, DSI_SUM, -1.0, dsi_v(as_numbers), dsi_v(sum),
                           dsi_v(NULL)) &&
                dsi_run(sum, affine, 1.0, (double)ignored->shape.d[0], dsi_v(sum), dsi_v(sum));
    return dsi_result_if(done, sum);
}

/* x = cap tanh(x / cap) */
static bool logits_cap(const ds_tensor *t, double cap, dsi_view x)
{
    return dsi_run(t, affine, 1 / cap, 0.0, x, x) && dsi_run_op(t, unary, DSI_TANH, 0.0, x, x) &&
           dsi_run(t, affine, cap, 0.0, x, x);
}

/* ---- backward ---- */

/* Saved tensors and buffers of one backward. */
typedef struct Pass {
    ds_tensor *x, *w, *label, *lse, *row_scale;
    ds_tensor *kept;       /* [N,V] the logits; NULL: computed again */
    ds_tensor *logits, *d; /* [N,columns]; one buffer where they have one dtype, but with a cap */
    ds_tensor *wide;       /* with a cap: d in the dtype of lse, perhaps d itself */
    double cap;            /* 0: none */
    ds_tensor *dx, *term;  /* [N,D], in the dtype of lse */
    int64_t rows;
} Pass;

/* [N] dloss / used, 0 for rows without a label */
static ds_tensor *row_scales(ds_tensor *label, ds_tensor *used, ds_tensor *dy)
{
    ds_tensor *each = dsi_new(used, used->shape), *zero = dsi_fill(dsi_new(used, used->shape), 0);
    ds_tensor *ignored = labels_ignored(label), *y = dsi_new(used, label->shape);
    ds_dims n = label->shape;
    bool done = each && zero && ignored && y &&
                dsi_run_op(y, binary, DSI_DIV, 1.0, dsi_v_shape(dy, ds_shape(1)), dsi_v(used),
                           dsi_v(each)) &&
                dsi_run(y, where, dsi_v(ignored), dsi_v_expand(zero, n), dsi_v_expand(each, n),
                        dsi_v(y));
    return dsi_result_if(done, y);
}

/* p->d = d of columns begin .. end-1, from logits that are capped. p->logits
 * becomes t. */
static bool pass_columns_capped(Pass *p, int64_t begin, int64_t m)
{
    int64_t n = p->rows;
    dsi_view t = part_lines(p->logits, n, 0, m), wide = part_lines(p->wide, n, 0, m);
    dsi_view x = p->kept ? part_lines(p->kept, n, begin, begin + m) : t;
    return (p->kept || logits_cap(p->d, p->cap, t)) &&
           dsi_run(p->d, cross_entropy_part_dx, begin, x, dsi_v(p->label), dsi_v(p->lse),
                   dsi_v(p->row_scale), wide) &&
           dsi_run(p->d, affine, 1 / p->cap, 0.0, x, t) &&
           dsi_run_op(p->d, unary_dx, DSI_TANH, 0.0, wide, t, wide) &&
           (p->wide == p->d || dsi_run(p->d, copy, wide, part_lines(p->d, n, 0, m)));
}

/* p->d = d of columns begin .. end-1 */
static bool pass_columns(Pass *p, int64_t begin, int64_t end)
{
    int64_t n = p->rows, m = end - begin;
    if (!p->kept &&
        !dsi_run(p->d, matmul, matrix_rows(p->x, 0, n, false), matrix_rows(p->w, begin, end, true),
                 dsi_v(NULL), part_of(p->logits, n, 0, m, false)))
        return false;
    if (p->cap > 0) return pass_columns_capped(p, begin, m);
    dsi_view x = p->kept ? part_lines(p->kept, n, begin, end) : part_lines(p->logits, n, 0, m);
    return dsi_run(p->d, cross_entropy_part_dx, begin, x, dsi_v(p->label), dsi_v(p->lse),
                   dsi_v(p->row_scale), part_lines(p->d, n, 0, m));
}

/* dx += d w */
static bool pass_add_dx(Pass *p, int64_t begin, int64_t end)
{
    int64_t n = p->rows, depth = p->x->shape.d[1];
    ds_tensor *to = begin ? p->term : p->dx;
    return dsi_run(p->d, matmul, part_of(p->d, n, 0, end - begin, false),
                   matrix_rows(p->w, begin, end, false), dsi_v(NULL),
                   part_of(to, n, 0, depth, false)) &&
           (!begin ||
            dsi_run_op(p->d, binary, DSI_ADD, 1.0, dsi_v(p->dx), dsi_v(p->term), dsi_v(p->dx)));
}

static bool pass_run(Pass *p, ds_tensor *dw, bool want_dx)
{
    int64_t n = p->rows, v = p->w->shape.d[0], whole = whole_columns(p->x, v);
    int64_t step = (on_host(p->x) ? BACKWARD_ELEMENTS : GPU_ELEMENTS) / n / COLUMNS * COLUMNS;
    step = step < COLUMNS ? COLUMNS : step;
    ds_dims block = ds_shape(n, line_of(p->x, step < v ? step : v));
    bool capped = p->cap > 0, same = p->x->dtype == p->lse->dtype;
    if (!p->kept || capped) p->logits = dsi_new(p->lse, block);
    p->d = p->logits && same && !capped ? p->logits : dsi_new(p->x, block);
    p->wide = capped && !same ? dsi_new(p->lse, block) : p->d;
    if (want_dx) p->dx = dsi_new(p->lse, p->x->shape), p->term = dsi_new(p->lse, p->x->shape);
    bool done = (p->logits || (p->kept && !capped)) && p->d && p->wide &&
                (!want_dx || (p->dx && p->term));
    for (int64_t begin = 0, end; begin < v && done; begin = end) {
        int64_t last = begin < whole ? whole : v;
        end = begin + step < last ? begin + step : last;
        done = pass_columns(p, begin, end) && (!want_dx || pass_add_dx(p, begin, end)) &&
               (!dw || dsi_run(dw, matmul, part_of(p->d, n, 0, end - begin, true),
                               matrix_rows(p->x, 0, n, false), dsi_v(NULL),
                               matrix_rows(dw, begin, end, false)));
    }
    return done;
}

/* Saved: x, w, label, lse, used, logits. */
static void linear_cross_entropy_backward(dsi_node *n, ds_tensor *dy)
{
    Pass p = {.x = dsi_saved_tensor(n, 0),
              .w = dsi_saved_tensor(n, 1),
              .label = dsi_saved_tensor(n, 2),
              .lse = dsi_saved_tensor(n, 3),
              .kept = dsi_saved_tensor(n, 5),
              .cap = *(const double *)dsi_attr(n)};
    p.rows = p.x->shape.d[0];
    bool want_dx = dsi_needs_input_grad(n, 0), want_dw = dsi_needs_input_grad(n, 1);
    p.row_scale = row_scales(p.label, dsi_saved_tensor(n, 4), dy);
    ds_tensor *dw = want_dw ? dsi_new_grad(n, 1, p.w, p.w->shape) : NULL;
    bool done = p.row_scale && (dw || !want_dw) && pass_run(&p, dw, want_dx);
    if (want_dw) dsi_accumulate_grad(n, 1, dsi_result_if(done, dw));
    if (want_dx) dsi_accumulate_grad(n, 0, done ? ds_cast(p.dx, p.x->dtype) : NULL);
}

const dsi_op dsi_op_linear_cross_entropy = {.name = "linear_cross_entropy",
                                            .backward = linear_cross_entropy_backward};

/* ---- forward ---- */

/* logits = rows begin .. end-1 of x w^T */
static bool loss_logits(ds_tensor *x, ds_tensor *w, ds_tensor *logits, int64_t begin, int64_t end)
{
    int64_t v = w->shape.d[0], whole = whole_columns(x, v);
    dsi_view rows = matrix_rows(x, begin, end, false);
    return (!whole || dsi_run(logits, matmul, rows, matrix_rows(w, 0, whole, true), dsi_v(NULL),
                              part_of(logits, end - begin, 0, whole, false))) &&
           (whole == v || dsi_run(logits, matmul, rows, matrix_rows(w, whole, v, true), dsi_v(NULL),
                                  part_of(logits, end - begin, whole, v, false)));
}

/* losses [N] and lse [N]; *kept: all logits, if they are small, else NULL */
static bool loss_rows(ds_tensor *x, ds_tensor *w, ds_tensor *label, double cap, ds_tensor *losses,
                      ds_tensor *lse, ds_tensor **kept)
{
    static const dsi_cross_entropy none = {.ignore_index = IGNORED, .reduction = DS_NONE};
    int64_t n = x->shape.d[0], v = w->shape.d[0], line = line_of(x, v);
    int64_t step = (on_host(x) ? FORWARD_ELEMENTS : GPU_ELEMENTS) / line;
    step = step < 1 ? 1 : step < n ? step : n;
    ds_scope *scope = ds_scope_open(); /* what is not kept must not wait for the caller's to end */
    ds_tensor *logits = dsi_new(lse, ds_shape(step, line)), *divisor = dsi_new(lse, (ds_dims){0});
    bool done = logits && divisor;
    for (int64_t begin = 0; begin < n && done; begin += step) {
        int64_t end = begin + step < n ? begin + step : n;
        dsi_view see = part_lines(logits, end - begin, 0, v);
        dsi_view each[3] = {line_part(label, begin, end), line_part(losses, begin, end),
                            line_part(lse, begin, end)};
        dsi_view lines = see;
        see.n = 3, see.d[2] = see.s[2] = 1;
        for (int i = 0; i < 3; i++) each[i].n = 2, each[i].d[1] = each[i].s[1] = 1;
        done = loss_logits(x, w, logits, begin, end) && (cap == 0 || logits_cap(lse, cap, lines)) &&
               dsi_run_index(lse, cross_entropy, &none, see, each[0], dsi_v(NULL), each[1], each[2],
                             dsi_v(divisor));
    }
    *kept = dsi_scope_return(scope, step == n && n <= WHOLE_ELEMENTS / v ? dsi_ref(logits) : NULL);
    return done;
}

/* [1] what the sum is divided by, in the dtype of `like`. */
static ds_tensor *loss_divisor(ds_tensor *items, ds_tensor *ignored, const ds_tensor *like)
{
    if (!items) return labels_count(ignored, like);
    ds_tensor *y = dsi_new(like, ds_shape(1));
    return dsi_result_if(y && dsi_run(y, copy, dsi_v_shape(items, ds_shape(1)), dsi_v(y)), y);
}

static bool linear_cross_entropy_check(const ds_tensor *x, const ds_tensor *w,
                                       const ds_tensor *label)
{
    const char *op = "linear_cross_entropy";
    if (!dsi_want_float(op, x) || !dsi_same_kind(op, x, w)) return false;
    if (x->shape.n != 2 || w->shape.n != 2 || label->shape.n != 1 ||
        x->shape.d[1] != w->shape.d[1] || label->shape.d[0] != x->shape.d[0])
        return dsi_refuse("%s: x is %s, w %s, labels %s: expected [N,D], [V,D], [N]", op,
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape),
                          dsi_shape_text(label->shape));
    return dsi_want_int64(op, "labels", x, label);
}

static bool items_fit(ds_tensor *items, const ds_tensor *x)
{
    if (dsi_wants_grad(&items, 1))
        return dsi_refuse("linear_cross_entropy: items has no gradient here: ds_detach it");
    if (!items->shape.n && items->device == x->device) return true;
    return dsi_refuse("linear_cross_entropy: items is %s on %s: expected [] on %s",
                      dsi_shape_text(items->shape), items->device->type->name,
                      x->device->type->name);
}

ds_tensor *ds_linear_cross_entropy_with(ds_tensor *x, ds_tensor *w, ds_tensor *label,
                                        ds_linear_cross_entropy_opts o)
{
    dsi_autocast_low(&x, &w);
    if (!dsi_live_all("linear_cross_entropy", x, w, label))
        return dsi_null_operand("linear_cross_entropy");
    if (!linear_cross_entropy_check(x, w, label)) return NULL;
    if (!(o.softcap >= 0 && isfinite(o.softcap)))
        return dsi_refuse("linear_cross_entropy: softcap is %g: expected 0 or more, finite",
                          o.softcap);
    int64_t n = x->shape.d[0];
    if (!n || !w->shape.d[0])
        return dsi_refuse("linear_cross_entropy: x is %s, w %s: expected rows",
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    if (o.items && !items_fit(o.items, x)) return NULL;
    x = ds_contiguous(x), w = ds_contiguous(w), label = ds_contiguous(label);
    if (!x || !w || !label || !dsi_acquire(x, w, label, o.items)) return NULL;

    ds_tensor *losses = dsi_new_upcast(x, ds_shape(n)), *lse = dsi_new_upcast(x, ds_shape(n));
    ds_tensor *loss = dsi_new_upcast(x, (ds_dims){0}), *ignored = labels_ignored(label);
    ds_tensor *used = ignored && lse ? loss_divisor(o.items, ignored, lse) : NULL, *kept;

    if (!losses || !lse || !loss || !used || !loss_rows(x, w, label, o.softcap, losses, lse, &kept))
        return NULL;
    if (!dsi_run_op(loss, reduce, DSI_SUM, 1.0, dsi_v(losses), dsi_v_shape(loss, ds_shape(1)),
                    dsi_v(NULL)) ||
        !dsi_run_op(loss, binary, DSI_DIV, 1.0, dsi_v_shape(loss, ds_shape(1)), dsi_v(used),
                    dsi_v_shape(loss, ds_shape(1))))
        return NULL;

    dsi_cost_products(x, w->shape.d[0], 0);

    dsi_node *node = dsi_record(&dsi_op_linear_cross_entropy, loss, x, w);
    ds_tensor *const saved[] = {x, w, label, lse, used, kept};
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) dsi_save_for_backward(node, saved[i]);
    dsi_set_attr(node, &o.softcap, sizeof o.softcap);
    return loss;
}

ds_tensor *ds_linear_cross_entropy(ds_tensor *x, ds_tensor *w, ds_tensor *label)
{
    return ds_linear_cross_entropy_with(x, w, label, (ds_linear_cross_entropy_opts){0});
}
