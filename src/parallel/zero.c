/* parallel/zero.c: ZeRO as one thing with three switches (the table in zero.h): one step over the parts of the
 * parameters that this rank updates.
 *
 * What the optimizer updates, for each parameter:
 *   float32   the parameter itself: the gradient stays where backward made it, nothing is copied;
 *   16 bits   a float32 master in one flat buffer (flat.h), beside which the parameter is the copy that
 *             the optimizer writes; the gradient stays 16-bit, and is widened as the optimizer reads it.
 * Unscaling and clipping are one factor that the optimizer multiplies gradients by as it reads them. The
 * norm that clipping needs is not finite just when a gradient is inf or NaN (squares are added in double), so
 * the search for overflow is that same pass; which parameter it was is asked only after one.
 * Source: Rajbhandari et al., ZeRO, arXiv 1910.02054; mixed precision: arXiv 1710.03740.
 * SPDX-License-Identifier: MIT */
#include "zero.h"

#include "autograd/node.h"
#include "base/mem.h"
#include "flat.h"
#include "optim/optim.h"

#include <math.h>

struct dsi_zero {
    ds_module *model; /* these three are borrowed */
    ds_optim *optim;
    ds_comm *comm;
    dsi_zero_opts o;
    dsi_flat *flat;
    ds_tensor *masters; /* float32 [flat->own], counted; NULL: the parameters are their own */
    ds_tensor *
        *part;       /* [flat->n], counted: what the optimizer updates; NULL: nothing of this one */
    dsi_view *views; /* [flat->n]: room for the gradients of one step */
    char *bad;
};

/* ---- making ------------------------------------------------------------------------------------------------ */

static ds_status check(const dsi_zero_opts *o)
{
    if (o->stage < 0 || o->stage > 3)
        return dsi_fail(DS_EINVAL, "zero: stage is %d: expected 0 to 3", o->stage);
    if (o->dtype != DS_F32 && o->dtype != DS_F16 && o->dtype != DS_BF16)
        return dsi_fail(DS_EINVAL, "zero: dtype is %s: expected float32, float16 or bfloat16",
                        ds_dtype_name(o->dtype));
    if (o->accum_dtype != DS_F32 && o->accum_dtype != o->dtype)
        return dsi_fail(DS_EINVAL, "zero: gradients of %s cannot be added up in %s: expected %s",
                        ds_dtype_name(o->dtype), ds_dtype_name(o->accum_dtype),
                        o->dtype == DS_F32 ? "float32" : "float32 or the model's dtype");
    return DS_OK;
}

/* The masters, with the values of the parameters, which are rounded already: as DeepSpeed begins. */
static ds_status make_masters(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    z->masters = dsi_ref(dsi_new_on(f->param[0].x->device, DS_F32, ds_shape(f->own)));
    if (!dsi_run(z->masters, fill, 0.0, dsi_v(z->masters))) return ds_error_status();
    for (int i = 0; i < f->n; i++) {
        ds_tensor *to = dsi_flat_in_own(f, i, z->masters);
        if (to && dsi_copy(to, dsi_flat_in_param(f, i)) != DS_OK) return ds_error_status();
    }
    return DS_OK;
}

/* Says to the optimizer what it updates. */
static ds_status set_parts(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    for (int i = 0; i < f->n; i++) {
        z->part[i] = dsi_ref(z->masters ? dsi_flat_in_own(f, i, z->masters) : f->param[i].x);
        if (z->masters && dsi_optim_set_param(z->optim, f->param[i].index, z->part[i],
                                              dsi_flat_in_param(f, i)) != DS_OK)
            return ds_error_status();
    }
    return DS_OK;
}

static ds_status prepare(dsi_zero *z)
{
    dsi_flat_opts layout = {.rank = 0, .ranks = 1, .bucket = INT64_MAX};
    if (ds_module_to(z->model, z->o.dtype) != DS_OK) return ds_error_status();
    z->flat = dsi_flat_new(z->model, &layout);
    if (!z->flat) return ds_error_status();
    z->part = dsi_alloc((size_t)z->flat->n * sizeof *z->part);
    z->views = dsi_alloc((size_t)z->flat->n * sizeof *z->views);
    if (z->o.dtype != DS_F32 && make_masters(z) != DS_OK) return ds_error_status();
    return set_parts(z);
}

dsi_zero *dsi_zero_new(ds_module *model, ds_optim *optim, ds_comm *comm, const dsi_zero_opts *o)
{
    if (!model || !optim) return dsi_passed("zero");
    if (check(o) != DS_OK) return NULL;
    dsi_zero *z = dsi_alloc(sizeof *z);
    z->model = model;
    z->optim = optim;
    z->comm = comm;
    z->o = *o;
    ds_scope *scope = ds_scope_open();
    ds_status status = prepare(z);
    ds_scope_close(scope);
    if (status == DS_OK) return z;
    dsi_zero_free(z);
    return NULL;
}

void dsi_zero_free(dsi_zero *z)
{
    if (!z) return;
    for (int i = 0; z->part && i < z->flat->n; i++) dsi_unref(z->part[i]);
    dsi_unref(z->masters);
    dsi_flat_free(z->flat);
    dsi_free(z->part);
    dsi_free(z->views);
    dsi_free(z->bad);
    dsi_free(z);
}

/* ---- gradients --------------------------------------------------------------------------------------------- */

ds_status dsi_zero_backward(dsi_zero *z, ds_tensor *loss, double factor, bool last)
{
    (void)last;
    if (!z) return dsi_passed("zero_backward"), DS_EINVAL;
    return dsi_backward_scaled(loss, factor);
}

void dsi_zero_zero_grad(dsi_zero *z)
{
    for (int i = 0; z && i < z->flat->n; i++) {
        ds_set_grad_of(z->flat->param[i].x, NULL);
        if (z->part[i] != z->flat->param[i].x) ds_set_grad_of(z->part[i], NULL);
    }
}

/* g as the norm takes it: a 16-bit one through a float32 copy in the current scope. */
static dsi_view wide(ds_tensor *g)
{
    return dsi_v(g && g->dtype != DS_F32 ? ds_cast(g, DS_F32) : g);
}

/* The gradients to where the optimizer looks for them, and into z->views -> their number, or -1. */
static int hand_over(dsi_zero *z)
{
    int n = 0;
    for (int i = 0; i < z->flat->n; i++) {
        ds_tensor *g = ds_grad(z->flat->param[i].x);
        if (!g) continue;
        if (dsi_make_dense(g) != DS_OK) return -1;
        if (z->part[i] != z->flat->param[i].x && ds_set_grad_of(z->part[i], g) != DS_OK) return -1;
        z->views[n++] = wide(g);
        if (!z->views[n - 1].p && z->flat->param[i].n) return -1;
    }
    return n;
}

/* ---- the step ---------------------------------------------------------------------------------------------- */

static ds_status norm_of(const dsi_zero *z, int n, const dsi_view *views, double *norm)
{
    *norm = 0;
    if (n == 0 || dsi_run(z->flat->param[0].x, norm, 2.0, n, views, norm)) return DS_OK;
    return ds_error_status();
}

/* The path of the first parameter, in the model's order, whose gradient is not finite. */
static const char *find_bad(dsi_zero *z)
{
    dsi_free(z->bad);
    z->bad = NULL;
    for (int i = z->flat->n - 1; i >= 0 && !z->bad; i--) {
        ds_tensor *g = ds_grad(z->flat->param[i].x);
        double norm = 0;
        dsi_view v = wide(g);
        if (!g || norm_of(z, 1, &v, &norm) != DS_OK || isfinite(norm)) continue;
        z->bad = dsi_strdup(dsi_flat_path(z->flat, z->model, i));
    }
    return z->bad;
}

/* torch.nn.utils.clip_grad_norm_'s factor; not "< 1", so that gradients of a NaN norm become NaN too. */
static double clip_factor(double norm, double max_norm)
{
    double factor = max_norm / (norm + 1e-6);
    return factor >= 1 ? 1 : factor;
}

static ds_status step(dsi_zero *z, double loss_scale, double max_norm, bool check_overflow,
                      bool want_norm, dsi_zero_step_result *out)
{
    double scale = 1 / loss_scale;
    int n = hand_over(z);
    if (n < 0) return ds_error_status();
    if (max_norm > 0 || check_overflow || want_norm) {
        if (norm_of(z, n, z->views, &out->norm) != DS_OK) return ds_error_status();
        out->norm *= scale;
    }
    if (check_overflow && !isfinite(out->norm)) {
        out->overflow = true;
        out->bad = find_bad(z);
        return DS_OK;
    }
    if (max_norm > 0) scale *= clip_factor(out->norm, max_norm);
    return dsi_optim_step_scaled(z->optim, scale);
}

ds_status dsi_zero_step(dsi_zero *z, double loss_scale, double max_norm, bool check_overflow,
                        bool want_norm, dsi_zero_step_result *out)
{
    if (!z) return dsi_passed("zero_step"), DS_EINVAL;
    dsi_zero_step_result result = {.norm = NAN};
    ds_scope *scope = ds_scope_open();
    ds_status status = step(z, loss_scale, max_norm, check_overflow, want_norm, &result);
    dsi_zero_zero_grad(z);
    ds_scope_close(scope);
    if (out) *out = result;
    return status;
}

/* ---- for checkpoints and averages -------------------------------------------------------------------------- */

static int find(const dsi_zero *z, int index)
{
    for (int i = 0; z && i < z->flat->n; i++)
        if (z->flat->param[i].index == index) return i;
    return -1;
}

ds_tensor *dsi_zero_part(const dsi_zero *z, int i)
{
    int k = find(z, i);
    return k < 0 ? NULL : z->part[k];
}

ds_status dsi_zero_publish(dsi_zero *z)
{
    ds_scope *scope = ds_scope_open();
    ds_status status = DS_OK;
    for (int i = 0; z && z->masters && status == DS_OK && i < z->flat->n; i++)
        if (z->part[i]) status = dsi_copy(dsi_flat_in_param(z->flat, i), z->part[i]);
    ds_scope_close(scope);
    return status;
}

ds_tensor *dsi_zero_whole(dsi_zero *z, int i)
{
    int k = find(z, i);
    if (k < 0) return dsi_refuse("zero: there is no parameter %d", i);
    return dsi_own(dsi_ref(z->masters ? z->part[k] : z->flat->param[k].x));
}

/* ---- what it takes ------------------------------------------------------------------------------------------ */

dsi_zero_bytes dsi_zero_memory(const dsi_zero *z)
{
    dsi_zero_bytes bytes = {0};
    if (!z) return bytes;
    for (int i = 0; i < z->flat->n; i++)
        bytes.parameters += z->flat->param[i].n * (int64_t)ds_dtype_size(z->o.dtype);
    bytes.gradients = bytes.parameters;
    if (z->masters) bytes.optimizer += z->flat->own * (int64_t)sizeof(float);
    ds_state *moments = ds_optim_state(z->optim);
    for (int i = 0; i < ds_state_len(moments); i++) {
        const ds_tensor *x = ds_state_at(moments, i);
        bytes.optimizer += ds_numel(x) * (int64_t)ds_dtype_size(ds_dtype_of(x));
    }
    ds_state_free(moments);
    return bytes;
}
