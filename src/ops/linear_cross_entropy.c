/* ops/linear_cross_entropy.c: the loss of a language model's head, without the
 * logits of all positions in memory.
 *
 *     logits = x w^T [N,V]; loss = mean over used n of lse[n] - logits[n,label[n]]
 *
 * Forward computes the logits of some rows at a time and keeps their log sums
 * lse [N]. Backward computes them again, some columns at a time, so that each
 * part of dw is written once and no second dw is needed:
 *
 *     d = (e^(logits - lse) - onehot(label)) dloss / used
 *     dw[v] = d[:,v]^T x, dx = sum over v of d[:,v] w[v]
 *
 * Logits, d's sums and the loss are float32 beside 16-bit x and w; d is rounded
 * to 16 bits before the two products. Logits that are small are kept, and
 * backward need not repeat the first product.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#define FORWARD_ELEMENTS  (8 << 20) /* of logits at a time: 32 MiB */
#define BACKWARD_ELEMENTS (2 << 20) /* of two such buffers, and smaller ones */
#define WHOLE_ELEMENTS    (4 << 20) /* logits up to here are kept for backward */
#define COLUMNS           64        /* of logits at a time, at least, and a multiple */
#define IGNORED           (-100)

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

/* A buffer of any shape [rows,columns] seen as [1,rows,columns]. The last part
 * of rows or columns uses the beginning of the buffer only. */
static dsi_view buffer_matrix(const ds_tensor *t, int64_t rows, int64_t columns, bool turned)
{
    dsi_view v = dsi_v(t);
    v.n = 3;
    v.d[0] = 1, v.d[1] = turned ? columns : rows, v.d[2] = turned ? rows : columns;
    v.s[0] = rows * columns, v.s[1] = turned ? 1 : columns, v.s[2] = turned ? columns : 1;
    return v;
}

/* [n] repeated along rows or columns of [1,rows,columns]. of_rows: element i
 * is all of row i, such as lse; else all of column i. */
static dsi_view repeat_view(const ds_tensor *t, int64_t rows, int64_t columns, bool of_rows)
{
    dsi_view v = dsi_v(t);
    int64_t d[3] = {1, rows, columns}, s[3] = {0, of_rows ? 1 : 0, of_rows ? 0 : 1};
    v.n = 3;
    for (int i = 0; i < 3; i++) v.d[i] = d[i], v.s[i] = s[i];
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
    ds_tensor *mark = dsi_fill(dsi_new(label, (ds_dims){0}), IGNORED);
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

/* ---- backward ---- */

/* Saved tensors and buffers of one backward. */
typedef struct Pass {
    ds_tensor *x, *w, *label, *lse, *row_scale;
    ds_tensor *kept;                     /* [N,V] the logits; NULL: computed again */
    ds_tensor *logits, *d, *low, *equal; /* [N,columns]; low: d in 16 bits, or d itself */
    ds_tensor *dx, *term;                /* [N,D], in the dtype of lse */
    int64_t rows, depth;
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

/* logits - lse of columns begin .. end-1 -> t */
static bool pass_logits(Pass *p, int64_t begin, int64_t end, dsi_view t)
{
    dsi_view lse = repeat_view(p->lse, p->rows, end - begin, true);
    if (p->kept) {
        dsi_view kept = buffer_matrix(p->kept, p->rows, p->w->shape.d[0], false);
        kept.p = (char *)kept.p + (size_t)begin * ds_dtype_size(kept.dtype);
        kept.d[2] = end - begin;
        return dsi_run_op(p->d, binary, DSI_ADD, -1.0, kept, lse, t);
    }
    return dsi_run(p->d, matmul, matrix_rows(p->x, 0, p->rows, false),
                   matrix_rows(p->w, begin, end, true), dsi_v(NULL), t) &&
           dsi_run_op(p->d, binary, DSI_ADD, -1.0, t, lse, t);
}

/* p->low = d of columns begin .. end-1 */
static bool pass_columns(Pass *p, int64_t begin, int64_t end)
{
    int64_t n = p->rows, m = end - begin;
    ds_tensor *number = dsi_arange(p->x, begin, m, 1);
    dsi_view t = buffer_matrix(p->logits, n, m, false), d = buffer_matrix(p->d, n, m, false);
    dsi_view equal = buffer_matrix(p->equal, n, m, false);
    return number && pass_logits(p, begin, end, t) && dsi_run_op(p->d, unary, DSI_EXP, 0.0, t, d) &&
           dsi_run_op(p->d, compare, DSI_EQ, repeat_view(p->label, n, m, true),
                      repeat_view(number, n, m, false), equal) &&
           dsi_run(p->d, affine, 1.0, -1.0, d, t) && dsi_run(p->d, where, equal, t, d, d) &&
           dsi_run_op(p->d, binary, DSI_MUL, 1.0, d, repeat_view(p->row_scale, n, m, true), d) &&
           (p->low == p->d || dsi_run(p->d, copy, d, buffer_matrix(p->low, n, m, false)));
}

/* dx += d w */
static bool pass_add_dx(Pass *p, int64_t begin, int64_t end)
{
    int64_t n = p->rows;
    ds_tensor *to = begin ? p->term : p->dx;
    return dsi_run(p->d, matmul, buffer_matrix(p->low, n, end - begin, false),
                   matrix_rows(p->w, begin, end, false), dsi_v(NULL),
                   buffer_matrix(to, n, p->depth, false)) &&
           (!begin ||
            dsi_run_op(p->d, binary, DSI_ADD, 1.0, dsi_v(p->dx), dsi_v(p->term), dsi_v(p->dx)));
}

static bool pass_run(Pass *p, ds_tensor *dw, bool want_dx)
{
    int64_t n = p->rows, v = p->w->shape.d[0], step = BACKWARD_ELEMENTS / n / COLUMNS * COLUMNS;
    step = step < COLUMNS ? COLUMNS : step;
    ds_dims block = ds_shape(n, step < v ? step : v);
    p->logits = dsi_new(p->lse, block), p->d = dsi_new(p->lse, block);
    p->low = p->x->dtype == p->lse->dtype ? p->d : dsi_new(p->x, block);
    p->equal = dsi_new_dtype(p->x, DS_BOOL, block);
    if (want_dx) p->dx = dsi_new(p->lse, p->x->shape), p->term = dsi_new(p->lse, p->x->shape);
    bool done = p->logits && p->d && p->low && p->equal && (!want_dx || (p->dx && p->term));
    for (int64_t begin = 0; begin < v && done; begin += step) {
        int64_t end = begin + step < v ? begin + step : v;
        ds_scope *scope = ds_scope_open();
        done = pass_columns(p, begin, end) && (!want_dx || pass_add_dx(p, begin, end)) &&
               (!dw || dsi_run(dw, matmul, buffer_matrix(p->low, n, end - begin, true),
                               matrix_rows(p->x, 0, n, false), dsi_v(NULL),
                               matrix_rows(dw, begin, end, false)));
        ds_scope_close(scope);
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
              .kept = dsi_saved_tensor(n, 5)};
    p.rows = p.x->shape.d[0], p.depth = p.x->shape.d[1];
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

/* losses [N] and lse [N]; *kept: all logits, if they are small, else NULL */
static bool loss_rows(ds_tensor *x, ds_tensor *w, ds_tensor *label, ds_tensor *losses,
                      ds_tensor *lse, ds_tensor **kept)
{
    static const dsi_cross_entropy none = {.ignore_index = IGNORED, .reduction = DS_NONE};
    int64_t n = x->shape.d[0], v = w->shape.d[0], step = FORWARD_ELEMENTS / v;
    step = step < 1 ? 1 : step < n ? step : n;
    ds_tensor *logits = dsi_new(lse, ds_shape(step, v)), *divisor = dsi_new(lse, (ds_dims){0});
    bool done = logits && divisor;
    *kept = n <= WHOLE_ELEMENTS / v ? logits : NULL;
    for (int64_t begin = 0; begin < n && done; begin += step) {
        int64_t end = begin + step < n ? begin + step : n, rows = end - begin;
        dsi_view y = buffer_matrix(logits, rows, v, false), see = y;
        see.d[0] = rows, see.d[1] = v, see.d[2] = 1, see.s[0] = v, see.s[1] = see.s[2] = 1;
        dsi_view line[3] = {line_part(label, begin, end), line_part(losses, begin, end),
                            line_part(lse, begin, end)};
        for (int i = 0; i < 3; i++) line[i].n = 2, line[i].d[1] = line[i].s[1] = 1;
        done = dsi_run(lse, matmul, matrix_rows(x, begin, end, false), matrix_rows(w, 0, v, true),
                       dsi_v(NULL), y) &&
               dsi_run_index(lse, cross_entropy, &none, see, line[0], dsi_v(NULL), line[1], line[2],
                             dsi_v(divisor));
    }
    return done;
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
    if (label->dtype != DS_I64 || label->device != x->device)
        return dsi_refuse("%s: labels are %s on %s: expected int64 on %s", op,
                          ds_dtype_name(label->dtype), label->device->type->name,
                          x->device->type->name);
    return true;
}

ds_tensor *ds_linear_cross_entropy(ds_tensor *x, ds_tensor *w, ds_tensor *label)
{
    if (!dsi_live_all("linear_cross_entropy", x, w, label))
        return dsi_null_operand("linear_cross_entropy");
    if (!linear_cross_entropy_check(x, w, label)) return NULL;
    int64_t n = x->shape.d[0];
    if (!n || !w->shape.d[0])
        return dsi_refuse("linear_cross_entropy: x is %s, w %s: expected rows",
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape));
    x = ds_contiguous(x), w = ds_contiguous(w), label = ds_contiguous(label);
    if (!x || !w || !label || !dsi_acquire(x, w, label)) return NULL;

    ds_tensor *losses = dsi_new_upcast(x, ds_shape(n)), *lse = dsi_new_upcast(x, ds_shape(n));
    ds_tensor *loss = dsi_new_upcast(x, (ds_dims){0}), *ignored = labels_ignored(label);
    ds_tensor *used = ignored && lse ? labels_count(ignored, lse) : NULL, *kept;

    if (!losses || !lse || !loss || !used || !loss_rows(x, w, label, losses, lse, &kept))
        return NULL;
    if (!dsi_run_op(loss, reduce, DSI_SUM, 1.0, dsi_v(losses), dsi_v_shape(loss, ds_shape(1)),
                    dsi_v(NULL)) ||
        !dsi_run_op(loss, binary, DSI_DIV, 1.0, dsi_v_shape(loss, ds_shape(1)), dsi_v(used),
                    dsi_v_shape(loss, ds_shape(1))))
        return NULL;

    dsi_node *node = dsi_record(&dsi_op_linear_cross_entropy, loss, x, w);
    ds_tensor *const saved[] = {x, w, label, lse, used, kept};
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) dsi_save_for_backward(node, saved[i]);
    return loss;
}
