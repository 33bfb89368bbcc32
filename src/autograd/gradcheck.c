/* autograd/gradcheck.c: ds_gradcheck: compares backward with central
 * differences, as torch.autograd.gradcheck.
 *
 * L = sum of w y with fixed weights w in [0.5, 1.5): d L / d x from one
 * backward, beside (L(x + eps) - L(x - eps)) / (2 eps) for each element of each
 * input.
 * SPDX-License-Identifier: MIT */
#include "graph.h"

#include <math.h>

typedef struct Check {
    ds_tensor *(*f)(void *arg, ds_tensor **in, int n);
    void *arg;
    ds_tensor **in;
    int n;
    ds_gradcheck_opts o;
} Check;

/* A fixed sequence without pattern: the fractions of multiples of the golden
 * ratio. */
static double weight(int64_t i)
{
    double t = (double)(i + 1) * 0.6180339887498949;
    return 0.5 + (t - floor(t));
}

/* Only float64: rounding of float32 hides wrong gradients. */
static ds_tensor *gradcheck_call(const Check *c)
{
    ds_tensor *y = c->f(c->arg, c->in, c->n);
    if (!dsi_live(y, "gradcheck")) return dsi_null_operand("gradcheck");
    if (y->dtype != DS_F64)
        return dsi_refuse("gradcheck: f returned %s: expected float64", ds_dtype_name(y->dtype));
    return y;
}

/* *out = L at the present inputs; records nothing. */
static ds_status weighted_loss(const Check *c, double *out)
{
    bool was = ds_set_grad(false);
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = gradcheck_call(c);
    const double *p = y ? ds_data(y) : NULL;
    *out = 0;
    for (int64_t i = 0, n = ds_numel(y); p && i < n; i++) *out += weight(i) * p[i];
    ds_scope_close(scope);
    ds_set_grad(was);
    return p ? DS_OK : ds_error_status();
}

/* Sets the gradients of the inputs: backward with dy = w. */
static ds_status gradients_by_backward(const Check *c)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = gradcheck_call(c);
    ds_tensor *w = y ? dsi_new(y, y->shape) : NULL,
              *host = y ? dsi_new_host(DS_F64, y->shape) : NULL;
    double *p = host ? ds_data_mut(host) : NULL;
    for (int64_t i = 0, n = ds_numel(host); p && i < n; i++) p[i] = weight(i);
    ds_status status = dsi_copy(w, host);
    if (status == DS_OK) status = ds_backward_from(y, w);
    ds_scope_close(scope);
    return status;
}

/* *out = L with element i of x = value, on whatever device it is. */
static ds_status loss_with(const Check *c, ds_tensor *x, int64_t i, double value, double *out)
{
    ds_scope *scope = ds_scope_open();
    const int64_t none = 0;
    bool set = dsi_acquire_to_write(x) &&
               dsi_fill(dsi_view_of(x, (ds_dims){0}, &none, x->offset + i), value);
    ds_scope_close(scope);
    if (!set) return ds_error_status();
    return out ? weighted_loss(c, out) : DS_OK;
}

/* Changes one element at a time, and restores it. An input without a gradient
 * must have no influence on L. */
static ds_status check_input(const Check *c, int k)
{
    ds_tensor *x = c->in[k], *grad = ds_grad(x);
    const double *g = grad ? ds_data(grad) : NULL, *values = ds_data(x);
    if (!values) return ds_error_status();
    for (int64_t i = 0, n = ds_numel(x); i < n; i++) {
        double was = values[i], up = 0, down = 0;
        ds_status a = loss_with(c, x, i, was + c->o.eps, &up);
        ds_status b = loss_with(c, x, i, was - c->o.eps, &down);
        if (a != DS_OK || b != DS_OK || loss_with(c, x, i, was, NULL) != DS_OK)
            return ds_error_status();
        double want = (up - down) / (2 * c->o.eps), got = g ? g[i] : 0;
        if (!(fabs(got - want) <= c->o.atol + c->o.rtol * fabs(want)))
            return dsi_fail(DS_EINVAL,
                            "gradcheck: input %d, element %lld: backward says %.9g, central "
                            "differences say %.9g",
                            k, (long long)i, got, want);
    }
    return DS_OK;
}

ds_status ds_gradcheck(ds_tensor *(*f)(void *arg, ds_tensor **in, int n), void *arg, ds_tensor **in,
                       int n, ds_gradcheck_opts opts)
{
    if (!f || (n > 0 && !in)) return dsi_null_argument("gradcheck");
    Check c = {f, arg, in, n, opts};
    if (!c.o.eps) c.o.eps = 1e-6;
    if (!c.o.atol) c.o.atol = 1e-5;
    if (!c.o.rtol) c.o.rtol = 1e-3;
    bool none = true;
    for (int i = 0; i < n; i++) {
        if (!in[i]) return dsi_null_argument("gradcheck");
        if (!in[i]->requires_grad) continue;
        none = false;
        if (in[i]->dtype != DS_F64)
            return dsi_fail(DS_EINVAL, "gradcheck: input %d is %s: expected float64", i,
                            ds_dtype_name(in[i]->dtype));
        if (!dsi_is_contiguous(in[i]))
            return dsi_fail(DS_EINVAL,
                            "gradcheck: input %d %s is not contiguous: give a "
                            "ds_contiguous copy",
                            i, dsi_shape_text(in[i]->shape));
        ds_set_grad_of(in[i], NULL);
    }
    if (none)
        return dsi_fail(DS_EINVAL, "gradcheck: no input requires a gradient (ds_require_grad)");
    ds_status status = gradients_by_backward(&c);
    for (int i = 0; i < n && status == DS_OK; i++)
        if (in[i]->requires_grad) status = check_input(&c, i);
    return status;
}
