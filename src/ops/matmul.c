/* ops/matmul.c: matrix products.
 *
 * matmul    a [...,M,K], b [...,K,N] -> y [...,M,N], the leading dimensions broadcast
 * backward  da = dy b^T, db = a^T dy, each summed over what was broadcast
 * linear    x [M,in], w [out,in], b [out] -> y = x w^T + b [M,out]
 * backward  dx = dy w, dw = dy^T x, db = sum of dy over M
 * addmm     the same, turned: w is [in,out], as in transformers' Conv1D;
 *           dx = dy w^T, dw = x^T dy
 * All transposes are views. A vector becomes a matrix of one row or column; a
 * batch of matrices times one matrix becomes one product of [(... M),K] by
 * [K,N].
 *
 * Invariants: a kernel gets [B,M,K] and [B,K,N] with any strides within a
 * matrix and one stride between matrices. A stride of 0 there repeats an
 * operand, so a broadcast copies nothing where one stride can express it.
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* x with its last two dimensions exchanged. A view outside of the graph, for
 * backward. */
static ds_tensor *matmul_transposed(const ds_tensor *x)
{
    ds_dims shape = x->shape;
    int64_t stride[DS_MAX_DIMS];
    int n = shape.n;
    for (int i = 0; i < n; i++) stride[i] = x->stride[i];
    shape.d[n - 2] = x->shape.d[n - 1], shape.d[n - 1] = x->shape.d[n - 2];
    stride[n - 2] = x->stride[n - 1], stride[n - 1] = x->stride[n - 2];
    return dsi_view_of(x, shape, stride, x->offset);
}

/* x with its leading dimensions broadcast to those of `shape`, as the kernel
 * expects it: with one stride from matrix to matrix (0 repeats a matrix). A
 * view if there is one, otherwise a copy. */
static ds_tensor *matmul_batched(const ds_tensor *x, ds_dims shape)
{
    ds_dims full = shape;
    for (int i = 1; i <= 2; i++) full.d[shape.n - i] = x->shape.d[x->shape.n - i];
    dsi_view v = dsi_v_expand(x, full);
    ds_tensor *wide = dsi_view_of(x, full, v.s, x->offset);
    int64_t stride;
    if (!wide || dsi_merged(wide, 0, full.n - 2, &stride)) return wide;
    ds_tensor *copy = dsi_new(x, full);
    return dsi_copy(copy, wide) == DS_OK ? copy : NULL;
}

/* y = a b in `dtype`, with any leading dimensions, without recording. `dtype`
 * may be wider than that of the operands: float32 for a sum of 16-bit products
 * that is rounded later. */
static ds_tensor *matmul_product(const ds_tensor *a, const ds_tensor *b, ds_dtype dtype)
{
    int na = a->shape.n, nb = b->shape.n;
    ds_dims lead_a = a->shape, lead_b = b->shape, shape;
    lead_a.n -= 2, lead_b.n -= 2;
    if (a->shape.d[na - 1] != b->shape.d[nb - 2])
        return dsi_refuse("matmul: a is %s, b is %s: %lld columns beside %lld rows",
                          dsi_shape_text(a->shape), dsi_shape_text(b->shape),
                          (long long)a->shape.d[na - 1], (long long)b->shape.d[nb - 2]);
    if (!dsi_broadcast("matmul", lead_a, lead_b, &shape) || !dsi_acquire(a, b)) return NULL;
    shape.d[shape.n++] = a->shape.d[na - 2];
    shape.d[shape.n++] = b->shape.d[nb - 1];

    ds_tensor *wa = matmul_batched(a, shape), *wb = matmul_batched(b, shape),
              *y = dsi_new_dtype(a, dtype, shape);
    if (!wa || !wb || !y) return NULL;
    return dsi_result_if(
        dsi_run(y, matmul, dsi_v_matrices(wa), dsi_v_matrices(wb), dsi_v(NULL), dsi_v_matrices(y)),
        y);
}

/* The gradient of x, l r, where l or r is dy. The product has dy's leading
 * dimensions; those that were broadcast are summed to x's, in float32 if x has
 * 16 bits. */
static ds_tensor *matmul_gradient(const ds_tensor *x, const ds_tensor *dy, const ds_tensor *l,
                                  const ds_tensor *r)
{
    ds_dims all = dy->shape, own = x->shape;
    all.n -= 2, own.n -= 2;
    bool sums = !dsi_same_shape(all, own);
    ds_tensor *g = l && r ? matmul_product(l, r, sums && dsi_is_16bit(x) ? DS_F32 : x->dtype)
                          : NULL;
    return sums ? ds_cast(dsi_sum_to(g, x->shape), x->dtype) : g;
}

/* Saved: a, b. da [...,M,K] = dy [...,M,N] b^T, db [...,K,N] = a^T dy. */
static void matmul_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *a = dsi_saved_tensor(n, 0), *b = dsi_saved_tensor(n, 1);
    if (dsi_needs_input_grad(n, 0))
        dsi_accumulate_grad(n, 0, matmul_gradient(a, dy, dy, matmul_transposed(b)));
    if (dsi_needs_input_grad(n, 1))
        dsi_accumulate_grad(n, 1, matmul_gradient(b, dy, matmul_transposed(a), dy));
}

const dsi_op dsi_op_matmul = {"matmul", matmul_backward, .acquires = true};

/* [...,M,K] [K,N]: one large product of [(...M),K] instead of a batch of small
 * ones; db then needs no sum over the batch either. a is reshaped, which
 * copies only if its leading dimensions are not one in memory. */
static ds_tensor *matmul_folded(ds_tensor *a, ds_tensor *b)
{
    ds_dims out = a->shape;
    int64_t k = a->shape.d[--out.n], m = dsi_numel(out);
    out.d[out.n++] = b->shape.d[1];
    return ds_reshape(ds_matmul(ds_reshape(a, ds_shape(m, k)), b), out);
}

/* As torch.matmul: vectors become matrices of one row or column and lose that
 * dimension again; leading dimensions broadcast. */
ds_tensor *ds_matmul(ds_tensor *a, ds_tensor *b)
{
    dsi_autocast_low(&a, &b);
    if (!dsi_live_all("matmul", a, b)) return dsi_null_operand("matmul");
    if (!dsi_want_float("matmul", a) || !dsi_same_kind("matmul", a, b)) return NULL;
    if (!a->shape.n || !b->shape.n)
        return dsi_refuse("matmul: a is %s, b is %s: expected at least one dimension each",
                          dsi_shape_text(a->shape), dsi_shape_text(b->shape));
    if (a->shape.n == 1)
        return ds_squeeze(ds_matmul(ds_unsqueeze(a, 0), b), b->shape.n > 1 ? -2 : 0);
    if (b->shape.n == 1) return ds_squeeze(ds_matmul(a, ds_unsqueeze(b, 1)), -1);
    if (a->shape.n > 2 && b->shape.n == 2 && a->shape.d[a->shape.n - 1] == b->shape.d[0])
        return matmul_folded(a, b);

    ds_tensor *y = matmul_product(a, b, a->dtype); /* [...,M,N] */

    if (y) dsi_cost_products(y, a->shape.d[a->shape.n - 1], 0);

    dsi_node *n = dsi_record(&dsi_op_matmul, y, a, b);
    dsi_save_for_backward(n, a), dsi_save_for_backward(n, b);
    return y;
}

/* ---- linear ------------------------------------------------------------------------------------------ */

/* A matrix as a batch of one; and its transpose. */
static dsi_view matmul_matrix(const ds_tensor *x)
{
    return (dsi_view){.p = dsi_v(x).p,
                      .dtype = x->dtype,
                      .n = 3,
                      .d = {1, x->shape.d[0], x->shape.d[1]},
                      .s = {0, x->stride[0], x->stride[1]}};
}

static dsi_view matrix_t(const ds_tensor *x)
{
    return (dsi_view){.p = dsi_v(x).p,
                      .dtype = x->dtype,
                      .n = 3,
                      .d = {1, x->shape.d[1], x->shape.d[0]},
                      .s = {0, x->stride[1], x->stride[0]}};
}

/* dw [out,in] = dy^T [out,M] x [M,in], or turned [in,out] = x^T dy. */
static bool linear_dw(ds_tensor *dw, const ds_tensor *dy, const ds_tensor *x, bool turned)
{
    return dw &&
           dsi_run(dw, matmul, turned ? matrix_t(x) : matrix_t(dy),
                   turned ? matmul_matrix(dy) : matmul_matrix(x), dsi_v(NULL), matmul_matrix(dw));
}

/* The gradients of w, and of b [out], the sums of the rows of dy^T: by one
 * kernel, if the device has it. */
static void linear_weight_grads(dsi_node *n, const ds_tensor *dy, const ds_tensor *x,
                                const ds_tensor *w, bool turned)
{
    bool wanted[] = {dsi_needs_input_grad(n, 1), dsi_needs_input_grad(n, 2)}, done = false,
         both = wanted[0] && wanted[1] && !turned && dsi_fusion(w->device, matmul_sums);
    ds_tensor *dw = wanted[0] ? dsi_new_grad(n, 1, w, w->shape) : NULL,
              *db = wanted[1] ? dsi_new_grad(n, 2, w, ds_shape(dy->shape.d[1])) : NULL;
    if (both)
        done = dw && db &&
               dsi_run_fusion(dw, matmul_sums, matrix_t(dy), matmul_matrix(x), matmul_matrix(dw),
                              dsi_v(db));
    else if (wanted[0])
        done = linear_dw(dw, dy, x, turned);
    dsi_accumulate_grad(n, 1, dsi_result_if(done, dw));
    if (!both && wanted[1])
        done = db && dsi_run_op(db, reduce, DSI_SUM, 1.0, dsi_v(dy),
                                dsi_v_shape(db, ds_shape(1, db->shape.d[0])), dsi_v(NULL));
    dsi_accumulate_grad(n, 2, dsi_result_if(done, db));
}

/* Saved: x, w. */
static void linear_gradients(dsi_node *n, ds_tensor *dy, bool turned)
{
    ds_tensor *x = dsi_saved_tensor(n, 0), *w = dsi_saved_tensor(n, 1);

    if (dsi_needs_input_grad(n, 0)) {
        ds_tensor *dx = dsi_new(x, x->shape); /* [M,in] = dy [M,out] times [out,in] */
        bool done = dx &&
                    dsi_run(dx, matmul, matmul_matrix(dy), turned ? matrix_t(w) : matmul_matrix(w),
                            dsi_v(NULL), matmul_matrix(dx));
        dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
    }
    linear_weight_grads(n, dy, x, w, turned);
}

static void linear_backward(dsi_node *n, ds_tensor *dy) { linear_gradients(n, dy, false); }
static void addmm_backward(dsi_node *n, ds_tensor *dy) { linear_gradients(n, dy, true); }

/* dw reads x, dx reads w */
const dsi_op dsi_op_linear = {"linear", linear_backward, .saved_for = {1u << 1, 1u << 0}};
const dsi_op dsi_op_addmm = {"addmm", addmm_backward, .saved_for = {1u << 1, 1u << 0}};

/* x [..., in], w [out, in], or turned [in, out], b [out] or NULL; all of one
 * dtype and device. */
static bool linear_check(const char *op, const ds_tensor *x, const ds_tensor *w, const ds_tensor *b,
                         bool turned)
{
    if (!dsi_want_float(op, x) || !dsi_same_kind(op, x, w) || !dsi_same_kind(op, x, b))
        return false;
    if (w->shape.n != 2 || !x->shape.n)
        return dsi_refuse("%s: x is %s, weight is %s: expected [..., in] and %s", op,
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape),
                          turned ? "[in, out]" : "[out, in]");
    if (x->shape.d[x->shape.n - 1] != w->shape.d[!turned])
        return dsi_refuse("%s: x is %s, but weight %s takes %lld features", op,
                          dsi_shape_text(x->shape), dsi_shape_text(w->shape),
                          (long long)w->shape.d[!turned]);
    if (b && (b->shape.n != 1 || b->shape.d[0] != w->shape.d[turned]))
        return dsi_refuse("%s: bias is %s, weight is %s: expected [%lld]", op,
                          dsi_shape_text(b->shape), dsi_shape_text(w->shape),
                          (long long)w->shape.d[turned]);
    return true;
}

/* x [...,in], w [out,in] or turned [in,out], b [out] or NULL -> [...,out];
 * leading dimensions are folded into one product. */
static ds_tensor *linear_run(const dsi_op *op, ds_tensor *x, ds_tensor *w, ds_tensor *b)
{
    bool turned = op == &dsi_op_addmm;
    if (!linear_check(op->name, x, w, b, turned)) return NULL;
    if (x->shape.n != 2) {
        ds_dims out = x->shape;
        int64_t in = x->shape.d[--out.n], m = dsi_numel(out);
        out.d[out.n++] = w->shape.d[turned];
        x = ds_reshape(x, ds_shape(m, in));
        return x ? ds_reshape(linear_run(op, x, w, b), out) : NULL;
    }
    if (!dsi_acquire(x, w, b)) return NULL;

    ds_tensor *y = dsi_new_rows(x, ds_shape(x->shape.d[0], w->shape.d[turned])); /* [M,out] */

    if (!y || !dsi_run(y, matmul, matmul_matrix(x), turned ? matmul_matrix(w) : matrix_t(w),
                       dsi_v(b), matmul_matrix(y)))
        return NULL;
    dsi_cost_products(y, x->shape.d[1], turned && b ? b->shape.d[0] : 0);

    dsi_node *n = dsi_record(op, y, x, w, b);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, w);
    return y;
}

ds_tensor *ds_linear(ds_tensor *x, ds_tensor *w, ds_tensor *b)
{
    dsi_autocast_low(&x, &w, &b);
    if (!dsi_live_all("linear", x, w)) return dsi_null_operand("linear");
    return linear_run(&dsi_op_linear, x, w, b);
}

/* As torch.addmm; another input than a bias is added after the product. */
ds_tensor *ds_addmm(ds_tensor *input, ds_tensor *a, ds_tensor *b)
{
    dsi_autocast_low(&input, &a, &b);
    if (!dsi_live_all("addmm", input, a, b)) return dsi_null_operand("addmm");
    if (!dsi_same_kind("addmm", a, input)) return NULL;
    if (input->shape.n == 1 && b->shape.n == 2 && input->shape.d[0] == b->shape.d[1])
        return linear_run(&dsi_op_addmm, a, b, input);
    ds_tensor *y = ds_matmul(a, b);
    ds_dims both;
    if (!y || !dsi_broadcast("addmm", y->shape, input->shape, &both)) return NULL;
    if (!dsi_same_shape(both, y->shape))
        return dsi_refuse("addmm: input is %s, the product %s: expected what broadcasts to it",
                          dsi_shape_text(input->shape), dsi_shape_text(y->shape));
    return ds_add(input, y);
}
