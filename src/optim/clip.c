/* optim/clip.c: the norm of all gradients of a module, clipping by it, and by
 * value: torch.nn.utils.clip_grad.
 *
 * Invariants: gradients are read where they are and changed in place; none is
 * made. ds_clip_grad_norm leaves its norm and its factor on the device; the
 * host waits for the norm of ds_grad_norm. A parameter without a gradient is
 * left out.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include "base/mem.h"

#include <float.h>
#include <math.h>

/* The gradients that there are, dense -> their number; -1, with the message,
 * if one cannot be had. g: [n], the caller's; the tensors are borrowed from
 * the parameters. */
static int module_grads(const ds_module *m, int n, ds_tensor **g)
{
    int found = 0;
    for (int i = 0; i < n; i++) {
        ds_tensor *grad = ds_module_param_at(m, i, NULL)->grad;
        if (!grad) continue;
        if (!dsi_acquire(grad)) return -1;
        g[found++] = grad;
    }
    return found;
}

/* The views of n dense gradients, to be freed. */
static dsi_view *grad_views(int n, ds_tensor **g)
{
    dsi_view *views = dsi_alloc((size_t)n * sizeof *views);
    for (int i = 0; i < n; i++) views[i] = dsi_v(g[i]);
    return views;
}

ds_tensor *dsi_grads_result(int n, ds_tensor **g, double p, const dsi_step_limits *limits,
                            ds_tensor *unscale)
{
    dsi_view *views = grad_views(n, g);
    ds_tensor *norm = dsi_new_dtype(unscale, DS_F64, (ds_dims){0});
    ds_tensor *y = dsi_new_dtype(unscale, DS_F64, ds_shape(DSI_RESULTS));
    bool done = y && norm && dsi_run(g[0], norm, p, n, views, dsi_v(norm)) &&
                dsi_run(y, step_result, limits, dsi_v(unscale), (dsi_view){0}, dsi_v(norm),
                        dsi_v(y));
    dsi_free(views);
    return done ? y : NULL;
}

ds_tensor *dsi_element_of(const ds_tensor *x, int64_t i)
{
    return x ? dsi_view_of(x, (ds_dims){0}, x->stride, x->offset + i) : NULL;
}

/* 16 bits times a float32 are rounded once. */
static bool grad_scale(ds_tensor *g, ds_tensor *factor)
{
    if (!dsi_acquire_to_write(g)) return false;
    ds_tensor *x = dsi_to_dtype(g, factor->dtype);
    return x &&
           dsi_run_op(x, binary, DSI_MUL, 1.0, dsi_v(x), dsi_v_expand(factor, x->shape),
                      dsi_v(x)) &&
           (x == g || dsi_copy(g, x) == DS_OK);
}

bool dsi_grads_scale(int n, ds_tensor **g, ds_tensor *factor)
{
    bool host = factor->device->type->kind == DS_CPU; /* there 1 saves a pass */
    double value = host ? ds_item(factor) : NAN;
    ds_tensor *narrow = host ? factor : dsi_to_dtype(factor, DS_F32);
    if (value == 1) return true;
    bool done = narrow != NULL;
    for (int i = 0; i < n && done; i++)
        done = host ? dsi_acquire_to_write(g[i]) &&
                          dsi_run(g[i], affine, value, 0.0, dsi_v(g[i]), dsi_v(g[i]))
                    : grad_scale(g[i], g[i]->dtype == DS_F64 ? factor : narrow);
    return done;
}

/* The 2-norm over all gradients, as one vector; NaN, with the message, if it
 * cannot be computed. */
double ds_grad_norm(ds_module *m)
{
    double norm = 0;
    if (!m) return dsi_null_operand("grad_norm"), NAN;
    int count = ds_module_params(m);
    ds_tensor **g = dsi_alloc((size_t)count * sizeof *g);
    int n = module_grads(m, count, g);
    dsi_view *views = n > 0 ? grad_views(n, g) : NULL;
    if (n < 0 || (n && dsi_norm(g[0]->device, 2, n, views, &norm) != DS_OK)) norm = NAN;
    dsi_free(views);
    dsi_free(g);
    return norm;
}

/* The norm, and the gradients are multiplied by max_norm / (norm + 1e-6) if
 * that is less than 1, or NaN, as in torch. A limit of 0 is none to the kernel:
 * the least number leaves at most 1e-317 of a float64. */
static ds_tensor *grads_clip(int n, ds_tensor **g, double max_norm, double p)
{
    if (n < 0) return NULL;
    if (!n) return ds_scalar(DS_F64, 0);
    const dsi_step_limits limits = {.max_norm = max_norm > 0 ? max_norm : DBL_TRUE_MIN};
    ds_tensor *one = dsi_fill(dsi_new_dtype(g[0], DS_F64, (ds_dims){0}), 1);
    ds_tensor *y = one ? dsi_grads_result(n, g, p, &limits, one) : NULL;
    ds_tensor *factor = dsi_element_of(y, DSI_RESULT(g_factor));
    return factor && dsi_grads_scale(n, g, factor) ? dsi_element_of(y, DSI_RESULT(norm)) : NULL;
}

/* Returns the norm before clipping, as torch does; the gradients are scaled in
 * place. A norm of inf or NaN is returned, not refused. */
ds_tensor *ds_clip_grad_norm(ds_module *m, double max_norm, double norm_type)
{
    if (!m) return dsi_null_operand("clip_grad_norm");
    if (norm_type != 1 && norm_type != 2 && norm_type != INFINITY)
        return dsi_refuse("clip_grad_norm: norm_type is %g: expected 1, 2 or INFINITY", norm_type);
    if (!(max_norm >= 0))
        return dsi_refuse("clip_grad_norm: max_norm is %g: expected 0 or more", max_norm);
    int count = ds_module_params(m);
    ds_tensor **g = dsi_alloc((size_t)count * sizeof *g);
    ds_scope *scope = ds_scope_open();
    ds_tensor *norm = grads_clip(module_grads(m, count, g), g, max_norm, norm_type);
    dsi_free(g);
    return dsi_scope_return(scope, norm ? dsi_ref(norm) : NULL);
}

/* g between -value and value, in place; NaN stays. */
static ds_status grad_clip_value(ds_tensor *g, double value)
{
    ds_tensor *low = dsi_fill(dsi_new(g, (ds_dims){0}), -value);
    ds_tensor *high = dsi_fill(dsi_new(g, (ds_dims){0}), value);
    ds_tensor *y = ds_where(ds_lt(g, low), low, g);
    return ds_copy(g, ds_where(ds_lt(high, y), high, y));
}

ds_status ds_clip_grad_value(ds_module *m, double clip_value)
{
    if (!m) return dsi_null_argument("clip_grad_value");
    if (!(clip_value >= 0))
        return dsi_fail(DS_EINVAL, "clip_grad_value: clip_value is %g: expected 0 or more",
                        clip_value);
    int count = ds_module_params(m);
    ds_tensor **g = dsi_alloc((size_t)count * sizeof *g);
    int n = module_grads(m, count, g);
    ds_status status = n < 0 ? ds_error_status() : DS_OK;
    bool was = ds_set_grad(false);
    for (int i = 0; i < n && status == DS_OK; i++) {
        ds_scope *scope = ds_scope_open();
        status = grad_clip_value(g[i], clip_value);
        ds_scope_close(scope);
    }
    ds_set_grad(was);
    dsi_free(g);
    return status;
}
