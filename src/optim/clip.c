/* optim/clip.c: the norm of all gradients of a module, clipping by it, and by
 * value: torch.nn.utils.clip_grad.
 *
 * Invariants: gradients are read where they are and changed in place; none is
 * made. The host waits for a norm, so ds_grad_norm and ds_clip_grad_norm block
 * on a GPU. A parameter without a gradient is left out.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include "base/mem.h"

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

ds_status dsi_grads_norm(int n, ds_tensor **g, double p, double *norm)
{
    *norm = 0;
    if (!n) return DS_OK;
    dsi_view *views = dsi_alloc((size_t)n * sizeof *views);
    for (int i = 0; i < n; i++) views[i] = dsi_v(g[i]);
    ds_status status = dsi_norm(g[0]->device, p, n, views, norm);
    dsi_free(views);
    return status;
}

bool dsi_grads_scale(int n, ds_tensor **g, double factor)
{
    for (int i = 0; i < n; i++)
        if (!dsi_acquire_to_write(g[i]) ||
            !dsi_run(g[i], affine, factor, 0.0, dsi_v(g[i]), dsi_v(g[i])))
            return false;
    return true;
}

/* Scales the gradients so that their norm is at most max_norm; returns what it
 * was. 1e-6 keeps the quotient finite, as in torch. scale false: the norm
 * alone. */
static double grads_clip(ds_module *m, bool scale, double max_norm, double p)
{
    int count = ds_module_params(m);
    ds_tensor **g = dsi_alloc((size_t)count * sizeof *g);
    int n = module_grads(m, count, g);
    double norm;
    if (n < 0 || dsi_grads_norm(n, g, p, &norm) != DS_OK) norm = NAN;
    double factor = max_norm / (norm + 1e-6);
    /* Not "factor < 1": the gradients of a NaN norm become NaN, as in PyTorch,
     * and do not stay. */
    if (scale && !(factor >= 1) && !dsi_grads_scale(n, g, factor)) norm = NAN;
    dsi_free(g);
    return norm;
}

/* The 2-norm over all gradients, as one vector; NaN, with the message, if it
 * cannot be computed. */
double ds_grad_norm(ds_module *m)
{
    if (m) return grads_clip(m, false, 0, 2);
    dsi_null_operand("grad_norm");
    return NAN;
}

/* Returns the norm before clipping, as torch does; the gradients are scaled in
 * place. A norm of inf or NaN is returned, not refused. */
double ds_clip_grad_norm(ds_module *m, double max_norm, double norm_type)
{
    if (!m)
        dsi_null_operand("clip_grad_norm");
    else if (norm_type != 1 && norm_type != 2 && norm_type != INFINITY)
        dsi_refuse("clip_grad_norm: norm_type is %g: expected 1, 2 or INFINITY", norm_type);
    else if (!(max_norm >= 0))
        dsi_refuse("clip_grad_norm: max_norm is %g: expected 0 or more", max_norm);
    else
        return grads_clip(m, true, max_norm, norm_type);
    return NAN;
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
