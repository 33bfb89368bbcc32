/* ops/groups.c: see groups.h.
 *
 * grouped_linear  x [R,in], w[g] [out,in] -> y[r,:] = x[r,:] w[g]^T, g the group of r
 * backward        dx[r,:] = dy[r,:] w[g], dw[g] = sum over g's rows of dy[r,:]^T x[r,:]
 * As ds_linear of each group's slice of x, in one call: the host needs not to
 * know the slices.
 * SPDX-License-Identifier: MIT */
#include "groups.h"

#include "op.h"

#include "base/mem.h"

bool dsi_group_rows(ds_tensor *id, int64_t groups, dsi_groups *out)
{
    *out = (dsi_groups){NULL};
    if (!(id = ds_contiguous(id)) || !dsi_acquire(id)) return false;
    *out = (dsi_groups){dsi_new_dtype(id, DS_I64, ds_shape(groups + 1)),
                        dsi_new_dtype(id, DS_I64, id->shape)};
    return out->begin && out->row &&
           dsi_run_index(id, group_rows, dsi_v(id), dsi_v(out->begin), dsi_v(out->row));
}

/* Matrices of all groups as kernels see them, transposed or not; w[g] NULL: a
 * view without memory. */
static dsi_view *grouped_views(ds_tensor *const *w, int64_t groups, bool transposed)
{
    dsi_view *v = dsi_alloc((size_t)(groups + 1) * sizeof *v);
    for (int64_t g = 0; g < groups; g++) {
        v[g] = dsi_v(w[g]);
        if (w[g] && transposed)
            v[g].d[0] = w[g]->shape.d[1], v[g].d[1] = w[g]->shape.d[0], v[g].s[0] = w[g]->stride[1],
            v[g].s[1] = w[g]->stride[0];
    }
    return v;
}

/* ---- backward ---------------------------------------------------------------------------------------- */

static ds_tensor *grouped_dx(ds_tensor *dy, const ds_tensor *x, const ds_tensor *begin,
                             ds_tensor *const *w, int64_t groups)
{
    ds_tensor *dx = dsi_new(x, x->shape);
    dsi_view *v = grouped_views(w, groups, false);
    bool done = dx && dsi_run(dx, group_matmul, dsi_v(dy), dsi_v(begin), v, dsi_v(dx));
    dsi_free(v);
    return dsi_result_if(done, dx);
}

/* All of them by one kernel; w becomes the gradients. */
static void grouped_dw(dsi_node *n, ds_tensor *dy, const ds_tensor *x, const ds_tensor *begin,
                       ds_tensor **w, int64_t groups)
{
    bool done = true;
    for (int64_t g = 0; g < groups; g++) {
        bool wanted = dsi_needs_input_grad(n, (int)g + 1);
        w[g] = wanted ? dsi_new_grad(n, (int)g + 1, w[g], w[g]->shape) : NULL;
        done = done && (w[g] || !wanted);
    }
    dsi_view *v = grouped_views(w, groups, false);
    done = done && dsi_run(dy, group_matmul_dw, dsi_v(dy), dsi_v(x), dsi_v(begin), v);
    dsi_free(v);
    for (int64_t g = 0; g < groups; g++)
        if (dsi_needs_input_grad(n, (int)g + 1))
            dsi_accumulate_grad(n, (int)g + 1, dsi_result_if(done, w[g]));
}

/* Saved: x, begin, the matrices. Attribute: their number. */
static void grouped_linear_backward(dsi_node *n, ds_tensor *dy)
{
    int64_t groups = *(const int64_t *)dsi_attr(n);
    ds_tensor *x = dsi_saved_tensor(n, 0), *begin = dsi_saved_tensor(n, 1);
    ds_tensor **w = dsi_alloc((size_t)(groups + 1) * sizeof *w);
    bool some = false;
    for (int64_t g = 0; g < groups; g++) {
        w[g] = dsi_saved_tensor(n, (int)g + 2);
        some = some || dsi_needs_input_grad(n, (int)g + 1);
    }
    if (dsi_needs_input_grad(n, 0)) dsi_accumulate_grad(n, 0, grouped_dx(dy, x, begin, w, groups));
    if (some) grouped_dw(n, dy, x, begin, w, groups);
    dsi_free(w);
}

const dsi_op dsi_op_grouped_linear = {.name = "grouped_linear",
                                      .backward = grouped_linear_backward};

/* ---- forward ----------------------------------------------------------------------------------------- */

static bool grouped_check(const ds_tensor *x, const ds_tensor *begin, ds_tensor *const *w,
                          int64_t groups)
{
    static const char op[] = "grouped_linear";
    if (!dsi_want_float(op, x) || !dsi_same_device(op, x, begin)) return false;
    if (begin->dtype != DS_I64 || begin->shape.n != 1 || begin->shape.d[0] != groups + 1)
        return dsi_refuse("%s: begin is %s %s: expected int64 [%lld], for %lld groups", op,
                          ds_dtype_name(begin->dtype), dsi_shape_text(begin->shape),
                          (long long)groups + 1, (long long)groups);
    for (int64_t g = 0; g < groups; g++) {
        if (!w[g]) return dsi_null_operand(op);
        if (!dsi_same_kind(op, x, w[g])) return false;
        if (x->shape.n != 2 || w[g]->shape.n != 2 || w[g]->shape.d[1] != x->shape.d[1] ||
            !dsi_same_shape(w[g]->shape, w[0]->shape))
            return dsi_refuse("%s: x is %s, weight %lld is %s, weight 0 %s: expected [rows, in] "
                              "and matrices [out, in] of one shape",
                              op, dsi_shape_text(x->shape), (long long)g,
                              dsi_shape_text(w[g]->shape), dsi_shape_text(w[0]->shape));
    }
    return true;
}

/* in: x, then the matrices, row-major. */
static ds_tensor *grouped_run(ds_tensor **in, ds_tensor *begin, int64_t groups)
{
    ds_tensor *x = in[0];
    if (!dsi_acquire_n((const ds_tensor *const *)in, (int)groups + 1) || !dsi_acquire(begin))
        return NULL;

    ds_tensor *y = dsi_new_rows(x, ds_shape(x->shape.d[0], in[1]->shape.d[0])); /* [R,out] */

    dsi_view *v = grouped_views(in + 1, groups, true);
    bool done = y && dsi_run(y, group_matmul, dsi_v(x), dsi_v(begin), v, dsi_v(y));
    dsi_free(v);
    if (!done) return NULL;
    dsi_cost_products(y, x->shape.d[1], 0);

    dsi_node *n = dsi_record_n(&dsi_op_grouped_linear, y, in, (int)groups + 1);
    dsi_save_for_backward(n, x), dsi_save_for_backward(n, begin);
    for (int64_t g = 0; g < groups; g++) dsi_save_for_backward(n, in[g + 1]);
    dsi_set_attr(n, &groups, sizeof groups);
    return y;
}

ds_tensor *dsi_grouped_linear(ds_tensor *x, ds_tensor *begin, ds_tensor *const *w, int64_t groups)
{
    if (!dsi_live_all("grouped_linear", x, begin)) return dsi_null_operand("grouped_linear");
    if (groups < 1 || groups >= INT32_MAX)
        return dsi_refuse("grouped_linear: %lld groups: expected at least 1", (long long)groups);
    ds_tensor **in = dsi_alloc((size_t)(groups + 1) * sizeof *in), *y = NULL;
    in[0] = x;
    for (int64_t g = 0; g < groups; g++) in[g + 1] = w[g];
    for (int64_t i = 0; i <= groups; i++) dsi_autocast_low(&in[i]);
    bool rows = in[0] && grouped_check(in[0], begin, in + 1, groups);
    for (int64_t g = 0; g < groups && rows; g++) rows = (in[g + 1] = ds_contiguous(in[g + 1]));
    if (rows && (begin = ds_contiguous(begin))) y = grouped_run(in, begin, groups);
    dsi_free(in);
    return y;
}
