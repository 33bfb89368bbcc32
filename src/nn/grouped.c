/* nn/grouped.c: see grouped.h.
 *
 * Invariants: children are walked side by side, so that `m` is always the same
 * part of each of n children. Calls of a child itself are of the first one, for
 * parts without parameters. A bias is a product too, of a column of ones with
 * the matrix [out,1] of each child.
 * SPDX-License-Identifier: MIT */
#include "grouped.h"

#include "module.h"

#include "base/mem.h"
#include "base/profile.h"
#include "ops/groups.h"
#include "tensor/tensor.h"

#include <string.h>

/* ---- whether ----------------------------------------------------------------------------------------- */

static bool params_alike(const ds_module *a, const ds_module *b)
{
    int n = ds_module_params(a);
    if (ds_module_params(b) != n) return false;
    for (int i = 0; i < n; i++) {
        const ds_tensor *x = ds_module_param_at(a, i, NULL), *y = ds_module_param_at(b, i, NULL);
        if (x->dtype != y->dtype || x->device != y->device || !dsi_same_shape(x->shape, y->shape) ||
            dsi_has_materialize_hook(y))
            return false;
    }
    return true;
}

/* A tied weight is a parameter of another module. */
static bool linear_can_group(const ds_module *m)
{
    int n = ds_module_params(m);
    return n && ds_ndim(ds_module_param_at(m, 0, NULL)) == 2;
}

/* Whether b can be computed beside a, which may be b itself. */
static bool modules_alike(const ds_module *a, const ds_module *b)
{
    const ds_module_type *type = ds_module_type_of(b);
    int children = ds_module_children(b);
    if (ds_module_type_of(a)->forward != type->forward || ds_module_children(a) != children ||
        ds_module_training(a) != ds_module_training(b) || dsi_module_has_hooks(b))
        return false;
    if (dsi_module_is_linear(b)) return linear_can_group(b) && params_alike(a, b);
    if (dsi_module_is_pointwise(b))
        return !type->self_size ||
               !memcmp(ds_self((ds_module *)a), ds_self((ds_module *)b), type->self_size);
    if (!dsi_module_is_sequential(b)) return false;
    for (int i = 0; i < children; i++)
        if (!modules_alike(ds_module_child(a, i), ds_module_child(b, i))) return false;
    return true;
}

bool dsi_children_can_group(const ds_module *m)
{
    int n = ds_module_children(m);
    for (int i = 0; i < n; i++)
        if (!modules_alike(ds_module_child(m, 0), ds_module_child(m, i))) return false;
    return n > 0;
}

/* ---- products ---------------------------------------------------------------------------------------- */

/* n Linears. */
static ds_tensor *linear_grouped(ds_module *const *m, int n, ds_tensor *rows, ds_tensor *begin)
{
    ds_tensor **w = dsi_alloc((size_t)n * sizeof *w), *y;
    for (int i = 0; i < n; i++) w[i] = ds_module_param_at(m[i], 0, NULL);
    y = dsi_grouped_linear(rows, begin, w, n);
    if (y && ds_module_params(m[0]) > 1) {
        for (int i = 0; i < n; i++)
            w[i] = ds_reshape(ds_module_param_at(m[i], 1, NULL), ds_shape(-1, 1));
        ds_tensor *ones = dsi_fill(dsi_new(rows, ds_shape(ds_size(rows, 0), 1)), 1);
        bool counts = dsi_cost_set(false); /* a bias has no products */
        y = ds_add(y, dsi_grouped_linear(ones, begin, w, n));
        dsi_cost_set(counts);
    }
    dsi_free(w);
    return y;
}

static ds_tensor *modules_grouped(ds_module *const *m, int n, ds_tensor *rows, ds_tensor *begin)
{
    if (dsi_module_is_linear(m[0])) return linear_grouped(m, n, rows, begin);
    if (dsi_module_is_pointwise(m[0])) return ds_call(m[0], rows);
    ds_module **child = dsi_alloc((size_t)n * sizeof(ds_module *));
    for (int c = 0; c < ds_module_children(m[0]); c++) {
        for (int i = 0; i < n; i++) child[i] = ds_module_child(m[i], c);
        rows = modules_grouped(child, n, rows, begin);
    }
    dsi_free(child);
    return rows;
}

ds_tensor *dsi_children_grouped(const ds_module *m, ds_tensor *rows, ds_tensor *begin)
{
    int n = ds_module_children(m);
    ds_module **child = dsi_alloc((size_t)n * sizeof(ds_module *));
    for (int i = 0; i < n; i++) child[i] = ds_module_child(m, i);
    ds_tensor *y = modules_grouped(child, n, rows, begin);
    dsi_free(child);
    return y;
}
